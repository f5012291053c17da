"""Ten thousand turns on one replica: memory does not grow, and nothing is left behind.

`make soak` runs them twice: through a pipe to a replica that reports what it holds, and over HTTP
to `chatd serve`. Every chat has a viewer. ARGS="--turns 500" makes it shorter.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from uuid import UUID

from aiohttp import ClientSession, TCPConnector
from msgspec import Struct

from chatd.domain.ids import ChatId
from chatd.store.database.conn import ConnectConfig
from chatd.store.database.pool import Pool, PoolConfig
from tests.support.chaos.killable_server import killable_server
from tests.support.chaos.planned_model import ToolServer
from tests.support.chaos.replica_process import ReplicaSetup
from tests.support.chaos.replica_resources import open_files, rss_mb
from tests.support.chaos.replicas import (
    ReplicaGone,
    ReplicaProcess,
    replica_fork_server,
    replica_process,
)
from tests.support.chaos.roaming_viewers import RoamingViewer
from tests.support.chaos.servers import HttpClient, Installation, ServerGroup
from tests.support.chaos.transcript_judge import TranscriptJudge
from tests.support.chaos.unreliable_model import SteadyModel
from tests.support.client_state import ClientState
from tests.support.eventually import eventually

CONCURRENT_CHATS = 8
TURNS_PER_CHAT = 10
SAMPLES = 40
WARM_UP = 0.2
"""The share of turns after which memory must not grow."""
MAX_GROWTH = 1.10
RELEASE_TIMEOUT_S = 90.0
TURN_TIMEOUT_S = 120.0

Chat = Callable[[int, int], Awaitable[None]]
"""Runs one chat, by its number, with this many turns."""


class MemoryReport(Struct, frozen=True, kw_only=True):
    turns: int
    warm_mb: float
    most_mb: float
    last_mb: float

    def check(self) -> None:
        assert self.most_mb <= self.warm_mb * MAX_GROWTH, f"it grows: {self}"

    def __str__(self) -> str:
        return (
            f"{self.turns} turns, {self.warm_mb:.1f} MB after warm-up, at most {self.most_mb:.1f},"
            f" {self.last_mb:.1f} in the end"
        )


async def _endure(turns: int, chat: Chat, pid: int) -> MemoryReport:
    """Run chats, several at once, and sample the memory."""
    chats = max(turns // TURNS_PER_CHAT, 1)
    numbers, sizes = iter(range(1, chats + 1)), list[float]()

    async def some() -> None:
        for number in numbers:
            await chat(number, TURNS_PER_CHAT)
            if number % max(chats // SAMPLES, 1) == 0:
                sizes.append(rss_mb(pid))

    await asyncio.gather(*(some() for _ in range(CONCURRENT_CHATS)))
    later = sizes[round(len(sizes) * WARM_UP) :]
    return MemoryReport(
        turns=chats * TURNS_PER_CHAT, warm_mb=later[0], most_mb=max(later), last_mb=rss_mb(pid)
    )


# By pipe


async def by_pipe(dsn: str, turns: int) -> MemoryReport:
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="chatd-soak-"))
        path = Path(directory) / "workshop"
        await stack.enter_async_context(ToolServer.running(path))
        model = await stack.enter_async_context(SteadyModel.running())
        model.answer_s = 0.0
        setup = ReplicaSetup(
            dsn=dsn, model_url=model.url, tool_socket=str(path), name="soak", heartbeat_s=1.0
        )
        fork_server = await stack.enter_async_context(replica_fork_server())
        replica = await stack.enter_async_context(replica_process(fork_server, setup))
        judge = TranscriptJudge()

        async def chat(number: int, turns: int) -> None:
            await _chat_by_pipe(replica, ChatId(UUID(int=number)), turns, judge)

        await chat(10**9, 1)
        before = await replica.resources()
        told = await _endure(turns, chat, replica.pid)

        async def as_before() -> bool:
            return (await replica.resources()).is_no_more_than(before)

        try:
            await eventually(as_before, within_s=RELEASE_TIMEOUT_S)
        except TimeoutError:
            raise AssertionError(f"{before} became {await replica.resources()}") from None
        await _check(dsn, judge)
        assert max(model.asked.values()) == 1, "a step was requested twice"
        return told


async def _chat_by_pipe(
    replica: ReplicaProcess, chat_id: ChatId, turns: int, judge: TranscriptJudge
) -> None:
    onlooker = RoamingViewer(chat_id)
    sent = [
        judge.record_send(chat_id, f"m{chat_id.int}x{turn} {turn % 2}") for turn in range(turns)
    ]
    await replica.create(chat_id, sent[0].text)
    for turn, message in enumerate(sent, 1):
        if turn > 1:
            await replica.send(chat_id, message.text)
        message.acked = True
        async with asyncio.timeout(TURN_TIMEOUT_S):
            while not _answered(onlooker.state, turn):
                with suppress(ReplicaGone):  # the database is busy
                    await onlooker.read(replica, lambda state, n=turn: _answered(state, n))


def _answered(state: ClientState, turn: int) -> bool:
    said = sum(message.role == "user" for message in state.messages.values())
    return said >= turn and state.status == "waiting"


# By HTTP


async def by_http(dsn: str, turns: int) -> MemoryReport:
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="chatd-soak-"))
        model = await stack.enter_async_context(SteadyModel.running())
        model.answer_s = 0.0
        installation = Installation(dsn=dsn, model_url=model.url, data_dir=Path(directory))
        servers = ServerGroup(installation, stack)
        await servers.add()
        pid, judge = servers.now[0].pid, TranscriptJudge()

        async def chat(number: int, turns: int) -> None:
            async with ClientSession(connector=TCPConnector(limit=0)) as http:
                await _chat_by_http(HttpClient(servers, http), number, turns, judge)

        await asyncio.gather(*(chat(10**6 - n, TURNS_PER_CHAT) for n in range(CONCURRENT_CHATS)))
        files = open_files(pid)
        told = await _endure(turns, chat, pid)

        async def as_before() -> bool:
            return open_files(pid) <= files

        await eventually(as_before, within_s=RELEASE_TIMEOUT_S)
        await _check(dsn, judge)
        await servers.now[0].terminate()
        return told


async def _chat_by_http(
    client: HttpClient, number: int, turns: int, judge: TranscriptJudge
) -> None:
    async with asyncio.TaskGroup() as group:
        watching: asyncio.Task[None] | None = None
        for turn in range(1, turns + 1):
            text = f"m{number}x{turn} 0"
            await client.send(text, key=f"00000000-0000-4000-8000-{number:06d}{turn:06d}")
            assert client.chat_id is not None
            judge.record_send(client.chat_id, text).acked = True
            watching = watching or group.create_task(client.watch())
            await client.until(lambda state, turn=turn: _answered(state, turn), TURN_TIMEOUT_S)
        if watching is not None:
            watching.cancel()


async def _check(dsn: str, judge: TranscriptJudge) -> None:
    pool = Pool(PoolConfig(connect=ConnectConfig(dsn=dsn)))
    try:
        await judge.wait_settled(pool, within_s=TURN_TIMEOUT_S)
        await judge.check(pool)
    finally:
        await pool.close()


async def _main(turns: int) -> None:
    async with killable_server() as server:
        for way in (by_pipe, by_http):
            told = await way(server.dsn, turns)
            sys.stdout.write(f"{way.__name__}: {told}; nothing left behind\n")
            sys.stdout.flush()
            told.check()


def main(args: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=10_000)
    asyncio.run(_main(parser.parse_args(args).turns))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
