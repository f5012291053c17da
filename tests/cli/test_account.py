"""`chatd models`, `usage`, `skills`, `files`, `tokens` and `mcp`, as processes."""

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path
from uuid import UUID

import pytest

from chatd.cli.administration.providers import model_row
from chatd.client.resources import EffortRange, LearnedContext, ModelCapabilities, ModelChoice
from chatd.domain.ids import ModelConfigId
from chatd.domain.model.protocol import Effort
from tests.support.command_line import ServerProcess, finish, read_until
from tests.support.providers.openai_chat import FakeCompatible, stream
from tests.support.providers.server import RecordedRequest, Reply
from tests.support.store import session_to

pytestmark = pytest.mark.timeout(240)

SKILL = "---\nname: release-notes\ndescription: Writes release notes.\n---\n\nRead the log.\n"


def test_models_are_listed(server: ServerProcess) -> None:
    listed = server.done("models").out.splitlines()
    assert listed[0].split() == ["NAME", "PROVIDER", "MODEL", "CONTEXT", "EFFORT"]
    assert {line.split()[0] for line in listed[1:]} == {"demo", "dear"}
    names = {model["name"] for model in server.done("models", "--json").items}
    assert names == {"demo", "dear"}


@pytest.mark.parametrize(
    ("efforts", "most", "text"),
    [
        (("low", "high", "max"), "high", "low to high"),
        (("medium",), None, "medium"),
        ((), None, ""),
    ],
)
def test_the_list_says_which_efforts_a_model_takes(
    efforts: tuple[str, ...], most: Effort | None, text: str
) -> None:
    model = ModelChoice(
        id=ModelConfigId(UUID(int=1)),
        name="m",
        capabilities=ModelCapabilities(context_limit=32_000, efforts=efforts),
        reasoning_effort=EffortRange(max=most),
    )
    assert model_row(model)[3:5] == ("32,000", text)


@pytest.mark.parametrize(
    ("configured", "known", "learned", "text"),
    [
        (None, None, LearnedContext(tokens=9_000, is_bound=True), "below 9,000 (learned)"),
        (None, 8_192, LearnedContext(tokens=8_192), "8,192 (learned)"),
        (None, 64_000, LearnedContext(tokens=9_000, is_bound=True), "64,000"),
        (None, None, None, ""),
        (4_096, 8_192, None, "4,096"),
    ],
)
def test_the_list_marks_a_learned_context_window(
    configured: int | None, known: int | None, learned: LearnedContext | None, text: str
) -> None:
    model = ModelChoice(
        id=ModelConfigId(UUID(int=1)),
        context_limit=configured,
        capabilities=ModelCapabilities(context_limit=known),
        learned_context=learned,
    )
    assert model_row(model)[3] == text


class ListingServer(FakeCompatible):
    """Also answers a request for its models."""

    def refuse(self, request: RecordedRequest) -> Reply | None:
        if request.method == "GET":
            body = b'{"data": [{"id": "Qwen/Qwen3", "max_model_len": 40960}]}'
            return Reply(headers={"content-type": "application/json"}, steps=(body,))
        return super().refuse(request)


async def test_a_provider_is_added_with_its_test_and_its_first_model(server: ServerProcess) -> None:
    """A test that fails is explained, and nothing is stored. Each command is a process, beside the
    fake provider in this one: that takes seconds."""
    closed = ("--kind", "openai-compat", "--base-url", "http://127.0.0.1:1/v1")
    failed = await server.run("providers", "add", "house", *closed, "-m", "lost")
    assert failed.code == 1
    assert "Nothing answers at this address" in failed.err
    assert "Nothing was stored" in failed.err
    async with ListingServer.running() as fake:
        options = ("--kind", "openai-compat", "--base-url", f"{fake.url}/v1")
        fake.script(stream("text"))
        added = await server.ok("providers", "add", "house", *options, given=b"sk-secret\n")
        assert fake.requests[-1].headers["authorization"] == "Bearer sk-secret"
    assert added.out == "qwen-qwen3\n"
    assert "house works: Qwen/Qwen3 answered in" in added.err
    assert "40,960 tokens of context" in added.err
    assert "sk-secret" not in added.out + added.err
    given = ("demo:outage,context", "dear")
    chain = await server.ok("providers", "fallbacks", "qwen-qwen3", *given)
    assert chain.out.splitlines()[1].split(maxsplit=1) == ["demo", "outage, context"]
    assert chain.out.splitlines()[2].startswith("dear")
    refused = await server.run("providers", "fallbacks", "qwen-qwen3", "lost")
    assert (refused.code, "there is no model" in refused.err) == (2, True)
    removed = await server.ok("providers", "rm", "house", "--with-models", "--yes")
    assert removed.err == "deleted house\n"


def test_usage_is_summed_by_model_chat_and_user(server: ServerProcess) -> None:
    chat_id = server.answered_chat(model="dear")
    by_chat = server.done("usage", "--since", "1d", "--by", "chat")
    # Other tests have chats on this server too, some of them dearer.
    [line] = [line for line in by_chat.out.splitlines() if str(chat_id) in line]
    assert line.startswith("$")
    assert line.endswith("answer fast")
    assert by_chat.err.startswith("$")
    by_user = server.done("usage", "--by", "user")
    assert by_user.out.splitlines()[1].endswith("admin Administrator")
    wrong = server.call("usage", "--since", "yesterday")
    assert (wrong.code, "--since" in wrong.err) == (2, True)


def test_a_skill_is_put_shown_replaced_and_removed(server: ServerProcess, tmp_path: Path) -> None:
    file = tmp_path / "SKILL.md"
    file.write_text(SKILL)
    assert server.done("skills", "put", file).err == "created release-notes\n"
    assert server.done("skills", "show", "release-notes").out == SKILL
    changed = SKILL.replace("the log", "the whole log")
    replaced = server.pipe(changed, "skills", "put", "-")
    assert replaced.err == "replaced release-notes\n"
    assert "Writes release notes." in server.done("skills", "list").out
    server.done("skills", "rm", "release-notes", "--yes")
    gone = server.call("skills", "show", "release-notes")
    assert (gone.code, "there is no skill" in gone.err) == (2, True)


async def propose_note(dsn: str, text: str) -> None:
    """As the tool of a model does."""
    async with session_to(dsn) as session:
        await session.execute(
            """INSERT INTO memory_notes (id, owner_id, state, text)
               SELECT gen_random_uuid(), id, 'proposed', $1 FROM users
               WHERE role = 'admin' AND NOT is_service""",
            text,
        )


def test_notes_are_kept_changed_accepted_and_removed(server: ServerProcess) -> None:
    assert server.done("memory", "add", "I use tabs.").err == "kept: I use tabs.\n"
    server.done("memory", "add", "Short answers.")
    server.done("memory", "edit", "2", "--place", "1")
    server.done("memory", "off", "1")
    assert server.done("memory", "list").out.splitlines()[1:] == [
        " 1  off  Short answers.",
        " 2  on   I use tabs.",
    ]
    asyncio.run(propose_note(server.dsn, "Ada\u202e works"))
    listed = server.done("memory", "list", "--proposed").out
    assert "Ada\\u202e works" in listed, "what cannot be seen is shown"
    kept = server.done("memory", "accept", "1", "--json").json
    assert (kept["text"], kept["state"]) == ("Ada works", "kept")
    asyncio.run(propose_note(server.dsn, "Bob"))
    assert server.done("memory", "dismiss", "1").err == "dismissed: Bob\n"
    server.done("memory", "edit", str(kept["id"]), "Ada works on billing.")
    server.done("memory", "on", "1")
    server.done("memory", "remove", "2", "--yes")
    items = server.done("memory", "list", "--json").items
    assert [one["text"] for one in items] == ["Short answers.", "Ada works on billing."]
    wrong = server.call("memory", "off", "3")
    assert (wrong.code, "there are: 1 to 2" in wrong.err) == (2, True)
    assert (server.call("memory", "edit", "1").code, server.call("memory", "use", "x").code) == (
        2,
        2,
    )
    assert server.done("memory", "use", "off").err == "memory: off\n"
    assert "memory is off" in server.done("memory", "list").err
    assert server.done("memory", "use", "notes", "--json").json == {"memory": "notes"}
    server.done("projects", "create", "Ledger")
    server.done("memory", "add", "Cents.", "--project", "ledger")
    (note,) = server.done("memory", "list", "--project", "Ledger", "--json").items
    assert note["project_id"] is not None
    server.done("projects", "rm", "Ledger", "--yes")


def test_a_project_is_made_filled_shown_and_removed(server: ServerProcess, tmp_path: Path) -> None:
    rules = tmp_path / "rules.md"
    rules.write_text("Use cents.\n")
    made = server.done("projects", "create", "Billing", "--instructions", rules, "--model", "dear")
    assert made.err == "created Billing\n"
    assert server.done("projects", "add", "billing", rules).err == "added rules.md\n"
    chat_id = server.pipe("", "run", "hi", "--detach", "--project", "Billing").out.strip()
    listed = server.done("chats", "list", "--project", "Billing", "--json").items
    assert [chat["id"] for chat in listed] == [chat_id]
    shown = server.done("projects", "show", "Billing").out
    for text in ("Use cents.", "Files:     rules.md", "Model:     dear", "Chats:     1"):
        assert text in shown
    assert server.done("projects", "move", chat_id, "none").err == "in no project\n"
    server.done("projects", "set", "Billing", "--name", "Money", "--model", "none")
    server.done("projects", "remove-file", "Money", "rules.md")
    assert [one["name"] for one in server.done("projects", "list", "--json").items] == ["Money"]
    nobody = server.call("projects", "member", "Money", "nobody-here")
    assert (nobody.code, "there is no active user" in nobody.err) == (2, True)
    server.done("projects", "rm", "Money", "--yes")
    gone = server.call("projects", "show", "Money")
    assert (gone.code, "there is no project" in gone.err) == (2, True)


def test_a_file_is_put_and_loaded(server: ServerProcess, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("some notes\n")
    file_id = server.done("files", "put", file).out.strip()
    assert server.done("files", "get", file_id).out == "some notes\n"
    place = tmp_path / "here"
    place.mkdir()
    server.done("files", "get", file_id, "-o", place)
    assert (place / "notes.txt").read_text() == "some notes\n"
    link = tmp_path / "link"
    link.symlink_to(place / "notes.txt")
    server.done("files", "get", file_id, "-o", link)
    assert link.is_symlink()
    server.done("files", "get", file_id, "-o", "/dev/null")
    assert not Path("/dev/null").is_file()
    assert sorted(one.name for one in place.iterdir()) == ["notes.txt"]
    unknown = server.call("files", "get", "../secret")
    assert (unknown.code, "no id of a file" in unknown.err) == (2, True)


def test_a_file_in_a_directory_is_overwritten_only_by_force(
    server: ServerProcess, tmp_path: Path
) -> None:
    """Somebody else may have chosen its name. A link there is not followed."""
    source, place, other = tmp_path / "notes.txt", tmp_path / "place", tmp_path / "other"
    source.write_text("new")
    place.mkdir()
    file_id = server.done("files", "put", source).out.strip()
    other.write_text("old")
    (place / "notes.txt").symlink_to(other)
    refused = server.call("files", "get", file_id, "-o", place)
    assert (refused.code, "--force overwrites it" in refused.err) == (2, True)
    server.done("files", "get", file_id, "-o", place, "--force")
    assert (place / "notes.txt").read_text() == "new"
    assert other.read_text() == "old"
    assert [one.name for one in place.iterdir()] == ["notes.txt"]


def test_a_pipe_is_put_like_a_file(server: ServerProcess, tmp_path: Path) -> None:
    """As `chatd files put <(command)` names one."""
    pipe = tmp_path / "pipe.txt"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("of a command",))
    writer.start()
    file_id = server.done("files", "put", pipe).out.strip()
    writer.join()
    assert server.done("files", "get", file_id).out == "of a command"


def test_a_token_is_shown_once_and_ends_when_it_is_revoked(server: ServerProcess) -> None:
    scopes = ("--scope", "chat:read", "--scope", "chat:write")
    made = server.done("tokens", "create", "--name", "ci", *scopes, "--expires", "90d")
    token = made.out.strip()
    assert token not in made.err
    listed = server.done("tokens", "list")
    assert token not in listed.out
    row = next(line for line in listed.out.splitlines() if line.endswith("ci"))
    assert "chat:read chat:write" in row
    env = {"CHATD_TOKEN": token, "CHATD_URL": server.url}
    assert server.call("chats", "list", env=env).code == 0
    refused = server.call("tokens", "list", env=env)
    assert refused.code == 3, refused
    server.done("tokens", "revoke", row.split()[0])
    ended = server.call("chats", "list", env=env)
    assert (ended.code, "chatd login" in ended.err) == (3, True)


def test_connecting_shows_the_page_and_waits_no_longer_than_told(
    server: ServerProcess,
) -> None:
    listed = server.done("mcp", "list").out
    assert {"open", "private"} <= {line.split()[0] for line in listed.splitlines()[1:]}
    assert "not connected" in listed
    nothing = server.done("mcp", "connect", "open")
    assert nothing.err == "open: not needed\n"
    waited = server.call("mcp", "connect", "private", "--timeout", "1")
    assert waited.code == 124
    assert f"{server.url}/settings/connections" in waited.err
    unknown = server.call("mcp", "connect", "nobody")
    assert (unknown.code, "there are: " in unknown.err) == (2, True)
    misplaced = server.call("mcp", "--url", server.url, "list")
    assert (misplaced.code, "after list" in misplaced.err) == (2, True)


def test_the_command_line_is_quick_to_import() -> None:
    """What a command needs it imports when it runs."""
    program = (
        "import sys, chatd.cli.main;"
        "slow = {'aiohttp', 'asyncio', 'asyncpg', 'rich', 'textual', 'uvicorn'};"
        "print(sorted(slow & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b"[]\n"


def test_commands_load_nothing_of_the_screens() -> None:
    """Textual takes a third of a second of the processor."""
    modules = ("chats.chat_work", "chats.answers", "chats.run_report", "administration.providers")
    imports = ", ".join(f"chatd.cli.{module}" for module in modules)
    program = f"import sys, {imports}; print('textual' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b"False\n"


async def test_connecting_ends_when_the_server_is_connected(server: ServerProcess) -> None:
    """Here it is because the server needs no account any more."""
    new = {"slug": "later", "url": "https://mcp.example.com/mcp", "auth": "oauth2"}
    config = server.request("POST", "/mcp-server-configs", new)
    async with server.started("mcp", "connect", "later", "--no-browser") as process:
        await read_until(process, "/settings/connections", errors=True)
        server.request("PATCH", f"/mcp-server-configs/{config['id']}", {"auth": "none"})
        code, out, err = await finish(process)
    assert (code, out, err) == (0, "", "later: not needed\n")
