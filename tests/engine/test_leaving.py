"""Leaving: nothing more is taken, steps commit, the rest goes back, and it does not take long."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from chatd.engine.slots import SlotsConfig
from chatd.engine.worker import WorkerConfig
from tests.support.eventually import eventually
from tests.support.house import a_house, a_house_with, change_id
from tests.support.operations import create_chat
from tests.support.providers.openai_chat import FakeCompatible
from tests.support.providers.server import Gate
from tests.support.proxy import Proxy
from tests.support.store import session_to, somebody_waits
from tests.support.tools import StubbornTool

HASTY = WorkerConfig(heartbeat_interval_s=0.2, drain_timeout_s=0.05)
NO_ROOM = WorkerConfig(heartbeat_interval_s=0.2, slots=SlotsConfig(roots=0))


@pytest.mark.promise("P5")
@pytest.mark.promise("P10")
async def test_an_answer_under_way_is_finished_and_not_asked_for_again(dsn: str) -> None:
    gate = Gate()
    async with FakeCompatible.running() as api:
        async with a_house_with(dsn, api) as house:
            house.says("all ", gate, "of it")
            chat_id = await house.create("go")
            await gate.reached.wait()
            leaving = house.leaves()
            await house.events.wait("drain_started")
            gate.open()
            await leaving
            assert (await house.chat(chat_id)).state == "W"
            assert await house.transcript(chat_id) == ["user: go", "assistant: all of it"]
        assert len(api.requests) == 1


@pytest.mark.promise("P5")
async def test_the_next_turn_is_somebody_elses(dsn: str) -> None:
    gate = Gate()
    async with FakeCompatible.running() as api:
        async with a_house_with(dsn, api) as house:
            house.says("one", gate)
            chat_id = await house.create("first")
            await gate.reached.wait()
            await house.send(chat_id, "second")
            leaving = house.leaves()
            await house.events.wait("drain_started")
            gate.open()
            await leaving
            chat = await house.chat(chat_id)
            assert (chat.state, chat.worker_id) == ("P0", None)
        async with a_house_with(dsn, api) as other:
            other.says("two")
            await other.rests(chat_id)
            assert (await other.transcript(chat_id))[-1] == "assistant: two"


@pytest.mark.promise("P5")
async def test_whatever_a_tool_does_leaving_ends(dsn: str) -> None:
    gate = Gate()
    async with FakeCompatible.running() as api, a_house_with(dsn, api) as stays:
        async with a_house_with(dsn, api, tools=[StubbornTool(gate)], worker=HASTY) as leaves:
            leaves.calls(("c1", "echo", "{}"))
            stays.says("there is no such tool here")
            chat_id = await leaves.create("go")
            await gate.reached.wait()
        # It has left, and the tool is still at it.
        assert len(leaves.replica.task_reaper) == 1
        await stays.rests(chat_id)
        assert (await stays.chat(chat_id)).state == "W"
        gate.open()


async def test_whoever_leaves_signs_off(dsn: str) -> None:
    async with FakeCompatible.running() as api, a_house_with(dsn, api) as stays:
        async with a_house_with(dsn, api) as leaves:
            count = "SELECT count(*) FROM chat_workers"
            assert await stays.pool.fetchval(count) == 2
            me = leaves.replica.me
        rows = await stays.pool.fetch("SELECT worker_id FROM chat_workers")
        assert [row["worker_id"] for row in rows] != [me]
        assert len(rows) == 1


@pytest.mark.covers("F9")
async def test_a_message_that_comes_while_leaving_is_not_kept(dsn: str) -> None:
    """The slot was offered before; the write lands after."""
    gate = Gate()
    async with a_house(dsn) as house:
        house.says("busy", gate)
        busy = await house.create("go")
        await gate.reached.wait()
        command = house.command("hi")
        with house.replica.worker.reserve_slot(root=True) as free:
            assert free is not None
            leaving = house.leaves()
            await house.events.wait("drain_started")
            await create_chat(house.replica.transactor, command, change_id(), free=free)
        await house.until(command.id, "P0")
        gate.open()
        await leaving
        assert (await house.chat(busy)).state == "W"
        assert len(house.api.requests) == 1


async def test_a_leaving_worker_takes_nothing(dsn: str) -> None:
    gate = Gate()
    async with a_house(dsn) as house:
        house.says("busy", gate)
        chat_id = await house.create("go")
        await gate.reached.wait()
        leaving = house.leaves()
        await house.events.wait("drain_started")
        other = await house.create("and me?")
        assert (await house.chat(other)).state == "P0"
        gate.open()
        await leaving
        assert (await house.chat(chat_id)).state == "W"
        assert (await house.chat(other)).state == "P0"


@asynccontextmanager
async def taking_is_slow(dsn: str) -> AsyncGenerator[Callable[[], Awaitable[object]]]:
    """Whoever becomes a chat's owner waits until the door is opened."""
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
async def test_chats_that_are_just_being_taken_go_back_too(dsn: str) -> None:
    """The statement that takes them is answered when we are already leaving."""
    async with (
        FakeCompatible.running() as api,
        a_house_with(dsn, api, worker=NO_ROOM) as other,
        taking_is_slow(dsn) as open_door,
    ):
        async with a_house_with(dsn, api) as house:
            chat_id = await other.create("hi")
            await eventually(lambda: somebody_waits(other.pool))
            leaving = house.leaves()
            await house.events.wait("drain_started")
            await open_door()
            await leaving

        async def gone_back() -> bool:
            chat = await other.chat(chat_id)
            return chat.epoch > 0 and chat.worker_id is None

        await eventually(gone_back)
        assert api.requests == []


async def test_without_a_database_leaving_ends_all_the_same(dsn: str, proxy: Proxy) -> None:
    gate = Gate()
    async with FakeCompatible.running() as api, a_house_with(dsn, api) as other:
        async with a_house_with(proxy.dsn, api, worker=HASTY) as house:
            house.says("never ", gate, "written")
            chat_id = await house.create("go")
            await gate.reached.wait()
            proxy.stall()
            gate.open()
            async with asyncio.timeout(20):
                await house.leaves()
                await house.events.wait("release_failed")
            other.says("written")
            proxy.resume()
            proxy.cut()
        await other.rests(chat_id)
        assert await other.transcript(chat_id) == ["user: go", "assistant: written"]
