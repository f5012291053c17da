"""Decode the Messages API's stream into model events. Pure; never raises."""

from typing import Final

import msgspec
from msgspec import Raw

from chatd.domain.chat.parts import validate_json
from chatd.domain.ids import ToolCallId
from chatd.domain.model.protocol import ModelEvent, ToolResultDone, UsageReported
from chatd.providers.anthropic.completion import UsageCounter, anthropic_fault, build_finished
from chatd.providers.anthropic.open_blocks import (
    OpenBlock,
    OpenCall,
    OpenRedacted,
    OpenText,
    OpenThinking,
    OpenToolsetCall,
)
from chatd.providers.anthropic.wire import (
    BLOCK,
    EVENT,
    EVENT_TYPES,
    PIECE_TYPES,
    RESULT,
    SHAPE,
    TYPED,
    AnthropicMetadata,
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
    WireUsage,
    pack_metadata,
)
from chatd.providers.faults import incomplete_fault, unreadable_fault
from chatd.providers.sse import DECODE_ERRORS, FramedDecoder, StreamFraming, decode_event
from chatd.providers.tool_schema import ToolNames

_MAX_UNKNOWN_BLOCKS: Final = 20


class AnthropicDecoder(FramedDecoder):
    """Decodes one answer, complete once the API has sent a stop reason and the final event."""

    def __init__(
        self, names: ToolNames | None = None, framing: StreamFraming | None = None
    ) -> None:
        super().__init__(framing)
        self._names = names or ToolNames(())
        self._open: dict[int, OpenBlock] = {}
        self._sources: set[str] = set()
        self._usage = UsageCounter()
        self._response_id: str | None = None
        self._stop: Stop | None = None
        self._unknown: list[str] = []

    def _decode(self, name: bytes, data: bytes, *, is_last: bool = False) -> None:
        try:
            event = decode_event(EVENT, data)
        except DECODE_ERRORS:
            if not is_last and not _is_newer_event(name, data):
                self._fail(unreadable_fault(data))
            return
        if type(event) is BlockDelta:
            # Nearly all events are deltas, so they are handled first.
            if (block := self._open.get(event.index)) is not None:
                block.feed(event.delta, self._out)
        else:
            self._decode_other(event, data)

    def _decode_other(self, event: StreamEvent, data: bytes) -> None:
        match event:
            case BlockStart():
                self._start_block(event)
            case BlockStop():
                self._stop_block(event.index)
            case MessageStart():
                self._response_id = event.message.id
                self._usage.begin(event.message.usage)
                self._report_usage(event.message.usage)
            case MessageDelta():
                self._usage.update(event.usage)
                self._report_usage(event.usage)
                if event.delta.stop_reason is not None:
                    self._stop = event.delta
            case MessageStop():
                self._finish()
            case ErrorEvent():
                self._fail(anthropic_fault(event, data))
            case Ping() | BlockDelta():
                pass

    def _report_usage(self, told: WireUsage | None) -> None:
        """The API tells the input first, so that a cut answer is charged for what it read."""
        if told is not None:
            self._out.append(UsageReported(usage=self._usage.total()))

    def _start_block(self, event: BlockStart) -> None:
        index, raw = event.index, event.content_block
        self._stop_block(index)
        try:
            kind = decode_event(TYPED, raw).type
            if kind.endswith("_tool_result"):
                self._out.append(_result(raw))
                return
            block = self._open_block(index, raw)
        except (*DECODE_ERRORS, ValueError):
            self._fail(unreadable_fault(bytes(raw)))
            return
        if block is not None:
            self._open[index] = block
            self._out.extend(block.start())
        elif len(self._unknown) < _MAX_UNKNOWN_BLOCKS:
            self._unknown.append(kind)

    def _open_block(self, index: int, raw: Raw) -> OpenBlock | None:
        """None for a block of unknown type."""
        try:
            block = decode_event(BLOCK, raw)
        except msgspec.ValidationError:
            if decode_event(TYPED, raw).type in _BLOCK_TYPES:
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

    def _stop_block(self, index: int) -> None:
        if (block := self._open.pop(index, None)) is not None:
            self._out.extend(block.stop())

    def _finish(self) -> None:
        if self._stop is None or self._stop.stop_reason is None:
            self._fail(incomplete_fault("the stream ended without a stop reason"))
            return
        for index in sorted(self._open):
            self._stop_block(index)
        self.done = True
        usage = self._usage.total()
        self._out.append(build_finished(self._stop, usage, self._response_id, self._unknown))


_BLOCK_TYPES: Final = frozenset(
    {"text", "thinking", "redacted_thinking", "tool_use", "server_tool_use"}
)


def _is_newer_event(name: bytes, data: bytes) -> bool:
    """True for an event or delta of a type that this module does not know, which is skipped. An
    unreadable event of a known type is damage."""
    if not data.startswith(b"{"):
        # Some gateways end the stream with OpenAI's marker.
        return data in (b"[DONE]", b"")
    try:
        shape = decode_event(SHAPE, data)
    except DECODE_ERRORS:
        # Without a type in its data, the event's name decides.
        return bool(name) and name.decode("utf-8", "replace") not in EVENT_TYPES
    if shape.type not in EVENT_TYPES:
        return True
    return (
        shape.type == "content_block_delta"
        and shape.delta is not None
        and shape.delta.type not in PIECE_TYPES
    )


def _result(raw: Raw) -> ModelEvent:
    block = decode_event(RESULT, raw)
    content = validate_json(bytes(block.content).decode())
    return ToolResultDone(
        id=ToolCallId(block.tool_use_id),
        name=block.type.removesuffix("_tool_result"),
        result=content,
        is_error=is_error_content(content),
        provider_metadata=pack_metadata(AnthropicMetadata(block=block.type, caller=block.caller)),
    )


def is_error_content(content: Raw) -> bool:
    """The type of an error ends in `_error`. Other results are lists or objects."""
    try:
        return TYPED.decode(content).type.endswith("_error")
    except DECODE_ERRORS:
        return False
