"""Start: from `chatd serve` to the first word of the first answer, its own database included."""

import time
from pathlib import Path
from typing import Final

from chatd.bench.children import chatd
from chatd.bench.ground import scratch_dir
from chatd.bench.report import Line, at_most
from chatd.bench.script import Wish
from chatd.bench.sides import Chatd
from chatd.bench.stage import Stage, environment
from chatd.bench.stats import spread

WARM_S: Final = 2.0


async def measure(stage: Stage, *, quick: bool) -> list[Line]:
    """The first start makes the database; after it everything is there, and warm."""
    with scratch_dir() as home:
        cold = await _start(stage, home)
        warm = spread([await _start(stage, home) for _ in range(2 if quick else 5)])
    note = f"{warm}; with an empty directory {cold:.1f} s"
    return [at_most("serve to first answer, warm", warm.middle, WARM_S, unit=" s", note=note)]


async def _start(stage: Stage, home: Path) -> float:
    began = time.perf_counter()
    at = ("--data-dir", str(home / "data"))
    async with chatd(home, environment(stage.provider), *at) as server:
        side = Chatd(server.port)
        heard = await side.talk(Wish(tokens=2, per_s=50))
        side.close()
        return heard.first_at - began
