"""MCP servers as processes, a directory in memory, and sessions that reach them."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from uuid import UUID, uuid4

import aiohttp
import msgspec
from msgspec import Raw

from chatd.clock import new_change_id
from chatd.domain.answer.tool_output import ToolOutput
from chatd.domain.chat.row import Chat, Fence
from chatd.domain.ids import McpServerId, ToolCallId
from chatd.domain.mcp.servers import McpAccess, McpServer
from chatd.domain.mcp.tools import ListedTool
from chatd.domain.ports import Clock, Env, ToolContext
from chatd.mcp.directory import McpTool, McpTools
from chatd.mcp.http_transport import DialPolicy, McpLimits
from chatd.mcp.sessions import McpSessions
from tests.support.clock import FakeClock
from tests.support.eventually import eventually
from tests.support.factories import WORKER, chat
from tests.support.mcp.server_forks import ForkedProcess, server_forks

LOCAL = DialPolicy(private_hosts=frozenset({"127.0.0.1"}))
LIMITS = McpLimits(connect_s=20.0, call_s=20.0)
"""For a busy host: a test that wants a time-out sets a short one."""


class ServerProcess:
    def __init__(self, process: ForkedProcess, port: int, path: str) -> None:
        self._process = process
        self.base = f"http://127.0.0.1:{port}"
        self.port = port
        self.url = f"{self.base}{path}"

    async def calls(self) -> dict[str, int]:
        async with aiohttp.ClientSession() as http, http.get(f"{self.base}/calls") as reply:
            return await reply.json()

    async def wait_called(self, tool: str, times: int = 1) -> None:
        async def is_called() -> bool:
            return (await self.calls()).get(tool, 0) >= times

        await eventually(is_called)

    async def release(self) -> None:
        async with aiohttp.ClientSession() as http, http.post(f"{self.base}/release") as reply:
            assert reply.status == 200

    def kill(self) -> None:
        self._process.kill()


@contextmanager
def tool_server(transport: str = "http", *args: str) -> Generator[ServerProcess]:
    """`transport` is http (with event streams), json or sse."""
    forked = server_forks().fork(transport, *args)
    process = ForkedProcess(forked.pid)
    try:
        yield ServerProcess(process, forked.port, "/sse" if transport == "sse" else "/mcp")
    finally:
        process.kill()
        process.close()


def configured(url: str, *, slug: str = "tools", number: int = 1, **fields: object) -> McpServer:
    server = McpServer(
        id=McpServerId(UUID(int=number)), slug=slug, display_name=slug.title(), url=url
    )
    return msgspec.structs.replace(server, **fields)


class MemoryDirectory:
    """Satisfies `McpDirectory`. `renewed` is what a refused credential becomes."""

    def __init__(self, *servers: McpServer, headers: Mapping[str, str] | None = None) -> None:
        self.list = list(servers)
        self.headers = dict(headers or {})
        self.renewed: Mapping[str, str] | None = None
        self.problem = ""
        self.credential_version = "1"
        self.refusals = 0
        self.kept: dict[tuple[McpServerId, int], tuple[ListedTool, ...]] = {}

    async def known_tools(self, server: McpServer, chat: Chat) -> tuple[ListedTool, ...]:
        del chat
        return self.kept.get((server.id, server.version), ())

    async def keep_tools(
        self, server: McpServer, chat: Chat, tools: tuple[ListedTool, ...]
    ) -> None:
        del chat
        self.kept[server.id, server.version] = tools

    async def servers(self, chat: Chat) -> Sequence[McpServer]:
        del chat
        return self.list

    async def access(self, server: McpServer, chat: Chat) -> McpAccess:
        del chat
        return McpAccess(
            server=server,
            headers=self.headers,
            problem=self.problem,
            credential_version=self.credential_version,
        )

    async def refused(self, server: McpServer, chat: Chat, access: McpAccess) -> McpAccess | None:
        self.refusals += 1
        if self.renewed is None:
            return None
        self.headers, self.renewed = dict(self.renewed), None
        self.credential_version += "+"
        return await self.access(server, chat)


class McpRig:
    def __init__(self, directory: MemoryDirectory, sessions: McpSessions, env: Env) -> None:
        self.directory = directory
        self.sessions = sessions
        self.family = McpTools(directory, sessions, env)
        self.events: list[tuple[str, dict[str, object]]] = []
        self.shown: list[str] = []
        self.clock = FakeClock()
        self.chat = chat(status="running", worker_id=WORKER, epoch=1)

    async def tools(self, chat: Chat | None = None) -> dict[str, McpTool]:
        return {tool.spec.name: tool for tool in await self.family.tools(chat or self.chat)}

    async def call(self, name: str, **args: object) -> ToolOutput:
        return await self.start(name, **args)

    def start(self, name: str, **args: object) -> "asyncio.Task[ToolOutput]":
        async def work() -> ToolOutput:
            tool = (await self.tools())[name]
            return await tool.run(self.context(), Raw(msgspec.json.encode(args)))

        return asyncio.get_running_loop().create_task(work())

    def context(self) -> ToolContext:
        return ToolContext(
            chat=self.chat,
            call_id=ToolCallId("call-1"),
            fence=Fence.of(self.chat),
            show=self.shown.append,
        )

    def seen(self, event: str) -> list[dict[str, object]]:
        return [fields for name, fields in self.events if name == event]


@asynccontextmanager
async def mcp_rig(
    *servers: McpServer,
    headers: Mapping[str, str] | None = None,
    limits: McpLimits = LIMITS,
    policy: DialPolicy = LOCAL,
    clock: Clock | None = None,
    max_connections: int = 256,
) -> AsyncGenerator[McpRig]:
    events: list[tuple[str, dict[str, object]]] = []
    env = Env(
        clock=clock or FakeClock(),
        emit=_recorder(events),
        new_id=uuid4,
        new_change_id=new_change_id,
    )
    directory = MemoryDirectory(*servers, headers=headers)
    sessions = McpSessions(directory, env, policy, limits=limits, max_connections=max_connections)
    rig = McpRig(directory, sessions, env)
    rig.events = events
    if isinstance(env.clock, FakeClock):
        rig.clock = env.clock
    async with asyncio.TaskGroup() as group:
        running = group.create_task(sessions.run())
        await sessions.wait_started()
        try:
            yield rig
        finally:
            running.cancel()
    assert len(sessions) == 0


def _recorder(events: list[tuple[str, dict[str, object]]]) -> Callable[..., None]:
    def emit(event: str, **fields: object) -> None:
        events.append((event, fields))

    return emit
