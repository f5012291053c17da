"""The connection of one turn to the agent of its chat's workspace: dialled, kept, given up.

Owns what is kept for a turn, who wins when two calls dial at once, and how long a dial may take.
Which agent is meant is `bound`'s business, how a dial is checked `dialling`'s, and what is said
when it does not succeed `unreached`'s.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Generic, Protocol, TypeVar

from msgspec import Struct

from chatd.domain.errors import ChatdError
from chatd.domain.ids import WorkspaceId
from chatd.domain.ports import Clock
from chatd.domain.workspace.agent_api import AgentApi, AgentUnreachable, WorkspaceBinding
from chatd.domain.workspace.entities import AgentId, AgentRow
from chatd.domain.workspace.rules import AmbiguousAgent, NoAgent, agent_status
from chatd.workspaces.agent_wire import OnBehalf
from chatd.workspaces.bound import (
    ATTEMPTS,
    Bindings,
    BoundAgent,
    being_changed,
    no_hands,
)
from chatd.workspaces.dialling import DELAY_S, Dialler, Reached
from chatd.workspaces.dials import Dials, Stop
from chatd.workspaces.transport import ELSEWHERE, Dialled
from chatd.workspaces.unreached import classify, elsewhere, perhaps_slow

DIAL_S: Final = 30.0
LOOK_AGAIN_S: Final = 30.0
"""After a pause as long as this, somebody else may know by now that the agent is gone."""
_MOST_DOUBTED: Final = 4


class Conn(Protocol):
    """What a dial leads to. `lost`: the last question had no answer; `asking`: somebody waits."""

    @property
    def lost(self) -> bool: ...
    @property
    def asking(self) -> bool: ...

    def on_behalf_of(self, on_behalf: OnBehalf) -> AgentApi: ...


C = TypeVar("C", bound=Conn)


class Means(Struct, Generic[C], frozen=True, kw_only=True):
    """What all turns of a replica share."""

    bindings: Bindings
    dials: Dials
    open: Callable[[AgentRow], Awaitable[Dialled[C]]]
    clock: Clock
    dial_s: float = DIAL_S
    delay_s: float = DELAY_S


class DialTimedOut(AgentUnreachable):
    """The budget of the dial is spent, and not the turn's."""


class _Kept(Struct, Generic[C], frozen=True, kw_only=True):
    """The connection of the turn, and where it leads."""

    workspace_id: WorkspaceId
    agent_id: AgentId
    dialled: Dialled[C]
    conn: AgentApi


class TurnConnection(Generic[C]):
    """For one turn of one chat. Whoever makes it closes it when the turn ends."""

    def __init__(
        self, means: Means[C], on_behalf: OnBehalf, binding: WorkspaceBinding | None = None
    ) -> None:
        """`binding` is what the chat's row says, if that is known; else it is read."""
        self._means = means
        self._on_behalf = on_behalf
        self._kept: _Kept[C] | None = None
        self._doubted: list[_Kept[C]] = []
        self._used_at = 0.0
        self.bound = BoundAgent(means.bindings, on_behalf.chat_id, binding)

    @property
    def in_use(self) -> set[WorkspaceId]:
        """The workspaces in which a call of this turn waits just now."""
        held = [*self._doubted, *([] if self._kept is None else [self._kept])]
        return {each.workspace_id for each in held if each.dialled.conn.asking}

    async def get(self) -> AgentApi:
        """Raises NoHands if there is nothing to connect to, AgentLost if it cannot be reached."""
        for _ in range(ATTEMPTS):
            agent = await self.bound.ensure()
            if (conn := await self._reusable(agent)) is not None:
                return conn
            if (conn := await self._connect(agent)) is not None:
                return conn
        raise being_changed()

    async def select(self, workspace_id: WorkspaceId | None) -> None:
        """The chat has been given another workspace, or none, or there is news of the one it has:
        then it is dialled anew, and calls that wait for an answer still get theirs."""
        same = workspace_id is not None and workspace_id == self.bound.workspace_id
        self.bound.select(workspace_id)
        if not same:
            await self.close()
        elif (kept := self._kept) is not None:
            self._kept = None
            await self._doubt(kept)

    async def close(self) -> None:
        """Let go of the connection."""
        kept, self._kept = self._kept, None
        doubted, self._doubted = self._doubted, []
        for held in [*doubted, *([] if kept is None else [kept])]:
            await held.dialled.release()

    async def _reusable(self, agent: AgentRow) -> AgentApi | None:
        """What the turn has already, unless there is a reason to doubt it. A doubt leads to a new
        dial and never to a refusal: rows may be late."""
        kept = self._kept
        if kept is None:
            return None
        if kept.workspace_id == agent.workspace_id and not kept.dialled.conn.lost:
            now = self._means.clock.monotonic()
            if now - self._used_at < LOOK_AGAIN_S or await self._looks_connected(kept.agent_id):
                self._used_at = now
                return kept.conn
        if self._kept is kept:
            self._kept = None
            await self._doubt(kept)
        return None

    async def _doubt(self, kept: _Kept[C]) -> None:
        """Calls that still use it may end in peace; it is released with the turn, or a little
        before if there are many."""
        self._doubted.append(kept)
        if len(self._doubted) > _MOST_DOUBTED:
            await self._doubted.pop(0).dialled.release()

    async def _looks_connected(self, agent_id: AgentId) -> bool:
        try:
            seen = await self._means.bindings.agent(agent_id)
        except ChatdError:
            return True
        return seen is not None and agent_status(seen.agent, seen.now) == "connected"

    async def _connect(self, agent: AgentRow) -> AgentApi | None:
        """None if the chat has another workspace by now."""
        workspace_id = agent.workspace_id
        reached, row = await self._dial(agent)
        dialled = reached.dialled
        try:
            if reached.switched and not await self.bound.bind(workspace_id, row):
                return None
            if self.bound.workspace_id != workspace_id:
                return None
            if self._kept is not None and self._kept.workspace_id == workspace_id:
                return self._kept.conn
            conn = dialled.conn.on_behalf_of(self._on_behalf)
            before = self._kept
            self._kept = _Kept(
                workspace_id=workspace_id, agent_id=row.id, dialled=dialled, conn=conn
            )
            self._used_at = self._means.clock.monotonic()
            if before is not None:
                await self._doubt(before)
            return conn
        finally:
            # Whoever comes second uses what the first has brought, and lets go of its own.
            if self._kept is None or self._kept.dialled is not dialled:
                await dialled.release()

    async def _dial(self, agent: AgentRow) -> tuple[Reached[C], AgentRow]:
        rows = {agent.id: agent}

        async def validate() -> AgentId:
            latest = (await self._means.bindings.latest_agent(agent.workspace_id)).agent
            rows[latest.id] = latest
            return latest.id

        try:
            reached = await self._within_budget(
                lambda agent_id: self._means.open(rows[agent_id]), validate, agent.id
            )
        except (NoAgent, AmbiguousAgent) as error:
            self.bound.forget()
            raise no_hands(error) from error
        except DialTimedOut:
            self.bound.forget()
            raise await self._classified(agent.workspace_id) from None
        except AgentUnreachable as error:
            self.bound.forget()
            if error.code == ELSEWHERE:
                raise elsewhere(error) from error
            raise
        return reached, rows[reached.agent_id]

    async def _within_budget(
        self,
        dial: Callable[[AgentId], Awaitable[Dialled[C]]],
        validate: Callable[[], Awaitable[AgentId]],
        agent_id: AgentId,
    ) -> Reached[C]:
        stop = Stop()
        dialler = Dialler(
            dials=self._means.dials,
            dial=dial,
            validate=validate,
            clock=self._means.clock,
            stop=stop,
            delay_s=self._means.delay_s,
        )
        budget = asyncio.get_running_loop().create_task(self._spend(stop), name="dial budget")
        try:
            return await dialler.reach(agent_id)
        finally:
            budget.cancel()

    async def _spend(self, stop: Stop) -> None:
        await self._means.clock.sleep(self._means.dial_s, "dial_budget")
        stop.set(DialTimedOut("The workspace agent did not answer in time."))

    async def _classified(self, workspace_id: WorkspaceId) -> ChatdError:
        try:
            return classify(await self._means.bindings.latest_agent(workspace_id))
        except (NoAgent, AmbiguousAgent) as error:
            return no_hands(error)
        except ChatdError:
            return perhaps_slow()
