"""Many calls share one limit through their reservations, in any order of their statements."""

import asyncio
from datetime import UTC, datetime
from random import Random
from uuid import UUID

import pytest

from chatd.aio import run_other_tasks
from chatd.domain.chat.row import Chat
from chatd.domain.spend import FIRST_OUTPUT_TOKENS, SpendAccount
from chatd.store.spend import Spending
from tests.support.simulated_calls import SimulatedCalls

pytestmark = pytest.mark.promise("P11")

DOLLAR = 1_000_000
CHATS = 20
START, END = datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC)


class SharedBooks:
    """Satisfies `SpendBooks` in memory. Every statement is one step, and the dice choose how many
    steps of other calls come before it."""

    refuses_unchecked = False

    def __init__(self, limit: int, dice: Random) -> None:
        self.limit = limit
        self.dice = dice
        self.booked = 0
        self.reserved: dict[UUID, int] = {}
        self.most = 0

    async def step(self) -> None:
        for _ in range(self.dice.randrange(6)):
            await run_other_tasks()

    async def open(self, call_id: UUID, micros: int) -> None:
        await self.step()
        self.reserved[call_id] = micros

    async def read(self, chat: Chat, call_id: UUID) -> Spending:
        del chat
        await self.step()
        others = sum(micros for other, micros in self.reserved.items() if other != call_id)
        account = SpendAccount(
            limit_micros=self.limit,
            spent_micros=self.booked,
            reserved_micros=others,
            period="month",
            resets_at=END,
        )
        return Spending(
            period="month",
            period_start=START,
            resets_at=END,
            spent_micros=self.booked,
            reserved_micros=others,
            user=account,
        )

    async def set_reserved(self, call_id: UUID, micros: int) -> None:
        await self.step()
        self.reserved[call_id] = micros

    async def back_off(self, tries: int) -> None:
        for _ in range(self.dice.randrange(20 * 2**tries)):
            await run_other_tasks()

    def report_failure(self, chat: Chat, kind: str) -> None:
        raise AssertionError(kind)

    async def discard(self, call_id: UUID) -> None:
        await self.step()
        self.reserved.pop(call_id)

    async def close(self, call_id: UUID, cost: int) -> None:
        """One statement books the call and ends its reservation."""
        await self.step()
        self.reserved.pop(call_id)
        self.booked += cost
        self.most = max(self.most, self.booked)


@pytest.mark.parametrize("seed", range(60))
async def test_twenty_chats_never_pass_their_common_limit(seed: int) -> None:
    """By no more than one chunk, although up to twenty calls stream at the same time. A chunk is
    here at most a tenth of what a call reserves at a time."""
    dice = Random(seed)
    books, chunk_micros = SharedBooks(DOLLAR, dice), FIRST_OUTPUT_TOKENS * 10
    calls = [
        SimulatedCalls(books, number, dice, chunk_micros=chunk_micros)
        for number in range(1, CHATS + 1)
    ]
    async with asyncio.TaskGroup() as group:
        for call in calls:
            group.create_task(call.run())
    assert books.reserved == {}
    assert books.most <= DOLLAR + chunk_micros
    assert books.most > DOLLAR * 0.75, "a limit that is not reached must not refuse much earlier"


@pytest.mark.parametrize("seed", range(20))
async def test_calls_that_begin_together_do_not_pass_a_limit_that_one_of_them_reaches(
    seed: int,
) -> None:
    """Each costs most of the limit. Far fewer than twenty are made, whatever the order."""
    dice = Random(seed)
    books = SharedBooks(60_000, dice)
    calls = [
        SimulatedCalls(books, number, dice, chunk_micros=500) for number in range(1, CHATS + 1)
    ]
    async with asyncio.TaskGroup() as group:
        for call in calls:
            group.create_task(call.run())
    assert 0 < books.most <= 60_000 + 500
