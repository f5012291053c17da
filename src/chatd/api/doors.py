"""What the front door opens onto: the rest of the house, as far as the routes need it."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Protocol

from msgspec import Struct
from prometheus_client import CollectorRegistry

from chatd.api.auth import Tokens
from chatd.domain.chat.row import Chat
from chatd.domain.ids import ChatId, ModelConfigId, WorkerId, WorkspaceId
from chatd.domain.ports import Budget, Env
from chatd.domain.workspace.agent_api import GitChanges
from chatd.domain.workspace.entities import FieldProblem, Template, TemplateSpec
from chatd.store.chat.transactor import Transactor
from chatd.store.model_configs import StoredModel, StoredProvider
from chatd.store.pool import Pool
from chatd.stream.chat_list import ChatListFeeds
from chatd.stream.feed_registry import FeedRegistry


class Offer(Protocol):
    """The worker of this replica, if it has a slot for a chat; held until the write is known."""

    def __call__(self, *, root: bool) -> AbstractContextManager[WorkerId | None]: ...


class ModelDirectory(Protocol):
    """The models and providers there are, and those there have been: see `enabled`."""

    async def by_name(self, name: str) -> StoredModel | None: ...
    async def get(self, model_id: ModelConfigId) -> StoredModel | None: ...
    async def default(self) -> StoredModel | None: ...
    async def all(self) -> Sequence[StoredModel]: ...
    async def providers(self) -> Sequence[StoredProvider]: ...


class Announce(Protocol):
    """Tells everybody, here and elsewhere, of a row whose version did not change. Must neither
    raise nor wait. `kind` is the hint's."""

    def __call__(self, chat: Chat, kind: str) -> None: ...


class Rooms(Protocol):
    """Workspaces, as far as a process needs more of them than their rows. One that builds none
    has it too: others find what is asked for."""

    @property
    def host_id(self) -> str:
        """Where workspaces made here are built."""
        ...

    @property
    def ttl_s(self) -> str | None:
        """The operator's word on how long one may run unused."""
        ...

    def wake(self) -> None:
        """There may be something to build."""
        ...

    async def problems(
        self, template: Template, spec: TemplateSpec, values: Mapping[str, str]
    ) -> Sequence[FieldProblem]:
        """What would make a start with these fail for sure, as far as this process can tell."""
        ...

    async def bound(self, chat_id: ChatId, workspace_id: WorkspaceId | None) -> None:
        """The chat has another workspace, or other instructions, than those in memory here."""
        ...

    def git(self, chat: Chat) -> AbstractAsyncContextManager[AsyncGenerator[GitChanges]]:
        """What changes in its repositories. Raises Conflict and AgentLost within half a minute."""
        ...


class Limits(Struct, frozen=True, kw_only=True):
    """Streams are SSE connections and sockets alike."""

    streams_per_user: int = 1000
    topics_per_socket: int = 100
    ping_s: float = 15.0
    write_within_s: float = 10.0


def _unknown(_chat_id: ChatId) -> Chat | None:
    return None


class Doors(Struct, frozen=True, kw_only=True):
    """`known` is a row as this replica saw it last, which may save a read. Without `rooms`
    workspaces are switched off. Without a `budget` spending is not limited; its check must neither
    raise nor take long."""

    pool: Pool
    transactor: Transactor
    announce: Announce
    offer: Offer
    feeds: FeedRegistry
    watches: ChatListFeeds
    models: ModelDirectory
    tokens: Tokens
    env: Env
    registry: CollectorRegistry
    draining: Callable[[], bool]
    known: Callable[[ChatId], Chat | None] = _unknown
    rooms: Rooms | None = None
    budget: Budget | None = None
    limits: Limits = Limits()
