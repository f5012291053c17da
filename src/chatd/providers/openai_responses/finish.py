"""How a response ends, and how it fails: the vendor's words into ours."""

from typing import Final

from chatd.domain.chat.messages import TokenUsage
from chatd.domain.model.protocol import Finished, FinishReason, ProviderFault
from chatd.providers.openai_errors import Error, error_fault, error_of
from chatd.providers.openai_responses import wire
from chatd.providers.openai_responses.items import Items

_FAILED: Final = "the response failed"


def finished(response: wire.Response, items: Items) -> Finished:
    refusal = items.refusal
    reason = _reason(response, called=items.called, refused=refusal is not None)
    return Finished(
        reason=reason,
        usage=usage_of(response.usage or wire.Usage()),
        response_id=response.id,
        explanation=refusal if reason == "content-filter" else None,
    )


def _reason(response: wire.Response, *, called: bool, refused: bool) -> FinishReason:
    if called:
        return "tool-calls"
    why = response.incomplete_details.reason if response.incomplete_details else None
    if why is None:
        return "content-filter" if refused else "stop"
    if why == "content_filter":
        return "content-filter"
    return "length" if why in ("max_output_tokens", "max_messages") else "other"


def usage_of(usage: wire.Usage) -> TokenUsage:
    """The input's count includes what came from the cache and what was written to it."""
    details = usage.input_tokens_details or wire.InputDetails()
    cached = _count(details.cached_tokens)
    written = _count(details.cache_write_tokens)
    output = _count(usage.output_tokens)
    thought = usage.output_tokens_details or wire.OutputDetails()
    return TokenUsage(
        input_tokens=max(0, _count(usage.input_tokens) - cached - written),
        output_tokens=output,
        total_tokens=_count(usage.total_tokens) or _count(usage.input_tokens) + output,
        reasoning_tokens=_count(thought.reasoning_tokens),
        cache_creation_tokens=written,
        cache_read_tokens=cached,
    )


def _count(value: int | None) -> int:
    return max(0, value or 0)


def failed_fault(response: wire.Response) -> ProviderFault:
    """A failure without a word about it was nothing that we did."""
    error = error_of(response.error) if response.error else Error(type="server_error")
    return error_fault(error, otherwise=_FAILED)


def event_fault(event: wire.ErrorEvent, data: bytes) -> ProviderFault:
    error = error_of(event.error) if event.error else Error(message=event.message, code=event.code)
    return error_fault(error, data, otherwise=_FAILED)
