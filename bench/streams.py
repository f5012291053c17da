"""What a model's stream costs: processor time from the socket to an assembled part.

Ours beside the vendors' own packages, in turns, each in a process of its own, and the fake
provider in a third, so that nobody is charged for another's work. Paced: a stream that comes one
event at a time costs a wake-up for each, which is what a worker with many chats lives on.
"""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from statistics import median
from typing import Final, get_args

import msgspec

from bench.listener import Heard, Job, Kind, Wire
from bench.talker import pieces
from chatd.bench.report import Line, at_most, plain

SHARE: Final = 0.5
"""Of the processor time that the vendor's own package takes for the same stream."""

_WARM_UP: Final = 100
_WITHIN_S: Final = 60.0
_NAMES: Final[Mapping[Wire, tuple[str, str]]] = {
    "messages": ("Anthropic", "anthropic"),
    "responses": ("OpenAI Responses", "openai"),
    "chat": ("OpenAI Chat", "openai"),
}


class Side:
    """One listening process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def cpu_ms(self, wire: Wire, kind: Kind, at: str, deltas: int) -> float:
        """For 1,000 deltas. What was heard must be what was said."""
        asks, tells = self._process.stdin, self._process.stdout
        assert asks is not None, "it was started with a pipe"
        assert tells is not None, "it was started with a pipe"
        job = Job(wire=wire, url=f"{at}/{kind}/{deltas}")
        asks.write(msgspec.json.encode(job) + b"\n")
        async with asyncio.timeout(_WITHIN_S):
            heard = msgspec.json.decode(await tells.readline(), type=Heard)
        if heard.said != "".join(pieces(kind, deltas)):
            raise RuntimeError(f"{wire}, {kind}: heard {len(heard.said)} other characters")
        return heard.cpu_s * 1e6 / deltas


async def measure(*, quick: bool) -> list[Line]:
    rounds, deltas = (2, 400) if quick else (3, 2000)
    async with AsyncExitStack() as stack:
        talker = await stack.enter_async_context(_child("bench.talker"))
        assert talker.stdout is not None, "it was started with a pipe"
        at = f"http://127.0.0.1:{int(await talker.stdout.readline())}"
        ours = Side(await stack.enter_async_context(_child("bench.listen_ours")))
        theirs = Side(await stack.enter_async_context(_child("bench.listen_sdks")))
        lines: list[Line] = []
        for wire in get_args(Wire):
            for kind in get_args(Kind):
                for side in (ours, theirs):
                    await side.cpu_ms(wire, kind, at, _WARM_UP)
                spent = [
                    await _round(number, (ours, theirs), wire, kind, (at, deltas))
                    for number in range(rounds)
                ]
                lines += _lines(wire, kind, spent)
    return lines


async def _round(
    number: int, sides: tuple[Side, Side], wire: Wire, kind: Kind, what: tuple[str, int]
) -> tuple[float, float]:
    """Ours and theirs, one after the other; each goes first as often as the other."""
    first, second = sides if number % 2 else sides[::-1]
    one, other = await first.cpu_ms(wire, kind, *what), await second.cpu_ms(wire, kind, *what)
    return (one, other) if number % 2 else (other, one)


def _lines(wire: Wire, kind: Kind, spent: Sequence[tuple[float, float]]) -> list[Line]:
    vendor, package = _NAMES[wire]
    name = f"streams, {vendor}, {'text' if kind == 'text' else 'tool input'}"
    ratios = [ours / theirs for ours, theirs in spent]
    ours, theirs = (median(side) for side in zip(*spent, strict=True))
    return [
        plain(
            f"{name}: CPU for 1,000 deltas",
            f"{ours:,.0f} ms",
            note=f"the package {package}: {theirs:,.0f} ms",
        ),
        at_most(
            f"{name}: over the vendor's package",
            median(ratios),
            SHARE,
            note=f"{min(ratios):.2f} to {max(ratios):.2f}",
        ),
    ]


@asynccontextmanager
async def _child(module: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    """Ends with us. Loopback is reached directly, whatever proxy there is."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=2**20,
        env={**os.environ, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
