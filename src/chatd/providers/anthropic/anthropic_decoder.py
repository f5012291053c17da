"""Decodes the Messages API's stream into model events. Pure; never raises.

`AnthropicDecoder` keeps one open block per index of the answer. The API reports token counts
several times: first those of the input, later totals, which omit unchanged numbers. So each count
is the maximum of the reported values, never a sum.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import UNSET, Raw

from chatd.domain.chat.messages import TokenUsage
from chatd.domain.chat.parts import validate_json
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
    ToolResultDone,
    UsageReported,
)
from chatd.domain.text import Json
from chatd.providers.anthropic.anthropic_wire import (
    BLOCK,
    CITATION,
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
    CitationPiece,
    ErrorEvent,
    InputPiece,
    MessageDelta,
    MessageStart,
    MessageStop,
    Piece,
    Ping,
    RedactedThinkingBlock,
    ServerToolUseBlock,
    SignaturePiece,
    Stop,
    StreamEvent,
    TextBlock,
    TextPiece,
    ThinkingBlock,
    ThinkingPiece,
    ToolUseBlock,
    WireUsage,
    pack_metadata,
)
from chatd.providers.faults import incomplete_fault, unreadable_fault
from chatd.providers.sse import DECODE_ERRORS, FramedDecoder, StreamFraming, decode_event
from chatd.providers.tool_schema import ToolNames

# Open blocks, one class per type. `start`, `feed` and `stop` convert the start, a delta and the end
# of a block into model events.

MAX_CITATIONS_PER_TEXT: Final = 1_000


class OpenText:
    def __init__(self, block_id: str, block: TextBlock, reported: set[str]) -> None:
        self._id = block_id
        self._initial_text = block.text
        self._citations: list[Raw] = []
        self._sources: list[SourceFound] = []
        self._reported = reported
        for citation in block.citations or ():
            self._cite(citation)

    def start(self) -> list[ModelEvent]:
        start = TextStart(id=self._id)
        if not self._initial_text:
            return [start]
        return [start, TextDelta(id=self._id, delta=self._initial_text)]

    def feed(self, piece: Piece, out: list[ModelEvent]) -> None:
        if isinstance(piece, TextPiece):
            if piece.text:
                out.append(TextDelta(id=self._id, delta=piece.text))
        elif isinstance(piece, CitationPiece):
            self._cite(piece.citation)

    def stop(self) -> list[ModelEvent]:
        metadata = (
            pack_metadata(AnthropicMetadata(citations=self._citations))
            if self._citations
            else UNSET
        )
        return [TextEnd(id=self._id, provider_metadata=metadata), *self._sources]

    def _cite(self, raw: Raw) -> None:
        """Report each source once per answer. Citations beyond the limit are dropped: they are sent
        back with every later request."""
        if len(self._citations) == MAX_CITATIONS_PER_TEXT:
            return
        try:
            found = decode_event(CITATION, raw)
            self._citations.append(validate_json(bytes(raw).decode()))
        except (*DECODE_ERRORS, ValueError):
            return
        if found.url and found.url not in self._reported:
            self._reported.add(found.url)
            self._sources.append(SourceFound(url=found.url, title=found.title))


class OpenThinking:
    def __init__(self, block_id: str, block: ThinkingBlock) -> None:
        self._id = block_id
        self._initial_text = block.thinking
        self._signature = [block.signature]

    def start(self) -> list[ModelEvent]:
        return [ReasoningStart(id=self._id, text=self._initial_text)]

    def feed(self, piece: Piece, out: list[ModelEvent]) -> None:
        if isinstance(piece, ThinkingPiece):
            if piece.thinking:
                out.append(ReasoningDelta(id=self._id, delta=piece.thinking))
        elif isinstance(piece, SignaturePiece):
            self._signature.append(piece.signature)

    def stop(self) -> list[ModelEvent]:
        signature = "".join(self._signature)
        metadata = pack_metadata(AnthropicMetadata(signature=signature)) if signature else UNSET
        return [ReasoningEnd(id=self._id, provider_metadata=metadata)]


class OpenRedacted:
    def __init__(self, block_id: str, block: RedactedThinkingBlock) -> None:
        self._id = block_id
        self._metadata = pack_metadata(AnthropicMetadata(redacted_thinking=block.data))

    def start(self) -> list[ModelEvent]:
        return [ReasoningStart(id=self._id, provider_metadata=self._metadata)]

    def feed(self, piece: Piece, out: list[ModelEvent]) -> None:
        pass

    def stop(self) -> list[ModelEvent]:
        return [ReasoningEnd(id=self._id)]


class OpenCall:
    """A tool call, provider-executed or not."""

    def __init__(self, block: ToolUseBlock | ServerToolUseBlock, names: ToolNames) -> None:
        self._id = ToolCallId(block.id)
        self._provider_executed = isinstance(block, ServerToolUseBlock)
        self._name = block.name if self._provider_executed else names.from_wire(block.name)
        self._input = "" if block.input is UNSET else bytes(block.input).decode()
        self._pieces: list[str] = []
        self._metadata: Json = UNSET
        if isinstance(block, ServerToolUseBlock):
            self._metadata = pack_metadata(
                AnthropicMetadata(block="server_tool_use", caller=block.caller)
            )

    def start(self) -> list[ModelEvent]:
        return [
            ToolCallStart(id=self._id, name=self._name, provider_executed=self._provider_executed)
        ]

    def feed(self, piece: Piece, out: list[ModelEvent]) -> None:
        if isinstance(piece, InputPiece):
            self._pieces.append(piece.partial_json)
            if piece.partial_json:
                out.append(ToolCallDelta(id=self._id, delta=piece.partial_json))

    def stop(self) -> list[ModelEvent]:
        # Some gateways send the whole input at the start instead of deltas.
        text = "".join(self._pieces) or self._input
        return [
            ToolCallDone(
                id=self._id,
                name=self._name,
                input=text,
                provider_executed=self._provider_executed,
                provider_metadata=self._metadata,
            )
        ]


class OpenToolsetCall:
    """A call of one tool of a toolset, converted to a call of one tool with an action. No deltas:
    the action is added to the complete input."""

    def __init__(self, block: ToolUseBlock, toolset: str) -> None:
        self._id = ToolCallId(block.id)
        self._action = block.name
        self._input = "" if block.input is UNSET else bytes(block.input).decode()
        self._pieces: list[str] = []
        self._toolset = toolset

    def start(self) -> list[ModelEvent]:
        return [ToolCallStart(id=self._id, name=self._toolset)]

    def feed(self, piece: Piece, out: list[ModelEvent]) -> None:
        del out
        if isinstance(piece, InputPiece):
            self._pieces.append(piece.partial_json)

    def stop(self) -> list[ModelEvent]:
        return [
            ToolCallDone(
                id=self._id,
                name=self._toolset,
                input=_with_action("".join(self._pieces) or self._input or "{}", self._action),
            )
        ]


OpenBlock = OpenText | OpenThinking | OpenRedacted | OpenCall | OpenToolsetCall


def _with_action(text: str, action: str) -> str:
    try:
        fields = msgspec.json.decode(text, type=dict[str, Raw])
    except DECODE_ERRORS:
        return text
    return msgspec.json.encode({"action": action, **fields}).decode()


# Finish reasons, usage and errors

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


# The decoder

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

    def _report_usage(self, reported: WireUsage | None) -> None:
        """The API reports the input first, so that a cut answer is charged for what it has read."""
        if reported is not None:
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
