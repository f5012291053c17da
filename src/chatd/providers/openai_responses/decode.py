"""The events of a response, as ours.

Owns the framing, which event means what, and that there is one end. What an
event does to the answer is the business of `items`.
"""

from collections.abc import Callable, Mapping
from typing import Final

from chatd.domain.model.protocol import ModelEvent, ProviderFault, StreamFailed
from chatd.providers.faults import garbled, incomplete
from chatd.providers.openai_responses import wire
from chatd.providers.openai_responses.finish import event_fault, failed_fault, finished
from chatd.providers.openai_responses.items import Items
from chatd.providers.reading import UNREADABLE, read
from chatd.providers.schema import ToolNames
from chatd.providers.sse import EventTooLong, SseParser

_HANDLERS: Final[Mapping[bytes, Callable[[Items, bytes], None]]] = {
    b"response.output_text.delta": Items.text_delta,
    b"response.refusal.delta": Items.refusal_delta,
    b"response.content_part.added": Items.part_added,
    b"response.output_text.annotation.added": Items.annotation_added,
    b"response.reasoning_summary_part.added": Items.summary_added,
    b"response.reasoning_summary_text.delta": Items.reasoning_delta,
    b"response.reasoning_text.delta": Items.reasoning_delta,
    b"response.function_call_arguments.delta": Items.arguments_delta,
    b"response.output_item.added": Items.item_added,
    b"response.output_item.done": Items.item_done,
}
_ENDS: Final = frozenset(
    {b"response.completed", b"response.incomplete", b"response.failed", b"error"}
)


class Decoder:
    """One response. `origin` is the provider's name, kept with what only it understands."""

    def __init__(self, origin: str, names: ToolNames) -> None:
        self.done = False
        self._sse = SseParser()
        self._out: list[ModelEvent] = []
        self._items = Items(self._out, origin, names)

    def feed(self, chunk: bytes) -> list[ModelEvent]:
        if self.done:
            return []
        try:
            for name, data in self._sse.feed(chunk):
                self._event(name, data)
        except EventTooLong as error:
            self._fail(incomplete(str(error)))
        return self._taken()

    def close(self) -> list[ModelEvent]:
        if not self.done:
            for name, data in self._sse.end():
                self._event(name, data, last=True)
        if not self.done:
            self._fail(incomplete())
        return self._taken()

    def _taken(self) -> list[ModelEvent]:
        out = self._out.copy()
        self._out.clear()
        return out

    def _event(self, name: bytes, data: bytes, *, last: bool = False) -> None:
        if self.done:
            return
        try:
            if (handler := _HANDLERS.get(name)) is not None:
                handler(self._items, data)
            else:
                self._seldom(name, data)
        except UNREADABLE:
            # An event whose name we do not know may hold what it likes.
            ours = name in _HANDLERS or name in _ENDS or (not name and data.strip() != b"[DONE]")
            if ours and not last:
                self._fail(garbled(data))

    def _seldom(self, name: bytes, data: bytes) -> None:
        if name not in _ENDS:
            # Some servers do not name their events; the type stands in the data as well.
            name = read(wire.HEAD, data).type.encode("utf-8", "replace")
            if (handler := _HANDLERS.get(name)) is not None:
                handler(self._items, data)
        match name:
            case b"response.completed" | b"response.incomplete":
                response = read(wire.RESPONSE_EVENT, data).response
                self._items.close_open()
                self._out.append(finished(response, self._items))
                self.done = True
            case b"response.failed":
                self._fail(failed_fault(read(wire.RESPONSE_EVENT, data).response))
            case b"error":
                self._fail(event_fault(read(wire.ERROR_EVENT, data), data))
            case _:
                pass

    def _fail(self, fault: ProviderFault) -> None:
        if not self.done:
            self.done = True
            self._out.append(StreamFailed(fault=fault))
