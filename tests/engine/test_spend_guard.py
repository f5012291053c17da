"""Spend limits: checked before every model call; a check that fails allows a call only far from
the limit."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from chatd.domain.answer.answer import StartedCall
from chatd.domain.chat.row import Chat, ChatError
from chatd.domain.deployment.spend import UNCHECKED_REFUSAL, SpendRefusal
from chatd.domain.errors import Unavailable
from chatd.domain.ports import Env
from chatd.engine.model.budget import SpendLimit
from chatd.engine.model.spend_guard import OpenCallWriter, SpendGuard
from chatd.store.database.pool import Pool
from tests.support.clock import FakeClock
from tests.support.engine_rig import EngineRig, Events, change_id, engine_rig
from tests.support.eventually import eventually
from tests.support.factories import CHAT, WORKER, chat
from tests.support.outcomes import present
from tests.support.providers.server import Gate
from tests.support.store import session_to
from tests.support.tools import GatedTool

OVERFLOW = {"error": {"message": "Too long.", "code": "context_length_exceeded"}}
REFUSAL = SpendRefusal(message="Enough.", spent_micros=7, limit_micros=5)
LIMIT_ERROR = REFUSAL.error


class CallBudget:
    """Satisfies `Budget`: allows that many calls."""

    def __init__(self, calls: int) -> None:
        self.left = calls

    def is_unlimited(self, chat: Chat) -> bool:
        del chat
        return False

    async def check(self, chat: Chat) -> SpendRefusal | None:
        del chat
        return REFUSAL if self.left <= 0 else None

    async def reserve(self, chat: Chat, call: StartedCall) -> SpendRefusal | None:
        del chat, call
        self.left -= 1
        return REFUSAL if self.left < 0 else None

    def reserve_unchecked(self, chat: Chat, call: StartedCall) -> SpendRefusal | None:
        raise AssertionError(chat, call)

    def on_booked(self, chat: Chat) -> None:
        pass


class FailingBudget:
    """Satisfies `Budget`; its checks hang or fail, and it knows no limit."""

    def __init__(self, *, hangs: bool) -> None:
        self.hangs = hangs

    def is_unlimited(self, chat: Chat) -> bool:
        del chat
        return False

    async def check(self, chat: Chat) -> SpendRefusal | None:
        del chat
        if self.hangs:
            await asyncio.Event().wait()
        raise Unavailable("The database is away.")

    async def reserve(self, chat: Chat, call: StartedCall) -> SpendRefusal | None:
        del call
        return await self.check(chat)

    def reserve_unchecked(self, chat: Chat, call: StartedCall) -> SpendRefusal | None:
        del chat, call

    def on_booked(self, chat: Chat) -> None:
        pass


@pytest.mark.covers("O9")
@pytest.mark.promise("P11")
async def test_a_spend_limit_fails_the_turn_between_two_model_calls(dsn: str) -> None:
    tool = GatedTool()
    async with engine_rig(dsn, tools=[tool], budget=CallBudget(1)) as rig:
        rig.call_tools(("c1", "echo", "{}"))
        chat_id = await rig.create("go")
        failed = await rig.wait_chat_task_left(chat_id)
        assert (failed.state, failed.last_error) == ("E0", LIMIT_ERROR)
        assert tool.runs == ["c1"]
        assert len(rig.api.requests) == 1


@pytest.mark.promise("P11")
async def test_a_summary_call_is_checked_against_the_spend_limit(dsn: str) -> None:
    async with engine_rig(dsn, budget=CallBudget(1)) as rig:
        chat_id = await rig.ask("hi", "hello")
        await rig.wait_chat_task_left(chat_id, epoch=1)
        await rig.compact(chat_id)
        assert (await rig.wait_chat_task_left(chat_id, epoch=3)).last_error == LIMIT_ERROR
        assert len(rig.api.requests) == 1


@pytest.mark.promise("P11")
async def test_every_retry_of_a_summary_call_is_checked_against_the_spend_limit(dsn: str) -> None:
    """The provider rejects the prompt as too long, and the first summary prompt too."""
    async with engine_rig(dsn, budget=CallBudget(3)) as rig:
        chat_id = await rig.ask("hi " * 500, "hello " * 500)
        await rig.wait_chat_task_left(chat_id, epoch=1)
        rig.api.reply(400, OVERFLOW)
        rig.api.reply(400, OVERFLOW)
        await rig.send(chat_id, "go on")
        assert (await rig.wait_chat_task_left(chat_id, epoch=3)).last_error == LIMIT_ERROR
        assert len(rig.api.requests) == 3


async def test_a_failed_spend_check_allows_a_call_without_a_limit(dsn: str) -> None:
    async with engine_rig(dsn, budget=FailingBudget(hangs=False)) as rig:
        chat_id = await rig.ask("hi", "hello")
        assert (await rig.wait_chat_task_left(chat_id)).state == "W"
        await rig.events.wait("spend_check_failed", chat_id=chat_id)


async def test_a_spend_check_that_hangs_times_out_and_allows_the_call(
    clock: FakeClock, pool: Pool
) -> None:
    events = Events()
    env = Env(clock=clock, emit=events, new_id=lambda: CHAT, new_change_id=change_id)
    open_calls = OpenCallWriter(pool, env, WORKER)
    guard = SpendGuard(FailingBudget(hangs=True), open_calls, env, timeout_s=0.01)
    assert await guard.check(chat()) is None
    assert events.seen == [("spend_check_failed", {"chat_id": CHAT, "error_kind": "timeout"})]


async def test_a_failed_spend_check_can_refuse_the_call(clock: FakeClock, pool: Pool) -> None:
    env = Env(clock=clock, emit=Events(), new_id=lambda: CHAT, new_change_id=change_id)
    open_calls = OpenCallWriter(pool, env, WORKER)
    guard = SpendGuard(FailingBudget(hangs=False), open_calls, env, refuses_unchecked=True)
    assert await guard.check(chat()) == UNCHECKED_REFUSAL


async def spend(rig: EngineRig) -> ChatError | None:
    rig.answer("hello", input_tokens=1_000_000)
    chat_id = await rig.create("hi")
    await rig.wait_chat_task_left(chat_id)
    return (await rig.chat(chat_id)).last_error


@pytest.mark.promise("P11")
async def test_an_owners_spend_counts_across_chats(dsn: str) -> None:
    """A million input tokens cost a dollar; the five output tokens add a little."""
    limit = SpendLimit(micros=1_500_000, period="month")
    async with engine_rig(dsn, spend_limit=limit) as rig:
        assert await spend(rig) is None
        assert await spend(rig) is None
        refused = present(await spend(rig))
        assert refused.kind == "usage_limit"
        assert "$1.50 for this month is reached: $2.00 were spent" in refused.message
        assert "It is reset at 20" in refused.message
        assert len(rig.api.requests) == 2


@asynccontextmanager
async def unreadable_limits(dsn: str) -> AsyncGenerator[None]:
    """Another session holds a lock that the check waits for."""
    async with session_to(dsn) as session, session.transaction():
        await session.execute("LOCK TABLE default_spend_limit IN ACCESS EXCLUSIVE MODE")
        yield


@pytest.mark.covers("F44")
@pytest.mark.promise("P11")
@pytest.mark.stock_server
async def test_far_from_the_limit_a_failed_check_allows_the_call(dsn: str) -> None:
    limit = SpendLimit(micros=1_000_000)
    async with engine_rig(dsn, spend_limit=limit, lock_timeout_s=0.05) as rig:
        await rig.wait_chat_task_left(await rig.ask("hi", "hello"))
        async with unreadable_limits(dsn):
            chat_id = await rig.ask("hi", "hello again")
            assert (await rig.wait_chat_task_left(chat_id)).state == "W"
        await rig.events.wait("spend_check_failed", chat_id=chat_id)
        assert len(rig.api.requests) == 2


@pytest.mark.covers("F44")
@pytest.mark.promise("P11")
@pytest.mark.stock_server
@pytest.mark.parametrize("was_read", [True, False], ids=["near", "never read"])
async def test_near_the_limit_a_call_waits_until_the_check_can_be_made(
    dsn: str, *, was_read: bool
) -> None:
    """It is shown as a retry, holds no slot, and can be interrupted."""
    limit = SpendLimit(micros=6_000)
    async with engine_rig(dsn, spend_limit=limit, lock_timeout_s=0.05) as rig:
        if was_read:
            rig.answer("hello", input_tokens=5_000)
            await rig.wait_chat_task_left(await rig.create("hi"))
            await rig.events.wait("spend_warning", percent=80)  # read after the call was booked
        before = len(rig.api.requests)
        async with unreadable_limits(dsn):
            chat_id = await rig.create("hi")
            waiting = await rig.wait_chat_task_left(chat_id)
            shown = present(waiting.retry_state)
            assert "What you have spent cannot be read now" in shown.error
            stopped = await rig.interrupt(chat_id)
            assert (await rig.wait_state(chat_id, "W")).history_version >= stopped.history_version
        assert len(rig.api.requests) == before
        assert await rig.pool.fetchval("SELECT count(*) FROM usage_events") == before
        rig.answer("hello")
        await rig.send(chat_id, "now")
        assert (await rig.wait_state(chat_id, "W")).last_error is None


@pytest.mark.promise("P11")
@pytest.mark.stock_server
async def test_a_call_is_marked_as_sent_when_its_check_has_passed(dsn: str, gate: Gate) -> None:
    """The mark is written before the request: a call without it was never sent."""
    async with engine_rig(dsn, spend_limit=SpendLimit(micros=1_000_000)) as rig:

        async def mark() -> list[bool] | None:
            rows = await rig.pool.fetch("SELECT sent FROM open_calls")
            return [row["sent"] for row in rows] or None

        rig.answer("hello", gate)
        async with unreadable_limits(dsn):
            chat_id = await rig.create("hi")
            assert await eventually(mark) == [False]
            assert rig.api.requests == []
        await gate.reached.wait()
        assert await mark() == [True]
        gate.open()
        assert (await rig.wait_chat_task_left(chat_id)).state == "W"
