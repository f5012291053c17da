"""Injects random, seeded accidents of replicas, their connections and their database."""

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Any, Final

from msgspec import Struct

from chatd.domain.errors import Unavailable
from tests.support.chaos.accidents import ACCIDENTS
from tests.support.chaos.killable_server import KillableServer
from tests.support.chaos.lost_past import Crash, LostPast
from tests.support.chaos.replica_process import DieAt
from tests.support.chaos.replicas import ReplicaProcess
from tests.support.chaos.running_replicas import RunningReplicas
from tests.support.chaos.transcript_judge import TranscriptJudge
from tests.support.proxy import Proxy

OUTAGES_S: Final = (0.5, 3.0, 10.0, 45.0)
CLOCK_AHEAD_S: Final = (-1200.0, -300.0, -40.0, 0.0, 0.0, 40.0, 300.0, 1200.0)
DOOMED_SHARE: Final = 0.4
"""Of the replicas that replace others, those that die by themselves."""


class SoakConfig(Struct, frozen=True, kw_only=True):
    seed: int
    weights: Mapping[str, int]
    seconds: float
    replicas: int
    users: int
    checks_billing: bool
    has_subagents: bool = False
    prefill: bool = True


class FaultInjector:
    """Injects an accident every second or so; `counts` says how often each has occurred, `log`
    when.

    One accident of the database at a time. It is completed even if the run ends meanwhile."""

    def __init__(
        self,
        replicas: RunningReplicas,
        config: SoakConfig,
        dice: random.Random,
        server: KillableServer,
        judge: TranscriptJudge,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.log: list[str] = []
        self._replicas = replicas
        self._config = config
        self._dice = dice
        self._server = server
        self._judge = judge
        self._outage: asyncio.Task[None] | None = None

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                await asyncio.sleep(self._dice.uniform(0.2, 2.0))
                await self._replicas.reap()
                if len(self._replicas.now) < self._config.replicas:
                    await self._replace()
                elif (victim := self._replicas.any()) is not None:
                    group.create_task(self._inject(victim))

    async def complete(self) -> None:
        """Wait for the end of an accident of the database, and restart it if it has died."""
        if self._outage is not None:
            await self._outage
        await self._server.restart()

    async def _replace(self, die_at: DieAt | None = None) -> ReplicaProcess | None:
        """None if the replica could not start in time: the database is down."""
        if die_at is None and self._dice.random() < DOOMED_SHARE:
            die_at = self._replicas.doom()
        with suppress(TimeoutError):
            return await self._replicas.add(die_at)
        return None

    async def _inject(self, victim: ReplicaProcess) -> None:
        weights = self._config.weights
        kind = self._dice.choices(list(weights), weights=list(weights.values()))[0]
        is_outage = ACCIDENTS[kind].needs != ""
        if is_outage and self._outage is not None and not self._outage.done():
            kind = "none"
        self.counts[kind] += 1
        now = asyncio.get_running_loop().time()
        self.log.append(f"{now:.2f} {kind} {victim.setup.name}")
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
            case "crash_loop":
                await self._crash_loop()
            case "database":
                self._start_outage(self._restart_database())
            case "clock_jump":
                self._start_outage(self._set_clock())
            case "failover":
                self._start_outage(self._fail_over())
            case "full_disk":
                self._start_outage(self._fill_disk())
            case "none":
                pass
            case _ if line is not None:
                await self._disturb(line, kind)
            case _:
                pass

    async def _crash_loop(self) -> None:
        """Half of its lives end when it has acquired chats."""
        for _ in range(self._dice.randint(3, 8)):
            doom = DieAt(event="chats_acquired") if self._dice.random() < 0.5 else None
            replica = await self._replace(doom)
            await asyncio.sleep(self._dice.uniform(0, 1))
            if replica is not None:
                replica.kill()

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

    # The database

    def _start_outage(self, accident: Coroutine[Any, Any, None]) -> None:
        self._outage = asyncio.get_running_loop().create_task(accident)

    async def _restart_database(self) -> None:
        began = asyncio.get_running_loop().time()
        await self._server.kill()
        self._record_crash(began)
        await asyncio.sleep(self._dice.choice((0.1, 3.0)))
        await self._server.restart()

    def _record_crash(self, began: float) -> None:
        latest = asyncio.get_running_loop().time()
        self._judge.record_crash(Crash(earliest=began, latest=latest))

    async def _set_clock(self) -> None:
        # Sessions of frozen replicas may use up all connections.
        with suppress(Unavailable):
            await self._server.clock.set_ahead(self._dice.choice(CLOCK_AHEAD_S))

    async def _fail_over(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            copy = await self._server.copy()
        except Unavailable:
            return
        await asyncio.sleep(self._dice.uniform(1, 8))
        stopped_at = loop.time()
        await self._server.fail_over(copy)
        self._judge.record_failover(
            LostPast(copied_at=copy.taken_at, stopped_at=stopped_at, back_at=loop.time())
        )
        await copy.remove()

    async def _fill_disk(self) -> None:
        """A server that has to write its log to a full disk dies."""
        began = asyncio.get_running_loop().time()
        await self._server.disk.fill()
        await asyncio.sleep(self._dice.uniform(1, 8))
        self._server.disk.free()
        self._record_crash(began)
        await self._server.restart()
