"""Two replicas on one database: `here` runs a chat, `there` only has viewers of it."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack

import pytest
from msgspec import Struct

from chatd.clock import SystemClock
from chatd.domain.ports import Clock
from chatd.store.pool import Pool
from tests.support.clock import FakeClock
from tests.support.stream_replica import A, B, HintNetwork, StreamReplica, replica_on


class ReplicaPair(Struct, frozen=True, kw_only=True):
    """Writes through `pool` are reported to neither replica."""

    network: HintNetwork
    here: StreamReplica
    there: StreamReplica
    sent_here: list[str]
    sent_there: list[str]
    pool: Pool


async def _replica_pair(dsn: str, clock: Clock, pool: Pool) -> AsyncGenerator[ReplicaPair]:
    network = HintNetwork()
    async with AsyncExitStack() as stack:
        here, sent_here = await stack.enter_async_context(replica_on(dsn, clock, network, A))
        there, sent_there = await stack.enter_async_context(replica_on(dsn, clock, network, B))
        yield ReplicaPair(
            network=network,
            here=here,
            there=there,
            sent_here=sent_here,
            sent_there=sent_there,
            pool=pool,
        )


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
