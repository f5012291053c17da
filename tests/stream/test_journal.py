"""The journal: one statement for all episodes, tailed by other replicas, truncated soon."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Protocol
from uuid import UUID

import msgspec
import pytest

from chatd.domain.answer.partial import LivePart
from chatd.domain.chat.parts import TextPart
from chatd.domain.chat.row import Chat, Episode, Hint
from chatd.domain.ids import ChatId
from chatd.store.chat import journal
from chatd.store.database.conn import ConnectConfig
from chatd.store.database.pool import Pool, PoolConfig
from chatd.stream.episodes import EpisodeRegistry
from chatd.stream.journal_tail import JournalTail, read_episode
from chatd.stream.journal_writer import TAILED_HINT_KIND, JournalWriter, JournalWriterConfig
from tests.support.clock import FakeClock
from tests.support.eventually import eventually
from tests.support.factories import WORKER, chat, text
from tests.support.outcomes import present
from tests.support.proxy import Proxy
from tests.support.store import counting_pool
from tests.support.stream_replica import Emitted, env_with


def running_chat(number: int = 1, attempt: int = 1) -> Chat:
    return chat(
        id=ChatId(UUID(int=number)), status="running", worker_id=WORKER, epoch=1, attempt=attempt
    )


class Room(Protocol):
    async def run(self) -> None: ...


@asynccontextmanager
async def running(*rooms: Room) -> AsyncGenerator[None]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(room.run()) for room in rooms]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


async def rows(pool: Pool, count: int) -> list[tuple[int, int, int]]:
    """Chats and sequence numbers in the journal, once it has that many rows."""

    async def look() -> list[tuple[int, int, int]] | None:
        found = await pool.fetch(
            "SELECT chat_id, first_seq, last_seq FROM chat_journal ORDER BY 1, 2, 3"
        )
        told = [(row["chat_id"].int, row["first_seq"], row["last_seq"]) for row in found]
        return told if len(told) >= count else None

    return await eventually(look)


# Writing


async def test_all_episodes_of_a_replica_are_written_in_one_statement(
    dsn: str, clock: FakeClock
) -> None:
    async with counting_pool(dsn) as (pool, sent):
        writer = JournalWriter(pool, env_with(clock))
        episodes = EpisodeRegistry(clock, writer)
        async with running(writer, episodes):
            recorders = [episodes.open(Episode.of(running_chat(n))) for n in (1, 2, 3)]
            for recorder in recorders:
                recorder.add("assistant", [text("first")])
            await rows(pool, 3)
            for recorder in recorders:
                recorder.add("assistant", [text("and")])
                recorder.add("assistant", [text(" more")])
            await clock.advance_past("coalesce")
            await clock.advance_past("journal_flush")
            assert await rows(pool, 6) == [(n, k, k) for n in (1, 2, 3) for k in (1, 2)]
        assert sent.count(journal.APPEND) == 2


async def test_the_journal_is_written_promptly_only_while_a_replica_tails(
    pool: Pool, clock: FakeClock
) -> None:
    writer = JournalWriter(pool, env_with(clock), WORKER)
    episode = Episode.of(running_chat())

    async def pause_after(seq: int) -> float:
        writer.enqueue(episode, seq, [b"{}"], closed=False)
        return await clock.advance_past("journal_flush")

    async with running(writer):
        assert await pause_after(1) == pytest.approx(0.1)
        writer.on_hint(Hint.of(chat(worker_id=None), TAILED_HINT_KIND))
        writer.on_hint(Hint.of(running_chat()))
        assert await pause_after(2) == pytest.approx(0.1), "neither was about us being tailed"
        writer.on_hint(Hint.of(running_chat(), TAILED_HINT_KIND))
        writer.enqueue(episode, 3, [b"{}"], closed=False)
        assert await clock.advance_past("journal_flush") == pytest.approx(0.025)
        clock.advance(25)
        assert await pause_after(4) == pytest.approx(0.1)


async def test_the_first_part_of_a_step_does_not_wait_for_the_others(
    pool: Pool, clock: FakeClock
) -> None:
    writer = JournalWriter(pool, env_with(clock), WORKER)
    async with running(writer):
        writer.enqueue(Episode.of(running_chat(1)), 1, [b"{}"], closed=False)
        await clock.wait_for_sleeper("journal_flush")
        writer.on_hint(Hint.of(running_chat(), TAILED_HINT_KIND))
        writer.enqueue(Episode.of(running_chat(1)), 2, [b"{}"], closed=False)
        assert await rows(pool, 2) == [(1, 1, 1), (1, 2, 2)], "a replica has begun to tail"
        await clock.wait_for_sleeper("journal_flush")
        writer.enqueue(Episode.of(running_chat(1)), 3, [b"{}"], closed=False)
        writer.enqueue(Episode.of(running_chat(2)), 1, [b"{}"], closed=False)
        assert await rows(pool, 4) == [(1, 1, 1), (1, 2, 2), (1, 3, 3), (2, 1, 1)]


async def test_parts_that_could_not_be_written_are_written_later_without_a_gap(
    pool: Pool, proxy: Proxy, clock: FakeClock
) -> None:
    link = Pool(PoolConfig(connect=ConnectConfig(dsn=proxy.dsn)))
    emitted = Emitted()
    writer = JournalWriter(link, env_with(clock, emitted), draw=lambda: 1.0)
    episode = Episode.of(running_chat())
    async with running(writer):
        writer.enqueue(episode, 1, [b"{}"], closed=False)
        await rows(pool, 1)
        proxy.refuse(new=True)
        proxy.cut()
        await clock.advance_past("journal_flush")
        writer.enqueue(episode, 2, [b"{}", b"{}"], closed=False)
        await clock.wait_for_sleeper("journal_retry")
        writer.enqueue(episode, 4, [b"{}"], closed=True)
        proxy.refuse(new=False)
        await clock.advance_past("journal_retry")
        await clock.advance_past("journal_flush")
        assert await rows(pool, 3) == [(1, 1, 1), (1, 2, 3), (1, 4, 4)]
    assert (emitted.counts["journal_lagging"], writer.dropped) == (1, 0)
    await link.close()


async def test_the_journal_is_behind_while_the_database_keeps_its_parts_waiting(
    pool: Pool, proxy: Proxy, clock: FakeClock
) -> None:
    """Viewers on this replica are then shown no more than a quarter of a second ahead of it."""
    link = Pool(PoolConfig(connect=ConnectConfig(dsn=proxy.dsn)))
    writer = JournalWriter(link, env_with(clock), draw=lambda: 1.0)
    written: list[bool] = []
    writer.on_written = lambda _: written.append(writer.is_behind(clock.monotonic()))
    episode = Episode.of(running_chat())
    async with running(writer):
        writer.enqueue(episode, 1, [b"{}"], closed=False)
        await clock.wait_for_sleeper("journal_flush")
        proxy.refuse(new=True)
        proxy.cut()
        await clock.advance_past("journal_flush")
        writer.enqueue(episode, 2, [b"{}"], closed=False)
        await clock.wait_for_sleeper("journal_retry")
        clock.advance(0.001)
        assert not writer.is_behind(clock.monotonic())
        behind = clock.monotonic() + 0.25
        assert writer.is_behind(behind), "the statement does not end"
        writer.enqueue(episode, 3, [b"{}"], closed=True)
        assert writer.is_behind(behind)
        proxy.refuse(new=False)
        await clock.advance_past("journal_retry")
        await clock.advance_past("journal_flush")
        await rows(pool, 3)
        await clock.wait_for_sleeper("journal_flush")
        assert not writer.is_behind(clock.monotonic() + 10)
    assert not any(written)
    await link.close()


async def test_when_too_much_is_pending_new_parts_are_dropped_and_no_gap_is_written(
    pool: Pool, clock: FakeClock
) -> None:
    """The rest of the episode is dropped; the next episode is written."""
    config = JournalWriterConfig(max_pending_bytes=10)
    writer = JournalWriter(pool, env_with(clock), None, config)
    episode, other = Episode.of(running_chat(1)), Episode.of(running_chat(2))
    writer.enqueue(episode, 1, [b"0123456789"], closed=False)
    writer.enqueue(episode, 2, [b"dropped"], closed=False)
    async with running(writer):
        await clock.wait_for_sleeper("journal_flush")
        writer.enqueue(episode, 3, [b"after the hole"], closed=False)
        writer.enqueue(other, 1, [b"fine"], closed=True)
        writer.enqueue(episode, 4, [], closed=True)
        await clock.advance_past("journal_flush")
        assert await rows(pool, 2) == [(1, 1, 1), (2, 1, 1)]
    assert writer.dropped == 2


async def test_many_parts_are_written_in_several_statements(dsn: str, clock: FakeClock) -> None:
    async with counting_pool(dsn) as (pool, sent):
        writer = JournalWriter(pool, env_with(clock), None, JournalWriterConfig(batch_bytes=100))
        for number in range(1, 6):
            writer.enqueue(Episode.of(running_chat(number)), 1, [b"x" * 60], closed=False)
        async with running(writer):
            await rows(pool, 5)
        assert sent.count(journal.APPEND) == 3


async def test_the_oldest_slot_is_truncated_periodically(pool: Pool, clock: FakeClock) -> None:
    await pool.execute(
        """INSERT INTO chat_journal (slot, chat_id, history_version, attempt, first_seq,
               last_seq, parts)
           SELECT n, $1, 1, 1, 1, 1, '' FROM generate_series(0, 5) n""",
        UUID(int=1),
    )
    async with running(JournalWriter(pool, env_with(clock))):
        assert await clock.wait_for_sleeper("journal_empty") == pytest.approx(100)
        assert await pool.fetchval("SELECT count(*) FROM chat_journal") == 5


# Tailing


def tail_on(pool: Pool, clock: FakeClock) -> tuple[JournalTail, list[Hint]]:
    said: list[Hint] = []
    return JournalTail(pool, env_with(clock), said.append, draw=lambda: 1.0), said


def ignore() -> None:
    """No viewer."""


async def test_a_quiet_chat_is_polled_less_often_until_parts_arrive(
    dsn: str, clock: FakeClock
) -> None:
    async with counting_pool(dsn) as (pool, sent):
        tail, _ = tail_on(pool, clock)

        async def asked_in(seconds: float) -> int:
            before, end = sent.count(journal.TAIL), clock.monotonic() + seconds
            while clock.monotonic() < end:
                await clock.advance_past("tail")
            await clock.wait_for_sleeper("tail")
            return sent.count(journal.TAIL) - before

        tail.follow(running_chat(), ignore)
        async with running(tail):
            assert 20 <= await asked_in(1) <= 40
            await asked_in(9)
            assert 3 <= await asked_in(1) <= 6
            tail.hurry(running_chat().id)
            assert 20 <= await asked_in(1) <= 40


async def test_nothing_is_polled_while_no_chat_is_tailed(dsn: str, clock: FakeClock) -> None:
    async with counting_pool(dsn) as (pool, sent):
        tail, _ = tail_on(pool, clock)
        async with running(tail):
            tail.follow(running_chat(), ignore)
            await clock.wait_for_sleeper("tail")
            tail.drop(running_chat().id)
            sent.clear()
            await clock.advance_past("tail")
            await journal.append(pool, [flush(1, 1, b'{"n":1}')])
            assert not clock.sleeping("tail")
        assert sent == [journal.APPEND]


def flush(first: int, last: int, parts: bytes, **columns: object) -> journal.JournalEntry:
    row = journal.JournalEntry(
        episode=Episode.of(running_chat()), first_seq=first, last_seq=last, parts=parts
    )
    return msgspec.structs.replace(row, **columns)


async def test_many_chats_are_polled_in_one_statement(dsn: str, clock: FakeClock) -> None:
    async with counting_pool(dsn) as (pool, sent):
        tail, _ = tail_on(pool, clock)
        woken = asyncio.Event()
        for number in range(1, 31):
            tail.follow(running_chat(number), ignore)
        tail.follow(running_chat(31), woken.set)
        last = flush(1, 1, b"{}", episode=Episode.of(running_chat(31)))
        await journal.append(pool, [last])
        sent.clear()
        async with running(tail), asyncio.timeout(30):
            await woken.wait()
        assert sent == [journal.TAIL]


async def test_the_running_worker_is_told_periodically_that_its_chat_is_tailed(
    pool: Pool, clock: FakeClock
) -> None:
    tail, said = tail_on(pool, clock)
    tail.follow(running_chat(1), ignore)
    tail.follow(msgspec.structs.replace(running_chat(2), worker_id=None), ignore)
    async with running(tail):
        await clock.advance_past("tail")
        await clock.wait_for_sleeper("tail")
        assert said == [Hint.of(running_chat(1), TAILED_HINT_KIND)]
        clock.advance(10)
        await clock.advance_past("tail")
        await clock.wait_for_sleeper("tail")
        assert said == [Hint.of(running_chat(1), TAILED_HINT_KIND)] * 2


async def test_a_late_reply_for_an_ended_episode_is_not_taken_for_the_next(
    pool: Pool, proxy: Proxy, clock: FakeClock
) -> None:
    link = Pool(PoolConfig(connect=ConnectConfig(dsn=proxy.dsn)))
    tail, _ = tail_on(link, clock)
    tail.follow(running_chat(), ignore)
    await journal.append(pool, [flush(1, 1, b'{"attempt":1}')])
    async with running(tail):
        proxy.hold_replies()
        tail.follow(running_chat(attempt=2), ignore)
        proxy.resume()
        await clock.advance_past("tail")
        await clock.wait_for_sleeper("tail")
        followed = present(tail.find(running_chat().id))
        assert (followed.episode.attempt, followed.events) == (2, [])
    await link.close()


async def test_an_unreachable_database_only_delays_live_parts(
    pool: Pool, proxy: Proxy, clock: FakeClock
) -> None:
    link = Pool(PoolConfig(connect=ConnectConfig(dsn=proxy.dsn)))
    tail, _ = tail_on(link, clock)
    woken = asyncio.Event()
    proxy.refuse(new=True)
    tail.follow(running_chat(), woken.set)
    async with running(tail):
        await clock.wait_for_sleeper("tail_retry")
        await journal.append(pool, [flush(1, 2, b"{}\n{}")])
        proxy.refuse(new=False)
        await clock.advance_past("tail_retry")
        async with asyncio.timeout(30):
            await woken.wait()
        assert present(tail.find(running_chat().id)).events == [b"{}", b"{}"]
    await link.close()


# Replaying


@pytest.mark.promise("P4")
async def test_the_parts_of_a_dead_worker_can_be_read_back(pool: Pool, clock: FakeClock) -> None:
    writer = JournalWriter(pool, env_with(clock))
    episodes = EpisodeRegistry(clock, writer)
    episode = Episode.of(running_chat())
    async with running(writer, episodes):
        recorder = episodes.open(episode)
        recorder.add("assistant", [text("Once")])
        await rows(pool, 1)
        recorder.add("assistant", [text(" upon")])
        await clock.advance_past("coalesce")
        await clock.advance_past("journal_flush")
        await rows(pool, 2)
    await pool.execute("INSERT INTO chat_journal SELECT * FROM chat_journal")
    assert await read_episode(pool, episode) == (
        LivePart(role="assistant", part=TextPart(text="Once")),
        LivePart(role="assistant", part=TextPart(text=" upon")),
    )
    assert await read_episode(pool, Episode.of(running_chat(attempt=2))) == ()


@pytest.mark.covers("F46")
async def test_nothing_is_read_back_past_a_gap_nor_of_unknown_kinds(pool: Pool) -> None:
    def event(part: str) -> bytes:
        payload = f'"role":"assistant","history_version":1,"attempt":1,"seq":1,"part":{part}'
        chat_id = running_chat().id
        return (
            f'{{"type":"message_part","chat_id":"{chat_id}","message_part":{{{payload}}}}}'.encode()
        )

    known, unknown = event('{"type":"text","text":"a"}'), event('{"type":"hologram"}')
    await journal.append(
        pool, [flush(1, 2, known + b"\n" + unknown), flush(3, 3, known), flush(5, 5, known)]
    )
    found = await read_episode(pool, Episode.of(running_chat()))
    assert found == (LivePart(role="assistant", part=TextPart(text="a")),) * 2


async def test_a_long_episode_is_read_back_whole(pool: Pool) -> None:
    """Also from earlier slots, which a continued tail does not read."""
    await pool.execute(
        """INSERT INTO chat_journal (slot, chat_id, history_version, attempt, first_seq,
               last_seq, parts)
           SELECT ((extract(epoch FROM now())::bigint / 300) + CASE
               WHEN n <= 100 THEN 3 WHEN n <= 200 THEN 4 WHEN n <= 300 THEN 5 ELSE 6 END) % 6,
               $1, 1, 1, n, n, convert_to('{}', 'UTF8') FROM generate_series(1, 400) n""",
        running_chat().id,
    )
    found = await journal.tail(pool, [(Episode.of(running_chat()), 0)], limit=100_000)
    assert [row.first_seq for row in found] == list(range(1, 401))
