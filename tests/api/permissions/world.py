"""An API server with callers of every kind, and requests made from rows of the table."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final, LiteralString, cast

from chatd.store.database.conn import Conn
from tests.api.permissions.callers import Callers
from tests.api.permissions.objects import ObjectFactory, Objects
from tests.api.permissions.table import Row
from tests.api.workspace_api import RecordingWorkspaces
from tests.support.api.server import ApiOptions, ApiReply, ApiServer, authorized, serve_api

_TABLES: Final = """
    SELECT relname FROM pg_class
    WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' ORDER BY relname"""


class World:
    def __init__(self, server: ApiServer, writes: LiteralString) -> None:
        self.server = server
        self.pool = server.replica.pool
        self.callers = Callers(server)
        self.objects = ObjectFactory(server, self.callers)
        self._writes: LiteralString = writes

    async def prepare(self) -> None:
        await self.callers.enter()
        await self.objects.prepare()

    async def send(self, row: Row, objects: Objects, caller: str) -> ApiReply:
        token = self.callers.tokens[caller]
        path = f"{row.path}{row.query}".format(**objects)
        if row.is_stream:
            return await self._open_stream(path, token)
        headers = {"content-type": row.content_type}
        body = self.objects.fill(row.body)
        return await self.server.ask(row.method, path, body, token=token, headers=headers)

    async def _open_stream(self, path: str, token: str | None) -> ApiReply:
        """A refusal, or the first line of the stream."""
        headers = {"Accept": "text/event-stream", **authorized(token)}
        async with self.server.http.get(f"/api/v1{path}", headers=headers) as response:
            is_open = response.status == 200
            content = await (response.content.readline() if is_open else response.read())
            found = {name.lower(): value for name, value in response.headers.items()}
            return ApiReply(status=response.status, headers=found, content=content)

    async def last_writes(self) -> dict[str, str]:
        """By table, the number of rows and the last transaction that wrote one: equal means that
        nothing was written or deleted."""
        rows = await self.pool.fetch(self._writes)
        return {row["name"]: row["written"] for row in rows}

    async def recorded_actions(self) -> list[str]:
        """Of the whole audit log, in order."""
        rows = await self.pool.fetch("SELECT action FROM audit_log ORDER BY id")
        return [row["action"] for row in rows]


async def _writes_of_every_table(conn: Conn) -> LiteralString:
    names = [row["relname"] for row in await conn.fetch(_TABLES)]
    selects = (
        f"SELECT '{name}' AS name, count(*) || ' ' || coalesce(max(xmin::text::bigint), 0)"
        f" AS written FROM {name}"
        for name in names
    )
    return cast("LiteralString", " UNION ALL ".join(selects))


@asynccontextmanager
async def world_on(dsn: str) -> AsyncGenerator[World]:
    options = ApiOptions(workspaces=RecordingWorkspaces, models=None)
    async with serve_api(dsn, options) as server:
        world = World(server, await _writes_of_every_table(server.replica.pool))
        await world.prepare()
        yield world
