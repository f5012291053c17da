"""Protocols through which packages use each other, and the values they exchange: clock, provider,
tools, budget, workspace access and provisioning.
"""

from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime
from typing import Final, Literal, Protocol, runtime_checkable
from uuid import UUID

from msgspec import Raw, Struct

from chatd.domain.answer.tool_calls import call_key
from chatd.domain.answer.tool_output import ToolOutput
from chatd.domain.chat.row import AgentWait, Chat, Fence
from chatd.domain.files import ByteRange, StoredFile
from chatd.domain.ids import ChangeId, ChatId, FileId, ModelConfigId, ToolCallId, UserId
from chatd.domain.model.config import LearnedLimit
from chatd.domain.model.failures import RemovedModel
from chatd.domain.model.protocol import (
    ANY_IMAGE_OR_PDF,
    AcceptedFiles,
    Effort,
    ModelConfig,
    ModelEvent,
    ModelRequest,
    ToolSpec,
)
from chatd.domain.model.retry import CallLimits
from chatd.domain.prompt.instructions import Instructions
from chatd.domain.subagents import (
    AgentPage,
    AgentReport,
    InterruptedAgent,
    MessagedAgent,
    SpawnedAgent,
    SubagentModel,
    SubagentType,
)
from chatd.domain.tool_modes import ToolOrigin
from chatd.domain.workspace.entities import AgentLifecycle, FieldProblem


class Clock(Protocol):
    """Time for services. `tag` names the wait, so that a test can await that a task sleeps."""

    def monotonic(self) -> float: ...

    def now(self) -> datetime:
        """Wall time, for display only. No decision depends on it."""
        ...

    async def sleep(self, seconds: float, tag: str) -> None: ...


TakeEvents = Callable[[Sequence[ModelEvent]], bool]
"""Takes the next events of a stream at once. False: take no more for now."""


@runtime_checkable
class PushedEvents(Protocol):
    """A stream of events that can also be passed on as they arrive, without waking a coroutine for
    each of them."""

    async def push(self, take: TakeEvents) -> bool:
        """Call `take` with the events that arrive, until it returns False or the stream ends. True
        if it has ended. Raises ProviderError, and what `take` raises."""
        ...


class Provider(Protocol):
    """A model's API. It neither retries nor classifies: opening or reading the stream raises
    `ProviderError` with the fault.

    The stream is a context manager: its exit closes the socket, on every path.
    """

    @property
    def name(self) -> str: ...

    def stream(
        self, request: ModelRequest
    ) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]: ...

    def can_continue(self, request: ModelRequest) -> bool:
        """Whether the model is known to go on from a text that its answer begins with, in a
        request with these settings."""
        ...

    async def close(self) -> None: ...


class Emit(Protocol):
    """Report an event: a log line and a metric in production, an awaitable in a test. Fields are
    ids and numbers, never content."""

    def __call__(self, event: str, **fields: object) -> None: ...


def _no_jitter() -> float:
    return 0.0


SpanRole = Literal["internal", "client"]
SpanAttributes = Mapping[str, str | int | float | bool | Sequence[str]]


class TracedSpan(Protocol):
    """A part of a trace that has begun."""

    def set(self, attributes: SpanAttributes) -> None: ...

    def fail(self, kind: str) -> None:
        """It has failed, with an error of this kind."""
        ...


class Tracer(Protocol):
    """Spans of work, for a collector of traces. `has_content`: texts may be in them."""

    @property
    def has_content(self) -> bool: ...

    def span(
        self,
        name: str,
        attributes: SpanAttributes,
        *,
        role: SpanRole = "internal",
        turn: str | None = None,
    ) -> AbstractContextManager[TracedSpan]:
        """A span below the one that this task is in. With `turn` it begins the part of that turn's
        trace that this worker runs."""
        ...

    def count_call(self, span: TracedSpan, duration_s: float) -> None:
        """The span of a model call has all its attributes."""
        ...

    def place(self) -> str | None:
        """Where this task is in its trace, as a `traceparent`, for programs that continue it."""
        ...

    async def close(self) -> None:
        """Send what is left, for a short time."""
        ...


class NoTracer:
    """Satisfies `Tracer` and `TracedSpan`: nothing is traced."""

    has_content = False

    def span(
        self,
        name: str,
        attributes: SpanAttributes,
        *,
        role: SpanRole = "internal",
        turn: str | None = None,
    ) -> AbstractContextManager[TracedSpan]:
        del name, attributes, role, turn
        return self

    def __enter__(self) -> TracedSpan:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def set(self, attributes: SpanAttributes) -> None:
        pass

    def fail(self, kind: str) -> None:
        pass

    def count_call(self, span: TracedSpan, duration_s: float) -> None:
        pass

    def place(self) -> str | None:
        return None

    async def close(self) -> None:
        pass


NO_TRACER: Final = NoTracer()


class Env(Struct, frozen=True, kw_only=True):
    """Dependencies that tests replace: time, ids, chance, the event sink and the tracer. `jitter`
    is a random number from 0 to 1, which lengthens a delay."""

    clock: Clock
    emit: Emit
    new_id: Callable[[], UUID]
    new_change_id: Callable[[], ChangeId]
    jitter: Callable[[], float] = _no_jitter
    tracer: Tracer = NO_TRACER


class FileStore(Protocol):
    """Where the bytes of files are kept, in pieces of `chunk_bytes` that are numbered from 0."""

    @property
    def name(self) -> str: ...

    @property
    def chunk_bytes(self) -> int: ...

    async def write(self, file_id: FileId, number: int, chunk: bytes) -> None:
        """To write a piece again is allowed."""
        ...

    def read(self, file: StoredFile, part: ByteRange) -> AsyncGenerator[bytes]:
        """Yields at most one piece at a time. Raises Unavailable."""
        ...

    async def remove(self, file_id: FileId, chunk_bytes: int) -> None:
        """Remove all pieces, as far as there are any."""
        ...

    async def close(self) -> None: ...


class ModelChoice(Struct, frozen=True, kw_only=True):
    """A configured model and its provider. `kind` names the provider's API.

    `origins` maps each model to the provider that serves or served it, so that a provider is not
    sent another provider's encrypted content. None: unknown. `limits` are those of one call.
    `files` are those that the model takes, `efforts` the reasoning efforts; None: unknown.
    `owner_id` is the user that it was chosen for. `by_user_key`: the key is that user's own.
    `replaces` is the chat's own model, which was removed. `stands_in_for` is the chat's own model,
    if this one answers because that has failed.
    `summary_model` writes the chat's summaries instead, if an administrator chose one.
    `learned` is what refusals have taught of its context window, unless an operator has set the
    limit; the configuration has it already if it is exact.
    """

    config: ModelConfig
    provider: Provider
    kind: str
    origins: Mapping[ModelConfigId, str] | None = None
    limits: CallLimits = CallLimits()
    files: AcceptedFiles = ANY_IMAGE_OR_PDF
    efforts: tuple[Effort, ...] | None = None
    owner_id: UserId | None = None
    by_user_key: bool = False
    replaces: RemovedModel | None = None
    stands_in_for: ModelConfig | None = None
    summary_model: "ModelChoice | None" = None
    learned: LearnedLimit | None = None


class ModelSource(Protocol):
    async def choose(
        self, model_config_id: ModelConfigId | None, owner_id: UserId | None = None
    ) -> ModelChoice:
        """The requested model, or the default, for a chat of this owner. Raises ModelError if it
        cannot be used; the error says what is missing. ModelRemoved: the model is gone, and the
        default may take its place."""
        ...

    async def choose_named(self, name: str, owner_id: UserId | None = None) -> ModelChoice:
        """The model of that name, for a chat of this owner. Raises ModelError."""
        ...

    async def configured(self, model_config_id: ModelConfigId | None) -> ModelConfig | None:
        """The configuration of a model, or of the default, whether or not it can be used now. None
        if there is none."""
        ...

    async def learn_limit(self, model_id: ModelConfigId, learned: LearnedLimit) -> None:
        """Keep the context limit that a refusal of the model has taught, for all chats."""
        ...

    async def forget_limit(self, model_id: ModelConfigId, learned: LearnedLimit) -> None:
        """The model has answered a longer prompt than it had been learned to take."""
        ...


ToolEffect = Literal["read", "idempotent", "once"]
"""Whether a repeated call is harmless: `once` must not run twice."""


def _discard(text: str) -> None:
    del text


async def _go_on(text: str) -> None:
    del text


class ToolContext(Struct, frozen=True, kw_only=True):
    """The chat, call and fence a tool runs under. `show` sends output to viewers while the tool
    runs; it never blocks. `wait_for` tells them why the call cannot go on now, and with an empty
    text that it does; it never fails. `traceparent` is its place in the trace, if there is one."""

    chat: Chat
    call_id: ToolCallId
    fence: Fence
    show: Callable[[str], None] = _discard
    wait_for: Callable[[str], Awaitable[None]] = _go_on
    traceparent: str | None = None

    @property
    def call_key(self) -> str:
        return call_key(self.chat.id, self.fence.history_version, self.call_id)

    @property
    def may_have_run(self) -> bool:
        """A worker began this step before, and may have started the call."""
        return self.chat.attempt > 1


class Tool(Protocol):
    """A tool that the model may call. A failed call returns an error output; `run` raises only
    for bugs."""

    @property
    def spec(self) -> ToolSpec: ...
    @property
    def effect(self) -> ToolEffect: ...
    @property
    def serial(self) -> bool: ...
    @property
    def origin(self) -> ToolOrigin:
        """By which the mode of a chat decides whether it has the tool."""
        ...

    @property
    def stops_turn(self) -> bool: ...
    @property
    def timeout_s(self) -> float: ...

    async def run(self, context: ToolContext, args: Raw) -> ToolOutput: ...

    async def recover(self, context: ToolContext) -> ToolOutput | None:
        """The output of a call that started before a crash; None if it cannot be known."""
        ...


class ToolFamily(Protocol):
    async def tools(self, chat: Chat) -> Sequence[Tool]:
        """The family's tools for this chat. Returns quickly, whatever does not answer."""
        ...


class ToolSource(Protocol):
    """Tools and instructions of a chat, read before every step. Both return quickly even if the
    workspace does not answer."""

    async def tools(self, chat: Chat) -> Sequence[Tool]: ...

    async def instructions(self, chat: Chat) -> Instructions:
        """Instructions that describe the chat's workspace."""
        ...

    async def save_result(self, context: ToolContext, output: ToolOutput) -> ToolOutput:
        """Put a text that is too long for history where the model can read it, and say in `saved`
        where that is. The output as it was if there is no such place. Raises StaleFence."""
        ...


class SpawnRequest(Struct, frozen=True, kw_only=True):
    """A subagent to start. `model` is a name or an id; empty: as the settings say, or the
    parent's."""

    type: SubagentType
    prompt: str
    title: str = ""
    model: str = ""
    reasoning_effort: str = ""


class Subagents(Protocol):
    """Starts and leads the subagents of the chat in the context, and reaches no other chat. Raises
    ToolError for what the model can correct, StaleFence if another worker runs the chat."""

    async def spawn(self, context: ToolContext, request: SpawnRequest) -> SpawnedAgent: ...

    async def wait(
        self, context: ToolContext, chat_id: ChatId, timeout_s: float
    ) -> AgentReport | AgentWait: ...

    async def send(
        self, context: ToolContext, chat_id: ChatId, text: str, *, interrupt: bool
    ) -> MessagedAgent: ...

    async def interrupt(self, context: ToolContext, chat_id: ChatId) -> InterruptedAgent: ...

    async def list_page(self, chat: Chat, *, limit: int, offset: int) -> AgentPage: ...

    async def list_models(self, chat: Chat) -> Sequence[SubagentModel]: ...


class SubagentModels(Protocol):
    async def choose(
        self, chat: Chat, type_: SubagentType, wanted: str, effort: str = ""
    ) -> ModelConfigId | None:
        """The model of a new subagent of this chat. Raises ToolError if the wanted one cannot be
        used, or not with that effort; None: the default."""
        ...

    async def usable(self, owner_id: UserId) -> Sequence[SubagentModel]: ...


class WorkspaceRequest(Struct, frozen=True, kw_only=True):
    """A workspace to create. `template` is an id or a name. A repeated `key` finds the workspace of
    the first request."""

    template: str
    name: str = ""
    parameters: Mapping[str, str] = {}
    key: str


class ProvisionResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome of a workspace tool, read by models and shown by clients. At most one of the
    first three flags is set; none with an `error`. A missing agent is no error: it may still
    connect. A failure keeps its `build_id`, so that the build's log can be read."""

    created: bool = False
    started: bool = False
    stopped: bool = False
    already_exists: bool = False
    workspace_name: str = ""
    workspace_id: str = ""
    build_id: str = ""
    no_build: bool = False
    directory: str = ""
    isolation: str = ""
    agent_status: Literal["", "not_ready", "no_agent", "selection_error"] = ""
    agent_error: str = ""
    startup_scripts: Literal[
        "", "startup_scripts_failed", "startup_scripts_timeout", "startup_scripts_unknown"
    ] = ""
    lifecycle_state: AgentLifecycle | None = None
    message: str = ""
    error: str = ""
    error_code: str = ""
    validations: tuple[FieldProblem, ...] = ()
    template_id: str = ""
