"""A call of a tool of an MCP server through chatd's client, beside the SDK's own client on the same
server. Both keep their connections open."""

import asyncio
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from statistics import median
from typing import Final
from uuid import UUID, uuid4

from msgspec import Raw

from bench.child_processes import CHECKOUT
from bench.proc_stats import percentile
from bench.report import Baselines, ReportRow, at_most
from bench.workload import WORKER, new_change_id
from chatd.clock import SystemClock
from chatd.domain.chat.row import Chat, Fence
from chatd.domain.ids import ChatId, McpServerId, ToolCallId, UserId
from chatd.domain.mcp.servers import McpAccess, McpServer
from chatd.domain.mcp.tools import ListedTool
from chatd.domain.ports import Env, ToolContext
from chatd.mcp.directory import McpTool, McpTools
from chatd.mcp.http_transport import DialPolicy
from chatd.mcp.sessions import McpSessions

MAX_MCP_OVERHEAD_MS: Final = 5.0
ROUNDS, QUICK_ROUNDS = 300, 60
WARM_UP: Final = 10
SERVER_START_TIMEOUT_S: Final = 60.0
_ARGS: Final = Raw(b'{"text":"hello"}')


class OneServer:
    """Satisfies `McpDirectory`."""

    def __init__(self, url: str) -> None:
        self._server = McpServer(
            id=McpServerId(UUID(int=1)), slug="bench", display_name="Bench", url=url
        )

    async def servers(self, chat: Chat) -> Sequence[McpServer]:
        del chat
        return (self._server,)

    async def access(self, server: McpServer, chat: Chat) -> McpAccess:
        del chat
        return McpAccess(server=server)

    async def refused(self, server: McpServer, chat: Chat, access: McpAccess) -> McpAccess | None:
        del server, chat, access
        return None

    async def known_tools(self, server: McpServer, chat: Chat) -> tuple[ListedTool, ...]:
        del server, chat
        return ()

    async def keep_tools(
        self, server: McpServer, chat: Chat, tools: tuple[ListedTool, ...]
    ) -> None:
        del server, chat, tools


async def measure_mcp(*, quick: bool) -> list[ReportRow]:
    from mcp import Client  # noqa: PLC0415 - 0.8 s, and only this row needs it

    rounds = QUICK_ROUNDS if quick else ROUNDS
    async with _server_url() as url, _tool(url) as (tool, context), Client(url) as client:
        ours: list[float] = []
        plain: list[float] = []
        for _ in range(rounds + WARM_UP):
            began = time.perf_counter()
            output = await tool.run(context, _ARGS)
            between = time.perf_counter()
            await client.call_tool("echo", {"text": "hello"})
            plain.append((time.perf_counter() - between) * 1000)
            ours.append((between - began) * 1000)
            assert output.text == "hello", output.text
    ours, plain = ours[WARM_UP:], plain[WARM_UP:]
    more = [one - other for one, other in zip(ours, plain, strict=True)]
    return [
        at_most(
            "MCP call, more than the SDK's client",
            median(more),
            MAX_MCP_OVERHEAD_MS,
            unit=" ms",
            note=f"all of it {median(ours):.1f}, p95 {percentile(ours, 0.95):.1f} ms",
            baselines=Baselines(direct=median(plain)),
        )
    ]


@asynccontextmanager
async def _server_url() -> AsyncGenerator[str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.mcp_server"),
        cwd=CHECKOUT,
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=DEVNULL,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(SERVER_START_TIMEOUT_S):
            port = int(await process.stdout.readline())
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        await process.wait()


@asynccontextmanager
async def _tool(url: str) -> AsyncGenerator[tuple[McpTool, ToolContext]]:
    clock, directory = SystemClock(), OneServer(url)
    env = Env(clock=clock, emit=_ignore_event, new_id=uuid4, new_change_id=new_change_id)
    policy = DialPolicy(private_hosts=frozenset({"127.0.0.1"}))
    sessions = McpSessions(directory, env, policy)
    chat = Chat(
        id=ChatId(UUID(int=2)),
        owner_id=UserId(UUID(int=3)),
        root_chat_id=ChatId(UUID(int=2)),
        title="bench",
        created_at=clock.now(),
        updated_at=clock.now(),
        status="running",
        worker_id=WORKER,
        snapshot_version=1,
        history_version=1,
    )
    context = ToolContext(chat=chat, call_id=ToolCallId("call"), fence=Fence.of(chat))
    async with asyncio.TaskGroup() as group:
        running = group.create_task(sessions.run())
        await sessions.wait_started()
        [tool] = await McpTools(directory, sessions, env).tools(chat)
        yield tool, context
        running.cancel()


def _ignore_event(event: str, **fields: object) -> None:
    del event, fields
