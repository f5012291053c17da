"""What becomes of a chat's hands when its workspace runs, is stopped, is rebuilt: whole turns,
with the dials and the questions that they cost."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from chatd.domain.ids import ChatId, WorkspaceId
from chatd.domain.workspace.agent_api import WorkspaceBinding
from chatd.domain.workspace.entities import AgentId
from chatd.store.pool import Pool
from chatd.store.workspace import bindings
from chatd.workspaces.agents.session import AGENT_REPLY_TIMEOUT_S
from chatd.workspaces.instructions import ATTACHED_TEXT, NO_WORKSPACE_TEXT, STOPPED_TEXT
from tests.support.clock import FakeClock
from tests.support.providers.openai_chat import DONE, FakeCompatible, chunk
from tests.support.providers.server import Gate
from tests.support.workspaces import TEMPLATE, agents_of
from tests.workspace_turns.workspace_rig import (
    SHORT_CHECK_AFTER_S,
    RequestCounts,
    WorkspaceRig,
    workspace_rig,
)

CREATE = ("create_workspace", json.dumps({"template_id": str(TEMPLATE)}))
READ = ("read_file", json.dumps({"path": "/x"}))
STOP, START = ("stop_workspace", "{}"), ("start_workspace", "{}")
TOLD = "Use tabs."


async def turn(
    room: WorkspaceRig, chat_id: ChatId | None, *calls: tuple[str, str], **fields: Any
) -> ChatId:
    """One turn that makes these calls, to its end."""
    house = room.engine
    number = len(house.api.requests)
    for at, (name, args) in enumerate(calls):
        house.call_tools((f"c{number}-{at}", name, args))
    house.answer("ok")
    if chat_id is None:
        chat_id = await house.create("go", **fields)
    else:
        await house.send(chat_id, "go on")
    assert (await house.wait_state(chat_id, "W", "E")).state == "W"
    return chat_id


async def result(room: WorkspaceRig, chat_id: ChatId) -> str:
    """Of the last call, as the model was told."""
    lines = await room.engine.transcript(chat_id)
    return next(line for line in reversed(lines) if line.startswith("tool: "))


def prompt(room: WorkspaceRig, which: int = -1) -> str:
    """What the model was told in one of its calls, all of it."""
    assert isinstance(room.engine.api, FakeCompatible)
    return room.engine.api.requests[which].body.decode()


def offered(room: WorkspaceRig) -> set[str]:
    tools: Any = room.engine.api.requests[-1].json["tools"]
    return {tool["function"]["name"] for tool in tools}


async def bound(pool: Pool, chat_id: ChatId) -> WorkspaceBinding:
    found = await bindings.get(pool, chat_id)
    assert found is not None
    return found


async def agent_of(pool: Pool, chat_id: ChatId) -> AgentId:
    found = (await bound(pool, chat_id)).agent_id
    assert found is not None
    return found


async def workspace_of(pool: Pool, chat_id: ChatId) -> WorkspaceId:
    found = (await bound(pool, chat_id)).workspace_id
    assert found is not None
    return found


@pytest.mark.covers("binding-4")
async def test_a_later_turn_in_a_running_workspace_asks_for_its_agent_only(
    dsn: str, pool: Pool
) -> None:
    async with workspace_rig(dsn, pool) as room:
        chat_id = await turn(room, None, CREATE, READ)
        before = room.services.counts()
        await turn(room, chat_id)
        assert room.services.since(before) == RequestCounts(handshakes=0, latest=0, agent=1)
        assert TOLD in prompt(room)
        before = room.services.counts()
        await turn(room, chat_id, READ)
        assert room.services.since(before) == RequestCounts(handshakes=1, latest=0, agent=2)
        assert "result(" in await result(room, chat_id)


@pytest.mark.covers("binding-6", "T02")
@pytest.mark.promise("P14")
async def test_a_stopped_workspace_costs_one_handshake_and_the_model_may_start_it(
    dsn: str, pool: Pool
) -> None:
    async with workspace_rig(dsn, pool, delay_s=SHORT_CHECK_AFTER_S) as room:
        chat_id = await turn(room, None, CREATE, READ, STOP)
        agent_id = await agent_of(pool, chat_id)
        room.services.connector.silent.add(agent_id)
        before = room.services.counts()
        await turn(room, chat_id, READ)
        assert room.services.since(before).handshakes == 1
        assert "error(" in await result(room, chat_id)
        assert "start_workspace" in await result(room, chat_id)
        assert "start_workspace" in offered(room)
        assert STOPPED_TEXT in prompt(room)


@pytest.mark.covers("binding-4")
async def test_a_new_chat_in_a_running_workspace_is_bound_and_told(dsn: str, pool: Pool) -> None:
    async with workspace_rig(dsn, pool) as room:
        first = await turn(room, None, CREATE, READ)
        before = room.services.counts()
        workspace_id = await workspace_of(pool, first)
        chat_id = await turn(room, None, workspace_id=workspace_id)
        assert TOLD in prompt(room)
        assert room.services.since(before).handshakes == 1
        assert await bound(pool, chat_id) == replace(await bound(pool, first), chat_id=chat_id)
        room.services.connector.words = "Not asked for again."
        await turn(room, chat_id)
        assert TOLD in prompt(room)


@pytest.mark.covers("workspaces-7")
@pytest.mark.promise("P14")
async def test_a_new_chat_in_a_stopped_workspace_makes_no_handshake_until_it_is_started(
    dsn: str, pool: Pool
) -> None:
    """Nothing is kept of a look that never was, so what the workspace says is told as soon as it
    runs again."""
    async with workspace_rig(dsn, pool) as room:
        first = await turn(room, None, CREATE, STOP)
        before = room.services.counts()
        workspace_id = await workspace_of(pool, first)
        chat_id = await turn(room, None, workspace_id=workspace_id)
        assert room.services.since(before).handshakes == 0
        assert STOPPED_TEXT in prompt(room)
        assert TOLD not in prompt(room)
        assert {"execute", "read_file", "start_workspace"} <= offered(room)
        assert (await bound(pool, chat_id)).agent_id is None
        await turn(room, chat_id, START, READ)
        assert TOLD in prompt(room)
        assert ATTACHED_TEXT in prompt(room)
        agent_id = await agent_of(pool, chat_id)
        assert str(agent_id) in await result(room, chat_id)


@pytest.mark.covers("binding-4", "T02")
async def test_a_workspace_that_was_built_anew_is_found_and_remembered(
    dsn: str, pool: Pool
) -> None:
    async with workspace_rig(dsn, pool) as room:
        owner = await turn(room, None, CREATE, READ)
        workspace_id = await workspace_of(pool, owner)
        chat_id = await turn(room, None, READ, workspace_id=workspace_id)
        stale = await agent_of(pool, chat_id)
        room.services.connector.words = "Use spaces."
        await turn(room, owner, STOP, START)
        [current] = await agents_of(pool, workspace_id)
        assert current.id != stale
        room.services.connector.refusing.add(stale)
        await turn(room, chat_id, READ)
        assert str(current.id) in await result(room, chat_id)
        assert await agent_of(pool, chat_id) == current.id
        assert "Use spaces." in prompt(room)
        before = room.services.counts()
        await turn(room, chat_id, READ)
        assert room.services.since(before) == RequestCounts(handshakes=1, latest=0, agent=2)


@pytest.mark.covers("binding-3")
@pytest.mark.promise("P14")
async def test_a_slow_agent_that_cannot_be_checked_is_awaited(dsn: str, pool: Pool) -> None:
    async with workspace_rig(dsn, pool, delay_s=SHORT_CHECK_AFTER_S) as room:
        chat_id = await turn(room, None, CREATE, READ)
        room.services.rows.failed.clear()
        room.services.rows.broken.add("latest")
        room.services.connector.hold = room.services.rows.failed.wait()
        before = room.services.counts()
        await turn(room, chat_id, READ)
        assert room.services.since(before).handshakes == 1
        assert "result(" in await result(room, chat_id)


@pytest.mark.covers("workspaces-7")
async def test_a_workspace_made_in_mid_turn_is_bound_when_it_is_first_used(
    dsn: str, pool: Pool
) -> None:
    async with workspace_rig(dsn, pool) as room:
        gate = Gate()
        room.engine.call_tools(("c1", *CREATE))
        read = {"index": 0, "id": "c2", "type": "function"}
        call = {**read, "function": {"name": READ[0], "arguments": READ[1]}}
        room.engine.api.script(gate, chunk(tool_calls=[call]), chunk(finish="tool_calls"), DONE)
        room.engine.answer("ok")
        chat_id = await room.engine.create("go")
        await gate.reached.wait()
        assert NO_WORKSPACE_TEXT in prompt(room, 0)
        assert TOLD in prompt(room, 1)
        gate.open()
        assert (await room.engine.wait_state(chat_id, "W", "E")).state == "W"
        agent_id = await agent_of(pool, chat_id)
        assert str(agent_id) in await result(room, chat_id)


@pytest.mark.covers("workspaces-7")
async def test_a_subagent_has_no_say_in_workspaces(dsn: str, pool: Pool) -> None:
    async with workspace_rig(dsn, pool) as room:
        parent = await turn(room, None)
        assert "create_workspace" in offered(room)
        await turn(room, None, parent_chat_id=parent, root_chat_id=parent)
        assert "read_file" in offered(room)
        assert not {name for name in offered(room) if "workspace" in name or "template" in name}


@pytest.mark.covers("hostile-6", "T02")
@pytest.mark.promise("P14")
async def test_an_agent_that_never_answers_holds_up_nobody_else(
    dsn: str, pool: Pool, clock: FakeClock
) -> None:
    async with workspace_rig(dsn, pool, clock=clock) as room:
        mute, other = await turn(room, None, CREATE, READ), await turn(room, None, CREATE, READ)
        agent_id = await agent_of(pool, mute)
        room.services.connector.silent.add(agent_id)
        room.engine.call_tools(("mute", *READ))
        await room.engine.send(mute, "go on")
        await room.engine.events.wait("tool_started", chat_id=mute, tool_call_id="mute")
        await clock.wait_for_sleeper("agent_timeout")
        await turn(room, other, READ)
        assert "result(" in await result(room, other)
        assert (await room.engine.chat(mute)).state != "W"
        room.engine.answer("ok")
        clock.advance(AGENT_REPLY_TIMEOUT_S)
        await room.engine.wait_state(mute, "W")
        assert "it may work next time" in await result(room, mute)
