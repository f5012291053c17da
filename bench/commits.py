"""Step commits per second through chatd, over pgbench with the same transactions.

Both run on one server with durable commits, alternately, so that other load slows both. The
result is the median of the rounds' ratios.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from statistics import median
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from bench import pgbench
from bench.environment import BenchDatabase, fresh_database
from bench.report import ReportRow, at_least, at_most, text_row
from bench.workload import (
    ANSWER_STEPS,
    TOOL_ROUND_STEPS,
    NextStep,
    commit,
    ignore_applied,
    plan_changes,
    running_chat,
)
from chatd.clock import SystemClock
from chatd.domain.chat.row import Chat, Hint
from chatd.store.chat.operation import AppliedChange
from chatd.store.chat.transactor import Transactor
from chatd.store.database.conn import ConnectConfig
from chatd.store.database.notifications import HintPublisher, PostgresBus, PublishConfig
from chatd.store.database.pool import Pool

COMMIT_CONNECTIONS: Final = 16
MIN_PGBENCH_RATIO: Final = 0.6
MAX_COMMIT_PYTHON_US: Final = 130.0


CUSTOM_PLAN_SHARE: Final = """
    SELECT (sum(custom_plans)::float8 / sum(custom_plans + generic_plans))
    FROM pg_prepared_statements WHERE statement LIKE '%UPDATE chats%'"""


class CommitRun(Struct, frozen=True, kw_only=True):
    commits: int
    wall_s: float
    python_s: float
    server_s: float

    @property
    def per_s(self) -> float:
        return self.commits / self.wall_s


class CommitWorkload(Struct, frozen=True, kw_only=True):
    name: str
    writes: Sequence[NextStep]
    publishes: bool = False
    """Whether each commit also sends a hint."""


COMMIT_WORKLOADS: Final = (
    CommitWorkload(name="answer", writes=ANSWER_STEPS),
    CommitWorkload(name="answer, hints sent", writes=ANSWER_STEPS, publishes=True),
    CommitWorkload(name="tool round", writes=TOOL_ROUND_STEPS),
)


async def measure_commits(*, quick: bool) -> list[ReportRow]:
    rounds, seconds = (3, 1.0) if quick else (5, 3.0)
    workloads = COMMIT_WORKLOADS[:1] if quick else COMMIT_WORKLOADS
    lines: list[ReportRow] = []
    async with fresh_database() as database:
        lines.append(await _bare_select(database))
        for workload in workloads:
            lines += await _compare(database, workload, rounds, seconds)
    return lines


async def _bare_select(database: BenchDatabase) -> ReportRow:
    """The least work of driver and pool: a measure of this machine's speed now."""
    async with database.pool(COMMIT_CONNECTIONS) as pool:
        trips, until, python = 0, time.perf_counter() + 1, time.process_time()

        async def keep_on() -> None:
            nonlocal trips
            while time.perf_counter() < until:
                await pool.fetchval("SELECT $1::bigint", trips)
                trips += 1

        async with asyncio.TaskGroup() as group:
            for _ in range(COMMIT_CONNECTIONS):
                group.create_task(keep_on())
    each = (time.process_time() - python) / trips
    return text_row("a bare SELECT: Python CPU", f"{each * 1e6:,.0f} us")


async def _compare(
    database: BenchDatabase, workload: CommitWorkload, rounds: int, seconds: float
) -> list[ReportRow]:
    ours: list[CommitRun] = []
    theirs: list[pgbench.PgbenchScore] = []
    async with _product(database, workload) as product:
        await product.run(0.3)
        for number in range(rounds):
            # Each goes first as often as the other.
            for who in ("ours", "theirs") if number % 2 else ("theirs", "ours"):
                if who == "ours":
                    ours.append(await product.run(seconds))
                elif pgbench.find_pgbench() is not None:
                    theirs.append(await _run_pgbench(database, workload, seconds))
        planned = await product.custom_plan_share()
    return [
        *_lines(workload, ours, theirs),
        at_most(f"commits, {workload.name}: planned anew", planned, 0.05, note="of all executions"),
    ]


def _lines(
    workload: CommitWorkload, ours: Sequence[CommitRun], theirs: Sequence[pgbench.PgbenchScore]
) -> list[ReportRow]:
    name = f"commits, {workload.name}"
    rate = median(run.per_s for run in ours)
    python_us = median(run.python_s / run.commits for run in ours) * 1e6
    server_us = median(run.server_s / run.commits for run in ours) * 1e6
    spread = f"{min(run.per_s for run in ours):,.0f} to {max(run.per_s for run in ours):,.0f}"
    lines = [text_row(f"{name}: per second", f"{rate:,.0f}", note=spread)]
    if theirs:
        ratios = [us.per_s / them.commits_per_s for us, them in zip(ours, theirs, strict=True)]
        their_rate = median(run.commits_per_s for run in theirs)
        lines.append(
            at_least(
                f"{name}: over pgbench",
                median(ratios),
                MIN_PGBENCH_RATIO,
                note=f"{min(ratios):.2f} to {max(ratios):.2f}; pgbench {their_rate:,.0f}/s",
            )
        )
    else:
        lines.append(text_row(f"{name}: over pgbench", "-", note="pgbench is not installed"))
    return [
        *lines,
        at_most(f"{name}: Python CPU", python_us, MAX_COMMIT_PYTHON_US, unit=" us"),
        text_row(f"{name}: PostgreSQL CPU", f"{server_us:,.0f} us"),
    ]


@asynccontextmanager
async def _product(database: BenchDatabase, workload: CommitWorkload) -> AsyncGenerator["_Product"]:
    """Commits through chatd's own path, with one chat for each connection."""
    link = ConnectConfig(dsn=database.dsn)
    publisher = HintPublisher(PostgresBus(link), PublishConfig(), SystemClock())

    def publish(applied: AppliedChange) -> None:
        publisher.publish(Hint.of(applied.chat))

    async with database.pool(COMMIT_CONNECTIONS) as pool, asyncio.TaskGroup() as group:
        group.create_task(publisher.run())
        transactor = Transactor(pool, publish if workload.publishes else ignore_applied)
        chats = [await running_chat(transactor) for _ in range(COMMIT_CONNECTIONS)]
        yield _Product(database, pool, transactor, workload.writes, chats)
        await publisher.close()


class _Product:
    def __init__(
        self,
        database: BenchDatabase,
        pool: Pool,
        transactor: Transactor,
        writes: Sequence[NextStep],
        chats: list[Chat],
    ) -> None:
        self._database = database
        self._pool = pool
        self._transactor = transactor
        self._writes = writes
        self._chats = chats

    async def run(self, seconds: float) -> CommitRun:
        python, server, start = (
            time.process_time(),
            self._database.server_cpu_s(),
            time.perf_counter(),
        )
        versions = sum(chat.snapshot_version for chat in self._chats)
        async with asyncio.TaskGroup() as group:
            for index in range(COMMIT_CONNECTIONS):
                group.create_task(self._keep_on(index, start + seconds))
        return CommitRun(
            commits=sum(chat.snapshot_version for chat in self._chats) - versions,
            wall_s=time.perf_counter() - start,
            python_s=time.process_time() - python,
            server_s=self._database.server_cpu_s() - server,
        )

    async def custom_plan_share(self) -> float:
        """The share of executions that PostgreSQL planned again. Planning takes longer than the
        commit: without a cached plan the rate halves."""
        return await self._pool.fetchval(CUSTOM_PLAN_SHARE)

    async def _keep_on(self, index: int, until: float) -> None:
        while time.perf_counter() < until:
            for write in self._writes:
                self._chats[index] = await commit(self._transactor, self._chats[index], write)


async def _run_pgbench(
    database: BenchDatabase, workload: CommitWorkload, seconds: float
) -> pgbench.PgbenchScore:
    async with database.pool(1) as pool, database.session() as session:
        transactor = Transactor(pool, ignore_applied)
        # Every statement of the script writes the same change id, and expects it of the one before.
        only = (pgbench.SCRIPT_CHANGE,)
        chats = [
            replace(await running_chat(transactor), recent_changes=only)
            for _ in range(COMMIT_CONNECTIONS)
        ]
        await session.execute(
            "UPDATE chats SET recent_changes = $1 WHERE id = ANY ($2::uuid[])",
            list(only),
            [chat.id for chat in chats],
        )
        round_ = plan_changes(chats[0], workload.writes)
        script = await pgbench.build_script(
            session, chats, round_, plan_changes(round_[-1].after, workload.writes)
        )
        score = await pgbench.run_pgbench(
            database, script, clients=COMMIT_CONNECTIONS, seconds=seconds
        )
        written = await session.fetchval(
            "SELECT sum(snapshot_version - 1)::bigint FROM chats WHERE id = ANY ($1::uuid[])",
            [chat.id for chat in chats],
        )
        # A failed compare-and-set would be fast and write nothing.
        assert written >= score.commits, f"{written} commits of {score.commits} were written"
    return score
