"""One stored part as a model reads it.

Owns what each kind of part becomes and what is left out. Does not own how messages follow each
other: a result may come out here without its call.
"""

from base64 import b64decode
from binascii import Error as NotBase64
from typing import Final, cast

from msgspec import UNSET, Raw

from chatd.domain.blocks import EMPTY_OBJECT
from chatd.domain.heal import for_model, heal_text, is_empty, parse, raw_for_model
from chatd.domain.model import PromptCall, PromptFile, PromptReasoning, PromptResult, PromptText
from chatd.domain.parts import Json, Reasoning, Text, ToolCall, ToolResult

UNKNOWN_TOOL: Final = "unknown"
NO_MEDIA: Final = "[The tool made a file that can no longer be read.]"


def text_part(part: Text) -> PromptText | None:
    text = for_model(part.text)
    return PromptText(text=text, provider_metadata=part.provider_metadata) if text.strip() else None


def reasoning_part(part: Reasoning) -> PromptReasoning | None:
    """What a vendor has signed or sealed goes back as it came, even without a word in it."""
    if not is_empty(part.provider_metadata):
        return PromptReasoning(text=heal_text(part.text), provider_metadata=part.provider_metadata)
    text = for_model(part.text)
    return PromptReasoning(text=text) if text.strip() else None


def call_part(part: ToolCall) -> PromptCall:
    args = raw_for_model(part.args)
    whole = args if args is not UNSET and isinstance(parse(args), dict) else EMPTY_OBJECT
    return PromptCall(
        id=part.tool_call_id,
        name=_name(part.tool_name),
        input=whole,
        provider_executed=part.provider_executed,
        provider_metadata=part.provider_metadata,
    )


def result_part(part: ToolResult) -> PromptResult:
    """An error counts before all else. Media that cannot be read leave their text behind."""
    raw = _given(part.result)
    value = parse(raw)
    media: PromptFile | None = None
    if part.is_error:
        text = _field(value, "error") or _plain(raw)
    elif part.is_media:
        media = _media(value)
        text = _field(value, "text") or ("" if media is not None else NO_MEDIA)
    else:
        # Plain text was wrapped to be stored; a model reads it better without the escapes.
        text = _wrapped_text(value) or _plain(raw)
    return PromptResult(
        id=part.tool_call_id,
        name=_name(part.tool_name),
        text=for_model(text),
        is_error=part.is_error,
        media=media,
        provider_executed=part.provider_executed,
        raw=raw if part.provider_executed else UNSET,
        provider_metadata=part.provider_metadata,
    )


def _name(name: str) -> str:
    return name if name.strip() else UNKNOWN_TOOL


def _given(result: Json) -> Raw:
    mended = raw_for_model(result)
    return EMPTY_OBJECT if mended is UNSET or is_empty(mended) else mended


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
