"""The agent's routes for files. What they do to files is next door; here is only what was asked.

File work is done in threads, a few at a time: a slow disk holds up other file work at worst.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

from chatd.agent.edits.editor import EditSpec, FileEditSpec, edit_files
from chatd.agent.epochs import EpochFence
from chatd.agent.errors import AgentError
from chatd.agent.files.paths import resolve_path
from chatd.agent.files.reader import list_directory, read_file, read_lines
from chatd.agent.files.writer import write_file
from chatd.agent.idempotency import IdempotencyJournal
from chatd.agent.server.dispatcher import AgentCaller, AgentRoute, AgentRouteRequest
from chatd.agent.server.http_messages import AgentHttpReply, RequestFields, json_reply, read_fields
from chatd.agent.threads import start_pool

API = "/api/v0"
MAX_CONTENT_BYTES = 10 << 20
MAX_FILES = 1000
MAX_DIFFS = 60_000
FILE_THREADS = 8
FILE_OPERATION_TIMEOUT_S = 25.0

T = TypeVar("T")


class WorkerThreads:
    """A few threads for blocking work. A thread that hangs is one less, and says so in time."""

    def __init__(
        self, count: int = FILE_THREADS, within_s: float = FILE_OPERATION_TIMEOUT_S
    ) -> None:
        self._executor = start_pool(count, "files")
        self._within_s = within_s

    async def run(self, work: Callable[[], T]) -> T:
        held = _Work(work)
        begun = self._executor.submit(held)
        future = asyncio.wrap_future(begun)
        done, _ = await asyncio.wait({future}, timeout=self._within_s)
        if done:
            return future.result()
        # One that has not begun can still be called off, and then nothing was done. With any
        # other the thread goes on, whether or not somebody still waits.
        if begun.cancel():
            held.drop()
            raise AgentError(
                503,
                "The workspace's disk is busy. Nothing was done; try again later.",
                code="disk_busy",
            )
        future.cancel()
        raise AgentError(
            504,
            "The workspace's disk has not answered in time. What was asked for may still happen: "
            "look at the files before you repeat it.",
            code="disk_timeout",
        )

    def close(self) -> None:
        self._executor.shutdown(wait=False)


class _Work(Generic[T]):
    """What a thread is to do. A pool keeps even what was called off until a thread is free, and
    with a disk that never answers that is for ever: so it must not hold on to a file's content."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work: Callable[[], T] | None = work

    def __call__(self) -> T:
        work = self._work
        assert work is not None
        self.drop()
        return work()

    def drop(self) -> None:
        self._work = None


class FileRoutes:
    """`touched(chats, paths)` is told of every file that was written for a chat."""

    def __init__(
        self,
        *,
        home: str,
        threads: WorkerThreads,
        once: IdempotencyJournal,
        fence: EpochFence,
        touched: Callable[[Sequence[str], Sequence[str]], None],
    ) -> None:
        self._home = home
        self._threads = threads
        self._once = once
        self._fence = fence
        self._touched = touched

    def routes(self) -> list[AgentRoute]:
        return [
            AgentRoute("POST", f"{API}/list-directory", self._list_directory),
            AgentRoute("GET", f"{API}/read-file", self._read_file),
            AgentRoute("GET", f"{API}/read-file-lines", self._read_lines),
            AgentRoute("GET", f"{API}/resolve-path", self._resolve_path),
            AgentRoute("POST", f"{API}/write-file", self._write_file, max_body=MAX_CONTENT_BYTES),
            AgentRoute("POST", f"{API}/edit-files", self._edit_files),
        ]

    async def _list_directory(self, request: AgentRouteRequest) -> AgentHttpReply:
        fields = request.json()
        names = [_string(name, "path") for name in fields.items("path")]
        relativity = fields.text("relativity")
        fields.reject_unknown()
        work = partial(list_directory, names, relativity, home=self._home)
        return json_reply(await self._threads.run(work))

    async def _read_file(self, request: AgentRouteRequest) -> AgentHttpReply:
        query = request.query()
        path, offset, limit = query.text("path"), query.count("offset"), query.count("limit")
        query.reject_unknown()
        work = partial(read_file, path, offset=offset, limit=limit)
        content, mime = await self._threads.run(work)
        return AgentHttpReply(200, content, mime)

    async def _read_lines(self, request: AgentRouteRequest) -> AgentHttpReply:
        query = request.query()
        path = query.text("path")
        numbers = {name: query.count(name) for name in ("offset", "limit")}
        for name in ("file_size", "line_bytes", "response_lines", "response_bytes"):
            if f"max_{name}" in request.head.query:
                numbers[f"max_{name}"] = query.count(f"max_{name}")
        query.reject_unknown()
        return json_reply(await self._threads.run(partial(read_lines, path, **numbers)))

    async def _resolve_path(self, request: AgentRouteRequest) -> AgentHttpReply:
        query = request.query()
        path = query.text("path")
        query.reject_unknown()
        return json_reply({"path": await self._threads.run(partial(resolve_path, path))})

    async def _write_file(self, request: AgentRouteRequest) -> AgentHttpReply:
        query = request.query()
        path = query.text("path")
        query.reject_unknown()

        async def effect() -> dict[str, object]:
            await self._threads.run(partial(write_file, path, request.body))
            self._touched(request.caller.chat_and_ancestors, [path])
            return {"ok": True}

        return await self._once_for(request.caller, "write", effect)

    async def _edit_files(self, request: AgentRouteRequest) -> AgentHttpReply:
        fields = request.json()
        files = [_file_edits(item) for item in fields.items("files")[: MAX_FILES + 1]]
        include_diff = fields.flag("include_diff")
        fields.reject_unknown()
        if len(files) > MAX_FILES:
            raise AgentError(400, f"at most {MAX_FILES} files can be edited at once")

        async def effect() -> dict[str, object]:
            work = partial(edit_files, files, include_diff=include_diff)
            diffs = await self._threads.run(work)
            self._touched(request.caller.chat_and_ancestors, [each.path for each in files])
            return {"ok": True, "files": _bounded(diffs)}

        return await self._once_for(request.caller, "edit", effect)

    async def _once_for(
        self, caller: AgentCaller, kind: str, effect: Callable[[], Awaitable[dict[str, object]]]
    ) -> AgentHttpReply:
        await self._fence.check_epoch(caller.chat_id, caller.epoch)
        if not caller.key:
            return json_reply(await effect())
        return json_reply(await self._once.run_once(caller.key, kind, effect))


def _bounded(diffs: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """Small enough to be kept for whoever asks again: the longest ones are left out first."""
    sizes = [len(json.dumps(each)) for each in diffs]
    kept = [dict(each) for each in diffs]
    for place in sorted(range(len(kept)), key=lambda place: -sizes[place]):
        if sum(sizes) <= MAX_DIFFS:
            break
        kept[place]["diff"] = f"(the diff of {len(kept[place]['diff'])} characters is left out)\n"
        sizes[place] = len(json.dumps(kept[place]))
    return kept


def _file_edits(item: object) -> FileEditSpec:
    fields = read_fields(item, "a file")
    path = fields.text("path")
    edits = tuple(_edit(read_fields(edit, "an edit")) for edit in fields.items("edits"))
    fields.reject_unknown()
    return FileEditSpec(path=path, edits=edits)


def _edit(fields: RequestFields) -> EditSpec:
    edit = EditSpec(
        search=fields.text("search"),
        replace=fields.text("replace"),
        replace_all=fields.flag("replace_all"),
    )
    fields.reject_unknown()
    return edit


def _string(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise AgentError(400, f"{name} must be a list of strings")
    return value
