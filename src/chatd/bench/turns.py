"""Round trips to the database for a turn, a round of tools and an idle chat.

Counted on the line between a whole `chatd serve` and PostgreSQL, by what the driver really sends.
What is shared by all chats (the tick, hints, the journal) is told apart by its statement and told
beside: it does not grow with the number of turns but with time.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Final

from chatd.bench.ground import Ground, fresh
from chatd.bench.line import Line as Wire
from chatd.bench.line import connect
from chatd.bench.report import Line, at_most
from chatd.bench.script import MARK, Wish
from chatd.bench.sides import Chatd, events_head, send
from chatd.bench.stage import Stage
from chatd.bench.wire import Tap, tapped
from chatd.store import model_configs, notifications
from chatd.store.chat import chats, journal, usage, workers
from chatd.store.workspace import agents, build_leases

TURN: Final = 3.0
TOOLS: Final = 2.0

SHARED: Final[Mapping[str, str]] = {
    journal.APPEND: "journal",
    journal.EMPTY_OLDEST: "journal",
    notifications.NOTIFY_MANY: "hints",
    notifications.PING: "hints",
    workers.TICK: "tick",
    workers.STRIKE: "tick",
    chats.VERSIONS: "poll",
    chats.RECENT: "poll",
    usage.ROLL_UP: "books",
    build_leases.TAKE: "builds",
    agents.ON_HOST: "agents",
    model_configs.MODELS: "models",
    model_configs.PROVIDERS: "models",
    workers.READ: "backlog",
}
_CALLS: Final = 10
_IDLE: Final = 50
_WITHIN_S: Final = 60.0


class Teller:
    """Trips since it was last asked: those of chats, and what else there was."""

    def __init__(self, tap: Tap) -> None:
        self._tap = tap
        self._before = Counter(tap.statements)

    def since(self) -> tuple[Counter[str], Counter[str]]:
        now = Counter(self._tap.statements)
        new = now - self._before
        self._before = now
        own = Counter({text: count for text, count in new.items() if text not in SHARED})
        beside: Counter[str] = Counter()
        for text, count in new.items():
            if text in SHARED:
                beside[SHARED[text]] += count
        return own, beside


class Watched:
    """A chat with a viewer that stays, as a page does."""

    def __init__(self, chat_id: str, desk: Wire, viewer: Wire) -> None:
        self._chat_id = chat_id
        self._desk = desk
        self._viewer = viewer
        self._wanted = 0
        self._answered = asyncio.Event()

    def heard(self, line: bytes) -> None:
        """The status that follows an answer ends the group that the answer came in."""
        if line.startswith(b'data: {"type":"message",') and b'"role":"assistant"' in line:
            self._wanted -= MARK in line
            if self._wanted <= 0:
                self._answered.set()

    async def turn(self, wish: Wish) -> None:
        self._wanted = 1
        self._answered.clear()
        await send(self._desk, self._chat_id, wish)
        await self.answered()

    async def answered(self) -> None:
        async with asyncio.timeout(_WITHIN_S):
            await self._answered.wait()

    async def watch(self) -> None:
        await self._viewer.follow(events_head(self._chat_id), self.heard)

    def close(self) -> None:
        self._viewer.stop()
        self._viewer.close()
        self._desk.close()


async def measure(stage: Stage, *, quick: bool) -> list[Line]:
    async with (
        _embedded(stage.ground) as ground,
        tapped(ground) as tap,
        stage.another(tap.dsn) as server,
    ):
        side = Chatd(server.port)
        desk, viewer = await connect(server.port), await connect(server.port)
        chat = Watched(await side.create(desk, Wish(tokens=5)), desk, viewer)
        async with asyncio.TaskGroup() as group:
            group.create_task(chat.watch())
            await chat.answered()
            teller = Teller(tap)
            lines = [
                await _new_chat(side, desk, teller, stage),
                *await _turns(chat, teller, 10 if quick else 40),
                await _idle(server.port, teller, stage, 5 if quick else 20),
            ]
            chat.close()
        return lines


@asynccontextmanager
async def _embedded(ground: Ground) -> AsyncGenerator[Ground]:
    """The tap is on a Unix socket. A lent server need not have one, and the count is the same."""
    if "host=" in ground.dsn:
        yield ground
    else:
        async with fresh() as own:
            yield own


async def _new_chat(side: Chatd, desk: Wire, teller: Teller, stage: Stage) -> Line:
    await stage.pause(0.5)
    teller.since()
    for _ in range(10):
        await side.create(desk, Wish(tokens=5))
    await stage.pause(1)
    own, _ = teller.since()
    trips = own.total() / 10
    return at_most("round trips, new chat and its answer", trips, TURN, note=named(own, 10))


async def _turns(chat: Watched, teller: Teller, count: int) -> list[Line]:
    for _ in range(3):
        await chat.turn(Wish(tokens=5))
    teller.since()
    for _ in range(count):
        await chat.turn(Wish(tokens=5))
    own, beside = teller.since()
    turn = own.total() / count
    await chat.turn(Wish(tokens=5, calls=_CALLS))
    with_tools, _ = teller.since()
    tools = (with_tools.total() - turn) / _CALLS
    shared = ", ".join(f"{what} {much / count:.1f}" for what, much in sorted(beside.items()))
    return [
        at_most(
            "round trips, one-step turn", turn, TURN, note=f"{named(own, count)}; beside: {shared}"
        ),
        at_most("round trips, round of tools", tools, TOOLS),
    ]


async def _idle(port: int, teller: Teller, stage: Stage, seconds: float) -> Line:
    side, desk = Chatd(port), await connect(port)
    for _ in range(_IDLE):
        await side.create(desk, Wish(tokens=1))
    desk.close()
    await stage.pause(1)
    teller.since()
    await stage.pause(seconds)
    own, beside = teller.since()
    shared = ", ".join(f"{what} {n * 60 / seconds:.0f}" for what, n in sorted(beside.items()))
    return at_most(
        "round trips, idle chat, a minute",
        own.total() * 60 / seconds / _IDLE,
        0.0,
        note=f"{_IDLE} chats; {named(own, 1) or 'none'}; for the whole process: {shared}",
    )


def named(statements: Counter[str], over: int) -> str:
    """Each by its first words, so that one can see what it is for."""
    words = {text: " ".join(text.split()[:2]) for text in statements}
    return ", ".join(f"{words[text]} {count / over:g}" for text, count in statements.most_common())
