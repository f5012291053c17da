"""What a worker process has of MCP servers, on the database of a test."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from chatd.clock import SystemClock
from chatd.domain.ids import McpServerId, UserId
from chatd.domain.mcp.servers import McpAccess
from chatd.domain.ports import Clock
from chatd.sealed_secrets import KeyRing
from chatd.services.mcp_servers import McpServers
from chatd.store.database.pool import Pool
from tests.support.api.server import KEY_RING, heard_changes
from tests.support.factories import OWNER
from tests.support.outcomes import present
from tests.support.stream_replica import env_with


class McpWorker:
    def __init__(self, runtime: McpServers) -> None:
        self.runtime = runtime
        self.directory = runtime.directory

    async def access(self, server_id: McpServerId, user: UserId = OWNER) -> McpAccess:
        stored = present(await self.directory.find(server_id))
        return await self.directory.access_of(stored.server, user)


@asynccontextmanager
async def mcp_worker(
    pool: Pool, clock: Clock | None = None, ring: KeyRing = KEY_RING
) -> AsyncGenerator[McpWorker]:
    runtime = McpServers(
        pool,
        heard_changes(),
        env_with(clock or SystemClock()),
        ring,
        hosts=frozenset({"127.0.0.1"}),
    )
    async with asyncio.TaskGroup() as group:
        running = group.create_task(runtime.run())
        await runtime.wait_started()
        try:
            yield McpWorker(runtime)
        finally:
            running.cancel()
