"""From a model's events to the parts of one answer.

`feed` takes one event and returns the live parts viewers are shown for it;
`finished` and `interrupted` return the answer as it will be committed. Blocks
stand in the order in which they were completed; those still open when a turn
is interrupted follow in the order in which they were begun.
"""

from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct

from chatd.domain.messages import Usage
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

EMPTY_OBJECT: Final = Raw(b"{}")


class Answer(Struct, frozen=True, kw_only=True):
    """One model call's contribution to history."""

    content: tuple[Part, ...]
    finished: Finished | None = None

    @property
    def usage(self) -> Usage | None:
        return None if self.finished is None else self.finished.usage

    @property
    def said_something(self) -> bool:
        """Anything a person or a tool could act on; reasoning alone is not an answer."""
        return any(not isinstance(part, Reasoning) for part in self.content)


class _Block:
    """Text, reasoning or the input of a call while it is still coming."""

    __slots__ = ("began_at", "metadata", "pieces")

    def __init__(self, began_at: str | None) -> None:
        self.pieces: list[str] = []
        self.metadata: Json = UNSET
        self.began_at = began_at

    def note(self, metadata: Json) -> None:
        """A later event without metadata must not erase a signature."""
        if metadata is not UNSET:
            self.metadata = metadata

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class _TextBlock(_Block):
    def part(self, _ended_at: str | None) -> Part | None:
        if not self.pieces and self.metadata is UNSET:
            return None
        return Text(text=self.text, provider_metadata=self.metadata)


class _ReasoningBlock(_Block):
    def part(self, ended_at: str | None) -> Part | None:
        if not self.pieces and self.metadata is UNSET:
            return None
        return Reasoning(
            text=self.text,
            created_at=self.began_at,
            completed_at=ended_at,
            provider_metadata=self.metadata,
        )


class _CallBlock(_Block):
    __slots__ = ("call_id", "name", "provider_executed")

    def __init__(self, start: CallStart, began_at: str | None) -> None:
        super().__init__(began_at)
        self.call_id = start.id
        self.name = start.name
        self.provider_executed = start.provider_executed

    def part(self, ended_at: str | None) -> Part | None:
        return ToolCall(
            tool_call_id=self.call_id,
            tool_name=self.name,
            args=json_args(self.text),
            provider_executed=self.provider_executed,
            created_at=ended_at,
        )


class Assembler:
    """One attempt. A new attempt gets a new one, so nothing of a failed one is ever kept."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], _TextBlock | _ReasoningBlock | _CallBlock] = {}
        self._done: list[Part] = []
        self._finished: Finished | None = None
        self._at: str | None = None

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
                return self._add(_provider_result(event, at))
            case SourceFound():
                return self._add(Source(url=event.url, source_id=event.id, title=event.title))
            case Finished():
                self._finished = event
                return ()
            case Failed():
                return ()

    def finished(self) -> Answer:
        """After the stream has ended well. A block nobody closed is complete all the same."""
        return Answer(content=merged([*self._done, *self._flushed()]), finished=self._finished)

    def interrupted(self) -> Answer:
        """All that has been said so far; its calls, also half-said ones, await a result."""
        return Answer(content=merged([*self._done, *self._flushed()]))

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
        block = self._open.setdefault(key, _TextBlock(self._at))
        if isinstance(event, TextStart) or not event.delta:
            return ()
        block.pieces.append(event.delta)
        return (Text(text=event.delta),)

    def _reasoning(self, event: ReasoningStart | ReasoningDelta | ReasoningEnd) -> tuple[Part, ...]:
        key = ("reasoning", event.id)
        if isinstance(event, ReasoningEnd):
            self._close(key, event.provider_metadata)
            return ()
        block = self._open.setdefault(key, _ReasoningBlock(self._at))
        block.note(event.provider_metadata)
        text = event.text if isinstance(event, ReasoningStart) else event.delta
        if not text:
            return ()
        block.pieces.append(text)
        return (Reasoning(text=text),)

    def _call(self, event: CallStart | CallDelta | CallDone) -> tuple[Part, ...]:
        key = ("call", event.id)
        if isinstance(event, CallStart):
            self._open.setdefault(key, _CallBlock(event, self._at))
            return ()
        if isinstance(event, CallDone):
            # The whole call is authoritative; pieces that came before are forgotten.
            self._open.pop(key, None)
            return self._add(_whole_call(event, self._at))
        block = self._open.get(key)
        if not isinstance(block, _CallBlock) or not event.delta:
            return ()
        block.pieces.append(event.delta)
        return (
            ToolCall(
                tool_call_id=block.call_id,
                tool_name=block.name,
                args_delta=event.delta,
                provider_executed=block.provider_executed,
            ),
        )


def _whole_call(event: CallDone, at: str | None) -> ToolCall:
    return ToolCall(
        tool_call_id=event.id,
        tool_name=event.name,
        args=json_args(event.input),
        provider_executed=event.provider_executed,
        created_at=at,
        provider_metadata=event.provider_metadata,
    )


def _provider_result(event: ResultDone, at: str | None) -> ToolResult:
    return ToolResult(
        tool_call_id=event.id,
        tool_name=event.name,
        result=event.result,
        is_error=event.is_error,
        provider_executed=True,
        created_at=at,
        provider_metadata=event.provider_metadata,
    )


def json_args(text: str) -> Json:
    """Arguments as sent, if they are JSON; no arguments at all are an empty object."""
    if not text.strip():
        return EMPTY_OBJECT
    try:
        msgspec.json.decode(text)
        return Raw(text.encode())
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return UNSET


def merged(parts: list[Part]) -> tuple[Part, ...]:
    """Adjacent plain text becomes one part: a viewer's deltas and history then agree."""
    out: list[Part] = []
    for part in parts:
        last = out[-1] if out else None
        if _plain(part) and _plain(last):
            assert isinstance(last, Text)
            assert isinstance(part, Text)
            out[-1] = Text(text=last.text + part.text)
        else:
            out.append(part)
    return tuple(out)


def _plain(part: Part | None) -> bool:
    return isinstance(part, Text) and part.provider_metadata is UNSET
