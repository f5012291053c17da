"""Many answers at once: at a model's pace, one alone, and as fast as possible.

Direct, relay and chatd alternate, and each goes first as often as the others. Wall time runs from
the first request to the last token at a viewer. CPU time is that of all processes of the server
and of PostgreSQL.
"""

import os
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Literal

from msgspec import Struct

from bench.clients import BenchClient, ChatdClient, ask_many
from bench.environment import BenchEnvironment
from bench.fake_provider import AnswerScript
from bench.proc_stats import cpu_s, spread
from bench.report import Baselines, ReportRow, at_least, at_most, without_target

MAX_PACED_CPU_MS: Final = 100.0
MAX_WALL_RATIO: Final = 1.1
MAX_CPU_RATIO: Final = 1.0
MAX_RUSH_RATIO: Final = 2.5
MIN_BURST_TOKENS_PER_S: Final = 15_000.0
MIN_PROCESSES_RATIO: Final = 1.8
CONCURRENT_CHATS: Final = 100

ClientKind = Literal["direct", "relay", "chatd"]
_CLIENT_KINDS: Final[tuple[ClientKind, ...]] = ("direct", "relay", "chatd")


class ThroughputSample(Struct, frozen=True, kw_only=True):
    tokens: int
    wall_s: float
    cpu_s: float
    postgres_s: float
    first_s: float

    @property
    def per_s(self) -> float:
        return self.tokens / self.wall_s

    @property
    def cpu_ms(self) -> float:
        """Per 1,000 tokens."""
        return self.cpu_s * 1e6 / self.tokens

    @property
    def postgres_ms(self) -> float:
        return self.postgres_s * 1e6 / self.tokens


class ThroughputRun:
    """The clients keep their connections from round to round."""

    def __init__(self, bench: BenchEnvironment) -> None:
        self._stage = bench
        self._clients: Mapping[ClientKind, BenchClient] = {
            "direct": bench.direct_client(),
            "relay": bench.relay_client(),
            "chatd": bench.chatd_client(),
        }

    async def rounds(
        self, script: AnswerScript, chats: int, count: int
    ) -> dict[ClientKind, list[ThroughputSample]]:
        runs: dict[ClientKind, list[ThroughputSample]] = {kind: [] for kind in _CLIENT_KINDS}
        for number in range(count):
            turn = number % len(_CLIENT_KINDS)
            for kind in (*_CLIENT_KINDS[turn:], *_CLIENT_KINDS[:turn]):
                runs[kind].append(await self._run(kind, script, chats))
        return runs

    async def _run(self, kind: ClientKind, script: AnswerScript, chats: int) -> ThroughputSample:
        cpu_s = self._cpu_meter(kind)
        cpu, postgres = await cpu_s(), self._stage.database.server_cpu_s()
        began = time.perf_counter()
        answers = await ask_many(self._clients[kind], script, chats)
        wall_s = time.perf_counter() - began
        return ThroughputSample(
            tokens=sum(one.tokens for one in answers),
            wall_s=wall_s,
            cpu_s=await cpu_s() - cpu,
            postgres_s=self._stage.database.server_cpu_s() - postgres,
            first_s=spread([one.first_s for one in answers]).median,
        )

    def _cpu_meter(self, kind: ClientKind) -> Callable[[], Awaitable[float]]:
        match kind:
            case "chatd":
                return self._stage.cpu_s
            case "relay":
                return self._stage.relay_cpu_s
            case "direct":
                return _no_cpu

    def close(self) -> None:
        for client in self._clients.values():
            client.close()


async def _no_cpu() -> float:
    """The direct client has no server."""
    return 0.0


class PacedLoad(Struct, frozen=True, kw_only=True):
    """`quick_tokens` are those of an answer in a quick run."""

    chats: int
    per_s: int
    tokens: int
    quick_tokens: int
    max_cpu_ms: float | None = None

    def __str__(self) -> str:
        return f"{self.chats} chats at {self.per_s} tokens/s"


FAST_LOAD: Final = PacedLoad(
    chats=CONCURRENT_CHATS, per_s=50, tokens=300, quick_tokens=200, max_cpu_ms=MAX_PACED_CPU_MS
)
SLOW_LOAD: Final = PacedLoad(chats=300, per_s=10, tokens=200, quick_tokens=60)
LARGE_LOAD: Final = PacedLoad(chats=1000, per_s=5, tokens=75, quick_tokens=30)


async def measure_paced(bench: BenchEnvironment, *, quick: bool) -> list[ReportRow]:
    return await _measure_load(bench, FAST_LOAD, quick=quick)


async def measure_slow(bench: BenchEnvironment, *, quick: bool) -> list[ReportRow]:
    """Tokens so slow that hardly two of a chat share a read or a write."""
    return await _measure_load(bench, SLOW_LOAD, quick=quick)


async def measure_many(bench: BenchEnvironment, *, quick: bool) -> list[ReportRow]:
    return await _measure_load(bench, LARGE_LOAD, quick=quick)


async def _measure_load(
    bench: BenchEnvironment, load: PacedLoad, *, quick: bool
) -> list[ReportRow]:
    script = AnswerScript(tokens=load.quick_tokens if quick else load.tokens, per_s=load.per_s)
    throughput = ThroughputRun(bench)
    await throughput.rounds(AnswerScript(tokens=20), CONCURRENT_CHATS, 1)
    runs = await throughput.rounds(script, load.chats, 1 if quick else 3)
    throughput.close()
    ideal = script.tokens / script.per_s
    wall = {kind: spread([run.wall_s / ideal for run in runs[kind]]) for kind in _CLIENT_KINDS}
    cpu = {kind: spread([run.cpu_ms for run in runs[kind]]) for kind in _CLIENT_KINDS}
    over = spread(
        [
            mine.cpu_ms / relay.cpu_ms
            for mine, relay in zip(runs["chatd"], runs["relay"], strict=True)
        ]
    )
    postgres = spread([run.postgres_ms for run in runs["chatd"]]).median
    first = spread([run.first_s * 1000 for run in runs["chatd"]]).median
    note = f"{cpu['chatd']}; PostgreSQL {postgres:.0f} of it; answers of {script.tokens} tokens"
    baselines = Baselines(direct=0.0, relay=cpu["relay"].median)
    name, median = f"{load}: CPU for 1,000 tokens", cpu["chatd"].median
    if load.max_cpu_ms is None:
        per_tokens = without_target(name, median, unit=" ms", note=note, baselines=baselines)
    else:
        per_tokens = at_most(
            name, median, load.max_cpu_ms, unit=" ms", note=note, baselines=baselines
        )
    return [
        at_most(
            f"{load}: wall over ideal",
            wall["chatd"].median,
            MAX_WALL_RATIO,
            note=f"{wall['chatd']}; ideal {ideal:g} s; first token p50 {first:.0f} ms",
            baselines=Baselines(direct=wall["direct"].median, relay=wall["relay"].median),
        ),
        per_tokens,
        at_most(f"{load}: CPU over the relay's", over.median, MAX_CPU_RATIO, note=str(over)),
    ]


async def measure_rush(bench: BenchEnvironment, *, quick: bool) -> list[ReportRow]:
    """New chats that arrive at once: how long half of them wait for their first token."""
    throughput, script = ThroughputRun(bench), AnswerScript(tokens=20, per_s=50)
    await throughput.rounds(script, CONCURRENT_CHATS, 1)
    runs = await throughput.rounds(script, CONCURRENT_CHATS, 3 if quick else 9)
    throughput.close()
    first = {kind: spread([run.first_s * 1000 for run in runs[kind]]) for kind in _CLIENT_KINDS}
    ratio = first["chatd"].median / first["relay"].median
    return [
        at_most(
            f"{CONCURRENT_CHATS} new chats at once: first token p50 over the relay's",
            ratio,
            MAX_RUSH_RATIO,
            note=f"{first['chatd']} ms; relay {first['relay']} ms",
        )
    ]


async def measure_single(bench: BenchEnvironment, *, quick: bool) -> list[ReportRow]:
    """One chat: no wake-up of a process is shared between chats."""
    script = AnswerScript(tokens=200 if quick else 500, per_s=50)
    throughput = ThroughputRun(bench)
    await throughput.rounds(AnswerScript(tokens=20), 1, 2)
    idle_ms = await _idle_cpu_ms(bench, 2 if quick else 5) * 1000 / script.per_s
    runs = await throughput.rounds(script, 1, 1 if quick else 3)
    throughput.close()
    cpu = {kind: spread([run.cpu_ms for run in runs[kind]]) for kind in _CLIENT_KINDS}
    postgres = spread([run.postgres_ms for run in runs["chatd"]]).median
    return [
        without_target(
            "1 chat at 50 tokens/s: CPU for 1,000 tokens",
            cpu["chatd"].median,
            unit=" ms",
            note=f"{cpu['chatd']}; PostgreSQL {postgres:.0f}; at rest {idle_ms:.0f} of it",
            baselines=Baselines(direct=0.0, relay=cpu["relay"].median),
        )
    ]


async def _idle_cpu_ms(bench: BenchEnvironment, seconds: float) -> float:
    """CPU time per second of the idle server and database."""
    cpu, began = await bench.cpu_s(), time.perf_counter()
    await bench.pause(seconds)
    return (await bench.cpu_s() - cpu) * 1000 / (time.perf_counter() - began)


async def measure_burst(bench: BenchEnvironment, *, quick: bool) -> list[ReportRow]:
    script = AnswerScript(tokens=300 if quick else 1000)
    throughput = ThroughputRun(bench)
    await throughput.rounds(AnswerScript(tokens=50), CONCURRENT_CHATS, 1)
    runs = await throughput.rounds(script, CONCURRENT_CHATS, 2 if quick else 5)
    throughput.close()
    rate = {kind: spread([run.per_s for run in runs[kind]]) for kind in _CLIENT_KINDS}
    cpu = spread([run.cpu_ms for run in runs["chatd"]]).median
    return [
        at_least(
            f"burst, {CONCURRENT_CHATS} chats: tokens/s",
            rate["chatd"].median,
            MIN_BURST_TOKENS_PER_S,
            note=f"{rate['chatd']}; CPU {cpu:.0f} ms for 1,000",
            baselines=Baselines(direct=rate["direct"].median, relay=rate["relay"].median),
        )
    ]


async def measure_processes(bench: BenchEnvironment, *, quick: bool) -> list[ReportRow]:
    """`chatd serve --processes 2` beside one process, as fast as possible. The clients and the fake
    provider are on the same cores: what they take, the servers cannot."""
    script = AnswerScript(tokens=300 if quick else 1000)
    async with bench.another_replica(None, "--processes", "2") as pair:
        clients = {1: bench.chatd_client(), 2: ChatdClient(pair.port)}
        for client in clients.values():
            await ask_many(client, AnswerScript(tokens=50), CONCURRENT_CHATS)
        rates: dict[int, list[float]] = {1: [], 2: []}
        shares: list[float] = []
        for number in range(2 if quick else 6):
            for count in (1, 2) if number % 2 else (2, 1):
                began, load = time.perf_counter(), _generator_cpu_s(bench)
                answers = await ask_many(clients[count], script, CONCURRENT_CHATS)
                took_s = time.perf_counter() - began
                rates[count].append(sum(one.tokens for one in answers) / took_s)
                if count == 2:
                    shares.append((_generator_cpu_s(bench) - load) / took_s)
        for client in clients.values():
            client.close()
    one, two = spread(rates[1]), spread(rates[2])
    cores, share = os.cpu_count() or 1, spread(shares).median
    return [
        at_least(
            "two processes over one: tokens/s",
            two.median / one.median,
            MIN_PROCESSES_RATIO,
            note=f"{two} and {one}; the load itself took {share:.1f} of {cores} cores",
        )
    ]


def _generator_cpu_s(bench: BenchEnvironment) -> float:
    """Of the clients in this process and of the fake provider."""
    return sum(os.times()[:2]) + cpu_s(bench.provider.pid)
