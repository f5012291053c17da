"""Decode the events of a response into model events; finish reasons, usage and errors."""

from collections.abc import Callable, Mapping
from typing import Final

from chatd.domain.chat.messages import TokenUsage
from chatd.domain.model.protocol import Finished, FinishReason, ProviderFault, UsageReported
from chatd.providers.faults import (
    OpenAIError,
    openai_fault,
    read_error,
    unreadable_fault,
)
from chatd.providers.openai.responses import wire
from chatd.providers.openai.responses.items import ResponseItemBuilder
from chatd.providers.sse import DECODE_ERRORS, FramedDecoder, decode_event
from chatd.providers.tool_schema import ToolNames

_FAILED: Final = "the response failed"


def build_finished(response: wire.Response, items: ResponseItemBuilder) -> Finished:
    refusal = items.refusal
    reason = _reason(response, called=items.has_calls, refused=refusal is not None)
    return Finished(
        reason=reason,
        usage=convert_usage(response.usage or wire.Usage()),
        response_id=response.id,
        explanation=refusal if reason == "refusal" else None,
    )


def _reason(response: wire.Response, *, called: bool, refused: bool) -> FinishReason:
    why = response.incomplete_details.reason if response.incomplete_details else None
    if why is None:
        # A response without a reason is incomplete too.
        if response.status == "incomplete":
            return "length"
        return "tool-calls" if called else "refusal" if refused else "stop"
    if why == "content_filter":
        return "content-filter"
    # The calls of an incomplete response may be incomplete too.
    return "length" if called or why in ("max_output_tokens", "max_messages") else "other"


def convert_usage(usage: wire.Usage) -> TokenUsage:
    """The input count includes tokens read from and written to the cache."""
    details = usage.input_tokens_details or wire.InputDetails()
    cached = _count(details.cached_tokens)
    written = _count(details.cache_write_tokens)
    output = _count(usage.output_tokens)
    details_out = usage.output_tokens_details or wire.OutputDetails()
    return TokenUsage(
        input_tokens=max(0, _count(usage.input_tokens) - cached - written),
        output_tokens=output,
        total_tokens=_count(usage.total_tokens) or _count(usage.input_tokens) + output,
        reasoning_tokens=_count(details_out.reasoning_tokens),
        cache_creation_tokens=written,
        cache_read_tokens=cached,
    )


def _count(value: int | None) -> int:
    return max(0, value or 0)


def response_fault(response: wire.Response) -> ProviderFault:
    """A failure without an error is the server's."""
    error = read_error(response.error) if response.error else OpenAIError(type="server_error")
    return openai_fault(error, default_message=_FAILED)


def event_fault(event: wire.ErrorEvent, data: bytes) -> ProviderFault:
    error = (
        read_error(event.error)
        if event.error
        else OpenAIError(message=event.message, code=event.code)
    )
    return openai_fault(error, data, default_message=_FAILED)


_HANDLERS: Final[Mapping[bytes, Callable[[ResponseItemBuilder, bytes], None]]] = {
    b"response.output_text.delta": ResponseItemBuilder.text_delta,
    b"response.refusal.delta": ResponseItemBuilder.refusal_delta,
    b"response.content_part.added": ResponseItemBuilder.part_added,
    b"response.output_text.annotation.added": ResponseItemBuilder.annotation_added,
    b"response.reasoning_summary_part.added": ResponseItemBuilder.summary_added,
    b"response.reasoning_summary_text.delta": ResponseItemBuilder.reasoning_delta,
    b"response.reasoning_text.delta": ResponseItemBuilder.reasoning_delta,
    b"response.function_call_arguments.delta": ResponseItemBuilder.arguments_delta,
    b"response.output_item.added": ResponseItemBuilder.item_added,
    b"response.output_item.done": ResponseItemBuilder.item_done,
}
_ENDS: Final = frozenset(
    {b"response.completed", b"response.incomplete", b"response.failed", b"error"}
)


class ResponsesDecoder(FramedDecoder):
    """Decodes one response. `origin` identifies the account, for metadata."""

    def __init__(self, origin: str, names: ToolNames) -> None:
        super().__init__()
        self._items = ResponseItemBuilder(self._out, origin, names)

    def _decode(self, name: bytes, data: bytes, *, is_last: bool = False) -> None:
        try:
            if (handler := _HANDLERS.get(name)) is not None:
                handler(self._items, data)
            else:
                self._decode_other(name, data)
        except DECODE_ERRORS:
            # The data of an event with an unknown name may have any form.
            known = name in _HANDLERS or name in _ENDS or (not name and data.strip() != b"[DONE]")
            if known and not is_last:
                self._fail(unreadable_fault(data))

    def _decode_other(self, name: bytes, data: bytes) -> None:
        if name not in _ENDS:
            # Some servers do not name their events; the data contains the type too.
            name = decode_event(wire.HEAD, data).type.encode("utf-8", "replace")
            if (handler := _HANDLERS.get(name)) is not None:
                handler(self._items, data)
        match name:
            case b"response.completed" | b"response.incomplete":
                response = decode_event(wire.RESPONSE_EVENT, data).response
                self._items.close()
                self._out.append(build_finished(response, self._items))
                self.done = True
            case b"response.failed":
                response = decode_event(wire.RESPONSE_EVENT, data).response
                if response.usage is not None:
                    self._out.append(UsageReported(usage=convert_usage(response.usage)))
                self._fail(response_fault(response))
            case b"error":
                self._fail(event_fault(decode_event(wire.ERROR_EVENT, data), data))
            case _:
                pass
