"""Which agent a chat uses: its binding, the latest build, a workspace that changes meanwhile."""

import asyncio

import pytest
from msgspec.structs import replace

from chatd.domain.chat.row import Fence
from chatd.domain.chat.states import State
from chatd.domain.errors import Unavailable
from chatd.domain.workspace.agent_api import WorkspaceBinding, WorkspaceUnavailable
from chatd.domain.workspace.entities import AgentRow, Endpoint
from chatd.domain.workspace.rules import NoAgent
from chatd.store.database.pool import Pool
from chatd.store.workspace import bindings, builds, workspaces
from chatd.store.workspace.builds import BuildResult
from chatd.workspaces.agents import agent_access
from chatd.workspaces.agents.agent_access import AccessDeps, AgentAccess
from chatd.workspaces.agents.agent_client import AgentConnection
from chatd.workspaces.agents.agent_resolver import AgentConnector, StoredBindings
from tests.support import factories
from tests.support.clock import FakeClock
from tests.support.factories import HARNESS
from tests.support.seeds import Seed
from tests.support.store import insert_seed
from tests.support.workspaces import (
    agent_id,
    agent_spec,
    build_id,
    finish,
    insert_template,
    insert_workspace_for,
    new_build,
    new_workspace,
    no_other_host,
    workspace_id,
)
from tests.workspaces.agent_process import new_chat_id
from tests.workspaces.fake_agents import (
    AWAY,
    CHAT,
    FAR,
    FIRST,
    HOME,
    NOW,
    SECOND,
    AccessRig,
    tool_context,
)


@pytest.fixture
def rig(clock: FakeClock) -> AccessRig:
    """The chat has a workspace and no binding yet."""
    return AccessRig(clock)


@pytest.mark.covers("binding-4")
async def test_the_bound_agent_is_used_for_the_chat_under_its_epoch(rig: AccessRig) -> None:
    rig.bindings.bind(SECOND)
    await (await rig.client(epoch=7)).processes()
    [(row, request)] = rig.agents.requests
    assert row == SECOND
    assert request.headers == {"Chatd-Chat-Id": str(CHAT), "Chatd-Epoch": "7"}
    assert rig.bindings.calls == ["binding", "agent"]
    assert rig.used == [HOME]


@pytest.mark.covers("binding-4")
async def test_a_chat_without_a_binding_is_bound_to_the_latest_agent(rig: AccessRig) -> None:
    assert await rig.read() == FIRST
    assert rig.bindings.row.agent_id == FIRST.id
    assert rig.bindings.row.build_id == FIRST.build_id
    assert rig.bindings.calls == ["binding", "latest", "remember"]


@pytest.mark.covers("binding-4")
async def test_a_binding_to_an_agent_without_a_row_is_repaired(rig: AccessRig) -> None:
    rig.bindings.bind(SECOND)
    del rig.bindings.agents[SECOND.id]
    assert await rig.read() == FIRST
    assert rig.bindings.row.agent_id == FIRST.id


@pytest.mark.covers("binding-4")
async def test_a_bound_agent_of_another_workspace_is_not_used(rig: AccessRig) -> None:
    rig.bindings.row = WorkspaceBinding(chat_id=CHAT, workspace_id=HOME, agent_id=FAR.id)
    assert await rig.read() == FIRST


@pytest.mark.covers("binding-4")
async def test_a_new_binding_is_used_by_the_next_call(rig: AccessRig) -> None:
    rig.bindings.bind(SECOND)
    rig.agents.unreachable.add(SECOND.id)
    assert await rig.read() == FIRST
    assert rig.bindings.row.agent_id == FIRST.id
    calls = list(rig.bindings.calls)
    assert await rig.read() == FIRST
    assert rig.bindings.calls == calls
    assert rig.agents.handshakes == [SECOND, FIRST]


@pytest.mark.covers("binding-5")
async def test_a_chat_without_a_workspace_is_told_to_create_one_until_it_has(
    rig: AccessRig,
) -> None:
    rig.bindings.row = WorkspaceBinding(chat_id=CHAT)
    assert "create_workspace" in await rig.refused(WorkspaceUnavailable, rig.read)
    rig.bindings.row = WorkspaceBinding(chat_id=CHAT, workspace_id=HOME)
    assert await rig.read() == FIRST
    assert rig.bindings.calls.count("binding") == 2


@pytest.mark.covers("binding-5")
async def test_a_row_that_cannot_be_read_fails_the_call(rig: AccessRig) -> None:
    rig.bindings.broken.add("binding")
    await rig.refused(Unavailable, rig.read)
    rig.bindings.broken = {"agent", "latest"}
    await rig.refused(Unavailable, rig.read)
    assert rig.agents.handshakes == []


@pytest.mark.covers("binding-4")
@pytest.mark.promise("P14")
async def test_a_stopped_workspace_fails_at_once_for_a_chat_without_a_binding(
    rig: AccessRig,
) -> None:
    rig.bindings.latest.clear()
    assert "start_workspace" in await rig.refused(WorkspaceUnavailable, rig.read)
    assert rig.agents.handshakes == []


@pytest.mark.covers("binding-6")
@pytest.mark.promise("P14")
async def test_a_stopped_workspace_costs_a_bound_chat_one_handshake_and_five_seconds(
    rig: AccessRig,
) -> None:
    rig.bindings.bind(FIRST)
    rig.bindings.latest.clear()
    rig.agents.silent.add(FIRST.id)
    async with asyncio.TaskGroup() as group:
        refusal = group.create_task(rig.refused(WorkspaceUnavailable, rig.start))
        assert await rig.clock.advance_past("rebind_check") == 5.0
    assert "start_workspace" in refusal.result()
    assert len(rig.agents.handshakes) == 1


async def test_a_workspace_that_was_started_again_is_found_by_the_same_turn(
    rig: AccessRig,
) -> None:
    rig.bindings.bind(FIRST)
    rig.bindings.latest.clear()
    rig.agents.unreachable.add(FIRST.id)
    await rig.refused(WorkspaceUnavailable, rig.read)
    rig.bindings.latest[HOME] = SECOND
    assert await rig.read() == SECOND
    assert rig.bindings.row.agent_id == SECOND.id


@pytest.mark.covers("binding-4")
async def test_a_workspace_that_a_tool_has_created_is_used_at_once(rig: AccessRig) -> None:
    assert await rig.read() == FIRST
    rig.bindings.row = WorkspaceBinding(chat_id=CHAT, workspace_id=AWAY)
    rig.access.on_bound(CHAT, AWAY)
    assert await rig.read() == FAR
    assert rig.bindings.row.agent_id == FAR.id
    # The chat's row is read again only now, and is unchanged.
    calls = list(rig.bindings.calls)
    await (await rig.client(chat=replace(rig.chat, workspace_id=AWAY))).processes()
    assert rig.bindings.calls == calls
    assert rig.agents.handshakes == [FIRST, FAR]


async def test_a_workspace_that_a_user_has_chosen_is_used_when_the_row_has_it(
    rig: AccessRig,
) -> None:
    assert await rig.read() == FIRST
    rig.bindings.row = WorkspaceBinding(chat_id=CHAT, workspace_id=AWAY)
    await (await rig.client(chat=replace(rig.chat, workspace_id=AWAY))).processes()
    assert rig.agents.asked == [FIRST, FAR]
    rig.bindings.row = WorkspaceBinding(chat_id=CHAT)
    with pytest.raises(WorkspaceUnavailable):
        await rig.client(chat=replace(rig.chat, workspace_id=None))


async def test_a_workspace_selected_during_the_handshake_gets_the_request(
    rig: AccessRig,
) -> None:
    rig.agents.handshake_open = held = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as group:
        answered = group.create_task(rig.read())
        await rig.agents.until(handshakes=1)
        rig.bindings.row = WorkspaceBinding(chat_id=CHAT, workspace_id=AWAY)
        rig.access.on_bound(CHAT, AWAY)
        held.set_result(None)
    assert answered.result() == FAR
    assert rig.agents.asked == [FAR]


async def test_a_workspace_that_changes_while_it_is_bound_is_read_again(rig: AccessRig) -> None:
    def change() -> None:
        rig.bindings.row = WorkspaceBinding(chat_id=CHAT, workspace_id=AWAY)
        rig.bindings.on_latest = None

    rig.bindings.on_latest = change
    assert await rig.read() == FAR


async def test_a_workspace_that_changes_all_the_time_is_given_up(rig: AccessRig) -> None:
    def change() -> None:
        other = AWAY if rig.bindings.row.workspace_id == HOME else HOME
        rig.bindings.row = WorkspaceBinding(chat_id=CHAT, workspace_id=other)

    rig.bindings.on_latest = change
    assert "being changed" in await rig.refused(WorkspaceUnavailable, rig.read)
    assert rig.agents.handshakes == []


async def test_after_a_pause_an_agent_that_is_said_to_be_gone_gets_a_new_handshake(
    rig: AccessRig,
) -> None:
    await rig.read()
    rig.clock.advance(31)
    await rig.read()
    rig.bindings.agents[FIRST.id] = replace(FIRST, disconnected_at=NOW)
    await rig.read()
    assert len(rig.agents.handshakes) == 1
    rig.clock.advance(31)
    await rig.read()
    assert len(rig.agents.handshakes) == 2
    rig.bindings.broken.add("agent")
    rig.clock.advance(31)
    await rig.read()
    assert len(rig.agents.handshakes) == 2


async def test_the_next_owner_of_a_chat_makes_a_handshake_of_its_own(rig: AccessRig) -> None:
    for epoch, handshakes in ((1, 1), (2, 2), (1, 3), (2, 3)):
        # The second call under epoch 1 is of a runner that does not know yet that it lost the chat.
        # It does not disturb the next owner.
        await (await rig.client(epoch=epoch)).processes()
        assert len(rig.agents.handshakes) == handshakes
    epochs = [request.headers["Chatd-Epoch"] for _, request in rig.agents.requests]
    assert epochs == ["1", "2", "1", "2"]


async def test_the_chat_that_was_idle_longest_is_forgotten(
    rig: AccessRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_access, "MAX_REMEMBERED_CHATS", 1)
    client = await rig.client()
    await client.processes()
    other = replace(rig.chat, id=new_chat_id())
    rig.bindings.row = WorkspaceBinding(chat_id=other.id, workspace_id=HOME)
    await (await rig.client(chat=other)).processes()
    assert len(rig.agents.handshakes) == 2
    # A call that started before continues with the binding it has.
    await client.processes()
    assert len(rig.agents.handshakes) == 2
    rig.bindings.row = WorkspaceBinding(chat_id=CHAT, workspace_id=HOME)
    await rig.read()
    assert len(rig.agents.handshakes) == 3


async def test_a_workspace_is_in_use_while_a_request_is_in_flight(rig: AccessRig) -> None:
    """A change of the same workspace does not cancel the request."""
    client = await rig.client()
    async with rig.held(client.processes()) as waiting:
        await rig.agents.until(requests=1)
        rig.access.on_bound(CHAT, HOME)
        assert rig.access.in_use() == {HOME}
        rig.agents.reply()
        assert await waiting == ()
    assert rig.access.in_use() == set()


async def plant_bound_chat(pool: Pool) -> None:
    """The chat's workspace runs on the host "there"."""
    await insert_template(pool)
    chat = await insert_seed(pool, Seed(state=State.R0, calls="local"))
    await insert_workspace_for(pool, factories.CHAT, Fence.of(chat))
    there = Endpoint(kind="unix", path="/nowhere", host_id="there")
    await finish(pool, BuildResult(status="succeeded", agents=(agent_spec(1, endpoints=(there,)),)))
    await bindings.save_bound_agent(
        pool, HARNESS, factories.CHAT, workspace_id(1), build_id=build_id(1), agent_id=agent_id(1)
    )


async def test_a_workspace_that_is_deleted_during_a_call_is_reported_as_deleted(
    pool: Pool, clock: FakeClock
) -> None:
    await plant_bound_chat(pool)

    async def never(row: AgentRow) -> AgentConnection:
        await asyncio.Event().wait()
        raise AssertionError(row)

    deps = AccessDeps(bindings=StoredBindings(pool), connect=never, clock=clock)
    client = await AgentAccess(deps).connect(
        tool_context(factories.chat(workspace_id=workspace_id(1)))
    )

    async def refused() -> None:
        with pytest.raises(WorkspaceUnavailable, match=r"is deleted\. .* create_workspace"):
            await client.processes()

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(refused())
        await clock.wait_for_sleeper("rebind_check")
        assert await builds.insert(pool, HARNESS, new_build(2, transition="delete")) is not None
        await finish(pool)
        await clock.advance_past("rebind_check")
    # The row of the bound agent still exists. The call must not wait for it nevertheless.
    assert await workspaces.get_with_time(pool, agent_id(1)) is not None


async def test_a_workspace_that_is_being_started_is_not_called_stopped(pool: Pool) -> None:
    await insert_template(pool)
    made = await workspaces.create(pool, HARNESS, new_workspace(1))
    with pytest.raises(NoAgent, match=r"is being started\. Wait for it with start_workspace"):
        await StoredBindings(pool).latest_agent(made.workspace.id)


async def test_a_call_waits_for_its_runner_and_then_tells_the_model_what_to_do(
    pool: Pool, clock: FakeClock
) -> None:
    await plant_bound_chat(pool)
    here = AgentConnector(secret=b"secret", host_id="here", clock=clock, open_stream=no_other_host)
    deps = AccessDeps(
        bindings=StoredBindings(pool), connect=here.connect_agent, clock=clock, runner_wait_s=600
    )
    told: list[str] = []

    async def wait_for(text: str) -> None:
        told.append(text)

    context = tool_context(factories.chat(workspace_id=workspace_id(1)))
    client = await AgentAccess(deps).connect(replace(context, wait_for=wait_for))
    asking = asyncio.get_running_loop().create_task(client.processes())
    await clock.wait_for_sleeper("runner_wait")
    assert told == []  # It may be a moment only.
    await clock.advance_past("runner_wait")
    await clock.wait_for_sleeper("runner_wait")
    assert not asking.done()
    assert "is not connected" in told[0]
    clock.advance(600)
    with pytest.raises(WorkspaceUnavailable, match=r"not connected.*tell the user") as error:
        await asking
    assert error.value.code == "runner_disconnected"
    assert "start_workspace" not in error.value.message
