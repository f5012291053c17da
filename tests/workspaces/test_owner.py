"""A worker shows the agent that it owns its chat; the row decides."""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import pytest
from msgspec.structs import replace

from chatd.clock import SystemClock
from chatd.domain.chat.row import Fence
from chatd.domain.chat.states import State
from chatd.domain.ids import ToolCallId, WorkerId
from chatd.domain.ports import ToolContext
from chatd.domain.workspace.agent_api import AgentRefused, WorkspaceBinding
from chatd.store.database.pool import Pool
from chatd.workspaces.agents.agent_access import AccessDeps, AgentAccess
from chatd.workspaces.agents.agent_client import AgentClient
from chatd.workspaces.agents.agent_resolver import StoredBindings
from tests.support import factories
from tests.support.factories import CHAT
from tests.support.seeds import Seed
from tests.support.store import insert_seed
from tests.workspaces.agent_process import (
    AGENT,
    AgentProcess,
    Workbench,
    connector,
    running_agent,
)
from tests.workspaces.fake_agents import FIRST, FakeBindings, ScriptedAgents, tool_context

ONE, OTHER = WorkerId(UUID(int=1)), WorkerId(UUID(int=2))


class OwnedChat:
    """A chat on a real agent, with a row that names its owner."""

    def __init__(self, bench: Workbench) -> None:
        self.process: AgentProcess = bench.process
        self.chat = factories.chat(id=bench.chat_id, workspace_id=FIRST.workspace_id)
        self.row = replace(FIRST, id=AGENT, endpoints=(bench.process.endpoint(),))
        self.bindings = FakeBindings()
        self.bindings.row = WorkspaceBinding(
            chat_id=bench.chat_id, workspace_id=self.row.workspace_id
        )
        self.bindings.latest[self.row.workspace_id] = self.row
        self.written = 0

    def replica(self) -> AgentAccess:
        """One server: its own memory of chats and connections."""
        connect = connector().connect_agent
        return AgentAccess(AccessDeps(bindings=self.bindings, connect=connect, clock=SystemClock()))

    async def client(self, replica: AgentAccess, epoch: int, worker: WorkerId) -> AgentClient:
        fence = Fence(worker_id=worker, epoch=epoch, status="running", history_version=1)
        context = ToolContext(chat=self.chat, call_id=ToolCallId("call"), fence=fence)
        return await replica.connect(context)

    async def write(self, replica: AgentAccess, epoch: int, worker: WorkerId = ONE) -> None:
        client = await self.client(replica, epoch, worker)
        self.written += 1
        path = str(self.process.home / "file")
        await client.write_file(path, b"x", key=f"{self.chat.id}:{self.written}")

    async def refused(self, replica: AgentAccess, epoch: int, worker: WorkerId = ONE) -> None:
        with pytest.raises(AgentRefused) as refusal:
            await self.write(replica, epoch, worker)
        assert refusal.value.code == "stale_epoch"


@asynccontextmanager
async def owned_chat(place: Path) -> AsyncGenerator[OwnedChat]:
    async with running_agent(place) as bench:
        yield OwnedChat(bench)


@pytest.mark.promise("P3")
async def test_only_the_owner_that_the_row_names_acts(tmp_path: Path) -> None:
    async with owned_chat(tmp_path) as chat:
        old, new = chat.replica(), chat.replica()
        chat.bindings.owner = (1, ONE)
        await chat.write(old, 1)
        await chat.write(old, 1)
        assert chat.bindings.calls.count("is_owner") == 1
        chat.bindings.owner = (2, OTHER)
        await chat.write(new, 2, OTHER)
        await chat.refused(old, 1)
        await chat.write(new, 2, OTHER)


@pytest.mark.promise("P3")
async def test_a_chat_goes_on_after_its_database_was_restored_to_a_lower_epoch(
    tmp_path: Path,
) -> None:
    async with owned_chat(tmp_path) as chat:
        before, after = chat.replica(), chat.replica()
        chat.bindings.owner = (7, ONE)
        await chat.write(before, 7)
        chat.bindings.owner = (4, OTHER)
        await chat.write(after, 4, OTHER)
        await chat.refused(before, 7)
        chat.bindings.owner = (5, ONE)
        await chat.write(before, 5)
        await chat.refused(after, 4, OTHER)
        chat.bindings.owner = (7, OTHER)
        await chat.write(after, 7, OTHER)
        await chat.refused(before, 7)


async def test_a_server_that_saw_a_higher_epoch_follows_the_restored_database(
    tmp_path: Path,
) -> None:
    """Its later calls share a connection, and changes of the workspace reach them."""
    async with owned_chat(tmp_path) as chat:
        server = chat.replica()
        for epoch in (7, 4):
            chat.bindings.owner = (epoch, ONE)
            await chat.write(server, epoch)
        client = await chat.client(server, 4, ONE)
        reads = len(chat.bindings.calls)
        await chat.write(server, 4)
        assert len(chat.bindings.calls) == reads
        server.forget(chat.chat.id)
        chat.bindings.row = WorkspaceBinding(chat_id=chat.chat.id, workspace_id=None)
        with pytest.raises(Exception, match="no workspace"):
            await client.processes()


async def test_a_forged_epoch_does_not_stop_a_chat(tmp_path: Path) -> None:
    async with owned_chat(tmp_path) as chat:
        server = chat.replica()
        chat.bindings.owner = (2, ONE)
        await chat.write(server, 2)
        forged = f'{{"chat":"{chat.chat.id}","epoch":999999999}}\n'
        (chat.process.run_dir / "fence.jsonl").write_text(forged)
        os.kill(chat.process.pid, 9)
        chat.process.end()
        chat.process.start()
        await chat.process.connect()
        await chat.write(server, 2)
        chat.bindings.owner = (3, OTHER)
        await chat.write(chat.replica(), 3, OTHER)


@pytest.mark.promise("P3")
async def test_a_worker_without_its_chat_is_refused_by_a_restarted_agent(tmp_path: Path) -> None:
    async with owned_chat(tmp_path) as chat:
        server = chat.replica()
        chat.bindings.owner = (2, ONE)
        await chat.write(server, 2)
        chat.bindings.owner = (3, OTHER)
        chat.process.end()
        chat.process.start()
        await chat.process.connect()
        await chat.refused(server, 2)


async def test_nothing_is_done_while_the_owner_cannot_be_read(tmp_path: Path) -> None:
    async with owned_chat(tmp_path) as chat:
        server = chat.replica()
        chat.bindings.owner = (2, ONE)
        chat.bindings.broken.add("is_owner")
        with pytest.raises(AgentRefused, match="Nothing was done"):
            await chat.write(server, 2)
        assert os.listdir(chat.process.home) == []
        chat.bindings.broken.clear()
        await chat.write(server, 2)


async def test_an_older_agent_gets_the_epoch_alone() -> None:
    bindings, agents = FakeBindings(), ScriptedAgents()
    deps = AccessDeps(bindings=bindings, connect=agents.connect, clock=SystemClock())
    chat = factories.chat(id=bindings.row.chat_id, workspace_id=FIRST.workspace_id)
    client = await AgentAccess(deps).connect(tool_context(chat, 7))
    await client.start_process("true", key="key")
    [(_, request)] = agents.requests
    assert request.headers["Chatd-Epoch"] == "7"


async def test_the_row_names_one_owner(pool: Pool) -> None:
    fence = Fence.of(await insert_seed(pool, Seed(state=State.R0)))
    rows = StoredBindings(pool)
    assert await rows.is_owner(CHAT, fence)
    assert not await rows.is_owner(CHAT, replace(fence, epoch=fence.epoch + 1))
    assert not await rows.is_owner(CHAT, replace(fence, worker_id=OTHER))
