"""Step commits: how many a second through the product, over pgbench's for the same transaction.

Both run on the same server with durable commits, in turns, so that whatever else the machine is
doing happens to both; the figure is the median of the rounds' ratios.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from statistics import median
from typing import Final

from msgspec import Struct

from chatd.bench import rival
from chatd.bench.ground import Ground, fresh
from chatd.bench.report import Line, at_least, at_most, plain
from chatd.bench.workload import (
    ANSWERS,
    TOOL_ROUNDS,
    Write,
    changes,
    commit,
    running_chat,
    tell_nobody,
)
from chatd.clock import SystemClock
from chatd.domain.chat.row import Chat, Hint
from chatd.store.chat.transactor import AppliedChange, Transactor
from chatd.store.conn import ConnectConfig
from chatd.store.notifications import HintPublisher, PublishConfig
from chatd.store.pool import Pool

CONNECTIONS: Final = 16
RATIO: Final = 0.6
PYTHON_US: Final = 130.0


PLANNED: Final = """
    SELECT (sum(custom_plans)::float8 / sum(custom_plans + generic_plans))
    FROM pg_prepared_statements WHERE statement LIKE '%UPDATE chats%'"""


class Spent(Struct, frozen=True, kw_only=True):
    """What one run of commits took."""

    commits: int
    wall_s: float
    python_s: float
    server_s: float

    @property
    def per_s(self) -> float:
        return self.commits / self.wall_s


class Work(Struct, frozen=True, kw_only=True):
    name: str
    writes: Sequence[Write]
    told: bool = False
    """Whether each commit is also told to the other replicas."""


WORKS: Final = (
    Work(name="answer", writes=ANSWERS),
    Work(name="answer, hints sent", writes=ANSWERS, told=True),
    Work(name="tool round", writes=TOOL_ROUNDS),
)


async def measure(*, quick: bool) -> list[Line]:
    rounds, seconds = (3, 1.0) if quick else (5, 3.0)
    works = WORKS[:1] if quick else WORKS
    lines: list[Line] = []
    async with fresh() as ground:
        lines.append(await _least(ground))
        for work in works:
            lines += await _compare(ground, work, rounds, seconds)
    return lines


async def _least(ground: Ground) -> Line:
    """What the driver and the pool take for next to nothing: how fast this machine is now."""
    async with ground.pool(CONNECTIONS) as pool:
        trips, until, python = 0, time.perf_counter() + 1, time.process_time()

        async def keep_on() -> None:
            nonlocal trips
            while time.perf_counter() < until:
                await pool.fetchval("SELECT $1::bigint", trips)
                trips += 1

        async with asyncio.TaskGroup() as group:
            for _ in range(CONNECTIONS):
                group.create_task(keep_on())
    each = (time.process_time() - python) / trips
    return plain("a bare SELECT: Python CPU", f"{each * 1e6:,.0f} us")


async def _compare(ground: Ground, work: Work, rounds: int, seconds: float) -> list[Line]:
    ours: list[Spent] = []
    theirs: list[rival.Score] = []
    async with _product(ground, work) as product:
        await product.run(0.3)
        for number in range(rounds):
            # In turns, and each goes first as often as the other.
            for who in ("ours", "theirs") if number % 2 else ("theirs", "ours"):
                if who == "ours":
                    ours.append(await product.run(seconds))
                elif rival.program() is not None:
                    theirs.append(await _theirs(ground, work, seconds))
        planned = await product.planned_anew()
    return [
        *_lines(work, ours, theirs),
        at_most(f"commits, {work.name}: planned anew", planned, 0.05, note="of all executions"),
    ]


def _lines(work: Work, ours: Sequence[Spent], theirs: Sequence[rival.Score]) -> list[Line]:
    name = f"commits, {work.name}"
    rate = median(run.per_s for run in ours)
    python_us = median(run.python_s / run.commits for run in ours) * 1e6
    server_us = median(run.server_s / run.commits for run in ours) * 1e6
    spread = f"{min(run.per_s for run in ours):,.0f} to {max(run.per_s for run in ours):,.0f}"
    lines = [plain(f"{name}: per second", f"{rate:,.0f}", note=spread)]
    if theirs:
        ratios = [us.per_s / them.commits_per_s for us, them in zip(ours, theirs, strict=True)]
        their_rate = median(run.commits_per_s for run in theirs)
        lines.append(
            at_least(
                f"{name}: over pgbench",
                median(ratios),
                RATIO,
                note=f"{min(ratios):.2f} to {max(ratios):.2f}; pgbench {their_rate:,.0f}/s",
            )
        )
    else:
        lines.append(plain(f"{name}: over pgbench", "-", note="there is no pgbench here"))
    return [
        *lines,
        at_most(f"{name}: Python CPU", python_us, PYTHON_US, unit=" us"),
        plain(f"{name}: PostgreSQL CPU", f"{server_us:,.0f} us"),
    ]


@asynccontextmanager
async def _product(ground: Ground, work: Work) -> AsyncGenerator["_Product"]:
    """Chats at work through the product's own path, one for each connection."""
    link = ConnectConfig(dsn=ground.dsn)
    publisher = HintPublisher(PublishConfig(connect=link), SystemClock())

    def tell(applied: AppliedChange) -> None:
        publisher.publish(Hint.of(applied.chat))

    async with ground.pool(CONNECTIONS) as pool, asyncio.TaskGroup() as group:
        group.create_task(publisher.run())
        transactor = Transactor(pool, tell if work.told else tell_nobody)
        chats = [await running_chat(transactor) for _ in range(CONNECTIONS)]
        yield _Product(ground, pool, transactor, work.writes, chats)
        await publisher.close()


class _Product:
    def __init__(
        self,
        ground: Ground,
        pool: Pool,
        transactor: Transactor,
        writes: Sequence[Write],
        chats: list[Chat],
    ) -> None:
        self._ground = ground
        self._pool = pool
        self._transactor = transactor
        self._writes = writes
        self._chats = chats

    async def run(self, seconds: float) -> Spent:
        python, server, start = (
            time.process_time(),
            self._ground.server_cpu_s(),
            time.perf_counter(),
        )
        versions = sum(chat.snapshot_version for chat in self._chats)
        async with asyncio.TaskGroup() as group:
            for index in range(CONNECTIONS):
                group.create_task(self._keep_on(index, start + seconds))
        return Spent(
            commits=sum(chat.snapshot_version for chat in self._chats) - versions,
            wall_s=time.perf_counter() - start,
            python_s=time.process_time() - python,
            server_s=self._ground.server_cpu_s() - server,
        )

    async def planned_anew(self) -> float:
        """The share of executions for which the server did not use the plan it had. Planning
        takes longer than the work: a plan that is not kept halves the rate."""
        return await self._pool.fetchval(PLANNED)

    async def _keep_on(self, index: int, until: float) -> None:
        while time.perf_counter() < until:
            for write in self._writes:
                self._chats[index] = await commit(self._transactor, self._chats[index], write)


async def _theirs(ground: Ground, work: Work, seconds: float) -> rival.Score:
    async with ground.pool(1) as pool, ground.session() as session:
        transactor = Transactor(pool, tell_nobody)
        chats = [await running_chat(transactor) for _ in range(CONNECTIONS)]
        round_ = changes(chats[0], work.writes)
        script = await rival.script(session, chats, round_, changes(round_[-1].after, work.writes))
        score = await rival.run(ground, script, clients=CONNECTIONS, seconds=seconds)
        written = await session.fetchval(
            "SELECT sum(snapshot_version - 1)::bigint FROM chats WHERE id = ANY ($1::uuid[])",
            [chat.id for chat in chats],
        )
        # A compare-and-set that fails would be quick, and count for nothing.
        assert written >= score.commits, f"{written} commits of {score.commits} were written"
    return score
