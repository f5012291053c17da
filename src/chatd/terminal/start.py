"""Opens a session with a server, for the terminal and for its tests."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import aiohttp

from chatd.client.connection import Connection
from chatd.client.outbox import Outbox
from chatd.client.resources import Me
from chatd.client.server import ServerAddress, ServerApi
from chatd.domain.ports import Clock
from chatd.terminal.session import Session


@asynccontextmanager
async def open_session(server: ServerAddress, clock: Clock) -> AsyncGenerator[Session]:
    """Connected until the end of the block. Raises ApiError and ServerUnreachable at the start,
    before a screen is shown."""
    async with aiohttp.ClientSession() as http:
        api = ServerApi(server, http, clock=clock)
        me = await api.without_patience().get("/auth/me", Me)
        connection = Connection(api)
        outbox = Outbox(api, connection)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(connection.run()), group.create_task(outbox.run())]
            try:
                yield Session(
                    server=server,
                    api=api,
                    connection=connection,
                    outbox=outbox,
                    me=me,
                    clock=clock,
                )
            finally:
                for task in tasks:
                    task.cancel()
