"""From a model's events to the parts of one answer.

`feed` takes one event and returns the live parts viewers are shown for it;
`finished` and `interrupted` return the answer as it will be committed. Blocks
stand in the order in which they were completed; those still open when a turn
is interrupted follow in the order in which they were begun.
"""

from collections.abc import Iterable
from typing import Final, TypeGuard

from msgspec import UNSET

from chatd.domain.answer import Answer
from chatd.domain.blocks import (
    EMPTY_OBJECT,
    CallBlock,
    ReasoningBlock,
    TextBlock,
    json_args,
    storable,
)
from chatd.domain.failures import ModelFailed, known_failure
from chatd.domain.heal import heal_text
from chatd.domain.ids import ToolCallId
from chatd.domain.messages import Draft, local_calls
from chatd.domain.model import (
    CallDelta,
    CallDone,
    CallStart,
    Failed,
    Finished,
    ModelEvent,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    ResultDone,
    SourceFound,
    TextDelta,
    TextEnd,
    TextStart,
)
from chatd.domain.parts import Json, Part, Reasoning, Source, Text, ToolCall, ToolResult

MAX_ANSWER: Final = 32 * 1024 * 1024
"""Characters. No model says as much; a server that has gone mad does."""
_EVENT_COST: Final = 64


class Assembler:
    """One attempt. A new attempt gets a new one, so nothing of a failed one is ever kept.

    `taken` are the ids of the chat's earlier calls. Some vendors count calls from 0 in every
    answer, but we keep results, and commands that still run, by the id of their call.
    """

    def __init__(self, taken: Iterable[ToolCallId] = ()) -> None:
        self._open: dict[tuple[str, str], TextBlock | ReasoningBlock | CallBlock] = {}
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
            case CallStart() | CallDelta() | CallDone():
                return self._call(event)
            case ResultDone():
                self._grow(len(bytes(event.result)))
                return self._add(_provider_result(event, at))
            case SourceFound():
                self._grow(len(event.url))
                return self._add(Source(url=event.url, source_id=event.id, title=event.title))
            case Finished():
                self._finished = event
                return ()
            case Failed():
                return ()

    def finished(self) -> Answer:
        """After the stream has ended well. A block nobody closed is complete all the same."""
        return Answer(content=merged([*self._done, *self._flushed()]), finished=self._finished)

    def interrupted(self, at: str | None = None) -> Answer:
        """All that has been said so far; its calls, also half-said ones, await a result."""
        self._at = at or self._at
        return Answer(content=merged([*self._done, *self._flushed()]))

    def _grow(self, said: int) -> None:
        self._size += said + _EVENT_COST
        if self._size > MAX_ANSWER:
            raise ModelFailed(known_failure("generic", "", detail="The answer does not end."))

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
            block = self._open[key] = TextBlock(self._at)
        if isinstance(event, TextStart) or not event.delta:
            return ()
        self._grow(len(event.delta))
        block.pieces.append(event.delta)
        return (Text(text=heal_text(event.delta)),)

    def _reasoning(self, event: ReasoningStart | ReasoningDelta | ReasoningEnd) -> tuple[Part, ...]:
        key = ("reasoning", event.id)
        if isinstance(event, ReasoningEnd):
            self._close(key, event.provider_metadata)
            return ()
        block = self._open.get(key)
        if block is None:
            block = self._open[key] = ReasoningBlock(self._at)
        block.note(event.provider_metadata)
        text = event.text if isinstance(event, ReasoningStart) else event.delta
        if not text:
            return ()
        self._grow(len(text))
        block.pieces.append(text)
        return (Reasoning(text=heal_text(text)),)

    def _call(self, event: CallStart | CallDelta | CallDone) -> tuple[Part, ...]:
        key = ("call", event.id)
        block = self._open.get(key)
        if isinstance(event, CallStart):
            if block is None:
                self._open[key] = CallBlock(self._own_id(event), event, self._at)
            return ()
        if isinstance(event, CallDone):
            # The whole call is authoritative; pieces that came before are forgotten.
            self._open.pop(key, None)
            self._grow(len(event.input))
            known = block.call_id if isinstance(block, CallBlock) else self._own_id(event)
            return self._add(_whole_call(event, known, self._at))
        if not isinstance(block, CallBlock) or not event.delta:
            return ()
        self._grow(len(event.delta))
        block.pieces.append(event.delta)
        return (
            ToolCall(
                tool_call_id=block.call_id,
                tool_name=block.name,
                args_delta=heal_text(event.delta),
                provider_executed=block.provider_executed,
            ),
        )

    def _own_id(self, call: CallStart | CallDone) -> ToolCallId:
        """An id that no other call of the chat has. The provider knows its own calls by theirs."""
        own, count = heal_text(call.id) or "call", 1
        if call.provider_executed:
            return ToolCallId(own)
        while own in self._taken:
            count += 1
            own = f"{heal_text(call.id) or 'call'}-{count}"
        self._taken.add(ToolCallId(own))
        return ToolCallId(own)


def taken_ids(history: Iterable[Draft]) -> set[ToolCallId]:
    return {call.tool_call_id for row in history for call in local_calls(row.content)}


def _whole_call(event: CallDone, call_id: ToolCallId, at: str | None) -> ToolCall:
    """A tool that takes nothing is often called with nothing."""
    return ToolCall(
        tool_call_id=call_id,
        tool_name=event.name,
        args=json_args(event.input) if event.input.strip() else EMPTY_OBJECT,
        provider_executed=event.provider_executed,
        created_at=at,
        provider_metadata=storable(event.provider_metadata),
    )


def _provider_result(event: ResultDone, at: str | None) -> ToolResult:
    return ToolResult(
        tool_call_id=event.id,
        tool_name=event.name,
        result=storable(event.result),
        is_error=event.is_error,
        provider_executed=True,
        created_at=at,
        provider_metadata=storable(event.provider_metadata),
    )


def merged(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Adjacent plain text becomes one part: a viewer's deltas and history then agree."""
    out: list[Part] = []
    for part in parts:
        last = out[-1] if out else None
        if _plain(last) and _plain(part):
            out[-1] = Text(text=last.text + part.text)
        else:
            out.append(part)
    return tuple(out)


def _plain(part: Part | None) -> TypeGuard[Text]:
    return isinstance(part, Text) and part.provider_metadata is UNSET
