"""The publisher never blocks the caller and sends no more than needed.

Hints are lost, doubled and late; every viewer still ends with the state of the database.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from random import Random
from uuid import UUID

import msgspec
import pytest

from chatd.aio import Backoff
from chatd.clock import SystemClock
from chatd.domain.chat.row import Hint, decode_hint
from chatd.domain.ids import ChangeId, ChatId
from chatd.store.chat.operation import AppliedChange
from chatd.store.chat.transactor import Transactor
from chatd.store.database.conn import ConnectConfig, DatabaseSession, connect
from chatd.store.database.notifications import (
    HintListener,
    HintPublisher,
    ListenConfig,
    PostgresBus,
    PublishConfig,
)
from chatd.store.database.pool import Pool
from tests.support.client_state import ClientState, read_state, resume_state
from tests.support.clock import FakeClock
from tests.support.eventually import eventually
from tests.support.factories import chat
from tests.support.operations import create_chat, new_chat, sending
from tests.support.outcomes import present
from tests.support.proxy import Proxy
from tests.support.random_actors import RandomActors


def hint(number: int, version: int = 1, kind: str | None = None) -> Hint:
    return Hint.of(chat(id=ChatId(UUID(int=number)), snapshot_version=version), kind)


Said = tuple[int, int, str | None]


class HintRecorder:
    """Listens on the channel by a session of its own."""

    def __init__(self, session: DatabaseSession) -> None:
        self.session = session
        self._heard: asyncio.Queue[Said] = asyncio.Queue()

    def hear(self, pid: int, payload: str) -> None:
        heard = present(decode_hint(payload))
        self._heard.put_nowait((heard.chat_id.int, heard.snapshot_version, heard.kind))

    async def next(self, count: int) -> list[Said]:
        async with asyncio.timeout(30):
            return [await self._heard.get() for _ in range(count)]


@pytest.fixture
async def audience(dsn: str) -> AsyncGenerator[HintRecorder]:
    session = await connect(ConnectConfig(dsn=dsn, application_name="audience"))
    audience = HintRecorder(session)
    await session.listen("chatd", audience.hear)
    yield audience
    await session.close(timeout_s=30)


def publisher_on(dsn: str, clock: FakeClock, **wishes: float) -> HintPublisher:
    config = msgspec.structs.replace(PublishConfig(), **wishes)
    return HintPublisher(PostgresBus(ConnectConfig(dsn=dsn)), config, clock, draw=lambda: 1.0)


@asynccontextmanager
async def running(publisher: HintPublisher) -> AsyncGenerator[HintPublisher]:
    async with asyncio.TaskGroup() as group:
        run = group.create_task(publisher.run())
        yield publisher
        run.cancel()


async def test_the_first_hint_is_sent_at_once_and_the_next_ones_together(
    dsn: str, audience: HintRecorder, clock: FakeClock
) -> None:
    async with running(publisher_on(dsn, clock)) as publisher:
        publisher.publish(hint(1))
        assert await audience.next(1) == [(1, 1, None)]
        assert await clock.wait_for_sleeper("publish_flush") == pytest.approx(0.003)
        publisher.publish(hint(2))
        publisher.publish(hint(3))
        await clock.advance_past("publish_flush")
        assert await audience.next(2) == [(2, 1, None), (3, 1, None)]


async def test_of_the_hints_for_a_chat_only_the_newest_is_sent(
    dsn: str, audience: HintRecorder, clock: FakeClock
) -> None:
    publisher = publisher_on(dsn, clock)
    for number, version in [(1, 1), (2, 5), (1, 2), (2, 4), (3, 1)]:
        publisher.publish(hint(number, version))
    async with running(publisher):
        assert await audience.next(3) == [(1, 2, None), (2, 5, None), (3, 1, None)]
    assert publisher.dropped_hints == 0


async def test_hints_of_different_kinds_do_not_replace_each_other(
    dsn: str, audience: HintRecorder, clock: FakeClock
) -> None:
    publisher = publisher_on(dsn, clock)
    kinds = ["created", None, "archived"]
    for version, kind in enumerate(kinds, start=1):
        publisher.publish(hint(1, version, kind))
    async with running(publisher):
        assert await audience.next(3) == [(1, 1, "created"), (1, 2, None), (1, 3, "archived")]


async def test_full_batches_do_not_wait_for_the_clock(
    dsn: str, audience: HintRecorder, clock: FakeClock
) -> None:
    publisher = publisher_on(dsn, clock, max_batch=2)
    for number in range(1, 6):
        publisher.publish(hint(number))
    async with running(publisher):
        assert [number for number, _, _ in await audience.next(4)] == [1, 2, 3, 4]
        await clock.advance_past("publish_flush")
        assert await audience.next(1) == [(5, 1, None)]


async def test_hints_from_an_outage_are_sent_after_it(
    dsn: str, audience: HintRecorder, proxy: Proxy, clock: FakeClock
) -> None:
    async with running(publisher_on(proxy.dsn, clock)) as publisher:
        publisher.publish(hint(1))
        await audience.next(1)
        await clock.wait_for_sleeper("publish_flush")
        proxy.cut()
        proxy.refuse(new=True)
        publisher.publish(hint(2, 1))
        await clock.advance_past("publish_flush")
        await clock.wait_for_sleeper("publish_reconnect")
        publisher.publish(hint(3))
        publisher.publish(hint(2, 2))
        proxy.refuse(new=False)
        await clock.advance_past("publish_reconnect")
        assert await audience.next(2) == [(2, 2, None), (3, 1, None)]
    assert publisher.dropped_hints == 0


@pytest.mark.covers("T07")
async def test_a_silent_session_is_given_up_and_the_hint_sent_on_another(
    dsn: str, audience: HintRecorder, proxy: Proxy, clock: FakeClock
) -> None:
    async with running(publisher_on(proxy.dsn, clock, send_timeout_s=0.5)) as publisher:
        publisher.publish(hint(1))
        await audience.next(1)
        await clock.wait_for_sleeper("publish_flush")
        proxy.strand()
        publisher.publish(hint(2))
        publisher.publish(hint(3, 1))
        await clock.advance_past("publish_flush")
        await eventually(lambda: withheld(proxy))
        publisher.publish(hint(3, 2))
        await clock.advance_past("publish_reconnect")
        assert await audience.next(2) == [(2, 1, None), (3, 2, None)]


async def withheld(proxy: Proxy) -> bool:
    return proxy.withheld > 0


async def test_a_long_outage_drops_and_counts_the_oldest_hints(
    dsn: str, audience: HintRecorder, proxy: Proxy, clock: FakeClock
) -> None:
    publisher = publisher_on(proxy.dsn, clock, max_pending=3)
    proxy.refuse(new=True)
    for number in (1, 2, 3):
        publisher.publish(hint(number))
    async with running(publisher):
        await clock.wait_for_sleeper("publish_reconnect")
        for number in (4, 5):
            publisher.publish(hint(number))
        assert publisher.dropped_hints == 2
        proxy.refuse(new=False)
        await clock.advance_past("publish_reconnect")
        assert [number for number, _, _ in await audience.next(3)] == [3, 4, 5]


async def test_a_hint_that_the_server_refuses_does_not_stop_those_behind_it(
    dsn: str, audience: HintRecorder, clock: FakeClock
) -> None:
    async with running(publisher_on(dsn, clock)) as publisher:
        publisher.publish(hint(1, kind="x" * 8000))
        await clock.advance_past("publish_flush")
        publisher.publish(hint(2))
        assert await audience.next(1) == [(2, 1, None)]
        assert publisher.dropped_hints == 1


async def test_closing_sends_what_is_pending(
    dsn: str, audience: HintRecorder, clock: FakeClock
) -> None:
    publisher = publisher_on(dsn, clock)
    async with asyncio.TaskGroup() as group:
        group.create_task(publisher.run())
        publisher.publish(hint(1))
        await clock.wait_for_sleeper("publish_flush")
        publisher.publish(hint(2))
        closing = group.create_task(publisher.close())
        await clock.advance_past("publish_flush")
        await clock.advance_past("publish_flush")
        await closing
    assert await audience.next(2) == [(1, 1, None), (2, 1, None)]
    assert publisher.dropped_hints == 0


async def test_closing_does_not_wait_for_a_silent_database_beyond_the_timeout(
    dsn: str, audience: HintRecorder, proxy: Proxy, clock: FakeClock
) -> None:
    publisher = publisher_on(proxy.dsn, clock, send_timeout_s=60, close_timeout_s=0.05)
    async with asyncio.TaskGroup() as group:
        run = group.create_task(publisher.run())
        publisher.publish(hint(1))
        await audience.next(1)
        await clock.wait_for_sleeper("publish_flush")
        proxy.stall()
        publisher.publish(hint(2))
        await clock.advance_past("publish_flush")
        await publisher.close()
        publisher.publish(hint(3))
        await clock.advance_past("publish_reconnect")
        await run
    assert publisher.dropped_hints == 2


async def test_closing_a_publisher_that_never_ran_counts_its_hints_as_dropped(
    clock: FakeClock,
) -> None:
    publisher = publisher_on("postgresql://nowhere", clock)
    publisher.publish(hint(1))
    await publisher.close()
    assert publisher.dropped_hints == 1


END = """
    SELECT count(*) FROM (SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name = $1) ended"""
SOON = Backoff(first_delay_s=0.01, max_delay_s=0.05)


class HintReceiver:
    def __init__(self) -> None:
        self.hints: asyncio.Queue[Hint] = asyncio.Queue()
        self.dirty: asyncio.Queue[None] = asyncio.Queue()

    def on_connected(self) -> None:
        self.dirty.put_nowait(None)

    async def is_told_that_all_is_dirty(self) -> None:
        async with asyncio.timeout(30):
            await self.dirty.get()

    async def hears_of(self, version: int) -> None:
        """Wait for this version; hints of older ones may come first."""
        async with asyncio.timeout(30):
            while (await self.hints.get()).snapshot_version < version:
                pass


class Replicas:
    """One replica that writes and publishes, one that listens."""

    def __init__(self, dsn: str, pool: Pool) -> None:
        self.ear = HintReceiver()
        link = ConnectConfig(dsn=dsn)
        clock = SystemClock()
        self.publisher = HintPublisher(PostgresBus(link), PublishConfig(backoff=SOON), clock)
        self.listener = HintListener(
            ListenConfig(connect=link, backoff=SOON),
            clock,
            on_hint=self.ear.hints.put_nowait,
            on_connected=self.ear.on_connected,
        )
        self._transactor = Transactor(pool, self._tell)
        self._version = 0

    def _tell(self, applied: AppliedChange) -> None:
        self.publisher.publish(Hint.of(applied.chat))

    async def write(self) -> int:
        self._version += 1
        if self._version == 1:
            await create_chat(self._transactor, new_chat(1), ChangeId(1))
        else:
            await self._transactor.run(sending("more", ChangeId(self._version)))
        return self._version


@pytest.fixture
async def replicas(dsn: str, pool: Pool) -> AsyncGenerator[Replicas]:
    replicas = Replicas(dsn, pool)
    async with asyncio.TaskGroup() as group:
        group.create_task(replicas.publisher.run())
        listening = group.create_task(replicas.listener.run())
        yield replicas
        await replicas.publisher.close()
        listening.cancel()


async def test_a_replica_reads_everything_again_after_its_listener_was_cut(
    replicas: Replicas, pool: Pool
) -> None:
    ear = replicas.ear
    await ear.is_told_that_all_is_dirty()
    await ear.hears_of(await replicas.write())
    assert await pool.fetchval(END, "chatd listen") == 1
    await replicas.write()
    await ear.is_told_that_all_is_dirty()
    await ear.hears_of(await replicas.write())


async def test_a_replica_publishes_again_after_its_publisher_was_cut(
    replicas: Replicas, pool: Pool
) -> None:
    await replicas.ear.is_told_that_all_is_dirty()
    await replicas.ear.hears_of(await replicas.write())
    assert await pool.fetchval(END, "chatd publish") == 1
    await replicas.ear.hears_of(await replicas.write())
    assert replicas.publisher.dropped_hints == 0


@pytest.mark.promise("P8")
@pytest.mark.parametrize("seed", range(3))
async def test_a_viewer_with_lost_hints_ends_with_the_same_state(pool: Pool, seed: int) -> None:
    """Hints are lost, doubled and come in any order; a final read makes up for all of it."""
    rng = Random(seed)
    actors = RandomActors(pool, rng)
    await actors.create_chats(single=1)
    (chat_id,) = actors.seen
    viewer, hints = ClientState(), list[int]()
    for _ in range(120):
        await actors.act_as_any()
        hints += [actors.seen[chat_id].snapshot_version] * rng.randint(0, 2)
        rng.shuffle(hints)
        if hints and hints.pop() > viewer.version:
            viewer = await resume_state(pool, chat_id, viewer)
            assert viewer == await read_state(pool, chat_id)
    assert await resume_state(pool, chat_id, viewer) == await read_state(pool, chat_id)
