"""Types of Gemini's stream, and the metadata that is stored with a part and sent back.

Unknown fields are ignored and every field may be absent. Values that are sent back unchanged stay
`Raw`.
"""

from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

OptionalJson = Raw | UnsetType


class _Wire(Struct, frozen=True, kw_only=True, rename="camel"):
    pass


class FunctionCall(_Wire, frozen=True, kw_only=True):
    name: str | None = None
    args: OptionalJson = UNSET
    id: str | None = None


class ServerTool(_Wire, frozen=True, kw_only=True):
    """A provider-executed call, or its result."""

    id: str | None = None
    tool_type: str | None = None
    args: OptionalJson = UNSET
    response: OptionalJson = UNSET


class Part(_Wire, frozen=True, kw_only=True):
    """A signature is opaque base64 text that is sent back unchanged."""

    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    function_call: FunctionCall | None = None
    tool_call: OptionalJson = UNSET
    tool_response: OptionalJson = UNSET


class Content(_Wire, frozen=True, kw_only=True):
    parts: tuple[Part, ...] | None = None


class WebPage(_Wire, frozen=True, kw_only=True):
    uri: str | None = None
    title: str | None = None


class GroundingChunk(_Wire, frozen=True, kw_only=True):
    web: WebPage | None = None
    retrieved_context: WebPage | None = None
    maps: WebPage | None = None


class Grounding(_Wire, frozen=True, kw_only=True):
    grounding_chunks: tuple[GroundingChunk, ...] | None = None


class SafetyRating(_Wire, frozen=True, kw_only=True):
    category: str | None = None
    blocked: bool | None = None


class Candidate(_Wire, frozen=True, kw_only=True):
    index: int | None = None
    content: Content | None = None
    finish_reason: str | None = None
    finish_message: str | None = None
    grounding_metadata: OptionalJson = UNSET
    safety_ratings: tuple[SafetyRating, ...] | None = None


class PromptFeedback(_Wire, frozen=True, kw_only=True):
    block_reason: str | None = None
    block_reason_message: str | None = None
    safety_ratings: tuple[SafetyRating, ...] | None = None


class UsageMetadata(_Wire, frozen=True, kw_only=True):
    prompt_token_count: int | None = None
    cached_content_token_count: int | None = None
    candidates_token_count: int | None = None
    thoughts_token_count: int | None = None
    tool_use_prompt_token_count: int | None = None
    total_token_count: int | None = None


class ErrorDetail(_Wire, frozen=True, kw_only=True):
    reason: str | None = None
    retry_delay: str | None = None


class Error(_Wire, frozen=True, kw_only=True):
    code: int | None = None
    message: str | None = None
    status: str | None = None
    details: tuple[ErrorDetail, ...] | None = None


class ErrorBody(_Wire, frozen=True, kw_only=True):
    error: Error


class Chunk(_Wire, frozen=True, kw_only=True):
    """One event of the stream."""

    candidates: tuple[Candidate, ...] | None = None
    prompt_feedback: PromptFeedback | None = None
    usage_metadata: UsageMetadata | None = None
    response_id: str | None = None
    model_version: str | None = None
    error: Error | None = None


CHUNK: Final = msgspec.json.Decoder(Chunk)
GROUNDING: Final = msgspec.json.Decoder(Grounding)
SERVER_TOOL: Final = msgspec.json.Decoder(ServerTool)
# Without alt=sse, and sometimes with it, errors arrive in an array.
ERROR_BODY: Final = msgspec.json.Decoder(ErrorBody | tuple[ErrorBody, ...])


class SignedSpan(Struct, frozen=True, kw_only=True, array_like=True):
    """Characters `start` to `end` of a text arrived as one part with this signature."""

    start: int
    end: int
    signature: str


class GeminiMetadata(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Stored with a part of an answer, to send the part back unchanged. Signatures are valid only
    for the model that made them."""

    model: str
    signature: str | None = None
    spans: tuple[SignedSpan, ...] = ()
    call_id: str | None = None
    tool_call: OptionalJson = UNSET
    tool_response: OptionalJson = UNSET


class GeminiMetadataEnvelope(Struct, frozen=True, kw_only=True):
    """`provider_metadata` of a part has one field per provider API."""

    google: GeminiMetadata | None = None


_ENVELOPE: Final = msgspec.json.Decoder(GeminiMetadataEnvelope)
_ENCODER: Final = msgspec.json.Encoder()


def unpack_metadata(metadata: OptionalJson) -> GeminiMetadata | None:
    """None if another provider made the part, or if it cannot be read."""
    if metadata is UNSET:
        return None
    try:
        return _ENVELOPE.decode(metadata).google
    except (msgspec.DecodeError, RecursionError):
        return None


def pack_metadata(metadata: GeminiMetadata) -> Raw:
    return Raw(_ENCODER.encode(GeminiMetadataEnvelope(google=metadata)))
