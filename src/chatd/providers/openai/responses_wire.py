"""Types of the Responses API: input items, stream events, and stored metadata.

Decoding is lenient: unknown fields are ignored and every field may be absent. An item that is sent
back unchanged stays `Raw`.
"""

from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from chatd.domain.text import Json
from chatd.providers.sse import DECODE_ERRORS

NULL: Final = Raw(b"null")


class Head(Struct, frozen=True):
    type: str = ""


class Delta(Struct, frozen=True):
    """A delta of text, a refusal, reasoning or arguments."""

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
    """An item of a known type."""

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
    """An item of an unknown type."""

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
    """The API documents flat fields and also sends a nested `error` object."""

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


# Metadata of a part


class ResponsesMetadata(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The identity of an item, valid only for the account that made it.

    `after` is the id of the reasoning before the item: the API rejects one without the other.
    `item` is the whole item if it is sent back unchanged.
    """

    origin: str
    id: str | None = None
    after: str | None = None
    phase: str | None = None
    refusal: bool = False
    item: Json = UNSET


class _Envelope(Struct, frozen=True, omit_defaults=True):
    openai_responses: ResponsesMetadata | None = None


_ENVELOPE: Final = msgspec.json.Decoder(_Envelope)


def pack_metadata(metadata: ResponsesMetadata) -> Raw:
    return Raw(msgspec.json.encode(_Envelope(metadata)))


def unpack_metadata(raw: Json, origin: str) -> ResponsesMetadata | None:
    """None unless the same account at the same provider made it."""
    if raw is UNSET:
        return None
    try:
        metadata = _ENVELOPE.decode(raw).openai_responses
    except DECODE_ERRORS:
        return None
    return metadata if metadata is not None and metadata.origin == origin else None


class _Typed(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    pass


class InputText(_Typed, frozen=True, kw_only=True, tag="input_text"):
    text: str


class InputImage(_Typed, frozen=True, kw_only=True, tag="input_image"):
    image_url: Raw
    detail: str


class InputFile(_Typed, frozen=True, kw_only=True, tag="input_file"):
    filename: str
    file_data: Raw


InputContent = InputText | InputImage | InputFile


class OutputText(_Typed, frozen=True, kw_only=True, tag="output_text"):
    text: str
    annotations: list[Raw]


class Refusal(_Typed, frozen=True, kw_only=True, tag="refusal"):
    refusal: str


class Message(_Typed, frozen=True, kw_only=True, tag="message"):
    role: str
    content: str | list[InputContent]
    phase: str | UnsetType = UNSET


class OutputMessage(_Typed, frozen=True, kw_only=True, tag="message"):
    id: str
    role: str
    status: str
    content: list[OutputText | Refusal]
    phase: str | UnsetType = UNSET


class FunctionCall(_Typed, frozen=True, kw_only=True, tag="function_call"):
    call_id: str
    name: str
    arguments: str
    id: str | UnsetType = UNSET


class FunctionCallOutput(_Typed, frozen=True, kw_only=True, tag="function_call_output"):
    call_id: str
    output: str | list[InputContent]


class Screenshot(_Typed, frozen=True, kw_only=True, tag="computer_screenshot"):
    image_url: Raw
    detail: str


class ComputerCallOutput(_Typed, frozen=True, kw_only=True, tag="computer_call_output"):
    call_id: str
    output: Screenshot
    acknowledged_safety_checks: Json = UNSET


InputItem = Message | OutputMessage | FunctionCall | FunctionCallOutput | ComputerCallOutput | Raw
