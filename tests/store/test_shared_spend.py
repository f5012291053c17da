"""Calls of several replicas share one limit through the database."""

import asyncio
from random import Random
from uuid import UUID

import pytest
from msgspec import Raw

from chatd.aio import run_other_tasks
from chatd.domain.chat.messages import TokenUsage, UsageEntry
from chatd.domain.chat.row import Chat
from chatd.store.database.pool import Pool
from chatd.store.model import model_calls, spend
from chatd.store.model.model_calls import OpenCall, Payer
from chatd.store.model.spend import DefaultLimit, Spending
from tests.support.factories import WORKER
from tests.support.simulated_calls import SimulatedCalls
from tests.support.store import open_chat

LIMIT = 300_000
CHUNK = 2_500


class StoredBooks:
    """Satisfies `CallBooks`."""

    refuses_unchecked = False

    def __init__(self, pool: Pool, chat: Chat) -> None:
        self._pool = pool
        self._chat = chat
        self._dice = Random(1)

    async def open(self, call_id: UUID, micros: int) -> None:
        call = OpenCall(
            id=call_id,
            owner_id=self._chat.owner_id,
            chat_id=self._chat.id,
            root_chat_id=self._chat.root_chat_id,
            worker_id=WORKER,
            epoch=1,
            history_version=1,
            attempt=1,
            reserved_micros=micros,
            record=Raw(b"{}"),
        )
        await model_calls.write_open_calls(self._pool, [call], [])

    async def discard(self, call_id: UUID) -> None:
        await model_calls.write_open_calls(self._pool, [], [call_id])

    async def read(self, chat: Chat, call_id: UUID) -> Spending:
        del chat
        limit = DefaultLimit(micros=LIMIT)
        owner = self._chat.owner_id
        return await spend.read_spending(self._pool, owner, limit, call_id=call_id)

    async def set_reserved(self, call_id: UUID, micros: int) -> None:
        await spend.set_reserved(self._pool, call_id, micros)

    async def close(self, call_id: UUID, cost: int) -> None:
        entry = UsageEntry(
            kind="turn",
            provider="p",
            model="m",
            usage=TokenUsage(input_tokens=1),
            cost_micros=cost,
            call_id=call_id,
        )
        await model_calls.insert_usage(self._pool, Payer.of(self._chat), entry)

    async def back_off(self, tries: int) -> None:
        for _ in range(self._dice.randrange(20 * 2**tries)):
            await run_other_tasks()

    async def wait_readable(self, failures: int) -> None:
        raise AssertionError(failures)

    def hold(self, chat: Chat, micros: int) -> None:
        pass

    def allows_unchecked(self, chat: Chat, micros: int) -> bool:
        raise AssertionError(chat, micros)

    def report_failure(self, chat: Chat, kind: str) -> None:
        raise AssertionError(kind)


@pytest.mark.promise("P11")
@pytest.mark.stock_server
@pytest.mark.parametrize("seed", range(3))
async def test_twenty_chats_on_many_sessions_never_pass_their_common_limit(
    pool: Pool, seed: int
) -> None:
    books = StoredBooks(pool, await open_chat(pool, 1))
    calls = [
        SimulatedCalls(books, number, Random(seed * 100 + number), chunk_micros=CHUNK)
        for number in range(1, 21)
    ]
    async with asyncio.TaskGroup() as group:
        for call in calls:
            group.create_task(call.run())
    spent = await pool.fetchval("SELECT sum(cost_micros) FROM usage_events")
    assert LIMIT // 2 < spent <= LIMIT + CHUNK
    assert await pool.fetchval("SELECT count(*) FROM open_calls") == 0
