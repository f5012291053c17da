"""The demo model: needs no key and no network; gives the same answer to the same request.

A message that is a request of `demo_scripts.toml` plays its scene; any other message gets an answer
that lists the requests. A scene follows from the request alone, so that it continues after a crash.
The only state counts the failures a user has asked for. Losing that count costs one more failure.
"""

import hashlib
import random
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, structs

from chatd.domain.chat.messages import TokenUsage
from chatd.domain.errors import InvalidInput
from chatd.domain.ids import ToolCallId
from chatd.domain.model.protocol import (
    Finished,
    FinishReason,
    ModelEvent,
    ModelRequest,
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
    as_function,
)
from chatd.domain.model.usage import estimate_input_tokens
from chatd.domain.ports import Clock
from chatd.domain.prompt.compaction import SUMMARY_INSTRUCTION
from chatd.domain.prompt.titles import plain_line
from chatd.domain.text import clip
from chatd.providers.demo_scenes import (
    TEXTS,
    CallTool,
    DemoScene,
    DemoScript,
    DemoTurn,
    SetPace,
    ThinkText,
    ask_first,
    call_sample,
    fix_test,
    lead_team,
    list_requests,
    make_plan,
    read_turn,
    run_command,
    show_desktop,
    use_desktop,
)
from chatd.providers.options import OptionBlock, parse_options
from chatd.providers.provider_config import ProviderConfig, config_fault

TOKEN_SLEEP: Final = "demo_token"
STORY_PACE: Final = SetPace(0.02, by_line=True)
"""A line a second at the default speed. An hour of more or longer lines would outgrow the preview
of a running answer (`MAX_PREVIEW_BYTES`)."""
_STORY_LINES: Final = 3600
_MAX_REMEMBERED_CHATS: Final = 256
# Without pauses, the stream still yields to other tasks after this many tokens.
_TOKENS_PER_YIELD: Final = 50
# A row of a table comes as a whole: a long table does not make an answer slow.
_TOKEN: Final = re.compile(r"(?m:\s*^\|[^\n]*)|\s*\S{1,12}|\s+")
_LINE: Final = re.compile(r"[^\n]*\n+|[^\n]+")
_POLITE: Final = re.compile(
    r"^\W*(?:(?:please|hello|hi|hey|(?:can|could|would) you|help me)\b\W*)+(?=\w)"
    r"|(?:,? please)?[\s.!?]*$",
    re.IGNORECASE,
)
_TOOL_REQUEST: Final = re.compile(r"(?:call|use) ([\w.-]+)", re.IGNORECASE)
_PLANNED: Final = frozenset({"make a plan", "fix the failing test", "implement the plan"})
"""What the model plans in plan mode."""
_MAX_REQUEST_CHARS: Final = 500
_MAX_TITLE_WORDS: Final = 6
_MAX_QUOTED_CHARS: Final = 600
_MAX_SUMMARY_REQUESTS: Final = 20


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
        request = as_function(request)
        try:
            options = parse_options(DemoOptions, request.options)
        except InvalidInput as error:
            raise config_fault(self._config, error.message) from None
        # Identifies the history: equal for equal messages, different after every step.
        history = msgspec.json.encode(request.messages)
        key = hashlib.blake2b(history, digest_size=9).hexdigest()
        failures = self._failures.pop(key, 0)
        scene = _choose_scene(request, options.seed, options.failures - failures)
        if any(isinstance(item, ProviderFault) for item in scene):
            self._failures[key] = failures + 1
        if len(self._failures) > _MAX_REMEMBERED_CHATS:
            del self._failures[next(iter(self._failures))]
        async with aclosing(self._play(scene, request, options, key)) as events:
            yield events

    def can_continue(self, request: ModelRequest) -> bool:
        """A script goes on wherever its text was cut."""
        del request
        return True

    async def close(self) -> None:
        """Nothing to close."""

    async def _play(
        self, scene: DemoScene, request: ModelRequest, options: DemoOptions, key: str
    ) -> AsyncGenerator[ModelEvent]:
        pace = next((item for item in scene if isinstance(item, SetPace)), SetPace(1.0))
        started_at = self._clock.monotonic()
        tokens = 0
        reason: FinishReason = "stop"
        events = _events(scene, key, _LINE if pace.by_line else _TOKEN)
        for event in _events_after(events, request.continues or ""):
            match event:
                case ProviderFault():
                    raise ProviderError(structs.replace(event, provider=self.name))
                case TextDelta() | ReasoningDelta() | ToolCallDelta():
                    if tokens == request.max_output_tokens:
                        reason = "length"
                        break
                    tokens += 1
                    await self._wait(options.tokens_per_second * pace.factor, started_at, tokens)
                case ToolCallDone():
                    reason = "tool-calls"
                case _:
                    pass
            yield event
        read = estimate_input_tokens(request)
        usage = TokenUsage(input_tokens=read, output_tokens=tokens, total_tokens=read + tokens)
        yield Finished(reason=reason, usage=usage, response_id=f"demo_{key}")

    async def _wait(self, tokens_per_s: float, started_at: float, tokens: int) -> None:
        """Sleep until the token is due. Due times count from the start, so that a slow reader
        receives several tokens at once and catches up."""
        if tokens_per_s > 0:
            delay_s = started_at + tokens / tokens_per_s - self._clock.monotonic()
            if delay_s > 0:
                await self._clock.sleep(delay_s, TOKEN_SLEEP)
        elif tokens % _TOKENS_PER_YIELD == 0:
            await self._clock.sleep(0, TOKEN_SLEEP)


def _events(
    scene: DemoScene, key: str, token: re.Pattern[str]
) -> Iterator[ModelEvent | ProviderFault]:
    for number, item in enumerate(scene):
        block = str(number)
        match item:
            case str():
                yield TextStart(id=block)
                yield from (TextDelta(id=block, delta=text) for text in token.findall(item))
                yield TextEnd(id=block)
            case ThinkText(text=thoughts):
                yield ReasoningStart(id=block)
                yield from (
                    ReasoningDelta(id=block, delta=text) for text in token.findall(thoughts)
                )
                yield ReasoningEnd(id=block)
            case CallTool():
                call_id = ToolCallId(f"demo_{key}_{number}")
                args = msgspec.json.encode(item.args).decode()
                yield ToolCallStart(id=call_id, name=item.name)
                yield from (ToolCallDelta(id=call_id, delta=text) for text in token.findall(args))
                yield ToolCallDone(id=call_id, name=item.name, input=args)
            case SourceFound() | ProviderFault():
                yield item
            case SetPace():
                pass


def _events_after(
    events: Iterator[ModelEvent | ProviderFault], said: str
) -> Iterator[ModelEvent | ProviderFault]:
    """Without the text that has been said. A script that has another text says all of it."""
    for event in events:
        if not said or not isinstance(event, TextDelta):
            yield event
            continue
        size = min(len(said), len(event.delta))
        is_said = event.delta[:size] == said[:size]
        new = event.delta[size:] if is_said else event.delta
        said = said[size:] if is_said else ""
        if new:
            yield structs.replace(event, delta=new)


def _trim(prompt: str) -> str:
    """The start of the prompt in one line, without a polite opening and end."""
    return _POLITE.sub("", " ".join(prompt[:_MAX_REQUEST_CHARS].split()))


def find_script(prompt: str) -> DemoScript | None:
    text = _trim(prompt).lower()
    scripts = (one for one in TEXTS.scripts if text == one.request or re.fullmatch(one.also, text))
    return next(scripts, None) if text else None


_TOOL_SCENES: Final[Mapping[str, Callable[[DemoTurn], DemoScene]]] = {
    "fix the failing test": fix_test,
    "implement the plan": fix_test,
    "run a command": run_command,
    "review this with subagents": lead_team,
    "ask me first": ask_first,
    "use the desktop": show_desktop,
    "open a window and click it": use_desktop,
}


def _choose_scene(request: ModelRequest, seed: int, failures_left: int) -> DemoScene:
    """`failures_left`: how often the model still fails if the prompt asks for an error."""
    turn = read_turn(request)
    if request.output_schema is not UNSET:
        return (SetPace(0.0), msgspec.json.encode({"title": _make_title(turn.prompt)}).decode())
    if SUMMARY_INSTRUCTION in turn.prompt:
        return (_summarize(request),)
    named = _TOOL_REQUEST.fullmatch(_trim(turn.prompt))
    if named is not None and (tool := turn.tools.get(named[1])) is not None:
        return call_sample(turn, tool)
    script = find_script(turn.prompt)
    if turn.is_planning and (script is None or script.request in _PLANNED):
        return make_plan(turn)
    if script is None:
        return (_answer(turn),)
    if (play := _TOOL_SCENES.get(script.request)) is not None:
        return play(turn)
    match script.request:
        case "tell me a long story":
            texts = random.Random(f"{seed}:{turn.prompt}").sample(TEXTS.story, len(TEXTS.story))
            lines = "\n".join(f"{at + 1}. {texts[at % len(texts)]}" for at in range(_STORY_LINES))
            return (STORY_PACE, f"Interrupt me at any time.\n\n{lines}\n\nThat is all.")
        case "show me a permanent error":
            message = "the demo model was asked to refuse the key"
            return (ProviderFault(message=message, status_code=401, type="authentication_error"),)
        case "show me an error" if failures_left > 0:
            message = "the demo model was asked to fail in the middle of an answer"
            fault = ProviderFault(message=message, incomplete=True)
            return ("This answer begins, and then it bre", fault)
        case _:
            return script.scene


def _answer(turn: DemoTurn) -> str:
    quote = "\n".join(f"> {line}" for line in clip(turn.prompt, _MAX_QUOTED_CHARS).splitlines())
    rows = "\n".join(f"| `{one.request}` | {one.shows} |" for one in TEXTS.scripts if one.shows)
    text = TEXTS.answer.format(quote=quote, requests=rows)
    return text if turn.number > 1 else f"{TEXTS.welcome}{text}{TEXTS.while_i_answer}"


def _make_title(prompt: str) -> str:
    """The first words of the chat, without a polite opening."""
    words = _trim(plain_line(re.sub(r"</?chat>", "", prompt[:_MAX_REQUEST_CHARS]))).split()
    title = " ".join(words[:_MAX_TITLE_WORDS]).strip("\"'`.,:;!?- ")
    return title[:1].upper() + title[1:] or "New chat"


def _summarize(request: ModelRequest) -> str:
    """A script knows only what the user asked for, so the summary lists that."""
    asked = [" ".join(text.split()) for text in list_requests(request.messages[:-1])]
    listed = "\n".join(f"- {text[:200]}" for text in asked[-_MAX_SUMMARY_REQUESTS:])
    return TEXTS.summary.format(last=asked[-1][:500], listed=listed)
