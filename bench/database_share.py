"""What a chat costs PostgreSQL: CPU time and bytes of its log (WAL), for a new chat with its
answer, a further turn, 1,000 live tokens, and an open chat in which nothing happens.

docs/scaling.md says from it how many chats one PostgreSQL bears."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from msgspec import Struct

from bench.clients import ChatdClient, ask_many, events_head, send_message
from bench.environment import BenchEnvironment
from bench.fake_provider import AnswerScript
from bench.http_client import BenchConnection, open_connection
from bench.proc_stats import spread
from bench.report import ReportRow, without_target

CHATS_AT_ONCE: Final = 100
IDLE_VIEWERS: Final = 100
_SHORT: Final = AnswerScript(tokens=20)
_WAL: Final = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8"
_STATUS: Final = b'data: {"type":"status"'


class _Cost(Struct, frozen=True, kw_only=True):
    cpu_ms: float
    wal_kb: float

    def over(self, count: float) -> "_Cost":
        return _Cost(cpu_ms=self.cpu_ms / count, wal_kb=self.wal_kb / count)


class _Meter:
    def __init__(self, bench: BenchEnvironment) -> None:
        self._database = bench.database

    async def cost(self, work: Awaitable[object]) -> _Cost:
        cpu_s, wal = self._database.server_cpu_s(), await self._wal()
        await work
        return _Cost(
            cpu_ms=(self._database.server_cpu_s() - cpu_s) * 1000,
            wal_kb=(await self._wal() - wal) / 1000,
        )

    async def _wal(self) -> float:
        async with self._database.session() as session:
            return await session.fetchval(_WAL)


async def measure_database_share(bench: BenchEnvironment, *, quick: bool) -> list[ReportRow]:
    rounds = 3 if quick else 9
    meter, client = _Meter(bench), bench.chatd_client()
    await ask_many(client, _SHORT, CHATS_AT_ONCE)
    created = [
        (await meter.cost(ask_many(client, _SHORT, CHATS_AT_ONCE))).over(CHATS_AT_ONCE)
        for _ in range(rounds)
    ]
    tokens = 200 if quick else 600
    long = AnswerScript(tokens=tokens, per_s=50)
    streamed = [
        (await meter.cost(ask_many(client, long, CHATS_AT_ONCE))).over(CHATS_AT_ONCE)
        for _ in range(1 if quick else 3)
    ]
    turns = await _measure_turns(bench, meter, client, rounds)
    idle = await _measure_idle(bench, meter, client, 10 if quick else 60)
    client.close()
    base_cpu, base_wal = _median(created, _cpu), _median(created, _wal)
    live = 1000 / (tokens - _SHORT.tokens)
    return [
        *_rows("a new chat with its answer", created),
        *_rows("a further turn", turns),
        without_target(
            "1,000 live tokens, PostgreSQL CPU",
            max(_median(streamed, _cpu) - base_cpu, 0.0) * live,
            unit=" ms",
            note=f"answers of {tokens} tokens at 50/s, less the new chat",
        ),
        without_target(
            "1,000 live tokens, WAL",
            max(_median(streamed, _wal) - base_wal, 0.0) * live,
            unit=" KB",
            note="the journal is not logged; the stored answer is",
        ),
        without_target(
            f"{IDLE_VIEWERS} open chats at rest, PostgreSQL CPU for a second",
            idle.cpu_ms,
            unit=" ms",
            note=f"the server's own work included; WAL {idle.wal_kb:.1f} KB/s",
        ),
    ]


async def _measure_turns(
    bench: BenchEnvironment, meter: _Meter, client: ChatdClient, rounds: int
) -> list[_Cost]:
    """Turns of chats that are open and follow one another closely."""
    async with asyncio.TaskGroup() as group:
        chats = [await _OpenChat.create(bench, client, group) for _ in range(20)]

        async def take_turns() -> None:
            async with asyncio.TaskGroup() as turns:
                for chat in chats:
                    turns.create_task(chat.take_turns(5))

        costs = [(await meter.cost(take_turns())).over(5 * len(chats)) for _ in range(rounds)]
        for chat in chats:
            chat.close()
    return costs


async def _measure_idle(
    bench: BenchEnvironment, meter: _Meter, client: ChatdClient, seconds: float
) -> _Cost:
    async with asyncio.TaskGroup() as group:
        chats = [await _OpenChat.create(bench, client, group) for _ in range(IDLE_VIEWERS)]
        # What follows the last answers, such as the search index, is not a chat at rest.
        await bench.pause(5)
        cost = (await meter.cost(bench.pause(seconds))).over(seconds)
        for chat in chats:
            chat.close()
    return cost


class _OpenChat:
    """A chat with a viewer that knows when its turns end."""

    def __init__(self, chat_id: str, connection: BenchConnection, line: BenchConnection) -> None:
        self._chat_id = chat_id
        self._connection = connection
        self._line = line
        self._at_rest = asyncio.Event()

    @classmethod
    async def create(
        cls, bench: BenchEnvironment, client: ChatdClient, group: asyncio.TaskGroup
    ) -> "_OpenChat":
        connection, line = [await open_connection(bench.server.port) for _ in range(2)]
        chat = cls(await client.create_chat_id(connection, _SHORT), connection, line)
        group.create_task(line.follow(events_head(chat._chat_id), chat._on_line))
        await chat._rest()
        return chat

    async def take_turns(self, count: int) -> None:
        for _ in range(count):
            self._at_rest.clear()
            await send_message(self._connection, self._chat_id, _SHORT)
            await self._rest()

    def close(self) -> None:
        self._line.stop()
        self._line.close()
        self._connection.close()

    async def _rest(self) -> None:
        async with asyncio.timeout(60):
            await self._at_rest.wait()

    def _on_line(self, text: bytes) -> None:
        if text.startswith(_STATUS) and b'"waiting"' in text:
            self._at_rest.set()


def _rows(name: str, costs: list[_Cost]) -> list[ReportRow]:
    note = str(spread([cost.cpu_ms for cost in costs]))
    return [
        without_target(f"{name}, PostgreSQL CPU", _median(costs, _cpu), unit=" ms", note=note),
        without_target(f"{name}, WAL", _median(costs, _wal), unit=" KB"),
    ]


def _median(costs: list[_Cost], of: Callable[[_Cost], float]) -> float:
    return spread([of(cost) for cost in costs]).median


def _cpu(cost: _Cost) -> float:
    return cost.cpu_ms


def _wal(cost: _Cost) -> float:
    return cost.wal_kb
