"""What becomes of replicas, their network and their database, by chance and with a seed."""

import asyncio
import random
from collections import Counter
from contextlib import AsyncExitStack, suppress
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from tests.support.crash import MortalServer
from tests.support.nursery import Nursery
from tests.support.proxy import Proxy, proxy_to
from tests.support.replica_process import DieAt, Setup
from tests.support.replicas import ReplicaProcess, replica_process

POINTS: Final = (
    "chats_acquired",
    "action",
    "step_committed",
    "drain_started",
    "runner_left",
    "chat_reaped",
    "task_started",
    "tool_finished",
    "tool_started",
)
"""Events at which a replica may be made to die."""

WEIGHTS: Final = {
    "kill": 25,
    "leave": 20,
    "freeze": 12,
    "cut": 10,
    "cut_off": 5,
    "stall": 6,
    "strand": 4,
    "deafen": 4,
    "database": 4,
    "spare": 10,
}
"""What strikes, and how often. Frozen, cut off and stalled replicas come back, some of them later
than their lease."""

AWHILE: Final = (0.5, 3.0, 10.0, 45.0)


class Chances(Struct, frozen=True, kw_only=True):
    seed: int
    seconds: float = 1800
    replicas: int = 3
    people: int = 20


class Replicas:
    """Those that run now, each with a network of its own to the database. One that has ended is
    replaced, sooner or later."""

    def __init__(self, born_in: Nursery, setup: Setup, dice: random.Random) -> None:
        self.now: list[ReplicaProcess] = []
        self.fates: Counter[str] = Counter()
        self._born_in = born_in
        self._setup = setup
        self._dice = dice
        self._count = 0
        self._homes: dict[ReplicaProcess, AsyncExitStack] = {}
        self._lines: dict[ReplicaProcess, Proxy] = {}

    async def add(self, *, doomed: bool = False) -> ReplicaProcess:
        self._count += 1
        due = DieAt(event=self._dice.choice(POINTS), nth=self._dice.randint(1, 20))
        home = AsyncExitStack()
        try:
            line = await home.enter_async_context(proxy_to(self._setup.dsn))
            setup = replace(
                self._setup,
                dsn=line.dsn,
                name=f"soak-{self._count}",
                die_at=due if doomed else None,
            )
            replica = await home.enter_async_context(replica_process(self._born_in, setup))
        except BaseException:
            await home.aclose()
            raise
        self.now.append(replica)
        self._homes[replica] = home
        self._lines[replica] = line
        return replica

    async def bury(self) -> int:
        """Of those that have ended; says how many they were."""
        dead = [replica for replica in self.now if not replica.alive]
        for replica in dead:
            self.now.remove(replica)
            del self._lines[replica]
            await self._homes.pop(replica).aclose()
        return len(dead)

    def any(self) -> ReplicaProcess | None:
        alive = [replica for replica in self.now if replica.alive]
        return self._dice.choice(alive) if alive else None

    def line_of(self, replica: ReplicaProcess) -> Proxy | None:
        return self._lines.get(replica)

    async def close(self) -> None:
        for home in self._homes.values():
            await home.aclose()


class Fate:
    """Strikes every second or so."""

    def __init__(
        self, replicas: Replicas, chances: Chances, dice: random.Random, server: MortalServer | None
    ) -> None:
        self._replicas = replicas
        self._chances = chances
        self._dice = dice
        self._server = server
        self._outage = asyncio.Lock()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                await asyncio.sleep(self._dice.uniform(0.2, 2.0))
                await self._replicas.bury()
                if len(self._replicas.now) < self._chances.replicas:
                    # With its database away one may not get up in time.
                    with suppress(TimeoutError):
                        await self._replicas.add(doomed=self._dice.random() < 0.4)
                elif (victim := self._replicas.any()) is not None:
                    group.create_task(self._strike(victim))

    async def _strike(self, victim: ReplicaProcess) -> None:
        kind = self._dice.choices(list(WEIGHTS), weights=list(WEIGHTS.values()))[0]
        if kind == "database" and (self._server is None or self._outage.locked()):
            kind = "spare"
        self._replicas.fates[kind] += 1
        line = self._replicas.line_of(victim)
        match kind:
            case "kill":
                victim.kill()
            case "leave":
                victim.leave()
            case "freeze":
                victim.freeze()
                await asyncio.sleep(self._dice.choice(AWHILE))
                victim.thaw()
            case "database":
                await self._cut_power()
            case "spare":
                pass
            case _ if line is not None:
                await self._tear(line, kind)
            case _:
                pass

    async def _tear(self, line: Proxy, kind: str) -> None:
        match kind:
            case "cut":
                line.cut()
            case "cut_off":
                line.refuse(new=True)
                line.cut()
                await asyncio.sleep(self._dice.choice(AWHILE))
                line.refuse(new=False)
            case "stall":
                line.stall()
                await asyncio.sleep(self._dice.choice(AWHILE))
                line.resume()
            case "strand":
                line.strand()
            case _:
                line.deafen()

    async def _cut_power(self) -> None:
        assert self._server is not None
        async with self._outage:
            await self._server.kill()
            await asyncio.sleep(self._dice.choice((0.1, 3.0)))
            await self._server.revive()
