"""The work of `chatd files put` and `get`; files that appear when they are complete."""

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from chatd.cli.api_session import UsageProblem
from chatd.cli.chats.run_request import read_id, upload_file
from chatd.cli.output import byte_size, print_json, print_notice, print_text
from chatd.client.calls import Download
from chatd.client.resources import StoredFile
from chatd.client.server import ServerApi
from chatd.domain.ids import FileId


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


# Commands


async def put_files(api: ServerApi, paths: Sequence[Path], *, as_json: bool) -> None:
    """The ids are the output, one line each, in the order of the files."""
    stored = [await _put(api, path, as_json=as_json) for path in paths]
    if as_json:
        print_json(stored)


async def _put(api: ServerApi, path: Path, *, as_json: bool) -> StoredFile:
    stored = await upload_file(api, path)
    if not as_json:
        print_text(str(stored.id))
        print_notice(f"  {path.name}, {stored.media_type}, {byte_size(stored.size_bytes)}")
    return stored


async def get_file(
    api: ServerApi, file_id: str, target: Path | None, *, force: bool, as_json: bool
) -> None:
    """To standard output, unless a file or a directory is named. A terminal gets no binary data."""
    if (found := read_id(file_id)) is None:
        raise UsageProblem(f"{file_id!r} is no id of a file; chatd chats show names the files")
    stored = await api.get_file(FileId(found))
    if as_json:
        print_json(stored)
        return
    content = api.load_content(stored.id)
    if target is not None:
        place = place_of(stored, target)
        if place == target:
            await save(content, place)
        else:
            await save_new(content, place, force=force)
        print_notice(f"written to {place}, {byte_size(stored.size_bytes)}")
        return
    if sys.stdout.isatty():
        if not stored.media_type.startswith("text/") and stored.media_type != "application/json":
            raise UsageProblem(f"the file is {stored.media_type}: name a place for it with -o FILE")
        print_text((await content.read()).decode(errors="replace"), is_data=True)
        return
    await content.write_to(sys.stdout.buffer.write)
    sys.stdout.buffer.flush()


def place_of(stored: StoredFile, target: Path) -> Path:
    return target / safe_name(stored) if target.is_dir() else target


def safe_name(stored: StoredFile) -> str:
    """The file's name without any directory: it comes from somebody else. It is no hidden file,
    which programs read as settings, and no option of a command."""
    name = (stored.name or "").replace("\\", "/").rpartition("/")[2]
    name = name.strip()
    if not name.strip(". ") or not name.isprintable():
        return str(stored.id)
    plain = name.lstrip(".-")
    return "_" * (len(name) - len(plain)) + plain
