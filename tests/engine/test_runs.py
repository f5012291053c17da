"""The record of attempts: which worker had a chat for which turn, and how each attempt ended."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from chatd.domain.ids import ChatId
from chatd.store.chat import runs
from chatd.store.chat.runs import RunRow
from chatd.store.database.conn import Conn
from tests.chaos.test_accidents import run_until_held
from tests.support.chaos.takeover_rig import takeover_rig
from tests.support.clock import FakeClock
from tests.support.engine_rig import EngineRig, engine_rig, engine_rig_with
from tests.support.factories import HARNESS
from tests.support.providers.openai_chat import FakeCompatible
from tests.support.providers.server import Gate

BUSY = b'{"error": {"message": "try again", "type": "server_error"}}'


@pytest.fixture
async def rig(dsn: str, clock: FakeClock) -> AsyncGenerator[EngineRig]:
    async with engine_rig(dsn, clock=clock) as rig:
        yield rig


async def recorded(conn: Conn, chat_id: ChatId) -> list[RunRow]:
    """In the order of time."""
    return (await runs.list_runs(conn, HARNESS, chat_id))[::-1]


def shown(found: list[RunRow]) -> list[tuple[int, str | None, int]]:
    """Turn, outcome and number of messages of each attempt."""
    return [(run.turn_no, run.outcome, run.messages) for run in found]


async def test_each_turn_has_an_attempt_that_finished(rig: EngineRig) -> None:
    chat_id = await rig.ask("first", "one")
    await rig.wait_state(chat_id, "W")
    rig.answer("two")
    await rig.send(chat_id, "second")
    await rig.wait_state(chat_id, "W")
    found = await recorded(rig.pool, chat_id)
    assert shown(found) == [(1, "finished", 1), (2, "finished", 1)]
    assert {run.worker_id for run in found} == {rig.replica.worker_id}
    assert [run.turn_message_id for run in found] == [1, 3]
    assert not any(run.is_running or run.ended_at is None for run in found)


async def test_a_queued_message_begins_an_attempt_of_the_same_worker(
    rig: EngineRig, gate: Gate
) -> None:
    chat_id = await rig.ask("first", "one", gate)
    await rig.send(chat_id, "second")
    [running] = await recorded(rig.pool, chat_id)
    assert (running.is_running, running.outcome, running.ended_at) == (True, None, None)
    rig.answer("two")
    gate.open()
    await rig.wait_state(chat_id, "W")
    found = await recorded(rig.pool, chat_id)
    assert shown(found) == [(1, "finished", 1), (2, "finished", 1)]
    assert found[0].epoch == found[1].epoch


@pytest.mark.promise("P4")
async def test_an_interrupt_tells_how_much_of_the_answer_it_kept(
    rig: EngineRig, gate: Gate
) -> None:
    chat_id = await rig.ask("go", "twelve chars", gate)
    await rig.wait_shown(chat_id, "twelve chars")
    await rig.interrupt(chat_id)
    await rig.wait_state(chat_id, "W")
    [run] = await recorded(rig.pool, chat_id)
    assert (run.outcome, run.detail.kept_chars, run.detail.queue_held) == ("interrupted", 12, False)


async def test_a_retry_ends_an_attempt_with_its_reason_and_its_wait(
    rig: EngineRig, clock: FakeClock
) -> None:
    rig.api.reply(503, BUSY)
    chat_id = await rig.ask("hi", "better")
    await clock.wait_for_sleeper("retry_backoff")
    [run] = await recorded(rig.pool, chat_id)
    assert (run.outcome, run.detail.delay_ms, run.detail.status_code) == ("retry", 1000, 503)
    holder = await runs.get_holder(rig.pool, HARNESS, chat_id)
    assert holder is not None
    assert holder.worker_id is None
    assert holder.next_at is not None


async def test_an_edit_replaces_the_attempt_and_an_error_fails_it(
    rig: EngineRig, gate: Gate
) -> None:
    chat_id = await rig.ask("old", "never shown", gate)
    rig.api.reply(401, b'{"error": {"message": "wrong key"}}')
    await rig.edit(chat_id, "new")
    await rig.wait_state(chat_id, "E0")
    found = await recorded(rig.pool, chat_id)
    assert [(run.turn_no, run.outcome) for run in found] == [(1, "replaced"), (2, "failed")]
    assert (found[1].detail.error_kind, found[1].detail.status_code) == ("auth", 401)


@pytest.mark.promise("P5")
async def test_a_drained_worker_releases_its_attempt(
    dsn: str, api: FakeCompatible, gate: Gate
) -> None:
    async with engine_rig_with(dsn, api) as rig:
        rig.call_tools(("c1", "nothing", "{}"), first=gate)
        chat_id = await rig.create("go")
        await gate.reached.wait()
        draining = rig.start_drain()
        await rig.events.wait("drain_started")
        gate.open()
        await draining
        [run] = await recorded(rig.pool, chat_id)
        assert (run.outcome, run.messages) == ("released", 1)


@pytest.mark.promise("P6")
@pytest.mark.promise("P7")
async def test_a_killed_worker_and_its_successor_are_in_the_record(dsn: str) -> None:
    """Kills a process, and waits until its death is noticed."""
    async with asyncio.timeout(60), takeover_rig(dsn) as rig:
        gate = rig.tool_server.gates.hold("m2-0")
        victim, chat_id = await run_until_held(rig, "m2 1", gate)
        victim.kill()
        chat = await rig.survivor.wait_state(chat_id, "W")
        lost, taken = await recorded(rig.survivor.pool, chat_id)
        assert (lost.outcome, lost.messages, lost.detail.open_calls) == ("lost", 1, ("work",))
        assert lost.detail.sign == "lock_gone"
        assert lost.detail.missed >= 1
        me = rig.survivor.replica.worker_id
        assert lost.detail.reaped_by == me
        assert (taken.worker_id, taken.outcome, taken.turn_no) == (me, "finished", lost.turn_no)
        takeover = taken.takeover
        assert takeover is not None
        assert takeover == chat.takeover
        assert (takeover.lost_worker_id, takeover.worker_id) == (lost.worker_id, me)
        assert (takeover.message_id, takeover.open_calls, takeover.repeats_answer) == (2, 1, False)
        assert takeover.after_ms is not None
        assert takeover.after_ms > 0
        workers = await runs.list_lanes(rig.survivor.pool)
        assert [worker.worker_id for worker in workers] == [me]
