"""Interrupts: from any replica, during any action, with the partial answer stored."""

import asyncio
from contextlib import AsyncExitStack
from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from chatd.domain.ports import Env
from chatd.engine.lease import ChatReaper
from chatd.engine.model.attempt import Committer
from chatd.store.database.conn import ConnectConfig
from chatd.store.database.pool import Pool, PoolConfig
from tests.support.client_state import read_state
from tests.support.clock import FakeClock
from tests.support.engine_rig import EngineRig, Events, change_id, engine_rig, engine_rig_with
from tests.support.eventually import eventually
from tests.support.factories import QUIET_HEARTBEAT, WORKER
from tests.support.providers.openai_chat import FakeCompatible
from tests.support.providers.server import Gate
from tests.support.store import age, session_to
from tests.support.stream_replica import StreamClient, shows
from tests.support.tools import GatedTool, StubbornTool


@pytest.mark.covers("T33")
@pytest.mark.promise("P4")
async def test_an_interrupt_works_from_a_replica_that_does_not_run_the_chat(
    dsn: str, api: FakeCompatible, gate: Gate
) -> None:
    async with engine_rig_with(dsn, api) as here, engine_rig_with(dsn, api) as there:
        chat_id = await here.ask("go", "so far", gate)
        await here.wait_shown(chat_id, "so far")
        await there.interrupt(chat_id)
        chat = await here.wait_chat_task_left(chat_id)
        assert (chat.state, chat.worker_id) == ("W", None)
        assert await there.transcript(chat_id) == ["user: go", "assistant: so far"]


@pytest.mark.covers("O1", "T10", "T33")
@pytest.mark.promise("P4")
async def test_an_interrupt_keeps_exactly_what_a_viewer_elsewhere_saw(
    dsn: str, api: FakeCompatible, gate: Gate
) -> None:
    """The viewer interrupts on its own replica, after it has seen every part."""
    async with engine_rig_with(dsn, api) as here, engine_rig_with(dsn, api) as there:
        here.answer("so ", "far ", "and ", "no ", "further", gate, "!")
        chat_id = await here.create("go")
        viewer = StreamClient(chat_id)
        async with viewer.connected(there.replica.feeds) as view:
            await viewer.watch(view, shows("so far and no further"))
            seen = viewer.preview
            await there.interrupt(chat_id)
            await viewer.watch(view, lambda client: client.state.status == "waiting")
        assert await there.transcript(chat_id) == ["user: go", f"assistant: {seen}"]
        assert viewer.state.settled() == await read_state(there.pool, chat_id)


@pytest.mark.covers("F27")
@pytest.mark.parametrize("serial", [False, True])
async def test_a_tool_that_ignores_cancellation_delays_an_interrupt_by_the_grace_only(
    dsn: str, gate: Gate, *, serial: bool
) -> None:
    """Writes of the tool after its cancellation are refused."""
    tool = StubbornTool(gate, serial=serial)
    async with engine_rig(dsn, tools=[tool]) as rig:
        rig.replica.task_reaper.shorten_grace()
        chat_id = await rig.start_tool("go", gate)
        await rig.interrupt(chat_id)
        chat = await rig.wait_chat_task_left(chat_id)
        assert chat.state == "W"
        before = await rig.transcript(chat_id)
        assert before[-1].startswith("tool: error(c1)")
        gate.open()
        await tool.refused.wait()
        await eventually(lambda: has_no_tasks(rig))
        assert await rig.transcript(chat_id) == before
        assert (await rig.chat(chat_id)).snapshot_version == chat.snapshot_version


async def has_no_tasks(rig: EngineRig) -> bool:
    return len(rig.replica.task_reaper) == 0


@pytest.mark.covers("F27")
@pytest.mark.promise("P4")
async def test_an_interrupt_that_no_worker_finishes_expires_and_keeps_the_live_parts(
    dsn: str, clock: FakeClock, gate: Gate
) -> None:
    """The owner has not seen the interrupt; the next heartbeat expires it and keeps the parts
    that viewers have seen."""
    async with engine_rig(dsn, clock=clock) as rig:
        rig.answer("so far", gate)
        chat_id = await rig.create("go")
        await rig.wait_journaled(chat_id)
        await interrupt_silently(rig, chat_id)
        await age(rig.pool, [chat_id], seconds=11)
        await clock.advance_past("heartbeat")
        chat = await rig.wait_state(chat_id, "W")
        assert chat.worker_id is None
        kept = ["user: go", "assistant: so far"]
        assert await rig.transcript(chat_id) == kept
        # The old runner's write is refused.
        gate.open()
        await rig.wait_chat_task_left(chat_id)
        assert await rig.transcript(chat_id) == kept


@pytest.mark.promise("P2")
async def test_an_interrupt_expires_even_if_its_partial_answer_cannot_be_stored(
    dsn: str, clock: FakeClock, gate: Gate
) -> None:
    async with engine_rig(dsn, clock=clock) as rig:
        rig.answer("unwritable", gate)
        chat_id = await rig.create("go")
        await rig.wait_journaled(chat_id)
        await interrupt_silently(rig, chat_id)
        await age(rig.pool, [chat_id], seconds=11)
        await rig.pool.execute(
            """ALTER TABLE chat_messages ADD CONSTRAINT unwritable CHECK (role <> 'assistant')
               NOT VALID"""
        )
        try:
            await clock.advance_past("heartbeat")
            await rig.wait_state(chat_id, "W")
        finally:
            await rig.pool.execute("ALTER TABLE chat_messages DROP CONSTRAINT unwritable")
        await rig.events.wait("reap_failed", chat_id=chat_id)
        assert await rig.transcript(chat_id) == ["user: go"]


@pytest.mark.promise("P4")
async def test_an_expired_interrupt_is_postponed_once_if_its_live_parts_cannot_be_read(
    dsn: str, clock: FakeClock, gate: Gate
) -> None:
    busy = Pool(PoolConfig(connect=ConnectConfig(dsn=dsn, lock_timeout_s=0.05)))
    async with engine_rig(dsn, clock=clock) as rig, AsyncExitStack() as stack:
        stack.push_async_callback(busy.close)
        rig.answer("so far", gate)
        chat_id = await rig.create("go")
        await rig.wait_journaled(chat_id)
        await interrupt_silently(rig, chat_id)
        events = Events()
        env = Env(clock=clock, emit=events, new_id=lambda: WORKER, new_change_id=change_id)
        committer = Committer(rig.replica.transactor, env)
        reaper = ChatReaper(
            busy, committer, rig.replica.worker_id, env, usage_writer=rig.replica.usage_writer
        )
        reaping = asyncio.get_running_loop().create_task(reaper.run())
        stack.callback(reaping.cancel)
        late = replace(QUIET_HEARTBEAT, expired=(chat_id,), at=datetime(2100, 1, 1, tzinfo=UTC))
        async with session_to(dsn) as locker, locker.transaction():
            await locker.execute("LOCK TABLE chat_journal IN ACCESS EXCLUSIVE MODE")
            reaper.on_heartbeat(late)
            await events.wait("reap_failed", chat_id=chat_id)
            assert (await rig.chat(chat_id)).state == "I0"
        reaper.on_heartbeat(late)
        await events.wait("chat_reaped", chat_id=chat_id)
        assert await rig.transcript(chat_id) == ["user: go", "assistant: so far"]


@pytest.mark.promise("P11")
async def test_the_usage_of_a_discarded_answer_is_recorded(rig: EngineRig, gate: Gate) -> None:
    """Otherwise a user could avoid the cost of answers by editing in time."""
    chat_id = await rig.ask("old", "dropped", gate)
    await rig.wait_shown(chat_id, "dropped")
    rig.answer("dropped too", gate)
    await rig.edit(chat_id, "new")
    await rig.wait_chat_task_left(chat_id, epoch=1)
    await rig.wait_shown(chat_id, "dropped too")
    rig.answer("kept")
    await rig.send(chat_id, "newest", "rollback")
    await rig.wait_chat_task_left(chat_id, epoch=2)
    await rig.wait_state(chat_id, "W")
    paid = [("turn", False, "estimated"), ("turn", False, "estimated"), ("turn", True, "estimated")]
    assert sorted(await rig.recorded_usage()) == paid


@pytest.mark.promise("P11")
async def test_the_usage_of_a_failed_call_is_recorded_by_the_interrupt_before_its_commit(
    dsn: str, clock: FakeClock, gate: Gate
) -> None:
    """The row is interrupted before the failure is committed. The clock stands still, so no
    heartbeat reports it."""
    async with engine_rig(dsn, clock=clock) as rig:
        rig.cut_answer("half an ans", gate)
        chat_id = await rig.create("go")
        await gate.reached.wait()
        await interrupt_silently(rig, chat_id)
        gate.open()
        assert (await rig.wait_chat_task_left(chat_id)).state == "W"
        assert await rig.transcript(chat_id) == ["user: go"]
        assert await rig.recorded_usage() == [("turn", False, "estimated")]


async def interrupt_silently(rig: EngineRig, chat_id: object) -> None:
    """Interrupt by a write without a hint, as if every hint were lost."""
    await rig.pool.execute(
        """UPDATE chats SET status = 'interrupting', snapshot_version = snapshot_version + 1,
               interrupt_deadline = now() + interval '10 s',
               recent_changes = (ARRAY[0::bigint] || recent_changes)[1:8] WHERE id = $1""",
        chat_id,
    )


@pytest.mark.covers("F26")
async def test_repeated_interrupts_interrupt_once(rig: EngineRig, gate: Gate) -> None:
    chat_id = await rig.ask("go", "so far", gate)
    await rig.wait_shown(chat_id, "so far")
    interrupted = await asyncio.gather(*(rig.interrupt(chat_id) for _ in range(5)))
    assert {chat.status for chat in interrupted} <= {"interrupting", "waiting"}
    assert (await rig.wait_chat_task_left(chat_id)).state == "W"
    assert (await rig.interrupt(chat_id)).state == "W"
    assert await rig.transcript(chat_id) == ["user: go", "assistant: so far"]


@pytest.mark.covers("T25")
@pytest.mark.promise("P9")
async def test_an_interrupt_keeps_the_order_of_the_queue(rig: EngineRig, gate: Gate) -> None:
    chat_id = await rig.ask("zero", "so far", gate)
    await rig.wait_shown(chat_id, "so far")
    for text in ("one", "two", "three"):
        rig.answer(f"to {text}")
        await rig.send(chat_id, text)
    await rig.interrupt(chat_id)
    assert (await rig.wait_chat_task_left(chat_id)).state == "W"
    assert await rig.transcript(chat_id) == [
        "user: zero",
        "assistant: so far",
        "user: one",
        "assistant: to one",
        "user: two",
        "assistant: to two",
        "user: three",
        "assistant: to three",
    ]


@pytest.mark.covers("F31")
async def test_promoting_a_queued_message_interrupts_the_turn(rig: EngineRig, gate: Gate) -> None:
    rig.answer("so far", gate)
    rig.answer("to two")
    chat_id = await rig.ask("zero", "to one")
    await gate.reached.wait()
    await rig.send(chat_id, "one")
    await rig.send(chat_id, "two")
    await rig.promote(chat_id, 2)
    assert (await rig.wait_chat_task_left(chat_id)).state == "W"
    expected = ["user: zero", "user: two", "user: one"]
    assert [line for line in await rig.transcript(chat_id) if "user" in line] == expected


@pytest.mark.covers("F25")
@pytest.mark.promise("P1")
async def test_an_interrupt_at_the_end_of_an_answer_leaves_a_waiting_chat(rig: EngineRig) -> None:
    """Repeated, because the two race at different points."""
    for _ in range(20):
        gate = Gate()
        chat_id = await rig.ask("go", "all there is", gate)
        await rig.wait_shown(chat_id, "all there is")
        gate.open()
        await rig.interrupt(chat_id)
        await rig.wait_state(chat_id, "W")
        assert await rig.transcript(chat_id) == ["user: go", "assistant: all there is"]


@pytest.mark.covers("F24")
@pytest.mark.promise("P1")
async def test_a_message_sent_at_the_end_of_an_answer_is_answered(rig: EngineRig) -> None:
    for _ in range(20):
        gate = Gate()
        rig.answer("one", gate)
        chat_id = await rig.ask("first", "two")
        await gate.reached.wait()
        gate.open()
        await rig.send(chat_id, "second")
        await rig.wait_state(chat_id, "W")
        expected = ["user: first", "assistant: one", "user: second", "assistant: two"]
        assert await rig.transcript(chat_id) == expected


@pytest.mark.covers("F21", "F29")
async def test_an_edit_during_a_tool_discards_its_result(dsn: str, gate: Gate) -> None:
    tool = StubbornTool(gate)
    async with engine_rig(dsn, tools=[tool]) as rig:
        rig.replica.task_reaper.shorten_grace()
        chat_id = await rig.start_tool("old", gate)
        rig.answer("to the new")
        await rig.edit(chat_id, "new")
        await rig.wait_chat_task_left(chat_id, epoch=2)
        gate.open()
        await rig.wait_chat_task_left(chat_id, epoch=1)
        assert await rig.transcript(chat_id) == ["user: new", "assistant: to the new"]


@pytest.mark.covers("F34")
@pytest.mark.parametrize("action", ["answering", "using a tool"])
async def test_an_archived_chat_refuses_writes_of_its_runner(dsn: str, action: str) -> None:
    gate = Gate()
    async with engine_rig(dsn, tools=[GatedTool(gate=gate)]) as rig:
        if action == "answering":
            rig.answer("so far", gate)
        else:
            rig.call_tools(("c1", "echo", "{}"))
        chat_id = await rig.create("go")
        await gate.reached.wait()
        chat = await rig.archive(chat_id)
        assert (chat.archived, chat.worker_id) == (True, None)
        gate.open()
        await rig.wait_chat_task_left(chat_id)
        assert (await rig.chat(chat_id)).snapshot_version == chat.snapshot_version
        if action != "answering":
            assert (await rig.transcript(chat_id))[-1].startswith("tool: error(c1)")
        await rig.unarchive(chat_id)
        rig.answer("back")
        await rig.send(chat_id, "again")
        await rig.wait_state(chat_id, "W")
        assert (await rig.transcript(chat_id))[-1] == "assistant: back"
