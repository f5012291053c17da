"""Which files of a chat a request contains: decided by their sizes, before any byte is loaded.

No file is left out silently: the model reads a sentence about each that it does not get.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from chatd.domain.file.entities import StoredFile
from chatd.domain.model.accepted_files import BYTES_PER_MIB, AcceptedFiles
from chatd.domain.prompt.files import MAX_TEXT_FILE_BYTES, ResolvedFile, is_inlined

_TOO_MUCH: Final = "the files of this chat exceed {mib} MiB together, and newer ones are shown"


class PlannedFile(Struct, frozen=True, kw_only=True):
    """Load the first `load_bytes` of the file."""

    file: StoredFile
    load_bytes: int


class FilePlan(Struct, frozen=True, kw_only=True):
    """`load` in the order of the prompt. `notes` are the files that are only described."""

    load: tuple[PlannedFile, ...]
    notes: Mapping[str, ResolvedFile]


def plan_files(
    ids: Sequence[str], stored: Mapping[str, StoredFile], accepts: AcceptedFiles
) -> FilePlan:
    """`ids` in the order of the prompt. The newest files are kept if all of them are too much; a
    file that was left out once stays left out, so that a prompt changes as rarely as possible."""
    load: list[PlannedFile] = []
    notes: dict[str, ResolvedFile] = {}
    left, is_full = accepts.max_total_bytes, False
    for file_id in reversed(ids):
        file = stored.get(file_id)
        if file is None:
            continue
        planned = _plan(file, accepts)
        is_full = is_full or (isinstance(planned, PlannedFile) and planned.load_bytes > left)
        if isinstance(planned, str):
            notes[file_id] = _note(file, planned)
        elif is_full:
            mib = accepts.max_total_bytes // BYTES_PER_MIB
            notes[file_id] = _note(file, _TOO_MUCH.format(mib=mib))
        else:
            load.append(planned)
            left -= planned.load_bytes
    return FilePlan(load=tuple(reversed(load)), notes=notes)


def _plan(file: StoredFile, accepts: AcceptedFiles) -> PlannedFile | str:
    """The reason if the model does not get it."""
    kind = file.media_type
    if is_inlined(kind) and not accepts.takes(kind):
        return PlannedFile(file=file, load_bytes=min(file.size_bytes, MAX_TEXT_FILE_BYTES))
    if not accepts.takes(kind):
        return "this model does not take files of this type"
    limit = accepts.max_bytes(kind)
    if file.size_bytes >= limit:
        return f"it is not smaller than {limit // BYTES_PER_MIB} MiB"
    return PlannedFile(file=file, load_bytes=file.size_bytes)


def _note(file: StoredFile, why: str) -> ResolvedFile:
    return ResolvedFile(
        media_type=file.media_type, data=b"", name=file.name, size=file.size_bytes, missing=why
    )
