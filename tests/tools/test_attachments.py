"""The tool that hands a file of the workspace to the user."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from chatd.domain.answer.tool_output import AnsweredCall, result_message
from chatd.domain.chat.parts import FilePart, ToolResultPart
from chatd.domain.chat.user_transitions import MAX_FILES_PER_CHAT
from chatd.domain.ids import ToolCallId
from chatd.store.chat import chats
from chatd.store.database.pool import Pool
from chatd.tools.files import ATTACH_PIECE_BYTES, MAX_ATTACHED_BYTES
from tests.support.eventually import eventually
from tests.support.sample_files import PNG
from tests.support.tables import table
from tests.tools.file_tool_caller import FileToolCaller, open_file_tools
from tests.workspaces.agent_process import Workbench


@pytest.fixture
async def caller(bench: Workbench, pool: Pool) -> AsyncGenerator[FileToolCaller]:
    async with open_file_tools(bench, pool) as caller:
        yield caller


def put(caller: FileToolCaller, name: str, content: bytes) -> str:
    path = caller.bench.path(name)
    Path(path).write_bytes(content)
    return path


@table(
    "name content media_type",
    {
        "an image": ("shot.png", PNG, "image/png"),
        "a table": ("sums.csv", b"a,b\n1,2\n", "text/csv"),
        "JSON": ("found.json", b'{"a":1}', "application/json"),
        "Markdown": ("notes.md", b"# Notes\n", "text/markdown"),
        "a log": ("run.log", b"ok\n", "text/plain"),
        "a file of several pieces": (
            "long.txt",
            b"0123456789abcdef" * (ATTACH_PIECE_BYTES // 8) + b"end",
            "text/plain",
        ),
        "exactly one piece": ("piece.txt", b"x" * ATTACH_PIECE_BYTES, "text/plain"),
    },
)
async def test_a_file_of_the_workspace_becomes_a_file_of_the_chat(
    caller: FileToolCaller, name: str, content: bytes, media_type: str
) -> None:
    path = put(caller, name, content)
    attached = await caller.result_of("attach_file", path=path)
    file_id = attached.pop("file_id")
    assert attached == {
        "ok": True,
        "path": path,
        "name": name,
        "media_type": media_type,
        "size": len(content),
    }
    assert await caller.content_of(file_id) == content
    assert await caller.file_names() == [name]


async def test_the_result_shows_the_file(caller: FileToolCaller) -> None:
    path = put(caller, "shot.png", PNG)
    output = await caller.call("attach_file", path=path, name=" dir/The page.png ")
    answer = AnsweredCall(call_id=ToolCallId("c1"), name="attach_file", output=output)
    result, shown = result_message(answer).content
    assert isinstance(result, ToolResultPart)
    assert isinstance(shown, FilePart)
    assert (shown.media_type, shown.name) == ("image/png", "The page.png")
    assert str(shown.file_id) in output.text


async def test_a_repeated_call_attaches_one_file(caller: FileToolCaller) -> None:
    path = put(caller, "a.txt", b"first")
    first = await caller.call("attach_file", "the-call", path=path)
    put(caller, "a.txt", b"changed since")
    assert await caller.call("attach_file", "the-call", path=path) == first
    assert await caller.file_names() == ["a.txt"]


@table(
    "name content error",
    {
        "empty": ("a.txt", b"", "a.txt cannot be used: it is empty"),
        "too large": ("a.txt", b"x" * (MAX_ATTACHED_BYTES + 1), "is larger than 10485760 bytes"),
        "a program": ("a.out", b"\x7fELF\0\1", "neither an image, a PDF nor UTF-8 text"),
        "a page": ("a.html", b"<html></html>", "HTML, XML and SVG files are refused"),
        "a page with another name": ("a.txt", b"<html></html>", "The text is HTML or SVG"),
        "a cut image": ("a.png", PNG[:60], "is not a whole file of type image/png"),
        "a name that does not fit": ("a.pdf", PNG, "says application/pdf, but the content is"),
    },
)
async def test_a_file_that_cannot_be_shown_is_refused_and_leaves_nothing(
    caller: FileToolCaller, name: str, content: bytes, error: str
) -> None:
    path = put(caller, name, content)
    assert error in await caller.error_of("attach_file", path=path)
    assert await caller.file_names() == []
    for left in ("SELECT count(*) FROM file_chunks", "SELECT count(*) FROM file_uploads"):
        assert await caller.pool.fetchval(left) == 0


async def test_a_path_that_names_no_file_is_refused(caller: FileToolCaller) -> None:
    assert (
        "no such file"
        in (await caller.error_of("attach_file", path=caller.bench.path("missing.txt"))).lower()
    )
    place = caller.bench.path("")
    assert "not a directory" in await caller.error_of("attach_file", path=f"{place}/")
    assert "is a directory" in await caller.error_of("attach_file", path=place.rstrip("/"))
    assert "path is required" in await caller.error_of("attach_file", path=" ")


async def test_a_chat_has_at_most_fifty_files(caller: FileToolCaller) -> None:
    path = put(caller, "a.txt", b"x")
    for _ in range(MAX_FILES_PER_CHAT):
        await caller.result_of("attach_file", path=path)
    assert "at most 50 files" in await caller.error_of("attach_file", path=path)
    assert len(await caller.file_names()) == MAX_FILES_PER_CHAT


async def test_two_calls_at_once_do_not_pass_the_limit(caller: FileToolCaller) -> None:
    path = put(caller, "a.txt", b"x")
    for _ in range(MAX_FILES_PER_CHAT - 1):
        await caller.result_of("attach_file", path=path)
    async with asyncio.TaskGroup() as group, caller.pool.transaction() as held:
        await chats.lock_files(held, caller.chat.id)
        calls = [group.create_task(caller.call("attach_file", path=path)) for _ in range(2)]
        await eventually(lambda: count_lock_waiters(caller.pool, 2))
    assert sorted(call.result().is_error for call in calls) == [False, True]
    assert len(await caller.file_names()) == MAX_FILES_PER_CHAT


async def count_lock_waiters(pool: Pool, count: int) -> bool:
    return await pool.fetchval(
        """SELECT count(*) >= $1 FROM pg_stat_activity
           WHERE datname = current_database() AND wait_event_type = 'Lock'""",
        count,
    )
