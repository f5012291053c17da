"""Types of the Messages API's stream, and the metadata that is stored with a part and sent back.

Only fields that are read. Unknown fields are ignored.
"""

from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from chatd.domain.text import Json


class OutputDetails(Struct):
    thinking_tokens: int | None = None


class Iteration(Struct):
    """One run of the model within a call; provider-executed tools cause several."""

    type: str = ""
    input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None


class CacheCreation(Struct):
    ephemeral_1h_input_tokens: int | None = None


class ServerToolUse(Struct):
    web_search_requests: int | None = None


class WireUsage(Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation: CacheCreation | None = None
    output_tokens_details: OutputDetails | None = None
    iterations: list[Iteration] | None = None
    server_tool_use: ServerToolUse | None = None


class Message(Struct):
    id: str | None = None
    model: str | None = None
    usage: WireUsage | None = None


class StopDetails(Struct):
    category: str | None = None
    explanation: str | None = None


class Stop(Struct):
    stop_reason: str | None = None
    stop_sequence: str | None = None
    stop_details: StopDetails | None = None


class WireError(Struct):
    type: str = "error"
    message: str = ""


# Blocks at their start


class TextBlock(Struct, tag_field="type", tag="text"):
    text: str = ""
    citations: list[Raw] | None = None


class ThinkingBlock(Struct, tag_field="type", tag="thinking"):
    thinking: str = ""
    signature: str = ""


class RedactedThinkingBlock(Struct, tag_field="type", tag="redacted_thinking"):
    data: str


class ToolUseBlock(Struct, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: Raw | UnsetType = UNSET
    toolset_name: str | None = None


class ServerToolUseBlock(Struct, tag_field="type", tag="server_tool_use"):
    id: str
    name: str
    input: Raw | UnsetType = UNSET
    caller: Raw | UnsetType = UNSET


KnownBlock = TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ServerToolUseBlock


class ResultBlock(Struct):
    """The result of any provider-executed tool."""

    type: str
    tool_use_id: str
    content: Raw
    caller: Raw | UnsetType = UNSET


class Typed(Struct):
    type: str


# Pieces of blocks


class TextPiece(Struct, tag_field="type", tag="text_delta"):
    text: str


class ThinkingPiece(Struct, tag_field="type", tag="thinking_delta"):
    thinking: str


class InputPiece(Struct, tag_field="type", tag="input_json_delta"):
    partial_json: str


class SignaturePiece(Struct, tag_field="type", tag="signature_delta"):
    signature: str


class CitationPiece(Struct, tag_field="type", tag="citations_delta"):
    citation: Raw


Piece = TextPiece | ThinkingPiece | InputPiece | SignaturePiece | CitationPiece


class Citation(Struct):
    url: str | None = None
    title: str | None = None


# Events


class MessageStart(Struct, tag_field="type", tag="message_start"):
    message: Message


class BlockStart(Struct, tag_field="type", tag="content_block_start"):
    index: int
    content_block: Raw


class BlockDelta(Struct, tag_field="type", tag="content_block_delta"):
    index: int
    delta: Piece


class BlockStop(Struct, tag_field="type", tag="content_block_stop"):
    index: int


class MessageDelta(Struct, tag_field="type", tag="message_delta"):
    delta: Stop
    usage: WireUsage | None = None


class MessageStop(Struct, tag_field="type", tag="message_stop"):
    pass


class Ping(Struct, tag_field="type", tag="ping"):
    pass


class ErrorEvent(Struct, tag_field="type", tag="error"):
    error: WireError


StreamEvent = (
    BlockDelta
    | BlockStart
    | BlockStop
    | MessageStart
    | MessageDelta
    | MessageStop
    | Ping
    | ErrorEvent
)


class UnknownPiece(Struct):
    """The fields of an event that show whether its type is unknown."""

    type: str
    delta: Typed | None = None


EVENT: Final[msgspec.json.Decoder[StreamEvent]] = msgspec.json.Decoder(StreamEvent)
BLOCK: Final[msgspec.json.Decoder[KnownBlock]] = msgspec.json.Decoder(KnownBlock)
RESULT: Final = msgspec.json.Decoder(ResultBlock)
TYPED: Final = msgspec.json.Decoder(Typed)
CITATION: Final = msgspec.json.Decoder(Citation)
SHAPE: Final = msgspec.json.Decoder(UnknownPiece)

EVENT_TYPES: Final = frozenset(
    {"message_start", "message_delta", "message_stop", "ping", "error"}
    | {"content_block_start", "content_block_delta", "content_block_stop"}
)
PIECE_TYPES: Final = frozenset(
    {"text_delta", "thinking_delta", "input_json_delta", "signature_delta", "citations_delta"}
)


class AnthropicMetadata(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`block` is the type of a block where the part does not determine it."""

    signature: str | None = None
    redacted_thinking: str | None = None
    citations: list[Raw] | None = None
    block: str | None = None
    caller: Raw | UnsetType = UNSET


class _Envelope(Struct, frozen=True, kw_only=True, omit_defaults=True):
    anthropic: AnthropicMetadata | None = None


_DECODER: Final = msgspec.json.Decoder(_Envelope)
_ENCODER: Final = msgspec.json.Encoder()
EMPTY_METADATA: Final = AnthropicMetadata()


def pack_metadata(metadata: AnthropicMetadata) -> Raw:
    return Raw(_ENCODER.encode(_Envelope(anthropic=metadata)))


def unpack_metadata(metadata: Json) -> AnthropicMetadata:
    """Empty if another provider made the metadata."""
    if metadata is UNSET:
        return EMPTY_METADATA
    try:
        return _DECODER.decode(metadata).anthropic or EMPTY_METADATA
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return EMPTY_METADATA
