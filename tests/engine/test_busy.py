"""A message that meets a busy chat: the five ways, through the engine."""

import pytest

from chatd.domain.chat.commands import EditMessage
from chatd.domain.errors import ChatBusy
from chatd.store.chat import messages
from tests.support.house import a_house
from tests.support.providers.server import Gate
from tests.support.tools import GatedTool


async def test_a_steering_message_is_seen_by_the_next_model_call_of_the_turn(dsn: str) -> None:
    gate = Gate()
    async with a_house(dsn, tools=[GatedTool(gate=gate)]) as house:
        house.calls(("c1", "echo", "{}"))
        house.says("as you wish")
        chat_id = await house.create("go")
        await gate.reached.wait()
        await house.send(chat_id, "but gently", when_busy="steer")
        gate.open()
        await house.rests(chat_id)
        assert await house.transcript(chat_id) == [
            "user: go",
            "assistant: echo(c1)",
            "tool: result(c1) {'output': 'said {}'}",
            "user: but gently",
            "assistant: as you wish",
        ]


async def test_a_rollback_drops_the_running_turn_and_keeps_the_queue(dsn: str) -> None:
    gate = Gate()
    async with a_house(dsn) as house:
        house.says("wrong way", gate)
        house.says("right way")
        house.says("and then")
        chat_id = await house.create("left")
        await gate.reached.wait()
        await house.send(chat_id, "later")
        await house.send(chat_id, "right", when_busy="rollback")
        await house.rests(chat_id, epoch=2)
        assert await house.transcript(chat_id) == [
            "user: right",
            "assistant: right way",
            "user: later",
            "assistant: and then",
        ]


async def test_a_sender_who_would_rather_be_refused_is(dsn: str) -> None:
    gate = Gate()
    async with a_house(dsn) as house:
        house.says("one", gate)
        chat_id = await house.create("first")
        await gate.reached.wait()
        with pytest.raises(ChatBusy):
            await house.send(chat_id, "now or never", when_busy="reject")
        gate.open()
        await house.rests(chat_id)
        assert await house.transcript(chat_id) == ["user: first", "assistant: one"]


@pytest.mark.covers("F29")
async def test_an_edit_fences_the_running_answer_off(dsn: str) -> None:
    gate = Gate()
    async with a_house(dsn) as house:
        house.says("answer to the old", gate)
        house.says("answer to the new")
        chat_id = await house.create("old")
        await gate.reached.wait()
        target = (await messages.load_history(house.replica.database.pool, chat_id))[0]
        edit = EditMessage(message_id=target.id, prompt=house.prompt("new"))
        with house.replica.worker.reserve_slot(root=True) as free:
            await house.run(chat_id, edit, free)
        gate.open()
        await house.rests(chat_id, epoch=2)
        assert await house.transcript(chat_id) == ["user: new", "assistant: answer to the new"]


@pytest.mark.covers("F28")
async def test_stopping_before_the_first_word_leaves_no_empty_answer(dsn: str) -> None:
    gate = Gate()
    async with a_house(dsn) as house:
        house.says(gate, "never")
        chat_id = await house.create("hi")
        await gate.reached.wait()
        await house.interrupt(chat_id)
        chat = await house.rests(chat_id)
        assert chat.state == "W"
        assert await house.transcript(chat_id) == ["user: hi"]
