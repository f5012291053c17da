"""Leases and heartbeats. The test owns the replica's clock; the database's clock runs on."""

import asyncio

import pytest

from chatd.aio import run_other_tasks
from chatd.domain.chat.lease import LEASE_TTL_S, UNANSWERED_NO_NEW_WORK_S, UNANSWERED_TTL_S
from chatd.engine.acquirer import SlotsConfig
from chatd.engine.lease import WorkerLease
from chatd.engine.worker import HEARTBEAT_INTERVAL_S, WorkerConfig
from tests.support.clock import FakeClock
from tests.support.engine_rig import EngineRig, advancing, engine_rig_with, pass_time
from tests.support.eventually import eventually
from tests.support.providers.openai_chat import FakeCompatible
from tests.support.providers.server import Gate
from tests.support.proxy import Proxy
from tests.support.tools import GatedTool

END_LISTENERS = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name LIKE '% listen'"""


async def disconnect(rig: EngineRig, proxy: Proxy, clock: FakeClock, seconds: float) -> None:
    """Disconnect the replica from its database for that long."""
    proxy.refuse(new=True)
    proxy.cut()
    clock.advance(1)
    await rig.events.wait("heartbeat_failed")
    clock.advance(seconds - 1)


@pytest.mark.covers("F12")
@pytest.mark.promise("P3")
async def test_a_worker_with_an_old_lease_calls_no_model(
    dsn: str, clock: FakeClock, proxy: Proxy, api: FakeCompatible, gate: Gate
) -> None:
    """It starts no tool either: the second of two model calls is not made."""
    tools = [GatedTool(gate=gate)]
    async with engine_rig_with(proxy.dsn, api, clock=clock, tools=tools) as rig:
        rig.call_tools(("c1", "echo", "{}"))
        chat_id = await rig.ask("go", "after the break")
        await gate.reached.wait()
        rig.replica.lease.renew(clock.monotonic() - UNANSWERED_NO_NEW_WORK_S)
        with rig.replica.worker.reserve_slot(root=True) as free:
            assert free is None
        gate.open()
        await rig.events.wait("step_committed", snapshot_version=3)
        assert len(api.requests) == 1
        await pass_time(clock, 1)
        assert (await rig.wait_chat_task_left(chat_id)).state == "W"
        assert len(api.requests) == 2


@pytest.mark.covers("F12", "F22", "T19")
@pytest.mark.promise("P3")
async def test_an_expired_lease_cancels_all_runners_and_a_renewed_one_continues(
    dsn: str, clock: FakeClock, proxy: Proxy, api: FakeCompatible, gate: Gate
) -> None:
    async with engine_rig_with(proxy.dsn, api, clock=clock) as rig:
        chat_id = await rig.ask("go", "half", gate)
        await disconnect(rig, proxy, clock, LEASE_TTL_S)
        await rig.events.wait("lease_lost")
        await rig.events.wait("chat_task_left", chat_id=chat_id)
        await api.requests[0].disconnected.wait()
        rig.answer("whole")
        proxy.refuse(new=False)
        # No other replica acquired it: reported unknown twice, it is released and acquired again.
        async with advancing(clock):
            chat = await rig.wait_chat_task_left(chat_id, epoch=3)
        assert chat.state == "W"
        assert await rig.transcript(chat_id) == ["user: go", "assistant: whole"]


@pytest.mark.promise("P3")
async def test_a_worker_that_gets_no_answer_gives_up_its_chats_before_others_take_them(
    dsn: str, clock: FakeClock, proxy: Proxy, api: FakeCompatible, gate: Gate
) -> None:
    async with engine_rig_with(proxy.dsn, api, clock=clock) as rig:
        chat_id = await rig.ask("go", "half", gate)
        await gate.reached.wait()
        proxy.stall()
        clock.advance(UNANSWERED_TTL_S)
        await rig.events.wait("lease_lost")
        await rig.events.wait("chat_task_left", chat_id=chat_id)
        await api.requests[0].disconnected.wait()
        proxy.resume()


async def test_a_refused_heartbeat_lengthens_the_lease_and_an_unanswered_one_shortens_it(
    clock: FakeClock,
) -> None:
    lease = WorkerLease(clock)
    lease.renew(clock.monotonic())
    lease.on_failure("database_down")
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        waiting = group.create_task(lease.wait_expired())
        await clock.wait_for_sleeper("lease")
        clock.advance(UNANSWERED_TTL_S + 1)
        await run_other_tasks()
        assert not waiting.done()
        lease.on_failure("timeout")


@pytest.mark.parametrize("kind", ["database_busy", "database_refused", "database_conflict"])
async def test_a_worker_that_alone_gets_no_session_loses_its_chats_as_early_as_others_take_them(
    clock: FakeClock, kind: str
) -> None:
    lease = WorkerLease(clock)
    lease.renew(clock.monotonic())
    lease.on_failure(kind)
    clock.advance(UNANSWERED_TTL_S)
    assert lease.health == "cancel_runs"


async def test_a_worker_reserves_no_slot_before_it_is_registered(
    dsn: str, proxy: Proxy, api: FakeCompatible
) -> None:
    """Other workers would take it for dead and its chats for orphaned."""
    async with engine_rig_with(dsn, api) as rig:
        replica = rig.new_replica(proxy.dsn)
        proxy.stall()
        async with replica.running():
            with replica.worker.reserve_slot(root=True) as free:
                assert free is None
            assert not replica.worker.registered.is_set()
            proxy.resume()
            async with asyncio.timeout(30):
                await replica.worker.registered.wait()
            with replica.worker.reserve_slot(root=True) as free:
                assert free == replica.worker_id


@pytest.mark.promise("P3")
async def test_an_idle_worker_that_loses_its_lock_renews_its_lease_at_once(
    dsn: str, clock: FakeClock, api: FakeCompatible
) -> None:
    """Others take a worker without its lock for dead sooner than an idle one renews by itself."""
    worker = WorkerConfig(slots=SlotsConfig(roots=1))
    async with engine_rig_with(dsn, api, clock=clock, worker=worker) as rig:
        # It renews at the interval of an idle worker once it may reap.
        while await clock.wait_for_sleeper("heartbeat") < HEARTBEAT_INTERVAL_S:
            await clock.advance_past("heartbeat")
        clock.advance(0.5)
        assert rig.replica.lease.age_s == 0.5
        await rig.replica.database.pool.execute(END_LISTENERS)

        async def is_renewed() -> bool:
            return rig.replica.lease.age_s == 0.0

        await eventually(is_renewed)


async def test_a_lease_counts_from_when_its_heartbeat_was_sent(clock: FakeClock) -> None:
    lease = WorkerLease(clock)
    assert lease.health == "no_new_work"
    sent_at = clock.monotonic()
    clock.advance(UNANSWERED_NO_NEW_WORK_S)
    lease.renew(sent_at)
    assert lease.health == "no_new_work"


@pytest.mark.covers("T07")
async def test_a_heartbeat_without_an_answer_times_out_and_is_sent_again(
    dsn: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, api: FakeCompatible
) -> None:
    monkeypatch.setattr("chatd.engine.lease.HEARTBEAT_TIMEOUT_S", 0.5)
    async with engine_rig_with(dsn, api) as other, engine_rig_with(proxy.dsn, api) as rig:
        proxy.strand()
        await rig.events.wait("heartbeat_failed", error_kind="timeout")
        since = await other.pool.fetchval("SELECT now()")

        async def renewed() -> bool:
            return await other.pool.fetchval(
                "SELECT renewed_at > $2 FROM chat_workers WHERE worker_id = $1",
                rig.replica.worker_id,
                since,
            )

        await eventually(renewed)
        proxy.cut()


async def test_failed_heartbeats_are_counted_and_the_recovery_is_reported(
    dsn: str, clock: FakeClock, proxy: Proxy, api: FakeCompatible
) -> None:
    """The first failure and the recovery are logged; the count tells how many there were."""
    async with engine_rig_with(proxy.dsn, api, clock=clock) as rig, advancing(clock):
        proxy.refuse(new=True)
        proxy.cut()
        await rig.events.wait("heartbeat_failed", failures=2)
        proxy.refuse(new=False)
        recovered = await rig.events.wait("database_recovered")
        failures = [
            fields["failures"] for name, fields in rig.events.seen if name == "heartbeat_failed"
        ]
        assert failures == list(range(1, len(failures) + 1))
        assert recovered == {"failed_ticks": len(failures)}
