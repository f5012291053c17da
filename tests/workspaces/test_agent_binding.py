"""Which agent a chat uses: its binding, the latest build, a workspace that changes meanwhile."""

import asyncio

import pytest
from msgspec.structs import replace

from chatd.domain.chat.row import Fence
from chatd.domain.chat.states import State
from chatd.domain.errors import Unavailable
from chatd.domain.workspace.agent_api import WorkspaceBinding, WorkspaceUnavailable
from chatd.domain.workspace.entities import AgentRow, Endpoint
from chatd.store.pool import Pool
from chatd.store.workspace import agents, bindings, builds
from chatd.store.workspace.build_leases import BuildResult
from chatd.workspaces.agents import access
from chatd.workspaces.agents.access import AccessDeps, AgentAccess
from chatd.workspaces.agents.client import RequestSender
from chatd.workspaces.agents.resolver import AgentConnector, StoredBindings
from tests.support import factories
from tests.support.clock import FakeClock
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
    AccessStage,
    tool_context,
)


@pytest.fixture
def stage(clock: FakeClock) -> AccessStage:
    """The chat has a workspace and no binding yet."""
    return AccessStage(clock)


@pytest.mark.covers("binding-4")
async def test_the_bound_agent_is_used_for_the_chat_under_its_epoch(stage: AccessStage) -> None:
    stage.bindings.bind(SECOND)
    await (await stage.client(epoch=7)).processes()
    [(row, request)] = stage.agents.requests
    assert row == SECOND
    assert request.headers == {"Chatd-Chat-Id": str(CHAT), "Chatd-Epoch": "7"}
    assert stage.bindings.calls == ["binding", "agent"]
    assert stage.used == [HOME]


@pytest.mark.covers("binding-4")
async def test_a_chat_without_a_binding_is_bound_to_the_latest_agent(stage: AccessStage) -> None:
    assert await stage.read() == FIRST
    assert stage.bindings.row.agent_id == FIRST.id
    assert stage.bindings.row.build_id == FIRST.build_id
    assert stage.bindings.calls == ["binding", "latest", "remember"]


@pytest.mark.covers("binding-4")
async def test_a_binding_to_an_agent_without_a_row_is_repaired(stage: AccessStage) -> None:
    stage.bindings.bind(SECOND)
    del stage.bindings.agents[SECOND.id]
    assert await stage.read() == FIRST
    assert stage.bindings.row.agent_id == FIRST.id


@pytest.mark.covers("binding-4")
async def test_a_bound_agent_of_another_workspace_is_not_used(stage: AccessStage) -> None:
    stage.bindings.row = WorkspaceBinding(chat_id=CHAT, workspace_id=HOME, agent_id=FAR.id)
    assert await stage.read() == FIRST


@pytest.mark.covers("binding-4")
async def test_a_new_binding_is_used_by_the_next_call(stage: AccessStage) -> None:
    stage.bindings.bind(SECOND)
    stage.agents.unreachable.add(SECOND.id)
    assert await stage.read() == FIRST
    assert stage.bindings.row.agent_id == FIRST.id
    calls = list(stage.bindings.calls)
    assert await stage.read() == FIRST
    assert stage.bindings.calls == calls
    assert stage.agents.handshakes == [SECOND, FIRST]


@pytest.mark.covers("binding-5")
async def test_a_chat_without_a_workspace_is_told_to_create_one_until_it_has(
    stage: AccessStage,
) -> None:
    stage.bindings.row = WorkspaceBinding(chat_id=CHAT)
    assert "create_workspace" in await stage.refused(WorkspaceUnavailable, stage.read)
    stage.bindings.row = WorkspaceBinding(chat_id=CHAT, workspace_id=HOME)
    assert await stage.read() == FIRST
    assert stage.bindings.calls.count("binding") == 2


@pytest.mark.covers("binding-5")
async def test_a_row_that_cannot_be_read_fails_the_call(stage: AccessStage) -> None:
    stage.bindings.broken.add("binding")
    await stage.refused(Unavailable, stage.read)
    stage.bindings.broken = {"agent", "latest"}
    await stage.refused(Unavailable, stage.read)
    assert stage.agents.handshakes == []


@pytest.mark.covers("binding-4")
@pytest.mark.promise("P14")
async def test_a_stopped_workspace_fails_at_once_for_a_chat_without_a_binding(
    stage: AccessStage,
) -> None:
    stage.bindings.latest.clear()
    assert "start_workspace" in await stage.refused(WorkspaceUnavailable, stage.read)
    assert stage.agents.handshakes == []


@pytest.mark.covers("binding-6")
@pytest.mark.promise("P14")
async def test_a_stopped_workspace_costs_a_bound_chat_one_handshake_and_five_seconds(
    stage: AccessStage,
) -> None:
    stage.bindings.bind(FIRST)
    stage.bindings.latest.clear()
    stage.agents.silent.add(FIRST.id)
    async with asyncio.TaskGroup() as group:
        refusal = group.create_task(stage.refused(WorkspaceUnavailable, stage.start))
        assert await stage.clock.advance_past("rebind_check") == 5.0
    assert "start_workspace" in refusal.result()
    assert len(stage.agents.handshakes) == 1


async def test_a_workspace_that_was_started_again_is_found_by_the_same_turn(
    stage: AccessStage,
) -> None:
    stage.bindings.bind(FIRST)
    stage.bindings.latest.clear()
    stage.agents.unreachable.add(FIRST.id)
    await stage.refused(WorkspaceUnavailable, stage.read)
    stage.bindings.latest[HOME] = SECOND
    assert await stage.read() == SECOND
    assert stage.bindings.row.agent_id == SECOND.id


@pytest.mark.covers("binding-4")
async def test_a_workspace_that_a_tool_has_created_is_used_at_once(stage: AccessStage) -> None:
    assert await stage.read() == FIRST
    stage.bindings.row = WorkspaceBinding(chat_id=CHAT, workspace_id=AWAY)
    stage.access.on_bound(CHAT, AWAY)
    assert await stage.read() == FAR
    assert stage.bindings.row.agent_id == FAR.id
    # The chat's row is read again only now, and says nothing new.
    calls = list(stage.bindings.calls)
    await (await stage.client(chat=replace(stage.chat, workspace_id=AWAY))).processes()
    assert stage.bindings.calls == calls
    assert stage.agents.handshakes == [FIRST, FAR]


async def test_a_workspace_that_a_user_has_chosen_is_used_when_the_row_has_it(
    stage: AccessStage,
) -> None:
    assert await stage.read() == FIRST
    stage.bindings.row = WorkspaceBinding(chat_id=CHAT, workspace_id=AWAY)
    await (await stage.client(chat=replace(stage.chat, workspace_id=AWAY))).processes()
    assert stage.agents.asked == [FIRST, FAR]
    stage.bindings.row = WorkspaceBinding(chat_id=CHAT)
    with pytest.raises(WorkspaceUnavailable):
        await stage.client(chat=replace(stage.chat, workspace_id=None))


async def test_a_workspace_selected_during_the_handshake_gets_the_request(
    stage: AccessStage,
) -> None:
    stage.agents.handshake_open = held = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as group:
        answered = group.create_task(stage.read())
        await stage.agents.until(handshakes=1)
        stage.bindings.row = WorkspaceBinding(chat_id=CHAT, workspace_id=AWAY)
        stage.access.on_bound(CHAT, AWAY)
        held.set_result(None)
    assert answered.result() == FAR
    assert stage.agents.asked == [FAR]


async def test_a_workspace_that_changes_while_it_is_bound_is_read_again(stage: AccessStage) -> None:
    def change() -> None:
        stage.bindings.row = WorkspaceBinding(chat_id=CHAT, workspace_id=AWAY)
        stage.bindings.on_latest = None

    stage.bindings.on_latest = change
    assert await stage.read() == FAR


async def test_a_workspace_that_changes_all_the_time_is_given_up(stage: AccessStage) -> None:
    def change() -> None:
        other = AWAY if stage.bindings.row.workspace_id == HOME else HOME
        stage.bindings.row = WorkspaceBinding(chat_id=CHAT, workspace_id=other)

    stage.bindings.on_latest = change
    assert "being changed" in await stage.refused(WorkspaceUnavailable, stage.read)
    assert stage.agents.handshakes == []


async def test_after_a_pause_an_agent_that_is_said_to_be_gone_gets_a_new_handshake(
    stage: AccessStage,
) -> None:
    await stage.read()
    stage.clock.advance(31)
    await stage.read()
    stage.bindings.agents[FIRST.id] = replace(FIRST, disconnected_at=NOW)
    await stage.read()
    assert len(stage.agents.handshakes) == 1
    stage.clock.advance(31)
    await stage.read()
    assert len(stage.agents.handshakes) == 2
    stage.bindings.broken.add("agent")
    stage.clock.advance(31)
    await stage.read()
    assert len(stage.agents.handshakes) == 2


async def test_the_next_owner_of_a_chat_makes_a_handshake_of_its_own(stage: AccessStage) -> None:
    for epoch, handshakes in ((1, 1), (2, 2), (1, 3), (2, 3)):
        # The second call under epoch 1 is of a runner that does not know yet that it lost the
        # chat. It does not disturb the next owner.
        await (await stage.client(epoch=epoch)).processes()
        assert len(stage.agents.handshakes) == handshakes
    epochs = [request.headers["Chatd-Epoch"] for _, request in stage.agents.requests]
    assert epochs == ["1", "2", "1", "2"]


async def test_the_chat_that_was_idle_longest_is_forgotten(
    stage: AccessStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "MAX_REMEMBERED_CHATS", 1)
    client = await stage.client()
    await client.processes()
    other = replace(stage.chat, id=new_chat_id())
    stage.bindings.row = WorkspaceBinding(chat_id=other.id, workspace_id=HOME)
    await (await stage.client(chat=other)).processes()
    assert len(stage.agents.handshakes) == 2
    # A call that began before goes on with what it knows.
    await client.processes()
    assert len(stage.agents.handshakes) == 2
    stage.bindings.row = WorkspaceBinding(chat_id=CHAT, workspace_id=HOME)
    await stage.read()
    assert len(stage.agents.handshakes) == 3


async def test_a_workspace_is_in_use_while_a_request_is_in_flight(stage: AccessStage) -> None:
    """News of the same workspace does not cut the request off."""
    stage.agents.is_held = True
    async with asyncio.TaskGroup() as group:
        client = await stage.client()
        waiting = group.create_task(client.processes())
        await stage.agents.until(requests=1)
        stage.access.on_bound(CHAT, HOME)
        assert stage.access.in_use() == {HOME}
        stage.agents.reply()
        assert await waiting == ()
    assert stage.access.in_use() == set()


async def plant_bound_chat(pool: Pool) -> None:
    """The chat's workspace runs on the host "there"."""
    await insert_template(pool)
    chat = await insert_seed(pool, Seed(state=State.R0, calls="local"))
    await insert_workspace_for(pool, factories.CHAT, Fence.of(chat))
    there = Endpoint(kind="unix", path="/nowhere", host_id="there")
    await finish(pool, BuildResult(status="succeeded", agents=(agent_spec(1, endpoints=(there,)),)))
    await bindings.save_bound_agent(
        pool, factories.CHAT, workspace_id(1), build_id=build_id(1), agent_id=agent_id(1)
    )


async def test_a_workspace_that_is_deleted_during_a_call_is_reported_as_deleted(
    pool: Pool, clock: FakeClock
) -> None:
    await plant_bound_chat(pool)

    async def never(row: AgentRow) -> RequestSender:
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
        assert await builds.insert(pool, new_build(2, transition="delete")) is not None
        await finish(pool)
        await clock.advance_past("rebind_check")
    # The row of the bound agent still exists. That is no reason to go on waiting for it.
    assert await agents.get_with_time(pool, agent_id(1)) is not None


async def test_a_workspace_on_another_host_is_reported_to_the_user(
    pool: Pool, clock: FakeClock
) -> None:
    await plant_bound_chat(pool)
    here = AgentConnector(secret=b"secret", host_id="here", clock=clock)
    deps = AccessDeps(bindings=StoredBindings(pool), connect=here.connect_agent, clock=clock)
    client = await AgentAccess(deps).connect(
        tool_context(factories.chat(workspace_id=workspace_id(1)))
    )
    with pytest.raises(WorkspaceUnavailable, match=r"on another host.*tell the user") as error:
        await client.processes()
    assert "start_workspace" not in error.value.message
