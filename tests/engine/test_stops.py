"""Stopping a turn: at once, from anywhere, whatever is going on, and nothing said is lost."""

import asyncio
from contextlib import AsyncExitStack
from datetime import UTC, datetime

import pytest

from chatd.domain.chat.row import Episode
from chatd.domain.ports import Env
from chatd.engine.attempt import Committer
from chatd.engine.chat_reaper import ChatReaper
from chatd.parts.journal_tail import read_episode
from chatd.store.chat.workers import HeartbeatResult
from chatd.store.conn import ConnectConfig
from chatd.store.pool import Pool, PoolConfig
from tests.support.clock import FakeClock
from tests.support.eventually import eventually
from tests.support.factories import WORKER
from tests.support.house import Events, House, a_house, a_house_with, change_id
from tests.support.providers.openai_chat import FakeCompatible
from tests.support.providers.server import Gate
from tests.support.store import age, session_to
from tests.support.streaming import Client, shows
from tests.support.tools import GatedTool, StubbornTool
from tests.support.viewer import fresh


@pytest.mark.covers("T33")
@pytest.mark.promise("P4")
async def test_a_stop_works_from_a_replica_that_does_not_run_the_chat(dsn: str) -> None:
    gate = Gate()
    async with (
        FakeCompatible.running() as api,
        a_house_with(dsn, api) as here,
        a_house_with(dsn, api) as there,
    ):
        here.says("so far", gate)
        chat_id = await here.create("go")
        await here.shown(chat_id, "so far")
        await there.interrupt(chat_id)
        chat = await here.rests(chat_id)
        assert (chat.state, chat.worker_id) == ("W", None)
        assert await there.transcript(chat_id) == ["user: go", "assistant: so far"]


@pytest.mark.covers("O1", "T10", "T33")
@pytest.mark.promise("P4")
async def test_a_stop_keeps_exactly_what_was_seen_elsewhere(dsn: str) -> None:
    """Word by word, by somebody who looks on at another replica and stops it there."""
    gate = Gate()
    async with (
        FakeCompatible.running() as api,
        a_house_with(dsn, api) as here,
        a_house_with(dsn, api) as there,
    ):
        here.says("so ", "far ", "and ", "no ", "further", gate, "!")
        chat_id = await here.create("go")
        viewer = Client(chat_id)
        async with viewer.connected(there.replica.feeds) as view:
            await viewer.watch(view, shows("so far and no further"))
            seen = viewer.preview
            await there.interrupt(chat_id)
            await viewer.watch(view, lambda client: client.state.status == "waiting")
        assert await there.transcript(chat_id) == ["user: go", f"assistant: {seen}"]
        assert viewer.state.settled() == await fresh(there.pool, chat_id)


@pytest.mark.covers("F27")
@pytest.mark.parametrize("serial", [False, True])
async def test_a_tool_that_does_not_listen_holds_a_stop_up_for_a_moment_only(
    dsn: str, *, serial: bool
) -> None:
    """And what it does when it comes back is of no consequence."""
    gate = Gate()
    tool = StubbornTool(gate, serial=serial)
    async with a_house(dsn, tools=[tool]) as house:
        house.replica.task_reaper.shorten_grace()
        house.calls(("c1", "echo", "{}"))
        chat_id = await house.create("go")
        await gate.reached.wait()
        await house.interrupt(chat_id)
        chat = await house.rests(chat_id)
        assert chat.state == "W"
        before = await house.transcript(chat_id)
        assert before[-1].startswith("tool: error(c1)")
        gate.open()
        await tool.refused.wait()
        await eventually(lambda: nobody(house))
        assert await house.transcript(chat_id) == before
        assert (await house.chat(chat_id)).snapshot_version == chat.snapshot_version


async def nobody(house: House) -> bool:
    return len(house.replica.task_reaper) == 0


@pytest.mark.covers("F27")
@pytest.mark.promise("P4")
async def test_a_stop_that_nobody_carries_out_ends_by_its_deadline(
    dsn: str, clock: FakeClock
) -> None:
    """The owner has not heard of it; the next tick ends the stop for it, and keeps what others
    have seen."""
    gate = Gate()
    async with a_house(dsn, clock=clock) as house:
        house.says("so far", gate)
        chat_id = await house.create("go")
        episode = Episode.of(await house.chat(chat_id))
        await eventually(lambda: is_journaled(house, episode))
        await freeze(house, chat_id)
        await age(house.pool, [chat_id], seconds=11)
        await clock.pass_over("heartbeat")
        chat = await house.until(chat_id, "W")
        assert chat.worker_id is None
        kept = ["user: go", "assistant: so far"]
        assert await house.transcript(chat_id) == kept
        # The runner that has slept through it all is refused.
        gate.open()
        await house.rests(chat_id)
        assert await house.transcript(chat_id) == kept


@pytest.mark.promise("P2")
async def test_a_stop_ends_by_its_deadline_even_if_nothing_of_it_can_be_kept(
    dsn: str, clock: FakeClock
) -> None:
    gate = Gate()
    async with a_house(dsn, clock=clock) as house:
        house.says("unwritable", gate)
        chat_id = await house.create("go")
        episode = Episode.of(await house.chat(chat_id))
        await eventually(lambda: is_journaled(house, episode))
        await freeze(house, chat_id)
        await age(house.pool, [chat_id], seconds=11)
        await house.pool.execute(
            """ALTER TABLE chat_messages ADD CONSTRAINT unwritable CHECK (role <> 'assistant')
               NOT VALID"""
        )
        try:
            await clock.pass_over("heartbeat")
            await house.until(chat_id, "W")
        finally:
            await house.pool.execute("ALTER TABLE chat_messages DROP CONSTRAINT unwritable")
        await house.events.wait("reap_failed", chat_id=chat_id)
        assert await house.transcript(chat_id) == ["user: go"]


@pytest.mark.promise("P4")
async def test_what_was_shown_is_asked_for_again_if_the_database_was_busy(
    dsn: str, clock: FakeClock
) -> None:
    gate = Gate()
    busy = Pool(PoolConfig(connect=ConnectConfig(dsn=dsn, lock_timeout_s=0.05)))
    async with a_house(dsn, clock=clock) as house, AsyncExitStack() as stack:
        stack.push_async_callback(busy.close)
        house.says("so far", gate)
        chat_id = await house.create("go")
        episode = Episode.of(await house.chat(chat_id))
        await eventually(lambda: is_journaled(house, episode))
        await freeze(house, chat_id)
        events = Events()
        env = Env(clock=clock, emit=events, new_id=lambda: WORKER, new_change_id=change_id)
        committer = Committer(house.replica.transactor, env)
        sweeper = ChatReaper(busy, committer, house.replica.me, env)
        sweeping = asyncio.get_running_loop().create_task(sweeper.run())
        stack.callback(sweeping.cancel)
        late = HeartbeatResult(
            dead=frozenset(),
            orphaned=(),
            expired=(chat_id,),
            unknown=(),
            lost=(),
            runnable=False,
            at=datetime(2100, 1, 1, tzinfo=UTC),
        )
        async with session_to(dsn) as somebody, somebody.transaction():
            await somebody.execute("LOCK TABLE chat_journal IN ACCESS EXCLUSIVE MODE")
            sweeper.on_heartbeat(late)
            await events.wait("reap_failed", chat_id=chat_id)
            assert (await house.chat(chat_id)).state == "I0"
        sweeper.on_heartbeat(late)
        await events.wait("chat_reaped", chat_id=chat_id)
        assert await house.transcript(chat_id) == ["user: go", "assistant: so far"]


async def is_journaled(house: House, episode: Episode) -> bool | None:
    return bool(await read_episode(house.pool, episode)) or None


@pytest.mark.promise("P11")
async def test_an_answer_that_is_dropped_is_paid_for_all_the_same(dsn: str) -> None:
    """Else whoever changes what he said in time would pay for nothing."""
    gate = Gate()
    async with a_house(dsn) as house:
        house.says("dropped", gate)
        chat_id = await house.create("old")
        await house.shown(chat_id, "dropped")
        house.says("dropped too", gate)
        await house.edit(chat_id, "new")
        await house.rests(chat_id, epoch=1)
        await house.shown(chat_id, "dropped too")
        house.says("kept")
        await house.send(chat_id, "newest", "rollback")
        await house.rests(chat_id, epoch=2)
        await house.until(chat_id, "W")
        paid = [("turn", False, 0), ("turn", False, 0), ("turn", True, 0)]
        assert sorted(await house.booked()) == paid


@pytest.mark.promise("P11")
async def test_a_call_that_fails_as_it_is_stopped_is_paid_for_by_the_stop(
    dsn: str, clock: FakeClock
) -> None:
    """The stop is in the row before the failure can be. Time stands still: no tick tells of it."""
    gate = Gate()
    async with a_house(dsn, clock=clock) as house:
        house.breaks_off("half an ans", gate)
        chat_id = await house.create("go")
        await gate.reached.wait()
        await freeze(house, chat_id)
        gate.open()
        assert (await house.rests(chat_id)).state == "W"
        assert await house.transcript(chat_id) == ["user: go"]
        assert await house.booked() == [("turn", False, 0)]


async def freeze(house: House, chat_id: object) -> None:
    """Stopped by a write that tells nobody, as if every hint were lost."""
    await house.pool.execute(
        """UPDATE chats SET status = 'interrupting', snapshot_version = snapshot_version + 1,
               interrupt_deadline = now() + interval '10 s',
               recent_changes = (ARRAY[0::bigint] || recent_changes)[1:8] WHERE id = $1""",
        chat_id,
    )


@pytest.mark.covers("F26")
async def test_stopping_twice_is_stopping_once(dsn: str) -> None:
    gate = Gate()
    async with a_house(dsn) as house:
        house.says("so far", gate)
        chat_id = await house.create("go")
        await house.shown(chat_id, "so far")
        stops = await asyncio.gather(*(house.interrupt(chat_id) for _ in range(5)))
        assert {chat.status for chat in stops} <= {"interrupting", "waiting"}
        assert (await house.rests(chat_id)).state == "W"
        assert (await house.interrupt(chat_id)).state == "W"
        assert await house.transcript(chat_id) == ["user: go", "assistant: so far"]


@pytest.mark.covers("T25")
@pytest.mark.promise("P9")
async def test_a_stop_with_a_queue_keeps_its_order(dsn: str) -> None:
    gate = Gate()
    async with a_house(dsn) as house:
        house.says("so far", gate)
        chat_id = await house.create("zero")
        await house.shown(chat_id, "so far")
        for text in ("one", "two", "three"):
            house.says(f"to {text}")
            await house.send(chat_id, text)
        await house.interrupt(chat_id)
        assert (await house.rests(chat_id)).state == "W"
        assert await house.transcript(chat_id) == [
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
async def test_promoting_a_queued_message_stops_the_turn_for_it(dsn: str) -> None:
    gate = Gate()
    async with a_house(dsn) as house:
        house.says("so far", gate)
        house.says("to two")
        house.says("to one")
        chat_id = await house.create("zero")
        await gate.reached.wait()
        await house.send(chat_id, "one")
        await house.send(chat_id, "two")
        await house.promote(chat_id, 2)
        assert (await house.rests(chat_id)).state == "W"
        assert [line for line in await house.transcript(chat_id) if "user" in line] == [
            "user: zero",
            "user: two",
            "user: one",
        ]


@pytest.mark.covers("F25")
@pytest.mark.promise("P1")
async def test_a_stop_against_the_last_word_ends_at_rest_either_way(dsn: str) -> None:
    """Many times, because the two meet in different places."""
    async with a_house(dsn) as house:
        for _ in range(20):
            gate = Gate()
            house.says("all there is", gate)
            chat_id = await house.create("go")
            await house.shown(chat_id, "all there is")
            gate.open()
            await house.interrupt(chat_id)
            await house.until(chat_id, "W")
            assert await house.transcript(chat_id) == ["user: go", "assistant: all there is"]


@pytest.mark.covers("F24")
@pytest.mark.promise("P1")
async def test_a_message_against_the_last_word_is_answered_either_way(dsn: str) -> None:
    async with a_house(dsn) as house:
        for _ in range(20):
            gate = Gate()
            house.says("one", gate)
            house.says("two")
            chat_id = await house.create("first")
            await gate.reached.wait()
            gate.open()
            await house.send(chat_id, "second")
            await house.until(chat_id, "W")
            assert await house.transcript(chat_id) == [
                "user: first",
                "assistant: one",
                "user: second",
                "assistant: two",
            ]


@pytest.mark.covers("F21", "F29")
async def test_an_edit_during_a_tool_fences_its_result_off(dsn: str) -> None:
    gate = Gate()
    tool = StubbornTool(gate)
    async with a_house(dsn, tools=[tool]) as house:
        house.replica.task_reaper.shorten_grace()
        house.calls(("c1", "echo", "{}"))
        chat_id = await house.create("old")
        await gate.reached.wait()
        house.says("to the new")
        await house.edit(chat_id, "new")
        await house.rests(chat_id, epoch=2)
        gate.open()
        await house.rests(chat_id, epoch=1)
        assert await house.transcript(chat_id) == ["user: new", "assistant: to the new"]


@pytest.mark.covers("F34")
@pytest.mark.parametrize("doing", ["answering", "using a tool"])
async def test_an_archived_chat_is_not_written_to_any_more(dsn: str, doing: str) -> None:
    gate = Gate()
    async with a_house(dsn, tools=[GatedTool(gate=gate)]) as house:
        if doing == "answering":
            house.says("so far", gate)
        else:
            house.calls(("c1", "echo", "{}"))
        chat_id = await house.create("go")
        await gate.reached.wait()
        chat = await house.archive(chat_id)
        assert (chat.archived, chat.worker_id) == (True, None)
        gate.open()
        await house.rests(chat_id)
        assert (await house.chat(chat_id)).snapshot_version == chat.snapshot_version
        if doing != "answering":
            assert (await house.transcript(chat_id))[-1].startswith("tool: error(c1)")
        await house.unarchive(chat_id)
        house.says("back")
        await house.send(chat_id, "again")
        await house.until(chat_id, "W")
        assert (await house.transcript(chat_id))[-1] == "assistant: back"
