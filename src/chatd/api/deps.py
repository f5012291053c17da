"""The collaborators that routes and streams are given."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Concatenate, Literal, ParamSpec, Protocol, TypeVar

from msgspec import Struct
from prometheus_client import CollectorRegistry

from chatd.aio import retry_unavailable
from chatd.api.accounts.authenticator import Accounts
from chatd.api.request import ApiRequest
from chatd.api.web_page import PACKAGED_HELP, PACKAGED_PAGE
from chatd.domain.chat.row import Chat
from chatd.domain.description import describe
from chatd.domain.errors import NotFound
from chatd.domain.files import FileLimits
from chatd.domain.ids import ChatId, ModelConfigId
from chatd.domain.model.protocol import ModelCapabilities
from chatd.domain.ports import Env
from chatd.engine.model.spend_guard import SpendGuard
from chatd.engine.subagents import ReserveSlot
from chatd.sealed_secrets import KeyRing
from chatd.services.hooks import HookAdministration
from chatd.services.mcp_servers import McpServers
from chatd.services.models.model_administration import ModelAdministration
from chatd.services.models.provider_administration import ProviderAdministration, UserKeys
from chatd.services.models.provider_trials import ProviderTrials
from chatd.services.operation.demo_worker import DemoWorker
from chatd.services.operation.diagnosis import Doctor
from chatd.services.operation.restores import Confirmation
from chatd.services.repositories import RepositoryConnections
from chatd.services.slack.connections import SlackConnections
from chatd.services.workspaces.host_credentials import HostCredentials
from chatd.services.workspaces.runner_administration import RunnerAdministration
from chatd.services.workspaces.runners import RunnerServices
from chatd.services.workspaces.templates import TemplateAdministration
from chatd.services.workspaces.workspaces import WorkspaceControl
from chatd.store.account.audit import ChangeAuthor
from chatd.store.chat.transactor import Transactor
from chatd.store.database.pool import Pool
from chatd.store.file_stores import FileStores
from chatd.store.model.model_configs import StoredModel
from chatd.store.model.providers import StoredProvider
from chatd.store.model.spend import DefaultLimit
from chatd.stream.chat_list import ChatListFeeds
from chatd.stream.feed_registry import FeedRegistry

T = TypeVar("T")
P = ParamSpec("P")


class TitleSuggester(Protocol):
    async def suggest(self, chat: Chat, excerpt: str) -> str:
        """A title for this excerpt of the chat, by a model call. Raises UsageLimit, TitleFailed."""
        ...


class ModelListing(Protocol):
    """Configured models and providers, and those configured earlier, with `enabled` false."""

    async def by_name(self, name: str) -> StoredModel | None: ...
    async def get(self, model_id: ModelConfigId) -> StoredModel | None: ...
    async def default(self) -> StoredModel | None: ...
    async def all(self) -> Sequence[StoredModel]: ...
    async def providers(self) -> Sequence[StoredProvider]: ...
    async def overrides(self) -> Mapping[str, ModelConfigId]:
        """The model of each task that has one."""
        ...

    async def capabilities(self, model: StoredModel) -> ModelCapabilities: ...
    async def is_priced(self, model: StoredModel) -> bool:
        """By its configured prices, the public price list, or the provider's own figures."""
        ...

    async def price_source(self, model: StoredModel) -> str | None:
        """The price list that its prices come from. None: they are configured, or unknown."""
        ...


class StreamLimits(Struct, frozen=True, kw_only=True):
    """A stream is an SSE connection or a WebSocket."""

    streams_per_user: int = 1000
    topics_per_socket: int = 100
    ping_interval_s: float = 15.0
    write_timeout_s: float = 10.0


class RetentionDays(Struct, frozen=True, kw_only=True):
    """How long this server keeps what, in days; 0: for ever. From its settings file."""

    auto_archive: Annotated[int, describe("Idle chats are archived after so many days.", 90)] = 0
    archived_chats: Annotated[
        int, describe("Archived chats are deleted after so many days.", 365)
    ] = 0
    deleted_messages: Annotated[
        int, describe("Messages that an edit deleted are emptied after so many days.", 30)
    ] = 0
    usage: Annotated[
        int, describe("Records of single model calls are deleted after so many days.", 400)
    ] = 0
    debug_records: Annotated[
        int, describe("Debug records of model calls are deleted after so many days.", 30)
    ] = 0
    audit_log: Annotated[
        int, describe("Entries of the audit log are deleted after so many days.", 400)
    ] = 0
    workspaces: Annotated[
        int,
        describe(
            "Records of deleted workspaces and old builds are deleted after so many days.", 90
        ),
    ] = 0


def _unknown(_chat_id: ChatId) -> Chat | None:
    return None


async def _no_push_key() -> str:
    raise NotFound("This server sends no notifications to browsers.")


WebImageHosts = Literal["public", "all", "off"]
"""From which hosts images of the web are loaded for readers of a chat."""
GatherMetrics = Callable[[], Awaitable[bytes]]
"""The metrics of all processes that share this one's port."""


class ApiDeps(Struct, frozen=True, kw_only=True):
    """`announce` publishes a change that leaves the row's version as it is, on all replicas; its
    second argument is the kind of the hint. It does not raise or block. `known` returns a chat's
    row as this replica read it last, which may save a read. Without `workspaces` workspaces are
    disabled. Without a `budget` spending is not limited; `default_limit` is that of the settings.
    `page_dir` has the files of the built page, `help_dir` those of the documentation. Without a
    `demo` no worker can be killed over the API. `stops_subagents`: an interrupt reaches the
    subagents of a chat unless the request says otherwise. Without `mcp`: no MCP servers."""

    pool: Pool
    transactor: Transactor
    announce: Callable[[Chat, str], None]
    reserve_slot: ReserveSlot
    titles: TitleSuggester
    feeds: FeedRegistry
    chat_lists: ChatListFeeds
    models: ModelListing
    model_administration: ModelAdministration
    provider_administration: ProviderAdministration
    provider_trials: ProviderTrials
    user_keys: UserKeys
    templates: TemplateAdministration
    runners: RunnerAdministration
    host_credentials: HostCredentials
    hooks: HookAdministration
    repositories: RepositoryConnections
    slack: SlackConnections
    accounts: Accounts
    env: Env
    registry: CollectorRegistry
    gather_metrics: GatherMetrics | None = None
    files: FileStores
    key_ring: KeyRing
    draining: Callable[[], bool]
    known: Callable[[ChatId], Chat | None] = _unknown
    workspaces: WorkspaceControl | None = None
    runner_services: RunnerServices | None = None
    budget: SpendGuard | None = None
    default_limit: DefaultLimit = DefaultLimit()
    limits: StreamLimits = StreamLimits()
    file_limits: FileLimits = FileLimits()
    web_images: WebImageHosts = "public"
    retention: RetentionDays = RetentionDays()
    database_error: Callable[[], str | None] = lambda: None
    hears_hints: Callable[[], bool] = lambda: True
    wake_webhooks: Callable[[], None] = lambda: None
    push_public_key: Callable[[], Awaitable[str]] = _no_push_key
    reaches_private_hosts: bool = False
    """Whether webhooks and notifications may go to this host and private networks."""
    frame_origins: tuple[str, ...] = ()
    metrics_token: str | None = None
    page_dir: Path = PACKAGED_PAGE
    help_dir: Path = PACKAGED_HELP
    demo: DemoWorker | None = None
    stops_subagents: bool = False
    mcp: McpServers | None = None
    doctor: Doctor | None = None
    confirmation: Confirmation | None = None

    async def read(
        self,
        query: Callable[Concatenate[Pool, P], Awaitable[T]],
        *args: P.args,
        **named: P.kwargs,
    ) -> T:
        """The result of a store's `query`; repeats it for a moment while the database is away."""
        return await self.retry(lambda: query(self.pool, *args, **named))

    async def retry(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeat a read or an idempotent write for a moment while the database is unavailable."""
        return await retry_unavailable(self.env.clock, attempt)

    def author(self, request: ApiRequest) -> ChangeAuthor:
        """The caller as the author of an administrative change."""
        return ChangeAuthor(
            actor=request.caller.actor, ip=self.accounts.site.address(request.scope)
        )
