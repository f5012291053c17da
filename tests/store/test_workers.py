"""Acquiring and releasing chats: in order, and never by two workers."""

import asyncio
from uuid import UUID

import pytest

from chatd.domain.chat.commands import SendMessage
from chatd.domain.chat.row import Chat
from chatd.domain.chat.states import State
from chatd.domain.chat.user_transitions import interrupt, send_message
from chatd.domain.ids import ChatId, WorkerId
from chatd.store.chat import chats, workers
from chatd.store.conn import Conn
from chatd.store.pool import Pool
from tests.support.factories import OTHER_WORKER, WORKER, prompt
from tests.support.seeds import Seed
from tests.support.store import age, chat_id, dump, insert_seed, open_chat, open_child, write
from tests.support.stored import stored


async def take(conn: Conn, *, roots: int = 0, children: int = 0) -> set[int]:
    taken = await workers.acquire(conn, WORKER, roots=roots, children=children)
    assert all(chat.worker_id == WORKER for chat in taken)
    return {chat.id.int for chat in taken}


async def stopping(conn: Conn, number: int) -> None:
    """An interrupting chat without an owner."""
    await insert_seed(conn, Seed(state=State.I0, owned=False, chat_id=chat_id(number)))


async def runs_under(conn: Conn, number: int, worker: WorkerId) -> Chat:
    return await open_chat(conn, number, free=worker)


# Acquiring


async def test_the_longest_waiting_chat_is_acquired_first(pool: Pool) -> None:
    for number, seconds in ((1, 10), (2, 30), (3, 20), (4, 0)):
        chat = await open_chat(pool, number)
        await age(pool, [chat.id], seconds=seconds)
    assert [await take(pool, roots=1) for _ in range(5)] == [{2}, {3}, {1}, {4}, set()]


async def test_an_interrupting_chat_is_acquired_before_all_others(pool: Pool) -> None:
    waiting = await open_chat(pool, 1)
    await age(pool, [waiting.id], seconds=3600)
    await stopping(pool, 2)
    assert await take(pool, roots=1) == {2}
    assert await take(pool, roots=1) == {1}


async def test_chats_that_have_waited_equally_long_are_acquired_by_id(pool: Pool) -> None:
    for number in (3, 1, 2):
        await open_chat(pool, number)
    await pool.execute("UPDATE chats SET runnable_at = 'epoch'")
    assert [await take(pool, roots=1) for _ in range(3)] == [{1}, {2}, {3}]


async def test_a_new_message_does_not_change_the_place_of_a_waiting_chat(pool: Pool) -> None:
    first = await open_chat(pool, 1)
    await open_chat(pool, 2)
    await write(pool, send_message(first, SendMessage(prompt=prompt("well?")), None))
    assert await take(pool, roots=1) == {1}


@pytest.mark.covers("F40")
async def test_children_do_not_wait_for_slots_of_roots_nor_the_other_way(pool: Pool) -> None:
    for number in (1, 2, 3):
        await open_chat(pool, number)
        await open_child(pool, 10 + number, root=number)
    assert await take(pool, roots=0, children=2) == {11, 12}
    assert await take(pool, roots=2, children=0) == {1, 2}
    assert await take(pool, roots=5, children=5) == {3, 13}


async def test_without_a_free_slot_nothing_is_acquired(pool: Pool) -> None:
    await open_chat(pool, 1)
    before = await dump(pool)
    assert await take(pool) == set()
    assert await dump(pool) == before


async def test_a_locked_chat_is_skipped_and_acquired_next_time(
    pool: Pool,
) -> None:
    oldest = await open_chat(pool, 1)
    await age(pool, [oldest.id], seconds=60)
    await open_chat(pool, 2)
    async with asyncio.timeout(20), pool.transaction() as writer:
        await chats.lock(writer, oldest.id)
        assert await take(pool, roots=1) == {2}
        assert await take(pool, roots=1) == set()
    assert await take(pool, roots=1) == {1}


@pytest.mark.promise("P3")
async def test_concurrent_workers_never_acquire_the_same_chat(pool: Pool) -> None:
    for number in range(1, 31):
        await open_chat(pool, number)
    names = [WorkerId(UUID(int=100 + n)) for n in range(8)]
    taken = await asyncio.gather(
        *(workers.acquire(pool, name, roots=5, children=5) for name in names)
    )
    ids = [chat.id for batch in taken for chat in batch]
    assert len(ids) == len(set(ids)) == 30
    owners = {chat.id: chat.worker_id for batch in taken for chat in batch}
    assert {it.chat.id: it.chat.worker_id for it in (await stored(pool)).values()} == owners


@pytest.mark.covers("F19")
async def test_a_chat_with_a_future_runnable_time_is_acquired(pool: Pool) -> None:
    chat = await open_chat(pool, 1)
    await age(pool, [chat.id], seconds=-3600)
    assert await take(pool, roots=1) == {1}


# Releasing


async def test_a_worker_releases_only_its_own_chats(pool: Pool) -> None:
    mine = await runs_under(pool, 1, WORKER)
    also_mine = await runs_under(pool, 2, WORKER)
    theirs = await runs_under(pool, 3, OTHER_WORKER)
    assert {it.id for it in await workers.release(pool, WORKER)} == {mine.id, also_mine.id}
    left = await chats.get(pool, theirs.id)
    assert left == theirs
    assert await workers.release(pool, WORKER) == []


async def test_a_worker_may_release_some_chats(pool: Pool) -> None:
    for number in (1, 2, 3):
        await runs_under(pool, number, WORKER)
    theirs = await runs_under(pool, 4, OTHER_WORKER)
    some: list[ChatId] = [chat_id(2), theirs.id, chat_id(99)]
    assert [it.id.int for it in await workers.release(pool, WORKER, some)] == [2]
    assert await workers.release(pool, WORKER, []) == []


async def test_an_interrupting_chat_keeps_its_deadline_through_release_and_acquire(
    pool: Pool,
) -> None:
    chat = await runs_under(pool, 1, WORKER)
    stopped = await write(pool, interrupt(chat, None))
    [released] = await workers.release(pool, WORKER)
    [taken] = await workers.acquire(pool, OTHER_WORKER, roots=1, children=0)
    assert stopped.chat.interrupt_deadline is not None
    assert released.interrupt_deadline == stopped.chat.interrupt_deadline
    assert taken.interrupt_deadline == stopped.chat.interrupt_deadline


async def test_releasing_and_archiving_a_tree_at_once_do_not_deadlock(
    pool: Pool,
) -> None:
    """Both lock the root first, then by id: the second one waits, and neither deadlocks."""
    await runs_under(pool, 5, WORKER)
    for number in (1, 9):
        await open_child(pool, number, root=5)
    await workers.acquire(pool, WORKER, roots=9, children=9)

    async def lock_family() -> None:
        async with pool.transaction() as session:
            await chats.lock_tree(session, chat_id(5))

    async with asyncio.timeout(30):
        for _ in range(20):
            await asyncio.gather(lock_family(), workers.release(pool, WORKER), lock_family())
            await workers.acquire(pool, WORKER, roots=9, children=9)
