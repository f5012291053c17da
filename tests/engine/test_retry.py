"""Failed model calls: retried after a delay that viewers see, or the turn fails. The test owns the
clock."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import pytest

from chatd.domain.model.protocol import ModelEvent, ModelRequest
from chatd.domain.model.retry import (
    MAX_ATTEMPTS_NEVER_REACHED,
    MAX_MODEL_CALL_ATTEMPTS,
    STREAM_IDLE_TIMEOUT_S,
)
from chatd.domain.ports import Provider
from tests.support.clock import FakeClock
from tests.support.engine_rig import (
    NO_SLOTS,
    EngineRig,
    advancing,
    engine_rig,
    engine_rig_with,
    pass_time,
)
from tests.support.outcomes import present
from tests.support.providers.openai_chat import DONE, FakeCompatible, chunk
from tests.support.providers.server import Gate, Reset, Silence

BUSY = {"error": {"message": "busy"}}


@pytest.fixture
async def rig(dsn: str, clock: FakeClock) -> AsyncGenerator[EngineRig]:
    async with engine_rig(dsn, clock=clock) as rig:
        yield rig


async def wait_backoff(clock: FakeClock) -> float:
    """The delay before the next attempt."""
    return await clock.wait_for_sleeper("retry_backoff")


@pytest.mark.covers("retry-7")
async def test_the_retry_delay_is_in_the_row_until_the_answer_is_stored(
    rig: EngineRig, clock: FakeClock
) -> None:
    rig.api.reply(503, BUSY)
    chat_id = await rig.ask("hi", "better")
    assert await wait_backoff(clock) == 1.0
    chat = await rig.chat(chat_id)
    assert chat.retry_state is not None
    assert (chat.retry_state.attempt, chat.retry_state.delay_ms) == (1, 1000)
    assert (chat.retry_state.kind, chat.retry_state.status_code) == ("timeout", 503)
    assert chat.retry_state.provider == "openai-compat"
    assert chat.attempt == 2
    assert chat.state == "R0"
    clock.advance(1)
    chat = await rig.wait_runner_left(chat_id)
    assert chat.retry_state is None
    assert await rig.transcript(chat_id) == ["user: hi", "assistant: better"]


async def test_retry_delays_grow_and_respect_retry_after(rig: EngineRig, clock: FakeClock) -> None:
    rig.api.reply(503, BUSY)
    rig.api.reply(503, BUSY)
    rig.api.reply(429, BUSY, {"retry-after": "30"})
    chat_id = await rig.ask("hi", "better")
    delays: list[float] = []
    for _ in range(3):
        delays.append(await wait_backoff(clock))
        await pass_time(clock, delays[-1])
        await rig.events.wait("action", attempt=len(delays) + 1)
    assert delays == [1.0, 2.0, 30.0]
    assert (await rig.wait_runner_left(chat_id)).state == "W"


async def test_an_interrupt_ends_the_retry_delay_and_stores_nothing_of_the_failed_answer(
    rig: EngineRig, clock: FakeClock
) -> None:
    rig.cut_answer("half an answer")
    chat_id = await rig.create("hi")
    await wait_backoff(clock)
    await rig.interrupt(chat_id)
    assert (await rig.wait_runner_left(chat_id)).state == "W"
    assert await rig.transcript(chat_id) == ["user: hi"]
    assert clock.sleeping("retry_backoff") == []


async def test_a_message_that_interrupts_the_retry_delay_starts_without_one(
    rig: EngineRig, clock: FakeClock
) -> None:
    """The next turn has its own retry attempts."""
    rig.api.reply(503, BUSY)
    chat_id = await rig.create("hi")
    await wait_backoff(clock)
    rig.answer("sure")
    await rig.send(chat_id, "rather this", when_busy="interrupt")
    assert (await rig.wait_runner_left(chat_id)).state == "W"
    assert (await rig.transcript(chat_id))[-1] == "assistant: sure"


@pytest.mark.covers("F29")
async def test_an_edit_during_the_retry_delay_resets_the_attempts(
    rig: EngineRig, clock: FakeClock
) -> None:
    rig.api.reply(503, BUSY)
    chat_id = await rig.create("hi")
    await wait_backoff(clock)
    rig.answer("sure")
    chat = await rig.edit(chat_id, "rather this")
    assert (chat.attempt, chat.retry_state) == (1, None)
    await rig.wait_runner_left(chat_id, epoch=2)
    assert await rig.transcript(chat_id) == ["user: rather this", "assistant: sure"]


@pytest.mark.promise("P5")
async def test_a_drain_ends_the_retry_delay(
    dsn: str, clock: FakeClock, api: FakeCompatible
) -> None:
    async with engine_rig_with(dsn, api, clock=clock) as drained:
        drained.api.reply(503, BUSY, {"retry-after": "60"})
        chat_id = await drained.create("hi")
        await wait_backoff(clock)
        await drained.start_drain()
        chat = await drained.chat(chat_id)
        assert (chat.state, chat.attempt) == ("P0", 2)
        async with engine_rig_with(dsn, api) as other:
            other.answer("hello")
            assert (await other.wait_runner_left(chat_id)).state == "W"


async def test_an_address_that_never_answered_is_named_and_given_up_within_a_minute(
    dsn: str, clock: FakeClock
) -> None:
    async with engine_rig(dsn, clock=clock) as rig:
        address = rig.api.url.removeprefix("http://")
        await rig.api.stop_listening()
        chat_id = await rig.create("hi")
        delays: list[float] = []
        for _ in range(MAX_ATTEMPTS_NEVER_REACHED["refused"] - 1):
            delays.append(await wait_backoff(clock))
            retry = (await rig.chat(chat_id)).retry_state
            assert retry is not None
            assert f"no connection to {address}: connection refused." in (retry.detail or "")
            await pass_time(clock, delays[-1])
            await rig.events.wait("action", attempt=len(delays) + 1)
        failed = await rig.wait_runner_left(chat_id)
        assert sum(delays) < 60
        assert failed.state == "E0"
        assert failed.last_error is not None
        assert f"{address}: connection refused. Check" in (failed.last_error.detail or "")
        logged = await rig.events.wait("model_failed", attempt=1)
        assert address in str(logged["detail"])


@pytest.mark.covers("F42")
async def test_the_last_attempt_fails_the_turn(
    dsn: str, clock: FakeClock, api: FakeCompatible
) -> None:
    """Attempts are counted in the row, across workers."""
    async with engine_rig_with(dsn, api, worker=NO_SLOTS) as rig:
        chat_id = await rig.create("hi")
        await rig.pool.execute("UPDATE chats SET attempt = $1", MAX_MODEL_CALL_ATTEMPTS - 2)
    async with engine_rig_with(dsn, api, clock=clock) as rig:
        rig.api.reply(503, BUSY)
        rig.api.reply(503, BUSY)
        await pass_time(clock, await wait_backoff(clock))
        chat = await rig.wait_runner_left(chat_id)
        assert chat.state == "E0"
        assert chat.last_error is not None
        assert (chat.last_error.kind, chat.last_error.status_code) == ("timeout", 503)
        assert len(rig.api.requests) == 2


@pytest.mark.covers("F42")
@pytest.mark.parametrize("end", ["cut", "reset"])
async def test_nothing_of_a_broken_answer_is_stored(
    rig: EngineRig, clock: FakeClock, end: str
) -> None:
    if end == "cut":
        rig.cut_answer("half")
    else:
        rig.answer("half", Reset())
    chat_id = await rig.ask("hi", "whole")
    await pass_time(clock, await wait_backoff(clock))
    assert (await rig.wait_runner_left(chat_id)).state == "W"
    assert await rig.transcript(chat_id) == ["user: hi", "assistant: whole"]


@pytest.mark.covers("F42")
async def test_an_idle_stream_is_retried(rig: EngineRig, clock: FakeClock) -> None:
    rig.answer("I", Silence())
    chat_id = await rig.ask("hi", "am back")
    await rig.api.received.wait()
    await pass_time(clock, STREAM_IDLE_TIMEOUT_S + 60)
    failed = await rig.events.wait("model_failed")
    assert failed["error_kind"] == "stream_silence_timeout"
    async with advancing(clock):
        await rig.wait_runner_left(chat_id)
    assert await rig.transcript(chat_id) == ["user: hi", "assistant: am back"]
    assert rig.api.requests[0].disconnected.is_set()


async def test_a_slow_stream_is_not_idle(rig: EngineRig, clock: FakeClock, gate: Gate) -> None:
    chat_id = await rig.ask("hi", "still ", gate, "here")
    await pass_time(clock, STREAM_IDLE_TIMEOUT_S - 60)
    gate.open()
    assert (await rig.wait_runner_left(chat_id)).state == "W"
    assert await rig.transcript(chat_id) == ["user: hi", "assistant: still here"]


async def test_pings_keep_a_stream_alive(rig: EngineRig, clock: FakeClock) -> None:
    """A local model that reads a long prompt sends nothing else for a long time."""
    before, between, ping = Gate(), Gate(), b": ping\n\n"
    rig.api.script(before, ping, between, ping, chunk(content="late"), chunk("stop"), DONE)
    chat_id = await rig.create("hi")
    for gate in (before, between):
        await gate.reached.wait()
        await pass_time(clock, STREAM_IDLE_TIMEOUT_S - 60)
        gate.open()
    assert (await rig.wait_runner_left(chat_id)).state == "W"
    assert await rig.transcript(chat_id) == ["user: hi", "assistant: late"]


class SelfCancellingProvider:
    """Satisfies `ports.Provider`; on the first call its transport cancels itself."""

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
async def test_a_cancellation_by_the_transport_is_retried_as_a_reset(
    rig: EngineRig, clock: FakeClock
) -> None:
    rig.model.provider = SelfCancellingProvider(rig.model.provider)
    chat_id = await rig.ask("hi", "here I am")
    await pass_time(clock, await wait_backoff(clock))
    assert (await rig.wait_runner_left(chat_id)).state == "W"
    assert await rig.transcript(chat_id) == ["user: hi", "assistant: here I am"]


@pytest.mark.covers("loop-34")
async def test_a_subscriber_that_raises_fails_the_turn_and_not_the_worker(rig: EngineRig) -> None:
    gate = Gate()

    def raise_bug() -> None:
        raise ValueError("a bug")

    rig.answer("one", gate, "two")
    command = rig.command("hi")
    rig.replica.episodes.watch(command.id, raise_bug)
    await rig.create("hi", id=command.id)
    assert present((await rig.wait_runner_left(command.id)).last_error).kind == "internal"
    await rig.api.requests[0].disconnected.wait()
    rig.replica.episodes.unwatch(command.id)
    rig.answer("better")
    await rig.send(command.id, "again")
    assert (await rig.wait_state(command.id, "W")).last_error is None
