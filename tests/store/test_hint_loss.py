"""Hints are lost, doubled and late; every viewer still ends with the state of the database."""

import asyncio
from collections.abc import AsyncGenerator
from random import Random

import pytest

from chatd.aio import Backoff
from chatd.clock import SystemClock
from chatd.domain.chat.row import Hint
from chatd.domain.ids import ChangeId
from chatd.store.chat.operation import AppliedChange
from chatd.store.chat.transactor import Transactor
from chatd.store.conn import ConnectConfig
from chatd.store.notifications import HintListener, HintPublisher, ListenConfig, PublishConfig
from chatd.store.pool import Pool
from tests.support.client_state import ClientState, read_state, resume_state
from tests.support.operations import create_chat, new_chat, sending
from tests.support.random_actors import RandomActors

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
        self.publisher = HintPublisher(PublishConfig(connect=link, backoff=SOON), clock)
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
