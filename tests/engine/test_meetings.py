"""People who meet each other, a clock that jumps, and workers who come too late: one wins, the
other is told, and nothing is there twice."""

import asyncio
from collections.abc import Coroutine

import pytest
from msgspec import Raw

from chatd.domain.chat.commands import DeleteQueued, EditMessage
from chatd.domain.chat.row import MAX_QUEUED_MESSAGES, Chat
from chatd.domain.errors import ChatdError, NotFound, QueueFull, RequestError
from chatd.domain.ids import ChatId, MessageId, QueueId
from chatd.engine.slots import SlotsConfig
from chatd.engine.worker import WorkerConfig
from tests.support.eventually import eventually
from tests.support.house import House, a_house, a_house_with
from tests.support.providers.openai_chat import FakeCompatible
from tests.support.providers.server import Gate
from tests.support.tools import StubbornTool

NO_ROOM = WorkerConfig(heartbeat_interval_s=0.2, slots=SlotsConfig(roots=0))
CLIENTS = Raw(b'[{"name":"pick","description":"","input_schema":{"type":"object"}}]')


async def outcome(move: Coroutine[None, None, Chat]) -> Chat | ChatdError:
    """What came of it, a refusal included."""
    try:
        return await move
    except ChatdError as error:
        return error


# Edits


async def edit(house: House, chat_id: ChatId, message: int, text: str) -> Chat:
    """Of the message as it is by the time of the write."""
    command = EditMessage(message_id=MessageId(message), prompt=house.prompt(text))
    with house.replica.worker.reserve_slot(root=True) as free:
        return await house.run(chat_id, command, free)


@pytest.mark.covers("F30")
async def test_of_two_edits_of_one_message_one_wins(dsn: str) -> None:
    async with a_house(dsn) as house:
        for _ in range(5):
            gate = Gate()
            house.says("to the old", gate)
            chat_id = await house.create("old")
            await gate.reached.wait()
            house.says("to the new")
            edits = (edit(house, chat_id, 1, text) for text in ("one", "two"))
            done = await asyncio.gather(*(outcome(each) for each in edits))
            assert sorted(isinstance(each, NotFound) for each in done) == [False, True]
            winner = "one" if isinstance(done[0], Chat) else "two"
            await house.until(chat_id, "W")
            assert await house.transcript(chat_id) == [f"user: {winner}", "assistant: to the new"]


@pytest.mark.covers("F29")
async def test_an_edit_during_a_stop_needs_not_wait_for_it(dsn: str) -> None:
    gate = Gate()
    tool = StubbornTool(gate)
    async with a_house(dsn, tools=[tool]) as house:
        house.calls(("c1", "echo", "{}"))
        chat_id = await house.create("old")
        await gate.reached.wait()
        await house.send(chat_id, "queued")
        await house.interrupt(chat_id)
        await tool.refused.wait()
        assert (await house.chat(chat_id)).state == "I1"
        house.says("to the new")
        await edit(house, chat_id, 1, "new")
        gate.open()
        chat = await house.until(chat_id, "W")
        assert chat.queue_len == 0
        await house.rests(chat_id, epoch=1)
        assert await house.transcript(chat_id) == ["user: new", "assistant: to the new"]


# The queue


async def take_out(house: House, chat_id: ChatId, item: int) -> Chat:
    return await house.run(chat_id, DeleteQueued(id=QueueId(item)))


@pytest.mark.covers("F32")
async def test_a_queued_message_is_promoted_or_taken_out_but_not_both(dsn: str) -> None:
    async with a_house(dsn) as house:
        for _ in range(5):
            gate = Gate()
            house.says("so far", gate)
            chat_id = await house.create("go")
            await house.shown(chat_id, "so far")
            await house.send(chat_id, "now")
            moves = (house.promote(chat_id, 1), take_out(house, chat_id, 1))
            promoted, _ = await asyncio.gather(*(outcome(each) for each in moves))
            taken_out = isinstance(promoted, NotFound)
            if taken_out:
                gate.open()
            else:
                house.says("now it is")
            await house.until(chat_id, "W")
            lines = await house.transcript(chat_id)
            if taken_out or lines[2:] == []:
                assert lines == ["user: go", "assistant: so far"]
            else:
                assert lines[2:] == ["user: now", "assistant: now it is"]
            house.api.scripted.clear()


@pytest.mark.covers("F33")
@pytest.mark.promise("P1")
async def test_of_two_who_want_the_last_place_in_the_queue_one_is_refused(dsn: str) -> None:
    gate = Gate()
    async with a_house(dsn) as house:
        house.says("busy", gate)
        chat_id = await house.create("go")
        await gate.reached.wait()
        for number in range(MAX_QUEUED_MESSAGES - 1):
            await house.send(chat_id, f"{number}")
        sends = (house.send(chat_id, text) for text in ("one", "two"))
        done = await asyncio.gather(*(outcome(each) for each in sends))
        assert sorted(isinstance(each, QueueFull) for each in done) == [False, True]
        assert (await house.chat(chat_id)).queue_len == MAX_QUEUED_MESSAGES
        await house.archive(chat_id)
        gate.open()
        await house.rests(chat_id)


# Stops and archives


@pytest.mark.covers("F26")
async def test_a_chat_that_nobody_has_taken_is_stopped_without_one(dsn: str) -> None:
    async with a_house(dsn, worker=NO_ROOM) as house:
        chat_id = await house.create("go")
        assert (await house.chat(chat_id)).state == "P0"
        for _ in range(2):
            assert (await house.interrupt(chat_id)).state == "W"
        assert await house.transcript(chat_id) == ["user: go"]
        assert house.api.requests == []


@pytest.mark.covers("F35")
@pytest.mark.promise("P3")
async def test_a_chat_that_came_back_from_the_archive_is_not_written_to_by_its_old_worker(
    dsn: str,
) -> None:
    gate = Gate()
    async with a_house(dsn, tools=[StubbornTool(gate)]) as house:
        house.calls(("c1", "echo", "{}"))
        chat_id = await house.create("go")
        await gate.reached.wait()
        await house.archive(chat_id)
        await house.unarchive(chat_id)
        house.says("back")
        await house.send(chat_id, "again")
        await house.until(chat_id, "W")
        gate.open()
        await house.rests(chat_id, epoch=1)
        lines = await house.transcript(chat_id)
        assert lines[2].startswith("tool: error(c1)")
        assert lines[3:] == ["user: again", "assistant: back"]


@pytest.mark.covers("F34")
async def test_a_chat_that_waits_for_a_client_can_be_archived(dsn: str) -> None:
    async with a_house(dsn) as house:
        house.calls(("c1", "pick", "{}"))
        chat_id = await house.create("go", client_tools=CLIENTS)
        assert (await house.rests(chat_id)).state == "A0"
        chat = await house.archive(chat_id)
        assert (chat.archived, chat.pending_calls) == (True, ())
        assert (await house.transcript(chat_id))[-1].startswith("tool: error(c1)")
        assert isinstance(await outcome(house.submit(chat_id, c1="1")), RequestError)
        assert (await house.chat(chat_id)).snapshot_version == chat.snapshot_version


# Time


@pytest.mark.covers("F19")
@pytest.mark.promise("P3")
async def test_a_database_whose_clock_jumps_takes_no_chat_away(dsn: str) -> None:
    """Every lease has run out at once, but whoever holds its lock is alive."""
    gate = Gate()
    async with (
        FakeCompatible.running() as api,
        a_house_with(dsn, api) as other,
        a_house_with(dsn, api) as house,
    ):
        house.says("all ", gate, "of it")
        chat_id = await house.create("go")
        await gate.reached.wait()
        await other.pool.execute(
            """UPDATE chat_workers SET lease_until = lease_until - interval '1 h',
                   renewed_at = renewed_at - interval '1 h'"""
        )
        await ticked_twice(other)
        gate.open()
        assert (await house.rests(chat_id)).state == "W"
        assert await other.transcript(chat_id) == ["user: go", "assistant: all of it"]
        assert len(api.requests) == 1


async def ticked_twice(house: House) -> None:
    statement = "SELECT renewed_at > now() - interval '1 min' FROM chat_workers WHERE worker_id=$1"
    for _ in range(2):
        await eventually(lambda: house.pool.fetchval(statement, house.replica.me))
        await house.pool.execute(
            "UPDATE chat_workers SET renewed_at = renewed_at - interval '1 h' WHERE worker_id = $1",
            house.replica.me,
        )


# Leaving


@pytest.mark.covers("F8")
@pytest.mark.promise("P5")
async def test_leaving_against_the_last_word_answers_once(dsn: str) -> None:
    """Several times, because the two meet in different places."""
    async with (
        FakeCompatible.running() as api,
        a_house_with(dsn, api) as stays,
    ):
        for _ in range(4):
            gate = Gate()
            async with a_house_with(dsn, api) as leaves:
                leaves.says("all of it", gate)
                chat_id = await leaves.create("go")
                await gate.reached.wait()
                gate.open()
            await stays.until(chat_id, "W")
            assert await stays.transcript(chat_id) == ["user: go", "assistant: all of it"]
