"""Measures speed and prints a table: `python -m bench [--quick] [name ...]`.

Exits with 1 if a target was missed.
"""

import argparse
import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import uvloop

from bench import hands, plans, starts, streams, trips
from chatd.bench import commits, run
from chatd.bench.report import Line, missed, table


async def _server(*, quick: bool) -> list[Line]:
    """The rows of `chatd bench`, but for one that is measured here anyway."""
    names = [name for name in run.ROWS if name != "commits"]
    measured = await run.measure(names, quick=quick, database_url=None, say=_say)
    return measured.lines


def _say(line: str) -> None:
    print(line, file=sys.stderr)


BENCHES: Final[Mapping[str, Callable[..., Awaitable[list[Line]]]]] = {
    "commits": commits.measure,
    "trips": trips.measure,
    "plans": plans.measure,
    "starts": starts.measure,
    "streams": streams.measure,
    "hands": hands.measure,
    "server": _server,
}


async def _run(names: list[str], *, quick: bool) -> list[Line]:
    lines: list[Line] = []
    for name in names:
        start = time.perf_counter()
        lines += await BENCHES[name](quick=quick)
        print(f"{name}: measured in {time.perf_counter() - start:.0f} s", file=sys.stderr)
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *BENCHES], help="only these")
    parser.add_argument("--quick", action="store_true", help="small and rough, about a minute")
    chosen = parser.parse_args()
    before = os.getloadavg()[0]
    lines = uvloop.run(_run(chosen.names or list(BENCHES), quick=chosen.quick))
    print(table(lines))
    print(f"\n{os.cpu_count()} cores; load {before:.1f} before, {os.getloadavg()[0]:.1f} after")
    return int(missed(lines))


sys.exit(main())
