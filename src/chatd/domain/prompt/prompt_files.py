"""Converts attachments to prompt parts, and decides by size which files a request contains."""

import re
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from chatd.domain.chat.parts import FilePart
from chatd.domain.files import StoredFile
from chatd.domain.model.protocol import BYTES_PER_MIB, AcceptedFiles, PromptFile, PromptText
from chatd.domain.text import decode_lenient, model_text

MAX_PASTE_BYTES: Final = 128 * 1024
MAX_TEXT_FILE_BYTES: Final = 256 * 1024
"""A model sees only this much of a text file."""

_PASTE_NAME: Final = re.compile(r"pasted-text-\d{4}-\d\d-\d\d-\d\d-\d\d-\d\d\.txt")
_PASTE_TYPES: Final = frozenset(
    f"application/{name}"
    for name in ("json", "xml", "javascript", "yaml", "x-yaml", "x-javascript")
)
_INLINED: Final = frozenset({"text/plain", "text/markdown", "text/csv", "application/json"})


class ResolvedFile(Struct, frozen=True, kw_only=True):
    """A stored file. Its own name and type take precedence over those in the message. `size` is
    that of the whole file if `data` is only its beginning. `missing`: why the model does not get
    the file, in place of `data`."""

    media_type: str
    data: bytes
    name: str | None = None
    size: int | None = None
    missing: str | None = None


AcceptsMediaType = Callable[[str], bool]
"""Whether the provider accepts a file of this media type as it is."""


def convert_file(
    part: FilePart, files: Mapping[str, ResolvedFile], accepts: AcceptsMediaType | None
) -> PromptFile | PromptText | None:
    """None: the file is empty."""
    found = _resolve(part, files)
    if found is None:
        return PromptText(text=_expired(part))
    if found.missing is not None:
        return PromptText(text=_missing(found))
    if not found.data:
        return None
    if is_paste(found.name, found.media_type):
        return PromptText(text=_paste(found))
    kind = base_media_type(found.media_type)
    if accepts is not None and is_inlined(kind) and not accepts(kind):
        return PromptText(text=_inlined(found))
    return PromptFile(media_type=found.media_type, data=found.data, name=found.name)


def _resolve(part: FilePart, files: Mapping[str, ResolvedFile]) -> ResolvedFile | None:
    if part.file_id is not None:
        return files.get(part.file_id)
    try:
        data = b64decode(part.data or "", validate=True)
    except (NotBase64, ValueError):
        return None
    return ResolvedFile(media_type=part.media_type, data=data, name=part.name)


def is_inlined(media_type: str) -> bool:
    """Whether the model reads it as text of the message."""
    return base_media_type(media_type) in _INLINED


def base_media_type(media_type: str) -> str:
    return media_type.partition(";")[0].strip().lower()


def is_paste(name: str | None, media_type: str) -> bool:
    """Whether the web page made the file from a long pasted text, by its name."""
    kind = base_media_type(media_type)
    named = name is not None and _PASTE_NAME.fullmatch(name) is not None
    return named and (kind.startswith("text/") or kind in _PASTE_TYPES)


def paste_text(file: ResolvedFile) -> str:
    """At most MAX_PASTE_BYTES of a paste; a character cut in two is dropped."""
    if _whole_size(file) <= MAX_PASTE_BYTES:
        return model_text(decode_lenient(file.data))
    return model_text(decode_lenient(file.data[:MAX_PASTE_BYTES]).rstrip("\ufffd"))


def _paste(file: ResolvedFile) -> str:
    note = ""
    if (size := _whole_size(file)) > MAX_PASTE_BYTES:
        note = f"\n[Cut here: the paste has {size} bytes; {MAX_PASTE_BYTES} are shown.]"
    return f"[The user pasted this text]\n{paste_text(file)}{note}"


def _inlined(file: ResolvedFile) -> str:
    label = f"[Attached file: {file.name}]" if file.name else "[Attached file]"
    text, size = decode_lenient(file.data), _whole_size(file)
    if size > len(file.data):
        text = text.rstrip("\ufffd")
        text += f"\n[Cut here: the file has {size} bytes; {len(file.data)} are shown.]"
    return f"{model_text(label)}\n{model_text(text)}"


def _whole_size(file: ResolvedFile) -> int:
    return len(file.data) if file.size is None else file.size


def _missing(file: ResolvedFile) -> str:
    name = f" {file.name}" if file.name else ""
    size = _whole_size(file)
    label = f"The user attached the file{name} ({base_media_type(file.media_type)}, {size} bytes)"
    return model_text(f"[{label}. It is not shown: {file.missing}.]")


def _expired(part: FilePart) -> str:
    kind = base_media_type(part.media_type)
    of_type = "" if kind in ("", "application/octet-stream") else f" of type {model_text(kind)}"
    name = f" {model_text(part.name)}" if part.name else ""
    return f"[The attachment{name}{of_type} has expired and is no longer available.]"


# Which files of a chat a request contains: decided by their sizes, before any byte is loaded.
#
# No file is left out silently: the model reads a sentence about each that it does not get.

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
    """`ids` in the order of the prompt. The newest files are kept if all are too large together. A
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
    """What to load of the file, or the reason why the model does not get it."""
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
