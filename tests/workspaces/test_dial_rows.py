"""Dials that meet real rows: a workspace that goes away meanwhile, and one that is elsewhere."""

import asyncio

import pytest

from chatd.domain.chat.row import Fence
from chatd.domain.chat.states import State
from chatd.domain.workspace.agent_api import WorkspaceUnavailable
from chatd.domain.workspace.entities import AgentRow, Endpoint
from chatd.store.pool import Pool
from chatd.store.workspace import agents, bindings, builds
from chatd.store.workspace.build_leases import BuildResult
from chatd.workspaces.agent_wire import OnBehalf
from chatd.workspaces.binding_rows import BindingRows
from chatd.workspaces.client import AgentClient
from chatd.workspaces.connecting import Means, TurnConnection
from chatd.workspaces.dials import Dials
from chatd.workspaces.transport import Dialled, Transport
from tests.support.clock import FakeClock
from tests.support.factories import CHAT
from tests.support.seeds import Seed
from tests.support.store import plant_in
from tests.support.workspaces import (
    agent_id,
    agent_spec,
    build_id,
    finish,
    new_build,
    plant_for,
    plant_template,
    workspace_id,
)


async def bound_chat(pool: Pool) -> None:
    """With a workspace that runs on another host than the one that is meant by "here"."""
    await plant_template(pool)
    fence = Fence.of(await plant_in(pool, Seed(state=State.R0, calls="local")))
    await plant_for(pool, CHAT, fence)
    there = Endpoint(kind="unix", path="/nowhere", host_id="there")
    await finish(pool, BuildResult(status="succeeded", agents=(agent_spec(1, endpoints=(there,)),)))
    await bindings.save_bound_agent(
        pool, CHAT, workspace_id(1), build_id=build_id(1), agent_id=agent_id(1)
    )


async def test_a_workspace_that_is_deleted_during_the_dial_is_said_to_be(
    pool: Pool, clock: FakeClock
) -> None:
    await bound_chat(pool)

    async def never(row: AgentRow) -> Dialled[AgentClient]:
        await asyncio.Event().wait()
        raise AssertionError(row)

    means = Means(bindings=BindingRows(pool), dials=Dials(), open=never, clock=clock)
    turn = TurnConnection(means, OnBehalf(chat_id=CHAT))

    async def refused() -> None:
        with pytest.raises(WorkspaceUnavailable, match=r"is deleted\. .* create_workspace"):
            await turn.get()

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(refused())
        await clock.asleep_on("dial_delay")
        assert await builds.insert(pool, new_build(2, transition="delete")) is not None
        await finish(pool)
        await clock.pass_over("dial_delay")
    # The row of the agent it was bound to is still there; that is no reason to go on dialling.
    assert await agents.get(pool, agent_id(1)) is not None
    await turn.close()
    await means.dials.close()


async def test_a_workspace_on_another_host_is_for_the_user_to_hear_of(
    pool: Pool, clock: FakeClock
) -> None:
    await bound_chat(pool)
    here = Transport(secret=b"secret", host_id="here", clock=clock)
    means = Means(bindings=BindingRows(pool), dials=Dials(), open=here.open_agent, clock=clock)
    turn = TurnConnection(means, OnBehalf(chat_id=CHAT))
    with pytest.raises(WorkspaceUnavailable, match=r"on another host.*tell the user") as error:
        await turn.get()
    assert "start_workspace" not in error.value.message
    await turn.close()
