"""Finish reasons, usage and errors of the Messages API.

The API reports token counts several times: first those of the input, later totals, which omit
unchanged numbers. Each count is therefore the maximum of the reported values, never a sum.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Raw

from chatd.domain.chat.messages import TokenUsage
from chatd.domain.model.protocol import Finished, FinishReason, ProviderFault
from chatd.providers.anthropic.wire import ErrorEvent, Stop, WireUsage

_MAX_BODY_BYTES: Final = 4096

_REASONS: Final[dict[str, FinishReason]] = {
    "end_turn": "stop",
    "pause_turn": "pause",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool-calls",
    "refusal": "refusal",
    "content_filtered": "content-filter",
    "guardrail_intervened": "content-filter",
}


def build_finished(
    stop: Stop, usage: TokenUsage, response_id: str | None, unknown: Sequence[str]
) -> Finished:
    """`unknown`: types of skipped blocks."""
    details = stop.stop_details
    return Finished(
        reason=_REASONS.get(stop.stop_reason or "", "other"),
        usage=usage,
        response_id=response_id,
        explanation=details and (details.explanation or details.category),
        provider_metadata=_metadata(stop, unknown),
    )


def _metadata(stop: Stop, unknown: Sequence[str]) -> Raw:
    fields: dict[str, object] = {"stop_reason": stop.stop_reason}
    if stop.stop_sequence is not None:
        fields["stop_sequence"] = stop.stop_sequence
    if stop.stop_details is not None and stop.stop_details.category is not None:
        fields["category"] = stop.stop_details.category
    if unknown:
        fields["unknown_blocks"] = unknown
    return Raw(msgspec.json.encode({"anthropic": fields}))


def anthropic_fault(event: ErrorEvent, data: bytes) -> ProviderFault:
    return ProviderFault(
        message=event.error.message or event.error.type,
        type=event.error.type,
        body=data[:_MAX_BODY_BYTES].decode("utf-8", "replace"),
    )


class UsageCounter:
    def __init__(self) -> None:
        self._input = 0
        self._output = 0
        self._reasoning = 0
        self._written = 0
        self._written_1h = 0
        self._read = 0
        self._searches = 0
        self._context_at_start = 0
        self._last_context = 0

    def begin(self, usage: WireUsage | None) -> None:
        self.update(usage)
        self._context_at_start = self._input + self._written + self._read

    def update(self, usage: WireUsage | None) -> None:
        if usage is None:
            return
        self._input = max(self._input, usage.input_tokens or 0)
        self._output = max(self._output, usage.output_tokens or 0)
        self._written = max(self._written, usage.cache_creation_input_tokens or 0)
        self._read = max(self._read, usage.cache_read_input_tokens or 0)
        if usage.cache_creation is not None:
            kept = usage.cache_creation.ephemeral_1h_input_tokens or 0
            self._written_1h = max(self._written_1h, kept)
        if usage.output_tokens_details is not None:
            thinking = usage.output_tokens_details.thinking_tokens
            self._reasoning = max(self._reasoning, thinking or 0)
        if usage.server_tool_use is not None:
            self._searches = max(self._searches, usage.server_tool_use.web_search_requests or 0)
        for run in usage.iterations or ():
            if run.type == "message":
                self._last_context = (
                    (run.input_tokens or 0)
                    + (run.cache_creation_input_tokens or 0)
                    + (run.cache_read_input_tokens or 0)
                )

    def total(self) -> TokenUsage:
        return TokenUsage(
            input_tokens=self._input,
            output_tokens=self._output,
            total_tokens=self._input + self._output + self._written + self._read,
            reasoning_tokens=self._reasoning,
            cache_creation_tokens=self._written,
            cache_creation_1h_tokens=min(self._written_1h, self._written),
            cache_read_tokens=self._read,
            context_tokens=self._context(),
            web_searches=self._searches,
        )

    def _context(self) -> int | None:
        """The context of the last run of the model. None if it equals the input tokens:
        provider-executed tools run the model several times and each run reads all of the input."""
        paid = self._input + self._written + self._read
        if self._last_context:
            return self._last_context if self._last_context != paid else None
        return self._context_at_start if 0 < self._context_at_start < paid else None
