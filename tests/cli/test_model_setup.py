"""`chatd models add`: a provider is connected in a script and step by step on a terminal."""

import shutil
from pathlib import Path
from typing import Final
from uuid import UUID

import msgspec
import pytest
from msgspec import Struct

from chatd.cli.administration.model_commands import read_choice
from chatd.client.provider_setup import find_vendor, may, suggest_name
from chatd.client.resources import Me, OfferedModel, User
from chatd.domain.ids import UserId
from tests.support.command_line import CHATD, ServerProcess
from tests.support.providers.openai_chat import FakeCompatible, stream
from tests.support.providers.server import RecordedRequest, Reply
from tests.support.tmux import TmuxTerminal, tmux_terminal

pytestmark = pytest.mark.timeout(240)

KEY: Final = "sk-never-shown"
LISTED: Final = b'{"data": [{"id": "Qwen/Qwen3"}, {"id": "small"}, {"id": "third"}]}'
OFFERED: Final = [OfferedModel(model=name) for name in ("a", "b", "c-1")]


class Model(Struct):
    name: str


class Provider(Struct):
    name: str
    keys: tuple[object, ...] = ()


class Done(Struct):
    """What --json prints."""

    provider: Provider
    models: tuple[Model, ...]


class KeyedServer(FakeCompatible):
    """Lists three models, and refuses other keys."""

    def refuse(self, request: RecordedRequest) -> Reply | None:
        if request.headers.get("authorization") != f"Bearer {KEY}":
            return Reply(status=401, steps=(b'{"error": {"message": "wrong key"}}',))
        if request.method == "GET":
            return Reply(headers={"content-type": "application/json"}, steps=(LISTED,))
        return super().refuse(request)


@pytest.mark.parametrize(
    ("answer", "chosen", "unknown"),
    [
        ("", ("a",), ""),
        ("2 c-1, 2", ("b", "c-1"), ""),
        ("4", (), "4"),
        ("a lost", (), "lost"),
    ],
)
def test_models_are_chosen_by_number_or_name(
    answer: str, chosen: tuple[str, ...], unknown: str
) -> None:
    assert read_choice(answer, OFFERED, OFFERED) == (chosen, unknown)


@pytest.mark.parametrize(
    ("kind", "url", "name"),
    [
        ("anthropic", None, "anthropic"),
        ("openai-compat", "http://127.0.0.1:11434/v1", "local"),
        ("openai-compat", "gpu-box.example.com:8000/v1", "gpu-box.example.com"),
        ("azure", "https://x.openai.azure.com", "azure"),
    ],
)
def test_a_provider_is_named_after_its_vendor_or_its_host(
    kind: str, url: str | None, name: str
) -> None:
    vendor = find_vendor(kind)
    assert vendor is not None
    assert suggest_name(vendor, url) == name


@pytest.mark.parametrize(
    ("role", "scopes", "allowed"),
    [
        ("admin", None, True),
        ("admin", ("chat:read", "account"), False),
        ("member", None, False),
        ("something-new", None, True),
    ],
)
def test_only_an_administrator_may_connect_a_provider(
    role: str, scopes: tuple[str, ...] | None, *, allowed: bool
) -> None:
    me = Me(user=User(id=UserId(UUID(int=1)), role=role), scopes=scopes)
    assert may(me, "config.write") is allowed


async def test_a_script_connects_a_provider_and_adds_models_to_it_later(
    server: ServerProcess, tmp_path: Path
) -> None:
    """Each command is a process, beside the fake provider in this one: that takes seconds."""
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n")
    async with KeyedServer.running() as fake:
        at = ("models", "add", "openai-compat", "--name", "house", "--base-url", f"{fake.url}/v1")
        wrong = await server.run(*at, given=b"sk-wrong\n")
        assert (wrong.code, wrong.out) == (1, "")
        assert "The provider refuses the key" in wrong.err
        assert "Nothing was stored" in wrong.err
        fake.script(stream("text"))
        added = await server.ok(*at, "--key-file", file, "--json")
        done = msgspec.convert(added.json, Done)
        assert (done.provider.name, [one.name for one in done.models]) == ("house", ["qwen-qwen3"])
        fake.script(stream("text"))
        more = await server.ok(*at, "-m", "small", "-m", "Qwen/Qwen3", "--default")
        assert more.out.split() == ["small", "qwen-qwen3"]
        assert "small is there: the default" in more.err
        again = await server.run(*at, given=b"sk-wrong\n")
        assert again.code == 1
        assert "The new key was not stored" in again.err
    for one in (wrong, added, more, again):
        assert KEY not in one.out + one.err
    listed = msgspec.convert(server.request("GET", "/providers")["items"], list[Provider])
    assert [len(one.keys) for one in listed if one.name == "house"] == [1]
    other = await server.run("models", "add", "openai", "--name", "house", given=b"sk-x\n")
    assert (other.code, "another provider house" in other.err) == (1, True)
    await server.ok("providers", "rm", "house", "--with-models", "--yes")


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
async def test_a_person_is_asked_for_what_is_missing_and_the_key_is_not_shown(
    server: ServerProcess, tmp_path: Path
) -> None:
    """In tmux: the key is asked for where nothing is echoed."""
    async with KeyedServer.running() as fake, tmux_terminal(tmp_path, server.env) as terminal:
        fake.script(stream("text"))
        await terminal.type_command(str(CHATD), "models", "add")
        await terminal.until_shown("Which one?")
        await _answer(terminal, "5")
        await terminal.until_shown("Address, such as")
        await _answer(terminal, f"{fake.url}/v1")
        await terminal.until_shown("API key (empty if it needs none)")
        await _answer(terminal, KEY)
        shown = await terminal.until_shown("Models, by number or name [Qwen/Qwen3]")
        assert "local works: Qwen/Qwen3 answered" in shown
        await _answer(terminal, "/s")
        await terminal.until_shown("by number or name [small]")
        await _answer(terminal, "1 third")
        await terminal.until_shown("small is there: the default")
        shown = await terminal.until_shown("code=0")
        assert "third is there: ready" in shown
        assert KEY not in shown
    await server.ok("providers", "rm", "local", "--with-models", "--yes")


async def _answer(terminal: TmuxTerminal, text: str) -> None:
    await terminal.write(text)
    await terminal.press("Enter")
