"""Read directories and files for a person, inside the home directory only.

A link is shown with its target. It is followed only if it leads to a place inside the home
directory. The path that was checked is opened name by name without following links, so that a link
that a command puts in between is refused.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress

from chatd.agent.errors import AgentError, from_os_error
from chatd.agent.files.file_paths import (
    check_encodable,
    file_kind,
    printable_name,
    read_at_most,
    require_regular,
    resolve_path,
)

MAX_SCANNED_ENTRIES = 10_000
MAX_LISTED_ENTRIES = 2000
MAX_LISTING_BYTES = 1 << 20
MAX_TARGET_CHARS = 512
MAX_PIECE_BYTES = 1 << 20
_OUTSIDE = "outside_workspace"


def browse_directory(home: str, path: str, *, directory: str = "") -> dict[str, object]:
    """The entries of one directory: directories first, then by name. `is_cut`: there are more."""
    shown = resolve_inside(home, path)
    with _opened(home, shown, os.O_RDONLY | os.O_DIRECTORY) as fd:
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
    with _opened(home, shown, os.O_PATH) as pinned:
        require_regular(os.fstat(pinned), printable_name(shown))
    with _opened(home, shown, flags) as fd:
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
        "version": f"{info.st_ino:x}-{info.st_mtime_ns:x}-{info.st_size:x}",
    }
    return facts, content


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
def _opened(home: str, resolved: str, flags: int) -> Generator[int, None, None]:
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
        return entry  # removed meanwhile, or not readable
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
        with _opened(home, resolve_inside(home, path), os.O_PATH) as fd:
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
