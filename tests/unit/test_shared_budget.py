"""Many calls share one limit through their reservations, in any order of their statements."""

import asyncio
from datetime import UTC, datetime
from random import Random
from uuid import UUID

import pytest

from chatd.aio import run_other_tasks
from chatd.domain.answer.answer import StartedCall
from chatd.domain.chat.messages import TokenUsage
from chatd.domain.chat.row import Chat
from chatd.domain.ids import ModelConfigId
from chatd.domain.model.protocol import ModelConfig, Prices
from chatd.domain.spend import FIRST_OUTPUT_TOKENS, SpendAccount, SpendRefusal
from chatd.engine.budget import reserve_call
from chatd.store.spend import Spending
from tests.support.factories import chat

pytestmark = pytest.mark.promise("P11")

DOLLAR = 1_000_000
PRICES = Prices(input="10", output="100")
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

    def report_failure(self, chat: Chat, kind: str) -> None:
        raise AssertionError(kind)

    async def close(self, call_id: UUID, cost: int) -> None:
        """One statement books the call and ends its reservation."""
        await self.step()
        self.reserved.pop(call_id)
        self.booked += cost
        self.most = max(self.most, self.booked)


class SimulatedCall:
    """A chat that makes calls until one is refused or stopped."""

    def __init__(self, books: SharedBooks, number: int, chunk_micros: int) -> None:
        self._books = books
        self._number = number
        self._chunk_micros = chunk_micros
        self.calls = 0

    async def run(self) -> None:
        while await self._call():
            self.calls += 1

    async def _call(self) -> bool:
        dice = self._books.dice
        call_id = UUID(int=self._number * 1_000_000 + self.calls)
        tokens = dice.randrange(1, 2000)
        config = ModelConfig(
            id=ModelConfigId(UUID(int=7)), name="m", provider="p", model="m", prices=PRICES
        )
        usage = TokenUsage(input_tokens=tokens)
        call = StartedCall(id=call_id, kind="turn", config=config, usage=usage)
        cost = tokens * 10
        await self._books.open(call_id, cost + FIRST_OUTPUT_TOKENS * 100)
        allowance = await reserve_call(self._books, chat(), call)
        if isinstance(allowance, SpendRefusal):
            self._books.reserved.pop(call_id)
            return False
        assert allowance is not None
        refusal = None
        for _ in range(dice.randrange(1, 120)):
            if refusal is not None:
                break
            cost += dice.randrange(1, self._chunk_micros + 1)
            refusal = await allowance.cover(cost)
        await self._books.close(call_id, cost)
        return refusal is None


@pytest.mark.parametrize("seed", range(60))
async def test_twenty_chats_never_pass_their_common_limit(seed: int) -> None:
    """By no more than one chunk, although up to twenty calls stream at the same time. A chunk is
    here at most a tenth of what a call reserves at a time."""
    dice = Random(seed)
    books, chunk_micros = SharedBooks(DOLLAR, dice), FIRST_OUTPUT_TOKENS * 10
    calls = [SimulatedCall(books, number, chunk_micros) for number in range(1, CHATS + 1)]
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
    calls = [SimulatedCall(books, number, 500) for number in range(1, CHATS + 1)]
    async with asyncio.TaskGroup() as group:
        for call in calls:
            group.create_task(call.run())
    assert books.most <= 60_000 + 500
