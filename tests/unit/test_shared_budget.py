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
from chatd.domain.deployment.spend import (
    FIRST_OUTPUT_TOKENS,
    MAX_HELD_AMOUNTS,
    UNCHECKED_REFUSAL,
    KnownAccount,
    SpendAccount,
    SpendRefusal,
    fits_unchecked,
)
from chatd.domain.errors import Unavailable
from chatd.domain.model.usage import expected_input, learn_input_ratio
from chatd.engine.model.budget import MAX_EXTENSION_TRIES, CallAllowance, reserve_call
from chatd.store.model.spend import Spending
from tests.support.factories import chat
from tests.support.outcomes import present
from tests.support.simulated_calls import CONFIG, SimulatedCalls

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

    async def wait_readable(self, failures: int) -> None:
        raise AssertionError(failures)

    def hold(self, chat: Chat, micros: int) -> None:
        pass

    def allows_unchecked(self, chat: Chat, micros: int) -> bool:
        raise AssertionError(chat, micros)

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


class UnreadableBooks(SharedBooks):
    """Its sums can be read once; each later read fails until the given one."""

    def __init__(self, limit: int, *, readable_again: int) -> None:
        super().__init__(limit, Random(1))
        self.readable_again = readable_again
        self.reads = 0
        self.waits = 0
        self.held = 0
        self.failures: list[str] = []

    async def read(self, chat: Chat, call_id: UUID) -> Spending:
        self.reads += 1
        if 1 < self.reads < self.readable_again:
            raise Unavailable("The database is away.", code="database_down")
        return await super().read(chat, call_id)

    async def wait_readable(self, failures: int) -> None:
        del failures
        self.waits += 1

    def hold(self, chat: Chat, micros: int) -> None:
        del chat
        self.held += micros

    def allows_unchecked(self, chat: Chat, micros: int) -> bool:
        account = SpendAccount(
            limit_micros=self.limit, spent_micros=self.booked, reserved_micros=self.held
        )
        allowed = fits_unchecked((account,), micros)
        if allowed:
            self.hold(chat, micros)
        return allowed

    def report_failure(self, chat: Chat, kind: str) -> None:
        del chat
        self.failures.append(kind)


async def spend_until_refused(books: UnreadableBooks) -> tuple[int, SpendRefusal | None]:
    """What one call has cost when it is stopped, or at a dollar."""
    usage = TokenUsage(input_tokens=10)
    call = StartedCall(id=UUID(int=1), kind="turn", config=CONFIG, usage=usage)
    await books.open(call.id, 0)
    allowance = await reserve_call(books, chat(), call)
    assert isinstance(allowance, CallAllowance)
    for cost in range(1_000, DOLLAR, 1_000):
        if (refusal := await allowance.cover(cost)) is not None:
            return cost, refusal
    return DOLLAR, None


async def test_an_answer_waits_near_the_limit_while_the_sums_cannot_be_read() -> None:
    """Until a tenth of the limit is left it goes on without a check."""
    books = UnreadableBooks(500_000, readable_again=10**9)
    cost, refusal = await spend_until_refused(books)
    assert refusal == UNCHECKED_REFUSAL
    assert 350_000 < cost <= 450_000
    assert books.waits == MAX_EXTENSION_TRIES - 1
    assert set(books.failures) == {"database_down"}


async def test_an_answer_that_waited_goes_on_when_the_sums_can_be_read_again() -> None:
    books = UnreadableBooks(500_000, readable_again=15)
    cost, refusal = await spend_until_refused(books)
    assert refusal is not None
    assert refusal != UNCHECKED_REFUSAL
    assert books.waits > 0
    assert 450_000 < cost <= 500_000


@pytest.mark.parametrize(
    ("spent", "reserved", "micros", "fits"),
    [
        (0, 0, 900, True),
        (0, 0, 901, False),
        (500, 0, 400, True),
        (500, 300, 100, True),
        (500, 300, 101, False),
        (1_000, 0, 0, False),
    ],
)
def test_without_a_check_a_tenth_of_the_limit_stays(
    spent: int, reserved: int, micros: int, *, fits: bool
) -> None:
    near = SpendAccount(limit_micros=1_000, spent_micros=spent, reserved_micros=reserved)
    far = SpendAccount(limit_micros=1_000_000, spent_micros=0)
    assert fits_unchecked((far, near), micros) is fits
    assert fits_unchecked((), micros) is True


@pytest.mark.parametrize(
    ("ratio", "estimated", "told", "learned"),
    [
        (1.0, 1_000, TokenUsage(input_tokens=2_000), 2.0),
        (1.0, 1_000, TokenUsage(input_tokens=100, cache_read_tokens=1_400), 1.5),
        (2.0, 1_000, TokenUsage(input_tokens=1_000), 1.75),
        (1.0, 1_000, TokenUsage(input_tokens=90_000), 3.0),
        (1.0, 1_000, TokenUsage(input_tokens=1), 0.5),
        (1.2, 1_000, TokenUsage(input_tokens=2_000, estimated=True), 1.2),
        (1.2, 1_000, TokenUsage(output_tokens=9), 1.2),
        (1.2, 199, TokenUsage(input_tokens=2_000), 1.2),
        (1.0, 1_000, TokenUsage(input_tokens=9_000, context_tokens=1_500), 1.5),
    ],
)
def test_what_providers_count_corrects_the_estimate_of_the_input(
    ratio: float, estimated: int, told: TokenUsage, learned: float
) -> None:
    assert learn_input_ratio(ratio, estimated, told) == learned


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        (None, TokenUsage(input_tokens=1_000)),
        (TokenUsage(input_tokens=900), TokenUsage(input_tokens=1_000)),
        (
            TokenUsage(cache_read_tokens=700, cache_creation_tokens=200),
            TokenUsage(input_tokens=100, cache_read_tokens=900),
        ),
        (TokenUsage(cache_read_tokens=4_000), TokenUsage(cache_read_tokens=1_000)),
    ],
)
def test_input_that_the_provider_has_in_its_cache_is_expected_at_its_price(
    before: TokenUsage | None, expected: TokenUsage
) -> None:
    assert expected_input(1_000, before) == expected


def test_sums_that_arrive_late_do_not_replace_newer_ones_or_what_was_allowed_since() -> None:
    def read(asked_at: float, reserved: int) -> KnownAccount:
        account = SpendAccount(limit_micros=1_000, spent_micros=0, reserved_micros=reserved)
        return KnownAccount(account=account, asked_at=asked_at)

    known = read(2.0, 500).holding(100, 3.0).holding(50, 5.0)
    assert present(known.with_held).reserved_micros == 650
    assert known.after_read(read(1.0, 0)) == known, "asked for before"
    newer = known.after_read(read(4.0, 600))
    assert present(newer.with_held).reserved_micros == 650, "what was allowed at 5 may be missing"
    for at in range(2 * MAX_HELD_AMOUNTS):
        newer = newer.holding(1, 10.0 + at)
    assert len(newer.held) == MAX_HELD_AMOUNTS
    assert present(newer.with_held).reserved_micros == 650 + 2 * MAX_HELD_AMOUNTS
