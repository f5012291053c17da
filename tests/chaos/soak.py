"""Replicas are killed, frozen, cut off and stopped at random; users send and viewers reconnect.

`make chaos` does this for half an hour; ARGS="--seconds 60 --seed 7" repeats the same random
choices as far as timing allows. At the end a judge reads the database: nothing lost, doubled or
stuck, and every viewer has the stored state.
"""

import argparse
import asyncio
import random
import secrets
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from chatd.store.conn import ConnectConfig
from chatd.store.pool import Pool, PoolConfig
from tests.support.chaos.fault_injector import FaultInjector, RunningReplicas, SoakConfig
from tests.support.chaos.killable_server import KillableServer, killable_server
from tests.support.chaos.random_users import RandomUsers
from tests.support.chaos.replica_process import ReplicaSetup
from tests.support.chaos.replicas import replica_fork_server
from tests.support.chaos.roaming_viewers import RoamingViewers
from tests.support.chaos.transcript_judge import TranscriptJudge
from tests.support.chaos.unreliable_model import SlowToolServer, UnreliableModel

SETTLE_TIMEOUT_S = 180.0


async def soak(dsn: str, config: SoakConfig, server: KillableServer | None = None) -> str:
    """Returns a summary. Raises AssertionError if a promise was broken."""
    dice = random.Random(config.seed)
    judge = TranscriptJudge()
    with tempfile.TemporaryDirectory(prefix="chatd-soak-", dir="/tmp") as directory:
        path = Path(directory) / "workshop"
        async with (
            UnreliableModel.running() as model,
            SlowToolServer.running(path) as tool_server,
            replica_fork_server() as fork_server,
        ):
            model.dice, tool_server.dice = (
                random.Random(dice.random()),
                random.Random(dice.random()),
            )
            setup = ReplicaSetup(
                dsn=dsn,
                model_url=model.url,
                tool_socket=str(path),
                heartbeat_s=1.0,
                drain_s=3.0,
                roots=50,
            )
            replicas = RunningReplicas(fork_server, setup, random.Random(dice.random()))
            viewers = RoamingViewers(replicas, random.Random(dice.random()))
            users = RandomUsers(replicas, judge, viewers, random.Random(dice.random()))
            faults = FaultInjector(replicas, config, random.Random(dice.random()), server)
            try:
                for _ in range(config.replicas):
                    await replicas.add()
                await _for_a_while(config, users, faults)
                if server is not None:
                    await server.restart()
                await _look(dsn, replicas, judge, viewers)
            finally:
                await replicas.close()
            assert model.refused == [], "the model refused a request"
            twice = {
                call: runs for call, runs in tool_server.runs.items() if runs > 1 and "once" in call
            }
            assert twice == {}, "tools that must not run twice did"
            counts = f"{len(judge.sent)} messages, {sum(model.asked.values())} model calls"
            seen = f"{viewers.connections} connections of viewers"
            told = f"people {dict(users.actions)}, refused {dict(users.refusals)}"
            return f"{counts}, {seen}; {dict(replicas.faults)}; {told}"


async def _for_a_while(config: SoakConfig, users: RandomUsers, faults: FaultInjector) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(config.seconds), asyncio.TaskGroup() as group:
            group.create_task(faults.run())
            for _ in range(config.users):
                group.create_task(users.run_user())


async def _look(
    dsn: str, replicas: RunningReplicas, judge: TranscriptJudge, viewers: RoamingViewers
) -> None:
    """One replica is enough to settle all chats; frozen replicas stay frozen."""
    await replicas.reap()
    last = await replicas.add()
    pool = Pool(PoolConfig(connect=ConnectConfig(dsn=dsn)))
    try:
        await judge.wait_settled(pool, within_s=SETTLE_TIMEOUT_S)
        await judge.check(pool, crashed=True)
        await viewers.check(pool, last)
    finally:
        await pool.close()


async def _main(config: SoakConfig) -> str:
    async with killable_server() as server:
        return await soak(server.dsn, config, server)


def main(args: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000))
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--people", type=int, default=20)
    asked = parser.parse_args(args)
    config = SoakConfig(
        seed=asked.seed, seconds=asked.seconds, replicas=asked.replicas, users=asked.people
    )
    _say(f"seed {config.seed}, {config.seconds:g} seconds")
    try:
        told = asyncio.run(_main(config))
    except BaseException:
        _say(f"seed {config.seed}: a promise was broken, or the test failed")
        raise
    _say(f"seed {config.seed}: nothing lost, doubled or stuck; {told}")
    return 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
