"""Chats whose worker died, chats that kill their workers, and chats that nobody knows of."""

import asyncio
from uuid import UUID

import pytest

from chatd.domain.chat import user_transitions
from chatd.domain.chat.row import MAX_WORKER_DEATHS
from chatd.domain.ids import ChatId, WorkerId
from chatd.domain.ports import Env
from chatd.engine.attempt import Committer
from chatd.engine.chat_reaper import ChatReaper
from chatd.engine.slots import SlotsConfig
from chatd.engine.worker import WorkerConfig
from chatd.store.chat import chats, workers
from chatd.store.chat.transactor import Transactor
from chatd.store.chat.workers import HeartbeatResult
from chatd.store.conn import ConnectConfig
from chatd.store.pool import Pool, PoolConfig
from tests.support.clock import FakeClock
from tests.support.factories import AT, WORKER
from tests.support.house import Events, House, a_house, a_house_with, change_id, wound
from tests.support.providers.openai_chat import FakeCompatible
from tests.support.providers.server import Gate
from tests.support.store import Told, open_chat, session_to, write
from tests.support.stored import stored

NO_ROOM = WorkerConfig(heartbeat_interval_s=0.2, slots=SlotsConfig(roots=0))


async def die_with(house: House, chat_id: ChatId, crashes: int = 0) -> None:
    """As if a worker had taken it and died: registered long ago, holding no lock."""
    ghost = WorkerId(UUID(int=chat_id.int ^ 1))
    await house.pool.execute(
        """INSERT INTO chat_workers (worker_id, lock_key, renewed_at, lease_until)
           VALUES ($1, $2, now() - interval '1 h', now() - interval '1 h')""",
        ghost,
        workers.worker_lock_key(ghost),
    )
    await house.pool.execute(
        """UPDATE chats SET worker_id = $2, epoch = epoch + 1, attempt = attempt + 1,
               runnable_at = NULL, orphan_count = $3, snapshot_version = snapshot_version + 1,
               recent_changes = (ARRAY[0::bigint] || recent_changes)[1:8] WHERE id = $1""",
        chat_id,
        ghost,
        crashes,
    )


@pytest.mark.promise("P2")
@pytest.mark.promise("P6")
async def test_what_the_dead_have_left_is_run(dsn: str, clock: FakeClock) -> None:
    async with FakeCompatible.running() as api:
        async with a_house_with(dsn, api, worker=NO_ROOM) as house:
            chat_id = await house.create("go")
            await die_with(house, chat_id)
        async with a_house_with(dsn, api, clock=clock) as house, wound(clock):
            house.says("here you are")
            assert (await house.rests(chat_id)).state == "W"
            assert await house.transcript(chat_id) == ["user: go", "assistant: here you are"]
            assert await house.pool.fetchval("SELECT count(*) FROM chat_workers") == 1


@pytest.mark.covers("F6")
async def test_a_chat_that_has_killed_too_many_workers_is_left_alone(
    dsn: str, clock: FakeClock
) -> None:
    async with FakeCompatible.running() as api:
        async with a_house_with(dsn, api, worker=NO_ROOM) as house:
            bad, good = await house.create("bad"), await house.create("good")
            await die_with(house, bad, crashes=MAX_WORKER_DEATHS)
            await die_with(house, good, crashes=MAX_WORKER_DEATHS - 1)
        async with a_house_with(dsn, api, clock=clock) as house, wound(clock):
            house.says("fine")
            chat = await house.until(bad, "E0")
            assert chat.last_error is not None
            assert chat.last_error.kind == "crashed"
            await house.rests(good)
            assert (await house.chat(good)).state == "W"
            assert len(api.requests) == 1


async def test_many_orphans_do_not_cost_the_living_their_lease(dsn: str, clock: FakeClock) -> None:
    """They are swept beside the tick."""
    async with FakeCompatible.running() as api:
        async with a_house_with(dsn, api, worker=NO_ROOM) as house:
            chat_ids = [await house.create("go") for _ in range(60)]
            for chat_id in chat_ids:
                await die_with(house, chat_id, crashes=MAX_WORKER_DEATHS)
        async with a_house_with(dsn, api, clock=clock, worker=NO_ROOM) as house, wound(clock):
            for chat_id in chat_ids:
                await house.until(chat_id, "E0")
            ticks = [name for name, _ in house.events.seen if name == "heartbeat_failed"]
            assert ticks == []


@pytest.mark.promise("P2")
async def test_a_chat_that_somebody_holds_on_to_does_not_keep_other_orphans_waiting(
    dsn: str, clock: FakeClock
) -> None:
    """Of two orphans the first that is come to is locked, for as long as it likes."""
    connect = ConnectConfig(dsn=dsn, lock_timeout_s=0.05)
    pool, events = Pool(PoolConfig(connect=connect)), Events()
    env = Env(clock=clock, emit=events, new_id=lambda: WORKER, new_change_id=change_id)
    committer = Committer(Transactor(pool, Told()), env)
    sweeper = ChatReaper(pool, committer, WorkerId(UUID(int=0)), env)
    held, other = [await open_chat(pool, number, free=WORKER) for number in (1, 2)]
    heard = HeartbeatResult(
        dead=frozenset({WORKER}),
        orphaned=(held.id, other.id),
        expired=(),
        unknown=(),
        lost=(),
        runnable=False,
        at=AT,
    )
    sweeping = asyncio.get_running_loop().create_task(sweeper.run())
    try:
        async with session_to(dsn) as somebody, somebody.transaction():
            await chats.lock(somebody, held.id)
            sweeper.on_heartbeat(heard)
            await events.wait("reap_failed")
            sweeper.on_heartbeat(heard)
            await events.wait("chat_reaped", chat_id=other.id)
            assert await states(pool) == {held.id: "R0", other.id: "P0"}
        sweeper.on_heartbeat(heard)
        await events.wait("chat_reaped", chat_id=held.id)
    finally:
        sweeping.cancel()
        await pool.close()


async def states(pool: Pool) -> dict[ChatId, str]:
    return {chat_id: found.chat.state for chat_id, found in (await stored(pool)).items()}


async def test_a_stop_that_a_dead_worker_owed_is_carried_out(dsn: str, clock: FakeClock) -> None:
    async with FakeCompatible.running() as api:
        async with a_house_with(dsn, api, worker=NO_ROOM) as house:
            chat_id = await house.create("go")
            await die_with(house, chat_id)
            assert (await house.interrupt(chat_id)).state == "I0"
        async with a_house_with(dsn, api, clock=clock) as house, wound(clock):
            assert (await house.until(chat_id, "W")).worker_id is None
            assert await house.transcript(chat_id) == ["user: go"]
            assert api.requests == []


@pytest.mark.covers("T14")
@pytest.mark.promise("P2")
async def test_a_chat_that_is_ours_by_the_row_and_known_to_nobody_is_not_stuck(dsn: str) -> None:
    """The answer to the write that took it was lost."""
    async with a_house(dsn) as house:
        house.says("found")
        async with session_to(dsn) as somebody:
            command = house.command("hi")
            await write(somebody, user_transitions.create(command, house.replica.me))
        assert (await house.until(command.id, "W")).epoch > 1
        await house.events.wait("unknown_chat_released", chat_id=command.id)
        assert await house.transcript(command.id) == ["user: hi", "assistant: found"]


@pytest.mark.covers("F6")
async def test_a_runner_that_crashes_again_and_again_ends_in_an_error(dsn: str) -> None:
    """Even saying what went wrong fails: nothing can be written but that it has crashed. Where
    it can be said, it is, and what it has cost too."""
    async with a_house(dsn) as house:
        for _ in range(MAX_WORKER_DEATHS + 2):
            house.says("unwritable")
        await house.pool.execute(
            """CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
               $$ BEGIN RAISE EXCEPTION 'refused'; END $$"""
        )
        try:
            await house.pool.execute(
                """CREATE TRIGGER refuse_too BEFORE INSERT ON chat_messages FOR EACH ROW
                   WHEN (NEW.role = 'assistant') EXECUTE FUNCTION refuse()"""
            )
            first = await house.rests(await house.create("hi"))
            assert (first.state, await house.booked()) == ("E0", [("turn", False, 0)])
            await house.pool.execute(
                """CREATE TRIGGER refuse BEFORE UPDATE ON chats FOR EACH ROW
                   WHEN (NEW.last_error->>'kind' <> 'crashed')
                   EXECUTE FUNCTION refuse()"""
            )
            chat_id = await house.create("hi")
            chat = await house.until(chat_id, "E0")
        finally:
            await house.pool.execute("DROP FUNCTION refuse CASCADE")
        assert chat.last_error is not None
        assert chat.last_error.kind == "crashed"
        assert len(house.api.requests) == MAX_WORKER_DEATHS + 2


@pytest.mark.covers("F21")
@pytest.mark.promise("P3")
async def test_a_chat_that_comes_back_under_a_new_epoch_has_one_runner(dsn: str) -> None:
    """An edit on the same replica takes the chat again while the old runner still runs."""
    gate = Gate()
    async with a_house(dsn) as house:
        house.says("old", gate)
        house.says("new")
        chat_id = await house.create("old")
        await gate.reached.wait()
        await house.edit(chat_id, "new")
        assert house.replica.worker.running == 1
        await house.rests(chat_id, epoch=1)
        await house.rests(chat_id, epoch=2)
        assert house.replica.worker.running == 0
        assert await house.transcript(chat_id) == ["user: new", "assistant: new"]


async def test_a_chat_that_is_deleted_is_not_run_any_more(dsn: str) -> None:
    gate = Gate()
    async with a_house(dsn) as house:
        house.says("to whom?", gate)
        chat_id = await house.create("hi")
        await gate.reached.wait()
        await house.pool.execute("DELETE FROM chats WHERE id = $1", chat_id)
        await house.events.wait("runner_left", chat_id=chat_id)
        await house.api.requests[0].disconnected.wait()
