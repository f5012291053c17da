"""What becomes of an attachment on its way into a prompt.

Owns everything that does not depend on the wire: where the bytes come from, what to say when
they are gone, long pastes, text that the model would not get as a file. Does not own which
files a wire takes in which form.
"""

import re
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct

from chatd.domain.heal import for_model, heal_bytes
from chatd.domain.model import PromptFile, PromptText
from chatd.domain.parts import File

MAX_PASTE: Final = 128 * 1024

_PASTE_NAME: Final = re.compile(r"pasted-text-\d{4}-\d\d-\d\d-\d\d-\d\d-\d\d\.txt")
_PASTE_TYPES: Final = frozenset(
    f"application/{name}"
    for name in ("json", "xml", "javascript", "yaml", "x-yaml", "x-javascript")
)
_INLINED: Final = frozenset({"text/plain", "text/markdown", "text/csv", "application/json"})


class ResolvedFile(Struct, frozen=True, kw_only=True):
    """A file as it is stored. Its own name and type count, not those of the message."""

    media_type: str
    data: bytes
    name: str | None = None


Takes = Callable[[str], bool]
"""Whether the target shows its model a file of this type as it is."""


def file_part(
    part: File, files: Mapping[str, ResolvedFile], takes: Takes | None
) -> PromptFile | PromptText | None:
    """None: there is nothing to send."""
    found = _resolve(part, files)
    if found is None:
        return PromptText(text=_expired(part))
    if not found.data:
        return None
    if is_paste(found.name, found.media_type):
        return PromptText(text=_paste(found))
    kind = bare_type(found.media_type)
    if takes is not None and kind in _INLINED and not takes(kind):
        return PromptText(text=_inlined(found))
    return PromptFile(media_type=found.media_type, data=found.data, name=found.name)


def _resolve(part: File, files: Mapping[str, ResolvedFile]) -> ResolvedFile | None:
    if part.file_id is not None:
        return files.get(part.file_id)
    try:
        data = b64decode(part.data or "", validate=True)
    except (NotBase64, ValueError):
        return None
    return ResolvedFile(media_type=part.media_type, data=data, name=part.name)


def bare_type(media_type: str) -> str:
    return media_type.partition(";")[0].strip().lower()


def is_paste(name: str | None, media_type: str) -> bool:
    """A long text that the page has turned into a file, by the name it gives to such."""
    kind = bare_type(media_type)
    named = name is not None and _PASTE_NAME.fullmatch(name) is not None
    return named and (kind.startswith("text/") or kind in _PASTE_TYPES)


def paste_text(file: ResolvedFile) -> str:
    """As much of a paste as is ever read. A character that is cut in two is left out."""
    if len(file.data) <= MAX_PASTE:
        return for_model(heal_bytes(file.data))
    return for_model(heal_bytes(file.data[:MAX_PASTE]).rstrip("\ufffd"))


def _paste(file: ResolvedFile) -> str:
    note = ""
    if len(file.data) > MAX_PASTE:
        note = (
            f"\n[Cut here: the paste has {len(file.data)} bytes, of which {MAX_PASTE} are shown.]"
        )
    return f"[The user pasted this text]\n{paste_text(file)}{note}"


def _inlined(file: ResolvedFile) -> str:
    label = f"[Attached file: {file.name}]" if file.name else "[Attached file]"
    return f"{for_model(label)}\n{for_model(heal_bytes(file.data))}"


def _expired(part: File) -> str:
    kind = bare_type(part.media_type)
    of_type = "" if kind in ("", "application/octet-stream") else f" of type {for_model(kind)}"
    name = f" {for_model(part.name)}" if part.name else ""
    return f"[The attachment{name}{of_type} has expired and is no longer available.]"
