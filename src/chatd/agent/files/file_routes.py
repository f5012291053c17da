"""HTTP routes for files, and what a person may browse. File operations run in threads, so a slow
disk delays only them.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from chatd.agent.effect_guards import EpochFence, IdempotencyJournal
from chatd.agent.errors import AgentError, from_os_error
from chatd.agent.files.file_content import (
    directory_lock,
    list_directory,
    read_file,
    read_lines,
    replace_content,
    require_writable,
    stat_target,
    write_file,
)
from chatd.agent.files.file_editor import EditSpec, FileEditSpec, edit_files
from chatd.agent.files.file_paths import (
    check_encodable,
    file_kind,
    printable_name,
    read_at_most,
    require_regular,
    resolve_path,
)
from chatd.agent.processes.process_output import RESULTS_DIRECTORY, prune_results
from chatd.agent.server.dispatcher import AgentCaller, AgentRoute, AgentRouteRequest
from chatd.agent.server.http_messages import AgentHttpReply, RequestFields, json_reply, read_fields
from chatd.agent.threads import WorkerThreads

# Read directories and files for a person, inside the home directory only.
#
# A link is shown with its target. It is followed only if it leads to a place inside the home
# directory. The path that was checked is opened name by name without following links, so that a
# link that a command puts in between is refused.

MAX_SCANNED_ENTRIES = 10_000
MAX_LISTED_ENTRIES = 2000
MAX_LISTING_BYTES = 1 << 20
MAX_TARGET_CHARS = 512
MAX_PIECE_BYTES = 1 << 20
_OUTSIDE = "outside_workspace"


def browse_directory(home: str, path: str, *, directory: str = "") -> dict[str, object]:
    """The entries of one directory: directories first, then by name. `is_cut`: there are more."""
    shown = resolve_inside(home, path)
    with opened_inside(home, shown, os.O_RDONLY | os.O_DIRECTORY) as fd:
        names, is_cut = _scan(fd, shown)
        entries: list[dict[str, object]] = []
        size = 0
        for name in names:
            entry = _entry(fd, home, shown, name)
            # In JSON a control character has six bytes.
            size += 200 + 6 * (len(name) + len(str(entry.get("target") or "")))
            if len(entries) == MAX_LISTED_ENTRIES or size > MAX_LISTING_BYTES:
                is_cut = True
                break
            entries.append(entry)
    return {
        "path": printable_name(shown),
        "home": printable_name(os.path.realpath(home)),
        "directory": printable_name(directory or home),
        "entries": entries,
        "is_cut": is_cut,
    }


def read_piece(home: str, path: str, *, offset: int, limit: int) -> tuple[dict[str, object], bytes]:
    """Facts about a file, and at most MAX_PIECE_BYTES of it. `version` changes with the file."""
    shown = resolve_inside(home, path)
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
    # Checked before it is opened, because opening a device can have an effect.
    with opened_inside(home, shown, os.O_PATH) as pinned:
        require_regular(os.fstat(pinned), printable_name(shown))
    with opened_inside(home, shown, flags) as fd:
        info = os.fstat(fd)
        require_regular(info, printable_name(shown))
        try:
            os.lseek(fd, offset, os.SEEK_SET)
        except (OverflowError, OSError):
            raise AgentError(400, f"offset {offset} is too large") from None
        content = read_at_most(fd, min(limit, MAX_PIECE_BYTES), path=printable_name(shown))
    facts: dict[str, object] = {
        "path": printable_name(shown),
        "size": info.st_size,
        "modified_at": _timestamp(info.st_mtime),
        "version": _version(info),
    }
    return facts, content


def save_file(home: str, path: str, content: bytes, *, version: str) -> dict[str, object]:
    """Replace a file if it still has this version; without one, make a file that is not there yet.
    Refuses with `file_changed`, and leaves the file as it is."""
    shown = resolve_inside(home, path)
    with directory_lock(shown):
        before = stat_target(shown)
        if before is not None:
            require_writable(before, printable_name(shown))
        if version != ("" if before is None else _version(before)):
            what = "was removed" if before is None else "was changed" if version else "exists"
            text = f"{printable_name(path)} {what} meanwhile. Nothing was saved: load it again."
            raise AgentError(409, text, code="file_changed")
        replace_content(shown, content, before=before)
        info = os.stat(shown)
    return {"path": printable_name(shown), "size": info.st_size, "version": _version(info)}


def _version(info: os.stat_result) -> str:
    return f"{info.st_ino:x}-{info.st_mtime_ns:x}-{info.st_size:x}"


def resolve_inside(home: str, path: str) -> str:
    """The place of a path after all links; a relative path begins in the home directory."""
    base = os.path.realpath(home)
    check_encodable(path)
    found = resolve_path(os.path.join(base, path or "."))
    if found != base and not found.startswith(base.rstrip("/") + "/"):
        raise AgentError(
            403, f"{printable_name(path)} is outside of the home directory", code=_OUTSIDE
        )
    return found


@contextmanager
def opened_inside(home: str, resolved: str, flags: int) -> Generator[int, None, None]:
    """A descriptor of a resolved path. Refuses a link anywhere below the home directory."""
    base = os.path.realpath(home)
    names = [name for name in resolved[len(base) :].split("/") if name]
    fd = -1
    try:
        fd = os.open(base, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        for index, name in enumerate(names):
            is_last = index == len(names) - 1
            step = flags if is_last else os.O_PATH | os.O_DIRECTORY
            inner = os.open(name, step | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
            os.close(fd)
            fd = inner
        if not names:
            inner = os.open(".", flags | os.O_CLOEXEC, dir_fd=fd)
            os.close(fd)
            fd = inner
        yield fd
    except OSError as error:
        if error.errno == errno.ELOOP:
            text = f"{printable_name(resolved)} became a link while it was read"
            raise AgentError(409, text) from error
        raise from_os_error(error, f"read {printable_name(resolved)}") from error
    finally:
        if fd >= 0:
            os.close(fd)


def _scan(fd: int, path: str) -> tuple[list[str], bool]:
    """The names in their order. True if there are more than are scanned."""
    found: list[tuple[bool, str]] = []
    is_cut = False
    try:
        with os.scandir(fd) as entries:
            for entry in entries:
                if len(found) == MAX_SCANNED_ENTRIES:
                    is_cut = True
                    break
                found.append((not entry.is_dir(follow_symlinks=False), entry.name))
    except OSError as error:
        raise from_os_error(error, f"list {printable_name(path)}") from error
    return [name for _, name in sorted(found)], is_cut


def _entry(fd: int, home: str, directory: str, name: str) -> dict[str, object]:
    entry: dict[str, object] = {"name": printable_name(name), "kind": "other"}
    try:
        info = os.stat(name, dir_fd=fd, follow_symlinks=False)
    except OSError:
        return entry  # removed in between, or not readable
    entry["modified_at"] = _timestamp(info.st_mtime)
    if stat.S_ISLNK(info.st_mode):
        entry["kind"] = "link"
        with suppress(OSError):
            target = printable_name(os.readlink(name, dir_fd=fd))
            entry["target"] = target[:MAX_TARGET_CHARS]
        entry["target_kind"] = _target_kind(home, os.path.join(directory, name))
    elif stat.S_ISDIR(info.st_mode):
        entry["kind"] = "directory"
    elif stat.S_ISREG(info.st_mode):
        entry |= {"kind": "file", "size_bytes": info.st_size}
    else:
        entry["detail"] = file_kind(info.st_mode)
    return entry


def _target_kind(home: str, path: str) -> str | None:
    """Where a link leads: None if that is outside of the home directory or nothing."""
    try:
        with opened_inside(home, resolve_inside(home, path), os.O_PATH) as fd:
            mode = os.fstat(fd).st_mode
    except AgentError:
        return None
    if stat.S_ISDIR(mode):
        return "directory"
    return "file" if stat.S_ISREG(mode) else None


def _timestamp(seconds: float) -> str | None:
    try:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
    except (OverflowError, ValueError, OSError):
        return None


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
            AgentRoute("POST", f"{API_PREFIX}/files/save", self._save, max_body=MAX_PIECE_BYTES),
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

    async def _save(self, request: AgentRouteRequest) -> AgentHttpReply:
        query = request.query()
        path, version = query.text("path"), query.text("version", "")
        query.reject_unknown()
        work = partial(save_file, self._home, path, request.body, version=version)
        return json_reply(await self._threads.run(work))

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
        self._fence.check_owner(caller.chat_id, caller.owner)  # may have changed since
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
