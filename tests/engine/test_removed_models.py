"""A chat whose model was removed, or takes no effort: what is used instead, said once."""

from datetime import timedelta
from uuid import UUID

import pytest
from msgspec.structs import replace

from chatd.domain.access.permissions import UserActor
from chatd.domain.chat.commands import SendMessage, UpdateChat
from chatd.domain.chat.parts import NoticePart
from chatd.domain.deployment.schedules import Schedule
from chatd.domain.ids import ChatId, ModelConfigId
from chatd.domain.model.protocol import Effort
from chatd.services.schedules import ScheduleRunner
from chatd.store.chat import messages
from chatd.store.deployment import schedules
from tests.support.engine_rig import EngineRig
from tests.support.factories import HARNESS
from tests.support.providers.server import Gate

OLD = ModelConfigId(UUID(int=99))
NOTICE = "system: notice(model_replaced)"


@pytest.fixture(autouse=True)
def _removed(rig: EngineRig) -> None:
    rig.model.removed[OLD] = "old"


async def send(rig: EngineRig, chat_id: ChatId, text: str) -> None:
    """With the removed model, as a message that was queued before."""
    prompt = replace(rig.prompt(text), model_config_id=OLD)
    with rig.replica.worker.reserve_slot(root=True) as free:
        await rig.run(chat_id, SendMessage(prompt=prompt), free)


async def test_the_default_model_answers_and_a_notice_says_so_once(rig: EngineRig) -> None:
    rig.answer("one")
    chat_id = await rig.create("first", model_config_id=OLD)
    chat = await rig.wait_chat_task_left(chat_id)
    assert chat.model_config_id == rig.model.config.id
    rig.answer("two")
    await rig.send(chat_id, "second")
    await rig.wait_state(chat_id, "W")
    assert await rig.transcript(chat_id) == [
        *("user: first", NOTICE, "assistant: one"),
        *("user: second", "assistant: two"),
    ]
    [notice] = [
        row for row in await messages.load_history(rig.pool, HARNESS, chat_id) if row.is_notice
    ]
    assert notice.content == (
        NoticePart(
            code="model_replaced",
            text="old was removed; fake answers now.",
            detail={
                "removed_model_config_id": str(OLD),
                "model_config_id": str(chat.model_config_id),
            },
        ),
    )
    assert b"removed" not in rig.api.requests[-1].body


async def test_queued_messages_with_the_removed_model_are_answered_with_one_notice(
    rig: EngineRig,
) -> None:
    gate = Gate()
    chat_id = await rig.ask("first", "one", gate)
    await send(rig, chat_id, "second")
    await send(rig, chat_id, "third")
    rig.answer("two")
    rig.answer("three")
    gate.open()
    await rig.wait_chat_task_left(chat_id)
    assert await rig.transcript(chat_id) == [
        *("user: first", "assistant: one", "user: second", NOTICE, "assistant: two"),
        *("user: third", "assistant: three"),
    ]


async def test_an_interrupted_answer_of_the_default_keeps_the_notice(rig: EngineRig) -> None:
    rig.answer("Once upon", Gate())
    chat_id = await rig.create("tell", model_config_id=OLD)
    await rig.wait_shown(chat_id, "Once upon")
    await rig.interrupt(chat_id)
    await rig.wait_chat_task_left(chat_id)
    assert await rig.transcript(chat_id) == ["user: tell", NOTICE, "assistant: Once upon"]


async def test_a_schedule_with_a_removed_model_is_answered_by_the_default(rig: EngineRig) -> None:
    rig.answer("All is well.")
    now = await schedules.read_time(rig.pool)
    schedule = Schedule(
        id=rig.replica.env.new_id(),
        owner_id=rig.owner,
        name="Nightly",
        cron="@daily",
        timezone="UTC",
        prompt="Check.",
        model_config_id=OLD,
        reasoning_effort=None,
        labels={},
        workspace_id=None,
        enabled=True,
        next_at=now - timedelta(minutes=1),
        last_at=None,
        last_chat_id=None,
        last_error=None,
        created_at=now,
        updated_at=now,
    )
    await schedules.insert(rig.pool, UserActor(user_id=rig.owner, role="member"), schedule)
    await ScheduleRunner(rig.pool, rig.replica.transactor, rig.replica.env).run_due()
    chat_id = ChatId(await rig.pool.fetchval("SELECT id FROM chats"))
    await rig.wait_chat_task_left(chat_id)
    expected = ["user: Check.", NOTICE, "assistant: All is well."]
    assert await rig.transcript(chat_id) == expected


async def test_a_chat_that_requires_its_model_fails_until_it_may_use_another(
    rig: EngineRig,
) -> None:
    chat_id = await rig.create("first", model_config_id=OLD, model_required=True)
    chat = await rig.wait_chat_task_left(chat_id)
    assert chat.last_error is not None
    assert chat.last_error.kind == "model_removed"
    assert "The model old was deleted" in chat.last_error.message
    assert "require its model" in chat.last_error.message
    assert rig.api.requests == []
    await rig.run(chat_id, UpdateChat(model_required=False))
    rig.answer("one")
    await rig.send(chat_id, "again")
    await rig.wait_state(chat_id, "W")
    expected = ["user: first", "user: again", NOTICE, "assistant: one"]
    assert await rig.transcript(chat_id) == expected


UNSENT = "system: notice(effort_not_sent)"


@pytest.mark.parametrize("efforts", [(), None], ids=["takes none", "unknown"])
async def test_an_effort_is_not_sent_to_a_model_that_does_not_name_it_and_a_notice_says_so_once(
    rig: EngineRig, efforts: tuple[Effort, ...] | None
) -> None:
    rig.model.efforts = ("low", "high")
    rig.answer("one")
    chat_id = await rig.create("first", reasoning_effort="high")
    await rig.wait_chat_task_left(chat_id)
    rig.model.efforts = efforts
    for word in ("two", "three"):
        rig.answer(word)
        await rig.send(chat_id, word)
        await rig.wait_state(chat_id, "W")
    assert await rig.transcript(chat_id) == [
        *("user: first", "assistant: one", "user: two", UNSENT, "assistant: two"),
        *("user: three", "assistant: three"),
    ]
    sent = [b'"reasoning_effort":"high"' in request.body for request in rig.api.requests]
    assert sent == [True, False, False]


async def test_after_a_summary_a_chat_is_not_told_again_that_its_effort_is_not_sent(
    rig: EngineRig,
) -> None:
    rig.model.efforts = ()
    rig.answer("one")
    chat_id = await rig.create("first", reasoning_effort="high")
    await rig.wait_chat_task_left(chat_id, epoch=1)
    rig.answer("in short")
    await rig.compact(chat_id)
    await rig.wait_chat_task_left(chat_id, epoch=3)
    rig.answer("two")
    await rig.send(chat_id, "second")
    await rig.wait_chat_task_left(chat_id, epoch=5)
    spoken = await rig.transcript(chat_id)
    assert spoken.count(UNSENT) == 1
    assert spoken[-2:] == ["user: second", "assistant: two"]
