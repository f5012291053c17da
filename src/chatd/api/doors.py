"""What the front door opens onto: the rest of the house, as far as the routes need it."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from msgspec import Struct
from prometheus_client import CollectorRegistry

from chatd.api.auth import Tokens
from chatd.domain.chat import Chat
from chatd.domain.ids import ChatId, ModelConfigId, WorkerId
from chatd.domain.ports import Env
from chatd.store.models import KnownModel, KnownProvider
from chatd.store.pool import Pool
from chatd.store.transact import Tell, Transactor
from chatd.stream.feeds import Feeds
from chatd.stream.watch import Watches


class Offer(Protocol):
    """The worker of this replica, if it has a slot for a chat; held until the write is known."""

    def __call__(self, *, root: bool) -> AbstractContextManager[WorkerId | None]: ...


class ModelDirectory(Protocol):
    """The models and providers there are, and those there have been: see `enabled`."""

    async def by_name(self, name: str) -> KnownModel | None: ...
    async def get(self, model_id: ModelConfigId) -> KnownModel | None: ...
    async def default(self) -> KnownModel | None: ...
    async def all(self) -> Sequence[KnownModel]: ...
    async def providers(self) -> Sequence[KnownProvider]: ...


class Announce(Protocol):
    """Tells everybody, here and elsewhere, of a row whose version did not change. Must neither
    raise nor wait. `kind` is the hint's."""

    def __call__(self, chat: Chat, kind: str) -> None: ...


class Limits(Struct, frozen=True, kw_only=True):
    """Streams are SSE connections and sockets alike."""

    streams_per_user: int = 1000
    topics_per_socket: int = 100
    ping_s: float = 15.0
    write_within_s: float = 10.0


def _unknown(_chat_id: ChatId) -> Chat | None:
    return None


class Doors(Struct, frozen=True, kw_only=True):
    """`tell` is the transactor's own: an amendment writes rows by its side. `known` is a row as
    this replica saw it last, which may spare a read."""

    pool: Pool
    transactor: Transactor
    tell: Tell
    announce: Announce
    offer: Offer
    feeds: Feeds
    watches: Watches
    models: ModelDirectory
    tokens: Tokens
    env: Env
    registry: CollectorRegistry
    draining: Callable[[], bool]
    known: Callable[[ChatId], Chat | None] = _unknown
    limits: Limits = Limits()
