"""Two replicas on one database: `here` runs a chat, `there` only has viewers of it."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from msgspec import Struct

from chatd.clock import SystemClock
from chatd.domain.chat.row import Chat
from chatd.domain.ports import Clock
from chatd.store.database.pool import Pool
from chatd.stream.feed_registry import Viewer
from tests.support.clock import FakeClock
from tests.support.stream_replica import A, B, HintNetwork, StreamClient, StreamReplica, replica_on


class ReplicaPair(Struct, frozen=True, kw_only=True):
    """Writes through `pool` are reported to neither replica."""

    network: HintNetwork
    here: StreamReplica
    there: StreamReplica
    sent_here: list[str]
    sent_there: list[str]
    pool: Pool

    @asynccontextmanager
    async def two_viewers(self, chat: Chat) -> AsyncGenerator["TwoViewers"]:
        """A viewer on each replica."""
        near, far = StreamClient(chat.id), StreamClient(chat.id)
        async with near.connected(self.here.feeds) as one, far.connected(self.there.feeds) as two:
            yield TwoViewers(near=near, far=far, near_view=one, far_view=two)


class TwoViewers(Struct, frozen=True, kw_only=True):
    near: StreamClient
    far: StreamClient
    near_view: Viewer
    far_view: Viewer

    async def watch(self, until: Callable[[StreamClient], bool]) -> None:
        await self.near.watch(self.near_view, until)
        await self.far.watch(self.far_view, until)


async def _replica_pair(dsn: str, clock: Clock, pool: Pool) -> AsyncGenerator[ReplicaPair]:
    network = HintNetwork()
    async with AsyncExitStack() as stack:
        here, sent_here = await stack.enter_async_context(replica_on(dsn, clock, network, A))
        there, sent_there = await stack.enter_async_context(replica_on(dsn, clock, network, B))
        sent = {"sent_here": sent_here, "sent_there": sent_there}
        yield ReplicaPair(network=network, here=here, there=there, pool=pool, **sent)


@pytest.fixture
async def pair(dsn: str, clock: FakeClock, pool: Pool) -> AsyncGenerator[ReplicaPair]:
    """With a fake clock."""
    async for pair in _replica_pair(dsn, clock, pool):
        yield pair


@pytest.fixture
async def live_pair(dsn: str, pool: Pool) -> AsyncGenerator[ReplicaPair]:
    """With the system clock."""
    async for pair in _replica_pair(dsn, SystemClock(), pool):
        yield pair
