"""Drain: a worker acquires nothing, commits its steps and releases the rest within a time limit."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from tests.support.engine_rig import NO_SLOTS, SHORT_DRAIN, EngineRig, change_id, engine_rig_with
from tests.support.eventually import eventually
from tests.support.operations import create_chat
from tests.support.providers.openai_chat import FakeCompatible
from tests.support.providers.server import Gate
from tests.support.proxy import Proxy
from tests.support.store import has_lock_waiter, session_to
from tests.support.tools import StubbornTool


@pytest.mark.promise("P5")
@pytest.mark.promise("P10")
async def test_a_drain_finishes_the_running_answer_with_one_model_call(
    dsn: str, api: FakeCompatible, gate: Gate
) -> None:
    async with engine_rig_with(dsn, api) as rig:
        chat_id = await rig.ask("go", "all ", gate, "of it")
        draining = rig.start_drain()
        await rig.events.wait("drain_started")
        gate.open()
        await draining
        assert (await rig.chat(chat_id)).state == "W"
        assert await rig.transcript(chat_id) == ["user: go", "assistant: all of it"]
    assert len(api.requests) == 1


@pytest.mark.promise("P5")
async def test_a_draining_worker_releases_the_next_turn_to_another(
    dsn: str, api: FakeCompatible, gate: Gate
) -> None:
    async with engine_rig_with(dsn, api) as rig:
        chat_id = await rig.ask("first", "one", gate)
        await rig.send(chat_id, "second")
        draining = rig.start_drain()
        await rig.events.wait("drain_started")
        gate.open()
        await draining
        chat = await rig.chat(chat_id)
        assert (chat.state, chat.worker_id) == ("P0", None)
    async with engine_rig_with(dsn, api) as other:
        other.answer("two")
        await other.wait_chat_task_left(chat_id)
        assert (await other.transcript(chat_id))[-1] == "assistant: two"


@pytest.mark.promise("P5")
async def test_a_drain_ends_although_a_tool_ignores_cancellation(
    dsn: str, api: FakeCompatible, gate: Gate
) -> None:
    async with engine_rig_with(dsn, api) as other:
        async with engine_rig_with(
            dsn, api, tools=[StubbornTool(gate)], worker=SHORT_DRAIN
        ) as drained:
            drained.call_tools(("c1", "echo", "{}"))
            other.answer("there is no such tool here")
            chat_id = await drained.create("go")
            await gate.reached.wait()
        # The worker has stopped while the tool still runs.
        assert len(drained.replica.task_reaper) == 1
        await other.wait_chat_task_left(chat_id)
        assert (await other.chat(chat_id)).state == "W"
        gate.open()


async def test_a_drained_worker_unregisters(dsn: str, api: FakeCompatible) -> None:
    async with engine_rig_with(dsn, api) as other:
        async with engine_rig_with(dsn, api) as drained:
            count = "SELECT count(*) FROM chat_workers"
            assert await other.pool.fetchval(count) == 2
            me = drained.replica.worker_id
        rows = await other.pool.fetch("SELECT worker_id FROM chat_workers")
        assert [row["worker_id"] for row in rows] != [me]
        assert len(rows) == 1


@pytest.mark.covers("F9")
async def test_a_chat_created_for_a_draining_worker_is_released(rig: EngineRig, gate: Gate) -> None:
    """The slot was reserved before the drain; the write is applied after it started."""
    busy = await rig.ask("go", "busy", gate)
    command = rig.command("hi")
    with rig.replica.worker.reserve_slot(root=True) as free:
        assert free is not None
        draining = rig.start_drain()
        await rig.events.wait("drain_started")
        await create_chat(rig.replica.transactor, command, change_id(), free=free)
    await rig.wait_state(command.id, "P0")
    gate.open()
    await draining
    assert (await rig.chat(busy)).state == "W"
    assert len(rig.api.requests) == 1


async def test_a_draining_worker_acquires_nothing(rig: EngineRig, gate: Gate) -> None:
    chat_id = await rig.ask("go", "busy", gate)
    draining = rig.start_drain()
    await rig.events.wait("drain_started")
    other = await rig.create("and me?")
    assert (await rig.chat(other)).state == "P0"
    gate.open()
    await draining
    assert (await rig.chat(chat_id)).state == "W"
    assert (await rig.chat(other)).state == "P0"


@asynccontextmanager
async def slow_acquire(dsn: str) -> AsyncGenerator[Callable[[], Awaitable[object]]]:
    """Every write that sets an owner waits until the yielded function is called."""
    async with session_to(dsn) as session:
        await session.fetchval("SELECT pg_advisory_lock(7)")
        await session.execute(
            """CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$
               BEGIN PERFORM pg_advisory_lock_shared(7); PERFORM pg_advisory_unlock_shared(7);
               RETURN NEW; END $$"""
        )
        await session.execute(
            """CREATE TRIGGER wait BEFORE UPDATE ON chats FOR EACH ROW
               WHEN (NEW.worker_id IS NOT NULL) EXECUTE FUNCTION wait()"""
        )
        try:
            yield lambda: session.fetchval("SELECT pg_advisory_unlock(7)")
        finally:
            await session.execute("DROP FUNCTION wait CASCADE")


@pytest.mark.covers("F9")
async def test_chats_of_an_acquire_in_progress_are_released_too(
    dsn: str, api: FakeCompatible
) -> None:
    """The acquire statement returns when the drain has already started."""
    async with (
        engine_rig_with(dsn, api, worker=NO_SLOTS) as other,
        slow_acquire(dsn) as finish_acquire,
    ):
        async with engine_rig_with(dsn, api) as rig:
            chat_id = await other.create("hi")
            await eventually(lambda: has_lock_waiter(other.pool))
            draining = rig.start_drain()
            await rig.events.wait("drain_started")
            await finish_acquire()
            await draining

        async def is_released() -> bool:
            chat = await other.chat(chat_id)
            return chat.epoch > 0 and chat.worker_id is None

        await eventually(is_released)
        assert api.requests == []


async def test_a_drain_ends_without_a_database(dsn: str, proxy: Proxy, api: FakeCompatible) -> None:
    gate = Gate()
    async with engine_rig_with(dsn, api) as other:
        async with engine_rig_with(proxy.dsn, api, worker=SHORT_DRAIN) as rig:
            chat_id = await rig.ask("go", "never ", gate, "written")
            proxy.stall()
            gate.open()
            async with asyncio.timeout(20):
                await rig.start_drain()
                await rig.events.wait("release_failed")
            other.answer("written")
            proxy.resume()
            proxy.cut()
        await other.wait_chat_task_left(chat_id)
        assert await other.transcript(chat_id) == ["user: go", "assistant: written"]
