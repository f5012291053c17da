"""Decodes the events of a response into model events.

An item (a message, reasoning, a call) is identified by its index in the output, because its id may
change between events. Its closing event is authoritative; the deltas are only shown while it runs.
"""

from collections.abc import Callable, Mapping
from typing import Final

from msgspec import UNSET, Raw

from chatd.domain.chat.messages import TokenUsage
from chatd.domain.ids import ToolCallId
from chatd.domain.model.protocol import (
    Finished,
    FinishReason,
    ModelEvent,
    ProviderFault,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    SourceFound,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCallDelta,
    ToolCallDone,
    ToolCallStart,
    UsageReported,
)
from chatd.domain.text import storable_json
from chatd.providers.faults import OpenAIError, openai_fault, read_error, unreadable_fault
from chatd.providers.openai import responses_wire
from chatd.providers.openai.openai_tools import (
    COMPUTER,
    WEB_SEARCH,
    computer_input,
    search_call,
    search_result,
)
from chatd.providers.openai.responses_wire import Item, ResponsesMetadata, pack_metadata
from chatd.providers.sse import DECODE_ERRORS, FramedDecoder, decode_event
from chatd.providers.tool_schema import ToolNames

# Items. The methods take the data of an event and raise the errors of `decode_event`.

_CALLS: Final = frozenset({"function_call", "computer_call", "web_search_call"})
_NO_TEXT: Final = (-1, -1, "")


class _Call:
    __slots__ = ("id", "name", "pieces", "provider_executed")

    def __init__(self, call_id: ToolCallId, name: str, *, provider_executed: bool) -> None:
        self.id = call_id
        self.name = name
        self.provider_executed = provider_executed
        self.pieces: list[str] = []


class ResponseItemBuilder:
    """Writes events to `out`. `has_calls`: chatd must answer a call."""

    def __init__(self, out: list[ModelEvent], origin: str, names: ToolNames) -> None:
        self.has_calls = False
        self._out = out
        self._origin = origin
        self._names = names
        self._texts: dict[tuple[int, int], str] = {}
        self._last_text: tuple[int, int, str] = _NO_TEXT
        self._reasoning: dict[int, str] = {}
        self._with_text: set[int] = set()
        self._calls: dict[int, _Call] = {}
        self._closed: set[int] = set()
        self._sources: set[str] = set()
        self._refusal: list[str] = []
        self._after: str | None = None
        self._follows_reasoning = False

    @property
    def refusal(self) -> str | None:
        return "".join(self._refusal) or None

    # Text

    def text_delta(self, data: bytes) -> None:
        event = decode_event(responses_wire.DELTA, data)
        output, content, text = self._last_text
        if event.output_index != output or event.content_index != content:
            text = self._open_text(event.output_index, event.content_index)
        self._out.append(TextDelta(id=text, delta=event.delta))

    def refusal_delta(self, data: bytes) -> None:
        event = decode_event(responses_wire.DELTA, data)
        self._refusal.append(event.delta)
        text = self._open_text(event.output_index, event.content_index)
        self._out.append(TextDelta(id=text, delta=event.delta))

    def part_added(self, data: bytes) -> None:
        event = decode_event(responses_wire.PART_ADDED, data)
        if event.part.type in ("output_text", "refusal"):
            self._open_text(event.output_index, event.content_index)

    def annotation_added(self, data: bytes) -> None:
        if (found := decode_event(responses_wire.ANNOTATION_ADDED, data).annotation) is not None:
            self._source(found)

    def _open_text(self, output: int, content: int) -> str:
        text = self._texts.get((output, content))
        if text is None:
            text = self._texts[output, content] = f"{output}.{content}"
            self._out.append(TextStart(id=text))
        self._last_text = (output, content, text)
        return text

    def _source(self, found: responses_wire.Annotation) -> None:
        if found.type == "url_citation" and found.url and found.url not in self._sources:
            self._sources.add(found.url)
            self._out.append(SourceFound(url=found.url, title=found.title or None))

    # Reasoning

    def reasoning_delta(self, data: bytes) -> None:
        event = decode_event(responses_wire.DELTA, data)
        self._with_text.add(event.output_index)
        block = self._open_reasoning(event.output_index)
        self._out.append(ReasoningDelta(id=block, delta=event.delta))

    def summary_added(self, data: bytes) -> None:
        event = decode_event(responses_wire.PART_ADDED, data)
        if event.output_index in self._with_text:
            block = self._open_reasoning(event.output_index)
            self._out.append(ReasoningDelta(id=block, delta="\n\n"))

    def _open_reasoning(self, output: int) -> str:
        block = self._reasoning.get(output)
        if block is None:
            block = self._reasoning[output] = f"{output}"
            self._out.append(ReasoningStart(id=block))
        return block

    # Calls

    def arguments_delta(self, data: bytes) -> None:
        event = decode_event(responses_wire.DELTA, data)
        call = self._calls.get(event.output_index)
        if call is not None:
            call.pieces.append(event.delta)
            self._out.append(ToolCallDelta(id=call.id, delta=event.delta))

    def _open_call(self, item: Item, output: int) -> None:
        if output in self._calls:
            return
        if item.type == "web_search_call":
            own = ToolCallId(item.id or f"web-search-{output}")
            call = _Call(own, WEB_SEARCH, provider_executed=True)
        else:
            own = ToolCallId(item.call_id or item.id or f"tool-call-{output}")
            name = (
                COMPUTER if item.type == "computer_call" else self._names.from_wire(item.name or "")
            )
            call = _Call(own, name, provider_executed=False)
        self._calls[output] = call
        self._out.append(
            ToolCallStart(id=call.id, name=call.name, provider_executed=call.provider_executed)
        )

    # Items

    def item_added(self, data: bytes) -> None:
        event = decode_event(responses_wire.ITEM_EVENT, data)
        if event.output_index in self._closed:
            return
        kind = decode_event(responses_wire.HEAD, event.item).type
        if kind == "reasoning":
            self._open_reasoning(event.output_index)
        elif kind in _CALLS:
            self._open_call(decode_event(responses_wire.ITEM, event.item), event.output_index)

    def item_done(self, data: bytes) -> None:
        event = decode_event(responses_wire.ITEM_EVENT, data)
        output, raw = event.output_index, event.item
        if output in self._closed:
            return
        self._closed.add(output)
        kind = decode_event(responses_wire.HEAD, raw).type
        if kind == "message":
            self._message_done(decode_event(responses_wire.ITEM, raw), output)
        elif kind == "reasoning":
            self._reasoning_done(decode_event(responses_wire.ITEM, raw), output, raw)
        elif kind in _CALLS:
            self._call_done(decode_event(responses_wire.ITEM, raw), output, raw)
        elif kind:
            self._other_done(output, raw)
        self._follows_reasoning = kind == "reasoning"

    def _metadata(self, item: Item, raw: Raw | None = None, *, refusal: bool = False) -> Raw:
        return pack_metadata(
            ResponsesMetadata(
                origin=self._origin,
                id=item.id,
                after=self._after,
                phase=item.phase,
                refusal=refusal,
                item=UNSET if raw is None else storable_json(raw),
            )
        )

    def _message_done(self, item: Item, output: int) -> None:
        parts = item.content or ()
        for index, part in enumerate(parts):
            text = part.refusal if part.type == "refusal" else part.text
            if (output, index) not in self._texts and text:
                block = self._open_text(output, index)
                self._out.append(TextDelta(id=block, delta=text))
                if part.type == "refusal":
                    self._refusal.append(text)
            for found in part.annotations or ():
                self._source(found)
        for place in sorted(key for key in self._texts if key[0] == output):
            refused = place[1] < len(parts) and parts[place[1]].type == "refusal"
            metadata = self._metadata(item, refusal=refused)
            self._out.append(TextEnd(id=self._texts.pop(place), provider_metadata=metadata))
        self._last_text = _NO_TEXT

    def _reasoning_done(self, item: Item, output: int, raw: Raw) -> None:
        block = self._open_reasoning(output)
        if output not in self._with_text:
            texts = [part.text for part in (*(item.summary or ()), *(item.content or ()))]
            if whole := "\n\n".join(text for text in texts if text):
                self._out.append(ReasoningDelta(id=block, delta=whole))
        if not self._follows_reasoning:
            # Other items belong to the reasoning before.
            self._after = None
        self._close_reasoning(output, self._metadata(item, raw))
        self._after = item.id

    def _close_reasoning(self, output: int, metadata: Raw) -> None:
        block = self._open_reasoning(output)
        self._out.append(ReasoningEnd(id=block, provider_metadata=metadata))
        del self._reasoning[output]

    def _call_done(self, item: Item, output: int, raw: Raw) -> None:
        self._open_call(item, output)
        call = self._calls.pop(output)
        if item.type == "web_search_call":
            self._out.append(search_call(call.id, item, self._metadata(item, raw)))
            self._out.append(search_result(call.id, item))
            return
        self.has_calls = True
        if item.type == "computer_call":
            metadata, text = self._metadata(item, raw), computer_input(item)
        else:
            metadata, text = self._metadata(item), item.arguments or "".join(call.pieces) or "{}"
        self._out.append(
            ToolCallDone(id=call.id, name=call.name, input=text, provider_metadata=metadata)
        )

    def _other_done(self, output: int, raw: Raw) -> None:
        """Stored for the next request, unless it is a call, which chatd cannot answer."""
        other = decode_event(responses_wire.OTHER_ITEM, raw)
        if other.call_id is None:
            own = other.id if isinstance(other.id, str) else None
            self._close_reasoning(output, self._metadata(Item(id=own), raw))

    # The end

    def close(self) -> None:
        """Close what the API has left open. A call that was cut off is reported incomplete."""
        self._out.extend(TextEnd(id=text) for text in self._texts.values())
        self._out.extend(ReasoningEnd(id=block) for block in self._reasoning.values())
        for call in self._calls.values():
            if not call.provider_executed:
                self.has_calls = True
                text = "".join(call.pieces) or "{}"
                self._out.append(ToolCallDone(id=call.id, name=call.name, input=text))


# The decoder: finish reasons, usage and errors

_FAILED: Final = "the response failed"


def build_finished(response: responses_wire.Response, items: ResponseItemBuilder) -> Finished:
    refusal = items.refusal
    reason = _reason(response, called=items.has_calls, refused=refusal is not None)
    return Finished(
        reason=reason,
        usage=convert_usage(response.usage or responses_wire.Usage()),
        response_id=response.id,
        explanation=refusal if reason == "refusal" else None,
    )


def _reason(response: responses_wire.Response, *, called: bool, refused: bool) -> FinishReason:
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


def convert_usage(usage: responses_wire.Usage) -> TokenUsage:
    """The input count includes tokens read from and written to the cache."""
    details = usage.input_tokens_details or responses_wire.InputDetails()
    cached = _count(details.cached_tokens)
    written = _count(details.cache_write_tokens)
    output = _count(usage.output_tokens)
    details_out = usage.output_tokens_details or responses_wire.OutputDetails()
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


def response_fault(response: responses_wire.Response) -> ProviderFault:
    """A failure without an error is the server's."""
    error = read_error(response.error) if response.error else OpenAIError(type="server_error")
    return openai_fault(error, default_message=_FAILED)


def event_fault(event: responses_wire.ErrorEvent, data: bytes) -> ProviderFault:
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
            name = decode_event(responses_wire.HEAD, data).type.encode("utf-8", "replace")
            if (handler := _HANDLERS.get(name)) is not None:
                handler(self._items, data)
        match name:
            case b"response.completed" | b"response.incomplete":
                response = decode_event(responses_wire.RESPONSE_EVENT, data).response
                self._items.close()
                self._out.append(build_finished(response, self._items))
                self.done = True
            case b"response.failed":
                response = decode_event(responses_wire.RESPONSE_EVENT, data).response
                if response.usage is not None:
                    self._out.append(UsageReported(usage=convert_usage(response.usage)))
                self._fail(response_fault(response))
            case b"error":
                self._fail(event_fault(decode_event(responses_wire.ERROR_EVENT, data), data))
            case _:
                pass
