"""Whole turns of chats with workspaces that run, are stopped or rebuilt, with the number of
handshakes and reads."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from chatd.domain.ids import ChatId, WorkspaceId
from chatd.domain.workspace.agent_api import WorkspaceBinding
from chatd.domain.workspace.entities import AgentId
from chatd.store.database.pool import Pool
from chatd.store.workspace import bindings
from chatd.workspaces.agents.agent_session import AGENT_REPLY_TIMEOUT_S
from chatd.workspaces.instructions import ATTACHED_TEXT, NO_WORKSPACE_TEXT, STOPPED_TEXT
from tests.support.clock import FakeClock
from tests.support.factories import HARNESS
from tests.support.outcomes import present
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
    rig: WorkspaceRig, chat_id: ChatId | None, *calls: tuple[str, str], **fields: Any
) -> ChatId:
    """Run one turn that makes these calls."""
    engine = rig.engine
    number = len(engine.api.requests)
    for at, (name, args) in enumerate(calls):
        engine.call_tools((f"c{number}-{at}", name, args))
    engine.answer("ok")
    if chat_id is None:
        chat_id = await engine.create("go", **fields)
    else:
        await engine.send(chat_id, "go on")
    assert (await engine.wait_state(chat_id, "W", "E")).state == "W"
    return chat_id


async def result(rig: WorkspaceRig, chat_id: ChatId) -> str:
    """The result of the last call, as the model got it."""
    lines = await rig.engine.transcript(chat_id)
    return next(line for line in reversed(lines) if line.startswith("tool: "))


def prompt(rig: WorkspaceRig, which: int = -1) -> str:
    """The whole prompt of one model call."""
    assert isinstance(rig.engine.api, FakeCompatible)
    return rig.engine.api.requests[which].body.decode()


def offered(rig: WorkspaceRig) -> set[str]:
    tools: Any = rig.engine.api.requests[-1].json["tools"]
    return {tool["function"]["name"] for tool in tools}


async def bound(pool: Pool, chat_id: ChatId) -> WorkspaceBinding:
    return present(await bindings.get(pool, HARNESS, chat_id))


async def agent_of(pool: Pool, chat_id: ChatId) -> AgentId:
    return present((await bound(pool, chat_id)).agent_id)


async def workspace_of(pool: Pool, chat_id: ChatId) -> WorkspaceId:
    return present((await bound(pool, chat_id)).workspace_id)


@pytest.mark.covers("binding-4")
async def test_a_later_turn_in_a_running_workspace_asks_for_its_agent_only(
    dsn: str, pool: Pool
) -> None:
    async with workspace_rig(dsn, pool) as rig:
        chat_id = await turn(rig, None, CREATE, READ)
        before = rig.services.counts()
        await turn(rig, chat_id)
        assert rig.services.since(before) == RequestCounts(handshakes=0, latest=0, agent=1)
        assert TOLD in prompt(rig)
        before = rig.services.counts()
        await turn(rig, chat_id, READ)
        assert rig.services.since(before) == RequestCounts(handshakes=1, latest=0, agent=2)
        assert "result(" in await result(rig, chat_id)


@pytest.mark.covers("binding-6", "T02")
@pytest.mark.promise("P14")
async def test_a_stopped_workspace_costs_one_handshake_and_the_model_may_start_it(
    dsn: str, pool: Pool
) -> None:
    async with workspace_rig(dsn, pool, delay_s=SHORT_CHECK_AFTER_S) as rig:
        chat_id = await turn(rig, None, CREATE, READ, STOP)
        agent_id = await agent_of(pool, chat_id)
        rig.services.connector.silent.add(agent_id)
        before = rig.services.counts()
        await turn(rig, chat_id, READ)
        assert rig.services.since(before).handshakes == 1
        assert "error(" in await result(rig, chat_id)
        assert "start_workspace" in await result(rig, chat_id)
        assert "start_workspace" in offered(rig)
        assert STOPPED_TEXT in prompt(rig)


@pytest.mark.covers("binding-4")
async def test_a_new_chat_in_a_running_workspace_is_bound_and_told(dsn: str, pool: Pool) -> None:
    async with workspace_rig(dsn, pool) as rig:
        first = await turn(rig, None, CREATE, READ)
        before = rig.services.counts()
        workspace_id = await workspace_of(pool, first)
        chat_id = await turn(rig, None, workspace_id=workspace_id)
        assert TOLD in prompt(rig)
        assert rig.services.since(before).handshakes == 1
        assert await bound(pool, chat_id) == replace(await bound(pool, first), chat_id=chat_id)
        rig.services.connector.words = "Not asked for again."
        await turn(rig, chat_id)
        assert TOLD in prompt(rig)


@pytest.mark.covers("workspaces-7")
@pytest.mark.promise("P14")
async def test_a_new_chat_in_a_stopped_workspace_makes_no_handshake_until_it_is_started(
    dsn: str, pool: Pool
) -> None:
    """A context that was never read is not cached, so it is read as soon as the workspace runs."""
    async with workspace_rig(dsn, pool) as rig:
        first = await turn(rig, None, CREATE, STOP)
        before = rig.services.counts()
        workspace_id = await workspace_of(pool, first)
        chat_id = await turn(rig, None, workspace_id=workspace_id)
        assert rig.services.since(before).handshakes == 0
        assert STOPPED_TEXT in prompt(rig)
        assert TOLD not in prompt(rig)
        assert {"execute", "read_file", "start_workspace"} <= offered(rig)
        assert (await bound(pool, chat_id)).agent_id is None
        await turn(rig, chat_id, START, READ)
        assert TOLD in prompt(rig)
        assert ATTACHED_TEXT in prompt(rig)
        agent_id = await agent_of(pool, chat_id)
        assert str(agent_id) in await result(rig, chat_id)


@pytest.mark.covers("binding-4", "T02")
async def test_a_rebuilt_workspace_is_found_and_bound(dsn: str, pool: Pool) -> None:
    async with workspace_rig(dsn, pool) as rig:
        owner = await turn(rig, None, CREATE, READ)
        workspace_id = await workspace_of(pool, owner)
        chat_id = await turn(rig, None, READ, workspace_id=workspace_id)
        stale = await agent_of(pool, chat_id)
        rig.services.connector.words = "Use spaces."
        await turn(rig, owner, STOP, START)
        [current] = await agents_of(pool, workspace_id)
        assert current.id != stale
        rig.services.connector.refusing.add(stale)
        await turn(rig, chat_id, READ)
        assert str(current.id) in await result(rig, chat_id)
        assert await agent_of(pool, chat_id) == current.id
        assert "Use spaces." in prompt(rig)
        before = rig.services.counts()
        await turn(rig, chat_id, READ)
        assert rig.services.since(before) == RequestCounts(handshakes=1, latest=0, agent=2)


@pytest.mark.covers("binding-3")
@pytest.mark.promise("P14")
async def test_a_slow_agent_that_cannot_be_checked_is_awaited(dsn: str, pool: Pool) -> None:
    async with workspace_rig(dsn, pool, delay_s=SHORT_CHECK_AFTER_S) as rig:
        chat_id = await turn(rig, None, CREATE, READ)
        rig.services.rows.failed.clear()
        rig.services.rows.broken.add("latest")
        rig.services.connector.hold = rig.services.rows.failed.wait()
        before = rig.services.counts()
        await turn(rig, chat_id, READ)
        assert rig.services.since(before).handshakes == 1
        assert "result(" in await result(rig, chat_id)


@pytest.mark.covers("workspaces-7")
async def test_a_workspace_created_during_a_turn_is_bound_at_its_first_use(
    dsn: str, pool: Pool
) -> None:
    async with workspace_rig(dsn, pool) as rig:
        gate = Gate()
        rig.engine.call_tools(("c1", *CREATE))
        read = {"index": 0, "id": "c2", "type": "function"}
        call = {**read, "function": {"name": READ[0], "arguments": READ[1]}}
        rig.engine.api.script(gate, chunk(tool_calls=[call]), chunk(finish="tool_calls"), DONE)
        rig.engine.answer("ok")
        chat_id = await rig.engine.create("go")
        await gate.reached.wait()
        assert NO_WORKSPACE_TEXT in prompt(rig, 0)
        assert TOLD in prompt(rig, 1)
        gate.open()
        assert (await rig.engine.wait_state(chat_id, "W", "E")).state == "W"
        agent_id = await agent_of(pool, chat_id)
        assert str(agent_id) in await result(rig, chat_id)


@pytest.mark.covers("workspaces-7")
async def test_a_subagent_cannot_create_or_start_workspaces(dsn: str, pool: Pool) -> None:
    async with workspace_rig(dsn, pool) as rig:
        parent = await turn(rig, None)
        assert "create_workspace" in offered(rig)
        await turn(rig, None, parent_chat_id=parent, root_chat_id=parent)
        assert "read_file" in offered(rig)
        assert not {name for name in offered(rig) if "workspace" in name or "template" in name}


@pytest.mark.covers("hostile-6", "T02")
@pytest.mark.promise("P14")
async def test_a_silent_agent_does_not_delay_other_chats(
    dsn: str, pool: Pool, clock: FakeClock
) -> None:
    async with workspace_rig(dsn, pool, clock=clock) as rig:
        mute, other = await turn(rig, None, CREATE, READ), await turn(rig, None, CREATE, READ)
        agent_id = await agent_of(pool, mute)
        rig.services.connector.silent.add(agent_id)
        rig.engine.call_tools(("mute", *READ))
        await rig.engine.send(mute, "go on")
        await rig.engine.events.wait("tool_started", chat_id=mute, tool_call_id="mute")
        await clock.wait_for_sleeper("agent_timeout")
        await turn(rig, other, READ)
        assert "result(" in await result(rig, other)
        assert (await rig.engine.chat(mute)).state != "W"
        rig.engine.answer("ok")
        clock.advance(AGENT_REPLY_TIMEOUT_S)
        await rig.engine.wait_state(mute, "W")
        assert "did not answer in time. Try again" in await result(rig, mute)
