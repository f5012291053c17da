"""Reconciling rows with the host: a vanished workspace is shown as stopped, an unowned one is
removed, each after two observations."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import pytest

from chatd.domain.ids import WorkspaceId
from chatd.domain.workspace.agent_api import AgentUnreachable
from chatd.domain.workspace.entities import AgentHealth, AgentId, AgentRow, BackendState, Build
from chatd.domain.workspace.rules import agent_status
from chatd.store.database.pool import Pool
from chatd.store.workspace import builds, workspaces
from chatd.workspaces.agents.agent_monitor import AgentMonitor
from chatd.workspaces.build_backend import BuildFailed
from chatd.workspaces.build_maintenance import Reconciler
from tests.support.build_rig import FakeBackend
from tests.support.clock import FakeClock
from tests.support.factories import HARNESS
from tests.support.outcomes import present
from tests.support.stream_replica import Emitted, env_with
from tests.support.workspaces import (
    HOST,
    agent_id,
    agent_spec,
    build_id,
    finish,
    insert_template,
    insert_workspace,
    new_build,
    new_workspace,
    run_workspace,
    workspace_id,
)


def reconcile(
    pool: Pool, clock: FakeClock, backend: FakeBackend
) -> Callable[[], Awaitable[Sequence[WorkspaceId]]]:
    return partial(Reconciler(pool, env_with(clock), HOST).reconcile, backend)


async def running(pool: Pool, backend: FakeBackend) -> None:
    await run_workspace(pool)
    backend.sandboxes[workspace_id(1)] = 1


async def all_builds(pool: Pool) -> list[Build]:
    return await builds.list_builds(pool, HARNESS, workspace_id(1))


async def test_a_workspace_that_should_run_is_left_running(pool: Pool, clock: FakeClock) -> None:
    backend = FakeBackend()
    await running(pool, backend)
    look = reconcile(pool, clock, backend)
    for _ in range(3):
        await look()
    assert len(await all_builds(pool)) == 1
    assert backend.removed == []


@pytest.mark.parametrize("state", ["stopped", "gone"])
async def test_a_workspace_whose_sandbox_is_gone_is_shown_as_stopped(
    pool: Pool, clock: FakeClock, state: str
) -> None:
    backend = FakeBackend()
    await running(pool, backend)
    backend.observed[workspace_id(1)] = BackendState(state="gone" if state == "gone" else "stopped")
    look = reconcile(pool, clock, backend)
    await look()
    assert len(await all_builds(pool)) == 1
    await look()
    stop, start = await all_builds(pool)
    assert (stop.transition, stop.reason, stop.status) == ("stop", "autostop", "pending")
    [agent] = await pool.fetch("SELECT id, lifecycle, disconnected_at FROM workspace_agents")
    assert (agent["id"], agent["lifecycle"]) == (agent_id(1), "off")
    assert agent["disconnected_at"] is not None
    await look()
    await finish(pool)
    await look()
    assert len(await all_builds(pool)) == 2
    assert start.id == build_id(1)


async def test_two_replicas_of_a_host_ask_for_one_stop(pool: Pool, clock: FakeClock) -> None:
    backend = FakeBackend()
    await running(pool, backend)
    backend.sandboxes.clear()
    both = reconcile(pool, clock, backend), reconcile(pool, clock, backend)
    for look in (*both, *both):
        await look()
    assert len(await all_builds(pool)) == 2


async def test_an_unknown_backend_state_changes_nothing(pool: Pool, clock: FakeClock) -> None:
    class Blind(FakeBackend):
        async def inspect(self, workspace: object) -> BackendState:
            raise BuildFailed("no idea")

    for backend in (FakeBackend(), Blind()):
        await pool.execute("DELETE FROM workspaces")
        await running(pool, backend)
        backend.observed[workspace_id(1)] = BackendState(state="unknown")
        look = reconcile(pool, clock, backend)
        for _ in range(3):
            await look()
        assert len(await all_builds(pool)) == 1


async def test_a_sandbox_between_two_processes_is_not_gone(pool: Pool, clock: FakeClock) -> None:
    backend = FakeBackend()
    await running(pool, backend)
    look = reconcile(pool, clock, backend)
    for state in ("stopped", "running", "stopped", "running"):
        backend.observed[workspace_id(1)] = BackendState(state=state)
        await look()
    assert len(await all_builds(pool)) == 1


async def test_the_remains_of_a_deleted_workspace_are_removed(pool: Pool, clock: FakeClock) -> None:
    backend = FakeBackend()
    await running(pool, backend)
    await builds.insert(pool, HARNESS, new_build(2, transition="delete"))
    await finish(pool)
    backend.sandboxes[workspace_id(9)] = (
        1  # of another installation: without a row it must not be touched
    )
    look = reconcile(pool, clock, backend)
    await look()
    assert backend.removed == []
    await look()
    await look()
    assert backend.removed == [workspace_id(1)]
    assert set(backend.sandboxes) == {workspace_id(9)}


async def test_workspaces_of_other_hosts_are_not_checked(pool: Pool, clock: FakeClock) -> None:
    await insert_template(pool)
    await workspaces.create(pool, HARNESS, new_workspace(host_id="that-host"))
    await pool.execute(
        """UPDATE workspace_builds SET status = 'succeeded', completed_at = now(), attempt = 1"""
    )
    look = reconcile(pool, clock, FakeBackend())
    await look()
    await look()
    assert len(await all_builds(pool)) == 1


# Heartbeats


class Pinger:
    def __init__(self) -> None:
        self.pulses: dict[AgentId, AgentHealth] = {}
        self.emitted = Emitted()

    async def __call__(self, agent: AgentRow) -> AgentHealth:
        if agent.id not in self.pulses:
            raise AgentUnreachable("no agent there")
        return self.pulses[agent.id]

    def beat(self, pool: Pool, clock: FakeClock) -> AgentMonitor:
        return AgentMonitor(pool, self, env_with(clock, self.emitted), lambda: (HOST,))

    def told(self, event: str) -> int:
        return self.emitted.counts[event]


async def the_agent(pool: Pool) -> tuple[AgentRow, str]:
    found = present(await workspaces.get_with_time(pool, agent_id(1)))
    agent, now = found
    return agent, agent_status(agent, now)


async def test_an_agent_that_answers_is_connected_and_one_that_stops_is_not(
    pool: Pool, clock: FakeClock
) -> None:
    await run_workspace(pool)
    pinger = Pinger()
    beat = pinger.beat(pool, clock)
    await beat.check_agents()
    assert (await the_agent(pool))[1] == "connecting"
    pinger.pulses[agent_id(1)] = AgentHealth(boot_id="b1", lifecycle="starting")
    await beat.check_agents()
    pinger.pulses[agent_id(1)] = AgentHealth(boot_id="b1", directory="/home/me")
    await beat.check_agents()
    await beat.check_agents()
    agent, status = await the_agent(pool)
    assert (status, agent.lifecycle, agent.boot_id) == ("connected", "ready", "b1")
    assert agent.expanded_directory == "/home/me"
    assert pinger.told("agent_connected") == 2
    pinger.pulses.clear()
    await beat.check_agents()
    assert (await the_agent(pool))[1] == "connected"
    assert pinger.told("agent_disconnected") == 0
    await pool.execute(
        """UPDATE workspace_agents SET first_connected_at = now() - interval '2 minutes',
               last_connected_at = now() - interval '31 s'"""
    )
    await beat.check_agents()
    await beat.check_agents()
    agent, status = await the_agent(pool)
    assert status == "disconnected"
    assert pinger.told("agent_disconnected") == 1
    assert agent.disconnected_at is not None
    pinger.pulses[agent_id(1)] = AgentHealth(boot_id="b2")
    await beat.check_agents()
    agent, status = await the_agent(pool)
    assert (status, agent.disconnected_at) == ("connected", None)
    assert pinger.told("agent_connected") == 3


async def test_an_invalid_health_reply_does_not_affect_other_agents(
    pool: Pool, clock: FakeClock
) -> None:
    await insert_workspace(pool)
    await finish(
        pool, builds.BuildResult(status="succeeded", agents=(agent_spec(1), agent_spec(2)))
    )

    async def ping(agent: AgentRow) -> AgentHealth:
        if agent.id == agent_id(2):
            raise ValueError("nonsense")
        return AgentHealth(boot_id="b")

    await AgentMonitor(pool, ping, env_with(clock), lambda: (HOST,)).check_agents()
    assert (await the_agent(pool))[1] == "connected"


async def test_the_agents_of_a_stopped_workspace_are_not_asked(
    pool: Pool, clock: FakeClock
) -> None:
    await run_workspace(pool)
    await builds.insert(pool, HARNESS, new_build(2))
    await finish(pool)
    pinger = Pinger()
    pinger.pulses[agent_id(1)] = AgentHealth(boot_id="late")
    await pinger.beat(pool, clock).check_agents()
    assert (await the_agent(pool))[0].lifecycle == "off"
    await workspaces.record_agent_healthy(pool, pinger.pulses)
    assert (await the_agent(pool))[0].boot_id == ""
