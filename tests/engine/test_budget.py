"""Spend limits: looked at before every model call, and never in the way by failing."""

import asyncio
from datetime import UTC, datetime

import pytest

from chatd.domain.chat.row import Chat, ChatError
from chatd.domain.errors import Unavailable
from chatd.domain.ports import Env
from chatd.engine.spend_guard import OwnerBudget, Period, SpendGuard, SpendLimit, period_start
from tests.support.clock import FakeClock
from tests.support.factories import CHAT, chat
from tests.support.house import Events, House, a_house, change_id
from tests.support.store import session_to
from tests.support.tools import GatedTool

OVERFLOW = {"error": {"message": "Too long.", "code": "context_length_exceeded"}}
TOO_MUCH = ChatError(kind="usage_limit", message="Enough.")


class Counted:
    """Satisfies `ports.Budget`: so many calls, and no more."""

    def __init__(self, calls: int) -> None:
        self.left = calls

    async def check(self, chat: Chat) -> ChatError | None:
        del chat
        self.left -= 1
        return TOO_MUCH if self.left < 0 else None


class Deaf:
    """Satisfies `ports.Budget`, in its own way."""

    def __init__(self, *, hangs: bool) -> None:
        self.hangs = hangs

    async def check(self, chat: Chat) -> ChatError | None:
        del chat
        if self.hangs:
            await asyncio.Event().wait()
        raise Unavailable("The books are closed.")


@pytest.mark.covers("O9")
@pytest.mark.promise("P11")
async def test_the_limit_stops_a_turn_between_two_calls(dsn: str) -> None:
    tool = GatedTool()
    async with a_house(dsn, tools=[tool], budget=Counted(1)) as house:
        house.calls(("c1", "echo", "{}"))
        chat_id = await house.create("go")
        stopped = await house.rests(chat_id)
        assert (stopped.state, stopped.last_error) == ("E0", TOO_MUCH)
        assert tool.runs == ["c1"]
        assert len(house.api.requests) == 1


@pytest.mark.promise("P11")
async def test_a_summary_is_a_call_like_any_other(dsn: str) -> None:
    async with a_house(dsn, budget=Counted(1)) as house:
        house.says("hello")
        chat_id = await house.create("hi")
        await house.rests(chat_id, epoch=1)
        await house.compact(chat_id)
        assert (await house.rests(chat_id, epoch=3)).last_error == TOO_MUCH
        assert len(house.api.requests) == 1


@pytest.mark.promise("P11")
async def test_each_try_at_a_summary_is_a_call_like_any_other(dsn: str) -> None:
    """The model finds the chat too long, and the first summary of it too."""
    async with a_house(dsn, budget=Counted(3)) as house:
        house.says("hello " * 500)
        chat_id = await house.create("hi " * 500)
        await house.rests(chat_id, epoch=1)
        house.api.reply(400, OVERFLOW)
        house.api.reply(400, OVERFLOW)
        await house.send(chat_id, "go on")
        assert (await house.rests(chat_id, epoch=3)).last_error == TOO_MUCH
        assert len(house.api.requests) == 3


@pytest.mark.covers("F44")
async def test_a_limit_that_cannot_be_looked_up_stops_nobody(dsn: str) -> None:
    async with a_house(dsn, budget=Deaf(hangs=False)) as house:
        house.says("hello")
        chat_id = await house.create("hi")
        assert (await house.rests(chat_id)).state == "W"
        await house.events.wait("spend_check_failed", chat_id=chat_id)


async def test_nobody_waits_for_books_that_do_not_open(clock: FakeClock) -> None:
    events = Events()
    env = Env(clock=clock, emit=events, new_id=lambda: CHAT, new_change_id=change_id)
    assert await SpendGuard(Deaf(hangs=True), env, timeout_s=0.01).check(chat()) is None
    assert events.seen == [("spend_check_failed", {"chat_id": CHAT, "error_kind": "timeout"})]


async def spend(house: House) -> ChatError | None:
    house.says("hello", used=1_000_000)
    chat_id = await house.create("hi")
    await house.rests(chat_id)
    return (await house.chat(chat_id)).last_error


@pytest.mark.promise("P11")
async def test_what_an_owner_has_spent_counts_for_all_chats(dsn: str, clock: FakeClock) -> None:
    """A million tokens at a dollar, and five at two, are a dollar and a bit."""
    async with session_to(dsn) as books:
        budget = OwnerBudget(books, clock, SpendLimit(micros=1_500_000, period="month"))
        async with a_house(dsn, budget=budget) as house:
            assert await spend(house) is None
            assert await spend(house) is None
            refused = await spend(house)
            assert refused is not None
            assert refused.kind == "usage_limit"
            assert "$1.50 for this month is reached: $2.00 were spent" in refused.message
            assert len(house.api.requests) == 2


@pytest.mark.parametrize(
    ("period", "begins"), [("day", (2026, 3, 18)), ("week", (2026, 3, 16)), ("month", (2026, 3, 1))]
)
def test_a_period_begins_at_midnight(period: Period, begins: tuple[int, int, int]) -> None:
    now = datetime(2026, 3, 18, 17, 5, tzinfo=UTC)
    assert period_start(now, period) == datetime(*begins, tzinfo=UTC)
