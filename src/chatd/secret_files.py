"""A secret in a file: the first process creates it, all others read it.

Owns three guarantees: processes that start at the same time agree on one secret, only this
account can read it, and a secret that a caller has used survives a loss of power. The caller
decides what the secret is for and which characters it may have.
"""

import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

MAX_SECRET_BYTES: Final = 4096
"""chatd reads no more of a secret file; its own secrets are shorter."""


def load_or_create(path: Path, make: Callable[[], str]) -> str:
    """Return the file's content, stripped; write the result of `make` first if there is no file.
    Raises OSError."""
    if not path.exists():
        _create(path, make())
    with path.open("rb") as file:
        return _content(file)


def read(path: Path) -> str | None:
    """The file's content, stripped; None if there is no file. Raises OSError."""
    try:
        with path.open("rb") as file:
            return _content(file)
    except FileNotFoundError:
        return None


def _content(file: BinaryIO) -> str:
    return file.read(MAX_SECRET_BYTES).decode(errors="replace").strip()


def replace(path: Path, text: str) -> None:
    """Atomic: a reader sees the old content or the new one. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = _write_new(path, text)
    try:
        new.replace(path)
        _sync_directory(path)
    finally:
        new.unlink(missing_ok=True)


def _create(path: Path, line: str) -> None:
    """Atomic, and never replaces an existing file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = _write_new(path, line)
    try:
        _link(new, path)
    finally:
        new.unlink(missing_ok=True)


def _write_new(path: Path, text: str) -> Path:
    new = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(f"{text}\n")
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    return new


def _link(new: Path, path: Path) -> None:
    # Another process may have created the file first; then its secret counts. Sync the directory
    # in both cases: that process may not have reached its own fsync yet.
    with suppress(FileExistsError):
        os.link(new, path)
    _sync_directory(path)


def _sync_directory(path: Path) -> None:
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
