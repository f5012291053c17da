"""Failed model calls: retried after a delay that viewers see, or the turn fails. The test owns the
clock."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import pytest

from chatd.domain.chat.row import ChatError
from chatd.domain.ids import ChatId
from chatd.domain.model.circuit import FAILURES_TO_OPEN, FIRST_OPEN_S
from chatd.domain.model.protocol import ModelEvent, ModelRequest
from chatd.domain.model.retry import (
    DEFAULT_OUTAGE_S,
    MAX_ATTEMPTS_NEVER_REACHED,
    MAX_MODEL_CALL_ATTEMPTS,
    STREAM_IDLE_TIMEOUT_S,
)
from chatd.domain.ports import Provider
from chatd.engine.acquirer import SlotsConfig
from chatd.engine.worker import WorkerConfig
from tests.support.clock import FakeClock
from tests.support.engine_rig import (
    NO_SLOTS,
    EngineRig,
    advancing,
    engine_rig,
    engine_rig_with,
    pass_time,
)
from tests.support.eventually import eventually
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


async def pass_backoff(rig: EngineRig, clock: FakeClock) -> float:
    """Let the delay pass, by the database's clock and by the worker's."""
    delay_s = await wait_backoff(clock)
    await rig.pool.execute(
        "UPDATE chats SET runnable_at = runnable_at - $1 * interval '1 s'", delay_s
    )
    await pass_time(clock, delay_s)
    return delay_s


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
    assert (chat.state, rig.replica.worker.running) == ("P0", 0)
    await pass_backoff(rig, clock)
    chat = await rig.wait_state(chat_id, "W")
    assert chat.retry_state is None
    assert await rig.transcript(chat_id) == ["user: hi", "assistant: better"]


async def test_retry_delays_grow_and_respect_retry_after(rig: EngineRig, clock: FakeClock) -> None:
    rig.api.reply(503, BUSY)
    rig.api.reply(503, BUSY)
    rig.api.reply(429, BUSY, {"retry-after": "30"})
    chat_id = await rig.ask("hi", "better")
    delays: list[float] = []
    for _ in range(3):
        delays.append(await pass_backoff(rig, clock))
        await rig.events.wait("action", attempt=len(delays) + 1)
    assert delays == [1.0, 2.0, 30.0]
    assert (await rig.wait_state(chat_id, "W")).setbacks is None


async def test_an_interrupt_ends_the_retry_delay_and_stores_nothing_of_the_failed_answer(
    rig: EngineRig, clock: FakeClock
) -> None:
    rig.cut_answer("half an answer")
    chat_id = await rig.create("hi")
    await wait_backoff(clock)
    assert (await rig.interrupt(chat_id)).state == "W"
    assert await rig.transcript(chat_id) == ["user: hi"]


async def test_a_message_that_interrupts_the_retry_delay_starts_without_one(
    rig: EngineRig, clock: FakeClock
) -> None:
    """The next turn has its own retry attempts."""
    rig.api.reply(503, BUSY)
    chat_id = await rig.create("hi")
    await wait_backoff(clock)
    rig.answer("sure")
    await rig.send(chat_id, "rather this", when_busy="interrupt")
    await rig.wait_state(chat_id, "W")
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
    await rig.wait_chat_task_left(chat_id, epoch=chat.epoch)
    assert await rig.transcript(chat_id) == ["user: rather this", "assistant: sure"]


@pytest.mark.promise("P5")
async def test_the_time_of_a_retry_outlives_a_drain(
    dsn: str, clock: FakeClock, api: FakeCompatible
) -> None:
    """The next owner calls when the provider's time has come, and continues the count."""
    async with engine_rig_with(dsn, api, clock=clock) as drained:
        drained.api.reply(503, BUSY)
        drained.api.reply(429, BUSY, {"retry-after": "60"})
        chat_id = await drained.create("hi")
        await pass_backoff(drained, clock)
        assert await wait_backoff(clock) == 60.0
        await drained.start_drain()
        shown = present((await drained.chat(chat_id)).retry_state)
        assert (shown.attempt, shown.delay_ms, shown.kind) == (2, 60_000, "rate_limit")
        async with engine_rig_with(dsn, api) as other:
            await other.replica.worker.registered.wait()
            other.replica.worker.mark_all_dirty()
            other.api.reply(503, BUSY)
            late = await other.ask("later", "done")
            await other.wait_chat_task_left(late)
            assert (await other.chat(chat_id)).retry_state == shown
            await other.pool.execute("UPDATE chats SET runnable_at = now()")
            other.answer("hello")
            assert (await other.wait_state(chat_id, "W")).setbacks is None


@pytest.mark.promise("P2")
async def test_chats_that_wait_for_a_retry_hold_no_slot(dsn: str, clock: FakeClock) -> None:
    one_slot = WorkerConfig(
        slots=SlotsConfig(roots=1, children=0), heartbeat_interval_s=0.2, drain_timeout_s=5
    )
    async with engine_rig(dsn, clock=clock, worker=one_slot) as rig:
        waiting: list[ChatId] = []
        for _ in range(3):
            rig.api.reply(429, BUSY, {"retry-after": "600"})
            waiting.append(await rig.create("hi"))
            await rig.wait_chat_task_left(waiting[-1])
        healthy = await rig.ask("you too?", "no")
        assert (await rig.wait_chat_task_left(healthy)).state == "W"
        assert {(await rig.chat(chat_id)).state for chat_id in waiting} == {"P0"}


@pytest.mark.promise("P2")
async def test_a_provider_that_fails_for_all_is_called_by_one_chat_only(
    rig: EngineRig, clock: FakeClock
) -> None:
    for _ in range(FAILURES_TO_OPEN):
        rig.api.reply(503, BUSY)
        await rig.wait_chat_task_left(await rig.create("hi"))
    await rig.events.wait("circuit_opened", error_kind="timeout")
    others = [await rig.create("and me?") for _ in range(4)]
    for chat_id in others:
        chat = await rig.wait_chat_task_left(chat_id)
        assert (chat.state, present(chat.retry_state).status_code) == ("P0", 503)
        assert present(chat.setbacks).failed_calls == 0
    assert len(rig.api.requests) == FAILURES_TO_OPEN
    for _ in range(FAILURES_TO_OPEN + len(others)):
        rig.answer("back again")
    await pass_time(clock, FIRST_OPEN_S)
    await rig.pool.execute("UPDATE chats SET runnable_at = now()")
    rig.replica.worker.mark_all_dirty()
    await rig.events.wait("circuit_closed")
    async with advancing(clock):
        for chat_id in others:
            await rig.wait_state(chat_id, "W")


async def test_a_chat_that_waited_too_long_for_its_provider_fails_with_its_failure(
    dsn: str, clock: FakeClock, api: FakeCompatible
) -> None:
    async with engine_rig_with(dsn, api, clock=clock) as rig:
        for _ in range(FAILURES_TO_OPEN):
            rig.api.reply(503, BUSY)
            await rig.wait_chat_task_left(await rig.create("hi"))
        chat_id = await rig.create("me too")
        await rig.wait_chat_task_left(chat_id)
        await rig.pool.execute(
            """UPDATE chats SET setbacks = json_build_object('waited_ms', $2::bigint),
                   runnable_at = now() WHERE id = $1""",
            chat_id,
            int(DEFAULT_OUTAGE_S * 1000),
        )
        rig.replica.worker.mark_all_dirty()

        async def failed() -> ChatError | None:
            # A worker with a runner that has just left waits before it acquires.
            for delay_s in clock.sleeping("acquire_delay"):
                clock.advance(delay_s)
            return (await rig.chat(chat_id)).last_error

        error = await eventually(failed)
        assert (error.kind, error.provider, error.status_code) == ("timeout", "openai-compat", 503)
        assert len(rig.api.requests) == FAILURES_TO_OPEN


async def test_bad_requests_of_one_chat_leave_the_circuit_closed(rig: EngineRig) -> None:
    for _ in range(FAILURES_TO_OPEN + 1):
        rig.api.reply(400, {"error": {"message": "no such parameter"}})
        assert (await rig.wait_chat_task_left(await rig.create("hi"))).state == "E0"
    chat_id = await rig.ask("hi", "fine")
    assert (await rig.wait_chat_task_left(chat_id)).state == "W"


async def test_an_address_that_never_answered_is_named_and_given_up_within_a_minute(
    dsn: str, clock: FakeClock
) -> None:
    async with engine_rig(dsn, clock=clock) as rig:
        address = rig.api.url.removeprefix("http://")
        await rig.api.stop_listening()
        chat_id = await rig.create("hi")
        delays: list[float] = []
        for _ in range(MAX_ATTEMPTS_NEVER_REACHED["refused"] - 1):
            await wait_backoff(clock)
            retry = (await rig.chat(chat_id)).retry_state
            assert retry is not None
            assert f"no connection to {address}: connection refused." in (retry.detail or "")
            delays.append(await pass_backoff(rig, clock))
            await rig.events.wait("action", attempt=len(delays) + 1)
        failed = await rig.wait_state(chat_id, "E0")
        assert sum(delays) < 60
        assert failed.last_error is not None
        assert f"{address}: connection refused. Check" in (failed.last_error.detail or "")
        logged = await rig.events.wait("model_failed", attempt=1)
        assert address in str(logged["detail"])


@pytest.mark.promise("P2")
async def test_a_chat_waits_for_a_provider_that_is_down_for_hours_without_a_slot_and_obeys(
    dsn: str, clock: FakeClock, api: FakeCompatible
) -> None:
    """After the twenty-fifth failure too; what people do with it works at once."""
    async with engine_rig_with(dsn, api, worker=NO_SLOTS) as rig:
        chats = [await rig.create("hi") for _ in range(3)]
        await rig.pool.execute(
            """UPDATE chats SET setbacks = json_build_object('failed_calls', 400, 'waited_ms',
                   $1::bigint)""",
            int(DEFAULT_OUTAGE_S * 500),
        )
    async with engine_rig_with(dsn, api, clock=clock) as rig:
        for _ in chats:
            rig.api.reply(503, BUSY)
        for chat_id in chats:
            await rig.wait_state(chat_id, "P0")
            await rig.wait_chat_task_left(chat_id)
            retry = present((await rig.chat(chat_id)).retry_state)
            assert (retry.attempt, retry.delay_ms) == (401, 60_000)
        assert rig.replica.worker.running == 0
        stopped, steered, replaced = chats
        assert (await rig.interrupt(stopped)).state == "W"
        rig.answer("sure")
        await rig.send(steered, "rather this", when_busy="steer")
        await rig.wait_state(steered, "W")
        rig.answer("fine")
        await rig.send(replaced, "or this", when_busy="interrupt")
        await rig.wait_state(replaced, "W")
        assert (await rig.transcript(replaced))[-1] == "assistant: fine"


@pytest.mark.covers("F42")
async def test_the_last_attempt_fails_the_turn(
    dsn: str, clock: FakeClock, api: FakeCompatible
) -> None:
    """Failures are counted in the row, across workers."""
    async with engine_rig_with(dsn, api, worker=NO_SLOTS) as rig:
        chat_id = await rig.create("hi")
        await rig.pool.execute(
            """UPDATE chats SET setbacks = json_build_object('failed_calls', $1::int, 'waited_ms',
                   $2::bigint)""",
            MAX_MODEL_CALL_ATTEMPTS - 2,
            int(DEFAULT_OUTAGE_S * 1000),
        )
    async with engine_rig_with(dsn, api, clock=clock) as rig:
        rig.api.reply(503, BUSY)
        rig.api.reply(503, BUSY)
        await pass_backoff(rig, clock)
        chat = await rig.wait_state(chat_id, "E0")
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
    await pass_backoff(rig, clock)
    await rig.wait_state(chat_id, "W")
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
        await rig.wait_state(chat_id, "W")
    assert await rig.transcript(chat_id) == ["user: hi", "assistant: am back"]
    assert rig.api.requests[0].disconnected.is_set()


async def test_a_slow_stream_is_not_idle(rig: EngineRig, clock: FakeClock, gate: Gate) -> None:
    chat_id = await rig.ask("hi", "still ", gate, "here")
    await pass_time(clock, STREAM_IDLE_TIMEOUT_S - 60)
    gate.open()
    assert (await rig.wait_chat_task_left(chat_id)).state == "W"
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
    assert (await rig.wait_chat_task_left(chat_id)).state == "W"
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

    def can_continue(self, request: ModelRequest) -> bool:
        return self._provider.can_continue(request)

    async def close(self) -> None:
        await self._provider.close()


@pytest.mark.covers("F42", "retry-8")
async def test_a_cancellation_by_the_transport_is_retried_as_a_reset(
    rig: EngineRig, clock: FakeClock
) -> None:
    rig.model.provider = SelfCancellingProvider(rig.model.provider)
    chat_id = await rig.ask("hi", "here I am")
    await pass_backoff(rig, clock)
    await rig.wait_state(chat_id, "W")
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
    assert present((await rig.wait_chat_task_left(command.id)).last_error).kind == "internal"
    await rig.api.requests[0].disconnected.wait()
    rig.replica.episodes.unwatch(command.id)
    rig.answer("better")
    await rig.send(command.id, "again")
    assert (await rig.wait_state(command.id, "W")).last_error is None
