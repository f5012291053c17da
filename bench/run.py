"""Runs the rows of a bench in order. A row that fails is reported and does not stop the others."""

import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Final

from msgspec import Struct

from bench import (
    commits,
    database_share,
    desktop,
    latency,
    long_chats,
    mcp_calls,
    memory,
    plans,
    round_trips,
    subagents,
    throughput,
    workspaces,
)
from bench.environment import BenchEnvironment, start_environment
from bench.report import ReportRow
from chatd.domain.errors import ChatdError

Measure = Callable[..., Awaitable[list[ReportRow]]]
OnProgress = Callable[[str], None]

_SERVER_ROWS: Final[Mapping[str, Measure]] = {
    "first": latency.measure_first_token,
    "spawn": subagents.measure_spawn,
    "paced": throughput.measure_paced,
    "slow": throughput.measure_slow,
    "many": throughput.measure_many,
    "rush": throughput.measure_rush,
    "long": long_chats.measure_long,
    "steps": long_chats.measure_steps,
    "processes": throughput.measure_processes,
    "alone": throughput.measure_single,
    "burst": throughput.measure_burst,
    "trips": round_trips.measure_round_trips,
    "memory": memory.measure_memory,
    "database": database_share.measure_database_share,
    "kill": latency.measure_takeover,
    "start": latency.measure_start,
}
_OWN_ROWS: Final[Mapping[str, Measure]] = {
    "commits": commits.measure_commits,
    "mcp": mcp_calls.measure_mcp,
    "plans": plans.measure_plans,
    "workspaces": workspaces.measure_workspaces,
    "desktop": desktop.measure_desktop,
}
"""These start a database of their own, or need none."""

DEFAULT_ROWS: Final = (
    *(
        "first",
        "paced",
        "slow",
        "many",
        "rush",
        "long",
        "steps",
        "alone",
        "burst",
        "trips",
        "memory",
        "commits",
        "kill",
        "start",
    ),
    *("mcp", "spawn"),
)
ALL_ROWS: Final = (*DEFAULT_ROWS, "database", "processes", "plans", "workspaces", "desktop")
"""Only on request: `database` has no target, `processes` needs free cores, `plans` 3 GB of disk,
`workspaces` a host that can isolate, and `desktop` also an X server and Chromium."""


class MachineLoad(Struct, frozen=True, kw_only=True):
    """`load` is the one-minute average before and after."""

    cores: int
    load: tuple[float, float]
    seconds: float

    def __str__(self) -> str:
        before, after = self.load
        load = f"{self.cores} cores; load {before:.1f} before, {after:.1f} after"
        return f"{load}; measured in {self.seconds:.0f} s"


class BenchResult(Struct, frozen=True, kw_only=True):
    rows: list[ReportRow]
    machine: MachineLoad


async def measure_rows(
    names: Sequence[str], *, quick: bool, database_url: str | None, on_progress: OnProgress
) -> BenchResult:
    started_at, load = time.perf_counter(), os.getloadavg()[0]
    rows: list[ReportRow] = []
    async with AsyncExitStack() as stack:
        bench: BenchEnvironment | None = None
        for name in names:
            on_progress(f"measuring {name} ...")
            if name in _SERVER_ROWS:
                bench = bench or await stack.enter_async_context(start_environment(database_url))
                rows += await _measured(name, _SERVER_ROWS[name](bench, quick=quick))
            else:
                rows += await _measured(name, _OWN_ROWS[name](quick=quick))
    machine = MachineLoad(
        cores=os.cpu_count() or 1,
        load=(load, os.getloadavg()[0]),
        seconds=time.perf_counter() - started_at,
    )
    return BenchResult(rows=rows, machine=machine)


async def _measured(name: str, measurement: Awaitable[list[ReportRow]]) -> list[ReportRow]:
    try:
        return await measurement
    except* (ChatdError, TimeoutError, ConnectionError) as group:
        reason = "; ".join(f"{type(error).__name__}: {error}" for error in group.exceptions)
        note = f"could not be measured: {reason}"
        failed = ReportRow(name=name, value="-", verdict="MISSED", note=note)
    return [failed]
