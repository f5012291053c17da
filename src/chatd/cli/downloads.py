"""Writes what a server sends into a file, which appears when it is complete."""

import os
import tempfile
from pathlib import Path
from typing import BinaryIO

from chatd.cli.api_session import UsageProblem
from chatd.client.calls import Download


async def save(download: Download, target: Path) -> None:
    """A device or a pipe is written to as it is. Raises UsageProblem if that is not possible."""
    try:
        place = find_place(target)
        if is_special(place):
            with place.open("wb") as file:
                await download.write_to(file.write)
            return
        file, partial = open_partial(place)
        try:
            with file:
                await download.write_to(file.write)
            partial.replace(place)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise UsageProblem(f"cannot write {target}: {error.strerror or error}") from None


async def save_new(download: Download, place: Path, *, force: bool) -> None:
    """At a place whose name somebody else chose: nothing that is there is overwritten without
    `force`, and a link is never followed. Raises UsageProblem."""
    try:
        if not force:
            refuse_existing(place)
        file, partial = open_partial(place)
        try:
            with file:
                await download.write_to(file.write)
            if not force:  # it may be there by now
                os.close(os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            partial.replace(place)
        finally:
            partial.unlink(missing_ok=True)
    except FileExistsError:
        raise UsageProblem(f"{place} is there already: --force overwrites it") from None
    except OSError as error:
        raise UsageProblem(f"cannot write {place}: {error.strerror or error}") from None


def find_place(target: Path) -> Path:
    """Where a link leads: the link stays."""
    return target.resolve()


def refuse_existing(place: Path) -> None:
    """Raises FileExistsError, also for a link that leads nowhere."""
    if os.path.lexists(place):
        raise FileExistsError


def is_special(place: Path) -> bool:
    return place.exists() and not place.is_file()


def open_partial(place: Path) -> tuple[BinaryIO, Path]:
    """A new file beside the place, with a name that nobody can guess and the usual permissions."""
    descriptor, name = tempfile.mkstemp(prefix=f".{place.name[:100]}.", dir=place.parent)
    mask = os.umask(0o077)
    os.umask(mask)
    os.fchmod(descriptor, 0o666 & ~mask)
    return os.fdopen(descriptor, "wb"), Path(name)
