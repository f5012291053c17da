"""Messages, edits and interrupts for a chat that is running."""

import pytest

from chatd.domain.chat.commands import ChooseVersion, EditMessage, RegenerateTurn
from chatd.domain.errors import ChatBusy
from chatd.domain.ids import MessageId
from chatd.store.chat import messages
from tests.support.engine_rig import EngineRig, engine_rig
from tests.support.factories import HARNESS
from tests.support.providers.server import Gate
from tests.support.tools import GatedTool


async def test_a_steering_message_joins_the_next_model_call_of_the_turn(dsn: str) -> None:
    gate = Gate()
    async with engine_rig(dsn, tools=[GatedTool(gate=gate)]) as rig:
        rig.call_tools(("c1", "echo", "{}"))
        chat_id = await rig.ask("go", "as you wish")
        await gate.reached.wait()
        await rig.send(chat_id, "but gently", when_busy="steer")
        gate.open()
        await rig.wait_chat_task_left(chat_id)
        assert await rig.transcript(chat_id) == [
            "user: go",
            "assistant: echo(c1)",
            "tool: result(c1) {'output': 'said {}'}",
            "user: but gently",
            "assistant: as you wish",
        ]


async def test_a_rollback_discards_the_running_turn_and_keeps_the_queue(rig: EngineRig) -> None:
    gate = Gate()
    rig.answer("wrong way", gate)
    rig.answer("right way")
    chat_id = await rig.ask("left", "and then")
    await gate.reached.wait()
    await rig.send(chat_id, "later")
    await rig.send(chat_id, "right", when_busy="rollback")
    await rig.wait_chat_task_left(chat_id, epoch=2)
    expected = ["user: right", "assistant: right way", "user: later", "assistant: and then"]
    assert await rig.transcript(chat_id) == expected


async def test_a_message_sent_with_reject_is_refused_by_a_busy_chat(rig: EngineRig) -> None:
    gate = Gate()
    chat_id = await rig.ask("first", "one", gate)
    with pytest.raises(ChatBusy):
        await rig.send(chat_id, "now or never", when_busy="reject")
    gate.open()
    await rig.wait_chat_task_left(chat_id)
    assert await rig.transcript(chat_id) == ["user: first", "assistant: one"]


@pytest.mark.covers("F29")
async def test_an_edit_discards_the_running_answer(rig: EngineRig, gate: Gate) -> None:
    rig.answer("answer to the old", gate)
    chat_id = await rig.ask("old", "answer to the new")
    await gate.reached.wait()
    target = (await messages.load_history(rig.replica.database.pool, HARNESS, chat_id))[0]
    edit = EditMessage(message_id=target.id, prompt=rig.prompt("new"))
    with rig.replica.worker.reserve_slot(root=True) as free:
        await rig.run(chat_id, edit, free)
    gate.open()
    await rig.wait_chat_task_left(chat_id, epoch=2)
    assert await rig.transcript(chat_id) == ["user: new", "assistant: answer to the new"]


async def test_the_model_gets_the_chosen_version_only(rig: EngineRig) -> None:
    chat_id = await rig.ask("question", "first answer")
    await rig.wait_chat_task_left(chat_id)
    rig.answer("second answer")
    again = RegenerateTurn(message_id=MessageId(1), created_by=rig.owner)
    with rig.replica.worker.reserve_slot(root=True) as free:
        await rig.run(chat_id, again, free)
    await rig.wait_chat_task_left(chat_id, epoch=3)
    assert await rig.transcript(chat_id) == ["user: question", "assistant: second answer"]
    await rig.run(chat_id, ChooseVersion(message_id=MessageId(1)))
    rig.answer("third answer")
    await rig.send(chat_id, "and?")
    await rig.wait_chat_task_left(chat_id, epoch=5)
    sent = rig.api.requests[-1].body.decode()
    assert "first answer" in sent
    assert "second answer" not in sent
    assert (await rig.transcript(chat_id))[1:] == [
        "assistant: first answer",
        "user: and?",
        "assistant: third answer",
    ]


@pytest.mark.covers("F28")
async def test_an_interrupt_before_the_first_part_stores_no_empty_answer(rig: EngineRig) -> None:
    gate = Gate()
    chat_id = await rig.ask("hi", gate, "never")
    await rig.interrupt(chat_id)
    chat = await rig.wait_chat_task_left(chat_id)
    assert chat.state == "W"
    assert await rig.transcript(chat_id) == ["user: hi"]
