"""All rows in one run, and how the machine was meanwhile.

Owns which rows there are, their order, and that one row which fails does not cost the others.
"""

import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from chatd.bench import commits, flows, kills, memory, openings, turns, waits
from chatd.bench.report import Line
from chatd.bench.stage import Stage, set_up
from chatd.domain.errors import ChatdError

Measure = Callable[..., Awaitable[list[Line]]]
Say = Callable[[str], None]


async def _commits(stage: Stage, *, quick: bool) -> list[Line]:
    del stage  # a server of its own, which nobody else uses meanwhile
    return await commits.measure(quick=quick)


ROWS: Final[Mapping[str, Measure]] = {
    "first": waits.measure,
    "paced": flows.paced,
    "alone": flows.alone,
    "burst": flows.burst,
    "trips": turns.measure,
    "memory": memory.measure,
    "commits": _commits,
    "kill": kills.measure,
    "start": openings.measure,
}


class Surroundings(Struct, frozen=True, kw_only=True):
    """`load` is the machine's, one minute's mean, before and after."""

    cores: int
    load: tuple[float, float]
    seconds: float

    def __str__(self) -> str:
        before, after = self.load
        took = f"{self.cores} cores; load {before:.1f} before, {after:.1f} after"
        return f"{took}; measured in {self.seconds:.0f} s"


class Measured(Struct, frozen=True, kw_only=True):
    lines: list[Line]
    surroundings: Surroundings


async def measure(
    names: Sequence[str], *, quick: bool, database_url: str | None, say: Say
) -> Measured:
    began, load = time.perf_counter(), os.getloadavg()[0]
    lines: list[Line] = []
    async with set_up(database_url) as stage:
        for name in names:
            say(f"measuring {name} ...")
            lines += await _row(stage, name, quick=quick)
    surroundings = Surroundings(
        cores=os.cpu_count() or 1,
        load=(load, os.getloadavg()[0]),
        seconds=time.perf_counter() - began,
    )
    return Measured(lines=lines, surroundings=surroundings)


async def _row(stage: Stage, name: str, *, quick: bool) -> list[Line]:
    try:
        return await ROWS[name](stage, quick=quick)
    except* (ChatdError, TimeoutError, ConnectionError) as group:
        said = "; ".join(f"{type(error).__name__}: {error}" for error in group.exceptions)
        failed = Line(name=name, value="-", verdict="MISSED", note=f"could not be measured: {said}")
    return [failed]
