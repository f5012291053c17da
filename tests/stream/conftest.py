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


class House(Struct, frozen=True, kw_only=True):
    """`pool` is nobody's: what is written by it no replica learns of by itself."""

    network: HintNetwork
    here: StreamReplica
    there: StreamReplica
    sent_here: list[str]
    sent_there: list[str]
    pool: Pool


async def _house(dsn: str, clock: Clock, pool: Pool) -> AsyncGenerator[House]:
    network = HintNetwork()
    async with AsyncExitStack() as stack:
        here, sent_here = await stack.enter_async_context(replica_on(dsn, clock, network, A))
        there, sent_there = await stack.enter_async_context(replica_on(dsn, clock, network, B))
        yield House(
            network=network,
            here=here,
            there=there,
            sent_here=sent_here,
            sent_there=sent_there,
            pool=pool,
        )


@pytest.fixture
async def house(dsn: str, clock: FakeClock, pool: Pool) -> AsyncGenerator[House]:
    """Time stands still in it."""
    async for house in _house(dsn, clock, pool):
        yield house


@pytest.fixture
async def live_house(dsn: str, pool: Pool) -> AsyncGenerator[House]:
    """Time passes in it."""
    async for house in _house(dsn, SystemClock(), pool):
        yield house
