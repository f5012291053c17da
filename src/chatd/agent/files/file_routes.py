"""HTTP routes for files. File operations run in threads, so a slow disk delays only them."""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial

from chatd.agent.effect_guards import EpochFence, IdempotencyJournal
from chatd.agent.errors import AgentError
from chatd.agent.files.file_browser import MAX_PIECE_BYTES, browse_directory, read_piece
from chatd.agent.files.file_content import list_directory, read_file, read_lines, write_file
from chatd.agent.files.file_editor import EditSpec, FileEditSpec, edit_files
from chatd.agent.files.file_paths import resolve_path
from chatd.agent.processes.process_output import RESULTS_DIRECTORY, prune_results
from chatd.agent.server.dispatcher import AgentCaller, AgentRoute, AgentRouteRequest
from chatd.agent.server.http_messages import AgentHttpReply, RequestFields, json_reply, read_fields
from chatd.agent.threads import WorkerThreads

API_PREFIX = "/api/v0"
MAX_CONTENT_BYTES = 10 << 20
MAX_REQUEST_FILES = 1000
MAX_DIFFS_CHARS = 60_000


class FileRoutes:
    """`on_touched(chats, paths)` is called for the files written for a chat."""

    def __init__(
        self,
        *,
        home: str,
        directory: str,
        threads: WorkerThreads,
        journal: IdempotencyJournal,
        fence: EpochFence,
        on_touched: Callable[[Sequence[str], Sequence[str]], None],
        before_effect: Callable[[AgentCaller, Sequence[str]], Awaitable[None]],
    ) -> None:
        self._home = home
        self._directory = directory
        self._threads = threads
        self._journal = journal
        self._fence = fence
        self._on_touched = on_touched
        self._before_effect = before_effect

    def routes(self) -> list[AgentRoute]:
        return [
            AgentRoute("POST", f"{API_PREFIX}/list-directory", self._list_directory),
            AgentRoute("GET", f"{API_PREFIX}/read-file", self._read_file),
            AgentRoute("GET", f"{API_PREFIX}/read-file-lines", self._read_lines),
            AgentRoute("GET", f"{API_PREFIX}/resolve-path", self._resolve_path),
            AgentRoute("GET", f"{API_PREFIX}/home", self._resolve_home),
            AgentRoute(
                "POST", f"{API_PREFIX}/write-file", self._write_file, max_body=MAX_CONTENT_BYTES
            ),
            AgentRoute("POST", f"{API_PREFIX}/edit-files", self._edit_files),
            AgentRoute("GET", f"{API_PREFIX}/files/list", self._browse),
            AgentRoute("GET", f"{API_PREFIX}/files/read", self._read_piece),
        ]

    async def _browse(self, request: AgentRouteRequest) -> AgentHttpReply:
        query = request.query()
        path = query.text("path", "")
        query.reject_unknown()
        work = partial(browse_directory, self._home, path, directory=self._directory)
        return json_reply(await self._threads.run(work))

    async def _read_piece(self, request: AgentRouteRequest) -> AgentHttpReply:
        """A line of JSON about the file, and its bytes."""
        query = request.query()
        path = query.text("path")
        offset, limit = query.count("offset"), query.count("limit", MAX_PIECE_BYTES)
        query.reject_unknown()
        work = partial(read_piece, self._home, path, offset=offset, limit=limit)
        facts, content = await self._threads.run(work)
        line = json.dumps(facts).encode()
        return AgentHttpReply(200, line + b"\n" + content, "application/octet-stream")

    async def _list_directory(self, request: AgentRouteRequest) -> AgentHttpReply:
        fields = request.json()
        names = [_require_string(name, "path") for name in fields.items("path")]
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

    async def _resolve_home(self, request: AgentRouteRequest) -> AgentHttpReply:
        request.query().reject_unknown()
        return json_reply({"path": await self._threads.run(partial(resolve_path, self._home))})

    async def _write_file(self, request: AgentRouteRequest) -> AgentHttpReply:
        query = request.query()
        path = query.text("path")
        query.reject_unknown()

        async def effect() -> dict[str, object]:
            await self._threads.run(partial(self._write, path, request.body))
            self._on_touched(request.caller.chat_and_ancestors, [path])
            return {"ok": True}

        return await self._run_effect(request.caller, "write", [path], effect)

    def _write(self, path: str, content: bytes) -> None:
        write_file(path, content)
        directory = os.path.dirname(path)
        if directory == os.path.join(resolve_path(self._home), RESULTS_DIRECTORY):
            with suppress(OSError):
                prune_results(directory)

    async def _edit_files(self, request: AgentRouteRequest) -> AgentHttpReply:
        fields = request.json()
        files = [_file_edits(item) for item in fields.items("files")[: MAX_REQUEST_FILES + 1]]
        include_diff = fields.flag("include_diff")
        fields.reject_unknown()
        if len(files) > MAX_REQUEST_FILES:
            raise AgentError(400, f"at most {MAX_REQUEST_FILES} files can be edited at once")
        paths = [each.path for each in files]

        async def effect() -> dict[str, object]:
            work = partial(edit_files, files, include_diff=include_diff)
            diffs = await self._threads.run(work)
            self._on_touched(request.caller.chat_and_ancestors, paths)
            return {"ok": True, "files": _limit_diffs(diffs)}

        return await self._run_effect(request.caller, "edit", paths, effect)

    async def _run_effect(
        self,
        caller: AgentCaller,
        kind: str,
        paths: Sequence[str],
        effect: Callable[[], Awaitable[dict[str, object]]],
    ) -> AgentHttpReply:
        self._fence.check_owner(caller.chat_id, caller.owner)
        await self._before_effect(caller, paths)
        self._fence.check_owner(caller.chat_id, caller.owner)  # may have changed meanwhile
        if not caller.key:
            return json_reply(await effect())
        return json_reply(await self._journal.run_once(caller.key, kind, effect))


def _limit_diffs(diffs: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """Leave out the longest diffs, so that the journal can store the result."""
    sizes = [len(json.dumps(each)) for each in diffs]
    limited = [dict(each) for each in diffs]
    for index in sorted(range(len(limited)), key=lambda index: -sizes[index]):
        if sum(sizes) <= MAX_DIFFS_CHARS:
            break
        length = len(limited[index]["diff"])
        limited[index]["diff"] = f"(the diff of {length} characters is left out)\n"
        sizes[index] = len(json.dumps(limited[index]))
    return limited


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


def _require_string(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise AgentError(400, f"{name} must be a list of strings")
    return value
