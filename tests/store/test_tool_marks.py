"""Marks of tools that must not run twice: a second start and a stale worker are refused."""

import asyncio

import pytest
from msgspec.structs import replace

from chatd.domain.chat.commands import SendMessage
from chatd.domain.chat.row import Fence
from chatd.domain.chat.states import State
from chatd.domain.chat.user_transitions import interrupt, send_message
from chatd.domain.errors import StaleFence
from chatd.domain.ids import ToolCallId
from chatd.store.chat import idempotency, workers
from chatd.store.pool import Pool
from tests.support.eventually import eventually
from tests.support.factories import CHAT, OTHER_WORKER, prompt
from tests.support.seeds import Seed
from tests.support.store import chat_id, has_lock_waiter, insert_seed, write

CALL, OTHER_CALL = ToolCallId("c1"), ToolCallId("c2")


async def running(pool: Pool) -> Fence:
    return Fence.of(await insert_seed(pool, Seed(state=State.R0, calls="local")))


async def marks(pool: Pool) -> list[tuple[str, int]]:
    rows = await pool.fetch("SELECT tool_call_id, epoch FROM chat_tool_runs ORDER BY 1")
    return [(row["tool_call_id"], row["epoch"]) for row in rows]


async def test_the_first_start_may_run_and_the_second_may_not(pool: Pool) -> None:
    fence = await running(pool)
    assert await idempotency.mark_tool_started(pool, CHAT, CALL, fence)
    assert not await idempotency.mark_tool_started(pool, CHAT, CALL, fence)
    assert await idempotency.mark_tool_started(pool, CHAT, OTHER_CALL, fence)
    assert await marks(pool) == [(CALL, fence.epoch), (OTHER_CALL, fence.epoch)]


async def test_a_retry_after_a_lost_reply_finds_its_own_mark(pool: Pool) -> None:
    fence = await running(pool)
    await idempotency.mark_tool_started(pool, CHAT, CALL, fence)
    assert await idempotency.mark_tool_started(pool, CHAT, CALL, fence, is_retry=True)
    await workers.release(pool, fence.worker_id)
    [taken] = await workers.acquire(pool, OTHER_WORKER, roots=1, children=0)
    assert not await idempotency.mark_tool_started(pool, CHAT, CALL, Fence.of(taken), is_retry=True)


async def test_after_a_crash_the_next_worker_finds_the_mark(pool: Pool) -> None:
    fence = await running(pool)
    await idempotency.mark_tool_started(pool, CHAT, CALL, fence)
    await workers.release(pool, fence.worker_id)
    [taken] = await workers.acquire(pool, OTHER_WORKER, roots=1, children=0)
    assert not await idempotency.mark_tool_started(pool, CHAT, CALL, Fence.of(taken))
    assert await idempotency.mark_tool_started(pool, CHAT, OTHER_CALL, Fence.of(taken))


@pytest.mark.covers("T13")
@pytest.mark.promise("P3")
async def test_a_worker_that_lost_its_chat_starts_nothing(pool: Pool) -> None:
    fence = await running(pool)
    others = (
        replace(fence, worker_id=OTHER_WORKER),
        replace(fence, epoch=fence.epoch - 1),
        replace(fence, history_version=fence.history_version - 1),
    )
    for stale in others:
        with pytest.raises(StaleFence):
            await idempotency.mark_tool_started(pool, CHAT, CALL, stale)
    with pytest.raises(StaleFence):
        await idempotency.mark_tool_started(pool, chat_id(99), CALL, fence)
    assert await marks(pool) == []


async def test_no_tool_starts_in_an_interrupting_chat(pool: Pool) -> None:
    chat = await insert_seed(pool, Seed(state=State.R0, calls="local"))
    stopped = await write(pool, interrupt(chat, None))
    for fence in (Fence.of(chat), Fence.of(stopped.chat)):
        with pytest.raises(StaleFence):
            await idempotency.mark_tool_started(pool, CHAT, CALL, fence)
    assert await marks(pool) == []


@pytest.mark.promise("P3")
async def test_a_start_waits_for_a_concurrent_change_of_owner(pool: Pool) -> None:
    chat = await insert_seed(pool, Seed(state=State.R0, calls="local"))
    rollback = SendMessage(prompt=prompt("instead"), when_busy="rollback")

    async def start() -> None:
        with pytest.raises(StaleFence):
            await idempotency.mark_tool_started(pool, CHAT, CALL, Fence.of(chat))

    async with asyncio.timeout(30), asyncio.TaskGroup() as group, pool.transaction() as session:
        await write(session, send_message(chat, rollback, OTHER_WORKER))
        group.create_task(start())
        await eventually(lambda: has_lock_waiter(pool))
    assert await marks(pool) == []


async def test_marks_are_deleted_with_their_chat(pool: Pool) -> None:
    await idempotency.mark_tool_started(pool, CHAT, CALL, await running(pool))
    await pool.execute("DELETE FROM chats")
    assert await marks(pool) == []
