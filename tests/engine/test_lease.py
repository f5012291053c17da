"""What an old lease allows, and what a worker must do before it takes anything. The clock is the
test's; the database's own clock runs on."""

import asyncio

import pytest

from chatd.domain.lease import LEASE_TTL_S, NO_NEW_WORK_AFTER_S
from chatd.engine.lease import WorkerLease
from tests.support.clock import FakeClock
from tests.support.eventually import eventually
from tests.support.house import House, a_house_with, let_pass, wound
from tests.support.providers.openai_chat import FakeCompatible
from tests.support.providers.server import Gate
from tests.support.proxy import Proxy
from tests.support.tools import GatedTool


async def cut_off(house: House, proxy: Proxy, clock: FakeClock, seconds: float) -> None:
    """Without its database for so long."""
    proxy.refuse(new=True)
    proxy.cut()
    clock.advance(1)
    await house.events.wait("heartbeat_failed")
    clock.advance(seconds - 1)


@pytest.mark.covers("F12")
@pytest.mark.promise("P3")
async def test_with_an_old_lease_no_model_is_called(
    dsn: str, clock: FakeClock, proxy: Proxy
) -> None:
    """Nor is a tool begun: of two answers the second is not asked for."""
    gate = Gate()
    tools = [GatedTool(gate=gate)]
    async with (
        FakeCompatible.running() as api,
        a_house_with(proxy.dsn, api, clock=clock, tools=tools) as house,
    ):
        house.calls(("c1", "echo", "{}"))
        house.says("after the break")
        chat_id = await house.create("go")
        await gate.reached.wait()
        house.replica.lease.renew(clock.monotonic() - NO_NEW_WORK_AFTER_S)
        with house.replica.worker.reserve_slot(root=True) as free:
            assert free is None
        gate.open()
        await house.events.wait("step_committed", snapshot_version=3)
        assert len(api.requests) == 1
        await let_pass(clock, 1)
        assert (await house.rests(chat_id)).state == "W"
        assert len(api.requests) == 2


@pytest.mark.covers("F12", "F22", "T19")
@pytest.mark.promise("P3")
async def test_with_a_lost_lease_everything_stops_and_goes_on_when_it_is_back(
    dsn: str, clock: FakeClock, proxy: Proxy
) -> None:
    gate = Gate()
    async with (
        FakeCompatible.running() as api,
        a_house_with(proxy.dsn, api, clock=clock) as house,
    ):
        house.says("half", gate)
        chat_id = await house.create("go")
        await gate.reached.wait()
        await cut_off(house, proxy, clock, LEASE_TTL_S)
        await house.events.wait("lease_lost")
        await house.events.wait("runner_left", chat_id=chat_id)
        await api.requests[0].disconnected.wait()
        house.says("whole")
        proxy.refuse(new=False)
        # Nobody else was there to take it: seen twice, it is given back and taken again.
        async with wound(clock):
            chat = await house.rests(chat_id, epoch=3)
        assert chat.state == "W"
        assert await house.transcript(chat_id) == ["user: go", "assistant: whole"]


async def test_a_worker_takes_nothing_before_it_has_registered(dsn: str, proxy: Proxy) -> None:
    """Others would take it for dead, and what it runs for left behind."""
    async with FakeCompatible.running() as api, a_house_with(dsn, api) as house:
        replica = house.another(proxy.dsn)
        proxy.stall()
        async with replica.running():
            with replica.worker.reserve_slot(root=True) as free:
                assert free is None
            assert not replica.worker.registered.is_set()
            proxy.resume()
            async with asyncio.timeout(30):
                await replica.worker.registered.wait()
            with replica.worker.reserve_slot(root=True) as free:
                assert free == replica.me


async def test_a_lease_is_as_old_as_the_question_not_the_answer(clock: FakeClock) -> None:
    lease = WorkerLease(clock)
    assert lease.health == "no_new_work"
    asked = clock.monotonic()
    clock.advance(NO_NEW_WORK_AFTER_S)
    lease.renew(asked)
    assert lease.health == "no_new_work"


@pytest.mark.covers("T07")
async def test_a_tick_that_is_not_answered_is_given_up_and_another_one_made(
    dsn: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chatd.engine.lease.HEARTBEAT_TIMEOUT_S", 0.5)
    async with (
        FakeCompatible.running() as api,
        a_house_with(dsn, api) as other,
        a_house_with(proxy.dsn, api) as house,
    ):
        proxy.strand()
        await house.events.wait("heartbeat_failed", error_kind="timeout")
        since = await other.pool.fetchval("SELECT now()")

        async def renewed() -> bool:
            return await other.pool.fetchval(
                "SELECT renewed_at > $2 FROM chat_workers WHERE worker_id = $1",
                house.replica.me,
                since,
            )

        await eventually(renewed)
        proxy.cut()


async def test_failing_ticks_are_counted_and_their_end_is_told(
    dsn: str, clock: FakeClock, proxy: Proxy
) -> None:
    """An operator reads of the first and of the end; the others would fill the log."""
    async with (
        FakeCompatible.running() as api,
        a_house_with(proxy.dsn, api, clock=clock) as house,
        wound(clock),
    ):
        proxy.refuse(new=True)
        proxy.cut()
        await house.events.wait("heartbeat_failed", failures=2)
        proxy.refuse(new=False)
        back = await house.events.wait("database_recovered")
        failures = [
            fields["failures"] for name, fields in house.events.seen if name == "heartbeat_failed"
        ]
        assert failures == list(range(1, len(failures) + 1))
        assert back == {"failed_ticks": len(failures)}
