"""Three servers are restarted in turn, repeatedly, while chats run.

`make rolling` does this every 20 seconds for five minutes with 50 chats; ARGS="--seconds 30
--chats 8" makes it shorter. No message is lost, no step is requested from the model twice, and
every viewer ends with the state of the database.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from aiohttp import ClientSession, TCPConnector
from msgspec import Struct
from msgspec.structs import replace

from chatd.store.database.conn import ConnectConfig
from chatd.store.database.pool import Pool, PoolConfig
from tests.support.chaos.killable_server import killable_server
from tests.support.chaos.servers import HttpClient, Installation, ServerGroup
from tests.support.chaos.transcript_judge import TranscriptJudge
from tests.support.chaos.unreliable_model import SteadyModel
from tests.support.client_state import ClientState, read_state

SETTLE_TIMEOUT_S = 60.0
TURN_TIMEOUT_S = 120.0


class RestartPlan(Struct, frozen=True, kw_only=True):
    """`restarts` in all; `pause_s` from one to the next; an answer takes `answer_s`. A client sends
    `at_once` messages, all but the first into the queue. `old` is the program that the first
    servers run."""

    restarts: int = 15
    pause_s: float = 20.0
    chats: int = 50
    replicas: int = 3
    answer_s: float = 4.0
    at_once: int = 1
    old: Path | None = None


class RestartReport(Struct, frozen=True, kw_only=True):
    messages: int
    model_calls: int
    restarts: int
    connections: int
    slowest_exit_s: float

    def __str__(self) -> str:
        return (
            f"{self.restarts} restarts, {self.messages} messages, {self.model_calls} model calls,"
            f" {self.connections} connections of viewers, slowest exit {self.slowest_exit_s:.1f} s"
        )


class ChattingClient:
    """Has one chat, and sends the next message after each answer."""

    def __init__(
        self,
        number: int,
        client: HttpClient,
        judge: TranscriptJudge,
        done: asyncio.Event,
        at_once: int = 1,
    ) -> None:
        self._number = number
        self._at_once = at_once
        self._client = client
        self._judge = judge
        self._done = done

    async def chat_until_done(self) -> None:
        watching: asyncio.Task[None] | None = None
        async with asyncio.TaskGroup() as group:
            turn = 0
            while turn == 0 or not self._done.is_set():
                for _ in range(self._at_once):
                    turn += 1
                    await self._say(turn)
                watching = watching or group.create_task(self._client.watch())
                await self._client.until(_answered(turn), TURN_TIMEOUT_S)
            if watching is not None:
                watching.cancel()

    async def _say(self, turn: int) -> None:
        text = f"m{self._number}x{turn} 0"
        await self._client.send(text, key=f"00000000-0000-4000-8000-{self._number:06d}{turn:06d}")
        assert self._client.chat_id is not None
        self._judge.record_send(self._client.chat_id, text).acked = True


def _answered(turn: int) -> Callable[[ClientState], bool]:
    return lambda state: len(state.messages) >= turn * 2 and state.status == "waiting"


async def roll(dsn: str, plan: RestartPlan) -> RestartReport:
    """Raises AssertionError if a client noticed a restart."""
    judge = TranscriptJudge()
    async with AsyncExitStack() as stack:
        data_dir = stack.enter_context(tempfile.TemporaryDirectory(prefix="chatd-roll-"))
        model = await stack.enter_async_context(SteadyModel.running())
        model.answer_s = plan.answer_s
        http = await stack.enter_async_context(ClientSession(connector=TCPConnector(limit=0)))
        installation = Installation(dsn=dsn, model_url=model.url, data_dir=Path(data_dir))
        servers = ServerGroup(installation, stack)
        first = installation if plan.old is None else replace(installation, program=plan.old)
        await servers.add(first)  # creates the schema of its version
        await asyncio.gather(*(servers.add(first) for _ in range(plan.replicas - 1)))
        clients = [HttpClient(servers, http) for _ in range(plan.chats)]
        slowest_s = await _restart_under(clients, servers, model, judge, plan)
        await _look(dsn, judge, clients)
        _paid_once(model)
        return RestartReport(
            messages=len(judge.sent),
            model_calls=sum(model.asked.values()),
            restarts=plan.restarts,
            connections=sum(client.connections for client in clients),
            slowest_exit_s=slowest_s,
        )


async def _restart_under(
    clients: Sequence[HttpClient],
    servers: ServerGroup,
    model: SteadyModel,
    judge: TranscriptJudge,
    plan: RestartPlan,
) -> float:
    done = asyncio.Event()
    chatting = [
        ChattingClient(number, client, judge, done, plan.at_once)
        for number, client in enumerate(clients, 1)
    ]
    # Of two versions, half of the chats begin when both of them run.
    early = len(chatting) if plan.old is None else len(chatting) // 2
    async with asyncio.TaskGroup() as group:
        for one in chatting[:early]:
            group.create_task(one.chat_until_done())
        await model.busy(early)
        first_s = await servers.restart_in_turn(1, plan.pause_s)
        for one in chatting[early:]:
            group.create_task(one.chat_until_done())
        await model.busy(len(chatting))
        slowest_s = await servers.restart_in_turn(plan.restarts - 1, plan.pause_s)
        done.set()
    return max(first_s, slowest_s)


def _paid_once(model: SteadyModel) -> None:
    twice = {step: times for step, times in model.asked.items() if times > 1}
    assert twice == {}, f"steps requested twice: {twice}"
    assert model.refused == [], "the model refused a request"


async def _look(dsn: str, judge: TranscriptJudge, clients: Sequence[HttpClient]) -> None:
    pool = Pool(PoolConfig(connect=ConnectConfig(dsn=dsn)))
    try:
        await judge.wait_settled(pool, within_s=SETTLE_TIMEOUT_S)
        await judge.check(pool)
        for client in clients:
            assert client.chat_id is not None
            meant = await read_state(pool, client.chat_id)
            assert client.state.settled() == meant, f"a viewer of {client.chat_id} is stale"
    finally:
        await pool.close()


async def _main(plan: RestartPlan) -> RestartReport:
    async with killable_server() as server:
        return await roll(server.dsn, plan)


def main(args: Sequence[str]) -> int:
    plan = RestartPlan()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=plan.restarts * plan.pause_s)
    parser.add_argument("--every", type=float, default=plan.pause_s)
    parser.add_argument("--chats", type=int, default=plan.chats)
    parser.add_argument("--replicas", type=int, default=plan.replicas)
    asked = parser.parse_args(args)
    plan = RestartPlan(
        restarts=max(round(asked.seconds / asked.every), 1),
        pause_s=asked.every,
        chats=asked.chats,
        replicas=asked.replicas,
    )
    told = asyncio.run(_main(plan))
    sys.stdout.write(f"no client noticed: {told}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
