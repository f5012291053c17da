"""Converts stored parts and attachments to prompt parts, independent of any wire format.

Does not check how messages follow each other: a result may be converted without its call.
"""

import re
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Callable, Mapping
from typing import Final, cast

from msgspec import UNSET, Raw, Struct

from chatd.domain.answer.assembler import EMPTY_OBJECT
from chatd.domain.chat.parts import FilePart, ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from chatd.domain.model.protocol import (
    PromptCall,
    PromptFile,
    PromptReasoning,
    PromptResult,
    PromptText,
)
from chatd.domain.text import (
    Json,
    decode_lenient,
    is_empty_json,
    model_json,
    model_text,
    parse_json,
    replace_surrogates,
)

UNKNOWN_TOOL: Final = "unknown"
MEDIA_UNAVAILABLE_TEXT: Final = "[The tool returned a file that cannot be read.]"


def convert_text(part: TextPart) -> PromptText | None:
    text = model_text(part.text)
    return PromptText(text=text, provider_metadata=part.provider_metadata) if text.strip() else None


def convert_reasoning(part: ReasoningPart) -> PromptReasoning | None:
    """Signed or encrypted reasoning is sent back unchanged, even without text."""
    if not is_empty_json(part.provider_metadata):
        return PromptReasoning(
            text=replace_surrogates(part.text), provider_metadata=part.provider_metadata
        )
    text = model_text(part.text)
    return PromptReasoning(text=text) if text.strip() else None


def convert_call(part: ToolCallPart) -> PromptCall:
    args = model_json(part.args)
    valid = args if args is not UNSET and isinstance(parse_json(args), dict) else EMPTY_OBJECT
    return PromptCall(
        id=part.tool_call_id,
        name=_name(part.tool_name),
        input=valid,
        provider_executed=part.provider_executed,
        provider_metadata=part.provider_metadata,
    )


def convert_result(part: ToolResultPart) -> PromptResult:
    """`is_error` takes precedence over `is_media`. Unreadable media become a text."""
    raw = _json_or_empty(part.result)
    value = parse_json(raw)
    media: PromptFile | None = None
    if part.is_error:
        text = _field(value, "error") or _plain(raw)
    elif part.is_media:
        media = _media(value)
        text = _field(value, "text") or ("" if media is not None else MEDIA_UNAVAILABLE_TEXT)
    else:
        # Plain text was wrapped as JSON to be stored; the model reads it without the escapes.
        text = _wrapped_text(value) or _plain(raw)
    return PromptResult(
        id=part.tool_call_id,
        name=_name(part.tool_name),
        text=model_text(text),
        is_error=part.is_error,
        media=media,
        provider_executed=part.provider_executed,
        raw=raw if part.provider_executed else UNSET,
        provider_metadata=part.provider_metadata,
    )


def _name(name: str) -> str:
    return name if name.strip() else UNKNOWN_TOOL


def _json_or_empty(result: Json) -> Raw:
    raw = model_json(result)
    return EMPTY_OBJECT if raw is UNSET or is_empty_json(raw) else raw


def _plain(raw: Raw) -> str:
    return bytes(raw).decode("utf-8", "replace")


def _wrapped_text(value: object) -> str | None:
    fields = _fields(value)
    text = fields.get("output") if len(fields) == 1 else None
    return text if isinstance(text, str) and text.strip() else None


def _media(value: object) -> PromptFile | None:
    data, kind = _field(value, "data"), _field(value, "mime_type")
    if data is None or kind is None:
        return None
    try:
        content = b64decode(data, validate=True)
    except (NotBase64, ValueError):
        return None
    return PromptFile(media_type=kind, data=content) if content else None


def _field(value: object, name: str) -> str | None:
    found = _fields(value).get(name)
    return found if isinstance(found, str) and found.strip() else None


def _fields(value: object) -> dict[str, object]:
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


MAX_PASTE_BYTES: Final = 128 * 1024

_PASTE_NAME: Final = re.compile(r"pasted-text-\d{4}-\d\d-\d\d-\d\d-\d\d-\d\d\.txt")
_PASTE_TYPES: Final = frozenset(
    f"application/{name}"
    for name in ("json", "xml", "javascript", "yaml", "x-yaml", "x-javascript")
)
_INLINED: Final = frozenset({"text/plain", "text/markdown", "text/csv", "application/json"})


class ResolvedFile(Struct, frozen=True, kw_only=True):
    """A stored file. Its own name and type take precedence over those in the message."""

    media_type: str
    data: bytes
    name: str | None = None


AcceptsMediaType = Callable[[str], bool]
"""Whether the provider accepts a file of this media type as it is."""


def convert_file(
    part: FilePart, files: Mapping[str, ResolvedFile], accepts: AcceptsMediaType | None
) -> PromptFile | PromptText | None:
    """None: the file is empty."""
    found = _resolve(part, files)
    if found is None:
        return PromptText(text=_expired(part))
    if not found.data:
        return None
    if is_paste(found.name, found.media_type):
        return PromptText(text=_paste(found))
    kind = base_media_type(found.media_type)
    if accepts is not None and kind in _INLINED and not accepts(kind):
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


def base_media_type(media_type: str) -> str:
    return media_type.partition(";")[0].strip().lower()


def is_paste(name: str | None, media_type: str) -> bool:
    """The web page turns a long pasted text into a file with such a name."""
    kind = base_media_type(media_type)
    named = name is not None and _PASTE_NAME.fullmatch(name) is not None
    return named and (kind.startswith("text/") or kind in _PASTE_TYPES)


def paste_text(file: ResolvedFile) -> str:
    """At most MAX_PASTE_BYTES of a paste; a character cut in two is dropped."""
    if len(file.data) <= MAX_PASTE_BYTES:
        return model_text(decode_lenient(file.data))
    return model_text(decode_lenient(file.data[:MAX_PASTE_BYTES]).rstrip("\ufffd"))


def _paste(file: ResolvedFile) -> str:
    note = ""
    if len(file.data) > MAX_PASTE_BYTES:
        size = len(file.data)
        note = f"\n[Cut here: the paste has {size} bytes; {MAX_PASTE_BYTES} are shown.]"
    return f"[The user pasted this text]\n{paste_text(file)}{note}"


def _inlined(file: ResolvedFile) -> str:
    label = f"[Attached file: {file.name}]" if file.name else "[Attached file]"
    return f"{model_text(label)}\n{model_text(decode_lenient(file.data))}"


def _expired(part: FilePart) -> str:
    kind = base_media_type(part.media_type)
    of_type = "" if kind in ("", "application/octet-stream") else f" of type {model_text(kind)}"
    name = f" {model_text(part.name)}" if part.name else ""
    return f"[The attachment{name}{of_type} has expired and is no longer available.]"
