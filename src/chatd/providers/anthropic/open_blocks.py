"""Open blocks of a streamed answer, one class per type of block.

`start`, `feed` and `stop` convert the start, a delta and the end of a block into model events.
"""

from typing import Final

import msgspec
from msgspec import UNSET, Raw

from chatd.domain.chat.parts import validate_json
from chatd.domain.ids import ToolCallId
from chatd.domain.model.protocol import (
    ModelEvent,
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
)
from chatd.domain.text import Json
from chatd.providers.anthropic.wire import (
    CITATION,
    AnthropicMetadata,
    CitationPiece,
    InputPiece,
    Piece,
    RedactedThinkingBlock,
    ServerToolUseBlock,
    SignaturePiece,
    TextBlock,
    TextPiece,
    ThinkingBlock,
    ThinkingPiece,
    ToolUseBlock,
    pack_metadata,
)
from chatd.providers.sse import DECODE_ERRORS, decode_event
from chatd.providers.tool_schema import ToolNames

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
