"""Chance, with a seed: what happens to replicas, and what people, models and tools do meanwhile."""

import asyncio
import random
from collections import Counter
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Final
from uuid import UUID

from msgspec import Struct

from chatd.domain.ids import ChatId
from tests.support.crash import MortalServer
from tests.support.planned import PlannedModel, Workshop
from tests.support.providers.openai_chat import chunk
from tests.support.providers.server import Cut, Gate, Recorded, Reply, Step
from tests.support.replica_process import DieAt, Done, Setup
from tests.support.replicas import Gone, ReplicaProcess, replica_process
from tests.support.witness import Witness

POINTS: Final = (
    "acquired",
    "action",
    "committed",
    "drain_started",
    "runner_left",
    "swept",
    "task_started",
    "tool_finished",
    "tool_started",
)
"""Events at which a replica may be made to die."""


class Pace(Gate):
    """Takes a while."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    async def pass_through(self) -> None:
        await asyncio.sleep(self._seconds)


class MoodyModel(PlannedModel):
    """Speaks now fast, now slowly; is busy at times, and sometimes breaks off."""

    def __init__(self) -> None:
        super().__init__()
        self.dice = random.Random(0)

    def answer(self, request: Recorded) -> Reply:
        mood = self.dice.random()
        if mood < 0.02:
            busy = b'{"error":{"message":"busy"}}'
            return Reply(status=503, headers={"content-type": "application/json"}, steps=(busy,))
        if mood < 0.04:
            return Reply(steps=(chunk(content="ans"), Cut()))
        reply = super().answer(request)
        if reply.status != 200:
            return reply
        steps: list[Step] = []
        for piece in reply.steps:
            steps += (piece, Pace(self.dice.choice((0, 0.01, 0.1, 0.4))))
        return Reply(steps=tuple(steps))


class MoodyWorkshop(Workshop):
    """Some work takes longer."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.dice = random.Random(0)

    async def work(self, call_id: str) -> None:
        await super().work(call_id)
        await asyncio.sleep(self.dice.choice((0, 0.01, 0.2, 1.0)))


class Chances(Struct, frozen=True, kw_only=True):
    seed: int
    seconds: float = 1800
    replicas: int = 3
    people: int = 20


class Replicas:
    """Those that run now. One that has ended is replaced, sooner or later."""

    def __init__(self, setup: Setup, dice: random.Random) -> None:
        self.now: list[ReplicaProcess] = []
        self.fates: Counter[str] = Counter()
        self._setup = setup
        self._dice = dice
        self._count = 0
        self._homes: dict[ReplicaProcess, AsyncExitStack] = {}

    async def add(self, *, doomed: bool = False) -> None:
        self._count += 1
        due = DieAt(event=self._dice.choice(POINTS), nth=self._dice.randint(1, 20))
        setup = Setup(
            dsn=self._setup.dsn,
            model_url=self._setup.model_url,
            shop=self._setup.shop,
            name=f"soak-{self._count}",
            tick_s=1.0,
            drain_s=3.0,
            roots=50,
            die_at=due if doomed else None,
        )
        home = AsyncExitStack()
        replica = await home.enter_async_context(replica_process(setup))
        self.now.append(replica)
        self._homes[replica] = home

    async def bury(self) -> int:
        """Of those that have ended; says how many they were."""
        dead = [replica for replica in self.now if not replica.alive]
        for replica in dead:
            self.now.remove(replica)
            await self._homes.pop(replica).aclose()
        return len(dead)

    def any(self) -> ReplicaProcess | None:
        alive = [replica for replica in self.now if replica.alive]
        return self._dice.choice(alive) if alive else None

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
        kinds = ["kill", "leave", "freeze", "spare", "database"]
        kind = self._dice.choices(kinds, weights=[35, 25, 15, 20, 5])[0]
        if kind == "database" and (self._server is None or self._outage.locked()):
            kind = "spare"
        self._replicas.fates[kind] += 1
        match kind:
            case "kill":
                victim.kill()
            case "leave":
                victim.leave()
            case "freeze":
                victim.freeze()
                await asyncio.sleep(self._dice.choice((0.5, 3.0, 10.0, 45.0)))
                victim.thaw()
            case "database":
                await self._cut_power()
            case _:
                pass

    async def _cut_power(self) -> None:
        assert self._server is not None
        async with self._outage:
            await self._server.kill()
            await asyncio.sleep(self._dice.choice((0.1, 3.0)))
            await self._server.revive()


class People:
    """Each has a chat at a time, writes to it, and now and then stops it. Whatever is not
    answered is said again with the same key, to somebody else."""

    def __init__(self, replicas: Replicas, witness: Witness, dice: random.Random) -> None:
        self._replicas = replicas
        self._witness = witness
        self._dice = dice
        self._names = 0
        self.refusals: Counter[str] = Counter()

    async def one(self) -> None:
        while True:
            chat = ChatId(self._uuid())
            await self._say(chat, new=True)
            for _ in range(self._dice.randint(0, 4)):
                await asyncio.sleep(self._dice.choice((0, 0.1, 1.0, 3.0)))
                if self._dice.random() < 0.15:
                    await self._stop(chat)
                else:
                    await self._say(chat, new=False)
            await asyncio.sleep(self._dice.uniform(0, 2))

    async def _say(self, chat: ChatId, *, new: bool) -> None:
        self._names += 1
        kind = self._dice.choice(("m", "m", "once"))
        text = f"{kind}{self._names} {self._dice.choice((0, 0, 1, 3))}"
        sent, key = self._witness.sends(chat, text), self._uuid()
        while True:
            try:
                done = await self._ask(chat, text, key, new=new)
            except (Gone, TimeoutError):
                await asyncio.sleep(0.1)
                continue
            if done.error is None:
                sent.acked = True
                return
            self.refusals[done.error] += 1
            if not done.error.startswith("database") and done.error != "unavailable":
                return
            await asyncio.sleep(0.1)

    async def _ask(self, chat: ChatId, text: str, key: UUID, *, new: bool) -> Done:
        replica = self._replicas.any()
        if replica is None:
            raise Gone
        async with asyncio.timeout(8):
            if new:
                return await replica.create(chat, text, key)
            return await replica.send(chat, text, key)

    async def _stop(self, chat: ChatId) -> None:
        self._witness.stops(chat)
        with suppress(Gone, TimeoutError):
            async with asyncio.timeout(8):
                if (replica := self._replicas.any()) is not None:
                    await replica.interrupt(chat)

    def _uuid(self) -> UUID:
        return UUID(int=self._dice.getrandbits(128), version=4)
