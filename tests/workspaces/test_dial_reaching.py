"""The hands of chats: real agents behind rows that a test writes."""

import asyncio
from collections.abc import AsyncGenerator
from uuid import UUID

import pytest
from msgspec.structs import replace

from chatd.domain.chat.row import Chat, Fence
from chatd.domain.ids import ToolCallId, WorkerId, WorkspaceId
from chatd.domain.ports import ToolContext
from chatd.domain.workspace.agent_api import AgentApi, WorkspaceBinding, WorkspaceUnavailable
from chatd.domain.workspace.entities import AgentId, AgentRow, BuildId
from chatd.tools.execute import MAX_TIMEOUT_S, RECONNECT_TIMEOUT_S
from chatd.workspaces.client import AgentClient
from chatd.workspaces.connecting import Means
from chatd.workspaces.dials import Dials
from chatd.workspaces.reaching import IDLE_S, Reaching
from chatd.workspaces.transport import Dialled
from tests.support import factories
from tests.support.clock import FakeClock
from tests.support.eventually import eventually
from tests.workspaces.agents import AGENT, AgentProcess, new_chat_id, transport
from tests.workspaces.binding_tables import NOW, Tables

HERE, THERE = WorkspaceId(UUID(int=1)), WorkspaceId(UUID(int=2))


class Stage:
    """Two workspaces with one agent between them: it is the rows that tell them apart."""

    def __init__(self, process: AgentProcess, clock: FakeClock) -> None:
        self.clock = clock
        self.opened: list[WorkspaceId] = []
        self.released: list[WorkspaceId] = []
        self.tables = Tables()
        self.tables.latest = {
            workspace_id: AgentRow(
                id=AGENT if workspace_id == HERE else AgentId(UUID(int=9)),
                build_id=BuildId(UUID(int=3)),
                workspace_id=workspace_id,
                name="main",
                endpoints=(process.endpoint(),),
                created_at=NOW,
                last_connected_at=NOW,
            )
            for workspace_id in (HERE, THERE)
        }
        self.tables.agents = {row.id: row for row in self.tables.latest.values()}
        self.reaching = Reaching(
            Means(bindings=self.tables, dials=Dials(), open=self._open, clock=clock)
        )
        self.chat = factories.chat(id=new_chat_id(), workspace_id=HERE)
        self.row(HERE)

    def row(self, workspace_id: WorkspaceId | None) -> None:
        self.tables.row = WorkspaceBinding(chat_id=self.chat.id, workspace_id=workspace_id)

    async def reach(self, *, epoch: int = 1, chat: Chat | None = None) -> AgentApi:
        fence = Fence(
            worker_id=WorkerId(UUID(int=4)), epoch=epoch, status="running", history_version=1
        )
        context = ToolContext(chat=chat or self.chat, call_id=ToolCallId("call"), fence=fence)
        return await self.reaching.connect(context)

    async def _open(self, row: AgentRow) -> Dialled[AgentClient]:
        # Both rows mean the agent that is there.
        opened = await transport().open(AGENT, row.endpoints)
        self.opened.append(row.workspace_id)

        async def release() -> None:
            self.released.append(row.workspace_id)
            await opened.release()

        return Dialled(conn=opened.conn, release=release)


@pytest.fixture
async def stage(agent_process: AgentProcess, clock: FakeClock) -> AsyncGenerator[Stage]:
    await (await agent_process.dial()).release()
    stage = Stage(agent_process, clock)
    yield stage
    await stage.reaching.close()
    assert sorted(stage.released) == sorted(stage.opened)


async def test_calls_of_a_turn_share_a_connection_that_works(stage: Stage) -> None:
    conn = await stage.reach()
    assert await conn.processes() == ()
    assert await stage.reach() is conn


async def test_the_next_owner_of_a_chat_has_a_connection_of_its_own(stage: Stage) -> None:
    old = await stage.reach(epoch=1)
    new = await stage.reach(epoch=2)
    assert new is not old
    assert stage.released == [HERE]
    # The old one does not know yet. It does not take the connection away from the new one.
    assert await stage.reach(epoch=1) is not new
    assert await stage.reach(epoch=2) is new
    stage.opened.remove(HERE)


async def test_a_workspace_that_a_tool_has_made_is_used_at_once(stage: Stage) -> None:
    await stage.reach()
    stage.row(THERE)
    await stage.reaching.bound(stage.chat.id, THERE)
    await stage.reach()
    assert stage.opened == [HERE, THERE]
    # The chat's row is read again only now: it says nothing new.
    await stage.reach(chat=replace(stage.chat, workspace_id=THERE))
    assert stage.opened == [HERE, THERE]


async def test_a_workspace_that_a_person_has_chosen_is_used_when_the_row_says_so(
    stage: Stage,
) -> None:
    await stage.reach()
    stage.row(THERE)
    await stage.reach(chat=replace(stage.chat, workspace_id=THERE))
    assert (stage.opened, stage.released) == ([HERE, THERE], [HERE])
    stage.row(None)
    with pytest.raises(WorkspaceUnavailable):
        await stage.reach(chat=replace(stage.chat, workspace_id=None))


async def test_a_connection_that_nobody_uses_is_let_go(stage: Stage) -> None:
    await stage.reach()
    stage.clock.advance(IDLE_S + 1)
    await stage.reach()
    assert (stage.opened, stage.released) == ([HERE, HERE], [HERE])


async def test_a_call_that_waits_for_an_hour_keeps_its_connection(stage: Stage) -> None:
    """Other chats come and go meanwhile; nobody asks for this one again until the call is over."""
    await stage.reach()
    stage.clock.advance(MAX_TIMEOUT_S + RECONNECT_TIMEOUT_S)
    other = replace(stage.chat, id=new_chat_id())
    stage.tables.row = WorkspaceBinding(chat_id=other.id, workspace_id=HERE)
    await stage.reach(chat=other)
    assert stage.released == []


async def test_a_workspace_is_in_use_for_as_long_as_a_call_waits(stage: Stage) -> None:
    conn = await stage.reach()
    assert stage.reaching.in_use() == set()
    started = await conn.start_process("until test -e go; do sleep 0.02; done", key="wait")

    async def used() -> bool:
        return stage.reaching.in_use() == {HERE}

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        waiting = group.create_task(conn.output(started.id, wait_s=30))
        await eventually(used)
        await conn.signal(started.id, "kill")
        assert not (await waiting).running
    assert stage.reaching.in_use() == set()


async def test_a_call_that_waits_is_not_cut_off_by_news_of_the_same_workspace(
    stage: Stage,
) -> None:
    """Such as that a person wants its instructions anew while a command runs."""
    conn = await stage.reach()
    started = await conn.start_process("until test -e go; do sleep 0.02; done", key="news")

    async def used() -> bool:
        return stage.reaching.in_use() == {HERE}

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        waiting = group.create_task(conn.output(started.id, wait_s=30))
        await eventually(used)
        for _ in range(2):
            await stage.reaching.bound(stage.chat.id, HERE)
        assert await used()
        again = await stage.reach()
        assert again is not conn
        await again.signal(started.id, "kill")
        assert not (await waiting).running
