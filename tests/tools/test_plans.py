"""Plans: what a chat in plan mode may write, and the tool that proposes its plan."""

from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from chatd.domain.errors import StaleFence
from chatd.domain.files import FileLimits
from chatd.store.database.pool import Pool
from chatd.tools.plans import MAX_PLAN_BYTES
from tests.support.tables import table
from tests.tools.file_tool_caller import FileToolCaller, open_file_tools
from tests.workspaces.agent_process import Workbench

NOT_THE_PLAN = "In plan mode only the plan can be written"


@pytest.fixture
async def caller(bench: Workbench, pool: Pool) -> AsyncGenerator[FileToolCaller]:
    async with open_file_tools(bench, pool, mode="plan") as caller:
        yield caller


def shown_path(caller: FileToolCaller) -> str:
    return f"~/.chatd/plans/PLAN-{caller.chat.id}.md"


def plan_file(caller: FileToolCaller) -> Path:
    return Path(shown_path(caller).replace("~", str(caller.bench.process.home.resolve()), 1))


def write_plan(caller: FileToolCaller, content: bytes) -> None:
    plan_file(caller).parent.mkdir(parents=True, exist_ok=True)
    plan_file(caller).write_bytes(content)


def link_plan(caller: FileToolCaller, target: Path) -> None:
    target.write_text("kept")
    plan_file(caller).parent.mkdir(parents=True, exist_ok=True)
    plan_file(caller).symlink_to(target)


def link_home(caller: FileToolCaller) -> str:
    link = Path(caller.bench.path("home-link"))
    link.symlink_to(caller.bench.process.home)
    return str(link)


# What plan mode may write


async def test_the_plan_is_written_and_edited_by_the_path_of_the_instructions(
    caller: FileToolCaller,
) -> None:
    path = shown_path(caller)
    assert await caller.result_of("write_file", path=path, content="# Plan\n") == {"ok": True}
    edits = [{"old_text": "# Plan", "new_text": "# The plan"}]
    changed = await caller.result_of("edit_files", files=[{"path": path, "edits": edits}])
    assert changed["files"][0]["path"] == str(plan_file(caller))
    assert plan_file(caller).read_text() == "# The plan\n"
    read = await caller.result_of("read_file", path=path)
    assert read["content"] == "1\t# The plan\n2\t"


async def test_the_absolute_path_of_the_plan_is_the_plan(caller: FileToolCaller) -> None:
    indirect = f"{plan_file(caller).parent}/../plans/./{plan_file(caller).name}"
    assert await caller.result_of("write_file", path=indirect, content="x") == {"ok": True}
    assert plan_file(caller).read_text() == "x"


@table(
    "path",
    {
        "a file of the project": ("~/project/main.py",),
        "a plan in the home directory": ("~/plan.md",),
        "in capitals": ("~/PLAN.md",),
        "the plan of another chat": ("~/.chatd/plans/PLAN-other.md",),
        "beside the plan": ("~/.chatd/plans/notes.md",),
    },
)
async def test_no_other_file_is_written_in_plan_mode(caller: FileToolCaller, path: str) -> None:
    assert NOT_THE_PLAN in await caller.error_of("write_file", path=path, content="x")
    edits = [{"old_text": "a", "new_text": "b"}]
    files = [{"path": shown_path(caller), "edits": edits}, {"path": path, "edits": edits}]
    assert NOT_THE_PLAN in await caller.error_of("edit_files", files=files)
    assert not plan_file(caller).exists()


async def test_a_relative_path_is_refused(caller: FileToolCaller) -> None:
    assert "must be absolute" in await caller.error_of("write_file", path="plan.md", content="x")


async def test_a_link_does_not_lead_out_of_the_plan(caller: FileToolCaller) -> None:
    link_plan(caller, Path(caller.bench.path("main.py")))
    path = shown_path(caller)
    error = await caller.error_of("write_file", path=path, content="overwritten")
    assert "by a link" in error
    edits = [{"old_text": "kept", "new_text": "overwritten"}]
    files = [{"path": path, "edits": edits}]
    assert "by a link" in await caller.error_of("edit_files", files=files)
    assert "by a link" in await caller.error_of("propose_plan")
    assert plan_file(caller).read_text() == "kept"


async def test_a_linked_home_directory_is_the_same_place(caller: FileToolCaller) -> None:
    path = shown_path(caller).replace("~", link_home(caller), 1)
    assert await caller.result_of("write_file", path=path, content="x") == {"ok": True}
    assert plan_file(caller).read_text() == "x"


async def test_without_plan_mode_any_file_is_written(bench: Workbench, pool: Pool) -> None:
    async with open_file_tools(bench, pool) as caller:
        path = bench.path("plan.md")
        assert await caller.result_of("write_file", path=path, content="x") == {"ok": True}


# Proposals


async def test_a_plan_becomes_a_file_of_the_chat(caller: FileToolCaller) -> None:
    write_plan(caller, b"# Plan\n\n1. Fix it.\n")
    proposed = await caller.result_of("propose_plan")
    assert proposed == {
        "ok": True,
        "path": str(plan_file(caller)),
        "kind": "plan",
        "file_id": proposed["file_id"],
        "media_type": "text/markdown",
    }
    assert await caller.content_of(proposed["file_id"]) == b"# Plan\n\n1. Fix it.\n"
    assert await caller.file_names() == [plan_file(caller).name]


async def test_a_repeated_call_finds_the_file_of_the_first(caller: FileToolCaller) -> None:
    write_plan(caller, b"first")
    first = await caller.result_of("propose_plan", "the-call")
    write_plan(caller, b"changed since")
    again = await caller.result_of("propose_plan", "the-call")
    assert again["file_id"] == first["file_id"]
    assert await caller.content_of(first["file_id"]) == b"first"
    other = await caller.result_of("propose_plan", "another-call", path=str(plan_file(caller)))
    assert other["file_id"] != first["file_id"]
    assert len(await caller.file_names()) == 2


@table(
    "content error",
    {
        "missing": (None, "There is no plan yet. Write it to "),
        "empty": (b"", "The plan is empty. Write it to "),
        "blank": (b" \n\t\n", "The plan is empty. Write it to "),
        "too long": (b"x" * (MAX_PLAN_BYTES + 1), "The plan is longer than 32768 bytes."),
        "not text": (b"\xff\xfe", "neither an image, a PDF nor UTF-8 text"),
        "an image": (b"\x89PNG\r\n\x1a\n", "says text/markdown, but the content is image/png"),
    },
)
async def test_a_plan_that_cannot_be_read_is_refused(
    caller: FileToolCaller, content: bytes | None, error: str
) -> None:
    if content is not None:
        write_plan(caller, content)
    assert error in await caller.error_of("propose_plan")
    assert await caller.file_names() == []
    assert await caller.pool.fetchval("SELECT count(*) FROM file_chunks") == 0


async def test_a_plan_of_the_largest_size_is_proposed(caller: FileToolCaller) -> None:
    content = b"x" * MAX_PLAN_BYTES
    write_plan(caller, content)
    proposed = await caller.result_of("propose_plan", path=shown_path(caller))
    assert await caller.content_of(proposed["file_id"]) == content


async def test_another_path_is_refused(caller: FileToolCaller) -> None:
    write_plan(caller, b"# Plan")
    assert NOT_THE_PLAN in await caller.error_of("propose_plan", path="~/plan.md")
    assert "ends with .md" in await caller.error_of("propose_plan", path="~/plan.txt")


async def test_a_worker_that_lost_the_chat_stores_nothing(caller: FileToolCaller) -> None:
    write_plan(caller, b"# Plan")
    caller.chat = replace(caller.chat, epoch=caller.chat.epoch + 1)
    with pytest.raises(StaleFence):
        await caller.call("propose_plan")
    assert await caller.pool.fetchval("SELECT count(*) FROM file_uploads") == 0


async def test_the_quota_of_the_owner_counts(bench: Workbench, pool: Pool) -> None:
    limits = FileLimits(user_files=1)
    async with open_file_tools(bench, pool, mode="plan", limits=limits) as caller:
        write_plan(caller, b"# Plan")
        await caller.result_of("propose_plan")
        assert "Delete files that are no longer needed" in await caller.error_of("propose_plan")
        assert len(await caller.file_names()) == 1


def test_the_tool_ends_the_turn_and_runs_last(caller: FileToolCaller) -> None:
    tool = caller.tools["propose_plan"]
    assert (tool.stops_turn, tool.serial) == (True, True)
    schema = msgspec.json.decode(tool.spec.input_schema)
    assert schema["required"] == []
