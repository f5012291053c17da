"""make fuzz: asks every endpoint up to so many things that its description allows or forbids."""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from tests.api.described import Effort, a_busy_house, ask_everything
from tests.support.database import TestServer


async def fuzz(dsn: str, effort: Effort) -> int:
    with tempfile.TemporaryDirectory() as place:
        async with a_busy_house(dsn) as house:
            code, _ = await ask_everything(house, effort, Path(place), aloud=True)
            return code


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=2000, help="for each endpoint")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--phases", default="coverage,fuzzing,stateful")
    options, more = parser.parse_known_args()
    effort = Effort(
        cases=options.cases, seed=options.seed, phases=options.phases, arguments=tuple(more)
    )
    server = TestServer()
    try:
        return asyncio.run(fuzz(server.clone().dsn, effort))
    finally:
        server.close()


if __name__ == "__main__":
    sys.exit(main())
