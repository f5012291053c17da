"""Model calls that fail: tried again after a while that everybody can see, or given up with a
reason. The clock is the test's."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import pytest

from chatd.domain.model.protocol import ModelEvent, ModelRequest
from chatd.domain.model.retry import MAX_MODEL_CALL_ATTEMPTS, STREAM_IDLE_TIMEOUT_S
from chatd.domain.ports import Provider
from chatd.engine.slots import SlotsConfig
from chatd.engine.worker import WorkerConfig
from tests.support.clock import FakeClock
from tests.support.house import House, a_house, a_house_with, let_pass, wound
from tests.support.providers.openai_chat import FakeCompatible
from tests.support.providers.server import Gate, Reset, Silence

NO_ROOM = WorkerConfig(heartbeat_interval_s=0.2, slots=SlotsConfig(roots=0))
BUSY = {"error": {"message": "busy"}}


async def backing_off(house: House, clock: FakeClock) -> float:
    """How long the chat waits before its next attempt."""
    return await clock.asleep_on("retry_backoff")


@pytest.mark.covers("retry-7")
async def test_the_wait_is_in_the_row_and_gone_when_the_answer_is_there(
    dsn: str, clock: FakeClock
) -> None:
    async with a_house(dsn, clock=clock) as house:
        house.api.reply(503, BUSY)
        house.says("better")
        chat_id = await house.create("hi")
        assert await backing_off(house, clock) == 1.0
        chat = await house.chat(chat_id)
        assert chat.retry_state is not None
        assert (chat.retry_state.attempt, chat.retry_state.delay_ms) == (1, 1000)
        assert (chat.retry_state.kind, chat.retry_state.status_code) == ("timeout", 503)
        assert chat.retry_state.provider == "openai-compat"
        assert chat.attempt == 2
        assert chat.state == "R0"
        clock.advance(1)
        chat = await house.rests(chat_id)
        assert chat.retry_state is None
        assert await house.transcript(chat_id) == ["user: hi", "assistant: better"]


async def test_each_wait_is_longer_and_never_shorter_than_asked_for(
    dsn: str, clock: FakeClock
) -> None:
    async with a_house(dsn, clock=clock) as house:
        house.api.reply(503, BUSY)
        house.api.reply(503, BUSY)
        house.api.reply(429, BUSY, {"retry-after": "30"})
        house.says("better")
        chat_id = await house.create("hi")
        waits: list[float] = []
        for _ in range(3):
            waits.append(await backing_off(house, clock))
            await let_pass(clock, waits[-1])
            await house.events.wait("action", attempt=len(waits) + 1)
        assert waits == [1.0, 2.0, 30.0]
        assert (await house.rests(chat_id)).state == "W"


async def test_a_stop_during_the_wait_ends_it_and_keeps_nothing_of_what_failed(
    dsn: str, clock: FakeClock
) -> None:
    async with a_house(dsn, clock=clock) as house:
        house.breaks_off("half an answer")
        chat_id = await house.create("hi")
        await backing_off(house, clock)
        await house.interrupt(chat_id)
        assert (await house.rests(chat_id)).state == "W"
        assert await house.transcript(chat_id) == ["user: hi"]
        assert clock.sleeping("retry_backoff") == []


async def test_a_message_that_stops_the_wait_does_not_inherit_it(
    dsn: str, clock: FakeClock
) -> None:
    """The next turn begins with a budget of its own."""
    async with a_house(dsn, clock=clock) as house:
        house.api.reply(503, BUSY)
        chat_id = await house.create("hi")
        await backing_off(house, clock)
        house.says("sure")
        await house.send(chat_id, "rather this", when_busy="interrupt")
        assert (await house.rests(chat_id)).state == "W"
        assert (await house.transcript(chat_id))[-1] == "assistant: sure"


@pytest.mark.covers("F29")
async def test_an_edit_during_the_wait_begins_anew(dsn: str, clock: FakeClock) -> None:
    async with a_house(dsn, clock=clock) as house:
        house.api.reply(503, BUSY)
        chat_id = await house.create("hi")
        await backing_off(house, clock)
        house.says("sure")
        chat = await house.edit(chat_id, "rather this")
        assert (chat.attempt, chat.retry_state) == (1, None)
        await house.rests(chat_id, epoch=2)
        assert await house.transcript(chat_id) == ["user: rather this", "assistant: sure"]


@pytest.mark.promise("P5")
async def test_leaving_does_not_wait_for_the_wait(dsn: str, clock: FakeClock) -> None:
    async with FakeCompatible.running() as api, a_house_with(dsn, api, clock=clock) as leaves:
        leaves.api.reply(503, BUSY, {"retry-after": "60"})
        chat_id = await leaves.create("hi")
        await backing_off(leaves, clock)
        await leaves.leaves()
        chat = await leaves.chat(chat_id)
        assert (chat.state, chat.attempt) == ("P0", 2)
        async with a_house_with(dsn, api) as other:
            other.says("hello")
            assert (await other.rests(chat_id)).state == "W"


@pytest.mark.covers("F42")
async def test_what_does_not_get_better_is_given_up(dsn: str, clock: FakeClock) -> None:
    """The attempts are counted in the row, whoever makes them."""
    async with FakeCompatible.running() as api:
        async with a_house_with(dsn, api, worker=NO_ROOM) as house:
            chat_id = await house.create("hi")
            await house.pool.execute("UPDATE chats SET attempt = $1", MAX_MODEL_CALL_ATTEMPTS - 2)
        async with a_house_with(dsn, api, clock=clock) as house:
            house.api.reply(503, BUSY)
            house.api.reply(503, BUSY)
            await let_pass(clock, await backing_off(house, clock))
            chat = await house.rests(chat_id)
            assert chat.state == "E0"
            assert chat.last_error is not None
            assert (chat.last_error.kind, chat.last_error.status_code) == ("timeout", 503)
            assert len(house.api.requests) == 2


@pytest.mark.covers("F42")
@pytest.mark.parametrize("end", ["cut", "reset"])
async def test_nothing_of_an_answer_that_breaks_off_is_kept(
    dsn: str, clock: FakeClock, end: str
) -> None:
    async with a_house(dsn, clock=clock) as house:
        if end == "cut":
            house.breaks_off("half")
        else:
            house.says("half", Reset())
        house.says("whole")
        chat_id = await house.create("hi")
        await let_pass(clock, await backing_off(house, clock))
        assert (await house.rests(chat_id)).state == "W"
        assert await house.transcript(chat_id) == ["user: hi", "assistant: whole"]


@pytest.mark.covers("F42")
async def test_silence_is_a_failure_that_passes(dsn: str, clock: FakeClock) -> None:
    async with a_house(dsn, clock=clock) as house:
        house.says("I", Silence())
        house.says("am back")
        chat_id = await house.create("hi")
        await house.api.received.wait()
        await let_pass(clock, STREAM_IDLE_TIMEOUT_S + 60)
        failed = await house.events.wait("model_failed")
        assert failed["error_kind"] == "stream_silence_timeout"
        async with wound(clock):
            await house.rests(chat_id)
        assert await house.transcript(chat_id) == ["user: hi", "assistant: am back"]
        assert house.api.requests[0].disconnected.is_set()


async def test_whoever_speaks_now_and_then_is_not_silent(dsn: str, clock: FakeClock) -> None:
    gate = Gate()
    async with a_house(dsn, clock=clock) as house:
        house.says("still ", gate, "here")
        chat_id = await house.create("hi")
        await gate.reached.wait()
        await let_pass(clock, STREAM_IDLE_TIMEOUT_S - 60)
        gate.open()
        assert (await house.rests(chat_id)).state == "W"
        assert await house.transcript(chat_id) == ["user: hi", "assistant: still here"]


class GivesUp:
    """Satisfies `ports.Provider`: the first time its transport cancels itself."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._tried = False
        self.name = provider.name

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        if not self._tried:
            self._tried = True
            raise asyncio.CancelledError
        async with self._provider.stream(request) as events:
            yield events

    async def close(self) -> None:
        await self._provider.close()


@pytest.mark.covers("F42", "retry-8")
async def test_a_cancellation_that_nobody_asked_for_is_a_cut_connection(
    dsn: str, clock: FakeClock
) -> None:
    async with a_house(dsn, clock=clock) as house:
        house.model.provider = GivesUp(house.model.provider)
        house.says("here I am")
        chat_id = await house.create("hi")
        await let_pass(clock, await backing_off(house, clock))
        assert (await house.rests(chat_id)).state == "W"
        assert await house.transcript(chat_id) == ["user: hi", "assistant: here I am"]


@pytest.mark.covers("loop-34")
async def test_a_viewer_that_cannot_be_told_ends_the_attempt_and_not_the_worker(dsn: str) -> None:
    gate = Gate()

    def broken() -> None:
        raise ValueError("a bug")

    async with a_house(dsn) as house:
        house.says("one", gate, "two")
        command = house.command("hi")
        house.replica.episodes.watch(command.id, broken)
        await house.create("hi", id=command.id)
        chat = await house.rests(command.id)
        assert chat.last_error is not None
        assert chat.last_error.kind == "internal"
        await house.api.requests[0].disconnected.wait()
        house.replica.episodes.unwatch(command.id)
        house.says("better")
        await house.send(command.id, "again")
        assert (await house.until(command.id, "W")).last_error is None
