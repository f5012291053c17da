"""One model call: the spend check before it, the request, the response stream, and its rows for
history and usage.

The stream is a context manager: the socket is closed before the call returns or raises.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from chatd.aio import REQUEST_MARK, RequestMark
from chatd.domain.answer.answer import (
    Answer,
    EmptyAnswer,
    ModelCallRecord,
    StartedCall,
    answer_message,
    judge_answer,
    started_call,
    usage_entry,
)
from chatd.domain.answer.assembler import Assembler
from chatd.domain.answer.tool_calls import DEFAULT_STEP_LIMITS, StepLimits, ToolSet
from chatd.domain.chat.call_waits import PERSON_DEADLINE_S, QUESTION_TOOL
from chatd.domain.chat.messages import Draft, Message, UsageEntry
from chatd.domain.chat.parts import Part, TextPart
from chatd.domain.chat.row import Chat, ChatError
from chatd.domain.computer_use import ANTHROPIC_PICTURES, COMPUTER_TOOL, PICTURES_OF, picture_size
from chatd.domain.decisions import MAX_STEPS_PER_TURN, TurnRules
from chatd.domain.deployment.spend import UNCHECKED_WAIT, SpendRefusal
from chatd.domain.errors import ChatdError, Unavailable
from chatd.domain.ids import ToolCallId
from chatd.domain.mcp.tools import mcp_origin
from chatd.domain.model.classify import classify_fault
from chatd.domain.model.config import cost_micros, resolve_effort
from chatd.domain.model.failures import (
    ClassifiedFailure,
    ModelError,
    known_failure,
    with_provider,
)
from chatd.domain.model.protocol import (
    ComputerTool,
    ModelConfig,
    ModelEvent,
    ModelRequest,
    ProviderError,
    ProviderFault,
    StreamFailed,
    StreamPing,
    TextDelta,
    ToolCallDelta,
    ToolCallDone,
    ToolCallStart,
    ToolSpec,
    UsageReported,
)
from chatd.domain.model.retry import IdleTimeout
from chatd.domain.model.usage import (
    estimate_input_tokens,
    expected_input,
    has_files,
    utf8_size,
)
from chatd.domain.ports import (
    Clock,
    Env,
    ModelChoice,
    PushedEvents,
    Tool,
)
from chatd.domain.prompt.builder import (
    KeptPrompt,
    PendingUpdate,
    PromptTarget,
    build_prompt,
    is_history_larger,
    list_file_ids,
)
from chatd.domain.prompt.compaction import DEFAULT_THRESHOLD_PERCENT, cached_usage
from chatd.domain.prompt.instructions import Instructions
from chatd.domain.prompt.kept_rows import CompactionLimits, below_bound
from chatd.domain.prompt.prompt_files import ResolvedFile
from chatd.domain.subagents import WAIT_TOOL
from chatd.domain.text import utc_text
from chatd.domain.tool_policy.rules import PolicyLayer
from chatd.engine.hooks import NO_HOOKS, ChatHooks
from chatd.engine.model.attempt import Attempt, PartialMessages
from chatd.engine.model.budget import CallAllowance
from chatd.engine.model.file_loader import FileLoader
from chatd.engine.model.spend_guard import SpendGuard, SpendUnknown
from chatd.stream.episodes import PartRecorder

MAX_BUILT_AT_ONCE_CHARS: Final = 256 * 1024
"""Of a history. A thread builds the prompt of a larger one."""

STRICT_PAIRING_KINDS: Final = frozenset({"anthropic", "bedrock"})
"""APIs that reject a history in which a provider-executed call and its result are not paired."""


_TIMELESS_EVENTS: Final = (TextDelta, ToolCallDelta, StreamPing)
"""Events of which the time of arrival is not kept."""


class ClientToolSpec(ToolSpec, frozen=True, kw_only=True):
    """A tool that the chat's client declared. `timeout_s`: how long its result may take."""

    timeout_s: float | None = None

    @property
    def spec(self) -> ToolSpec:
        return ToolSpec(
            name=self.name, description=self.description, input_schema=self.input_schema
        )


class AnswerTimes(Struct, frozen=True, kw_only=True):
    """How long a chat waits for a person."""

    question_s: float = PERSON_DEADLINE_S
    approval_s: float = PERSON_DEADLINE_S


class TurnContext(Struct, frozen=True, kw_only=True):
    """The context of one step: the chat's model, the tools and the instructions. `hidden` tools
    can be called, but the model is not sent them. `refused` tools are sent and cannot be called
    now; the text says why."""

    choice: ModelChoice
    tools: Mapping[str, Tool]
    hidden: frozenset[str] = frozenset()
    refused: Mapping[str, str] = {}
    client_tools: tuple[ClientToolSpec, ...]
    instructions: Instructions = Instructions()
    policy: tuple[PolicyLayer, ...] = ()
    answer_times: AnswerTimes = AnswerTimes()
    limits: StepLimits = DEFAULT_STEP_LIMITS
    max_steps: int = MAX_STEPS_PER_TURN
    compaction: CompactionLimits = CompactionLimits()
    hooks: ChatHooks = NO_HOOKS

    @property
    def config(self) -> ModelConfig:
        return self.choice.config

    @property
    def for_summary(self) -> "TurnContext":
        """With the model that writes summaries, if it is another one."""
        writer = self.choice.summary_model
        return self if writer is None else replace(self, choice=writer)

    @property
    def computer(self) -> ComputerTool | None:
        """The tool for the desktop, if the chat has one."""
        tool = self.tools.get(COMPUTER_TOOL)
        if tool is None or tool.spec.screen is None or COMPUTER_TOOL in self.hidden:
            return None
        limits = PICTURES_OF.get(self.choice.kind, ANTHROPIC_PICTURES)
        size = picture_size(tool.spec.screen, limits)
        return ComputerTool(width_px=size.width, height_px=size.height, function=tool.spec)

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """chatd's tools, the client's, then those of MCP servers, so that a server that is added to
        the chat changes nothing before its tools. The client's tool loses a name clash. Without the
        tool for the desktop."""
        sent = [
            tool
            for name, tool in self.tools.items()
            if name not in self.hidden and tool.spec.screen is None
        ]
        theirs = (tool for tool in self.client_tools if tool.name not in self.tools)
        return (
            *(tool.spec for tool in sent if mcp_origin(tool) is None),
            *(tool.spec for tool in theirs if tool.name not in self.hidden),
            *(tool.spec for tool in sent if mcp_origin(tool) is not None),
        )

    @property
    def client_names(self) -> frozenset[str]:
        """Those that may be called."""
        named = frozenset(spec.name for spec in self.client_tools)
        return named - self.tools.keys() - self.refused.keys()

    @property
    def toolbox(self) -> ToolSet:
        foreign = (name for name, tool in self.tools.items() if mcp_origin(tool) is not None)
        return ToolSet(tools=self.tools, refused=self.refused, lenient=frozenset(foreign))

    @property
    def mcp_servers(self) -> Mapping[str, str]:
        """The configured MCP servers of tools, by the tool's name."""
        found = ((name, mcp_origin(tool)) for name, tool in self.tools.items())
        return {name: each.config_id for name, each in found if each and each.config_id}

    @property
    def rules(self) -> TurnRules:
        threshold = self.config.compaction_threshold
        threshold = DEFAULT_THRESHOLD_PERCENT if threshold is None else threshold
        return TurnRules(
            max_calls=self.limits.calls,
            max_steps=self.max_steps,
            client_tools=self.client_names,
            refused_tools=frozenset(self.refused),
            client_timeouts_s={
                tool.name: tool.timeout_s
                for tool in self.client_tools
                if tool.timeout_s is not None
            },
            question_tools=frozenset({QUESTION_TOOL}) & self.tools.keys(),
            agent_wait_tools=frozenset({WAIT_TOOL}) & self.tools.keys(),
            question_timeout_s=self.answer_times.question_s,
            approval_timeout_s=self.answer_times.approval_s,
            policy=self.policy,
            asks_hooks=self.hooks.has("before_tool"),
            stop_after_tools=frozenset(n for n, tool in self.tools.items() if tool.stops_turn),
            context_limit=self.config.context_limit,
            compaction_threshold=threshold,
            compaction=below_bound(self.compaction, self.choice.learned, threshold),
        )


class CallRows(Struct, frozen=True, kw_only=True):
    """What a call adds to history and to usage. An answer without content adds a notice only.
    `compacted` are the numbers of a summary, for the log."""

    messages: tuple[Draft, ...]
    usage: tuple[UsageEntry, ...]
    compacted: Mapping[str, object] = {}


class ModelCallError(ModelError):
    """The call gave no usable answer. `usage` is to be recorded nevertheless. `has_said`: viewers
    have seen parts of it, which are discarded if another call follows; `partial` makes the messages
    that are kept if none does. `is_begun`: the provider sent a part, so that the
    next call costs money again. `is_refused`: the provider did not begin it. `request_tokens` is
    the estimated size of the request; None if it has files, whose size is not known."""

    def __init__(
        self,
        classified: ClassifiedFailure,
        usage: tuple[UsageEntry, ...] = (),
        *,
        has_said: bool = False,
        is_begun: bool = False,
        is_refused: bool = False,
        request_tokens: int | None = None,
        partial: PartialMessages | None = None,
    ) -> None:
        super().__init__(classified)
        self.partial = partial
        self.usage = usage
        self.has_said = has_said
        self.is_begun = is_begun
        self.is_refused = is_refused
        self.request_tokens = request_tokens


class AnswerTimeout(ModelCallError):
    """The call passed its limit of time. The attempt still has the partial answer."""


class AnswerTooLarge(ModelCallError):
    """The stream passed a limit of its size, or of the time without content. The attempt still has
    the partial answer."""


class SpendExceeded(ModelCallError):
    """The call reached a spend limit. The attempt still has the partial answer."""


_GEN_AI_PROVIDERS: Final = {
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "google": "gcp.gemini",
    "openai-compat": "openai",
}
"""The names of the semantic conventions, where they differ from the kinds of providers."""


def _ignore() -> None:
    pass


class ModelCall:
    """`earlier_usage` is the usage of failed calls of the same step. `used_ids` are the call ids
    of the history, which the answer must not repeat. `before` is stored before the answer.
    `on_answering` is called with each part."""

    def __init__(
        self,
        kind: Literal["turn", "compaction"],
        context: TurnContext,
        env: Env,
        *,
        timeout_s: float | None = None,
        reasoning_effort: str | None = None,
        used_ids: Collection[ToolCallId] = (),
        earlier_usage: tuple[UsageEntry, ...] = (),
        before: tuple[Draft, ...] = (),
    ) -> None:
        self.on_answering: Callable[[], None] = _ignore
        self.first_part_at: float | None = None
        self._kind: Final = kind
        self._choice = context.choice
        self._provider = context.choice.provider
        self._exceeded: SpendRefusal | None = None
        self._env = env
        self._limits = context.choice.limits
        self._max_calls = context.limits.calls
        self._timeout_s = self._limits.answer_s if timeout_s is None else timeout_s
        self._earlier_usage = earlier_usage
        self._used_ids = used_ids
        self._before = before
        self._assembler = Assembler(used_ids, max_calls=self._max_calls)
        self._continues: str | None = None
        self._request_tokens: int | None = None
        self._idle = IdleTimeout.armed(env.clock.monotonic(), self._limits.silence_s)
        self._heard_at = env.clock.monotonic()
        self._is_charged = False
        self._is_opened = False
        self._mark = RequestMark()
        self._id = env.new_id()
        self._mcp_servers = context.mcp_servers
        self.record = ModelCallRecord(
            config=context.config,
            learned=context.choice.learned,
            id=self._id,
            reasoning_effort=reasoning_effort,
        )

    def partial_messages(self, at: str) -> tuple[Draft, ...]:
        """A partial summary is of no use."""
        answer = self._assembler.interrupted(at)
        if self._kind == "compaction" or isinstance(judge_answer(answer, ""), EmptyAnswer):
            return ()
        return self.messages(answer)

    @property
    def kind(self) -> Literal["turn", "compaction"]:
        return self._kind

    @property
    def clock(self) -> Clock:
        return self._env.clock

    def is_content_late(self, waited_s: float) -> bool:
        """Whether a provider that sends only pings has done so for too long."""
        return waited_s >= self._limits.content_s

    def answer_so_far(self) -> Answer:
        return self._assembler.finished()

    def messages(self, answer: Answer) -> tuple[Draft, ...]:
        answered = answer_message(answer, self.record, self._mcp_servers)
        return (*self._before, answered)

    def usage_entries(self, *, ok: bool = False) -> tuple[UsageEntry, ...]:
        """The usage so far, estimated as far as the provider has not told it. Nothing for a call
        that the provider refused or that did not reach it."""
        if not self._is_charged:
            return self._earlier_usage
        usage = self._assembler.usage
        return (*self._earlier_usage, usage_entry(self._kind, self.record, usage, ok=ok))

    async def run(
        self,
        attempt: Attempt,
        request: ModelRequest,
        spend_guard: SpendGuard,
        recorder: PartRecorder,
    ) -> Answer:
        """Publish live parts of an answer to `recorder`; a summary is shown when it is complete.
        A text that the answer continues is shown when the provider has taken it. Raises
        ModelCallError, SpendRefused."""
        config, started_at = self.record.config, self._env.clock.monotonic()
        facts = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": _GEN_AI_PROVIDERS.get(self._choice.kind, self._choice.kind),
            "gen_ai.request.model": config.model,
            "gen_ai.conversation.id": str(attempt.chat.id),
            "chatd.call.kind": self._kind,
            "chatd.model.name": config.name,
        }
        tracer = self._env.tracer
        with tracer.span(f"chat {config.model}", facts, role="client") as span:
            try:
                answer = await self._run(attempt, request, spend_guard, recorder)
                if answer.finished is not None:
                    span.set({"gen_ai.response.finish_reasons": [answer.finished.reason]})
                return answer
            except ModelCallError as error:
                span.fail(error.classified.kind)
                raise
            finally:
                usage = self._assembler.usage
                if self._is_charged:
                    read = usage.cache_read_tokens + usage.cache_creation_tokens
                    span.set(
                        {
                            "gen_ai.usage.input_tokens": usage.input_tokens + read,
                            "gen_ai.usage.output_tokens": usage.output_tokens,
                            "gen_ai.usage.cache_read.input_tokens": usage.cache_read_tokens,
                        }
                    )
                now = self._env.clock.monotonic()
                if self.first_part_at is not None:
                    first_s = round(self.first_part_at - started_at, 4)
                    span.set({"gen_ai.server.time_to_first_token": first_s})
                    self._env.emit("model_first_token", duration_ms=first_s * 1000)
                self._env.emit("model_called", duration_ms=(now - started_at) * 1000)
                tracer.count_call(span, now - started_at)

    async def _run(
        self,
        attempt: Attempt,
        request: ModelRequest,
        spend_guard: SpendGuard,
        recorder: PartRecorder,
    ) -> Answer:
        self._continues = request.continues
        rough = estimate_input_tokens(request)
        estimate = spend_guard.estimate_input(self.record.config, rough)
        self._request_tokens = None if has_files(request) else estimate
        before = cached_usage(attempt.history, self.record.config.id, self._env.clock.now())
        self._assembler = Assembler(
            self._used_ids,
            expected=expected_input(estimate, before),
            max_calls=self._max_calls,
            continues=request.continues,
        )
        attempt.set_partial(self.partial_messages, self.usage_entries)
        started_at = self._heard_at = self._env.clock.monotonic()
        self._idle = IdleTimeout.armed(started_at, self._limits.silence_s)
        limit, failure = asyncio.timeout(self._timeout_s), None
        try:
            async with limit:
                call, chat = self.started_call(), attempt.chat
                allowance = await spend_guard.open(chat, call, self._choice)
                self._mark = RequestMark(lambda: spend_guard.mark_sent(chat, call))
                try:
                    failure = await self._read(request, recorder, allowance, spend_guard)
                finally:  # a stopped call too may have told its input
                    spend_guard.learn_input(self.record.config, rough, self._assembler.told)
        except SpendUnknown:
            raise self.rejected(attempt, UNCHECKED_WAIT) from None
        except TimeoutError:
            if not limit.expired():
                raise
        if limit.expired():
            failure = known_failure("timeout", self.record.config.provider)
        # A call that is cancelled after its request was sent, and before the provider answers, may
        # be charged; no other is.
        self._is_charged = self._is_opened
        if not self._is_charged:
            spend_guard.discard(self.started_call())
        self._idle = self._idle.released()
        failure = self._idle.failure(self.record.config.provider, failure)
        if failure is None or self._kind == "compaction":
            took_s = self._env.clock.monotonic() - started_at
            self.record = replace(self.record, runtime_ms=round(took_s * 1000))
        if failure is not None:
            if self._exceeded is not None:
                raise SpendExceeded(failure, self.usage_entries())
            failure = with_provider(failure, self.record.config.provider)
            if limit.expired():
                raise AnswerTimeout(failure, self.usage_entries())
            if failure.kind in ("answer_too_large", "stream_content_timeout"):
                raise AnswerTooLarge(failure, self.usage_entries())
            raise self.rejected(attempt, failure, partial=self.partial_messages)
        return self._assembler.finished()

    def rejected(
        self,
        attempt: Attempt,
        failure: ClassifiedFailure,
        partial: PartialMessages | None = None,
    ) -> ModelCallError:
        """Discard the answer; its usage stays to be recorded. What it said after a text that it
        continued is continued again, or kept if the turn fails."""
        usage = self.usage_entries()
        if self._continues is None:
            attempt.set_unrecorded_usage(usage)
        else:
            attempt.set_partial(self.partial_messages, lambda: usage)
        is_begun = self.first_part_at is not None
        return ModelCallError(
            failure,
            usage,
            has_said=is_begun and self._continues is None,
            is_begun=is_begun,
            is_refused=not self._is_opened,
            request_tokens=self._request_tokens,
            partial=partial,
        )

    async def _read(
        self,
        request: ModelRequest,
        recorder: PartRecorder,
        allowance: CallAllowance | None,
        spend_guard: SpendGuard,
    ) -> ClassifiedFailure | None:
        """None if the stream ended well, or was closed by the idle timeout."""
        try:
            self._is_charged = True
            REQUEST_MARK.set(self._mark)
            async with self._closed_when_idle(), self._provider.stream(request) as events:
                self._is_opened = True
                await self._mark.send()  # For a provider that does not tell when it sends.
                if self._continues is not None:
                    recorder.add("assistant", (TextPart(text=self._continues),))
                return await self._assemble(events, recorder, allowance)
        except ProviderError as failed:
            return classify_fault(failed.fault)
        except ModelError as failed:
            return failed.classified
        except TimeoutError:
            if not self._idle.is_expired:
                raise
            return None
        except asyncio.CancelledError:
            if _is_task_cancelled():
                if self._mark.is_sent is False:
                    self._is_charged = False
                    spend_guard.discard(self.started_call())
                raise
            message, name = "the connection was given up", self.record.config.provider
            return classify_fault(ProviderFault(message=message, provider=name, transport="reset"))
        except ChatdError:
            self._is_charged = self._is_opened  # The mark could not be written.
            raise

    async def _assemble(
        self,
        events: AsyncIterator[ModelEvent],
        recorder: PartRecorder,
        allowance: CallAllowance | None,
    ) -> ClassifiedFailure | None:
        intake = _Intake(self, recorder, allowance)
        if isinstance(events, PushedEvents):
            while not await events.push(intake.take):
                if await intake.has_failed():
                    break
        else:
            async for event in events:
                if not intake.take((event,)) and await intake.has_failed():
                    break
        return intake.failure

    def hear(self, now: float) -> None:
        """Something arrived: the provider is not silent."""
        self._heard_at = now

    def take_event(self, event: ModelEvent) -> tuple[Part, ...]:
        """The live parts of an event of the stream."""
        at = None if type(event) in _TIMELESS_EVENTS else utc_text(self._env.clock.now())
        parts = self._assembler.feed(event, at)
        if parts:
            self.on_answering()
            if self.first_part_at is None:
                self.first_part_at = self._env.clock.monotonic()
        return parts

    @property
    def cost_so_far(self) -> int | None:
        return cost_micros(self._assembler.usage, self.record.config.prices)

    def exceeded(self, refusal: SpendRefusal) -> ClassifiedFailure:
        self._exceeded = refusal
        return ClassifiedFailure(kind="usage_limit", error=refusal.error)

    def started_call(self) -> StartedCall:
        return started_call(
            self._kind,
            self._id,
            self.record.config,
            self._assembler.usage,
            continued_bytes=utf8_size(self._continues or ""),
        )

    @asynccontextmanager
    async def _closed_when_idle(self) -> AsyncGenerator[None]:
        """A timer task beside the reader. Not in a task group, which would wrap the stream's
        exceptions."""
        async with asyncio.timeout(None) as closing:
            timer = asyncio.get_running_loop().create_task(
                self._watch_idle(closing), name="idle timeout"
            )
            try:
                yield
            finally:
                timer.cancel()

    async def _watch_idle(self, closing: asyncio.Timeout) -> None:
        clock = self._env.clock
        while not self._idle.is_expired:
            await clock.sleep(self._idle.wait_s(clock.monotonic()), "silence")
            self._idle = self._idle.touched(self._heard_at).checked(clock.monotonic())
        closing.reschedule(asyncio.get_running_loop().time())


class _Intake:
    """Takes the events of one stream as they arrive, without waiting: assembles them, records
    their parts and checks what they cost. `failure` is why the stream is read no further."""

    def __init__(
        self, call: ModelCall, recorder: PartRecorder, allowance: CallAllowance | None
    ) -> None:
        self.failure: ClassifiedFailure | None = None
        self._call = call
        self._recorder = recorder
        self._allowance = allowance
        self._clock = call.clock
        self._content_at = self._clock.monotonic()
        self._has_usage = False
        self._refusal: SpendRefusal | None = None
        self._uncovered: int | None = None
        self._left: Sequence[ModelEvent] = ()

    def take(self, events: Sequence[ModelEvent]) -> bool:
        """False: `has_failed` must be awaited before more is taken."""
        now = self._clock.monotonic()
        self._call.hear(now)
        for number, event in enumerate(events, 1):
            if not self._take(event, now):
                self._left = events[number:]
                return False
        return True

    async def has_failed(self) -> bool:
        """Reserve what the answer costs, and take what is left of the events."""
        while self.failure is None:
            if self._uncovered is not None and self._allowance is not None:
                cost, self._uncovered = self._uncovered, None
                self._refusal = await self._allowance.cover(cost)
            left, self._left = self._left, ()
            if self.take(left):
                return False
        return True

    def _take(self, event: ModelEvent, now: float) -> bool:
        call = self._call
        if isinstance(event, StreamFailed):
            self.failure = classify_fault(event.fault)
            return False
        parts = call.take_event(event)
        if parts or isinstance(event, ToolCallStart | ToolCallDelta | ToolCallDone):
            self._content_at = now
        elif isinstance(event, StreamPing) and call.is_content_late(now - self._content_at):
            self.failure = known_failure("stream_content_timeout", call.record.config.provider)
            return False
        is_usage = isinstance(event, UsageReported)
        if parts and call.kind == "turn":
            self._recorder.add("assistant", parts)
        elif is_usage and not self._has_usage:
            self._has_usage = True
            self._recorder.record_call(msgspec.json.encode(call.started_call()))
        if self._allowance is None or not (parts or is_usage):
            return True
        if self._refusal is not None and parts:
            # A refusal ends the call at the next chunk: an answer that is complete is kept.
            self.failure = call.exceeded(self._refusal)
            return False
        cost = call.cost_so_far
        if cost is None or self._allowance.is_covered(cost):
            self._refusal = None
            return True
        self._uncovered = cost
        return False


async def build_request(
    attempt: Attempt,
    context: TurnContext,
    before: Sequence[PendingUpdate] = (),
    loader: FileLoader | None = None,
) -> ModelRequest:
    """A thread converts a long history, so that other chats are not stopped meanwhile. Raises
    ModelCallError if a file cannot be loaded."""
    history = [*attempt.history, *(pending.row for pending in before)]
    chat, files = attempt.chat, dict[str, ResolvedFile]()
    if loader is not None and (named := list_file_ids(history)):
        try:
            files = await loader.load(chat.id, named, context.choice.files)
        except Unavailable as error:
            raise ModelCallError(files_unavailable(error)) from error
    is_large = is_history_larger(history, MAX_BUILT_AT_ONCE_CHARS)
    if is_large or sum(len(file.data) for file in files.values()) > MAX_BUILT_AT_ONCE_CHARS:
        # A thread goes on when its call is cancelled: the next attempt must not share its prompt.
        kept = attempt.take_kept_prompt()
        request = await asyncio.to_thread(_build_request, history, chat, context, files, kept)
        attempt.set_kept_prompt(kept)
        return request
    return _build_request(history, chat, context, files, attempt.kept_prompt)


def files_unavailable(error: Unavailable) -> ClassifiedFailure:
    """The next attempt may find them."""
    message = "The files of this chat cannot be loaded now."
    failure = ChatError(message=message, detail=error.code, kind="generic", retryable=True)
    return ClassifiedFailure(kind="generic", error=failure)


def _build_request(
    history: Sequence[Message],
    chat: Chat,
    context: TurnContext,
    files: Mapping[str, ResolvedFile],
    kept: KeptPrompt,
) -> ModelRequest:
    config, choice = context.config, context.choice
    reader = PromptTarget(
        provider=config.provider,
        origins=choice.origins,
        strict_tools=choice.kind in STRICT_PAIRING_KINDS,
        files=files,
        accepts=choice.files.takes,
    )
    return ModelRequest(
        model=config.model,
        messages=build_prompt(history, reader, kept),
        kept_wire=kept.wire,
        tools=context.specs,
        computer=context.computer,
        max_output_tokens=config.max_output_tokens,
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=config.top_k,
        presence_penalty=config.presence_penalty,
        frequency_penalty=config.frequency_penalty,
        reasoning_effort=resolve_effort(
            chat.reasoning_effort, config.reasoning_effort, choice.efforts
        ),
        options=config.options,
        cache_key=str(chat.id),
        ids=call_ids(chat),
    )


def call_ids(chat: Chat) -> Mapping[str, str]:
    """For whom a call is made: see `ModelRequest.ids`."""
    ids = {
        "owner_id": str(chat.owner_id),
        "chat_id": str(chat.id),
        "root_chat_id": str(chat.root_chat_id),
    }
    if chat.workspace_id is not None:
        ids["workspace_id"] = str(chat.workspace_id)
    return ids


def _is_task_cancelled() -> bool:
    """If not, the cancellation came from the transport, which gave up a connection."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
