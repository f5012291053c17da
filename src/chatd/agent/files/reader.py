"""Read files as bytes or as numbered lines, and list directories.

A result over its limit is refused, never cut silently; the error says how to ask for a part.
"""

from __future__ import annotations

import mimetypes
import os
from collections.abc import Sequence

from chatd.agent.errors import AgentError, from_os_error
from chatd.agent.files.paths import (
    check_encodable,
    open_regular,
    printable_name,
    read_at_most,
    require_absolute,
)
from chatd.agent.text import clip_utf8

MAX_READ_BYTES = 32 << 20
MAX_DIRECTORY_ENTRIES = 10_000

MAX_NUMBERED_FILE_BYTES = 1 << 20
MAX_NUMBERED_LINE_BYTES = 1024
MAX_RESPONSE_LINES = 2000
MAX_RESPONSE_BYTES = 32 << 10
DEFAULT_LINE_LIMIT = 2000


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
    max_file_size: int = MAX_NUMBERED_FILE_BYTES,
    max_line_bytes: int = MAX_NUMBERED_LINE_BYTES,
    max_response_lines: int = MAX_RESPONSE_LINES,
    max_response_bytes: int = MAX_RESPONSE_BYTES,
) -> dict[str, object]:
    """Lines `offset` to `offset + limit - 1`, each as its number, a tab and its text.

    Only "\\n" ends a line, so a file that ends with it has an empty last line. An `offset` or
    `limit` of 0 means the default.
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
    data = _read_whole(path, max_file_size)
    lines = data.split(b"\n") if data else []
    first = max(offset, 1)
    if first > max(len(lines), 1):
        raise AgentError(
            400, f"offset {first} is beyond the end of {path}, which has {len(lines)} lines"
        )
    chosen = lines[first - 1 : first - 1 + (limit or DEFAULT_LINE_LIMIT)]
    if len(chosen) > max_response_lines:
        raise AgentError(
            400,
            f"{len(chosen)} lines of {path} were requested, but at most {max_response_lines} "
            f"can be returned at once; use offset={first} and limit={max_response_lines}, "
            "then continue from there",
        )
    numbered = [
        f"{number}\t{_clip_line(line, max_line_bytes)}"
        for number, line in enumerate(chosen, start=first)
    ]
    _require_fit(numbered, path, first, max_response_bytes)
    return {
        "content": "\n".join(numbered),
        "file_size": len(data),
        "total_lines": len(lines),
        "lines_read": len(chosen),
    }


def _read_whole(path: str, max_file_size: int) -> bytes:
    fd, info = open_regular(path)
    try:
        size = info.st_size
        if size <= max_file_size:
            data = read_at_most(fd, max_file_size + 1, path=path)
            if len(data) <= max_file_size:
                return data
            size = len(data)  # the file has grown, or its stat has no size
    finally:
        os.close(fd)
    raise AgentError(
        400,
        f"{path} has {size} bytes or more, over the limit of {max_file_size} bytes for reading "
        "lines; use execute with grep, head, tail or sed -n to read parts of it",
    )


def _clip_line(line: bytes, max_bytes: int) -> str:
    if len(line) <= max_bytes:
        return line.decode("utf-8", "replace")
    clipped = clip_utf8(line, max_bytes)
    text = clipped.decode("utf-8", "replace")
    return f"{text}... [line cut: {len(clipped)} of {len(line)} bytes shown]"


def _require_fit(numbered: list[str], path: str, first: int, max_bytes: int) -> None:
    total = 0
    fitting = 0
    for line in numbered:
        total += len(line.encode("utf-8")) + (1 if total else 0)
        if total <= max_bytes:
            fitting += 1
    if total <= max_bytes:
        return
    last = first + len(numbered) - 1
    advice = (
        f"use offset={first} and limit={fitting}, then continue with offset={first + fitting}"
        if fitting
        else f"line {first} alone is too long; use execute with cut to read parts of it"
    )
    raise AgentError(
        400,
        f"lines {first} to {last} of {path} have {total} bytes, over the limit of {max_bytes} "
        f"bytes for one answer; {advice}",
    )


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
