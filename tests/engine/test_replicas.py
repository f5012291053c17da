"""Several replicas on one database: drain, death and takeover."""

from uuid import UUID

import pytest

from chatd.domain.ids import ChatId, WorkerId
from chatd.store.chat import workers
from tests.support.engine_rig import NO_SLOTS, SHORT_DRAIN, EngineRig, engine_rig_with
from tests.support.providers.openai_chat import FakeCompatible
from tests.support.providers.server import Gate
from tests.support.proxy import Proxy
from tests.support.tools import GatedTool


async def test_a_chat_created_without_an_owner_is_acquired(dsn: str, api: FakeCompatible) -> None:
    async with engine_rig_with(dsn, api) as rig:
        rig.answer("hello")
        chat_id = await rig.create_unowned("hi")
        await rig.wait_chat_task_left(chat_id)
        assert await rig.transcript(chat_id) == ["user: hi", "assistant: hello"]


@pytest.mark.promise("P5")
@pytest.mark.promise("P10")
async def test_a_draining_replica_commits_its_step_and_another_continues(
    dsn: str, api: FakeCompatible, gate: Gate
) -> None:
    tools = [GatedTool(gate=gate)]
    async with engine_rig_with(dsn, api, tools=tools) as other:
        async with engine_rig_with(dsn, api, tools=tools) as drained:
            drained.call_tools(("c1", "echo", "{}"))
            other.answer("the end")
            chat_id = await drained.create("go")
            await gate.reached.wait()
            draining = drained.start_drain()
            await drained.events.wait("drain_started")
            gate.open()
            await draining
        await other.wait_chat_task_left(chat_id)
        assert await other.transcript(chat_id) == [
            "user: go",
            "assistant: echo(c1)",
            "tool: result(c1) {'output': 'said {}'}",
            "assistant: the end",
        ]
        assert len(api.requests) == 2


@pytest.mark.covers("F12")
@pytest.mark.promise("P2")
@pytest.mark.promise("P3")
@pytest.mark.promise("P6")
@pytest.mark.stock_server
async def test_the_chat_of_a_disconnected_replica_is_run_by_another(
    dsn: str, proxy: Proxy, api: FakeCompatible, gate: Gate
) -> None:
    """Other replicas take it for dead; its writes are refused when it is connected again."""
    async with engine_rig_with(dsn, api, worker=SHORT_DRAIN) as survivor:
        async with engine_rig_with(proxy.dsn, api) as victim:
            chat_id = await victim.ask("go", "half an ans", gate)
            survivor.answer("a whole answer")
            proxy.disconnect()
            chat = await survivor.wait_chat_task_left(chat_id)
            assert chat.state == "W"
            proxy.refuse(new=False)
            gate.open()
            await victim.events.wait("chat_task_left", chat_id=chat_id)
        assert await survivor.transcript(chat_id) == ["user: go", "assistant: a whole answer"]


@pytest.mark.covers("T10")
@pytest.mark.promise("P4")
async def test_an_interrupt_keeps_the_live_parts_of_a_dead_replica(
    dsn: str, proxy: Proxy, api: FakeCompatible, gate: Gate
) -> None:
    async with (
        engine_rig_with(dsn, api, worker=SHORT_DRAIN) as survivor,
        engine_rig_with(proxy.dsn, api, worker=SHORT_DRAIN) as victim,
    ):
        chat_id = await victim.ask("go", "half an ans", gate)
        await survivor.wait_journaled(chat_id)
        proxy.disconnect()
        await survivor.interrupt(chat_id)
        chat = await survivor.wait_chat_task_left(chat_id)
        assert chat.state == "W"
        assert await survivor.transcript(chat_id) == ["user: go", "assistant: half an ans"]


@pytest.mark.covers("F5")
@pytest.mark.promise("P4")
async def test_an_interrupt_keeps_the_live_parts_over_several_dead_workers(
    dsn: str, proxy: Proxy, api: FakeCompatible
) -> None:
    """Every worker that takes over the interrupt victim before it stores anything."""
    async with engine_rig_with(dsn, api, worker=NO_SLOTS) as observer:
        async with engine_rig_with(proxy.dsn, api, worker=SHORT_DRAIN) as victim:
            gate = Gate()
            chat_id = await victim.ask("go", "half an ans", gate)
            await observer.wait_journaled(chat_id)
            proxy.disconnect()
            await observer.interrupt(chat_id)
            await observer.reap_owner(chat_id)
            for number in range(1, 6):
                (acquired,) = await workers.acquire(
                    observer.pool, WorkerId(UUID(int=number)), roots=1, children=0
                )
                assert acquired.id == chat_id
                await observer.reap_owner(chat_id)
        async with engine_rig_with(dsn, api) as survivor:
            chat = await survivor.wait_chat_task_left(chat_id)
        assert chat.state == "W"
        assert await observer.transcript(chat_id) == ["user: go", "assistant: half an ans"]


@pytest.mark.promise("P4")
async def test_an_interrupt_of_an_orphaned_pending_chat_keeps_its_live_parts(
    dsn: str, proxy: Proxy, api: FakeCompatible
) -> None:
    """The worker was reaped and no other has acquired the chat. A message that replaces the turn
    waits until the live parts are stored."""
    async with engine_rig_with(dsn, api, worker=NO_SLOTS) as observer:
        async with engine_rig_with(proxy.dsn, api, worker=SHORT_DRAIN) as victim:
            interrupted, replaced, promoted = [
                await start_answer(victim, observer) for _ in range(3)
            ]
            proxy.disconnect()
            for chat_id in (interrupted, replaced, promoted):
                await observer.reap_owner(chat_id)
                assert (await observer.chat(chat_id)).public_status == "pending"
            await observer.interrupt(interrupted)
            await observer.send(replaced, "next", "interrupt")
            await observer.send(promoted, "next")
            await observer.promote(promoted, 1)
            # Extend the deadlines: on a busy machine the next replica may start slowly.
            await observer.pool.execute(
                "UPDATE chats SET interrupt_deadline = now() + interval '10 min'"
                " WHERE interrupt_deadline IS NOT NULL"
            )
        async with engine_rig_with(dsn, api) as survivor:
            survivor.answer("to it")
            survivor.answer("to it")
            for chat_id in (interrupted, replaced, promoted):
                assert (await survivor.wait_chat_task_left(chat_id)).state == "W"
        kept = ["user: go", "assistant: half an ans"]
        assert await observer.transcript(interrupted) == kept
        for chat_id in (replaced, promoted):
            transcript = await observer.transcript(chat_id)
            assert transcript == [*kept, "user: next", "assistant: to it"]


@pytest.mark.promise("P4")
@pytest.mark.parametrize("said", ["", "half"])
async def test_an_interrupt_of_a_takeover_keeps_what_the_dead_worker_said(
    dsn: str, proxy: Proxy, api: FakeCompatible, gate: Gate, said: str
) -> None:
    """The next attempt drops nothing of the one before until it has said as much itself."""
    async with (
        engine_rig_with(dsn, api, worker=SHORT_DRAIN) as survivor,
        engine_rig_with(proxy.dsn, api, worker=SHORT_DRAIN) as victim,
    ):
        chat_id = await victim.ask("go", "half an ans", gate)
        await survivor.wait_journaled(chat_id)
        again = Gate()
        survivor.answer(*([said] if said else []), again, "rest")
        proxy.disconnect()
        await survivor.reap_owner(chat_id)
        await again.reached.wait()
        if said:
            await survivor.wait_shown(chat_id, said)
        await survivor.interrupt(chat_id)
        assert (await survivor.wait_chat_task_left(chat_id)).state == "W"
        assert await survivor.transcript(chat_id) == ["user: go", "assistant: half an ans"]


@pytest.mark.promise("P4")
async def test_an_interrupt_keeps_what_two_dead_workers_said(
    dsn: str, proxy: Proxy, api: FakeCompatible
) -> None:
    """Both died; the second had said less than the first."""
    async with engine_rig_with(dsn, api, worker=NO_SLOTS) as observer:
        async with engine_rig_with(proxy.dsn, api, worker=SHORT_DRAIN) as victim:
            chat_id = await start_answer(victim, observer)
            proxy.disconnect()
            await observer.reap_owner(chat_id)
            (acquired,) = await workers.acquire(
                observer.pool, WorkerId(UUID(int=1)), roots=1, children=0
            )
            assert (acquired.id, acquired.attempt) == (chat_id, 2)
            await observer.interrupt(chat_id)
            await observer.reap_owner(chat_id)
        async with engine_rig_with(dsn, api) as survivor:
            assert (await survivor.wait_chat_task_left(chat_id)).state == "W"
        assert await observer.transcript(chat_id) == ["user: go", "assistant: half an ans"]


@pytest.mark.promise("P4")
async def test_an_interrupt_during_a_retry_of_a_takeover_keeps_what_the_dead_worker_said(
    dsn: str, proxy: Proxy, api: FakeCompatible, gate: Gate
) -> None:
    """The takeover's own call failed before it said anything, and the chat waits."""
    async with (
        engine_rig_with(dsn, api, worker=SHORT_DRAIN) as survivor,
        engine_rig_with(proxy.dsn, api, worker=SHORT_DRAIN) as victim,
    ):
        chat_id = await victim.ask("go", "half an ans", gate)
        await survivor.wait_journaled(chat_id)
        api.reply(503, {"error": {"message": "busy"}})
        proxy.disconnect()
        await survivor.reap_owner(chat_id)
        await survivor.events.wait("model_failed", chat_id=chat_id)
        await survivor.wait_state(chat_id, "P0")
        await survivor.interrupt(chat_id)
        await survivor.wait_state(chat_id, "W")
        assert await survivor.transcript(chat_id) == ["user: go", "assistant: half an ans"]


async def start_answer(rig: EngineRig, others: EngineRig) -> ChatId:
    """A chat with an unfinished answer that is in the journal as far as it goes."""
    gate = Gate()
    chat_id = await rig.ask("go", "half an ans", gate)
    await others.wait_journaled(chat_id)
    return chat_id


async def test_an_idle_replica_drains_at_once(rig: EngineRig) -> None:
    await rig.start_drain()
    assert rig.replica.worker.running == 0
