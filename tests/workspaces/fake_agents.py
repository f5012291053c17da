"""Binding rows and agents that a test controls, and the access of one chat to them."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TypeVar
from uuid import UUID

import msgspec
import pytest

from chatd.domain.chat.row import Chat, Fence
from chatd.domain.errors import ChatdError, Unavailable
from chatd.domain.ids import ChatId, ToolCallId, WorkerId, WorkspaceId
from chatd.domain.ports import ToolContext
from chatd.domain.workspace.agent_api import AgentUnreachable, WorkspaceBinding
from chatd.domain.workspace.entities import AgentId, AgentRow, BuildId
from chatd.domain.workspace.rules import choose_agent
from chatd.workspaces.agents.agent_access import AccessDeps, AgentAccess
from chatd.workspaces.agents.agent_client import AgentClient, AgentConnection
from chatd.workspaces.agents.agent_resolver import AgentObservation
from chatd.workspaces.agents.agent_session import KEY_HEADER, AgentRequest, ConnectFailed
from tests.support import factories
from tests.support.clock import FakeClock

CHAT = ChatId(UUID(int=10))
HOME, AWAY = WorkspaceId(UUID(int=20)), WorkspaceId(UUID(int=21))
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
WAIT_S = 30.0

T = TypeVar("T")


def agent(number: int, workspace_id: WorkspaceId = HOME) -> AgentRow:
    return AgentRow(
        id=AgentId(UUID(int=number)),
        build_id=BuildId(UUID(int=number + 100)),
        workspace_id=workspace_id,
        name="main",
        created_at=NOW - timedelta(hours=1),
        last_connected_at=NOW,
    )


FIRST, SECOND, FAR = agent(1), agent(2), agent(3, AWAY)


def tool_context(chat: Chat, epoch: int = 1) -> ToolContext:
    fence = Fence(worker_id=WorkerId(UUID(int=4)), epoch=epoch, status="running", history_version=1)
    return ToolContext(chat=chat, call_id=ToolCallId("call"), fence=fence)


class FakeBindings:
    """Satisfies `BindingStore` and records its calls. A `broken` method fails; a read of the latest
    agent waits for `latest_open`. Without an `owner`, every worker owns the chat."""

    def __init__(self, chat_id: ChatId = CHAT) -> None:
        self.row = WorkspaceBinding(chat_id=chat_id, workspace_id=HOME)
        self.agents = {each.id: each for each in (FIRST, SECOND, FAR)}
        self.latest: dict[WorkspaceId, AgentRow] = {HOME: FIRST, AWAY: FAR}
        self.owner: tuple[int, WorkerId] | None = None
        self.calls: list[str] = []
        self.broken: set[str] = set()
        self.on_latest: Callable[[], None] | None = None
        self.latest_read = asyncio.Event()
        self.latest_open = asyncio.Event()
        self.latest_open.set()

    def bind(self, row: AgentRow) -> None:
        self.row = WorkspaceBinding(
            chat_id=self.row.chat_id,
            workspace_id=row.workspace_id,
            build_id=row.build_id,
            agent_id=row.id,
        )

    async def binding(self, chat_id: ChatId) -> WorkspaceBinding | None:
        self._record("binding")
        assert chat_id == self.row.chat_id
        return self.row

    async def agent(self, agent_id: AgentId) -> AgentObservation | None:
        self._record("agent")
        found = self.agents.get(agent_id)
        return None if found is None else AgentObservation(agent=found, now=NOW)

    async def latest_agent(self, workspace_id: WorkspaceId) -> AgentObservation:
        self.latest_read.set()
        await self.latest_open.wait()
        self._record("latest")
        if self.on_latest is not None:
            self.on_latest()
        found = self.latest.get(workspace_id)
        return AgentObservation(agent=choose_agent([] if found is None else [found]), now=NOW)

    async def remember(self, binding: WorkspaceBinding) -> bool:
        self._record("remember")
        if self.row.workspace_id != binding.workspace_id:
            return False
        self.row = binding
        return True

    async def is_owner(self, chat_id: ChatId, fence: Fence) -> bool:
        self._record("is_owner")
        assert chat_id == self.row.chat_id
        return self.owner in (None, (fence.epoch, fence.worker_id))

    def _record(self, call: str) -> None:
        self.calls.append(call)
        if call in self.broken:
            raise Unavailable("no database")


class ScriptedAgents:
    """Agents answer at once. Those in `unreachable` refuse connections, those in `silent` never
    finish a handshake. While `is_held`, a request waits until the test replies to it or loses
    it."""

    def __init__(self) -> None:
        self.handshakes: list[AgentRow] = []
        self.requests: list[tuple[AgentRow, AgentRequest]] = []
        self.cancelled: list[AgentRow] = []
        self.unreachable: set[AgentId] = set()
        self.silent: set[AgentId] = set()
        self.is_held = False
        self.handshake_open: Awaitable[object] | None = None
        self._replies: list[asyncio.Future[None]] = []
        self._changed = asyncio.Condition()

    @property
    def asked(self) -> list[AgentRow]:
        return [row for row, _ in self.requests]

    @property
    def keys(self) -> list[str | None]:
        return [request.headers.get(KEY_HEADER) for _, request in self.requests]

    async def connect(self, row: AgentRow) -> AgentConnection:
        self.handshakes.append(row)
        await self._notify()
        if row.id in self.unreachable:
            raise ConnectFailed("refused")
        try:
            if row.id in self.silent:
                await asyncio.Event().wait()
            if self.handshake_open is not None:
                await self.handshake_open
        except asyncio.CancelledError:
            self.cancelled.append(row)
            raise
        return FakeSender(self, row)

    async def send(self, row: AgentRow, request: AgentRequest) -> bytes:
        reply = asyncio.get_running_loop().create_future()
        self.requests.append((row, request))
        self._replies.append(reply)
        await self._notify()
        if not self.is_held:
            reply.set_result(None)
        try:
            await reply
        except asyncio.CancelledError:
            self.cancelled.append(row)
            raise
        return msgspec.json.encode({"processes": [], "id": str(row.id)})

    def reply(self, number: int = 0) -> None:
        self._replies[number].set_result(None)

    def lose(self, number: int = 0, error: ChatdError | None = None) -> None:
        """The agent has the request, and its reply does not arrive."""
        self._replies[number].set_exception(error or AgentUnreachable("cut off"))

    async def until(self, *, handshakes: int = 0, requests: int = 0) -> None:
        async with asyncio.timeout(WAIT_S), self._changed:
            await self._changed.wait_for(
                lambda: len(self.handshakes) >= handshakes and len(self.requests) >= requests
            )

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


class FakeSender:
    """Satisfies `AgentConnection`."""

    asks_for_owner = False

    def __init__(self, agents: ScriptedAgents, row: AgentRow) -> None:
        self._agents = agents
        self._row = row

    async def send(self, request: AgentRequest) -> bytes:
        return await self._agents.send(self._row, request)


class AccessRig:
    """The access of one chat. `read` has no effect, `start` has one under a key, `kill` one
    without."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.bindings = FakeBindings()
        self.agents = ScriptedAgents()
        self.used: list[WorkspaceId] = []
        deps = AccessDeps(
            bindings=self.bindings,
            connect=self.agents.connect,
            clock=clock,
            on_use=self.used.append,
        )
        self.access = AgentAccess(deps)
        self.chat = factories.chat(id=CHAT, workspace_id=HOME)

    async def client(self, *, epoch: int = 1, chat: Chat | None = None) -> AgentClient:
        return await self.access.connect(tool_context(chat or self.chat, epoch))

    async def read(self) -> AgentRow:
        """The agent that answered."""
        async with asyncio.timeout(WAIT_S):
            await (await self.client()).processes()
        return self.agents.asked[-1]

    async def start(self) -> str:
        async with asyncio.timeout(WAIT_S):
            return (await (await self.client()).start_process("true", key="the-key")).id

    async def kill(self) -> None:
        async with asyncio.timeout(WAIT_S):
            await (await self.client()).signal("p", "kill")

    async def refused(self, kind: type[ChatdError], act: Callable[[], Awaitable[object]]) -> str:
        with pytest.raises(kind) as error:
            await act()
        return error.value.message

    @asynccontextmanager
    async def held(self, call: Coroutine[None, None, T]) -> AsyncGenerator[asyncio.Task[T]]:
        """Run the call; its requests wait until the test replies to them or loses them."""
        self.agents.is_held = True
        async with asyncio.TaskGroup() as group:
            yield group.create_task(call)

    async def reply(self, number: int) -> None:
        """Reply to that request as soon as the agent has it."""
        await self.agents.until(requests=number + 1)
        self.agents.reply(number)

    async def lose(self, number: int, error: ChatdError | None = None) -> None:
        """Lose the reply to that request as soon as the agent has it."""
        await self.agents.until(requests=number + 1)
        self.agents.lose(number, error)

    async def wait_until_slow(self) -> None:
        """Until the latest build is looked up because the reply is slow."""
        await self.clock.advance_past("rebind_check")
        async with asyncio.timeout(WAIT_S):
            await self.bindings.latest_read.wait()
