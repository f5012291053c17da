"""A tap on the line to the database that counts round trips by the protocol's own messages.

A client waits for an answer after each Sync and each simple Query; nothing else makes a trip. Which
statement it was for is known by the name that it was prepared under.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, quote, urlsplit

from chatd.bench.ground import Ground, scratch_dir
from chatd.pg.layout import SOCKET_NAME

_ASKS: Final = (b"S", b"Q")
_CHUNK: Final = 65_536


class Tap:
    """`dsn` leads through it. One listener for all sessions; they are counted together."""

    def __init__(self, dsn: str, behind: Path) -> None:
        self.dsn = dsn
        self.trips = 0
        self.statements: Counter[str] = Counter()
        self._behind = behind

    async def serve(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        server, there = await asyncio.open_unix_connection(self._behind)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._count(client, there))
                group.create_task(_pass_on(server, back))
        except* ConnectionError:
            pass
        finally:
            there.close()
            back.close()

    async def _count(self, client: asyncio.StreamReader, there: asyncio.StreamWriter) -> None:
        """The first message has no type; all others begin with one, then their length."""
        asked = Asked()
        try:
            kind = b""
            while True:
                length = await client.readexactly(4)
                body = await client.readexactly(int.from_bytes(length) - 4)
                there.write(kind + length + body)
                statement = asked.by(kind, body)
                if kind in _ASKS:
                    self.trips += 1
                    self.statements[statement] += 1
                kind = await client.readexactly(1)
        except asyncio.IncompleteReadError:
            there.write_eof()


class Asked:
    """Which statement a session's message is about, as far as it can tell."""

    def __init__(self) -> None:
        self._prepared: dict[bytes, str] = {}
        self._bound = ""

    def by(self, kind: bytes, body: bytes) -> str:
        match kind:
            case b"P":
                name, query = body.split(b"\0", 2)[:2]
                self._prepared[name] = self._bound = query.decode()
            case b"B":
                self._bound = self._prepared.get(body.split(b"\0", 2)[1], "")
            case b"Q":
                return body.rstrip(b"\0").decode()
            case _:
                pass
        return self._bound


async def _pass_on(server: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
    while data := await server.read(_CHUNK):
        back.write(data)
        await back.drain()
    back.write_eof()


@asynccontextmanager
async def tapped(ground: Ground) -> AsyncGenerator[Tap]:
    with scratch_dir() as place:
        parts = urlsplit(ground.dsn)
        query = parts.query.replace(_host(parts.query), quote(str(place), safe="/"))
        tap = Tap(parts._replace(query=query).geturl(), Path(ground.socket_dir) / SOCKET_NAME)
        server = await asyncio.start_unix_server(tap.serve, place / SOCKET_NAME)
        async with server:
            yield tap


def _host(query: str) -> str:
    return quote(parse_qs(query)["host"][0], safe="/")
