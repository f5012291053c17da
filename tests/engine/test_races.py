"""Races between users, workers and clocks: one write wins, the other is refused."""

import asyncio
from collections.abc import Coroutine
from typing import LiteralString

import pytest
from msgspec import Raw

from chatd.domain.chat.commands import DeleteQueued, EditMessage
from chatd.domain.chat.lease import LEASE_TTL_S
from chatd.domain.chat.row import MAX_QUEUED_MESSAGES, Chat
from chatd.domain.errors import ChatdError, NotFound, QueueFull, RequestError
from chatd.domain.ids import ChatId, MessageId, QueueId
from tests.support.clock import FakeClock
from tests.support.engine_rig import NO_SLOTS, EngineRig, advancing, engine_rig, engine_rig_with
from tests.support.eventually import eventually
from tests.support.providers.openai_chat import FakeCompatible
from tests.support.providers.server import Gate
from tests.support.tools import StubbornTool

CLIENT_TOOLS = Raw(b'[{"name":"pick","description":"","input_schema":{"type":"object"}}]')


async def outcome(command: Coroutine[None, None, Chat]) -> Chat | ChatdError:
    """The result, or the error of a refused command."""
    try:
        return await command
    except ChatdError as error:
        return error


# Edits


async def edit(rig: EngineRig, chat_id: ChatId, message: int, text: str) -> Chat:
    """Edit the message as it is at the time of the write."""
    command = EditMessage(message_id=MessageId(message), prompt=rig.prompt(text))
    with rig.replica.worker.reserve_slot(root=True) as free:
        return await rig.run(chat_id, command, free)


@pytest.mark.covers("F30")
async def test_of_two_concurrent_edits_of_a_message_one_wins(rig: EngineRig) -> None:
    for _ in range(5):
        gate = Gate()
        chat_id = await rig.ask("old", "to the old", gate)
        rig.answer("to the new")
        edits = (edit(rig, chat_id, 1, text) for text in ("one", "two"))
        done = await asyncio.gather(*(outcome(each) for each in edits))
        assert sorted(isinstance(each, NotFound) for each in done) == [False, True]
        winner = "one" if isinstance(done[0], Chat) else "two"
        await rig.wait_state(chat_id, "W")
        assert await rig.transcript(chat_id) == [f"user: {winner}", "assistant: to the new"]


@pytest.mark.covers("F29")
async def test_an_edit_during_an_interrupt_does_not_wait_for_it(dsn: str, gate: Gate) -> None:
    tool = StubbornTool(gate)
    async with engine_rig(dsn, tools=[tool]) as rig:
        chat_id = await rig.start_tool("old", gate)
        await rig.send(chat_id, "queued")
        await rig.interrupt(chat_id)
        await tool.refused.wait()
        assert (await rig.chat(chat_id)).state == "I1"
        rig.answer("to the new")
        await edit(rig, chat_id, 1, "new")
        gate.open()
        chat = await rig.wait_state(chat_id, "W")
        assert chat.queue_len == 0
        await rig.wait_chat_task_left(chat_id, epoch=1)
        assert await rig.transcript(chat_id) == ["user: new", "assistant: to the new"]


# The queue


async def delete_queued_message(rig: EngineRig, chat_id: ChatId, item: int) -> Chat:
    return await rig.run(chat_id, DeleteQueued(id=QueueId(item)))


@pytest.mark.covers("F32")
async def test_a_queued_message_is_promoted_or_deleted_but_not_both(rig: EngineRig) -> None:
    for _ in range(5):
        gate = Gate()
        chat_id = await rig.ask("go", "so far", gate)
        await rig.wait_shown(chat_id, "so far")
        await rig.send(chat_id, "now")
        commands = (rig.promote(chat_id, 1), delete_queued_message(rig, chat_id, 1))
        promoted, _ = await asyncio.gather(*(outcome(each) for each in commands))
        is_deleted = isinstance(promoted, NotFound)
        if is_deleted:
            gate.open()
        else:
            rig.answer("now it is")
        await rig.wait_state(chat_id, "W")
        lines = await rig.transcript(chat_id)
        if is_deleted or lines[2:] == []:
            assert lines == ["user: go", "assistant: so far"]
        else:
            assert lines[2:] == ["user: now", "assistant: now it is"]
        rig.api.scripted.clear()


@pytest.mark.covers("F33")
@pytest.mark.promise("P1")
async def test_of_two_messages_for_the_last_place_in_the_queue_one_is_refused(
    rig: EngineRig, gate: Gate
) -> None:
    chat_id = await rig.ask("go", "busy", gate)
    for number in range(MAX_QUEUED_MESSAGES - 1):
        await rig.send(chat_id, f"{number}")
    sends = (rig.send(chat_id, text) for text in ("one", "two"))
    done = await asyncio.gather(*(outcome(each) for each in sends))
    assert sorted(isinstance(each, QueueFull) for each in done) == [False, True]
    assert (await rig.chat(chat_id)).queue_len == MAX_QUEUED_MESSAGES
    await rig.archive(chat_id)
    gate.open()
    await rig.wait_chat_task_left(chat_id)


# Interrupts and archives


@pytest.mark.covers("F26")
async def test_a_pending_chat_is_interrupted_without_a_worker(dsn: str) -> None:
    async with engine_rig(dsn, worker=NO_SLOTS) as rig:
        chat_id = await rig.create("go")
        assert (await rig.chat(chat_id)).state == "P0"
        for _ in range(2):
            assert (await rig.interrupt(chat_id)).state == "W"
        assert await rig.transcript(chat_id) == ["user: go"]
        assert rig.api.requests == []


@pytest.mark.covers("F35")
@pytest.mark.promise("P3")
async def test_an_unarchived_chat_refuses_writes_of_its_old_runner(dsn: str, gate: Gate) -> None:
    async with engine_rig(dsn, tools=[StubbornTool(gate)]) as rig:
        chat_id = await rig.start_tool("go", gate)
        await rig.archive(chat_id)
        await rig.unarchive(chat_id)
        rig.answer("back")
        await rig.send(chat_id, "again")
        await rig.wait_state(chat_id, "W")
        gate.open()
        await rig.wait_chat_task_left(chat_id, epoch=1)
        lines = await rig.transcript(chat_id)
        assert lines[2].startswith("tool: error(c1)")
        assert lines[3:] == ["user: again", "assistant: back"]


@pytest.mark.covers("F34")
async def test_a_chat_that_requires_action_can_be_archived(rig: EngineRig) -> None:
    rig.call_tools(("c1", "pick", "{}"))
    chat_id = await rig.create("go", client_tools=CLIENT_TOOLS)
    assert (await rig.wait_chat_task_left(chat_id)).state == "A0"
    chat = await rig.archive(chat_id)
    assert (chat.archived, chat.pending_calls) == (True, ())
    assert (await rig.transcript(chat_id))[-1].startswith("tool: error(c1)")
    assert isinstance(await outcome(rig.submit(chat_id, c1="1")), RequestError)
    assert (await rig.chat(chat_id)).snapshot_version == chat.snapshot_version


# Clocks


@pytest.mark.covers("F19")
@pytest.mark.promise("P3")
async def test_a_jump_of_the_databases_clock_takes_no_chat_from_a_live_worker(
    dsn: str, api: FakeCompatible, gate: Gate
) -> None:
    """Every lease expires at once, but the worker still holds its lock."""
    async with engine_rig_with(dsn, api) as other, engine_rig_with(dsn, api) as rig:
        chat_id = await rig.ask("go", "all ", gate, "of it")
        await other.pool.execute(
            """UPDATE chat_workers SET lease_until = lease_until - interval '1 h',
                   renewed_at = renewed_at - interval '1 h'"""
        )
        await wait_two_heartbeats(other)
        gate.open()
        assert (await rig.wait_chat_task_left(chat_id)).state == "W"
        assert await other.transcript(chat_id) == ["user: go", "assistant: all of it"]
        assert len(api.requests) == 1


@pytest.mark.covers("F19")
@pytest.mark.promise("P3")
@pytest.mark.parametrize("jump", ["- interval '1 h'", "+ interval '1 h'"])
async def test_no_jump_of_the_databases_clock_takes_a_chat_from_a_live_worker(
    dsn: str, clock: FakeClock, api: FakeCompatible, gate: Gate, jump: LiteralString
) -> None:
    """The other replica has ticked for longer than a lease: it reaps by leases too. All times in
    the database are an hour off at each of its heartbeats."""
    async with engine_rig_with(dsn, api) as rig, engine_rig_with(dsn, api, clock=clock) as other:
        chat_id = await rig.ask("go", "all ", gate, "of it")

        async def has_ticked_for(seconds: float) -> bool:
            await other.pool.execute(
                f"UPDATE chat_workers SET renewed_at = now() {jump}, lease_until = now() {jump}"
                " WHERE worker_id = $1",
                rig.replica.worker_id,
            )
            return clock.monotonic() > start + seconds

        start = clock.monotonic()
        async with advancing(clock):
            await eventually(lambda: has_ticked_for(LEASE_TTL_S + 15), within_s=60)
        assert (await rig.chat(chat_id)).epoch == 1
        gate.open()
        assert (await rig.wait_chat_task_left(chat_id)).state == "W"
        assert await rig.transcript(chat_id) == ["user: go", "assistant: all of it"]
        assert len(api.requests) == 1


async def wait_two_heartbeats(rig: EngineRig) -> None:
    statement = "SELECT renewed_at > now() - interval '1 min' FROM chat_workers WHERE worker_id=$1"
    for _ in range(2):
        await eventually(lambda: rig.pool.fetchval(statement, rig.replica.worker_id))
        await rig.pool.execute(
            "UPDATE chat_workers SET renewed_at = renewed_at - interval '1 h' WHERE worker_id = $1",
            rig.replica.worker_id,
        )


# Drain


@pytest.mark.covers("F8")
@pytest.mark.promise("P5")
async def test_a_drain_at_the_end_of_an_answer_stores_it_once(
    dsn: str, api: FakeCompatible
) -> None:
    """Repeated, because the two race at different points."""
    async with engine_rig_with(dsn, api) as other:
        for _ in range(4):
            gate = Gate()
            async with engine_rig_with(dsn, api) as drained:
                chat_id = await drained.ask("go", "all of it", gate)
                gate.open()
            await other.wait_state(chat_id, "W")
            assert await other.transcript(chat_id) == ["user: go", "assistant: all of it"]
