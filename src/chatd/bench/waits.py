"""First token: what a new chat adds to the time until the first word."""

from typing import Final

from chatd.bench.report import Beside, Line, at_most
from chatd.bench.script import Wish
from chatd.bench.sides import Side
from chatd.bench.stage import Stage
from chatd.bench.stats import percentile, spread

FIRST_MS: Final = 10.0
_WISH: Final = Wish(tokens=3, per_s=100)
_WARM_UP: Final = 5


async def measure(stage: Stage, *, quick: bool) -> list[Line]:
    """In turns, so that all three meet the same machine; each chat is new, its viewer too."""
    sides: tuple[Side, ...] = (stage.direct(), stage.relayed(), stage.ours())
    took: tuple[list[float], ...] = ([], [], [])
    for number in range(_WARM_UP + (15 if quick else 60)):
        for side, samples in zip(sides, took, strict=True):
            heard = await side.talk(_WISH)
            if number >= _WARM_UP:
                samples.append(heard.first_s * 1000)
    for side in sides:
        side.close()
    direct, relay, ours = (spread(samples).middle for samples in took)
    late = percentile(took[2], 0.95) - percentile(took[0], 0.95)
    return [
        at_most(
            "first token, new chat, over direct, p50",
            ours - direct,
            FIRST_MS,
            unit=" ms",
            note=f"p95 {late:.1f}; direct itself {direct:.1f}",
            beside=Beside(direct=0.0, relay=relay - direct),
        )
    ]
