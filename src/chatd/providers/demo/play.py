"""A scene as a stream of events, at a pace.

The pace is kept by the clock, not by adding up pauses: whoever reads late gets several pieces at
once and is not late for ever.
"""

import re
from collections.abc import AsyncGenerator, Iterable, Iterator
from typing import Final

import msgspec
from msgspec import Struct

from chatd.domain.ids import ToolCallId
from chatd.domain.messages import Usage
from chatd.domain.model import (
    CallDelta,
    CallDone,
    CallStart,
    Finished,
    FinishReason,
    ModelEvent,
    ModelRequest,
    PromptCall,
    PromptFile,
    ProviderFailed,
    ProviderFault,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    SourceFound,
    TextDelta,
    TextEnd,
    TextStart,
)
from chatd.domain.ports import Clock
from chatd.providers.demo.beats import Beat, Break, Cite, Refuse, Say, Scene, Think, Use

TAG: Final = "demo_token"

# Without a pace, others still get their turn this often.
_BREATH: Final = 50
_TOKEN: Final = re.compile(r"\s*\S{1,12}|\s+")
_CHARS_PER_TOKEN: Final = 4
_FILE_TOKENS: Final = 300


class Stage(Struct, frozen=True, kw_only=True):
    """What a scene is played on. `key` begins the ids of its calls."""

    clock: Clock
    tokens_per_s: float
    key: str
    input_tokens: int
    max_tokens: int | None


async def play(scene: Scene, stage: Stage) -> AsyncGenerator[ModelEvent]:
    pace = stage.tokens_per_s * scene.pace
    started_at = stage.clock.monotonic()
    counted = _Count()
    for event, spoken in _events(scene.beats, stage.key):
        if isinstance(event, ProviderFault):
            raise ProviderFailed(event)
        if spoken:
            if stage.max_tokens is not None and counted.output >= stage.max_tokens:
                counted.cut = True
                break
            counted.add(event)
            await _wait(stage.clock, pace, started_at, counted.output)
        yield event
    yield _finished(scene, stage, counted)


async def _wait(clock: Clock, pace: float, started_at: float, tokens: int) -> None:
    if pace <= 0:
        if tokens % _BREATH == 0:
            await clock.sleep(0, TAG)
        return
    wait = started_at + tokens / pace - clock.monotonic()
    if wait > 0:
        await clock.sleep(wait, TAG)


class _Count:
    def __init__(self) -> None:
        self.output = 0
        self.reasoning = 0
        self.cut = False

    def add(self, event: ModelEvent) -> None:
        self.output += 1
        self.reasoning += isinstance(event, ReasoningDelta)


_Spoken = tuple[ModelEvent | ProviderFault, bool]


def _events(beats: Iterable[Beat], key: str) -> Iterator[_Spoken]:
    """Each event, and whether it is a token."""
    for at, beat in enumerate(beats):
        match beat:
            case Say():
                yield TextStart(id=str(at)), False
                for token in _TOKEN.findall(beat.text):
                    yield TextDelta(id=str(at), delta=token), True
                yield TextEnd(id=str(at)), False
            case Think():
                yield ReasoningStart(id=str(at)), False
                for token in _TOKEN.findall(beat.text):
                    yield ReasoningDelta(id=str(at), delta=token), True
                yield ReasoningEnd(id=str(at)), False
            case Use():
                yield from _call(beat, ToolCallId(f"demo_{key}_{at}"))
            case Cite():
                yield SourceFound(url=beat.url, title=beat.title), False
            case Break():
                yield beat.fault, False
            case Refuse():
                return


def _call(beat: Use, call_id: ToolCallId) -> Iterator[_Spoken]:
    text = msgspec.json.encode(beat.args).decode()
    yield CallStart(id=call_id, name=beat.name), False
    for token in _TOKEN.findall(text):
        yield CallDelta(id=call_id, delta=token), True
    yield CallDone(id=call_id, name=beat.name, input=text), False


def _finished(scene: Scene, stage: Stage, counted: _Count) -> Finished:
    refusals = [beat.why for beat in scene.beats if isinstance(beat, Refuse)]
    reason: FinishReason = "stop"
    if counted.cut:
        reason = "length"
    elif refusals:
        reason = "content-filter"
    elif any(isinstance(beat, Use) for beat in scene.beats):
        reason = "tool-calls"
    return Finished(
        reason=reason,
        usage=Usage(
            input_tokens=stage.input_tokens,
            output_tokens=counted.output,
            total_tokens=stage.input_tokens + counted.output,
            reasoning_tokens=counted.reasoning,
        ),
        response_id=f"demo_{stage.key}",
        explanation=refusals[0] if refusals else None,
    )


def rough_tokens(request: ModelRequest) -> int:
    """Four characters are a token, more or less."""
    characters = sum(
        len(tool.description) + len(bytes(tool.input_schema)) for tool in request.tools
    )
    files = 0
    for message in request.messages:
        for part in message.parts:
            match part:
                case PromptFile():
                    files += 1
                case PromptCall():
                    characters += len(part.name) + len(bytes(part.input))
                case _:
                    characters += len(part.text)
    return -(-characters // _CHARS_PER_TOKEN) + files * _FILE_TOKENS
