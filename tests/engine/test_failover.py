"""A failover to a standby that lacks the last commits: their versions are used again.

Another past is never written over, and a runner of the lost past stops.
"""

import asyncio
from collections.abc import Callable

import pytest

from chatd.clock import SystemClock
from chatd.domain.chat.row import Chat, Fence
from chatd.domain.chat_views.events import Cursor
from chatd.domain.errors import StaleFence
from chatd.domain.ids import ChangeId, ToolCallId
from chatd.engine.kept_histories import KeptHistories
from chatd.engine.model.attempt import Attempt
from chatd.store import idempotency
from chatd.store.chat import chats, workers
from chatd.store.chat.change_writer import apply
from chatd.store.database.pool import Pool
from tests.support.client_state import read_state
from tests.support.domain.turn_decisions import says
from tests.support.engine_rig import NO_SLOTS, engine_rig_with
from tests.support.factories import HARNESS, WORKER
from tests.support.outcomes import present
from tests.support.providers.openai_chat import FakeCompatible
from tests.support.providers.server import Gate
from tests.support.proxy import Proxy
from tests.support.stand_by import stand_by
from tests.support.store import chat_id, open_chat, write
from tests.support.stream_replica import StreamClient, at
from tests.support.tools import GatedTool


@pytest.mark.covers("F11")
@pytest.mark.promise("P3")
async def test_a_change_decided_from_a_lost_past_is_refused(dsn: str, pool: Pool) -> None:
    chat = await open_chat(pool, 1, free=WORKER)
    async with stand_by(dsn) as standing:
        lost = (await write(pool, says("never was")(chat), 11)).chat
        await standing.take_over()
        kept = (await write(pool, says("is now")(chat), 12)).chat
    assert lost.snapshot_version == kept.snapshot_version
    assert await apply(pool, present(says("mixed")(lost)), ChangeId(13)) is None
    assert await apply(pool, present(says("mixed")(kept)), ChangeId(14)) is not None


@pytest.mark.promise("P3")
async def test_the_fence_of_a_lost_past_holds_for_no_other(dsn: str, pool: Pool) -> None:
    """Worker, epoch, status and history version are equal in both pasts."""
    chat = await open_chat(pool, 1, free=WORKER)
    async with stand_by(dsn) as standing:
        lost = (await write(pool, says("never was")(chat), 11)).chat
        await standing.take_over()
        kept = (await write(pool, says("is now")(chat), 12)).chat
    with pytest.raises(StaleFence):
        Fence.of(lost).check(kept)
    Fence.of(kept).check(kept)
    call = ToolCallId("c1")
    with pytest.raises(StaleFence):
        await idempotency.mark_tool_started(pool, kept.id, call, Fence.of(lost))
    assert await idempotency.mark_tool_started(pool, kept.id, call, Fence.of(kept))


async def test_no_model_is_asked_about_a_chat_that_the_database_has_lost(
    dsn: str, pool: Pool
) -> None:
    async with stand_by(dsn) as standing:
        lost = await open_chat(pool, 1, free=WORKER)
        await standing.take_over()
    attempt = Attempt(lost, WORKER, SystemClock(), asyncio.Event())
    with pytest.raises(StaleFence):
        await attempt.load_history(pool, KeptHistories())


async def test_acquiring_and_releasing_give_each_row_a_change_id_of_its_own(
    dsn: str, pool: Pool
) -> None:
    for number in (1, 2):
        await open_chat(pool, number)
    seen: set[ChangeId] = set()
    async with stand_by(dsn) as standing:
        for _ in range(2):
            acquired = await workers.acquire(pool, WORKER, roots=2, children=0)
            released = await workers.release(pool, WORKER)
            seen.update(chat.change_id for chat in (*acquired, *released))
            await standing.take_over()
    assert len(seen) == 8
    assert ChangeId(0) not in seen
    assert present(await chats.get(pool, HARNESS, chat_id(1))).snapshot_version == 1


@pytest.mark.covers("F11")
@pytest.mark.promise("P1")
@pytest.mark.promise("P3")
@pytest.mark.promise("P8")
async def test_a_failover_that_lost_commits_mixes_no_two_pasts(
    dsn: str, api: FakeCompatible, gate: Gate
) -> None:
    """A runner of the lost past stops, viewers on both replicas are reset, and so is a client that
    resumes from a lost version. The chat goes on from what is left."""
    late = Gate()
    async with (
        engine_rig_with(dsn, api) as rig,
        engine_rig_with(dsn, api, worker=NO_SLOTS) as other,
    ):
        chat = await rig.ask("go", "lost", gate)
        here, there, away = (StreamClient(chat) for _ in range(3))
        async with (
            stand_by(dsn) as standing,
            here.connected(rig.replica.feeds) as near,
            there.connected(other.replica.feeds) as far,
        ):
            gate.open()
            await rig.wait_chat_task_left(chat)
            rig.answer("lost too", late)
            lost = await rig.send(chat, "lost question")
            await late.reached.wait()
            await away.see(other.replica.feeds, at(lost.snapshot_version))
            for client, viewer in ((here, near), (there, far)):
                await client.watch(viewer, at(lost.snapshot_version))
            rig.answer("kept")
            rig.answer("kept too")
            await standing.take_over()
            await other.send(chat, "kept question")
            await rig.events.wait("chat_task_past_lost", chat_id=chat)
            late.open()
            await rig.wait_state(chat, "W")
            kept = await rig.chat(chat)
            for client, viewer in ((here, near), (there, far)):
                await client.watch(viewer, is_at(kept))
            await away.see(other.replica.feeds, is_at(kept))
        assert await rig.transcript(chat) == [
            "user: go",
            "assistant: kept",
            "user: kept question",
            "assistant: kept too",
        ]
        fresh = await read_state(rig.pool, chat)
        for client in (here, there, away):
            assert client.state.settled() == fresh


def is_at(chat: Chat) -> Callable[[StreamClient], bool]:
    return lambda client: client.last_id == str(Cursor.of(chat))


@pytest.mark.covers("F11")
@pytest.mark.promise("P3")
async def test_the_commit_of_a_runner_that_knows_nothing_of_the_failover_is_refused(
    dsn: str, proxy: Proxy, api: FakeCompatible, gate: Gate
) -> None:
    """It gets no hint. Its owner, epoch and version exist in the new past too."""
    asked = Gate()
    tools = [GatedTool(gate=gate)]
    async with (
        engine_rig_with(proxy.dsn, api, tools=tools) as rig,
        engine_rig_with(dsn, api, worker=NO_SLOTS, tools=tools) as other,
    ):
        proxy.deafen()
        rig.call_tools(("c1", "echo", "{}"), first=asked)
        chat = await rig.create("go")
        await asked.reached.wait()
        async with stand_by(dsn) as standing:
            asked.open()
            await gate.reached.wait()
            lost = await rig.chat(chat)
            await standing.take_over()
        kept = await other.send(chat, "kept question")
        same = (lost.snapshot_version, lost.worker_id, lost.epoch)
        assert (kept.snapshot_version, kept.worker_id, kept.epoch) == same
        rig.answer("kept")
        rig.answer("kept too")
        gate.open()
        await rig.wait_state(chat, "W")
        assert await other.transcript(chat) == [
            "user: go",
            "assistant: kept",
            "user: kept question",
            "assistant: kept too",
        ]
