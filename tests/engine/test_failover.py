"""A failover to a standby that lacks the last commits: their versions are used again.

Another past is never written over, and a runner of the lost past stops.
"""

import pytest

from chatd.domain.chat.row import Fence
from chatd.domain.errors import StaleFence
from chatd.domain.ids import ChangeId
from chatd.store.chat import chats, workers
from chatd.store.chat.change_writer import apply
from chatd.store.pool import Pool
from tests.support.domain.turn_decisions import says
from tests.support.engine_rig import NO_SLOTS, engine_rig_with
from tests.support.factories import WORKER
from tests.support.outcomes import present
from tests.support.providers.openai_chat import FakeCompatible
from tests.support.providers.server import Gate
from tests.support.stand_by import stand_by
from tests.support.store import chat_id, open_chat, write


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
    Fence.of(chat).check(chat)


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
    assert present(await chats.get(pool, chat_id(1))).snapshot_version == 1


@pytest.mark.covers("F11")
@pytest.mark.promise("P1")
@pytest.mark.promise("P3")
async def test_a_runner_of_a_lost_past_stops_and_the_chat_goes_on_from_what_is_left(
    dsn: str, api: FakeCompatible, gate: Gate
) -> None:
    late = Gate()
    async with (
        engine_rig_with(dsn, api) as rig,
        engine_rig_with(dsn, api, worker=NO_SLOTS) as other,
    ):
        chat = await rig.ask("go", "lost", gate)
        async with stand_by(dsn) as standing:
            gate.open()
            await rig.wait_runner_left(chat)
            rig.answer("lost too", late)
            await rig.send(chat, "lost question")
            await late.reached.wait()
            rig.answer("kept")
            rig.answer("kept too")
            await standing.take_over()
        await other.send(chat, "kept question")
        await rig.events.wait("runner_past_lost", chat_id=chat)
        late.open()
        await rig.wait_state(chat, "W")
        assert await rig.transcript(chat) == [
            "user: go",
            "assistant: kept",
            "user: kept question",
            "assistant: kept too",
        ]
