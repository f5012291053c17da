"""The collaborators that routes and streams are given."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from pathlib import Path
from typing import Protocol, TypeVar
from uuid import UUID

from msgspec import Struct
from prometheus_client import CollectorRegistry

from chatd.aio import retry_unavailable
from chatd.api.accounts.accounts import Accounts
from chatd.api.mcp_ports import McpServices
from chatd.api.model_ports import ModelListing, ModelServices
from chatd.api.request import ApiRequest
from chatd.api.schemas.runtime_settings import RetentionDays
from chatd.api.web_page.files import PACKAGED_PAGE
from chatd.domain.chat.row import Chat
from chatd.domain.errors import NotFound
from chatd.domain.file.entities import FileLimits
from chatd.domain.ids import ChatId, WorkerId, WorkspaceId
from chatd.domain.ports import Env
from chatd.domain.spend import SpendRefusal
from chatd.domain.workspace.agent_api import DiffScope, GitChanges, ScopedDiff
from chatd.domain.workspace.effects import WorkspaceEffects
from chatd.domain.workspace.entities import FieldProblem, Template, TemplateSpec
from chatd.domain.workspace.files import WorkspaceFiles
from chatd.domain.workspace.terminals import TerminalSize, WorkspaceTerminal
from chatd.sealed_secrets import KeyRing
from chatd.store.account.audit import ChangeAuthor
from chatd.store.chat.transactor import Transactor
from chatd.store.file.stores import FileStores
from chatd.store.pool import Pool
from chatd.store.spend import DefaultLimit
from chatd.stream.chat_list import ChatListFeeds
from chatd.stream.feed_registry import FeedRegistry

T = TypeVar("T")


class ReserveSlot(Protocol):
    """Reserve a slot of this replica's worker until the write has ended. None if it has none."""

    def __call__(self, *, root: bool) -> AbstractContextManager[WorkerId | None]: ...


class AnnounceChat(Protocol):
    """Publish a change that leaves the row's version as it is, on all replicas. `kind` is the
    hint's kind. Must not raise or block."""

    def __call__(self, chat: Chat, kind: str) -> None: ...


class TitleSuggester(Protocol):
    async def suggest(self, chat: Chat, excerpt: str) -> str:
        """A title for this excerpt of the chat, by a model call. Raises UsageLimit, TitleFailed."""
        ...


class WorkspaceControl(Protocol):
    """What the API needs of workspaces beyond their rows. Replicas without a build worker have
    it too: another replica runs the builds."""

    @property
    def host_id(self) -> str:
        """The host on which workspaces created here are built."""
        ...

    @property
    def ttl_s(self) -> str | None:
        """The configured time after which an unused workspace stops."""
        ...

    def wake(self) -> None:
        """Let the build worker look for builds now."""
        ...

    async def find_problems(
        self, template: Template, spec: TemplateSpec, values: Mapping[str, str]
    ) -> Sequence[FieldProblem]:
        """Problems that would certainly make a start with these values fail."""
        ...

    async def on_bound(self, chat_id: ChatId, workspace_id: WorkspaceId | None) -> None:
        """The chat's workspace or pinned instructions changed: forget the cached ones."""
        ...

    async def refresh_context(self, chat: Chat) -> None:
        """Store the instructions of the chat's workspace as they are now. Raises Conflict,
        AgentUnreachable or AgentRefused within 40 s."""
        ...

    async def read_diff(self, chat: Chat, scope: DiffScope) -> Sequence[ScopedDiff]:
        """What the scope has changed. Raises Conflict, AgentRefused or AgentLost within 30 s."""
        ...

    def git(self, chat: Chat) -> AbstractAsyncContextManager[AsyncGenerator[GitChanges]]:
        """Changes in the chat's git repositories. Raises Conflict or AgentLost within 30 s."""
        ...

    async def effects(self, chat: Chat) -> WorkspaceEffects:
        """What a person does in the workspace. Raises Conflict or AgentLost within 30 s."""
        ...

    async def files(self, chat: Chat) -> WorkspaceFiles:
        """The files of the chat's workspace. Raises Conflict or AgentLost within 30 s."""
        ...

    async def terminal(
        self, chat: Chat, terminal_id: UUID, size: TerminalSize
    ) -> WorkspaceTerminal:
        """Open a terminal in the chat's workspace, or find it again. Raises Conflict, AgentRefused
        or AgentLost within a minute."""
        ...


class DemoControl(Protocol):
    """A worker process that may be killed, where the demo is shown."""

    async def is_available(self) -> bool: ...

    @property
    def is_running(self) -> bool: ...

    async def start(self) -> None:
        """Returns when it runs. Raises Conflict, Unavailable."""
        ...

    async def kill(self) -> None:
        """Returns when it is dead. Raises Conflict."""
        ...


class SpendCheck(Protocol):
    async def check(self, chat: Chat) -> SpendRefusal | None:
        """Why the chat's owner may not spend more. Quick, and does not raise."""
        ...


class StreamLimits(Struct, frozen=True, kw_only=True):
    """A stream is an SSE connection or a WebSocket."""

    streams_per_user: int = 1000
    topics_per_socket: int = 100
    ping_interval_s: float = 15.0
    write_timeout_s: float = 10.0


def _unknown(_chat_id: ChatId) -> Chat | None:
    return None


async def _no_push_key() -> str:
    raise NotFound("This server sends no notifications to browsers.")


class ApiDeps(Struct, frozen=True, kw_only=True):
    """`known` returns a chat's row as this replica read it last, which may save a read. Without
    `workspaces` workspaces are disabled. Without a `budget` spending is not limited;
    `default_limit` is that of the settings. `page_dir` has the files of the built page. Without a
    `demo` no worker can be killed over the API. `stops_subagents`: an interrupt reaches the
    subagents of a chat unless the request says otherwise. Without `mcp` there are no MCP
    servers."""

    pool: Pool
    transactor: Transactor
    announce: AnnounceChat
    reserve_slot: ReserveSlot
    titles: TitleSuggester
    feeds: FeedRegistry
    chat_lists: ChatListFeeds
    models: ModelListing
    model_services: ModelServices
    accounts: Accounts
    env: Env
    registry: CollectorRegistry
    files: FileStores
    key_ring: KeyRing
    draining: Callable[[], bool]
    known: Callable[[ChatId], Chat | None] = _unknown
    workspaces: WorkspaceControl | None = None
    budget: SpendCheck | None = None
    default_limit: DefaultLimit = DefaultLimit()
    limits: StreamLimits = StreamLimits()
    file_limits: FileLimits = FileLimits()
    retention: RetentionDays = RetentionDays()
    database_error: Callable[[], str | None] = lambda: None
    wake_webhooks: Callable[[], None] = lambda: None
    push_public_key: Callable[[], Awaitable[str]] = _no_push_key
    reaches_private_hosts: bool = False
    """Whether webhooks and notifications may go to this host and private networks."""
    frame_origins: tuple[str, ...] = ()
    metrics_token: str | None = None
    page_dir: Path = PACKAGED_PAGE
    demo: DemoControl | None = None
    stops_subagents: bool = False
    mcp: McpServices | None = None

    async def retry(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeat a read or an idempotent write for a moment while the database is unavailable."""
        return await retry_unavailable(self.env.clock, attempt)

    def author(self, request: ApiRequest) -> ChangeAuthor:
        """The caller as the author of an administrative change."""
        return ChangeAuthor(
            actor=request.caller.actor, ip=self.accounts.site.address(request.scope)
        )
