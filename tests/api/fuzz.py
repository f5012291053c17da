"""`make fuzz`: run schemathesis against every endpoint, with valid and invalid requests."""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from tests.api.schemathesis_run import Effort, ask_everything, busy_workspace_api
from tests.support.database import TestServer


async def fuzz(dsn: str, effort: Effort) -> int:
    with tempfile.TemporaryDirectory() as place:
        async with busy_workspace_api(dsn) as api:
            code, _ = await ask_everything(api, effort, Path(place), aloud=True)
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
