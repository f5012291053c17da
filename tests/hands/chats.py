"""Chats with hands in a whole replica: real rows, a real build worker and real tools, over agents
that answer a dial as a test likes. Dials and questions to the rows are counted."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from typing import cast

from msgspec import Struct

from chatd.clock import SystemClock
from chatd.domain.chat.row import Chat, Fence
from chatd.domain.errors import Unavailable
from chatd.domain.ids import ChatId, ToolCallId, WorkspaceId
from chatd.domain.ports import Clock, ToolContext
from chatd.domain.workspace.agent_api import (
    AgentApi,
    AgentUnreachable,
    ContextResource,
    FileLines,
    WorkspaceBinding,
    WorkspaceContext,
)
from chatd.domain.workspace.entities import AgentHealth, AgentId, AgentRow
from chatd.store.pool import Pool
from chatd.tools.chat_tools import ChatTools
from chatd.workspaces.agent_wire import OnBehalf
from chatd.workspaces.binding_rows import BindingRows
from chatd.workspaces.bound import Seen
from chatd.workspaces.briefing import Briefings
from chatd.workspaces.builder import Builder
from chatd.workspaces.catalogue import Catalogue
from chatd.workspaces.client import AgentClient
from chatd.workspaces.connecting import Means
from chatd.workspaces.context import Contexts
from chatd.workspaces.dials import Dials
from chatd.workspaces.making import Making, MakingConfig
from chatd.workspaces.provisioning import Provisioning
from chatd.workspaces.reaching import Reaching
from chatd.workspaces.transport import Dialled
from chatd.workspaces.waiting import Waiting, Waits
from tests.support.builders import FakeBackend, building
from tests.support.house import House, a_house
from tests.support.streaming import env_with
from tests.support.workspaces import BACKEND, HOST, plant_template

DELAY_S = 0.05
"""Until a dial counts as slow. A dial that answers at once is never that slow to be checked, for
what is counted then would be wrong; one that never answers may as well be given up soon."""
PATIENT_S = 20.0


class FakeAgent:
    """The end of a dial. All it knows is what the tests ask for."""

    lost = False

    def __init__(self, row: AgentRow, words: str) -> None:
        self._row = row
        self._words = words

    def on_behalf_of(self, on_behalf: OnBehalf) -> AgentApi:
        del on_behalf
        return cast("AgentApi", self)

    async def read_lines(self, path: str, *, offset: int = 1, limit: int = 2000) -> FileLines:
        del offset, limit
        text = f"1\t{path} of {self._row.id}"
        return FileLines(content=text, file_size=1, total_lines=1, lines_read=1)

    async def context(self, *, after: int = 0, wait_s: float = 0) -> WorkspaceContext:
        del after, wait_s
        file = ContextResource(
            kind="instruction_file", source="/home/dev/AGENTS.md", status="ok", content=self._words
        )
        where = {"directory": "/home/dev", "os": "linux"}
        return WorkspaceContext(version=1, hash=self._words, resources=(file,), **where)


class Exchange:
    """Answers dials. `deaf` agents never do, `dead` ones refuse; `hold` is waited for first."""

    def __init__(self) -> None:
        self.dialled: list[AgentId] = []
        self.released = 0
        self.deaf: set[AgentId] = set()
        self.dead: set[AgentId] = set()
        self.hold: Awaitable[object] | None = None
        self.words = "Use tabs."

    async def open(self, row: AgentRow) -> Dialled[AgentClient]:
        self.dialled.append(row.id)
        if row.id in self.dead:
            raise AgentUnreachable("Nobody listens there.")
        if row.id in self.deaf:
            await asyncio.Event().wait()
        if self.hold is not None:
            await self.hold
        agent = cast("AgentClient", FakeAgent(row, self.words))
        return Dialled(conn=agent, release=self._release)

    async def _release(self) -> None:
        self.released += 1

    async def ping(self, row: AgentRow) -> AgentHealth:
        del row
        return AgentHealth(boot_id="boot", lifecycle="ready", directory="/home/dev")


class CountedRows:
    """Satisfies `Bindings`. `broken`: what cannot be asked for; `asked` is told of each try."""

    def __init__(self, rows: BindingRows) -> None:
        self._rows = rows
        self.asked: Counter[str] = Counter()
        self.broken: set[str] = set()
        self.failed = asyncio.Event()

    async def binding(self, chat_id: ChatId) -> WorkspaceBinding | None:
        self._ask("binding")
        return await self._rows.binding(chat_id)

    async def agent(self, agent_id: AgentId) -> Seen | None:
        self._ask("agent")
        return await self._rows.agent(agent_id)

    async def latest_agent(self, workspace_id: WorkspaceId) -> Seen:
        self._ask("latest")
        return await self._rows.latest_agent(workspace_id)

    async def remember(self, binding: WorkspaceBinding) -> bool:
        self._ask("remember")
        return await self._rows.remember(binding)

    def _ask(self, what: str) -> None:
        self.asked[what] += 1
        if what in self.broken:
            self.failed.set()
            raise Unavailable("no database")


class Counts(Struct, frozen=True, kw_only=True):
    dials: int
    latest: int
    agent: int


class Stand:
    """A replica whose chats have hands. Satisfies `domain.hands.Hands`."""

    def __init__(
        self, pool: Pool, builder: Builder, backend: FakeBackend, *, delay_s: float, clock: Clock
    ) -> None:
        env = env_with(SystemClock())
        self.exchange = Exchange()
        self.rows = CountedRows(BindingRows(pool))
        means = Means(
            bindings=self.rows,
            dials=Dials(),
            open=self.exchange.open,
            clock=clock,
            delay_s=delay_s,
        )
        self.reaching = Reaching(means)
        self.briefings = Briefings(self.rows, Contexts(pool, env), self._connect, env)
        making = Making(
            pool,
            Waiting(pool, self.exchange.ping, env.clock, Waits()),
            {BACKEND: backend},
            env,
            MakingConfig(host_id=HOST),
            wake=builder.wake,
            bound=self._bound,
        )
        provisioning = Provisioning(pool, Catalogue(pool, env.clock), making)
        self.tools = ChatTools(self, provisioning, self.briefings.instructions, env.clock)

    async def connect(self, context: ToolContext) -> AgentApi:
        return await self.reaching.connect(context)

    async def _connect(self, chat: Chat) -> AgentApi:
        context = ToolContext(chat=chat, call_id=ToolCallId("briefing"), fence=Fence.of(chat))
        return await self.connect(context)

    async def _bound(self, chat_id: ChatId, workspace_id: WorkspaceId) -> None:
        await self.reaching.bound(chat_id, workspace_id)
        self.briefings.bound(chat_id)

    def counts(self) -> Counts:
        asked = self.rows.asked
        dials = len(self.exchange.dialled)
        return Counts(dials=dials, latest=asked["latest"], agent=asked["agent"])

    def since(self, before: Counts) -> Counts:
        now = self.counts()
        return Counts(
            dials=now.dials - before.dials,
            latest=now.latest - before.latest,
            agent=now.agent - before.agent,
        )


class Room(Struct, frozen=True, kw_only=True):
    house: House
    stand: Stand


@asynccontextmanager
async def a_room(
    dsn: str, pool: Pool, *, delay_s: float = PATIENT_S, clock: Clock | None = None
) -> AsyncGenerator[Room]:
    """In the end every connection that was dialled has been let go. `clock` is that of dials
    only; everybody else has a real one."""
    await plant_template(pool)
    backend = FakeBackend()
    async with building(pool, SystemClock(), backend) as builder:
        stand = Stand(pool, builder, backend, delay_s=delay_s, clock=clock or SystemClock())
        async with a_house(dsn, source=stand.tools) as house:
            yield Room(house=house, stand=stand)
        await stand.reaching.close()
    refused = stand.exchange.dead | stand.exchange.deaf
    opened = [each for each in stand.exchange.dialled if each not in refused]
    assert stand.exchange.released >= len(opened)
