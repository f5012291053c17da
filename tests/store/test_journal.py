"""The journal of live parts: flushed parts can be tailed, and slots are truncated as a whole.

Slots follow the clock, so a test of several slots runs in one transaction, where now() is constant.
"""

import asyncio
from collections.abc import AsyncGenerator
from uuid import UUID

import pytest
from msgspec.structs import replace

from chatd.domain.chat.row import Episode
from chatd.domain.ids import ChatId
from chatd.store.chat import journal
from chatd.store.chat.journal import JOURNAL_SLOTS, JournalEntry
from chatd.store.database.conn import Conn, DatabaseSession
from chatd.store.database.pool import Pool
from tests.support.factories import CHAT, WORKER
from tests.support.store import chat_id, open_chat, plan_of, session_to

HERE = Episode(CHAT, 3, 1)

SLOT_NOW = "SELECT (extract(epoch FROM now())::bigint / 300 % 6)::int"
WRITE_IN_SLOT = """
    INSERT INTO chat_journal (slot, chat_id, history_version, attempt, first_seq, last_seq, parts)
    VALUES ($1, $2, 3, 1, $3, $3, '')"""


def flush(first: int, last: int, episode: Episode = HERE, *, closed: bool = False) -> JournalEntry:
    parts = f"{first}-{last}".encode()
    return JournalEntry(episode=episode, first_seq=first, last_seq=last, parts=parts, closed=closed)


@pytest.fixture
async def moment(dsn: str) -> AsyncGenerator[DatabaseSession]:
    """A session in one transaction, where now() is constant."""
    async with session_to(dsn) as session:
        await session.execute("BEGIN")
        yield session
        await session.execute("ROLLBACK")


async def write_back(conn: Conn, slots_ago: int) -> int:
    """Write one part into an earlier slot; its number is 10 - slots_ago."""
    now = await conn.fetchval(SLOT_NOW)
    await conn.execute(WRITE_IN_SLOT, (now - slots_ago) % JOURNAL_SLOTS, CHAT, 10 - slots_ago)
    return 10 - slots_ago


# Tailing


async def test_an_episode_is_read_from_its_start_in_order(pool: Pool) -> None:
    flushes = [flush(1, 1), flush(2, 5), flush(6, 6, closed=True)]
    for one in reversed(flushes):
        await journal.append(pool, [one])
    assert await journal.tail(pool, [(HERE, 0)]) == flushes


async def test_a_tail_gets_the_parts_after_its_position(pool: Pool) -> None:
    await journal.append(pool, [flush(1, 4)])
    assert await journal.tail(pool, [(HERE, 4)]) == []
    await journal.append(pool, [flush(5, 7)])
    assert await journal.tail(pool, [(HERE, 4)]) == [flush(5, 7)]
    assert await journal.tail(pool, [(HERE, 7)]) == []


async def test_many_episodes_are_written_and_tailed_at_once(pool: Pool) -> None:
    there = Episode(chat_id(7), 3, 1)
    written = [flush(1, 2), flush(1, 3, there), flush(3, 4)]
    await journal.append(pool, written)
    found = await journal.tail(pool, [(HERE, 2), (there, 0), (Episode(chat_id(8), 1, 1), 0)])
    assert found == [flush(3, 4), flush(1, 3, there)]
    assert await journal.tail(pool, []) == []


@pytest.mark.parametrize(
    "other", [Episode(chat_id(7), 3, 1), Episode(CHAT, 4, 1), Episode(CHAT, 3, 2)]
)
async def test_parts_of_another_episode_are_not_shown(pool: Pool, other: Episode) -> None:
    await journal.append(pool, [flush(1, 1, other)])
    assert await journal.tail(pool, [(HERE, 0)]) == []


async def test_a_long_episode_comes_in_bounded_portions(pool: Pool) -> None:
    await journal.append(pool, [flush(n, n) for n in range(1, 8)])
    seen: list[int] = []
    for _ in range(4):
        portion = await journal.tail(pool, [(HERE, seen[-1] if seen else 0)], limit=3)
        assert len(portion) <= 3
        seen += [one.last_seq for one in portion]
    assert seen == [1, 2, 3, 4, 5, 6, 7]


async def test_parts_are_bytes_and_come_back_as_such(pool: Pool) -> None:
    parts = bytes(range(256)) * 1000
    await journal.append(pool, [JournalEntry(episode=HERE, first_seq=1, last_seq=9, parts=parts)])
    [found] = await journal.tail(pool, [(HERE, 0)])
    assert found.parts == parts


async def test_nothing_to_write_is_nothing_written(pool: Pool) -> None:
    await journal.append(pool, [])
    assert await pool.fetchval("SELECT count(*) FROM chat_journal") == 0


# The ring


async def test_parts_are_written_into_the_current_slot(moment: DatabaseSession) -> None:
    await journal.append(moment, [flush(1, 1)])
    assert await moment.fetchval("SELECT slot FROM chat_journal") == await moment.fetchval(SLOT_NOW)


async def test_a_read_from_the_start_covers_fifteen_minutes(
    moment: DatabaseSession,
) -> None:
    for slots_ago in range(JOURNAL_SLOTS):
        await write_back(moment, slots_ago)
    found = await journal.tail(moment, [(HERE, 0)])
    assert [one.first_seq for one in found] == [7, 8, 9, 10]


async def test_a_continued_tail_reads_at_most_one_slot_back(moment: DatabaseSession) -> None:
    for slots_ago in range(JOURNAL_SLOTS):
        await write_back(moment, slots_ago)
    found = await journal.tail(moment, [(HERE, 1)])
    assert [one.first_seq for one in found] == [9, 10]


async def test_truncation_never_touches_slots_that_are_read_or_written_next(
    moment: DatabaseSession,
) -> None:
    """Of six slots, four are read and the next one is about to be written."""
    for slots_ago in range(JOURNAL_SLOTS):
        await write_back(moment, slots_ago)
    await journal.truncate_oldest_slot(moment)
    left = await moment.fetch("SELECT first_seq FROM chat_journal ORDER BY 1")
    assert [row["first_seq"] for row in left] == [5, 7, 8, 9, 10]
    await journal.truncate_oldest_slot(moment)
    assert len(await moment.fetch("SELECT FROM chat_journal")) == 5


async def test_every_slot_has_its_table(moment: DatabaseSession) -> None:
    for slot in range(JOURNAL_SLOTS):
        await moment.execute(WRITE_IN_SLOT, slot, CHAT, slot)
    names = await moment.fetch("SELECT tableoid::regclass::text AS name, slot FROM chat_journal")
    assert {(row["name"], row["slot"]) for row in names} == {
        (f"chat_journal_{slot}", slot) for slot in range(JOURNAL_SLOTS)
    }


async def test_truncating_an_empty_slot_waits_for_no_lock(pool: Pool) -> None:
    """A TRUNCATE would wait for a reader of the partitions, and block all statements behind it."""
    await pool.execute("TRUNCATE chat_journal")
    async with asyncio.timeout(20), pool.transaction() as reader:
        await reader.execute("LOCK TABLE chat_journal IN ACCESS SHARE MODE")
        await journal.truncate_oldest_slot(pool)


async def test_truncation_never_waits_for_a_backup_that_reads_the_journal(pool: Pool) -> None:
    """pg_dump holds ACCESS SHARE on every table for its whole run. A TRUNCATE that waits for it
    makes every append and every read of live parts wait too."""
    for slot in range(JOURNAL_SLOTS):
        await pool.execute(WRITE_IN_SLOT, slot, CHAT, slot)
    async with asyncio.timeout(20), pool.transaction() as backup:
        await backup.execute("LOCK TABLE chat_journal IN ACCESS SHARE MODE")
        await journal.truncate_oldest_slot(pool)
        await journal.append(pool, [flush(1, 1)])
        assert len(await journal.tail(pool, [(HERE, 0)])) > 0
        assert len(await pool.fetch("SELECT FROM chat_journal")) == JOURNAL_SLOTS + 1
    await journal.truncate_oldest_slot(pool)
    assert len(await pool.fetch("SELECT FROM chat_journal")) == JOURNAL_SLOTS


async def test_the_journal_is_not_logged(pool: Pool) -> None:
    kinds = await pool.fetch(
        """SELECT relpersistence::text AS kind FROM pg_class
           WHERE relname ~ '^chat_journal_[0-9]$'"""
    )
    assert [row["kind"] for row in kinds] == ["u"] * JOURNAL_SLOTS


# The plan


FILL = """
    INSERT INTO chat_journal (slot, chat_id, history_version, attempt, first_seq, last_seq, parts)
    SELECT n % 6, md5((n % 100)::text)::uuid, 3, 1, n, n, '' FROM generate_series(1, 6000) n"""


@pytest.mark.parametrize(("seen", "named"), [(0, {0, 1, 2, 3}), (5, {0, 1})])
async def test_the_tail_reads_only_the_named_slots_by_index(
    moment: DatabaseSession, seen: int, named: set[int]
) -> None:
    await moment.execute(FILL)
    await moment.execute("ANALYZE chat_journal")
    chat = ChatId(UUID(bytes=(await moment.fetchval("SELECT md5('7')::uuid")).bytes))
    watched = (f"{{{chat}}}", "{3}", "{1}", f"{{{seen}}}", 100)
    nodes = await plan_of(moment, journal.TAIL, *watched, option="ANALYZE,")
    read = [node for node in nodes if "Relation Name" in node and node["Actual Loops"] > 0]
    now = await moment.fetchval(SLOT_NOW)
    slots = {int(node["Relation Name"].removeprefix("chat_journal_")) for node in read}
    assert slots == {(now - slots_ago) % JOURNAL_SLOTS for slots_ago in named}
    for node in read:
        assert node["Node Type"] == "Index Scan"
        assert "chat_id" in node["Index Cond"]
        assert "first_seq" in node["Index Cond"]


# Kept answers


async def test_what_an_attempt_said_is_kept_until_the_next_step_by_the_owner_only(
    pool: Pool,
) -> None:
    chat = await open_chat(pool, 1, free=WORKER)
    await journal.keep_answer(pool, replace(chat, epoch=chat.epoch - 1), 1, b"stalled")
    assert await journal.find_kept_answer(pool, chat) is None
    for attempt, parts in ((1, b"first"), (1, b"again"), (3, b"third")):
        await journal.keep_answer(pool, chat, attempt, parts)
        kept = Episode(chat.id, chat.history_version, attempt)
        expected = b"first" if attempt == 1 else b"third"
        assert await journal.find_kept_answer(pool, chat) == (kept, expected)
    assert not await journal.delete_old_kept(pool, limit=10)
    assert await journal.find_kept_answer(pool, chat) is not None
    await pool.execute("UPDATE kept_answers SET history_version = history_version - 1")
    assert await journal.find_kept_answer(pool, chat) is None
    assert await journal.delete_old_kept(pool, limit=1)
    assert await pool.fetchval("SELECT count(*) FROM kept_answers") == 0
