"""Database round trips of a turn, of a tool call and of an idle chat.

A tap on the Unix socket between `chatd serve` and PostgreSQL counts protocol messages: a client
waits after each Sync and each simple Query, and after nothing else. Statements shared by all chats
(heartbeat, hints, journal) are reported separately: they grow with time, not with turns.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, quote, urlsplit

from bench.clients import ChatdClient, events_head, send_message
from bench.environment import BenchDatabase, BenchEnvironment, fresh_database, scratch_dir
from bench.fake_provider import TOKEN_MARK, AnswerScript
from bench.http_client import BenchConnection, open_connection
from bench.report import ReportRow, at_most
from chatd.pg.config import SOCKET_NAME
from chatd.store.account import credentials, users
from chatd.store.chat import chats, journal, subagents, workers
from chatd.store.database import notifications
from chatd.store.model import model_calls, model_configs, providers
from chatd.store.workspace import builds, workspaces

_TRIP_MESSAGES: Final = (b"S", b"Q")
_CHUNK_BYTES: Final = 65_536


class WireTap:
    """`dsn` leads through the tap. All sessions are counted together."""

    def __init__(self, dsn: str, socket: Path) -> None:
        self.dsn = dsn
        self.trips = 0
        self.statements: Counter[str] = Counter()
        self._socket = socket

    async def serve(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        server, upstream = await asyncio.open_unix_connection(self._socket)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._count(client, upstream))
                group.create_task(_forward(server, back))
        except* ConnectionError:
            pass
        finally:
            upstream.close()
            back.close()

    async def _count(self, client: asyncio.StreamReader, upstream: asyncio.StreamWriter) -> None:
        """The first message has no type byte; all others start with one, then their length."""
        tracker = StatementTracker()
        try:
            kind = b""
            while True:
                length = await client.readexactly(4)
                body = await client.readexactly(int.from_bytes(length) - 4)
                upstream.write(kind + length + body)
                statement = tracker.statement_for(kind, body)
                if kind in _TRIP_MESSAGES:
                    self.trips += 1
                    self.statements[statement] += 1
                kind = await client.readexactly(1)
        except asyncio.IncompleteReadError:
            upstream.write_eof()


class StatementTracker:
    """Finds the statement of a session's message by the name it was prepared under."""

    def __init__(self) -> None:
        self._prepared: dict[bytes, str] = {}
        self._bound = ""

    def statement_for(self, kind: bytes, body: bytes) -> str:
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


async def _forward(server: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
    while data := await server.read(_CHUNK_BYTES):
        back.write(data)
        await back.drain()
    back.write_eof()


@asynccontextmanager
async def open_tap(database: BenchDatabase) -> AsyncGenerator[WireTap]:
    with scratch_dir() as place:
        parts = urlsplit(database.dsn)
        query = parts.query.replace(_host(parts.query), quote(str(place), safe="/"))
        tap = WireTap(parts._replace(query=query).geturl(), Path(database.socket_dir) / SOCKET_NAME)
        server = await asyncio.start_unix_server(tap.serve, place / SOCKET_NAME)
        async with server:
            yield tap


def _host(query: str) -> str:
    return quote(parse_qs(query)["host"][0], safe="/")


MAX_TURN_TRIPS: Final = 3.0
MAX_TOOL_TRIPS: Final = 2.0

SHARED_STATEMENTS: Final[Mapping[str, str]] = {
    journal.APPEND: "journal",
    journal.TRUNCATE_OLDEST_SLOT: "journal",
    notifications.NOTIFY_MANY: "hints",
    notifications.PING: "hints",
    workers.HEARTBEAT: "tick",
    workers.DELETE_WORKERS: "tick",
    chats.LIST_VERSIONS: "poll",
    chats.LIST_RECENTLY_ACTIVE: "poll",
    model_calls.ROLL_UP: "books",
    model_calls.WRITE_OPEN_CALLS: "calls",
    model_calls.LIST_ABANDONED: "books",
    builds.ACQUIRE: "builds",
    workspaces.LIST_AGENTS_ON_HOST: "agents",
    model_configs.LIST_MODELS: "models",
    model_configs.LIST_OVERRIDES: "models",
    providers.LIST: "models",
    providers.LIST_KEYS: "models",
    workers.READ_BACKLOG: "backlog",
    # Once a minute for each token in use, however many requests it sends.
    credentials.LOAD: "accounts",
    credentials.LOAD_USER: "accounts",
    credentials.DELETE_EXPIRED: "accounts",
    credentials.DELETE_OLD: "accounts",
    users.DELETE_LEFT_SECRETS: "accounts",
    subagents.LIST_ALL_WAKEABLE: "poll",
}
_TOOL_CALLS: Final = 10
_IDLE_CHATS: Final = 50
_ANSWER_TIMEOUT_S: Final = 60.0


class TripCounter:
    """Round trips since the last call of `since`: those of chats, and the shared ones."""

    def __init__(self, tap: WireTap) -> None:
        self._tap = tap
        self._before = Counter(tap.statements)

    def since(self) -> tuple[Counter[str], Counter[str]]:
        now = Counter(self._tap.statements)
        new = now - self._before
        self._before = now
        own = Counter({text: count for text, count in new.items() if text not in SHARED_STATEMENTS})
        shared_counts: Counter[str] = Counter()
        for text, count in new.items():
            if text in SHARED_STATEMENTS:
                shared_counts[SHARED_STATEMENTS[text]] += count
        return own, shared_counts


class WatchedChat:
    """A chat with a viewer that stays connected."""

    def __init__(self, chat_id: str, connection: BenchConnection, viewer: BenchConnection) -> None:
        self._chat_id = chat_id
        self._connection = connection
        self._viewer = viewer
        self._missing_answers = 0
        self._answered = asyncio.Event()

    def on_event_line(self, line: bytes) -> None:
        """Count down the answers that are still missing."""
        if line.startswith(b'data: {"type":"message",') and b'"role":"assistant"' in line:
            self._missing_answers -= TOKEN_MARK in line
            if self._missing_answers <= 0:
                self._answered.set()

    async def run_turn(self, script: AnswerScript) -> None:
        self._missing_answers = 1
        self._answered.clear()
        await send_message(self._connection, self._chat_id, script)
        await self.wait_for_answer()

    async def wait_for_answer(self) -> None:
        async with asyncio.timeout(_ANSWER_TIMEOUT_S):
            await self._answered.wait()

    async def watch(self) -> None:
        await self._viewer.follow(events_head(self._chat_id), self.on_event_line)

    def close(self) -> None:
        self._viewer.stop()
        self._viewer.close()
        self._connection.close()


async def measure_round_trips(bench: BenchEnvironment, *, quick: bool) -> list[ReportRow]:
    async with (
        _embedded(bench.database) as database,
        open_tap(database) as tap,
        bench.another_replica(tap.dsn) as server,
    ):
        client = ChatdClient(server.port)
        connection, viewer = await open_connection(server.port), await open_connection(server.port)
        chat = WatchedChat(
            await client.create_chat_id(connection, AnswerScript(tokens=5)), connection, viewer
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(chat.watch())
            await chat.wait_for_answer()
            trips = TripCounter(tap)
            lines = [
                await _new_chat(client, connection, trips, bench),
                *await _turns(chat, trips, 10 if quick else 40),
                await _idle(server.port, trips, bench, 5 if quick else 20),
            ]
            chat.close()
        return lines


@asynccontextmanager
async def _embedded(database: BenchDatabase) -> AsyncGenerator[BenchDatabase]:
    """The tap needs a Unix socket, which an external server need not have."""
    if "host=" in database.dsn:
        yield database
    else:
        async with fresh_database() as own:
            yield own


async def _new_chat(
    client: ChatdClient, connection: BenchConnection, trips: TripCounter, bench: BenchEnvironment
) -> ReportRow:
    await bench.pause(0.5)
    trips.since()
    for _ in range(10):
        await client.create_chat_id(connection, AnswerScript(tokens=5))
    await bench.pause(1)
    own, _ = trips.since()
    per_chat = own.total() / 10
    return at_most(
        "round trips, new chat and its answer",
        per_chat,
        MAX_TURN_TRIPS,
        note=describe_statements(own, 10),
    )


async def _turns(chat: WatchedChat, trips: TripCounter, count: int) -> list[ReportRow]:
    for _ in range(3):
        await chat.run_turn(AnswerScript(tokens=5))
    trips.since()
    for _ in range(count):
        await chat.run_turn(AnswerScript(tokens=5))
    own, shared_counts = trips.since()
    turn = own.total() / count
    await chat.run_turn(AnswerScript(tokens=5, calls=_TOOL_CALLS))
    with_tools, _ = trips.since()
    tools = (with_tools.total() - turn) / _TOOL_CALLS
    shared = ", ".join(f"{what} {much / count:.1f}" for what, much in sorted(shared_counts.items()))
    return [
        at_most(
            "round trips, one-step turn",
            turn,
            MAX_TURN_TRIPS,
            note=f"{describe_statements(own, count)}; shared: {shared}",
        ),
        at_most("round trips, round of tools", tools, MAX_TOOL_TRIPS),
    ]


async def _idle(
    port: int, trips: TripCounter, bench: BenchEnvironment, seconds: float
) -> ReportRow:
    client, connection = ChatdClient(port), await open_connection(port)
    for _ in range(_IDLE_CHATS):
        await client.create_chat_id(connection, AnswerScript(tokens=1))
    connection.close()
    await bench.pause(1)
    trips.since()
    await bench.pause(seconds)
    own, shared_counts = trips.since()
    shared = ", ".join(
        f"{what} {n * 60 / seconds:.0f}" for what, n in sorted(shared_counts.items())
    )
    return at_most(
        "round trips, idle chat, a minute",
        own.total() * 60 / seconds / _IDLE_CHATS,
        0.0,
        note=f"{_IDLE_CHATS} chats; {describe_statements(own, 1) or 'none'};"
        f" for the whole process: {shared}",
    )


def describe_statements(statements: Counter[str], over: int) -> str:
    """Each statement by its first two words, with its count."""
    words = {text: " ".join(text.split()[:2]) for text in statements}
    return ", ".join(f"{words[text]} {count / over:g}" for text, count in statements.most_common())
