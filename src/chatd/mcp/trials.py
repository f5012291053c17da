"""A connection to an MCP server that an administrator asks for, as a test."""

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING, Final

from chatd.domain.ids import UserId
from chatd.domain.mcp.results import McpFault
from chatd.domain.mcp.servers import McpAccess, ServerTrial
from chatd.domain.mcp.tools import ListedTool
from chatd.domain.ports import Env
from chatd.mcp.directory import ServerDirectory
from chatd.mcp.limits import DEFAULT_LIMITS, DialPolicy, McpLimits
from chatd.store.mcp_servers import StoredMcpServer

if TYPE_CHECKING:
    from chatd.mcp.connection import McpConnection

TRIAL_CLOSE_S: Final = 5.0
"""How long the end of a test connection may take."""


class ServerTrials:
    """Uses the server as it is stored, also if it is disabled."""

    def __init__(
        self,
        directory: ServerDirectory,
        env: Env,
        policy: DialPolicy,
        *,
        limits: McpLimits = DEFAULT_LIMITS,
    ) -> None:
        self._directory = directory
        self._env = env
        self._policy = policy
        self._limits = limits

    async def test(self, stored: StoredMcpServer, user: UserId) -> ServerTrial:
        """Connect and list the tools, as this user."""
        started = self._env.clock.monotonic()
        tools: tuple[ListedTool, ...] = ()
        access = await self._directory.access_of(stored.server, user)
        problem = access.problem
        if not problem:
            problem, tools = await self._list(access)
        took_s = self._env.clock.monotonic() - started
        return ServerTrial(duration_ms=int(took_s * 1000), problem=problem, tools=tools)

    async def _list(self, access: McpAccess) -> tuple[str, tuple[ListedTool, ...]]:
        """The problem, or the tools."""
        # In a thread: the import takes most of a second, once.
        module = await asyncio.to_thread(import_module, "chatd.mcp.connection")
        connection: McpConnection = module.McpConnection(
            access, self._policy, self._limits, self._env
        )
        async with asyncio.TaskGroup() as group:
            task = group.create_task(connection.run(), name="mcp test")
            try:
                await asyncio.shield(connection.ready)
                return "", connection.tools
            except McpFault as fault:
                return fault.message, ()
            finally:
                connection.retire()
                _, running = await asyncio.wait({task}, timeout=TRIAL_CLOSE_S)
                for late in running:
                    late.cancel()
