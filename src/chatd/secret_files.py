"""A secret of one line in a file of its own: made by whoever comes first, read by everybody else.

Owns that several processes that start at once agree on one, that only this account can read it,
and that what somebody has gone by is still there after a loss of power. What the secret is for,
and what it may look like, is the caller's.
"""

import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

MAX_SECRET_BYTES: Final = 4096
"""No more bytes of a file are looked at: whatever is as long as this is no secret of ours."""


def load_or_create(path: Path, make: Callable[[], str]) -> str:
    """What the file holds, without blanks around it; if there is none, what `make` says is put
    there. Raises OSError."""
    if not path.exists():
        _put(path, make())
    with path.open("rb") as file:
        return file.read(MAX_SECRET_BYTES).decode(errors="replace").strip()


def _put(path: Path, line: str) -> None:
    """Whole or not at all, and never over one that is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(f"{line}\n")
            file.flush()
            os.fsync(file.fileno())
        _link(new, path)
    finally:
        new.unlink(missing_ok=True)


def _link(new: Path, path: Path) -> None:
    # Somebody may be first and not yet come to the next line: theirs is what we go by, then.
    with suppress(FileExistsError):
        os.link(new, path)
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
