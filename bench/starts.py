"""Starting the embedded PostgreSQL: on an empty directory, and on one that is there."""

import os
import time
from statistics import median
from typing import Final

from chatd.bench.ground import scratch_dir
from chatd.bench.report import Line, at_most
from chatd.pg.config import EmbeddedConfig
from chatd.pg.server import open_server

COLD_S: Final = 3.0
WARM_S: Final = 0.5


async def measure(*, quick: bool) -> list[Line]:
    cold: list[float] = []
    warm: list[float] = []
    for _ in range(1 if quick else 3):
        with scratch_dir() as home:
            config = EmbeddedConfig(data_dir=home / "pg")
            cold.append(await _start(config))
            warm += [await _start(config) for _ in range(2)]
    return [
        at_most("database, cold start", median(cold), COLD_S, unit=" s", note=_spread(cold)),
        at_most("database, warm start", median(warm), WARM_S, unit=" s", note=_spread(warm)),
    ]


async def _start(config: EmbeddedConfig) -> float:
    """Until it can be used; stopping it is not counted."""
    began = time.perf_counter()
    server = await open_server(config, os.environ)
    took = time.perf_counter() - began
    await server.close()
    return took


def _spread(times: list[float]) -> str:
    return f"{min(times):.2f} to {max(times):.2f}"
