"""Opens a session with a server, for the terminal and for its tests."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from chatd.client.connection import Connection
from chatd.client.http_session import open_api
from chatd.client.outbox import Outbox
from chatd.client.resources import Chat, Me
from chatd.client.server import ServerAddress, ServerApi
from chatd.domain.ids import ChatId
from chatd.domain.ports import Clock
from chatd.terminal.machine import Machine
from chatd.terminal.session import Session


@asynccontextmanager
async def open_session(
    server: ServerAddress,
    clock: Clock,
    chat_id: ChatId | None = None,
    *,
    machine: Machine | None = None,
) -> AsyncGenerator[Session]:
    """Connected until the end of the block. Raises ApiError and ServerUnreachable at the start,
    before a screen is shown: also if there is no chat with this id."""
    async with open_api(server) as plain:
        api = ServerApi(server, plain.http, clock=clock)
        impatient = api.without_patience()
        me = await impatient.get("/auth/me", Me)
        if chat_id is not None:
            await impatient.get(f"/chats/{chat_id}", Chat)
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
                    machine=machine or Machine(),
                )
            finally:
                for task in tasks:
                    task.cancel()
