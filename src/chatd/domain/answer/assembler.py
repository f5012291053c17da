"""From a model's events to the parts of one answer.

`feed` takes one event and returns the live parts viewers are shown for it;
`finished` and `interrupted` return the answer as it will be committed. Blocks
stand in the order in which they were completed; those still open when a turn
is interrupted follow in the order in which they were begun.

Blocks: text, reasoning and calls of an answer while they are still coming.
"""

from collections.abc import Iterable
from typing import Final, TypeGuard

from msgspec import UNSET, Raw

from chatd.domain.answer.answer import Answer
from chatd.domain.chat.messages import Draft, local_calls
from chatd.domain.chat.parts import (
    Part,
    ReasoningPart,
    SourcePart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    validate_json,
)
from chatd.domain.ids import ToolCallId
from chatd.domain.model.failures import ModelError, known_failure
from chatd.domain.model.protocol import (
    Finished,
    ModelEvent,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    SourceFound,
    StreamFailed,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCallDelta,
    ToolCallDone,
    ToolCallStart,
    ToolResultDone,
)
from chatd.domain.text import (
    Json,
    decode_lenient,
    is_empty_json,
    replace_json_surrogates,
    replace_surrogates,
)

EMPTY_OBJECT: Final = Raw(b"{}")


class BlockBuilder:
    """Text, reasoning or the input of a call while it is still coming."""

    __slots__ = ("began_at", "metadata", "pieces")

    def __init__(self, began_at: str | None) -> None:
        self.pieces: list[str] = []
        self.metadata: Json = UNSET
        self.began_at = began_at

    def note(self, metadata: Json) -> None:
        """A later event without metadata must not erase a signature."""
        if not is_empty_json(metadata):
            self.metadata = storable_metadata(metadata)

    @property
    def text(self) -> str:
        return replace_surrogates("".join(self.pieces))


class TextBuilder(BlockBuilder):
    def part(self, _ended_at: str | None) -> Part | None:
        if not self.pieces and self.metadata is UNSET:
            return None
        return TextPart(text=self.text, provider_metadata=self.metadata)


class ReasoningBuilder(BlockBuilder):
    def part(self, ended_at: str | None) -> Part | None:
        if not self.pieces and self.metadata is UNSET:
            return None
        return ReasoningPart(
            text=self.text,
            created_at=self.began_at,
            completed_at=ended_at,
            provider_metadata=self.metadata,
        )


class CallBuilder(BlockBuilder):
    __slots__ = ("call_id", "name", "provider_executed")

    def __init__(self, call_id: ToolCallId, start: ToolCallStart, began_at: str | None) -> None:
        super().__init__(began_at)
        self.call_id = call_id
        self.name = start.name
        self.provider_executed = start.provider_executed

    def part(self, ended_at: str | None) -> Part | None:
        """Nobody has said that the call is whole: without a word of its input it is not one
        with empty input."""
        return ToolCallPart(
            tool_call_id=self.call_id,
            tool_name=self.name,
            args=storable_args(self.text),
            provider_executed=self.provider_executed,
            created_at=ended_at,
        )


def storable_args(text: str) -> Json:
    """Arguments as sent, if they are JSON that can be stored and read again."""
    try:
        return validate_json(replace_json_surrogates(text))
    except ValueError:
        return UNSET


def storable_metadata(raw: Json) -> Json:
    """A vendor's own JSON, if it can be stored and read again."""
    return UNSET if raw is UNSET else storable_args(decode_lenient(bytes(raw)))


MAX_ANSWER_BYTES: Final = 32 * 1024 * 1024
"""Characters. No model says as much; a server that has gone mad does."""
_EVENT_COST: Final = 64


class Assembler:
    """One attempt. A new attempt gets a new one, so nothing of a failed one is ever kept.

    `taken` are the ids of the chat's earlier calls. Some vendors count calls from 0 in every
    answer, but we keep results, and commands that still run, by the id of their call.
    """

    def __init__(self, taken: Iterable[ToolCallId] = ()) -> None:
        self._open: dict[tuple[str, str], TextBuilder | ReasoningBuilder | CallBuilder] = {}
        self._done: list[Part] = []
        self._finished: Finished | None = None
        self._at: str | None = None
        self._taken = set(taken)
        self._size = 0

    def feed(self, event: ModelEvent, at: str | None = None) -> tuple[Part, ...]:
        """`at` is the time of the event, as text. Returns what to show at once."""
        self._at = at
        match event:
            case TextStart() | TextDelta() | TextEnd():
                return self._text(event)
            case ReasoningStart() | ReasoningDelta() | ReasoningEnd():
                return self._reasoning(event)
            case ToolCallStart() | ToolCallDelta() | ToolCallDone():
                return self._call(event)
            case ToolResultDone():
                self._grow(len(bytes(event.result)))
                return self._add(_provider_result(event, at))
            case SourceFound():
                self._grow(len(event.url))
                return self._add(SourcePart(url=event.url, source_id=event.id, title=event.title))
            case Finished():
                self._finished = event
                return ()
            case StreamFailed():
                return ()

    def finished(self) -> Answer:
        """After the stream has ended well. A block nobody closed is complete all the same."""
        return Answer(content=merge_text([*self._done, *self._flushed()]), finished=self._finished)

    def interrupted(self, at: str | None = None) -> Answer:
        """All that has been said so far; its calls, also half-said ones, await a result."""
        self._at = at or self._at
        return Answer(content=merge_text([*self._done, *self._flushed()]))

    def _grow(self, said: int) -> None:
        self._size += said + _EVENT_COST
        if self._size > MAX_ANSWER_BYTES:
            raise ModelError(known_failure("generic", "", detail="The answer does not end."))

    def _flushed(self) -> list[Part]:
        parts = [block.part(self._at) for block in self._open.values()]
        return [part for part in parts if part is not None]

    def _add(self, part: Part) -> tuple[Part, ...]:
        self._done.append(part)
        return (part,)

    def _close(self, key: tuple[str, str], metadata: Json) -> None:
        block = self._open.pop(key, None)
        if block is None:
            return
        block.note(metadata)
        part = block.part(self._at)
        if part is not None:
            self._done.append(part)

    def _text(self, event: TextStart | TextDelta | TextEnd) -> tuple[Part, ...]:
        key = ("text", event.id)
        if isinstance(event, TextEnd):
            self._close(key, event.provider_metadata)
            return ()
        block = self._open.get(key)
        if block is None:
            block = self._open[key] = TextBuilder(self._at)
        if isinstance(event, TextStart) or not event.delta:
            return ()
        self._grow(len(event.delta))
        block.pieces.append(event.delta)
        return (TextPart(text=replace_surrogates(event.delta)),)

    def _reasoning(self, event: ReasoningStart | ReasoningDelta | ReasoningEnd) -> tuple[Part, ...]:
        key = ("reasoning", event.id)
        if isinstance(event, ReasoningEnd):
            self._close(key, event.provider_metadata)
            return ()
        block = self._open.get(key)
        if block is None:
            block = self._open[key] = ReasoningBuilder(self._at)
        block.note(event.provider_metadata)
        text = event.text if isinstance(event, ReasoningStart) else event.delta
        if not text:
            return ()
        self._grow(len(text))
        block.pieces.append(text)
        return (ReasoningPart(text=replace_surrogates(text)),)

    def _call(self, event: ToolCallStart | ToolCallDelta | ToolCallDone) -> tuple[Part, ...]:
        key = ("call", event.id)
        block = self._open.get(key)
        if isinstance(event, ToolCallStart):
            if block is None:
                self._open[key] = CallBuilder(self._own_id(event), event, self._at)
            return ()
        if isinstance(event, ToolCallDone):
            # The whole call is authoritative; pieces that came before are forgotten.
            self._open.pop(key, None)
            self._grow(len(event.input))
            known = block.call_id if isinstance(block, CallBuilder) else self._own_id(event)
            return self._add(_whole_call(event, known, self._at))
        if not isinstance(block, CallBuilder) or not event.delta:
            return ()
        self._grow(len(event.delta))
        block.pieces.append(event.delta)
        return (
            ToolCallPart(
                tool_call_id=block.call_id,
                tool_name=block.name,
                args_delta=replace_surrogates(event.delta),
                provider_executed=block.provider_executed,
            ),
        )

    def _own_id(self, call: ToolCallStart | ToolCallDone) -> ToolCallId:
        """An id that no other call of the chat has. The provider knows its own calls by theirs."""
        own, count = replace_surrogates(call.id) or "call", 1
        if call.provider_executed:
            return ToolCallId(own)
        while own in self._taken:
            count += 1
            own = f"{replace_surrogates(call.id) or 'call'}-{count}"
        self._taken.add(ToolCallId(own))
        return ToolCallId(own)


def used_call_ids(history: Iterable[Draft]) -> set[ToolCallId]:
    return {call.tool_call_id for row in history for call in local_calls(row.content)}


def _whole_call(event: ToolCallDone, call_id: ToolCallId, at: str | None) -> ToolCallPart:
    """A tool that takes nothing is often called with nothing."""
    return ToolCallPart(
        tool_call_id=call_id,
        tool_name=event.name,
        args=storable_args(event.input) if event.input.strip() else EMPTY_OBJECT,
        provider_executed=event.provider_executed,
        created_at=at,
        provider_metadata=storable_metadata(event.provider_metadata),
    )


def _provider_result(event: ToolResultDone, at: str | None) -> ToolResultPart:
    return ToolResultPart(
        tool_call_id=event.id,
        tool_name=event.name,
        result=storable_metadata(event.result),
        is_error=event.is_error,
        provider_executed=True,
        created_at=at,
        provider_metadata=storable_metadata(event.provider_metadata),
    )


def merge_text(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Adjacent plain text becomes one part: a viewer's deltas and history then agree."""
    out: list[Part] = []
    for part in parts:
        last = out[-1] if out else None
        if _plain(last) and _plain(part):
            out[-1] = TextPart(text=last.text + part.text)
        else:
            out.append(part)
    return tuple(out)


def _plain(part: Part | None) -> TypeGuard[TextPart]:
    return isinstance(part, TextPart) and part.provider_metadata is UNSET
