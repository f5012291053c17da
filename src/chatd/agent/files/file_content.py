"""Reads files as bytes or as numbered lines, lists directories, and writes whole files.

A result is never cut silently: lines come by the page, which says how to go on, and any other
result over its limit is refused with an error that says how to ask for a part.
"""

from __future__ import annotations

import contextlib
import fcntl
import mimetypes
import os
import secrets
import time
from collections.abc import Generator, Sequence

from chatd.agent.durable_files import write_atomic
from chatd.agent.errors import AgentError, clip_utf8, from_os_error
from chatd.agent.files.file_paths import (
    check_encodable,
    open_regular,
    printable_name,
    read_at_most,
    require_absolute,
    require_regular,
    resolve_path,
)

MAX_READ_BYTES = 32 << 20
MAX_DIRECTORY_ENTRIES = 10_000

MAX_SCANNED_BYTES = 64 << 20
MAX_NUMBERED_LINE_BYTES = 1024
MAX_RESPONSE_LINES = 2000
MAX_RESPONSE_BYTES = 32 << 10
DEFAULT_LINE_LIMIT = 2000
_SCAN_CHUNK_BYTES = 1 << 20


def read_file(path: str, *, offset: int = 0, limit: int = 0) -> tuple[bytes, str]:
    """Bytes from `offset`, at most `limit` (0: all), and the MIME type guessed from the name."""
    _require_not_negative(offset=offset, limit=limit)
    path = require_absolute(path)
    fd, info = open_regular(path)
    try:
        available = max(info.st_size - offset, 0)
        if min(limit or available, available) > MAX_READ_BYTES:
            raise AgentError(
                413,
                f"{path} has {info.st_size} bytes, more than the {MAX_READ_BYTES} that can be "
                "read at once; read it in parts with offset and limit",
            )
        _seek(fd, offset, path)
        # Not limited to `available`: the size of a file under /proc is given as 0.
        content = read_at_most(fd, min(limit or MAX_READ_BYTES, MAX_READ_BYTES), path=path)
    finally:
        os.close(fd)
    return content, mime_type(path)


def mime_type(path: str) -> str:
    guessed, encoding = mimetypes.guess_type(path)
    if guessed is None or encoding is not None:
        return "application/octet-stream"
    return guessed


def read_lines(
    path: str,
    *,
    offset: int = 1,
    limit: int = DEFAULT_LINE_LIMIT,
    max_file_size: int = MAX_SCANNED_BYTES,
    max_line_bytes: int = MAX_NUMBERED_LINE_BYTES,
    max_response_lines: int = MAX_RESPONSE_LINES,
    max_response_bytes: int = MAX_RESPONSE_BYTES,
) -> dict[str, object]:
    """Lines `offset` to `offset + limit - 1`, each as its number, a tab and its text; fewer if they
    are too long for one response, and then `next_offset` and `note` say how to go on.

    Only "\\n" ends a line, so a file that ends with it has an empty last line. An `offset` or
    `limit` of 0 means the default. Holds one chunk of the file, whatever its size.
    """
    _require_not_negative(
        offset=offset,
        limit=limit,
        max_file_size=max_file_size,
        max_line_bytes=max_line_bytes,
        max_response_lines=max_response_lines,
        max_response_bytes=max_response_bytes,
    )
    path = require_absolute(path)
    first, asked = max(offset, 1), limit or DEFAULT_LINE_LIMIT
    page = LinePage(first, min(asked, max_response_lines), max_line_bytes, max_response_bytes)
    is_whole = _scan_lines(path, page, max_file_size)
    if first > max(page.total_lines, 1):
        if is_whole:
            raise AgentError(
                400,
                f"offset {first} is beyond the end of {path}, which has {page.total_lines} lines",
            )
        raise AgentError(
            400,
            f"line {first} of {path} is after its first {max_file_size} bytes, which are all that "
            "can be read by line; use execute with tail, grep or sed -n",
        )
    after = first + len(page.lines)
    if after == first and page.total_lines:
        raise AgentError(
            400,
            f"line {first} of {path} alone is too long for one response; use execute with cut to "
            "read parts of it",
        )
    found: dict[str, object] = {
        "content": "\n".join(page.lines),
        "file_size": page.size,
        "total_lines": page.total_lines,
        "lines_read": len(page.lines),
    }
    if after <= page.total_lines and (len(page.lines) < asked or asked >= DEFAULT_LINE_LIMIT):
        total = str(page.total_lines) if is_whole else f"more than {page.total_lines}"
        found["next_offset"] = after
        found["note"] = (
            f"These are lines {first} to {after - 1} of {total}. Go on with offset={after}, or use "
            "execute with grep to find the lines that matter."
        )
    return found


class LinePage:
    """Collects some lines of a file that arrives in chunks, and counts all of them."""

    def __init__(self, first: int, count: int, max_line_bytes: int, max_bytes: int) -> None:
        self.lines: list[str] = []
        self.size = 0
        self._first = first
        self._count = count
        self._max_line_bytes = max_line_bytes
        self._left = max_bytes
        self._number = 1
        self._line = bytearray()
        self._line_bytes = 0
        self._is_full = count == 0

    @property
    def total_lines(self) -> int:
        return self._number if self.size else 0

    def feed(self, chunk: bytes) -> None:
        self.size += len(chunk)
        ended = chunk.count(b"\n")
        if self._is_full or self._number + ended < self._first:
            self._number += ended
            return
        *whole, rest = chunk.split(b"\n")
        for piece in whole:
            self._add(piece)
            self._end_line()
        self._add(rest)

    def close(self) -> None:
        """The last line has no end, or is longer than what is read of the file."""
        if self.size:
            self._end_line()
            self._number -= 1

    def _add(self, piece: bytes) -> None:
        if self._number >= self._first and not self._is_full:
            self._line_bytes += len(piece)
            # Four bytes more than a line may have: a character at the limit may be cut in two.
            self._line += piece[: max(self._max_line_bytes + 4 - len(self._line), 0)]

    def _end_line(self) -> None:
        if self._number >= self._first and not self._is_full:
            text = _clip_line(bytes(self._line), self._line_bytes, self._max_line_bytes)
            numbered = f"{self._number}\t{text}"
            self._left -= len(numbered.encode("utf-8")) + (1 if self.lines else 0)
            if self._left >= 0:
                self.lines.append(numbered)
            self._is_full = self._left < 0 or len(self.lines) == self._count
        self._line.clear()
        self._line_bytes = 0
        self._number += 1


def _scan_lines(path: str, page: LinePage, max_bytes: int) -> bool:
    """Scan the file for the page. Whether the file has no more than `max_bytes`."""
    fd, _ = open_regular(path)
    try:
        while page.size <= max_bytes:
            chunk = read_at_most(fd, min(_SCAN_CHUNK_BYTES, max_bytes + 1 - page.size), path=path)
            if not chunk:
                return True
            page.feed(chunk)
    finally:
        os.close(fd)
        page.close()
    return False


def _clip_line(line: bytes, size: int, max_bytes: int) -> str:
    """`line` is the beginning of a line of `size` bytes."""
    if size <= max_bytes:
        return line.decode("utf-8", "replace")
    clipped = clip_utf8(line, max_bytes)
    text = clipped.decode("utf-8", "replace")
    return f"{text}... [line cut: {len(clipped)} of {size} bytes shown]"


def _seek(fd: int, offset: int, path: str) -> None:
    try:
        os.lseek(fd, offset, os.SEEK_SET)
    except OverflowError:
        raise AgentError(400, f"offset {offset} is too large") from None
    except OSError as error:
        raise from_os_error(error, f"read {path} at offset {offset}") from error


def _require_not_negative(**numbers: int) -> None:
    for name, number in numbers.items():
        if number < 0:
            raise AgentError(400, f"{name} must not be negative, got {number}")


def list_directory(
    path: Sequence[str], relativity: str, *, home: str | None = None
) -> dict[str, object]:
    """The directory's entries: directories first, then by name.

    `path` is a list of names below the home directory ("home") or the root ("root").
    """
    directory = _join(path, relativity, home or os.path.expanduser("~"))
    return {
        "absolute_path": [printable_name(part) for part in directory.split("/") if part],
        "absolute_path_string": printable_name(directory),
        "contents": [
            {
                "name": printable_name(name),
                "absolute_path_string": printable_name(os.path.join(directory, name)),
                "is_dir": is_dir,
            }
            for is_dir, name in _scan(directory)
        ],
    }


def _join(path: Sequence[str], relativity: str, home: str) -> str:
    if relativity not in {"home", "root"}:
        raise AgentError(400, f'relativity must be "home" or "root", got {relativity!r}')
    base = home if relativity == "home" else "/"
    directory = os.path.normpath(os.path.join(base, *(part.lstrip("/") for part in path)))
    check_encodable(directory)
    return directory


def _scan(directory: str) -> list[tuple[bool, str]]:
    found: list[tuple[bool, str]] = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if len(found) == MAX_DIRECTORY_ENTRIES:
                    raise AgentError(
                        413,
                        f"{directory} has more than {MAX_DIRECTORY_ENTRIES} entries; "
                        "use execute with find or ls to look for the ones you need",
                    )
                found.append((_is_dir(entry), entry.name))
    except OSError as error:
        raise from_os_error(error, f"list {directory}") from error
    return sorted(found, key=lambda each: (not each[0], each[1]))


def _is_dir(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False  # a link to a target that the agent may not stat


# Writing: each file in one rename, one writer per directory at a time.

# A temporary name must fit into 255 bytes, and a character has up to four.
_MAX_NAME_CHARS = 60
# A process that holds the lock longer than this is not an agent; write without the lock.
_LOCK_TIMEOUT_S = 10.0
_LOCK_POLL_S = 0.005


def write_file(path: str, content: bytes) -> None:
    """Create missing parents, follow links, and keep the owner and mode of an existing file."""
    path = require_absolute(path)
    if path.endswith("/"):
        raise AgentError(400, f"{path} names a directory, not a file")
    target = resolve_path(path)
    with directory_lock(target):
        before = stat_target(target)
        if before is None:
            _create_parents(os.path.dirname(target), path)
        else:
            require_writable(before, target)
        replace_content(target, content, before=before)


def stat_target(target: str) -> os.stat_result | None:
    """Stat a resolved path; None if it does not exist."""
    try:
        return os.lstat(target)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise from_os_error(error, f"write {target}") from error


def require_writable(info: os.stat_result, target: str) -> None:
    """Check the file's own mode: a rename needs write access to the directory only."""
    require_regular(info, target)
    if not os.access(target, os.W_OK):
        raise AgentError(403, f"cannot write {target}: permission denied")


def replace_content(target: str, content: bytes, *, before: os.stat_result | None) -> None:
    """Write `content` to a resolved path. A failure leaves the old file unchanged."""
    directory, name = os.path.split(target)
    suffix = secrets.token_hex(4)
    temporary = os.path.join(directory, f".{name[:_MAX_NAME_CHARS]}.tmp.{suffix}")
    try:
        write_atomic(target, content, sync=True, temporary=temporary, mode=0o666, replaced=before)
    except OSError as error:
        raise from_os_error(error, f"write {target}") from error


@contextlib.contextmanager
def directory_lock(target: str) -> Generator[None]:
    """Exclude other writers of the agent in the directory; read the file inside the lock.

    The directory is locked because each rename replaces the file itself.
    """
    try:
        fd = os.open(os.path.dirname(target), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        yield  # missing or not readable: the write itself reports the error
        return
    try:
        _lock(fd)
        yield
    finally:
        os.close(fd)


def _lock(fd: int) -> None:
    deadline = time.monotonic() + _LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return
            time.sleep(_LOCK_POLL_S)
        except OSError:
            return  # a file system without locks
        else:
            return


def _create_parents(directory: str, path: str) -> None:
    try:
        os.makedirs(directory, 0o755, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise AgentError(
            400, f"cannot write {path}: a parent of it is a file, not a directory"
        ) from None
    except OSError as error:
        raise from_os_error(error, f"create the directory {directory}") from error
