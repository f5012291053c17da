"""Many answers at once: at the pace of a model, and as fast as they come.

Owns the rounds: direct, relay and chatd in turns, each going first as often as the others. Wall
time is from the first request to the last token that a viewer has; processor time is that of the
server and of PostgreSQL, with all their processes.
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Literal

from msgspec import Struct

from chatd.bench.report import Beside, Line, at_least, at_most, noted
from chatd.bench.script import Wish
from chatd.bench.sides import Side, crowd
from chatd.bench.stage import Stage
from chatd.bench.stats import spread

CPU_MS: Final = 100.0
WALL: Final = 1.1
BURST: Final = 15_000.0
CHATS: Final = 100

Who = Literal["direct", "relay", "chatd"]
_WHO: Final[tuple[Who, ...]] = ("direct", "relay", "chatd")


class Run(Struct, frozen=True, kw_only=True):
    tokens: int
    wall_s: float
    cpu_s: float
    postgres_s: float
    first_s: float

    @property
    def per_s(self) -> float:
        return self.tokens / self.wall_s

    @property
    def cpu_ms(self) -> float:
        """For 1,000 tokens."""
        return self.cpu_s * 1e6 / self.tokens

    @property
    def postgres_ms(self) -> float:
        return self.postgres_s * 1e6 / self.tokens


class Flows:
    """Each side keeps its connections from round to round."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._sides: Mapping[Who, Side] = {
            "direct": stage.direct(),
            "relay": stage.relayed(),
            "chatd": stage.ours(),
        }

    async def rounds(self, wish: Wish, chats: int, count: int) -> dict[Who, list[Run]]:
        runs: dict[Who, list[Run]] = {who: [] for who in _WHO}
        for number in range(count):
            turn = number % len(_WHO)
            for who in (*_WHO[turn:], *_WHO[:turn]):
                runs[who].append(await self._run(who, wish, chats))
        return runs

    async def _run(self, who: Who, wish: Wish, chats: int) -> Run:
        cpu_s = self._meter(who)
        cpu, postgres = await cpu_s(), self._stage.ground.server_cpu_s()
        began = time.perf_counter()
        heard = await crowd(self._sides[who], wish, chats)
        wall_s = time.perf_counter() - began
        return Run(
            tokens=sum(one.tokens for one in heard),
            wall_s=wall_s,
            cpu_s=await cpu_s() - cpu,
            postgres_s=self._stage.ground.server_cpu_s() - postgres,
            first_s=spread([one.first_s for one in heard]).middle,
        )

    def _meter(self, who: Who) -> Callable[[], Awaitable[float]]:
        match who:
            case "chatd":
                return self._stage.cpu_s
            case "relay":
                return self._stage.relay_cpu_s
            case "direct":
                return _nothing

    def close(self) -> None:
        for side in self._sides.values():
            side.close()


async def _nothing() -> float:
    """There is no server on the direct way."""
    return 0.0


async def paced(stage: Stage, *, quick: bool) -> list[Line]:
    wish = Wish(tokens=200 if quick else 300, per_s=50)
    flows = Flows(stage)
    await flows.rounds(Wish(tokens=20), CHATS, 1)
    runs = await flows.rounds(wish, CHATS, 1 if quick else 3)
    flows.close()
    ideal = wish.tokens / wish.per_s
    wall = {who: spread([run.wall_s / ideal for run in runs[who]]) for who in _WHO}
    cpu = {who: spread([run.cpu_ms for run in runs[who]]) for who in _WHO}
    postgres = spread([run.postgres_ms for run in runs["chatd"]]).middle
    first = spread([run.first_s * 1000 for run in runs["chatd"]]).middle
    name = f"{CHATS} chats at {wish.per_s} tokens/s"
    return [
        at_most(
            f"{name}: wall over ideal",
            wall["chatd"].middle,
            WALL,
            note=f"{wall['chatd']}; ideal {ideal:g} s; first token p50 {first:.0f} ms",
            beside=Beside(direct=wall["direct"].middle, relay=wall["relay"].middle),
        ),
        at_most(
            f"{name}: CPU for 1,000 tokens",
            cpu["chatd"].middle,
            CPU_MS,
            unit=" ms",
            note=f"{cpu['chatd']}; PostgreSQL {postgres:.0f} of it",
            beside=Beside(direct=0.0, relay=cpu["relay"].middle),
        ),
    ]


async def alone(stage: Stage, *, quick: bool) -> list[Line]:
    """One chat: nothing is shared, and each token wakes everybody up for itself."""
    wish = Wish(tokens=200 if quick else 500, per_s=50)
    flows = Flows(stage)
    await flows.rounds(Wish(tokens=20), 1, 2)
    at_rest = await _resting_ms(stage, 2 if quick else 5) * 1000 / wish.per_s
    runs = await flows.rounds(wish, 1, 1 if quick else 3)
    flows.close()
    cpu = {who: spread([run.cpu_ms for run in runs[who]]) for who in _WHO}
    postgres = spread([run.postgres_ms for run in runs["chatd"]]).middle
    return [
        noted(
            "1 chat at 50 tokens/s: CPU for 1,000 tokens",
            cpu["chatd"].middle,
            unit=" ms",
            note=f"{cpu['chatd']}; PostgreSQL {postgres:.0f}; at rest {at_rest:.0f} of it",
            beside=Beside(direct=0.0, relay=cpu["relay"].middle),
        )
    ]


async def _resting_ms(stage: Stage, seconds: float) -> float:
    """What server and database take in a second with nothing to do."""
    cpu, began = await stage.cpu_s(), time.perf_counter()
    await stage.pause(seconds)
    return (await stage.cpu_s() - cpu) * 1000 / (time.perf_counter() - began)


async def burst(stage: Stage, *, quick: bool) -> list[Line]:
    wish = Wish(tokens=300 if quick else 1000)
    flows = Flows(stage)
    await flows.rounds(Wish(tokens=50), CHATS, 1)
    runs = await flows.rounds(wish, CHATS, 2 if quick else 5)
    flows.close()
    rate = {who: spread([run.per_s for run in runs[who]]) for who in _WHO}
    cpu = spread([run.cpu_ms for run in runs["chatd"]]).middle
    return [
        at_least(
            f"burst, {CHATS} chats: tokens/s",
            rate["chatd"].middle,
            BURST,
            note=f"{rate['chatd']}; CPU {cpu:.0f} ms for 1,000",
            beside=Beside(direct=rate["direct"].middle, relay=rate["relay"].middle),
        )
    ]
