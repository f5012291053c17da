"""How an answer of the Messages API ends, and how it fails: the vendor's words into ours."""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Raw

from chatd.domain.chat.messages import TokenUsage
from chatd.domain.model.protocol import Finished, FinishReason, ProviderFault
from chatd.providers.anthropic.wire import ErrorEvent, Stop

_MAX_BODY: Final = 4096

_REASONS: Final[dict[str, FinishReason]] = {
    "end_turn": "stop",
    "pause_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool-calls",
    "refusal": "content-filter",
    "content_filtered": "content-filter",
    "guardrail_intervened": "content-filter",
}


def finished(
    stop: Stop, usage: TokenUsage, response_id: str | None, unknown: Sequence[str]
) -> Finished:
    """`unknown` are the kinds of blocks that were passed over."""
    details = stop.stop_details
    return Finished(
        reason=_REASONS.get(stop.stop_reason or "", "other"),
        usage=usage,
        response_id=response_id,
        explanation=details and (details.explanation or details.category),
        provider_metadata=_metadata(stop, unknown),
    )


def _metadata(stop: Stop, unknown: Sequence[str]) -> Raw:
    said: dict[str, object] = {"stop_reason": stop.stop_reason}
    if stop.stop_sequence is not None:
        said["stop_sequence"] = stop.stop_sequence
    if stop.stop_details is not None and stop.stop_details.category is not None:
        said["category"] = stop.stop_details.category
    if unknown:
        said["unknown_blocks"] = unknown
    return Raw(msgspec.json.encode({"anthropic": said}))


def error_fault(event: ErrorEvent, data: bytes) -> ProviderFault:
    return ProviderFault(
        message=event.error.message or event.error.type,
        type=event.error.type,
        body=data[:_MAX_BODY].decode("utf-8", "replace"),
    )
