"""The work of `chatd workspaces`.

What comes from a workspace is not trusted: it is unpacked as the workspace's own agent unpacks what
it is sent, so that nothing is written outside of the directory.
"""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, cast

from chatd.agent.errors import AgentError
from chatd.agent.files.archive_pack import (
    MAX_ARCHIVE_BYTES,
    ArchiveCount,
    ArchiveLimits,
    OpenDirectory,
    pack,
    survey,
)
from chatd.agent.files.archive_unpack import Unpacking, UnpackResult
from chatd.cli.api_session import UsageProblem
from chatd.cli.chats.run_request import read_id
from chatd.cli.output import byte_size, print_json, print_notice, print_table
from chatd.client.calls import UploadedStream
from chatd.client.resources import ListeningPort, UnpackedFiles, Workspace
from chatd.client.server import ServerApi
from chatd.domain.errors import ChatdError
from chatd.domain.files import clean_file_name
from chatd.domain.ids import WorkspaceId

MAX_WORKSPACES: Final = 1000
MAX_PORTS: Final = 100
MAX_PULLED_BYTES: Final = MAX_ARCHIVE_BYTES + (512 << 20)
PROGRESS_INTERVAL_S: Final = 0.2
_READ_BYTES: Final = 256 << 10
_TAR: Final = "application/x-tar"
_LIMITS: Final = ArchiveLimits()


async def list_workspaces(api: ServerApi, *, as_json: bool) -> None:
    listed = api.list_workspaces()
    if as_json:
        print_json(await listed.raw_items(MAX_WORKSPACES))
        return
    found = await listed.items(MAX_WORKSPACES)
    print_table(("NAME", "ID"), [(one.name, str(one.id)) for one in found])


async def find_workspace(api: ServerApi, name: str) -> Workspace:
    """By name or id. Raises UsageProblem."""
    if (given := read_id(name)) is not None:
        return await api.get_workspace(cast("WorkspaceId", given))
    found = await api.list_workspaces().items(MAX_WORKSPACES)
    for one in found:
        if one.name == name:
            return one
    there = ", ".join(sorted(one.name for one in found)) or "none"
    raise UsageProblem(f"there is no workspace {name!r}; there are: {there}")


async def list_ports(api: ServerApi, name: str, *, as_json: bool) -> None:
    listed = api.list_ports((await find_workspace(api, name)).id)
    if as_json:
        print_json(await listed.raw_items(MAX_PORTS))
        return
    found = await listed.items(MAX_PORTS)
    print_table(("PORT", "PROCESS", "COMMAND"), [_port_row(one) for one in found])


def _port_row(one: ListeningPort) -> tuple[str, str, str]:
    return str(one.port), str(one.pid), one.command


async def preview(api: ServerApi, name: str, port: int, *, path: str, as_json: bool) -> None:
    workspace = await find_workspace(api, name)
    call = api.create_preview(workspace.id, port, path)
    if as_json:
        print_json(await call.raw())
        return
    print((await call).url)


# Out of a workspace


async def pull(
    api: ServerApi, name: str, path: str, *, to: str | None, gzip: bool, as_json: bool
) -> None:
    workspace = await find_workspace(api, name)
    archive = api.load_archive(workspace.id, path, gzip=gzip)
    notes: list[str] = []

    def on_headers(headers: Mapping[str, str]) -> None:
        notes.extend(left_behind(headers))

    if to == "-":
        if sys.stdout.isatty():
            raise UsageProblem("an archive is no text: send standard output to a file or a pipe")
        with _progress() as advance:
            await archive.write_to(
                lambda data: advance(sys.stdout.buffer.write(data)),
                max_bytes=MAX_PULLED_BYTES,
                on_headers=on_headers,
            )
        sys.stdout.buffer.flush()
        for note in notes:
            print_notice(note)
        return
    target = Path(to or clean_file_name(path.rstrip("/")) or workspace.name)
    unpacking = Unpacking(_directory_maker(target), _LIMITS)

    def unpack(data: bytes) -> None:
        unpacking.take(unpacking.received, data, is_last=False)
        advance(len(data))

    with _explained(), _progress() as advance:
        try:
            await archive.write_to(unpack, max_bytes=MAX_PULLED_BYTES, on_headers=on_headers)
            result = unpacking.take(unpacking.received, b"", is_last=True)
        finally:
            unpacking.abort(AgentError(409, "the transfer has ended"))
    assert result is not None
    _report_pulled(result, target, notes, as_json=as_json)


def left_behind(headers: Mapping[str, str]) -> list[str]:
    """What the workspace did not send."""
    words = {
        "X-Archive-Skipped": "pipes, sockets and devices were left out",
        "X-Archive-Unreadable": "files could not be read there and are missing",
    }
    found = {name: headers.get(name, "0") for name in words}
    return [f"  {found[name]} {text}" for name, text in words.items() if found[name] != "0"]


def _directory_maker(target: Path) -> OpenDirectory:
    def make() -> int:
        try:
            target.mkdir(parents=True, exist_ok=True)
            return os.open(target, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise UsageProblem(f"{target}: {error.strerror or error}") from None

    return make


def _report_pulled(result: UnpackResult, target: Path, notes: list[str], *, as_json: bool) -> None:
    if as_json:
        print_json({"directory": str(target), **result.facts()})
    else:
        print_notice(f"{_counted(result.files, result.size)} in {target}")
    for note in (*notes, *_left_out(result.left_out_count, result.left_out)):
        print_notice(note)


# Into a workspace


async def push(
    api: ServerApi, name: str, source: str, *, to: str, gzip: bool, as_json: bool
) -> None:
    workspace = await find_workspace(api, name)
    with _progress() as advance, _explained():
        stream = await asyncio.to_thread(_archive_of, source, advance, gzip=gzip)
        call = api.unpack_archive(workspace.id, stream, to)
        raw = await call.raw() if as_json else None
        done = UnpackedFiles() if as_json else await call
    if raw is not None:
        print_json(raw)
        return
    print_notice(f"{_counted(done.files, done.bytes)} in {to or 'the home directory'}")
    for note in _left_out(done.left_out_count, done.left_out):
        print_notice(note)


def _archive_of(source: str, advance: Callable[[int], None], *, gzip: bool) -> UploadedStream:
    path = Path(source)
    if source == "-":
        return UploadedStream(
            media_type=_TAR, chunks=lambda: _read_standard_input(advance), is_once=True
        )
    if path.is_dir():
        return _pack_directory(path, advance, gzip=gzip)
    path.open("rb").close()  # a missing one is an error before anything is sent
    return UploadedStream(media_type=_TAR, chunks=lambda: _read_file(path, advance))


def _pack_directory(source: Path, advance: Callable[[int], None], *, gzip: bool) -> UploadedStream:
    def open_root() -> int:
        return os.open(source, os.O_RDONLY | os.O_DIRECTORY)

    count = survey(open_root, _LIMITS)
    if count.skipped:
        print_notice(f"  {count.skipped} pipes, sockets and devices are left out")
    if count.unreadable:
        shown = ", ".join(count.unreadable[:10])
        print_notice(f"  {count.unreadable_count} files cannot be read: {shown}")

    async def chunks() -> AsyncIterator[bytes]:
        pieces = pack(open_root, _LIMITS, compress=gzip)
        while piece := await asyncio.to_thread(_next_piece, pieces):
            yield piece
            advance(len(piece))

    return UploadedStream(media_type=_TAR, chunks=chunks)


def _next_piece(pieces: Generator[bytes, None, ArchiveCount]) -> bytes | None:
    return next(pieces, None)


async def _read_standard_input(advance: Callable[[int], None]) -> AsyncIterator[bytes]:
    while chunk := await asyncio.to_thread(sys.stdin.buffer.read, _READ_BYTES):
        yield chunk
        advance(len(chunk))


async def _read_file(path: Path, advance: Callable[[int], None]) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while chunk := await asyncio.to_thread(file.read, _READ_BYTES):
            yield chunk
            advance(len(chunk))


# What a person sees


def _counted(files: int, size: int) -> str:
    return f"{files:,} file{'' if files == 1 else 's'}, {byte_size(size)},"


def _left_out(count: int, names: list[str] | tuple[str, ...]) -> list[str]:
    if not count:
        return []
    more = " ..." if count > len(names) else ""
    return [
        f"  {count} links lead out of the directory and were left out: {', '.join(names)}{more}"
    ]


@contextmanager
def _explained() -> Generator[None]:
    try:
        yield
    except AgentError as error:
        raise ChatdError(error.message) from None
    except OSError as error:
        raise UsageProblem(f"{error.filename or 'the archive'}: {error.strerror}") from None


@contextmanager
def _progress() -> Generator[Callable[[int], None]]:
    """How much has passed, on a terminal only."""
    is_shown = sys.stderr.isatty()
    total, shown_at = 0, 0.0

    def advance(count: int) -> None:
        nonlocal total, shown_at
        total += count
        if is_shown and (now := time.monotonic()) - shown_at >= PROGRESS_INTERVAL_S:
            shown_at = now
            sys.stderr.write(f"\r\x1b[K{byte_size(total)}")
            sys.stderr.flush()

    try:
        yield advance
    finally:
        if shown_at:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
