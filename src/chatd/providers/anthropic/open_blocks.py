"""The blocks of an answer while they are coming: from pieces to events.

One class per kind of block. Each says what its beginning, each piece and its
end are in the words of `domain.model`.
"""

import msgspec
from msgspec import UNSET, Raw

from chatd.domain.chat.parts import Json, validate_json
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
from chatd.providers.anthropic.metadata import Kept, keep
from chatd.providers.anthropic.wire import (
    CITATION,
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
)
from chatd.providers.reading import UNREADABLE, read
from chatd.providers.schema import ToolNames


class OpenText:
    def __init__(self, block_id: str, block: TextBlock, named: set[str]) -> None:
        self._id = block_id
        self._begins_with = block.text
        self._citations: list[Raw] = []
        self._sources: list[SourceFound] = []
        self._named = named
        for citation in block.citations or ():
            self._cite(citation)

    def start(self) -> list[ModelEvent]:
        start = TextStart(id=self._id)
        if not self._begins_with:
            return [start]
        return [start, TextDelta(id=self._id, delta=self._begins_with)]

    def feed(self, piece: Piece, out: list[ModelEvent]) -> None:
        if isinstance(piece, TextPiece):
            if piece.text:
                out.append(TextDelta(id=self._id, delta=piece.text))
        elif isinstance(piece, CitationPiece):
            self._cite(piece.citation)

    def stop(self) -> list[ModelEvent]:
        metadata = keep(Kept(citations=self._citations)) if self._citations else UNSET
        return [TextEnd(id=self._id, provider_metadata=metadata), *self._sources]

    def _cite(self, raw: Raw) -> None:
        """A page is named once, however often it is quoted."""
        try:
            found = read(CITATION, raw)
            self._citations.append(validate_json(bytes(raw).decode()))
        except (*UNREADABLE, ValueError):
            return
        if found.url and found.url not in self._named:
            self._named.add(found.url)
            self._sources.append(SourceFound(url=found.url, title=found.title))


class OpenThinking:
    def __init__(self, block_id: str, block: ThinkingBlock) -> None:
        self._id = block_id
        self._begins_with = block.thinking
        self._signature = block.signature

    def start(self) -> list[ModelEvent]:
        return [ReasoningStart(id=self._id, text=self._begins_with)]

    def feed(self, piece: Piece, out: list[ModelEvent]) -> None:
        if isinstance(piece, ThinkingPiece):
            if piece.thinking:
                out.append(ReasoningDelta(id=self._id, delta=piece.thinking))
        elif isinstance(piece, SignaturePiece):
            self._signature += piece.signature

    def stop(self) -> list[ModelEvent]:
        metadata = keep(Kept(signature=self._signature)) if self._signature else UNSET
        return [ReasoningEnd(id=self._id, provider_metadata=metadata)]


class OpenRedacted:
    def __init__(self, block_id: str, block: RedactedThinkingBlock) -> None:
        self._id = block_id
        self._metadata = keep(Kept(redacted_thinking=block.data))

    def start(self) -> list[ModelEvent]:
        return [ReasoningStart(id=self._id, provider_metadata=self._metadata)]

    def feed(self, piece: Piece, out: list[ModelEvent]) -> None:
        pass

    def stop(self) -> list[ModelEvent]:
        return [ReasoningEnd(id=self._id)]


class OpenCall:
    """A call that somebody here must answer, or one that the provider answers itself."""

    def __init__(self, block: ToolUseBlock | ServerToolUseBlock, names: ToolNames) -> None:
        self._id = ToolCallId(block.id)
        self._server = isinstance(block, ServerToolUseBlock)
        self._name = block.name if self._server else names.own(block.name)
        self._input = "" if block.input is UNSET else bytes(block.input).decode()
        self._pieces: list[str] = []
        self._metadata: Json = UNSET
        if isinstance(block, ServerToolUseBlock):
            self._metadata = keep(Kept(block="server_tool_use", caller=block.caller))

    def start(self) -> list[ModelEvent]:
        return [ToolCallStart(id=self._id, name=self._name, provider_executed=self._server)]

    def feed(self, piece: Piece, out: list[ModelEvent]) -> None:
        if isinstance(piece, InputPiece):
            self._pieces.append(piece.partial_json)
            if piece.partial_json:
                out.append(ToolCallDelta(id=self._id, delta=piece.partial_json))

    def stop(self) -> list[ModelEvent]:
        # Pieces, if there are any; some gateways send the whole input with the beginning.
        text = "".join(self._pieces) or self._input
        return [
            ToolCallDone(
                id=self._id,
                name=self._name,
                input=text,
                provider_executed=self._server,
                provider_metadata=self._metadata,
            )
        ]


class OpenToolsetCall:
    """A call of one member of a toolset. For us it is one tool with an action, so its input is
    shown only when it is whole."""

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
    except UNREADABLE:
        return text
    return msgspec.json.encode({"action": action, **fields}).decode()
