"""An older version is replaced by this one under running chats, server by server.

`make upgrade` checks an older version out (OLD=commit), starts three servers of it on an empty
database, and replaces them in turn by servers of this version, the first of which migrates the
database. Each chat has a running turn and a queue meanwhile. No message is lost or doubled, every
turn ends, and no client notices.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.rolling import RestartPlan, RestartReport, roll
from tests.support.database import own_server_in, scratch_space


async def upgrade(plan: RestartPlan) -> RestartReport:
    async with own_server_in(scratch_space()) as server:
        return await roll(server.dsn, plan)


def main(args: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path, help="of the older version, with its .venv")
    parser.add_argument("--every", type=float, default=15.0, help="seconds from one to the next")
    parser.add_argument("--chats", type=int, default=12)
    parser.add_argument("--replicas", type=int, default=3)
    asked = parser.parse_args(args)
    plan = RestartPlan(
        restarts=asked.replicas,
        pause_s=asked.every,
        chats=asked.chats,
        replicas=asked.replicas,
        at_once=3,
        old=asked.checkout / ".venv/bin/chatd",
    )
    told = asyncio.run(upgrade(plan))
    sys.stdout.write(f"no client noticed the new version: {told}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
