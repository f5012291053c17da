"""Which kits are in use, and removing those of earlier versions that are not.

Every server holds a lock on the name of its own kit for as long as it lives; what runs is the
supervisor's to tell. A kit goes only if both say that nobody needs it, and whoever cannot be asked
is taken to need all of them. Workspaces see a kit but not its lock, or they could hold up a server.
"""

import asyncio
import fcntl
import os
import re
import secrets
import shutil
import weakref
from collections.abc import Awaitable, Callable, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final

KIT: Final = re.compile(r"\.?([0-9a-f]{16})(-[0-9a-f]+)?")
"""The name of a kit, or of one that is being made or removed."""


class Hold:
    """A lock on the name of a kit, until it is closed or nobody has it any more."""

    def __init__(self, descriptor: int) -> None:
        self._close = weakref.finalize(self, os.close, descriptor)

    def close(self) -> None:
        self._close()


def scratch(directory: Path, name: str) -> Path:
    """Where this kit is made or taken apart, by whoever asks and nobody else."""
    return directory / f".{name}-{secrets.token_hex(8)}"


def hold(directory: Path, name: str, *, alone: bool = False) -> Hold | None:
    """With all others who use it; or alone, if nobody does, else None."""
    path = directory / f"{name}.lock"
    how = fcntl.LOCK_EX | fcntl.LOCK_NB if alone else fcntl.LOCK_SH
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, how)
        except BlockingIOError:
            os.close(descriptor)
            return None
        if _is_still(path, descriptor):
            return Hold(descriptor)
        os.close(descriptor)  # Whoever held it has removed it.


async def remove_unused(
    directory: Path,
    current: str,
    mentioned: Callable[[Sequence[str]], Awaitable[AbstractSet[str] | None]],
) -> None:
    """`mentioned` says which of these names are in what runs; None if that cannot be told."""
    held: dict[str, Hold] = {}
    try:
        for name in _names(directory) - {current}:
            if (alone := hold(directory, name, alone=True)) is not None:
                held[name] = alone
        used = await mentioned(sorted(held)) if held else None
        if used is not None:
            for name in held.keys() - used:
                await asyncio.to_thread(_remove, directory, name)
    finally:
        for each in held.values():
            each.close()


def _names(directory: Path) -> set[str]:
    """None of them if others share the directory: what they run is not known here."""
    entries = [] if directory.is_symlink() else os.listdir(directory)
    found = (KIT.fullmatch(entry) for entry in entries)
    return {each[1] for each in found if each is not None}


def _remove(directory: Path, name: str) -> None:
    """It loses its name first, so that it is there or not."""
    if (directory / name).is_dir():
        (directory / name).rename(scratch(directory, name))
    for entry in os.listdir(directory):
        if entry.startswith(f".{name}-"):
            shutil.rmtree(directory / entry, ignore_errors=True)
    (directory / f"{name}.lock").unlink(missing_ok=True)


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    mine = os.fstat(descriptor)
    return (found.st_dev, found.st_ino) == (mine.st_dev, mine.st_ino)
