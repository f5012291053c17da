"""Hands: a command through the tool beside a plain subprocess, a new workspace, many at once.

Everything is real, from the tool's arguments to the sandbox, but the chat's model: rows in a
fresh database, the build worker, the agent. The server's part runs in this process.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any, Final
from uuid import uuid4

import msgspec
from msgspec import Raw

from chatd.bench.ground import Ground, fresh, scratch_dir
from chatd.bench.report import Beside, Line, at_most, noted
from chatd.bench.stats import percentile, spread
from chatd.bench.workload import WORKER, new_change_id, running_chat, tell_nobody
from chatd.clock import SystemClock
from chatd.domain.chat.row import Chat, Fence
from chatd.domain.ids import ToolCallId
from chatd.domain.ports import Env, Tool, ToolContext
from chatd.hands import Hands, HandsConfig
from chatd.store.chat.transactor import Transactor
from chatd.store.conn import ConnectConfig
from chatd.workspaces.local.supervisor_client import SupervisorClient
from chatd.workspaces.templates import BUILT_IN, rows_of

MORE_MS: Final = 15.0
FIRST_S: Final = 2.0
AT_ONCE: Final = 50
ROUNDS, QUICK_ROUNDS = 100, 20

Json = dict[str, Any]
SCRATCH: Final = str(rows_of(BUILT_IN[0], "builtin").template.id)


class Desk:
    """Chats with hands, and the tools in them."""

    def __init__(self, hands: Hands, ground: Ground) -> None:
        self._hands = hands
        self._ground = ground
        self._tools: Mapping[str, Tool] = {}
        self._calls = count(1)

    async def chat(self) -> Chat:
        async with self._ground.pool(1) as pool:
            chat = await running_chat(Transactor(pool, tell_nobody))
        self._tools = {tool.spec.name: tool for tool in await self._hands.tools.tools(chat)}
        return chat

    async def use(self, chat: Chat, name: str, **args: object) -> Json:
        call = ToolCallId(f"call-{next(self._calls)}")
        context = ToolContext(chat=chat, call_id=call, fence=Fence.of(chat))
        output = await self._tools[name].run(context, Raw(msgspec.json.encode(args)))
        told = msgspec.json.decode(output.text, type=Json) if not output.is_error else {}
        assert told.get("success") or told.get("created"), output.text
        return told


def _to_nobody(event: str, **fields: object) -> None:
    del event, fields


@asynccontextmanager
async def desk_on(ground: Ground, data_dir: Path) -> AsyncGenerator[Desk]:
    clock = SystemClock()
    env = Env(clock=clock, emit=_to_nobody, new_id=uuid4, new_change_id=new_change_id)
    config = HandsConfig(
        connect=ConnectConfig(dsn=ground.dsn), data_dir=data_dir, host_id="bench", secret=b"s" * 32
    )
    hands = Hands(config, env, WORKER, announce=lambda _chat, _kind: None)
    try:
        async with hands.running():
            await hands.backend.prepare()
            yield Desk(hands, ground)
    finally:
        await SupervisorClient(data_dir / "ws-supervisor", clock).shutdown()


async def measure(*, quick: bool) -> list[Line]:
    async with fresh() as ground:
        with scratch_dir() as home:
            async with desk_on(ground, home / "data") as desk:
                firsts = [await _first(desk) for _ in range(2 if quick else 5)]
                chat = await desk.chat()
                await desk.use(chat, "create_workspace", template_id=SCRATCH)
                return [
                    await _overhead(desk, chat, QUICK_ROUNDS if quick else ROUNDS),
                    _first_line(firsts),
                    await _at_once(desk, chat),
                ]


async def _overhead(desk: Desk, chat: Chat, rounds: int) -> Line:
    """In turns, so that what slows the one slows the other."""
    ours: list[float] = []
    plain: list[float] = []
    for _ in range(rounds + 3):
        began = time.perf_counter()
        await desk.use(chat, "execute", command="true")
        between = time.perf_counter()
        process = await asyncio.create_subprocess_exec("/bin/sh", "-c", "true")
        await process.wait()
        ours.append((between - began) * 1000)
        plain.append((time.perf_counter() - between) * 1000)
    ours, plain = ours[3:], plain[3:]  # the first of them dial
    more = [one - other for one, other in zip(ours, plain, strict=True)]
    return at_most(
        "execute true, more than a subprocess",
        median(more),
        MORE_MS,
        unit=" ms",
        note=f"all of it {median(ours):.1f}, p95 {percentile(ours, 0.95):.1f} ms",
        beside=Beside(direct=median(plain)),
    )


async def _first(desk: Desk) -> float:
    chat = await desk.chat()
    began = time.perf_counter()
    await desk.use(chat, "create_workspace", template_id=SCRATCH)
    await desk.use(chat, "execute", command="true")
    return time.perf_counter() - began


def _first_line(seconds: list[float]) -> Line:
    found = spread(seconds)
    return at_most(
        "create_workspace to first command", found.middle, FIRST_S, unit=" s", note=str(found)
    )


async def _at_once(desk: Desk, chat: Chat) -> Line:
    """All of one chat: as many as one workspace has to stand."""

    async def one() -> float:
        began = time.perf_counter()
        await desk.use(chat, "execute", command="true", timeout="60s")
        return time.perf_counter() - began

    began = time.perf_counter()
    each = await asyncio.gather(*(one() for _ in range(AT_ONCE)))
    took = time.perf_counter() - began
    note = f"slowest {max(each):.2f} s, {took / AT_ONCE * 1000:.0f} ms each"
    return noted(f"{AT_ONCE} commands at once", took, unit=" s", note=note)
