"""The demo model: needs no key and no network; gives the same answer to the same request.

Its only state counts the failures a user has asked for. Losing that count costs one more failure.
"""

import hashlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from typing import Annotated, Final

import msgspec
from msgspec import Meta, structs

from chatd.domain.chat.messages import TokenUsage
from chatd.domain.errors import InvalidInput
from chatd.domain.ids import ToolCallId
from chatd.domain.model.protocol import (
    Finished,
    FinishReason,
    ModelEvent,
    ModelRequest,
    PromptCall,
    PromptFile,
    ProviderError,
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
)
from chatd.domain.ports import Clock
from chatd.providers.config import ProviderConfig, config_fault
from chatd.providers.demo.scenes import choose_scene
from chatd.providers.demo.tool_scenes import CallTool, DemoScene, RefuseAnswer, SetPace, ThinkText
from chatd.providers.options import OptionBlock, parse_options

TOKEN_SLEEP: Final = "demo_token"
_MAX_REMEMBERED_CHATS: Final = 256
# Without pauses, the stream still yields to other tasks after this many tokens.
_TOKENS_PER_YIELD: Final = 50
_TOKEN: Final = re.compile(r"\s*\S{1,12}|\s+")
_LINE: Final = re.compile(r"[^\n]*\n+|[^\n]+")
_CHARS_PER_TOKEN: Final = 4
_TOKENS_PER_FILE: Final = 300


class DemoOptions(OptionBlock, frozen=True, kw_only=True):
    tokens_per_second: Annotated[
        float, Meta(ge=0, le=100_000, description="Speed of the answer; 0: no pauses")
    ] = 50.0
    seed: Annotated[int, Meta(description="Chooses among the variants of an answer")] = 0
    failures: Annotated[
        int, Meta(ge=0, le=100, description="Number of failures when asked for an error")
    ] = 2


class DemoProvider:
    """Satisfies `domain.ports.Provider`."""

    def __init__(self, config: ProviderConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._failures: dict[str, int] = {}

    @property
    def name(self) -> str:
        return self._config.label

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        try:
            options = parse_options(DemoOptions, request.options)
        except InvalidInput as error:
            raise config_fault(self._config, error.message) from None
        # Identifies the history: equal for equal messages, different after every step.
        history = msgspec.json.encode(request.messages)
        key = hashlib.blake2b(history, digest_size=9).hexdigest()
        failures_left = options.failures - self._failures.get(key, 0)
        scene = choose_scene(request, seed=options.seed, failures_left=failures_left)
        self._count_failure(scene, key)
        if isinstance(scene[0], ProviderFault):
            raise self._failed(scene[0])
        async with aclosing(self._play(scene, request, options, key)) as events:
            yield events

    async def close(self) -> None:
        """Nothing to close."""

    async def _play(
        self, scene: DemoScene, request: ModelRequest, options: DemoOptions, key: str
    ) -> AsyncGenerator[ModelEvent]:
        pace = next((item for item in scene if isinstance(item, SetPace)), SetPace(1.0))
        tokens_per_s = options.tokens_per_second * pace.factor
        started_at = self._clock.monotonic()
        tokens = reasoning_tokens = 0
        reason: FinishReason = "stop"
        explanation = None
        for event in _events(scene, key, _LINE if pace.by_line else _TOKEN):
            match event:
                case ProviderFault():
                    raise self._failed(event)
                case RefuseAnswer():
                    reason, explanation = "refusal", event.explanation
                    break
                case TextDelta() | ReasoningDelta() | ToolCallDelta():
                    if tokens == request.max_output_tokens:
                        reason = "length"
                        break
                    tokens += 1
                    reasoning_tokens += isinstance(event, ReasoningDelta)
                    await self._wait(tokens_per_s, started_at, tokens)
                case ToolCallDone():
                    reason = "tool-calls"
                case _:
                    pass
            yield event
        input_tokens = _estimate_tokens(request)
        usage = TokenUsage(
            input_tokens=input_tokens,
            output_tokens=tokens,
            total_tokens=input_tokens + tokens,
            reasoning_tokens=reasoning_tokens,
        )
        yield Finished(
            reason=reason, usage=usage, response_id=f"demo_{key}", explanation=explanation
        )

    async def _wait(self, tokens_per_s: float, started_at: float, tokens: int) -> None:
        """Sleep until the token is due. Due times count from the start, so that a slow reader
        receives several tokens at once and catches up."""
        if tokens_per_s > 0:
            delay_s = started_at + tokens / tokens_per_s - self._clock.monotonic()
            if delay_s > 0:
                await self._clock.sleep(delay_s, TOKEN_SLEEP)
        elif tokens % _TOKENS_PER_YIELD == 0:
            await self._clock.sleep(0, TOKEN_SLEEP)

    def _count_failure(self, scene: DemoScene, key: str) -> None:
        count = self._failures.pop(key, 0)
        if any(isinstance(item, ProviderFault) for item in scene):
            self._failures[key] = count + 1
        if len(self._failures) > _MAX_REMEMBERED_CHATS:
            del self._failures[next(iter(self._failures))]

    def _failed(self, fault: ProviderFault) -> ProviderError:
        return ProviderError(structs.replace(fault, provider=self.name))


def _events(
    scene: DemoScene, key: str, token: re.Pattern[str]
) -> Iterator[ModelEvent | ProviderFault | RefuseAnswer]:
    for number, item in enumerate(scene):
        block = str(number)
        match item:
            case str():
                yield TextStart(id=block)
                yield from (TextDelta(id=block, delta=text) for text in token.findall(item))
                yield TextEnd(id=block)
            case ThinkText():
                yield ReasoningStart(id=block)
                for text in token.findall(item.text):
                    yield ReasoningDelta(id=block, delta=text)
                yield ReasoningEnd(id=block)
            case CallTool():
                call_id = ToolCallId(f"demo_{key}_{number}")
                args = msgspec.json.encode(item.args).decode()
                yield ToolCallStart(id=call_id, name=item.name)
                yield from (ToolCallDelta(id=call_id, delta=text) for text in token.findall(args))
                yield ToolCallDone(id=call_id, name=item.name, input=args)
            case SourceFound() | ProviderFault() | RefuseAnswer():
                yield item
            case SetPace():
                pass


def _estimate_tokens(request: ModelRequest) -> int:
    """About four characters a token, and a flat number for a file."""
    parts = [part for message in request.messages for part in message.parts]
    files = sum(isinstance(part, PromptFile) for part in parts)
    texts = (
        bytes(part.input) if isinstance(part, PromptCall) else part.text
        for part in parts
        if not isinstance(part, PromptFile)
    )
    return -(-sum(map(len, texts)) // _CHARS_PER_TOKEN) + files * _TOKENS_PER_FILE
