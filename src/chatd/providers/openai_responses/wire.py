"""What the Responses API sends, as far as we read it, and what we keep of it.

Decoding is lenient: unknown fields are ignored, every field may be absent, and
an item that has to go back unchanged stays `Raw`.
"""

from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct

from chatd.domain.chat.parts import Json
from chatd.providers.reading import UNREADABLE

NULL: Final = Raw(b"null")


class Head(Struct, frozen=True):
    type: str = ""


class Delta(Struct, frozen=True):
    """A piece of text, of a refusal, of reasoning, or of a call's arguments."""

    delta: str
    output_index: int = 0
    content_index: int = 0


class PartKind(Struct, frozen=True):
    type: str = ""


class PartAdded(Struct, frozen=True):
    part: PartKind = PartKind()
    output_index: int = 0
    content_index: int = 0


class Annotation(Struct, frozen=True):
    type: str = ""
    url: str | None = None
    title: str | None = None


class AnnotationAdded(Struct, frozen=True):
    annotation: Annotation | None = None


class ItemEvent(Struct, frozen=True):
    item: Raw
    output_index: int = 0


class Content(Struct, frozen=True):
    type: str = ""
    text: str | None = None
    refusal: str | None = None
    annotations: tuple[Annotation, ...] | None = None


class Item(Struct, frozen=True):
    """An item of a kind we know."""

    type: str = ""
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    status: str | None = None
    phase: str | None = None
    content: tuple[Content, ...] | None = None
    summary: tuple[Content, ...] | None = None
    action: Raw = NULL
    actions: Raw = NULL
    pending_safety_checks: Raw = NULL


class OtherItem(Struct, frozen=True):
    """An item of a kind we do not know."""

    id: str | int | None = None
    call_id: str | int | None = None


class InputDetails(Struct, frozen=True):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class OutputDetails(Struct, frozen=True):
    reasoning_tokens: int | None = None


class Usage(Struct, frozen=True):
    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None
    input_tokens_details: InputDetails | None = None
    output_tokens_details: OutputDetails | None = None


class Incomplete(Struct, frozen=True):
    reason: str | None = None


class Response(Struct, frozen=True):
    id: str | None = None
    status: str | None = None
    error: object = None
    incomplete_details: Incomplete | None = None
    usage: Usage | None = None


class ResponseEvent(Struct, frozen=True):
    response: Response = Response()


class ErrorEvent(Struct, frozen=True):
    """The API describes one form and also sends the other, with an object inside."""

    message: object = None
    code: object = None
    error: object = None


HEAD: Final = msgspec.json.Decoder(Head)
DELTA: Final = msgspec.json.Decoder(Delta)
PART_ADDED: Final = msgspec.json.Decoder(PartAdded)
ANNOTATION_ADDED: Final = msgspec.json.Decoder(AnnotationAdded)
ITEM_EVENT: Final = msgspec.json.Decoder(ItemEvent)
ITEM: Final = msgspec.json.Decoder(Item)
OTHER_ITEM: Final = msgspec.json.Decoder(OtherItem)
RESPONSE_EVENT: Final = msgspec.json.Decoder(ResponseEvent)
ERROR_EVENT: Final = msgspec.json.Decoder(ErrorEvent)


# What we keep, as a part's metadata


class Kept(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An item's identity. Ids and sealed contents mean something only to whom they come from.

    `after` names the reasoning before the item: the API refuses the one without the other.
    `item` is the whole item, for those that go back as they came.
    """

    origin: str
    id: str | None = None
    after: str | None = None
    phase: str | None = None
    refusal: bool = False
    item: Json = UNSET


class _Envelope(Struct, frozen=True, omit_defaults=True):
    openai_responses: Kept | None = None


_ENVELOPE: Final = msgspec.json.Decoder(_Envelope)


def pack(kept: Kept) -> Raw:
    return Raw(msgspec.json.encode(_Envelope(kept)))


def unpack(metadata: Json, origin: str) -> Kept | None:
    """What we kept, if this is ours and from the same provider."""
    if metadata is UNSET:
        return None
    try:
        kept = _ENVELOPE.decode(metadata).openai_responses
    except UNREADABLE:
        return None
    return kept if kept is not None and kept.origin == origin else None
