"""Random, seeded faults of replicas, their connections and their database."""

import asyncio
import random
from collections import Counter
from contextlib import AsyncExitStack, suppress
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from tests.support.chaos.fork_server import ForkServer
from tests.support.chaos.killable_server import KillableServer
from tests.support.chaos.replica_process import DieAt, ReplicaSetup
from tests.support.chaos.replicas import ReplicaProcess, replica_process
from tests.support.proxy import Proxy, proxy_to

EXIT_EVENTS: Final = (
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

FAULT_WEIGHTS: Final = {
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
"""Faults and how often each occurs. Frozen, disconnected and stalled replicas come back, some of
them after their lease has expired."""

OUTAGES_S: Final = (0.5, 3.0, 10.0, 45.0)


class SoakConfig(Struct, frozen=True, kw_only=True):
    seed: int
    seconds: float = 1800
    replicas: int = 3
    users: int = 20


class RunningReplicas:
    """The running replicas, each with its own proxy to the database. A replica that exits is
    replaced later."""

    def __init__(self, fork_server: ForkServer, setup: ReplicaSetup, dice: random.Random) -> None:
        self.now: list[ReplicaProcess] = []
        self.faults: Counter[str] = Counter()
        self._fork_server = fork_server
        self._setup = setup
        self._dice = dice
        self._count = 0
        self._stacks: dict[ReplicaProcess, AsyncExitStack] = {}
        self._proxies: dict[ReplicaProcess, Proxy] = {}

    async def add(self, *, doomed: bool = False) -> ReplicaProcess:
        self._count += 1
        due = DieAt(event=self._dice.choice(EXIT_EVENTS), nth=self._dice.randint(1, 20))
        home = AsyncExitStack()
        try:
            line = await home.enter_async_context(proxy_to(self._setup.dsn))
            setup = replace(
                self._setup,
                dsn=line.dsn,
                name=f"soak-{self._count}",
                die_at=due if doomed else None,
            )
            replica = await home.enter_async_context(replica_process(self._fork_server, setup))
        except BaseException:
            await home.aclose()
            raise
        self.now.append(replica)
        self._stacks[replica] = home
        self._proxies[replica] = line
        return replica

    async def reap(self) -> int:
        """Forget the replicas that have exited; return their number."""
        dead = [replica for replica in self.now if not replica.alive]
        for replica in dead:
            self.now.remove(replica)
            del self._proxies[replica]
            await self._stacks.pop(replica).aclose()
        return len(dead)

    def any(self) -> ReplicaProcess | None:
        alive = [replica for replica in self.now if replica.alive]
        return self._dice.choice(alive) if alive else None

    def proxy_of(self, replica: ReplicaProcess) -> Proxy | None:
        return self._proxies.get(replica)

    async def close(self) -> None:
        for home in self._stacks.values():
            await home.aclose()


class FaultInjector:
    """Injects a fault every second or so."""

    def __init__(
        self,
        replicas: RunningReplicas,
        config: SoakConfig,
        dice: random.Random,
        server: KillableServer | None,
    ) -> None:
        self._replicas = replicas
        self._config = config
        self._dice = dice
        self._server = server
        self._outage = asyncio.Lock()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                await asyncio.sleep(self._dice.uniform(0.2, 2.0))
                await self._replicas.reap()
                if len(self._replicas.now) < self._config.replicas:
                    # While the database is down a replica may not start in time.
                    with suppress(TimeoutError):
                        await self._replicas.add(doomed=self._dice.random() < 0.4)
                elif (victim := self._replicas.any()) is not None:
                    group.create_task(self._inject(victim))

    async def _inject(self, victim: ReplicaProcess) -> None:
        kind = self._dice.choices(list(FAULT_WEIGHTS), weights=list(FAULT_WEIGHTS.values()))[0]
        if kind == "database" and (self._server is None or self._outage.locked()):
            kind = "spare"
        self._replicas.faults[kind] += 1
        line = self._replicas.proxy_of(victim)
        match kind:
            case "kill":
                victim.kill()
            case "leave":
                victim.terminate()
            case "freeze":
                victim.freeze()
                await asyncio.sleep(self._dice.choice(OUTAGES_S))
                victim.resume()
            case "database":
                await self._restart_database()
            case "spare":
                pass
            case _ if line is not None:
                await self._disturb(line, kind)
            case _:
                pass

    async def _disturb(self, line: Proxy, kind: str) -> None:
        match kind:
            case "cut":
                line.cut()
            case "cut_off":
                line.refuse(new=True)
                line.cut()
                await asyncio.sleep(self._dice.choice(OUTAGES_S))
                line.refuse(new=False)
            case "stall":
                line.stall()
                await asyncio.sleep(self._dice.choice(OUTAGES_S))
                line.resume()
            case "strand":
                line.strand()
            case _:
                line.deafen()

    async def _restart_database(self) -> None:
        assert self._server is not None
        async with self._outage:
            await self._server.kill()
            await asyncio.sleep(self._dice.choice((0.1, 3.0)))
            await self._server.restart()
