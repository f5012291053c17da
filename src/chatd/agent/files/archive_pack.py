"""Pack a directory of the workspace as a tar archive, in pieces of bounded size.

A survey counts first, so that what is too large is refused before anything is sent. Links stay
links. Pipes, sockets and devices are left out and counted. What cannot be read is left out and
named. No link is followed, not even one that a command puts in place during the work.
"""

from __future__ import annotations

import errno
import os
import stat
import tarfile
import zlib
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from chatd.agent.errors import AgentError, from_os_error
from chatd.agent.files.file_paths import MAX_PATH_BYTES, printable_name

MAX_ARCHIVE_BYTES = 4 << 30
"""Limit for the files in an archive."""
MAX_ARCHIVE_ENTRIES = 200_000
MAX_NAMED = 100
PACKED_PIECE_BYTES = 128 << 10
TOO_LARGE = "archive_too_large"
_GZIP_WINDOW = 31
_GZIP_LEVEL = 3
_CHANGED_MEANWHILE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


@dataclass(frozen=True)
class ArchiveLimits:
    max_bytes: int = MAX_ARCHIVE_BYTES
    max_entries: int = MAX_ARCHIVE_ENTRIES


@dataclass
class ArchiveCount:
    """What an archive has: `entries` are files, directories and links. `skipped` are special files,
    `unreadable` the first of the names that cannot be read."""

    limits: ArchiveLimits
    entries: int = 0
    files: int = 0
    size: int = 0
    skipped: int = 0
    unreadable_count: int = 0
    unreadable: list[str] = field(default_factory=list[str])

    def add(self, size: int | None = None) -> None:
        """An entry; a file if it has a size. Raises AgentError above the limits."""
        self.entries += 1
        if size is not None:
            self.files += 1
            self.size += size
        check_limits(self.limits, self.entries, self.size)

    def add_unreadable(self, name: str) -> None:
        self.unreadable_count += 1
        if len(self.unreadable) < MAX_NAMED:
            self.unreadable.append(printable_name(name))

    def facts(self) -> dict[str, object]:
        return {
            "files": self.files,
            "bytes": self.size,
            "skipped": self.skipped,
            "unreadable": self.unreadable,
            "unreadable_count": self.unreadable_count,
        }


def check_limits(limits: ArchiveLimits, entries: int, size: int) -> None:
    if entries > limits.max_entries:
        text = f"the archive has more than {limits.max_entries:,} entries"
        raise AgentError(413, text, code=TOO_LARGE)
    if size > limits.max_bytes:
        text = f"the files are larger than {limits.max_bytes:,} bytes together"
        raise AgentError(413, text, code=TOO_LARGE)


OpenDirectory = Callable[[], int]
"""Returns a descriptor, which the caller closes."""


def survey(open_root: OpenDirectory, limits: ArchiveLimits) -> ArchiveCount:
    """Raises AgentError above the limits."""
    count = ArchiveCount(limits)
    with _opened(open_root) as root:
        for entry in _walk(root, count):
            if not stat.S_ISREG(entry.info.st_mode):
                count.add()
            elif os.access(entry.name, os.R_OK, dir_fd=entry.parent):
                count.add(entry.info.st_size)
            else:
                count.add_unreadable(entry.path)
    return count


def pack(
    open_root: OpenDirectory, limits: ArchiveLimits, *, compress: bool
) -> Generator[bytes, None, ArchiveCount]:
    """The archive in pieces of about PACKED_PIECE_BYTES. Raises AgentError if a file gets shorter
    while it is read, or if there is more than the limits allow by now."""
    count = ArchiveCount(limits)
    waiting = bytearray()
    for piece in (
        _compressed(_members(open_root, count)) if compress else _members(open_root, count)
    ):
        waiting += piece
        while len(waiting) >= PACKED_PIECE_BYTES:
            yield bytes(waiting[:PACKED_PIECE_BYTES])
            del waiting[:PACKED_PIECE_BYTES]
    if waiting:
        yield bytes(waiting)
    return count


def _compressed(pieces: Generator[bytes, None, None]) -> Generator[bytes, None, None]:
    packer = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_WINDOW)
    for piece in pieces:
        yield packer.compress(piece)
    yield packer.flush()


def _members(open_root: OpenDirectory, count: ArchiveCount) -> Generator[bytes, None, None]:
    with _opened(open_root) as root:
        for entry in _walk(root, count):
            mode = entry.info.st_mode
            if stat.S_ISREG(mode):
                yield from _file(entry, count)
            elif stat.S_ISDIR(mode):
                count.add()
                yield _header(entry, tarfile.DIRTYPE)
            else:
                try:
                    target = os.readlink(entry.name, dir_fd=entry.parent)
                except OSError:
                    continue  # replaced in between
                count.add()
                yield _header(entry, tarfile.SYMTYPE, target=target)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _file(entry: _Entry, count: ArchiveCount) -> Generator[bytes, None, None]:
    try:
        fd = os.open(entry.name, _FILE_FLAGS, dir_fd=entry.parent)
    except OSError as error:
        if error.errno not in _CHANGED_MEANWHILE:
            count.add_unreadable(entry.path)
        return
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            return  # replaced in between
        count.add(info.st_size)
        yield _header(_Entry(entry.parent, entry.name, entry.path, info), tarfile.REGTYPE)
        left = info.st_size
        while left:
            try:
                piece = os.read(fd, min(left, PACKED_PIECE_BYTES))
            except OSError as error:
                raise from_os_error(error, f"read {printable_name(entry.path)}") from error
            if not piece:
                text = f"{printable_name(entry.path)} got shorter while it was packed: try again"
                raise AgentError(409, text, code="file_changed")
            left -= len(piece)
            yield piece
        yield bytes(-info.st_size % tarfile.BLOCKSIZE)
    finally:
        os.close(fd)


def _header(entry: _Entry, kind: bytes, *, target: str = "") -> bytes:
    """Leaves out the account, which means nothing elsewhere."""
    member = tarfile.TarInfo(entry.path)
    member.type = kind
    member.linkname = target
    member.size = entry.info.st_size if kind == tarfile.REGTYPE else 0
    member.mode = stat.S_IMODE(entry.info.st_mode) & 0o777
    member.mtime = max(int(entry.info.st_mtime), 0)
    return member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


@dataclass(frozen=True)
class _Entry:
    """`parent` is open while the entry is in use; `path` is from the packed directory."""

    parent: int
    name: str
    path: str
    info: os.stat_result


def _walk(root: int, count: ArchiveCount) -> Generator[_Entry, None, None]:
    """Files, links and directories, each directory before what is in it. Counts the rest."""
    waiting = [""]
    while waiting:
        path = waiting.pop()
        try:
            with _opened_below(root, path.split("/") if path else ()) as parent:
                inner: list[str] = []
                for name in _names(parent, count.limits):
                    entry = _look(parent, name, f"{path}/{name}" if path else name)
                    if entry is None:
                        continue
                    mode = entry.info.st_mode
                    if stat.S_ISDIR(mode):
                        inner.append(entry.path)
                    elif not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
                        count.skipped += 1
                        continue
                    if len(os.fsencode(entry.path)) > MAX_PATH_BYTES:
                        count.add_unreadable(entry.path)
                        inner = inner[:-1] if stat.S_ISDIR(mode) else inner
                        continue
                    yield entry
                waiting += reversed(inner)
        except OSError as error:
            if error.errno not in _CHANGED_MEANWHILE:
                count.add_unreadable(path)


def _names(fd: int, limits: ArchiveLimits) -> list[str]:
    """The names in order. Raises AgentError for more than an archive may have."""
    names: list[str] = []
    with os.scandir(fd) as entries:
        for entry in entries:
            check_limits(limits, len(names), 0)
            names.append(entry.name)
    return sorted(names)


def _look(parent: int, name: str, path: str) -> _Entry | None:
    try:
        info = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except OSError:
        return None  # removed in between
    return _Entry(parent, name, path, info)


@contextmanager
def _opened(open_root: OpenDirectory) -> Generator[int, None, None]:
    fd = open_root()
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _opened_below(root: int, names: Sequence[str]) -> Generator[int, None, None]:
    """A descriptor of a directory below `root`. Follows no link: raises OSError."""
    fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root)
    try:
        for name in names:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            inner = os.open(name, flags, dir_fd=fd)
            os.close(fd)
            fd = inner
        yield fd
    finally:
        os.close(fd)
