"""Latency: the first token of a new chat, the first answer after a start, takeover after a kill.

For the takeover a replica starts an answer and gets SIGKILL. The viewer is connected to another
replica and waits for the first part of the next attempt.
"""

import asyncio
import time
from pathlib import Path
from typing import Final

from bench.child_processes import ChatdProcess, start_chatd
from bench.clients import BenchClient, ChatdClient, events_head, interrupt
from bench.environment import BenchEnvironment, scratch_dir, server_variables
from bench.fake_provider import AnswerScript
from bench.http_client import open_connection
from bench.proc_stats import percentile, spread
from bench.report import Baselines, ReportRow, at_most

MAX_FIRST_TOKEN_MS: Final = 10.0
_SHORT_ANSWER: Final = AnswerScript(tokens=3, per_s=100)
_WARM_UP_ROUNDS: Final = 5


async def measure_first_token(bench: BenchEnvironment, *, quick: bool) -> list[ReportRow]:
    """Alternately, so that other load slows all three. Chat and viewer are new each time."""
    clients: tuple[BenchClient, ...] = (
        bench.direct_client(),
        bench.relay_client(),
        bench.chatd_client(),
    )
    took: tuple[list[float], ...] = ([], [], [])
    for number in range(_WARM_UP_ROUNDS + (15 if quick else 60)):
        for client, samples in zip(clients, took, strict=True):
            times = await client.ask(_SHORT_ANSWER)
            if number >= _WARM_UP_ROUNDS:
                samples.append(times.first_s * 1000)
    for client in clients:
        client.close()
    direct, relay, ours = (spread(samples).median for samples in took)
    late = percentile(took[2], 0.95) - percentile(took[0], 0.95)
    return [
        at_most(
            "first token, new chat, over direct, p50",
            ours - direct,
            MAX_FIRST_TOKEN_MS,
            unit=" ms",
            note=f"p95 {late:.1f}; direct itself {direct:.1f}",
            baselines=Baselines(direct=0.0, relay=relay - direct),
        )
    ]


MAX_WARM_START_S: Final = 2.0


async def measure_start(bench: BenchEnvironment, *, quick: bool) -> list[ReportRow]:
    """The first start creates the database; the others are warm."""
    with scratch_dir() as home:
        cold = await _start(bench, home)
        warm = spread([await _start(bench, home) for _ in range(2 if quick else 5)])
    note = f"{warm}; with an empty directory {cold:.1f} s"
    return [
        at_most("serve to first answer, warm", warm.median, MAX_WARM_START_S, unit=" s", note=note)
    ]


async def _start(bench: BenchEnvironment, home: Path) -> float:
    began = time.perf_counter()
    flags = ("--data-dir", str(home / "data"))
    async with start_chatd(home, server_variables(bench.provider), *flags) as server:
        client = ChatdClient(server.port)
        times = await client.ask(AnswerScript(tokens=2, per_s=50))
        client.close()
        return times.first_at - began


MAX_TAKEOVER_S: Final = 3.0
_LONG_ANSWER: Final = AnswerScript(tokens=1000, per_s=50)
_PARTS_BEFORE_KILL: Final = 20


class AttemptWatch:
    """Notices the first part of the next attempt in a chat's events. A worker that takes over
    repeats the step, which resets the live parts."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.taken_over = asyncio.Event()
        self.taken_over_at = 0.0
        self._parts = 0
        self._reset = False

    def on_event_line(self, line: bytes) -> None:
        if line.startswith(b'data: {"type":"preview_reset"'):
            self._reset = self.started.is_set()
        if not line.startswith(b'data: {"type":"message_part"'):
            return
        if self._reset:
            self.taken_over_at = self.taken_over_at or time.perf_counter()
            self.taken_over.set()
        self._parts += 1
        if self._parts == _PARTS_BEFORE_KILL:
            self.started.set()


async def measure_takeover(bench: BenchEnvironment, *, quick: bool) -> list[ReportRow]:
    took = [await _kill(bench) for _ in range(2 if quick else 10)]
    found = spread(took)
    return [
        at_most(
            "kill -9 to the first new token elsewhere",
            found.median,
            MAX_TAKEOVER_S,
            unit=" s",
            note=f"{len(took)} kills, {found}",
        )
    ]


async def _kill(bench: BenchEnvironment) -> float:
    async with bench.another_replica() as victim:
        watch = AttemptWatch()
        chat_id = await _start_answer(bench, victim)
        viewer = await open_connection(bench.server.port)
        async with asyncio.TaskGroup() as group:
            group.create_task(viewer.follow(events_head(chat_id), watch.on_event_line))
            async with asyncio.timeout(60):
                await watch.started.wait()
                killed_at = time.perf_counter()
                victim.process.kill()
                await watch.taken_over.wait()
            viewer.stop()
        viewer.close()
        await _interrupt(bench, chat_id)
        return watch.taken_over_at - killed_at


async def _start_answer(bench: BenchEnvironment, victim: ChatdProcess) -> str:
    """Repeat until the new replica itself acquires the chat; just after its start it does not."""
    client, connection = ChatdClient(victim.port), await open_connection(victim.port)
    try:
        while not (made := await client.create_chat(connection, _LONG_ANSWER)).is_running:
            await interrupt(connection, made.id)
            await bench.pause(0.2)
        return made.id
    finally:
        connection.close()


async def _interrupt(bench: BenchEnvironment, chat_id: str) -> None:
    """End the long answer."""
    connection = await open_connection(bench.server.port)
    await interrupt(connection, chat_id)
    connection.close()
