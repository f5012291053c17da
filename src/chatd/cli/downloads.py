"""Writes what a server sends into a file, which appears when it is complete."""

import os
import tempfile
from pathlib import Path
from typing import BinaryIO

from chatd.cli.api_session import UsageProblem
from chatd.client.server import ServerApi


async def save(api: ServerApi, path: str, target: Path) -> None:
    """A device or a pipe is written to as it is. Raises UsageProblem if that is not possible."""
    try:
        place = find_place(target)
        if is_special(place):
            with place.open("wb") as file:
                await api.download_to(path, file.write)
            return
        file, partial = open_partial(place)
        try:
            with file:
                await api.download_to(path, file.write)
            partial.replace(place)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise UsageProblem(f"cannot write {target}: {error.strerror or error}") from None


def find_place(target: Path) -> Path:
    """Where a link leads: the link stays."""
    return target.resolve()


def is_special(place: Path) -> bool:
    return place.exists() and not place.is_file()


def open_partial(place: Path) -> tuple[BinaryIO, Path]:
    """A new file beside the place, with a name that nobody can guess and the usual permissions."""
    descriptor, name = tempfile.mkstemp(prefix=f".{place.name[:100]}.", dir=place.parent)
    mask = os.umask(0o077)
    os.umask(mask)
    os.fchmod(descriptor, 0o666 & ~mask)
    return os.fdopen(descriptor, "wb"), Path(name)
