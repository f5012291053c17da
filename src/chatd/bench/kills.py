"""A worker is killed in mid-answer: how long until another replica says the next word.

Each time a replica of its own is started, begins to answer, and is killed with SIGKILL. The viewer
is at the replica that survives. The new word is the first one of the next attempt.
"""

import asyncio
import time
from typing import Final

from chatd.bench.children import Server
from chatd.bench.line import connect
from chatd.bench.report import Line, at_most
from chatd.bench.script import Wish
from chatd.bench.sides import Chatd, events_head, interrupt
from chatd.bench.stage import Stage
from chatd.bench.stats import spread

WITHIN_S: Final = 3.0
_LONG: Final = Wish(tokens=1000, per_s=50)
_SAID: Final = 20


class Watch:
    """Sees parts of one chat go by, and tells when those of another attempt begin. A worker that
    takes over begins the same step again: its parts then count from the first."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.taken_over = asyncio.Event()
        self.taken_over_at = 0.0
        self._parts = 0
        self._reset = False

    def heard(self, line: bytes) -> None:
        if line.startswith(b'data: {"type":"preview_reset"'):
            self._reset = self.begun.is_set()
        if not line.startswith(b'data: {"type":"message_part"'):
            return
        if self._reset:
            self.taken_over_at = self.taken_over_at or time.perf_counter()
            self.taken_over.set()
        self._parts += 1
        if self._parts == _SAID:
            self.begun.set()


async def measure(stage: Stage, *, quick: bool) -> list[Line]:
    took = [await _kill(stage) for _ in range(2 if quick else 10)]
    found = spread(took)
    return [
        at_most(
            "kill -9 to the first new token elsewhere",
            found.middle,
            WITHIN_S,
            unit=" s",
            note=f"{len(took)} kills, {found}",
        )
    ]


async def _kill(stage: Stage) -> float:
    async with stage.another() as victim:
        watch = Watch()
        chat_id = await _begin(stage, victim)
        line = await connect(stage.server.port)
        async with asyncio.TaskGroup() as group:
            group.create_task(line.follow(events_head(chat_id), watch.heard))
            async with asyncio.timeout(60):
                await watch.begun.wait()
                killed_at = time.perf_counter()
                victim.process.kill()
                await watch.taken_over.wait()
            line.stop()
        line.close()
        await _interrupt(stage, chat_id)
        return watch.taken_over_at - killed_at


async def _begin(stage: Stage, victim: Server) -> str:
    """In its first moments a replica takes nothing, and another one does."""
    side, desk = Chatd(victim.port), await connect(victim.port)
    try:
        while not (made := await side.begin(desk, _LONG)).runs:
            await interrupt(desk, made.id)
            await stage.pause(0.2)
        return made.id
    finally:
        desk.close()


async def _interrupt(stage: Stage, chat_id: str) -> None:
    """It would go on for as long as it has words."""
    desk = await connect(stage.server.port)
    await interrupt(desk, chat_id)
    desk.close()
