"""What the rooms above bedrock may be handed: Protocols, satisfied by shape.

What a chat can ask for when it needs a workspace, and what it is told.

The answers are read by models and shown by pages: a failure keeps its build's id, so that its
logs can be looked at, and says what to do next.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Literal, Protocol
from uuid import UUID

from msgspec import Raw, Struct

from chatd.domain.answer.tool_output import ToolOutput
from chatd.domain.chat.row import Chat, ChatError, Fence
from chatd.domain.ids import ChangeId, ModelConfigId, ToolCallId
from chatd.domain.model.protocol import ModelConfig, ModelEvent, ModelRequest, ToolSpec
from chatd.domain.prompt.instructions import Instructions
from chatd.domain.workspace.entities import AgentLifecycle, FieldProblem, TemplateId


class Clock(Protocol):
    """Time for services. `tag` names what is waited for, so that a test can wait for the waiter."""

    def monotonic(self) -> float: ...

    def now(self) -> datetime:
        """Wall time, for people to read. Nothing is decided by it."""
        ...

    async def sleep(self, seconds: float, tag: str) -> None: ...


class Provider(Protocol):
    """A model's API. It neither retries nor classifies: it raises `ProviderFailed` with the
    facts, from opening the stream or from reading it.

    The stream is a context so that closing is lexical: leaving it, by whatever way, closes
    the socket before anything else happens.
    """

    @property
    def name(self) -> str: ...

    def stream(
        self, request: ModelRequest
    ) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]: ...

    async def close(self) -> None: ...


class Emit(Protocol):
    """Says that something has happened: a log line and a metric in production, something to
    wait for in a test. Ids and numbers only, never content."""

    def __call__(self, event: str, **fields: object) -> None: ...


class Env(Struct, frozen=True, kw_only=True):
    """What comes from outside and differs in a test: time, ids, and who is told."""

    clock: Clock
    emit: Emit
    new_id: Callable[[], UUID]
    new_change_id: Callable[[], ChangeId]


class ModelChoice(Struct, frozen=True, kw_only=True):
    """A configured model and whoever serves it. `kind` says which API that is.

    `origins` says which provider serves or has served each model, so that one is not sent what
    another has sealed; None if that is not known.
    """

    config: ModelConfig
    provider: Provider
    kind: str
    origins: Mapping[ModelConfigId, str] | None = None


class ModelSource(Protocol):
    async def choose(self, model_config_id: ModelConfigId | None) -> ModelChoice:
        """The model that is wanted, or the default. Raises ProviderFailed if there is none
        that can be used, with a fault that says what to set."""
        ...


ToolEffect = Literal["read", "idempotent", "once"]
"""What doing it twice would mean: nothing, the same again, or harm."""


def _discard(text: str) -> None:
    del text


class ToolContext(Struct, frozen=True, kw_only=True):
    """On whose behalf a tool runs. The call's id names its effects, the fence its right to
    have any. `show` lets viewers see more of its output while it runs; it never waits."""

    chat: Chat
    call_id: ToolCallId
    fence: Fence
    show: Callable[[str], None] = _discard


class Tool(Protocol):
    """Something the model may call. Failure is an answer: `run` raises only for bugs."""

    @property
    def spec(self) -> ToolSpec: ...
    @property
    def effect(self) -> ToolEffect: ...
    @property
    def serial(self) -> bool: ...
    @property
    def exclusive(self) -> bool: ...
    @property
    def stops_turn(self) -> bool: ...
    @property
    def timeout_s(self) -> float: ...

    async def run(self, context: ToolContext, args: Raw) -> ToolOutput: ...

    async def recover(self, context: ToolContext) -> ToolOutput | None:
        """What became of a call that was begun before a crash; None if nobody can know."""
        ...


class ToolSource(Protocol):
    """Asked before every step. Neither may take long, whatever has become of a workspace."""

    async def tools(self, chat: Chat) -> Sequence[Tool]: ...

    async def instructions(self, chat: Chat) -> Instructions:
        """What the model is told about the place that its tools act in."""
        ...


class Budget(Protocol):
    async def check(self, chat: Chat) -> ChatError | None:
        """Asked before every model call. What is returned is why there must be none now."""
        ...


class WorkspaceRequest(Struct, frozen=True, kw_only=True):
    """A workspace that is wanted. The key names the wish: asked again, it is the same one."""

    template_id: TemplateId
    name: str = ""
    parameters: Mapping[str, str] = {}
    key: str


class ProvisionResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of a workspace. Of the three flags at the front at most one is set; none with
    an `error`. What is wrong with the agent alone is no failure: it may still come."""

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


class Provisioner(Protocol):
    """Acts for the owner of the chat. Raises ToolError for what the model asked wrongly; all
    waits are bounded, and being cancelled leaves a build to the build worker."""

    async def list_templates(self, chat: Chat, *, query: str, page: int) -> Struct: ...

    async def read_template(self, chat: Chat, template_id: TemplateId) -> Struct: ...

    async def create(self, context: ToolContext, request: WorkspaceRequest) -> ProvisionResult: ...

    async def start(
        self, context: ToolContext, parameters: Mapping[str, str]
    ) -> ProvisionResult: ...

    async def stop(self, context: ToolContext) -> ProvisionResult: ...
