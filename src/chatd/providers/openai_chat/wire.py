"""What Chat Completions send, OpenAI's and everybody else's, as far as we read it.

Decoding is lenient: unknown fields are ignored, and every field may be absent
or null, because each compatible server leaves out something else.
"""

from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct

from chatd.domain.chat.parts import Json
from chatd.providers.reading import UNREADABLE

# One of the fields below is called `object`.
Anything = object


class Function(Struct, frozen=True):
    """Arguments are text in pieces; a few servers send the object itself."""

    name: str | None = None
    arguments: str | dict[str, object] | None = None


class ToolCall(Struct, frozen=True):
    index: int | None = None
    id: str | None = None
    function: Function | None = None
    extra_content: Raw = Raw(b"null")


class ContentPart(Struct, frozen=True):
    """Content as a list: Mistral's, whose thoughts are lists again."""

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
    """Gemini's own, under the name of whichever service serves it."""

    google: Google | None = None
    vertex: Google | None = None


class Detail(Struct, frozen=True):
    """A piece of reasoning as gateways send it, to be given back."""

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
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None
    prompt_cache_hit_tokens: int | None = None


class Choice(Struct, frozen=True):
    """Moonshot puts the counts here."""

    index: int = 0
    delta: Delta | None = None
    finish_reason: str | None = None
    usage: Usage | None = None
    error: Anything = None


class Chunk(Struct, frozen=True):
    """An error stands under its own name, or is all that there is."""

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


# What we keep, as a part's metadata


class Kept(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`field` is where reasoning came from, and goes back to. `details` are a gateway's sealed
    pieces of it, `extra` what Gemini wants to see again with a call."""

    origin: str
    field: str | None = None
    details: tuple[Raw, ...] = ()
    extra: Json = UNSET


class _Envelope(Struct, frozen=True, omit_defaults=True):
    openai_chat: Kept | None = None


_ENVELOPE: Final = msgspec.json.Decoder(_Envelope)


def pack(kept: Kept) -> Raw:
    return Raw(msgspec.json.encode(_Envelope(kept)))


def unpack(metadata: Json, origin: str) -> Kept | None:
    """What we kept, if this is ours and from the same provider."""
    if metadata is UNSET:
        return None
    try:
        kept = _ENVELOPE.decode(metadata).openai_chat
    except UNREADABLE:
        return None
    return kept if kept is not None and kept.origin == origin else None
