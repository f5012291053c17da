"""Tools as the protocol sees them: what is listed, what a call gets, and what it returns."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from msgspec import UNSET, Struct, UnsetType

from chatd.api.auth import ApiCaller
from chatd.api.mcp.messages import Json
from chatd.api.request import Scope
from chatd.api.stream_access import StreamAccess


class ToolHints(Struct, frozen=True, kw_only=True, rename="camel"):
    """What a client may assume of a call before it asks its user."""

    title: str
    read_only_hint: bool
    destructive_hint: bool = False
    idempotent_hint: bool = False
    open_world_hint: bool = False


class ListedTool(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A tool in the reply to `tools/list`."""

    name: str
    description: str
    input_schema: Json
    title: str | UnsetType = UNSET
    output_schema: Json | UnsetType = UNSET
    annotations: ToolHints | UnsetType = UNSET


class ToolReply(Struct, frozen=True, kw_only=True):
    """The result of a call. `retryable`: nothing was done, and the same call may succeed in a
    moment."""

    content: Sequence[Json]
    structured: object = UNSET
    is_error: bool = False
    retryable: bool = False


class Progress(Struct, frozen=True, kw_only=True):
    """How far a call is. `done` grows with every report."""

    done: float
    total: float
    message: str


Report = Callable[[Progress], Awaitable[None]]


class StreamCut(Exception):
    """Raised by a tool to close the stream of its call: the client connects again for the rest."""


class ToolCall(Struct, frozen=True, kw_only=True):
    """One call. `key` is its idempotency key, if the client gave one. `started_ms` is the wall time
    at which the call began, also if this is its continuation after a cut (`is_resumed`). A tool
    that streams has an `access`, which notices that the caller may no longer read a chat."""

    caller: ApiCaller
    scope: Scope
    arguments: Json
    report: Report
    started_ms: int
    key: str | None = None
    is_resumed: bool = False
    access: StreamAccess | None = None


class ToolSet(Protocol):
    """The tools that a server offers."""

    @property
    def instructions(self) -> str:
        """How to use them together, for the client's model."""
        ...

    def listed(self, caller: ApiCaller) -> Sequence[ListedTool]:
        """What the caller may call."""
        ...

    def streams(self, name: str) -> bool | None:
        """Whether calls of this tool take long, report progress and can be resumed: such a tool
        changes nothing, so that it may run again. None if there is no such tool."""
        ...

    async def call(self, name: str, call: ToolCall) -> ToolReply:
        """Raises ChatdError, which the client gets as a result that says what to do."""
        ...
