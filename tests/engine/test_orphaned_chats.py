"""Orphaned chats, chats that crash their workers, and owned chats without a runner."""

import asyncio
from uuid import UUID

import pytest
from msgspec.structs import replace

from chatd.domain.chat import user_transitions
from chatd.domain.chat.commands import ReapChat
from chatd.domain.chat.lease import (
    DEATHS_TO_ISOLATE,
    MAX_LONE_DEATHS,
    OWN_HEARTBEATS_TO_REAP_LEASES_S,
)
from chatd.domain.ids import ChatId, WorkerId
from chatd.domain.ports import Env
from chatd.engine.lease import ChatReaper
from chatd.engine.model.attempt import Committer
from chatd.engine.model.call_records import UsageWriter
from chatd.store.chat import chats, workers
from chatd.store.chat.transactor import Transactor
from chatd.store.database.conn import ConnectConfig
from chatd.store.database.pool import Pool, PoolConfig
from tests.support.clock import FakeClock
from tests.support.engine_rig import (
    NO_SLOTS,
    EngineRig,
    Events,
    advancing,
    change_id,
    engine_rig,
    engine_rig_with,
)
from tests.support.factories import QUIET_HEARTBEAT, WORKER
from tests.support.outcomes import present
from tests.support.providers.openai_chat import FakeCompatible
from tests.support.providers.server import Gate
from tests.support.store import AppliedRecorder, open_chat, session_to, write
from tests.support.stored import stored


async def orphan(
    rig: EngineRig, chat_id: ChatId, *, lone_deaths: int = 0, uptime_s: float = 60
) -> None:
    """Assign the chat to a worker that is registered but holds no lock and has an old lease. With
    `lone_deaths` the chat is isolated."""
    dead = WorkerId(UUID(int=chat_id.int ^ 1))
    await rig.pool.execute(
        """INSERT INTO chat_workers (worker_id, lock_key, started_at, renewed_at, lease_until)
           VALUES ($1, $2, now() - interval '1 h' - $3 * interval '1 s', now() - interval '1 h',
                   now() - interval '1 h')""",
        dead,
        workers.worker_lock_key(dead),
        uptime_s,
    )
    await rig.pool.execute(
        """UPDATE chats SET worker_id = $2, epoch = epoch + 1, attempt = attempt + 1,
               runnable_at = NULL, orphan_count = $3,
               setbacks = json_build_object('lone_deaths', $4::int),
               snapshot_version = snapshot_version + 1,
               recent_changes = (ARRAY[0::bigint] || recent_changes)[1:8] WHERE id = $1""",
        chat_id,
        dead,
        lone_deaths + DEATHS_TO_ISOLATE if lone_deaths else 0,
        lone_deaths,
    )


@pytest.mark.promise("P2")
@pytest.mark.promise("P6")
async def test_the_chat_of_a_dead_worker_is_run_by_another(
    dsn: str, clock: FakeClock, api: FakeCompatible
) -> None:
    async with engine_rig_with(dsn, api, worker=NO_SLOTS) as rig:
        chat_id = await rig.create("go")
        await orphan(rig, chat_id)
    async with engine_rig_with(dsn, api, clock=clock) as rig, advancing(clock):
        rig.answer("here you are")
        assert (await rig.wait_chat_task_left(chat_id)).state == "W"
        assert await rig.transcript(chat_id) == ["user: go", "assistant: here you are"]
        assert await rig.pool.fetchval("SELECT count(*) FROM chat_workers") == 1


@pytest.mark.covers("F6")
async def test_a_chat_that_was_alone_in_too_many_deaths_fails_and_no_other(
    dsn: str, clock: FakeClock, api: FakeCompatible
) -> None:
    """The same deaths of a worker that died soon after its start are blamed on no chat."""
    async with engine_rig_with(dsn, api, worker=NO_SLOTS) as rig:
        bad, good = await rig.create("bad"), await rig.create("good")
        await orphan(rig, bad, lone_deaths=MAX_LONE_DEATHS - 1)
        await orphan(rig, good, lone_deaths=MAX_LONE_DEATHS - 1, uptime_s=2)
    async with engine_rig_with(dsn, api, clock=clock) as rig, advancing(clock):
        rig.answer("fine")
        chat = await rig.wait_state(bad, "E0")
        assert chat.last_error is not None
        assert chat.last_error.kind == "crashed"
        await rig.events.wait("chat_reaped", chat_id=good)
        await make_overdue(rig)
        await rig.wait_chat_task_left(good)
        assert (await rig.chat(good)).state == "W"
        assert len(api.requests) == 1


@pytest.mark.covers("F6")
@pytest.mark.promise("P2")
async def test_a_chat_that_stalls_its_workers_fails_unless_the_database_may_have_stalled_them(
    dsn: str, clock: FakeClock, api: FakeCompatible
) -> None:
    """A worker that no longer renews its lease but holds its lock is stalled. Only if the reaper
    saw it renew was it not an outage of the database that stopped it."""
    async with engine_rig_with(dsn, api, worker=NO_SLOTS) as rig:
        bad, innocent = await rig.create("stall"), await rig.create("wait")
        for chat_id in (bad, innocent):
            await orphan(rig, chat_id, lone_deaths=MAX_LONE_DEATHS - 1)
        stalled, frozen = [present((await rig.chat(it)).worker_id) for it in (bad, innocent)]
    slow = replace(NO_SLOTS, heartbeat_interval_s=4.0)
    async with (
        session_to(dsn) as locks,
        engine_rig_with(dsn, api, clock=clock, worker=slow) as rig,
    ):
        for worker in (stalled, frozen):
            await locks.execute("SELECT pg_advisory_lock($1)", workers.worker_lock_key(worker))
        await rig.replica.worker.registered.wait()
        await rig.pool.execute(
            "UPDATE chat_workers SET renewed_at = now() WHERE worker_id = $1", stalled
        )
        beats = round(OWN_HEARTBEATS_TO_REAP_LEASES_S / slow.heartbeat_interval_s) + 3
        for _ in range(beats):
            await clock.wait_for_sleeper("heartbeat")
            clock.advance(slow.heartbeat_interval_s)
        await rig.events.wait("chat_reaped", chat_id=bad)
        await rig.events.wait("chat_reaped", chat_id=innocent)
        blamed = await rig.chat(bad)
        assert (blamed.state, present(blamed.last_error).kind) == ("E0", "crashed")
        chat = await rig.chat(innocent)
        assert (chat.state, present(chat.setbacks).lone_deaths) == ("P0", MAX_LONE_DEATHS - 1)


async def make_overdue(rig: EngineRig) -> None:
    """All waiting chats have been due for long."""
    await rig.pool.execute(
        "UPDATE chats SET runnable_at = now() - interval '1 min' WHERE runnable_at IS NOT NULL"
    )


@pytest.mark.promise("P2")
async def test_deaths_of_workers_that_ran_many_chats_put_none_into_error(
    dsn: str, clock: FakeClock, api: FakeCompatible
) -> None:
    """One process runs three chats and dies five times."""
    async with engine_rig_with(dsn, api, worker=NO_SLOTS) as rig:
        chat_ids = [await rig.create("go") for _ in range(3)]
        for number in range(1, 6):
            dead = WorkerId(UUID(int=number << 100))
            await rig.pool.execute(
                """UPDATE chats SET worker_id = $1, epoch = epoch + 1, attempt = attempt + 1,
                       runnable_at = NULL, snapshot_version = snapshot_version + 1""",
                dead,
            )
            for chat_id in chat_ids:
                command = ReapChat(worker_ids=frozenset({dead}))
                assert (await rig.run(chat_id, command)).state == "P0"
        assert {(await rig.chat(chat_id)).orphan_count for chat_id in chat_ids} == {5}
        await make_overdue(rig)
    async with engine_rig_with(dsn, api, clock=clock) as rig, advancing(clock):
        for _ in chat_ids:
            rig.answer("fine")
        for chat_id in chat_ids:
            chat = await rig.wait_state(chat_id, "W")
            assert (chat.orphan_count, chat.setbacks) == (0, None)


@pytest.mark.promise("P2")
async def test_a_worker_runs_one_isolated_chat_at_a_time(
    dsn: str, clock: FakeClock, api: FakeCompatible
) -> None:
    async with engine_rig_with(dsn, api, worker=NO_SLOTS) as rig:
        first, second = await rig.create("one"), await rig.create("two")
        await rig.pool.execute("UPDATE chats SET orphan_count = 2")
        await make_overdue(rig)
    gate = Gate()
    async with engine_rig_with(dsn, api, clock=clock) as rig, advancing(clock):
        rig.answer("first", gate)
        rig.answer("second")
        await gate.reached.wait()
        ordinary = await rig.ask("and me?", "of course")
        assert (await rig.wait_chat_task_left(ordinary)).state == "W"
        assert sorted([(await rig.chat(it)).state for it in (first, second)]) == ["P0", "R0"]
        gate.open()
        for chat_id in (first, second):
            await rig.wait_state(chat_id, "W")


async def test_reaping_many_chats_does_not_delay_heartbeats(
    dsn: str, clock: FakeClock, api: FakeCompatible
) -> None:
    """The reaper runs beside the heartbeat."""
    async with engine_rig_with(dsn, api, worker=NO_SLOTS) as rig:
        chat_ids = [await rig.create("go") for _ in range(60)]
        for chat_id in chat_ids:
            await orphan(rig, chat_id, lone_deaths=MAX_LONE_DEATHS - 1)
    async with engine_rig_with(dsn, api, clock=clock, worker=NO_SLOTS) as rig, advancing(clock):
        for chat_id in chat_ids:
            await rig.wait_state(chat_id, "E0")
        failures = [name for name, _ in rig.events.seen if name == "heartbeat_failed"]
        assert failures == []


@pytest.mark.promise("P2")
async def test_a_locked_row_does_not_delay_other_orphaned_chats(dsn: str, clock: FakeClock) -> None:
    """Of two orphaned chats, another session locks the one that comes first."""
    connect = ConnectConfig(dsn=dsn, lock_timeout_s=0.05)
    pool, events = Pool(PoolConfig(connect=connect)), Events()
    env = Env(clock=clock, emit=events, new_id=lambda: WORKER, new_change_id=change_id)
    committer = Committer(Transactor(pool, AppliedRecorder()), env)
    reaper = ChatReaper(
        pool, committer, WorkerId(UUID(int=0)), env, usage_writer=UsageWriter(pool, env)
    )
    held, other = [await open_chat(pool, number, free=WORKER) for number in (1, 2)]
    orphaned = (held.id, other.id)
    result = replace(QUIET_HEARTBEAT, dead=frozenset({WORKER}), orphaned=orphaned)
    reaping = asyncio.get_running_loop().create_task(reaper.run())
    try:
        async with session_to(dsn) as session, session.transaction():
            await chats.lock(session, held.id)
            reaper.on_heartbeat(result)
            await events.wait("reap_failed")
            reaper.on_heartbeat(result)
            await events.wait("chat_reaped", chat_id=other.id)
            assert await states(pool) == {held.id: "R0", other.id: "P0"}
        reaper.on_heartbeat(result)
        await events.wait("chat_reaped", chat_id=held.id)
    finally:
        reaping.cancel()
        await pool.close()


async def states(pool: Pool) -> dict[ChatId, str]:
    return {chat_id: found.chat.state for chat_id, found in (await stored(pool)).items()}


async def test_the_interrupt_of_a_dead_worker_is_finished_by_another(
    dsn: str, clock: FakeClock, api: FakeCompatible
) -> None:
    async with engine_rig_with(dsn, api, worker=NO_SLOTS) as rig:
        chat_id = await rig.create("go")
        await orphan(rig, chat_id)
        assert (await rig.interrupt(chat_id)).state == "I0"
    async with engine_rig_with(dsn, api, clock=clock) as rig, advancing(clock):
        assert (await rig.wait_state(chat_id, "W")).worker_id is None
        assert await rig.transcript(chat_id) == ["user: go"]
        assert api.requests == []


@pytest.mark.covers("T14")
@pytest.mark.promise("P2")
async def test_an_owned_chat_without_a_runner_is_released_and_acquired_again(dsn: str) -> None:
    """As after a lost reply to the write that set the owner."""
    async with engine_rig(dsn) as rig:
        rig.answer("found")
        async with session_to(dsn) as session:
            command = rig.command("hi")
            await write(session, user_transitions.create(command, rig.replica.worker_id))
        assert (await rig.wait_state(command.id, "W")).epoch > 1
        await rig.events.wait("unknown_chat_released", chat_id=command.id)
        assert await rig.transcript(command.id) == ["user: hi", "assistant: found"]


@pytest.mark.covers("F6")
async def test_a_chat_with_a_runner_that_crashes_repeatedly_fails(rig: EngineRig) -> None:
    """The first chat can store its error, and its usage is recorded. The second cannot store any
    error but `crashed`."""
    for _ in range(MAX_LONE_DEATHS + 1):
        rig.answer("unwritable")
    await rig.pool.execute(
        """CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
           $$ BEGIN RAISE EXCEPTION 'refused'; END $$"""
    )
    try:
        await rig.pool.execute(
            """CREATE TRIGGER refuse_too BEFORE INSERT ON chat_messages FOR EACH ROW
               WHEN (NEW.role = 'assistant') EXECUTE FUNCTION refuse()"""
        )
        first = await rig.wait_chat_task_left(await rig.create("hi"))
        assert (first.state, await rig.recorded_usage()) == ("E0", [("turn", False, "estimated")])
        await rig.pool.execute(
            """CREATE TRIGGER refuse BEFORE UPDATE ON chats FOR EACH ROW
               WHEN (NEW.last_error->>'kind' <> 'crashed')
               EXECUTE FUNCTION refuse()"""
        )
        chat_id = await rig.create("hi")
        while (await rig.wait_state(chat_id, "E0", "P0")).state != "E0":
            await make_overdue(rig)
        chat = await rig.chat(chat_id)
    finally:
        await rig.pool.execute("DROP FUNCTION refuse CASCADE")
    assert chat.last_error is not None
    assert chat.last_error.kind == "crashed"
    assert len(rig.api.requests) == MAX_LONE_DEATHS + 1


@pytest.mark.covers("F21")
@pytest.mark.promise("P3")
async def test_a_chat_acquired_under_a_new_epoch_has_one_runner(rig: EngineRig, gate: Gate) -> None:
    """An edit on the same replica acquires the chat again while the old runner still runs."""
    rig.answer("old", gate)
    chat_id = await rig.ask("old", "new")
    await gate.reached.wait()
    await rig.edit(chat_id, "new")
    assert rig.replica.worker.running == 1
    await rig.wait_chat_task_left(chat_id, epoch=1)
    await rig.wait_chat_task_left(chat_id, epoch=2)
    assert rig.replica.worker.running == 0
    assert await rig.transcript(chat_id) == ["user: new", "assistant: new"]


async def test_a_deleted_chat_ends_its_runner(rig: EngineRig, gate: Gate) -> None:
    chat_id = await rig.ask("hi", "to whom?", gate)
    await rig.pool.execute("DELETE FROM chats WHERE id = $1", chat_id)
    await rig.events.wait("chat_task_left", chat_id=chat_id)
    await rig.api.requests[0].disconnected.wait()
