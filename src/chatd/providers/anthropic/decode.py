"""From the Messages API's stream of bytes to events.

Pure, and never raises: what cannot be read is a `StreamFailed`. An answer counts as
finished only if the API has said both why it stopped and that it has stopped.
"""

from typing import Final, Protocol

import msgspec
from msgspec import Raw

from chatd.domain.chat.parts import validate_json
from chatd.domain.ids import ToolCallId
from chatd.domain.model.protocol import ModelEvent, ProviderFault, StreamFailed, ToolResultDone
from chatd.providers.anthropic.finish import error_fault, finished
from chatd.providers.anthropic.metadata import Kept, keep
from chatd.providers.anthropic.open_blocks import (
    OpenBlock,
    OpenCall,
    OpenRedacted,
    OpenText,
    OpenThinking,
    OpenToolsetCall,
)
from chatd.providers.anthropic.usage import UsageCount
from chatd.providers.anthropic.wire import (
    BLOCK,
    EVENT,
    EVENT_TYPES,
    PIECE_TYPES,
    RESULT,
    SHAPE,
    TYPED,
    BlockDelta,
    BlockStart,
    BlockStop,
    ErrorEvent,
    MessageDelta,
    MessageStart,
    MessageStop,
    Ping,
    RedactedThinkingBlock,
    ServerToolUseBlock,
    Stop,
    StreamEvent,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from chatd.providers.faults import garbled, incomplete
from chatd.providers.reading import UNREADABLE, read
from chatd.providers.schema import ToolNames
from chatd.providers.sse import BrokenFraming, Event, SseParser

_MAX_UNKNOWN: Final = 20


class Framing(Protocol):
    """What the events come in: server-sent events, or those of AWS. Raises BrokenFraming."""

    def feed(self, chunk: bytes) -> list[Event]: ...

    def end(self) -> list[Event]:
        """What the end of the stream completes. It may be cut off."""
        ...


class Decoder:
    """One answer."""

    def __init__(self, names: ToolNames | None = None, framing: Framing | None = None) -> None:
        self._names = names or ToolNames(())
        self._framing = framing or SseParser()
        self._open: dict[int, OpenBlock] = {}
        self._sources: set[str] = set()
        self._usage = UsageCount()
        self._response_id: str | None = None
        self._stop: Stop | None = None
        self._unknown: list[str] = []
        self._done = False

    @property
    def done(self) -> bool:
        return self._done

    def feed(self, chunk: bytes) -> list[ModelEvent]:
        out: list[ModelEvent] = []
        if self._done:
            return out
        try:
            events = self._framing.feed(chunk)
        except BrokenFraming as error:
            return self._failed(incomplete(str(error)))
        for name, data in events:
            self._event(name, data, out)
            if self._done:
                break
        return out

    def close(self) -> list[ModelEvent]:
        out: list[ModelEvent] = []
        if not self._done:
            for name, data in self._framing.end():
                if _is_readable(data):
                    self._event(name, data, out)
        return out if self._done else [*out, *self._failed(incomplete())]

    def _failed(self, fault: ProviderFault) -> list[ModelEvent]:
        self._done = True
        return [StreamFailed(fault=fault)]

    def _event(self, name: bytes, data: bytes, out: list[ModelEvent]) -> None:
        try:
            event = read(EVENT, data)
        except UNREADABLE:
            out.extend(self._unreadable(name, data))
            return
        if type(event) is BlockDelta:
            # Nearly all that ever comes is this.
            if (block := self._open.get(event.index)) is not None:
                block.feed(event.delta, out)
        else:
            out.extend(self._rare(event, data))

    def _rare(self, event: StreamEvent, data: bytes) -> list[ModelEvent]:
        match event:
            case BlockStart():
                return self._begin(event)
            case BlockStop():
                return self._end(event.index)
            case MessageStart():
                self._response_id = event.message.id
                self._usage.begin(event.message.usage)
            case MessageDelta():
                self._usage.update(event.usage)
                if event.delta.stop_reason is not None:
                    self._stop = event.delta
            case MessageStop():
                return self._finish()
            case ErrorEvent():
                return self._failed(error_fault(event, data))
            case Ping() | BlockDelta():
                pass
        return []

    def _unreadable(self, name: bytes, data: bytes) -> list[ModelEvent]:
        """What did not exist when this was written is passed over. Anything else is damage."""
        if not data.startswith(b"{"):
            # The goodbye of some gateways.
            return [] if data in (b"[DONE]", b"") else self._failed(garbled(data))
        try:
            shape = read(SHAPE, data)
        except UNREADABLE:
            # An event without a type of its own may still have a name.
            known = name.decode("utf-8", "replace") in EVENT_TYPES or not name
            return self._failed(garbled(data)) if known else []
        if shape.type not in EVENT_TYPES:
            return []
        is_new_piece = (
            shape.type == "content_block_delta"
            and shape.delta is not None
            and shape.delta.type not in PIECE_TYPES
        )
        return [] if is_new_piece else self._failed(garbled(data))

    def _begin(self, event: BlockStart) -> list[ModelEvent]:
        index, raw = event.index, event.content_block
        events = self._end(index)
        try:
            kind = read(TYPED, raw).type
            if kind.endswith("_tool_result"):
                return [*events, _result(raw)]
            block = self._opened(index, raw)
        except (*UNREADABLE, ValueError):
            return [*events, *self._failed(garbled(bytes(raw)))]
        if block is None:
            if len(self._unknown) < _MAX_UNKNOWN:
                self._unknown.append(kind)
            return events
        self._open[index] = block
        return [*events, *block.start()]

    def _opened(self, index: int, raw: Raw) -> OpenBlock | None:
        try:
            block = read(BLOCK, raw)
        except msgspec.ValidationError:
            if read(TYPED, raw).type in _BLOCK_TYPES:
                raise
            return None
        match block:
            case TextBlock():
                return OpenText(str(index), block, self._sources)
            case ThinkingBlock():
                return OpenThinking(str(index), block)
            case RedactedThinkingBlock():
                return OpenRedacted(str(index), block)
            case ToolUseBlock(toolset_name=str(toolset)):
                return OpenToolsetCall(block, toolset)
            case ToolUseBlock() | ServerToolUseBlock():
                return OpenCall(block, self._names)

    def _end(self, index: int) -> list[ModelEvent]:
        block = self._open.pop(index, None)
        return [] if block is None else block.stop()

    def _finish(self) -> list[ModelEvent]:
        if self._stop is None or self._stop.stop_reason is None:
            return self._failed(incomplete("the stream ended without saying why"))
        events = [event for index in sorted(self._open) for event in self._end(index)]
        self._done = True
        usage = self._usage.total()
        return [*events, finished(self._stop, usage, self._response_id, self._unknown)]


_BLOCK_TYPES: Final = frozenset(
    {"text", "thinking", "redacted_thinking", "tool_use", "server_tool_use"}
)


def _is_readable(data: bytes) -> bool:
    try:
        read(EVENT, data)
    except UNREADABLE:
        return False
    return True


def _result(raw: Raw) -> ModelEvent:
    block = read(RESULT, raw)
    content = validate_json(bytes(block.content).decode())
    return ToolResultDone(
        id=ToolCallId(block.tool_use_id),
        name=block.type.removesuffix("_tool_result"),
        result=content,
        is_error=content_is_error(content),
        provider_metadata=keep(Kept(block=block.type, caller=block.caller)),
    )


def content_is_error(content: Raw) -> bool:
    """Results are a list or an object of their own; an error is an object that says so."""
    try:
        return TYPED.decode(content).type.endswith("_error")
    except UNREADABLE:
        return False
