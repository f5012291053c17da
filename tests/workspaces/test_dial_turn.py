"""The connection of a turn: to which agent, for how long, and what is said without it."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from datetime import timedelta
from typing import cast

import pytest
from msgspec.structs import replace

from chatd.domain.errors import ChatdError, Unavailable
from chatd.domain.workspace.agent_api import (
    AgentApi,
    AgentUnreachable,
    WorkspaceBinding,
    WorkspaceUnavailable,
)
from chatd.domain.workspace.entities import AgentId, AgentRow
from chatd.workspaces.agent_wire import OnBehalf
from chatd.workspaces.bound import Seen
from chatd.workspaces.connecting import DIAL_S, Means, TurnConnection
from chatd.workspaces.dials import Dials
from chatd.workspaces.transport import Dialled
from chatd.workspaces.unreached import classify
from tests.support.clock import FakeClock
from tests.workspaces.binding_tables import (
    AWAY,
    CHAT,
    FAR,
    FIRST,
    HOME,
    NOW,
    SECOND,
    Tables,
    agent,
)

WAIT_S = 30.0


class Wire:
    """What a dial leads to: a name for the agent, and nothing to ask it."""

    def __init__(self, row: AgentRow) -> None:
        self.row = row
        self.lost = False
        self.asking = False
        self.on_behalf: list[OnBehalf] = []

    def on_behalf_of(self, on_behalf: OnBehalf) -> AgentApi:
        self.on_behalf.append(on_behalf)
        # The tests only look at which one it is; nobody asks it anything.
        return cast("AgentApi", self)


class Exchange:
    """Agents answer a dial at once unless a test says otherwise."""

    def __init__(self) -> None:
        self.dialled: list[AgentRow] = []
        self.released: list[AgentRow] = []
        self.deaf: set[AgentId] = set()
        self.dead: set[AgentId] = set()
        self.hold: Awaitable[object] | None = None
        self.reached = asyncio.Event()

    async def open(self, row: AgentRow) -> Dialled[Wire]:
        self.dialled.append(row)
        self.reached.set()
        if row.id in self.dead:
            raise AgentUnreachable("refused")
        if row.id in self.deaf:
            await asyncio.Event().wait()
        if self.hold is not None:
            await self.hold

        async def release() -> None:
            self.released.append(row)

        return Dialled(conn=Wire(row), release=release)


class Stage:
    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.tables = Tables()
        self.exchange = Exchange()
        self.means = Means(
            bindings=self.tables, dials=Dials(), open=self.exchange.open, clock=clock
        )
        self.turn = TurnConnection(self.means, OnBehalf(chat_id=CHAT, epoch=7))

    async def get(self) -> Wire:
        async with asyncio.timeout(WAIT_S):
            conn = await self.turn.get()
        assert isinstance(conn, Wire)
        return conn

    async def refused(self, kind: type[ChatdError]) -> str:
        with pytest.raises(kind) as error:
            await self.get()
        return error.value.message


@pytest.fixture
async def stage(clock: FakeClock) -> AsyncGenerator[Stage]:
    """In the end everything that was opened has been released, once."""
    stage = Stage(clock)
    yield stage
    await stage.turn.close()
    await stage.means.dials.close()
    opened = [row for row in stage.exchange.dialled if row.id not in stage.exchange.dead]
    opened = [row for row in opened if row.id not in stage.exchange.deaf]
    assert sorted(row.id for row in stage.exchange.released) == sorted(row.id for row in opened)


@pytest.mark.covers("binding-4")
async def test_the_bound_agent_is_used_without_looking_for_the_latest(stage: Stage) -> None:
    stage.tables.bound_to(FIRST)
    conn = await stage.get()
    assert conn.row == FIRST
    assert conn.on_behalf == [OnBehalf(chat_id=CHAT, epoch=7)]
    assert stage.tables.asked == ["binding", "agent"]


async def test_the_connection_is_kept_for_the_turn(stage: Stage) -> None:
    stage.tables.bound_to(FIRST)
    assert await stage.get() is await stage.get()
    assert stage.exchange.dialled == [FIRST]
    assert stage.tables.asked == ["binding", "agent"]


@pytest.mark.covers("binding-4")
async def test_a_chat_that_is_bound_to_nothing_yet_is_bound_to_the_latest(stage: Stage) -> None:
    assert (await stage.get()).row == FIRST
    assert stage.tables.row.agent_id == FIRST.id
    assert stage.tables.row.build_id == FIRST.build_id
    assert stage.tables.asked == ["binding", "latest", "remember"]


@pytest.mark.covers("binding-4")
async def test_a_binding_to_an_agent_that_is_no_more_is_repaired(stage: Stage) -> None:
    stage.tables.bound_to(SECOND)
    del stage.tables.agents[SECOND.id]
    assert (await stage.get()).row == FIRST
    assert stage.tables.row.agent_id == FIRST.id


@pytest.mark.covers("binding-4")
async def test_a_bound_agent_of_another_workspace_is_not_used(stage: Stage) -> None:
    stage.tables.row = WorkspaceBinding(chat_id=CHAT, workspace_id=HOME, agent_id=FAR.id)
    assert (await stage.get()).row == FIRST


@pytest.mark.covers("binding-4")
async def test_a_switch_is_remembered(stage: Stage) -> None:
    stage.tables.bound_to(SECOND)
    stage.exchange.dead.add(SECOND.id)
    assert (await stage.get()).row == FIRST
    assert stage.tables.row.agent_id == FIRST.id
    assert await stage.turn.bound.ensure() == FIRST


async def test_a_switch_that_cannot_be_remembered_releases_the_connection(stage: Stage) -> None:
    stage.tables.bound_to(SECOND)
    stage.exchange.dead.add(SECOND.id)
    stage.tables.broken.add("remember")
    await stage.refused(Unavailable)
    assert stage.exchange.released == [FIRST]


@pytest.mark.covers("binding-5")
async def test_a_chat_without_a_workspace_is_told_to_create_one_until_it_has(stage: Stage) -> None:
    stage.tables.row = WorkspaceBinding(chat_id=CHAT)
    assert "create_workspace" in await stage.refused(WorkspaceUnavailable)
    stage.tables.row = WorkspaceBinding(chat_id=CHAT, workspace_id=HOME)
    assert (await stage.get()).row == FIRST
    assert stage.tables.asked.count("binding") == 2


@pytest.mark.covers("binding-5")
async def test_a_row_that_cannot_be_read_is_told(stage: Stage) -> None:
    stage.tables.broken.add("binding")
    await stage.refused(Unavailable)
    stage.tables.broken = {"agent", "latest"}
    await stage.refused(Unavailable)
    assert stage.exchange.dialled == []


@pytest.mark.covers("binding-4")
async def test_a_stopped_workspace_fails_at_once_for_a_chat_that_is_not_bound(stage: Stage) -> None:
    stage.tables.latest.clear()
    assert "start_workspace" in await stage.refused(WorkspaceUnavailable)
    assert stage.exchange.dialled == []


@pytest.mark.covers("binding-6")
async def test_a_stopped_workspace_costs_a_bound_chat_one_dial_and_five_seconds(
    stage: Stage,
) -> None:
    stage.tables.bound_to(FIRST)
    stage.tables.latest.clear()
    stage.exchange.deaf.add(FIRST.id)
    async with asyncio.TaskGroup() as group:
        refusal = group.create_task(stage.refused(WorkspaceUnavailable))
        assert await stage.clock.pass_over("dial_delay") == 5.0
    assert "start_workspace" in refusal.result()
    assert len(stage.exchange.dialled) == 1


async def test_a_workspace_that_was_started_again_is_found_by_the_same_turn(stage: Stage) -> None:
    stage.tables.bound_to(FIRST)
    stage.tables.latest.clear()
    stage.exchange.dead.add(FIRST.id)
    await stage.refused(WorkspaceUnavailable)
    stage.tables.latest[HOME] = SECOND
    assert (await stage.get()).row == SECOND
    assert stage.tables.row.agent_id == SECOND.id


@pytest.mark.covers("binding-4")
async def test_selecting_a_workspace_releases_the_connection_to_the_other(stage: Stage) -> None:
    assert (await stage.get()).row == FIRST
    stage.tables.row = WorkspaceBinding(chat_id=CHAT, workspace_id=AWAY)
    await stage.turn.select(AWAY)
    assert stage.exchange.released == [FIRST]
    assert (await stage.get()).row == FAR
    assert stage.tables.row.agent_id == FAR.id


async def test_a_workspace_selected_during_the_dial_is_the_one_that_is_used(stage: Stage) -> None:
    stage.exchange.hold = held = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as group:
        conn = group.create_task(stage.get())
        await asyncio.wait_for(stage.exchange.reached.wait(), WAIT_S)
        stage.tables.row = WorkspaceBinding(chat_id=CHAT, workspace_id=AWAY)
        await stage.turn.select(AWAY)
        held.set_result(None)
    assert conn.result().row == FAR
    assert stage.exchange.released == [FIRST]


async def test_a_workspace_that_changes_while_it_is_bound_is_read_anew(stage: Stage) -> None:
    def change() -> None:
        stage.tables.row = WorkspaceBinding(chat_id=CHAT, workspace_id=AWAY)
        stage.tables.on_latest = None

    stage.tables.on_latest = change
    assert (await stage.get()).row == FAR


async def test_a_workspace_that_changes_all_the_time_is_given_up(stage: Stage) -> None:
    def change() -> None:
        other = AWAY if stage.tables.row.workspace_id == HOME else HOME
        stage.tables.row = WorkspaceBinding(chat_id=CHAT, workspace_id=other)

    stage.tables.on_latest = change
    assert "being changed" in await stage.refused(WorkspaceUnavailable)
    assert stage.exchange.dialled == []


async def test_of_two_calls_that_dial_at_once_the_second_uses_what_the_first_brought(
    stage: Stage,
) -> None:
    stage.tables.bound_to(FIRST)
    stage.exchange.hold = held = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as group:
        calls = [group.create_task(stage.get()) for _ in range(3)]
        while len(stage.exchange.dialled) < 3:
            await asyncio.wait_for(stage.exchange.reached.wait(), WAIT_S)
            stage.exchange.reached.clear()
        held.set_result(None)
    assert len({id(call.result()) for call in calls}) == 1
    assert stage.exchange.released == [FIRST, FIRST]


async def test_a_connection_that_was_lost_is_dialled_again(stage: Stage) -> None:
    first = await stage.get()
    first.lost = True
    second = await stage.get()
    assert second is not first
    assert stage.exchange.released == []
    assert await stage.get() is second


async def test_a_connection_that_rested_is_doubted_only_if_the_agent_is_said_to_be_gone(
    stage: Stage,
) -> None:
    conn = await stage.get()
    stage.clock.advance(31)
    assert await stage.get() is conn
    gone = replace(FIRST, disconnected_at=NOW)
    stage.tables.agents[FIRST.id] = gone
    assert await stage.get() is conn
    stage.clock.advance(31)
    assert await stage.get() is not conn
    stage.tables.broken.add("agent")
    stage.clock.advance(31)
    assert len(stage.exchange.dialled) == 2
    assert await stage.get() is await stage.get()


async def lost_after_thirty_seconds(stage: Stage, kind: type[ChatdError]) -> str:
    stage.tables.bound_to(FIRST)
    stage.exchange.deaf.add(FIRST.id)
    async with asyncio.TaskGroup() as group:
        refusal = group.create_task(stage.refused(kind))
        assert await stage.clock.asleep_on("dial_budget") == DIAL_S
        await stage.clock.pass_over("dial_delay")
        await stage.clock.pass_over("dial_budget")
    return refusal.result()


async def test_a_dial_that_takes_too_long_may_work_next_time(stage: Stage) -> None:
    assert "next time" in await lost_after_thirty_seconds(stage, AgentUnreachable)
    stage.exchange.deaf.clear()
    assert (await stage.get()).row == FIRST
    # The first dial never led to anything.
    stage.exchange.dialled.pop(0)


async def test_a_dial_that_takes_too_long_to_an_agent_long_gone_asks_for_a_restart(
    stage: Stage,
) -> None:
    stage.tables.latest[HOME] = replace(
        FIRST,
        last_connected_at=NOW - timedelta(seconds=100),
        disconnected_at=NOW - timedelta(seconds=90),
    )
    assert "stop_workspace" in await lost_after_thirty_seconds(stage, WorkspaceUnavailable)


async def test_the_budget_of_a_dial_is_not_the_turns(stage: Stage) -> None:
    stage.tables.bound_to(FIRST)
    stage.exchange.deaf.add(FIRST.id)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(stage.turn.get())
        await stage.clock.asleep_on("dial_budget")
        task.cancel()
    assert task.cancelled()
    assert stage.tables.asked == ["binding", "agent"]


ALIVE = agent(1)


@pytest.mark.parametrize(
    ("row", "kind", "word"),
    [
        (ALIVE, AgentUnreachable, "next time"),
        (
            replace(ALIVE, disconnected_at=NOW - timedelta(seconds=89)),
            AgentUnreachable,
            "next time",
        ),
        (
            replace(ALIVE, last_connected_at=NOW - timedelta(seconds=89)),
            AgentUnreachable,
            "next time",
        ),
        (
            replace(ALIVE, last_connected_at=NOW - timedelta(seconds=90)),
            WorkspaceUnavailable,
            "stop_workspace",
        ),
        (
            replace(
                ALIVE,
                last_connected_at=NOW - timedelta(hours=1),
                disconnected_at=NOW - timedelta(seconds=89),
            ),
            AgentUnreachable,
            "next time",
        ),
        (replace(ALIVE, last_connected_at=None), WorkspaceUnavailable, "never connected"),
        (replace(ALIVE, last_connected_at=None, created_at=NOW), AgentUnreachable, "next time"),
        (
            replace(ALIVE, last_connected_at=None, connection_timeout_s=0),
            AgentUnreachable,
            "next time",
        ),
    ],
)
def test_a_restart_is_advised_only_after_a_long_silence(
    row: AgentRow, kind: type[ChatdError], word: str
) -> None:
    error = classify(Seen(agent=row, now=NOW))
    assert type(error) is kind
    assert word in error.message
