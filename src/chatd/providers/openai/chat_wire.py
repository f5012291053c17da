"""Types of Chat Completions streams, and stored metadata.

Decoding is lenient: unknown fields are ignored, and every field may be absent or null, because each
compatible server omits others.
"""

from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct

from chatd.domain.text import Json
from chatd.providers.sse import DECODE_ERRORS

# A field below is named `object` and would hide the builtin.
Anything = object


class Function(Struct, frozen=True):
    """Arguments are text in pieces; a few servers send an object."""

    name: str | None = None
    arguments: str | dict[str, object] | None = None


class ToolCall(Struct, frozen=True):
    index: int | None = None
    id: str | None = None
    function: Function | None = None
    extra_content: Raw = Raw(b"null")


class ContentPart(Struct, frozen=True):
    """Mistral sends content as a list, and thoughts in it as lists again."""

    type: str = ""
    text: str | None = None
    thinking: "str | tuple[ContentPart, ...] | None" = None


class Citation(Struct, frozen=True):
    url: str | None = None
    title: str | None = None


class Annotation(Struct, frozen=True):
    url_citation: Citation | None = None


class Google(Struct, frozen=True):
    thought: bool | str | None = None


class ExtraContent(Struct, frozen=True):
    """Gemini's fields, named after the service."""

    google: Google | None = None
    vertex: Google | None = None


class Detail(Struct, frozen=True):
    """A piece of a gateway's reasoning, to be sent back."""

    type: str = ""
    index: int | None = None
    text: str | None = None
    summary: str | None = None


class Delta(Struct, frozen=True):
    content: str | tuple[ContentPart, ...] | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: tuple[Raw, ...] | None = None
    tool_calls: tuple[ToolCall, ...] | None = None
    annotations: tuple[Annotation, ...] | None = None
    extra_content: ExtraContent | None = None


class PromptDetails(Struct, frozen=True):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class CompletionDetails(Struct, frozen=True):
    reasoning_tokens: int | None = None


class Usage(Struct, frozen=True):
    """`cost` is OpenRouter's charge in USD. With the user's own key at the vendor (`is_byok`), the
    vendor charges the upstream cost in addition. Other servers send other things as `cost`."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None
    prompt_cache_hit_tokens: int | None = None
    cost: Anything = None
    is_byok: Anything = None
    cost_details: Anything = None


class Choice(Struct, frozen=True):
    """Moonshot reports usage here."""

    index: int = 0
    delta: Delta | None = None
    finish_reason: str | None = None
    usage: Usage | None = None
    error: Anything = None


class Chunk(Struct, frozen=True):
    """An error is in the field `error`, or is the whole chunk."""

    id: str | None = None
    choices: tuple[Choice, ...] | None = None
    usage: Usage | None = None
    error: Anything = None
    object: str | None = None
    message: Anything = None
    type: Anything = None
    code: Anything = None


CHUNK: Final = msgspec.json.Decoder(Chunk)
DETAIL: Final = msgspec.json.Decoder(Detail)


# Metadata of a part


class ChatMetadata(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`field` is the field of the reasoning, in which it is sent back, or the tag before it in the
    text. `details` are a gateway's
    reasoning details, `extra` is Gemini's content of a call."""

    origin: str
    field: str | None = None
    details: tuple[Raw, ...] = ()
    extra: Json = UNSET


class _Envelope(Struct, frozen=True, omit_defaults=True):
    openai_chat: ChatMetadata | None = None


_ENVELOPE: Final = msgspec.json.Decoder(_Envelope)


def pack_metadata(metadata: ChatMetadata) -> Raw:
    return Raw(msgspec.json.encode(_Envelope(metadata)))


def unpack_metadata(raw: Json, origin: str) -> ChatMetadata | None:
    """None unless the same account at the same provider made it."""
    if raw is UNSET:
        return None
    try:
        metadata = _ENVELOPE.decode(raw).openai_chat
    except DECODE_ERRORS:
        return None
    return metadata if metadata is not None and metadata.origin == origin else None
