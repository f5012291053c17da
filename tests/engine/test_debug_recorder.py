"""Model calls are recorded behind their commits, only where the gate is open."""

from chatd.domain.ids import ChatId, UserId
from chatd.store.model import model_calls
from chatd.store.model.model_calls import StoredDebugCall
from tests.support.engine_rig import EngineRig, engine_rig_with
from tests.support.factories import HARNESS
from tests.support.providers.openai_chat import FakeCompatible
from tests.support.providers.server import Gate


async def is_open(_owner_id: UserId) -> bool:
    return True


async def recorded(rig: EngineRig, chat_id: ChatId) -> list[StoredDebugCall]:
    """In the order of time."""
    await rig.replica.debug_recorder.wait_idle()
    found = await model_calls.list_debug_calls(rig.pool, HARNESS, chat_id, None, limit=100)
    return found[::-1]


async def test_answers_failures_and_interrupts_are_recorded(
    dsn: str, api: FakeCompatible, gate: Gate
) -> None:
    async with engine_rig_with(dsn, api) as rig:
        rig.replica.debug_recorder.gate = is_open
        rig.answer("Hi there", input_tokens=12)
        chat_id = await rig.create("hello")
        await rig.wait_state(chat_id, "W")
        rig.api.reply(401, b'{"error": {"message": "wrong key"}}')
        await rig.send(chat_id, "again")
        await rig.wait_state(chat_id, "E0")
        rig.answer("half an ans", gate)
        await rig.send(chat_id, "and again")
        await gate.reached.wait()
        await rig.wait_shown(chat_id, "half an ans")
        await rig.interrupt(chat_id)
        await rig.wait_state(chat_id, "W")
        answered, failed, stopped = await recorded(rig, chat_id)
        assert (answered.kind, answered.error, answered.finish_reason) == ("turn", None, "stop")
        assert answered.usage.input_tokens == 12
        assert answered.first_part_ms is not None
        assert (failed.error_kind, failed.status_code) == ("auth", 401)
        assert (stopped.error_kind, stopped.finish_reason) == ("cancelled", None)
        found = await model_calls.get_debug_call(rig.pool, HARNESS, chat_id, stopped.id)
        assert found is not None
        assert b"half an ans" in bytes(found.response or b"")
        assert b"and again" in bytes(found.request or b"")


async def test_nothing_is_recorded_while_the_gate_is_closed(dsn: str, api: FakeCompatible) -> None:
    async with engine_rig_with(dsn, api) as rig:
        chat_id = await rig.ask("hello", "Hi there")
        await rig.wait_state(chat_id, "W")
        assert await recorded(rig, chat_id) == []


async def test_a_summary_is_recorded_as_a_compaction(dsn: str, api: FakeCompatible) -> None:
    async with engine_rig_with(dsn, api) as rig:
        rig.replica.debug_recorder.gate = is_open
        chat_id = await rig.ask("hello", "Hi there")
        await rig.wait_state(chat_id, "W")
        rig.answer("a summary")
        await rig.compact(chat_id)
        await rig.wait_state(chat_id, "W")
        assert [call.kind for call in await recorded(rig, chat_id)] == ["turn", "compaction"]
