"""Unpack a tar archive, plain or with gzip, that arrives in pieces.

An archive is not trusted. Names stay below the target directory, and no link is followed, not even
one that the archive itself made. Devices and pipes are skipped, and so are links that lead out of
the target unless they are wanted. A file appears under its name when it is whole. An archive that
is refused or cut off leaves what was unpacked before, and nothing half-written.
"""

from __future__ import annotations

import os
import secrets
import stat
import tarfile
import threading
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from chatd.agent.errors import AgentError, from_os_error
from chatd.agent.files.archive_pack import MAX_NAMED, ArchiveLimits, OpenDirectory, check_limits
from chatd.agent.files.file_paths import MAX_PATH_BYTES, printable_name

MAX_EXTENSION_BYTES = 1 << 20
"""Limit for a header with a long name or other facts about the next entry."""
_INFLATED_BYTES = 1 << 20
_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_WINDOW = 31
_LONG_NAMES = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_PAX_TYPES = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE)
_FILE_TYPES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
_WITHOUT_CONTENT = (
    *(tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE),
    *(tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE),
)
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def bad_archive(text: str) -> AgentError:
    return AgentError(400, text, code="bad_archive")


@dataclass
class UnpackResult:
    """`skipped` are special files, `left_out` the first of the links that lead out."""

    files: int = 0
    size: int = 0
    links: int = 0
    directories: int = 0
    skipped: int = 0
    left_out_count: int = 0
    left_out: list[str] = field(default_factory=list[str])

    def facts(self) -> dict[str, object]:
        return {
            "files": self.files,
            "bytes": self.size,
            "links": self.links,
            "directories": self.directories,
            "skipped": self.skipped,
            "left_out": self.left_out,
            "left_out_count": self.left_out_count,
        }


class TarReader:
    """Splits a tar stream into its entries. `begin` is called for each and returns what takes its
    content; `end` when the content is complete."""

    def __init__(
        self,
        limits: ArchiveLimits,
        begin: Callable[[tarfile.TarInfo], Callable[[bytes], object]],
        end: Callable[[], None],
    ) -> None:
        self._limits = limits
        self._begin = begin
        self._end = end
        self._buffer = bytearray()
        self._left = 0
        self._padding = 0
        self._take: Callable[[bytes], object] = _ignore
        self._on_end: Callable[[], None] = _nothing
        self._facts: dict[str, str] = {}
        self._entries = 0
        self._size = 0
        self.is_complete = False

    def feed(self, data: bytes) -> None:
        """Raises AgentError."""
        self._buffer += data
        while not self.is_complete:
            if self._left:
                piece = self._cut(self._left)
                if not piece:
                    return
                self._take(piece)
                self._left -= len(piece)
                if not self._left:
                    self._on_end()
            elif self._padding:
                padding = self._cut(self._padding)
                if not padding:
                    return
                self._padding -= len(padding)
            elif len(self._buffer) >= tarfile.BLOCKSIZE:
                self._read_header(self._cut(tarfile.BLOCKSIZE))
            else:
                return
        self._buffer.clear()  # an archive may be padded to a multiple of its blocks

    def _cut(self, most: int) -> bytes:
        piece = bytes(self._buffer[:most])
        del self._buffer[: len(piece)]
        return piece

    def _read_header(self, block: bytes) -> None:
        if not block.strip(b"\0"):
            self.is_complete = True
            return
        try:
            member = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except (tarfile.TarError, ValueError):
            raise bad_archive("this is not a tar archive, or it is damaged") from None
        self._entries += 1
        if member.type in (*_PAX_TYPES, tarfile.XGLTYPE, *_LONG_NAMES):
            self._read_extension(member)
            return
        if member.type == tarfile.GNUTYPE_SPARSE:
            raise bad_archive("the archive has sparse files: pack it without --sparse")
        self._apply_facts(member)
        if member.size < 0:
            raise bad_archive("an entry has a negative size")
        if member.type in _WITHOUT_CONTENT:
            member.size = 0
        self._size += member.size
        check_limits(self._limits, self._entries, self._size)
        self._take, self._on_end = self._begin(member), self._end
        self._expect(member.size)

    def _expect(self, size: int) -> None:
        self._left, self._padding = size, -size % tarfile.BLOCKSIZE
        if not size:
            self._on_end()

    def _read_extension(self, member: tarfile.TarInfo) -> None:
        """Facts about the next entry. Those about all entries are not used."""
        if not 0 <= member.size <= MAX_EXTENSION_BYTES:
            raise bad_archive("a header is too long")
        self._size += member.size
        check_limits(self._limits, self._entries, self._size)
        content = bytearray()

        def end() -> None:
            if member.type in _LONG_NAMES:
                name = "path" if member.type == tarfile.GNUTYPE_LONGNAME else "linkpath"
                self._facts[name] = os.fsdecode(bytes(content).partition(b"\0")[0])
            elif member.type in _PAX_TYPES:
                self._facts |= parse_pax(bytes(content))

        self._take, self._on_end = content.extend, end
        self._expect(member.size)

    def _apply_facts(self, member: tarfile.TarInfo) -> None:
        facts, self._facts = self._facts, {}
        if any(name.startswith("GNU.sparse.") for name in facts):
            raise bad_archive("the archive has sparse files: pack it without --sparse")
        member.name = facts.get("path", member.name)
        member.linkname = facts.get("linkpath", member.linkname)
        try:
            member.size = int(facts.get("size", member.size))
            member.mtime = int(float(facts.get("mtime", member.mtime)))
        except (ValueError, OverflowError):
            raise bad_archive("a header is malformed") from None


def parse_pax(content: bytes) -> dict[str, str]:
    """Records of the form `<length> <name>=<value>` and a line end."""
    facts: dict[str, str] = {}
    while content:
        digits, _, _ = content[:20].partition(b" ")
        length = int(digits) if digits.isdigit() else 0
        name, equals, value = content[len(digits) + 1 : length].partition(b"=")
        if length > len(content) or not equals or not value.endswith(b"\n"):
            raise bad_archive("a header is malformed")
        facts[os.fsdecode(name)] = os.fsdecode(value[:-1])
        content = content[length:]
    return facts


def _ignore(data: bytes) -> None:
    del data


def _nothing() -> None:
    return


def split_name(name: str) -> list[str]:
    """The parts of an entry's name; none for the target directory itself. Raises AgentError for a
    name that leads out of it."""
    shown = printable_name(name)[:200]
    if name.startswith("/"):
        raise bad_archive(f"the archive has an absolute path: {shown}")
    parts = [part for part in name.split("/") if part not in {"", "."}]
    if ".." in parts:
        raise bad_archive(f"the archive has a path with ..: {shown}")
    if "\0" in name or len(os.fsencode(name)) > MAX_PATH_BYTES:
        raise bad_archive("the archive has a name that no file can have")
    return parts


def leads_out(parts: Sequence[str], target: str) -> bool:
    """Whether a link at this place says a path outside of the directory it is unpacked to."""
    if target.startswith("/"):
        return True
    depth = len(parts) - 1
    for part in target.split("/"):
        if part not in {"", "."}:
            depth += -1 if part == ".." else 1
        if depth < 0:
            return True
    return False


class _Writer:
    """Writes entries below the directory `root`, a descriptor."""

    def __init__(self, *, keeps_links: bool) -> None:
        self.root = -1
        self._keeps_links = keeps_links
        self._parent = -1
        self._parent_names: Sequence[str] | None = None
        self._file = -1
        self._temporary = ""
        self._member: tarfile.TarInfo | None = None
        self._name = ""
        self.result = UnpackResult()

    def begin(self, member: tarfile.TarInfo) -> Callable[[bytes], object]:
        parts = split_name(member.name)
        if member.type not in (*_FILE_TYPES, *_WITHOUT_CONTENT) or (
            member.ischr() or member.isblk() or member.isfifo()
        ):
            self.result.skipped += 1
            return _ignore
        if not parts:
            if member.isdir():
                return _ignore
            raise bad_archive("the archive has an entry without a name")
        try:
            if member.isdir():
                self._make_directory(parts, member)
                return _ignore
            self._enter(parts[:-1])
            if member.issym():
                self._link(parts, member.linkname)
                return _ignore
            if member.islnk():
                self._hard_link(parts[-1], split_name(member.linkname))
                return _ignore
            return self._begin_file(parts[-1], member)
        except OSError as error:
            raise _cannot_unpack(error, member.name) from error

    def end(self) -> None:
        member, self._member = self._member, None
        if member is None:
            return
        try:
            os.fchmod(self._file, member.mode & 0o777)
            when = max(int(member.mtime), 0)
            with suppress(OverflowError):
                os.utime(self._file, (when, when))
            os.close(self._file)
            self._file = -1
            self._replace(self._name)
        except OSError as error:
            raise _cannot_unpack(error, member.name) from error
        self.result.files += 1
        self.result.size += member.size

    def close(self) -> None:
        """Removes what is half-written."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        if self._temporary:
            with suppress(OSError):
                os.unlink(self._temporary, dir_fd=self._parent)
            self._temporary = ""
        for fd in (self._parent, self.root):
            if fd >= 0:
                os.close(fd)
        self._parent = self.root = -1

    def _enter(self, names: Sequence[str]) -> None:
        """Make `_parent` this directory, which is created if it is missing."""
        if self._parent_names == names:
            return
        if self._parent >= 0:
            os.close(self._parent)
        self._parent, self._parent_names = -1, None
        self._parent = os.open(".", _DIRECTORY_FLAGS, dir_fd=self.root)
        for name in names:
            with suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=self._parent)
            inner = os.open(name, _DIRECTORY_FLAGS, dir_fd=self._parent)
            os.close(self._parent)
            self._parent = inner
        self._parent_names = names

    def _make_directory(self, parts: Sequence[str], member: tarfile.TarInfo) -> None:
        self._enter(parts[:-1])
        try:
            os.mkdir(parts[-1], dir_fd=self._parent)
        except FileExistsError:
            self._enter(parts)  # raises if it is a link or a file
        else:
            self._enter(parts)
            os.fchmod(self._parent, member.mode & 0o777 | 0o700)
        self.result.directories += 1

    def _begin_file(self, name: str, member: tarfile.TarInfo) -> Callable[[bytes], object]:
        self._temporary = _temporary_name()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.open(self._temporary, flags, 0o600, dir_fd=self._parent)
        self._member, self._name = member, name
        return self._write

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._file, view) :]
        except OSError as error:
            assert self._member is not None
            raise _cannot_unpack(error, self._member.name) from error

    def _link(self, parts: Sequence[str], target: str) -> None:
        if leads_out(parts, target) and not self._keeps_links:
            self.result.left_out_count += 1
            if len(self.result.left_out) < MAX_NAMED:
                self.result.left_out.append(printable_name("/".join(parts)))
            return
        self._temporary = _temporary_name()
        os.symlink(target, self._temporary, dir_fd=self._parent)
        self._replace(parts[-1])
        self.result.links += 1

    def _hard_link(self, name: str, source: Sequence[str]) -> None:
        """A second name of a file that was unpacked before."""
        if not source:
            raise bad_archive("a link has no target")
        fd = os.open(".", _DIRECTORY_FLAGS, dir_fd=self.root)
        try:
            for each in source[:-1]:
                inner = os.open(each, _DIRECTORY_FLAGS, dir_fd=fd)
                os.close(fd)
                fd = inner
            if not stat.S_ISREG(os.stat(source[-1], dir_fd=fd, follow_symlinks=False).st_mode):
                raise bad_archive(f"a link leads to {printable_name(source[-1])}, which is no file")
            self._temporary = _temporary_name()
            os.link(
                source[-1],
                self._temporary,
                src_dir_fd=fd,
                dst_dir_fd=self._parent,
                follow_symlinks=False,
            )
        finally:
            os.close(fd)
        self._replace(name)
        self.result.links += 1

    def _replace(self, name: str) -> None:
        os.replace(self._temporary, name, src_dir_fd=self._parent, dst_dir_fd=self._parent)
        with suppress(FileNotFoundError):  # two names of one file: the rename does nothing
            os.unlink(self._temporary, dir_fd=self._parent)
        self._temporary = ""


def _temporary_name() -> str:
    return f".chatd-unpack-{secrets.token_hex(8)}"


def _cannot_unpack(error: OSError, name: str) -> AgentError:
    return from_os_error(error, f"unpack {printable_name(name)[:200]}")


class Unpacking:
    """One archive. `open_target` returns a descriptor of the target directory, which is closed at
    the end. Pieces come in order; a piece that came before changes nothing."""

    def __init__(
        self, open_target: OpenDirectory, limits: ArchiveLimits, *, keeps_links: bool = False
    ) -> None:
        self._open_target = open_target
        self._writer = _Writer(keeps_links=keeps_links)
        self._reader = TarReader(limits, self._writer.begin, self._writer.end)
        self._is_gzip = False
        self._inflater = zlib.decompressobj(_GZIP_WINDOW)
        self._head = b""
        self._lock = threading.Lock()
        self._failed: AgentError | None = None
        self._result: UnpackResult | None = None
        self.is_ended = False
        self.received = 0

    def take(self, offset: int, data: bytes, *, is_last: bool) -> UnpackResult | None:
        """The result after the last piece. Runs in a thread. Raises AgentError; every later piece
        then gets the same error."""
        if not self._lock.acquire(blocking=False):
            raise AgentError(503, "an earlier piece is still being unpacked", code="disk_busy")
        try:
            return self._take(offset, data, is_last=is_last)
        except AgentError as error:
            if error.code != "wrong_offset":
                self._failed = self._failed or error
                self._end()
            raise
        finally:
            if self.is_ended:
                self._end()
            self._lock.release()

    def abort(self, reason: AgentError) -> None:
        """Stop: a piece that is being unpacked ends at its next entry."""
        self._failed = self._failed or reason
        self.is_ended = True
        if self._lock.acquire(blocking=False):
            self._end()
            self._lock.release()

    def _take(self, offset: int, data: bytes, *, is_last: bool) -> UnpackResult | None:
        if self._failed is not None:
            raise self._failed
        if offset + len(data) == self.received and (self._result is not None or not is_last):
            return self._result
        if offset != self.received or self._result is not None:
            text = f"this piece begins at {offset}, but {self.received} bytes have arrived"
            raise AgentError(409, text, code="wrong_offset")
        if self._writer.root < 0:
            self._writer.root = self._open_target()
        self.received += len(data)
        self._inflate(data)
        if is_last:
            self._finish()
        return self._result

    def _inflate(self, data: bytes) -> None:
        data, self._head = self._head + data, b""
        if self.received == len(data):  # the beginning
            if len(data) < len(_GZIP_MAGIC):
                self._head = data
                return
            self._is_gzip = data.startswith(_GZIP_MAGIC)
        if not self._is_gzip:
            self._feed(data)
            return
        try:
            has_more = True
            while has_more and not self._reader.is_complete:
                if self._inflater.eof:
                    self._inflater = zlib.decompressobj(_GZIP_WINDOW)
                content = self._inflater.decompress(data, _INFLATED_BYTES)
                self._feed(content)
                data = self._inflater.unconsumed_tail or self._inflater.unused_data
                has_more = bool(data) or len(content) == _INFLATED_BYTES
        except zlib.error:
            raise bad_archive("the archive is damaged: it cannot be decompressed") from None

    def _feed(self, data: bytes) -> None:
        if self._failed is not None:
            raise self._failed  # aborted in between
        self._reader.feed(data)

    def _finish(self) -> None:
        if not self._reader.is_complete:
            raise bad_archive("the archive is cut off: it has no end")
        self._result = self._writer.result
        self._end()

    def _end(self) -> None:
        self.is_ended = True
        self._writer.close()
