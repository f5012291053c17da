"""Replicas and their database have random accidents; users send and viewers reconnect.

`make chaos` does this for half an hour; ARGS="--seconds 60 --seed 7" repeats the same random
choices as far as timing allows. At the end a judge compares what clients sent and saw with the
database: nothing lost, doubled or stuck, and every viewer has the stored state.
"""

import argparse
import asyncio
import random
import secrets
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path

from chatd.store.database.conn import ConnectConfig
from chatd.store.database.pool import Pool, PoolConfig
from tests.chaos import runner_soak
from tests.support.chaos.accidents import choose_weights, table_of_accidents
from tests.support.chaos.billing_judge import check_billing
from tests.support.chaos.fault_injector import FaultInjector, SoakConfig
from tests.support.chaos.killable_server import KillableServer, killable_server
from tests.support.chaos.random_users import RandomUsers
from tests.support.chaos.replica_process import ReplicaSetup
from tests.support.chaos.replicas import replica_fork_server
from tests.support.chaos.roaming_viewers import RoamingViewers
from tests.support.chaos.running_replicas import RunningReplicas
from tests.support.chaos.transcript_judge import TranscriptJudge
from tests.support.chaos.unreliable_model import SlowToolServer, UnreliableModel
from tests.support.database import find_stock_programs

SETTLE_TIMEOUT_S = 60.0
CHECKS_BILLING = True
UNREACHED_LIMIT_MICROS = 10**12
"""So that the spend of every call is checked, and none is refused."""


class Soak:
    """One random run."""

    def __init__(
        self,
        config: SoakConfig,
        server: KillableServer,
        model: UnreliableModel,
        tools: SlowToolServer,
        replicas: RunningReplicas,
        dice: random.Random,
    ) -> None:
        self._config = config
        self._server = server
        self._model = model
        self._tools = tools
        self._replicas = replicas
        self._judge = TranscriptJudge()
        self._viewers = RoamingViewers(replicas, random.Random(dice.random()))
        self._users = RandomUsers(
            replicas,
            self._judge,
            self._viewers,
            random.Random(dice.random()),
            has_subagents=config.has_subagents,
        )
        self._faults = FaultInjector(
            replicas, config, random.Random(dice.random()), server, self._judge
        )

    async def run(self) -> str:
        """Returns a summary. Raises AssertionError if a promise was broken."""
        for _ in range(self._config.replicas):
            await self._replicas.add()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._config.seconds), asyncio.TaskGroup() as group:
                group.create_task(self._faults.run())
                for _ in range(self._config.users):
                    group.create_task(self._users.run_user())
        await self._faults.complete()
        _say(f"accidents: {dict(self._faults.counts)}")
        deaths = sum(self._faults.counts[name] for name in ("kill", "crash_loop", "leave"))
        _say(self._model.repeats(deaths))
        booked = await self._check()
        counts = f"{len(self._judge.sent)} messages, {sum(self._model.asked.values())} model calls"
        seen = f"{self._viewers.connections} connections of viewers"
        told = f"people {dict(self._users.actions)}, refused {dict(self._users.refusals)}"
        return f"{counts}, {seen}; {told}; {booked}"

    async def _check(self) -> str:
        """One replica is enough to settle all chats; frozen replicas stay frozen. Reports every
        broken promise, not only the first."""
        await self._replicas.reap()
        last = await self._replicas.add()
        pool = Pool(PoolConfig(connect=ConnectConfig(dsn=self._server.dsn)))
        judge, broken = self._judge, list[AssertionError]()
        booked = "billing not checked"
        try:
            with _collected(broken):
                await judge.wait_settled(pool, within_s=SETTLE_TIMEOUT_S)
            with _collected(broken):
                await judge.check(pool)
            with _collected(broken):
                self._check_calls()
            if self._config.checks_billing:
                with _collected(broken):
                    booked = await check_billing(
                        pool, self._model.served, judge.sent, judge.lost_pasts, judge.crashes
                    )
            broken += await self._viewers.check(pool, last)
        finally:
            await pool.close()
        if broken:
            group = ExceptionGroup("promises were broken", broken)
            group.add_note("\n".join(("accidents:", *self._faults.log)))
            raise group
        return booked

    def _check_calls(self) -> None:
        assert self._model.refused == [], "the model refused a request"
        twice = [
            call
            for call, runs in self._tools.runs.items()
            if runs > 1
            and "once" in call
            and not any(
                past.may_repeat(self._tools.first_run_at[call]) for past in self._judge.lost_pasts
            )
        ]
        assert twice == [], "tools that must not run twice did"


@contextmanager
def _collected(broken: list[AssertionError]) -> Generator[None]:
    try:
        yield
    except AssertionError as error:
        broken.append(error)


async def soak(config: SoakConfig, server: KillableServer) -> str:
    dice = random.Random(config.seed)
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="chatd-soak-", dir="/tmp")
        )
        model = await stack.enter_async_context(UnreliableModel.running())
        path = Path(directory) / "workshop"
        tools = await stack.enter_async_context(SlowToolServer.running(path))
        model.dice, tools.dice = random.Random(dice.random()), random.Random(dice.random())
        setup = ReplicaSetup(
            dsn=server.dsn,
            model_url=model.url,
            tool_socket=str(path),
            heartbeat_s=1.0,
            drain_s=3.0,
            roots=50,
            spend_limit_micros=UNREACHED_LIMIT_MICROS,
            prefill=config.prefill,
        )
        fork_server = await stack.enter_async_context(replica_fork_server())
        replicas = RunningReplicas(fork_server, setup, random.Random(dice.random()))
        stack.push_async_callback(replicas.close)
        return await Soak(config, server, model, tools, replicas, dice).run()


async def _main(config: SoakConfig, stock_programs: Path | None) -> str:
    needs_disk = config.weights["full_disk"] > 0
    async with killable_server(
        has_clock=True, has_small_disk=needs_disk, stock_programs=stock_programs
    ) as server:
        if needs_disk and not server.disk.is_limited:
            raise SystemExit(
                "full_disk: the disk of the database cannot be mounted. "
                "Run as root, or with --weight full_disk=0."
            )
        return await soak(config, server)


def main(args: Sequence[str]) -> int:
    if "--runners" in args:
        return runner_soak.main([arg for arg in args if arg != "--runners"])
    config, stock_programs = _config(args)
    database = "the embedded PostgreSQL" if stock_programs is None else f"{stock_programs}"
    _say(f"seed {config.seed}, {config.seconds:g} seconds, {database}")
    try:
        told = asyncio.run(_main(config, stock_programs))
    except BaseException:
        _say(f"seed {config.seed}: a promise was broken, or the test failed")
        raise
    _say(f"seed {config.seed}: nothing lost, doubled or stuck; {told}")
    return 0


def _config(args: Sequence[str]) -> tuple[SoakConfig, Path | None]:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.soak",
        description=__doc__,
        epilog=table_of_accidents(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000))
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--people", type=int, default=20)
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="no accidents but these"
    )
    parser.add_argument(
        "--weight",
        action="append",
        default=[],
        metavar="NAME=WEIGHT",
        help="how often an accident occurs, relative to the others; 0 switches it off",
    )
    parser.add_argument(
        "--billing",
        action=argparse.BooleanOptionalAction,
        default=CHECKS_BILLING,
        help="every call that the model served has a usage event",
    )
    parser.add_argument(
        "--subagents", action="store_true", help="half of the messages start subagents"
    )
    parser.add_argument(
        "--stock",
        action="store_true",
        help="an installed PostgreSQL with its own settings, such as Debian's, as an operator has"
        " it; CHATD_TEST_STOCK_PROGRAMS names the directory of its programs",
    )
    parser.add_argument(
        "--prefill",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="the model goes on from the text of an answer that was cut off",
    )
    asked = parser.parse_args(args)
    stock_programs = find_stock_programs() if asked.stock else None
    if asked.stock and stock_programs is None:
        parser.error("--stock: no PostgreSQL is installed")
    try:
        weights = choose_weights(asked.weight, only=asked.only)
    except ValueError as error:
        parser.error(str(error))
    config = SoakConfig(
        seed=asked.seed,
        weights=weights,
        seconds=asked.seconds,
        replicas=asked.replicas,
        users=asked.people,
        checks_billing=asked.billing,
        has_subagents=asked.subagents,
        prefill=asked.prefill,
    )
    return config, stock_programs


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
