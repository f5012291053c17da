"""The file tools on a real agent."""

from pathlib import Path
from uuid import UUID

import msgspec
import pytest
from msgspec import Raw
from msgspec.structs import replace

from chatd.domain.answer.tool_output import ToolOutput
from chatd.domain.chat.user_transitions import MAX_FILES_PER_CHAT
from chatd.domain.ids import WorkspaceId
from chatd.domain.workspace.agent_api import AgentUnreachable
from chatd.store.database.pool import Pool
from chatd.tools.files import (
    MAX_CHAT_RESULT_BYTES,
    MAX_PAGE_BYTES,
    SavedResultTools,
    number_lines,
    save_results,
)
from tests.tools.file_tool_caller import open_file_tools
from tests.tools.tool_caller import ToolCaller
from tests.workspaces.agent_process import Workbench


def contents(path: str) -> str:
    return Path(path).read_text()


def put(path: str, text: str) -> None:
    Path(path).write_text(text)


async def test_a_file_is_written_and_read_with_line_numbers(bench: Workbench) -> None:
    caller, path = ToolCaller(bench), bench.path("deep/down/a.txt")
    assert await caller.result_of("write_file", path=path, content="one\ntwo\n") == {"ok": True}
    result = await caller.result_of("read_file", path=path)
    assert result["content"] == "1\tone\n2\ttwo\n3\t"
    assert (result["total_lines"], result["lines_read"], result["file_size"]) == (3, 3, 8)
    part = await caller.result_of("read_file", path=path, offset=2, limit=1)
    assert part["content"] == "2\ttwo"


@pytest.mark.promise("P7")
async def test_a_repeated_write_does_not_undo_later_writes(bench: Workbench) -> None:
    caller, path = ToolCaller(bench), bench.path("a.txt")
    await caller.result_of("write_file", "the-call", path=path, content="first")
    put(path, "another writer's")
    await caller.result_of("write_file", "the-call", path=path, content="first")
    assert contents(path) == "another writer's"


async def test_an_edit_returns_a_diff(bench: Workbench) -> None:
    caller, path = ToolCaller(bench), bench.path("a.py")
    await caller.result_of("write_file", path=path, content="a = 1\nb = 2\n")
    edits = [{"old_text": "b = 2", "new_text": "b = 3"}]
    result = await caller.result_of("edit_files", files=[{"path": path, "edits": edits}])
    assert result["ok"] is True
    (changed,) = result["files"]
    assert changed["path"] == path
    assert "-b = 2\n+b = 3" in changed["diff"]
    assert contents(path) == "a = 1\nb = 3\n"


@pytest.mark.promise("P7")
async def test_a_repeated_edit_is_applied_once(bench: Workbench) -> None:
    caller, path = ToolCaller(bench), bench.path("a.txt")
    await caller.result_of("write_file", path=path, content="x")
    files = [{"path": path, "edits": [{"old_text": "x", "new_text": "xx"}]}]
    first = await caller.result_of("edit_files", "the-call", files=files)
    assert await caller.result_of("edit_files", "the-call", files=files) == first
    assert contents(path) == "xx"


async def test_former_names_of_the_two_texts_still_work(bench: Workbench) -> None:
    caller, path = ToolCaller(bench), bench.path("a.txt")
    await caller.result_of("write_file", path=path, content="old")
    files = [{"path": path, "edits": [{"search": "old", "replace": "new"}]}]
    await caller.result_of("edit_files", files=files)
    assert contents(path) == "new"


INCOMPLETE: list[tuple[object, str]] = [
    ([], "files must be a list that is not empty: each with a path and edits."),
    (None, "files must be a list that is not empty: each with a path and edits."),
    ([{"path": "/a", "edits": []}], "files[0].edits must be a list that is not empty"),
    ([{"path": "", "edits": [{}]}], "files[0].path is required"),
    (
        [{"path": "/a", "edits": [{"old_text": "", "new_text": "x"}]}],
        "files[0].edits[0].old_text is required",
    ),
    (
        [{"path": "/a", "edits": [{"old_text": "x"}]}],
        "files[0].edits[0].new_text is required",
    ),
]


@pytest.mark.parametrize(("files", "complaint"), INCOMPLETE)
async def test_an_incomplete_edit_is_refused_with_its_position(
    bench: Workbench, files: object, complaint: str
) -> None:
    caller = ToolCaller(bench)
    caller.agent = AssertionError("must not connect")
    output = await caller.call("edit_files", files=files)
    assert output.is_error
    assert output.text.startswith(complaint)


@pytest.mark.covers("files-11")
async def test_a_refusal_of_the_agent_is_returned_as_it_is(bench: Workbench) -> None:
    output = await ToolCaller(bench).call("read_file", path=bench.path("nothing.txt"))
    assert output.is_error
    assert "nothing.txt" in output.text
    assert "HTTP" not in output.text
    assert "404" not in output.text


async def test_an_edit_that_does_not_match_changes_nothing(bench: Workbench) -> None:
    caller, path, other = ToolCaller(bench), bench.path("a.txt"), bench.path("b.txt")
    await caller.result_of("write_file", path=path, content="a")
    await caller.result_of("write_file", path=other, content="b")
    files = [
        {"path": path, "edits": [{"old_text": "a", "new_text": "z"}]},
        {"path": other, "edits": [{"old_text": "missing", "new_text": "z"}]},
    ]
    output = await caller.call("edit_files", files=files)
    assert output.is_error
    assert other in output.text
    assert contents(path) == "a"


@pytest.mark.parametrize("name", ["read_file", "write_file"])
async def test_a_call_without_a_path_gets_an_example(bench: Workbench, name: str) -> None:
    output = await ToolCaller(bench).call(name, content="x")
    assert output.text.startswith("path is required: give the absolute path of a file")


async def test_content_may_be_empty_but_must_be_given(bench: Workbench) -> None:
    caller, path = ToolCaller(bench), bench.path("empty")
    await caller.result_of("write_file", path=path, content="")
    assert contents(path) == ""
    assert (await caller.call("write_file", path=path)).text.startswith("content is required")


async def test_a_long_result_of_a_server_is_saved_in_the_workspace_and_can_be_read(
    bench: Workbench,
) -> None:
    caller = ToolCaller(bench)
    plain = caller.context("found")
    context = replace(plain, chat=replace(plain.chat, workspace_id=WorkspaceId(UUID(int=5))))
    long = ToolOutput(text="\n".join(f"row {number}" for number in range(20_000)))
    saved = await save_results(caller)(context, long)
    assert saved.text == long.text
    path = saved.saved.partition(" is in ")[2].partition(" of the workspace")[0]
    page = await caller.result_of("read_file", path=path, offset=19_999, limit=5)
    assert page["content"] == "19999\trow 19998\n20000\trow 19999"


async def test_a_long_result_of_a_chat_without_a_workspace_is_a_file_of_the_chat_and_can_be_read(
    bench: Workbench, pool: Pool
) -> None:
    async with open_file_tools(bench, pool) as caller:
        save, context = save_results(caller, caller.files), caller.context("found")
        long = ToolOutput(text="\n".join(f"row {number}" for number in range(20_000)))
        saved = await save(context, long)
        assert await save(context, long) == saved  # after a crash the call runs again
        [shown] = saved.files
        assert await caller.file_names() == [shown.name]
        path = saved.saved.partition(" is in ")[2].partition(": read")[0]
        for access in (caller, None):
            [reader] = await SavedResultTools(access, caller.files).tools(caller.chat)
            args = Raw(msgspec.json.encode({"path": path, "offset": 19_999, "limit": 5}))
            page = msgspec.json.decode((await reader.run(context, args)).text)
            assert page["content"] == "19999\trow 19998\n20000\trow 19999"
            args = Raw(msgspec.json.encode({"path": f"/chatd/results/{UUID(int=1)}"}))
            assert "has no result" in (await reader.run(context, args)).text
        assert caller.connections == 0


@pytest.mark.parametrize("begins", ["<!DOCTYPE html><script>x()</script>", "<svg onload='x()'>"])
async def test_a_long_result_that_is_a_web_page_is_kept_as_plain_text(
    bench: Workbench, pool: Pool, begins: str
) -> None:
    async with open_file_tools(bench, pool) as caller:
        save, context = save_results(None, caller.files), caller.context()
        [shown] = (await save(context, ToolOutput(text=begins + "\nrow" * 20_000))).files
        assert shown.media_type == "text/plain"
        assert (shown.name or "").endswith(".txt")
        assert shown.file_id is not None
        kept = await caller.files.read_result(context, shown.file_id, 1000)
        assert kept.decode().startswith(begins)


async def test_results_take_at_most_half_of_the_files_of_a_chat(
    bench: Workbench, pool: Pool
) -> None:
    async with open_file_tools(bench, pool) as caller:
        save, long = save_results(None, caller.files), ToolOutput(text="x" * 20_000)
        results = [await save(caller.context(), long) for _ in range(MAX_FILES_PER_CHAT // 2 + 2)]
        assert [bool(one.saved) for one in results[-3:]] == [True, False, False]
        assert len(await caller.file_names()) == MAX_FILES_PER_CHAT // 2


async def test_a_result_that_is_too_long_for_a_file_is_cut_between_characters(
    bench: Workbench, pool: Pool
) -> None:
    async with open_file_tools(bench, pool) as caller:
        long = ToolOutput(text="x" + "é" * (MAX_CHAT_RESULT_BYTES // 2))
        saved = await save_results(None, caller.files)(caller.context(), long)
        assert f"Only its first {MAX_CHAT_RESULT_BYTES} bytes are kept" in saved.saved


def test_a_long_line_of_a_saved_result_can_be_read_in_pieces() -> None:
    text, read, offset = "[" + "é" * 50_000 + "]", "", 1
    for _ in range(10):
        page = number_lines(text, offset=offset, limit=2000)
        assert len(page.content.encode()) <= MAX_PAGE_BYTES
        read += "".join(line.partition("\t")[2] for line in page.content.split("\n"))
        if page.next_offset is None:
            break
        offset = page.next_offset
    assert read == text
    assert number_lines("", offset=1, limit=5).lines_read == 0
    assert number_lines("a\n\nb", offset=2, limit=1).content == "2\t"


@pytest.mark.parametrize("reason", ["no workspace", "unreachable"])
async def test_a_result_that_cannot_be_saved_is_as_it_was(bench: Workbench, reason: str) -> None:
    caller = ToolCaller(bench)
    plain = caller.context()
    context = replace(plain, chat=replace(plain.chat, workspace_id=WorkspaceId(UUID(int=5))))
    if reason == "unreachable":
        caller.agent = AgentUnreachable("The connection broke.")
    output = ToolOutput(text="x" * 100_000)
    kept = await save_results(caller)(plain if reason == "no workspace" else context, output)
    assert kept == output
