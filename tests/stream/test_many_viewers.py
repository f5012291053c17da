"""Many viewers at once: they share reads and leave sessions for writers."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from chatd.domain.errors import Unavailable
from chatd.store.chat import chats
from chatd.store.database.conn import ConnectConfig
from chatd.store.database.pool import Pool, PoolConfig
from chatd.stream.fanout import SharedRead, SharedReadTimeout, VersionedSharedRead
from chatd.stream.feed_registry import FeedRegistry, FeedRegistryConfig
from tests.stream.conftest import ReplicaPair
from tests.support.client_state import read_state
from tests.support.clock import FakeClock
from tests.support.eventually import eventually
from tests.support.outcomes import raised
from tests.support.store import has_lock_waiter
from tests.support.stream_replica import StreamClient, at, env_with


class Reads:
    """Numbered reads that end when the test releases them."""

    def __init__(self) -> None:
        self.begun = 0
        self._ends: list[asyncio.Future[None]] = []

    async def __call__(self) -> int:
        self.begun += 1
        number = self.begun
        self._ends.append(asyncio.get_running_loop().create_future())
        await self._ends[-1]
        return number

    async def under_way(self, number: int) -> None:
        async def look() -> bool:
            return self.begun == number

        await eventually(look)

    def end(self, error: Exception | None = None) -> None:
        if error is None:
            self._ends[-1].set_result(None)
        else:
            self._ends[-1].set_exception(error)


async def wants(
    shared: SharedRead[int], group: asyncio.TaskGroup, many: int
) -> list[asyncio.Task[int]]:
    before = shared.waiting
    tasks = [group.create_task(shared.get(30)) for _ in range(many)]

    async def look() -> bool:
        return shared.waiting == before + many

    await eventually(look)
    return tasks


async def test_callers_that_arrive_during_a_read_share_the_next() -> None:
    reads = Reads()
    shared = SharedRead(reads)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        (first,) = await wants(shared, group, 1)
        await reads.under_way(1)
        crowd = await wants(shared, group, 50)
        reads.end()
        assert await first == 1
        await reads.under_way(2)
        late = await wants(shared, group, 2)
        reads.end()
        assert {await one for one in crowd} == {2}
        await reads.under_way(3)
        reads.end()
        assert {await one for one in late} == {3}
    assert shared.waiting == 0


async def test_when_the_reading_caller_gives_up_the_next_caller_reads() -> None:
    reads = Reads()
    shared = SharedRead(reads)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        (first,) = await wants(shared, group, 1)
        await reads.under_way(1)
        others = await wants(shared, group, 3)
        first.cancel()
        await reads.under_way(2)
        reads.end()
        assert {await one for one in others} == {2}


async def test_a_failed_read_fails_for_all_its_callers_and_not_for_the_next() -> None:
    reads = Reads()
    shared = SharedRead(reads)

    async def refused() -> None:
        with pytest.raises(Unavailable):
            await shared.get(30)

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        (first,) = await wants(shared, group, 1)
        await reads.under_way(1)
        for _ in range(5):
            group.create_task(refused())
        reads.end()
        await first
        await reads.under_way(2)
        reads.end(Unavailable("away"))

        async def look() -> bool:
            return shared.waiting == 0

        await eventually(look)
        (again,) = await wants(shared, group, 1)
        await reads.under_way(3)
        reads.end()
        assert await again == 3


async def test_no_caller_waits_for_a_shared_read_beyond_its_timeout() -> None:
    reads = Reads()
    shared = SharedRead(reads)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        (stuck,) = await wants(shared, group, 1)
        await reads.under_way(1)
        with pytest.raises(SharedReadTimeout):
            await shared.get(0)
        assert shared.waiting == 1
        stuck.cancel()
    assert shared.waiting == 0


async def test_callers_that_give_up_on_a_read_share_another() -> None:
    reads = Reads()

    async def read(_version: int) -> int:
        return await reads()

    shared = VersionedSharedRead(read, timeout_s=0.001)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        stuck = group.create_task(shared.get(0))
        await reads.under_way(1)
        other = group.create_task(shared.get(0))
        await reads.under_way(2)
        reads.end()
        assert await other == 2
        stuck.cancel()


@pytest.mark.promise("P8")
async def test_many_viewers_of_one_chat_at_once_cost_two_reads(pair: ReplicaPair) -> None:
    chat = await pair.here.create()
    pair.sent_there.clear()
    clients = [StreamClient(chat.id) for _ in range(40)]
    async with asyncio.TaskGroup() as group:
        for client in clients:
            group.create_task(client.see(pair.there.feeds, at(1)))
    # Two; more only if the machine is so busy that callers time out on a shared read.
    assert pair.sent_there.count(chats.LOAD_NEWEST) <= 4
    expected = await read_state(pair.pool, chat.id)
    assert all(client.state == expected for client in clients)
    assert pair.there.feeds.watched == 0


async def test_many_viewers_leave_sessions_for_writers(
    pair: ReplicaPair, dsn: str, clock: FakeClock
) -> None:
    """The rows are locked, so that all reads wait."""
    many = [await pair.here.create(number) for number in range(1, 9)]
    connect = ConnectConfig(dsn=dsn, lock_timeout_s=30, statement_timeout_s=30)
    small = Pool(PoolConfig(connect=connect, max_size=3))
    feeds = FeedRegistry(
        small, env_with(clock), pair.there.live, FeedRegistryConfig(max_concurrent_joins=2)
    )
    async with AsyncExitStack() as stack:
        stack.push_async_callback(small.close)
        group = await stack.enter_async_context(asyncio.TaskGroup())
        async with pair.pool.transaction() as holder:
            await holder.execute("LOCK TABLE chat_messages IN ACCESS EXCLUSIVE MODE")
            for chat in many:
                group.create_task(StreamClient(chat.id).see(feeds, at(1)))
            await eventually(lambda: has_lock_waiter(pair.pool))
            await small.ping()
            assert small.waiting == 0


async def test_a_viewer_that_waits_too_long_gets_an_error(
    pair: ReplicaPair, clock: FakeClock
) -> None:
    chat = await pair.here.create()
    config = FeedRegistryConfig(max_concurrent_joins=0, join_timeout_s=0.01)
    feeds = FeedRegistry(pair.pool, env_with(clock), pair.there.live, config)
    refused = await raised(Unavailable, StreamClient(chat.id).see(feeds, at(1)))
    assert (refused.code, feeds.watched) == ("database_busy", 0)
