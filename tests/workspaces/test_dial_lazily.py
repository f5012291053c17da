"""Dialling a bound agent: when the binding is checked, and what becomes of every connection."""

import asyncio
from collections.abc import AsyncGenerator
from uuid import UUID

import pytest

from chatd.domain.errors import ChatdError, Unavailable
from chatd.domain.workspace.agent_api import AgentUnreachable
from chatd.domain.workspace.entities import AgentId
from chatd.domain.workspace.rules import NoAgent
from chatd.workspaces.dialling import DELAY_S, Dialler, Reached
from chatd.workspaces.dials import Dials, Stop
from chatd.workspaces.transport import Dialled
from tests.support.clock import FakeClock

OLD = AgentId(UUID(int=1))
NEW = AgentId(UUID(int=2))
WAIT_S = 30.0


class Phone:
    """Dials that end when a test says so."""

    def __init__(self) -> None:
        self.dialled: list[AgentId] = []
        self.released: list[AgentId] = []
        self.cancelled: list[AgentId] = []
        self.stubborn = False
        self._ends: dict[int, asyncio.Future[None]] = {}
        self._news = asyncio.Condition()

    async def dial(self, agent_id: AgentId) -> Dialled[AgentId]:
        number = len(self.dialled)
        self.dialled.append(agent_id)
        end = self._ends[number] = asyncio.get_running_loop().create_future()
        await self._tell()
        try:
            await asyncio.shield(end)
        except asyncio.CancelledError:
            self.cancelled.append(agent_id)
            await self._tell()
            if not self.stubborn:
                raise
            await end

        async def release() -> None:
            self.released.append(agent_id)
            await self._tell()

        return Dialled(conn=agent_id, release=release)

    def answer(self, number: int = 0) -> None:
        self._ends[number].set_result(None)

    def fail(self, number: int = 0, text: str = "busy") -> None:
        self._ends[number].set_exception(AgentUnreachable(text))

    async def until(self, *, dials: int = 0, released: int = 0, cancelled: int = 0) -> None:
        async with asyncio.timeout(WAIT_S), self._news:
            await self._news.wait_for(
                lambda: (
                    len(self.dialled) >= dials
                    and len(self.released) >= released
                    and len(self.cancelled) >= cancelled
                )
            )

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()


class Rows:
    """What the latest build says, when a test lets it."""

    def __init__(self, says: AgentId | ChatdError = OLD) -> None:
        self.says = says
        self.asked = 0
        self.was_asked = asyncio.Event()
        self.open = asyncio.Event()
        self.open.set()

    async def validate(self) -> AgentId:
        self.asked += 1
        self.was_asked.set()
        await self.open.wait()
        if isinstance(self.says, ChatdError):
            raise self.says
        return self.says


class Stage:
    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.phone = Phone()
        self.rows = Rows()
        self.stop = Stop()
        self.dials = Dials()

    async def reach(self) -> Reached[AgentId]:
        dialler = Dialler(
            dials=self.dials,
            dial=self.phone.dial,
            validate=self.rows.validate,
            clock=self.clock,
            stop=self.stop,
        )
        async with asyncio.timeout(WAIT_S):
            return await dialler.reach(OLD)

    async def wait_too_long(self) -> None:
        await self.phone.until(dials=1)
        assert await self.clock.pass_over("dial_delay") == DELAY_S
        async with asyncio.timeout(WAIT_S):
            await self.rows.was_asked.wait()


@pytest.fixture
async def stage(clock: FakeClock) -> AsyncGenerator[Stage]:
    """In the end no dial is left, and nobody sleeps."""
    stage = Stage(clock)
    yield stage
    await stage.dials.close()
    assert clock.sleeping("dial_delay") == []


async def ok(stage: Stage, *, agent: AgentId, switched: bool) -> None:
    reached = await stage.reach()
    assert (reached.agent_id, reached.dialled.conn, reached.switched) == (agent, agent, switched)


async def refused(stage: Stage, kind: type[ChatdError]) -> ChatdError:
    with pytest.raises(kind) as error:
        await stage.reach()
    return error.value


@pytest.mark.covers("binding-1")
async def test_a_fast_dial_asks_nobody(stage: Stage) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(ok(stage, agent=OLD, switched=False))
        await stage.phone.until(dials=1)
        stage.phone.answer()
    assert (stage.rows.asked, stage.phone.released) == (0, [])


@pytest.mark.covers("binding-1")
async def test_a_slow_dial_to_the_right_agent_is_kept(stage: Stage) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(ok(stage, agent=OLD, switched=False))
        await stage.wait_too_long()
        stage.phone.answer()
    assert (stage.rows.asked, stage.phone.dialled) == (1, [OLD])


async def test_a_slow_dial_to_the_right_agent_may_still_fail(stage: Stage) -> None:
    async with asyncio.TaskGroup() as group:
        failing = group.create_task(refused(stage, AgentUnreachable))
        await stage.wait_too_long()
        stage.phone.fail(text="gone after all")
    assert failing.result().message == "gone after all"
    assert stage.phone.dialled == [OLD]


@pytest.mark.covers("binding-1")
async def test_a_slow_dial_fails_at_once_when_there_is_no_agent(stage: Stage) -> None:
    stage.rows.says = NoAgent("stopped")
    async with asyncio.TaskGroup() as group:
        group.create_task(refused(stage, NoAgent))
        await stage.wait_too_long()
    await stage.phone.until(cancelled=1)
    assert stage.phone.released == []


@pytest.mark.covers("binding-1")
async def test_a_slow_dial_to_another_agent_than_the_latest_is_switched(stage: Stage) -> None:
    stage.rows.says = NEW
    async with asyncio.TaskGroup() as group:
        group.create_task(ok(stage, agent=NEW, switched=True))
        await stage.wait_too_long()
        await stage.phone.until(dials=2)
        stage.phone.answer(1)
    assert (stage.phone.cancelled, stage.phone.released) == ([OLD], [])


@pytest.mark.covers("binding-2")
async def test_a_switch_does_not_wait_for_the_stale_dial_and_releases_its_late_success_once(
    stage: Stage,
) -> None:
    stage.rows.says = NEW
    stage.phone.stubborn = True
    async with asyncio.TaskGroup() as group:
        group.create_task(ok(stage, agent=NEW, switched=True))
        await stage.wait_too_long()
        await stage.phone.until(dials=2, cancelled=1)
        stage.phone.answer(1)
    assert stage.phone.released == []
    stage.phone.answer(0)
    await stage.phone.until(released=1)
    await stage.dials.close()
    assert stage.phone.released == [OLD]


async def test_a_dial_that_succeeds_while_it_is_found_stale_is_released_once(stage: Stage) -> None:
    stage.rows.says = NEW
    stage.rows.open.clear()
    async with asyncio.TaskGroup() as group:
        group.create_task(ok(stage, agent=NEW, switched=True))
        await stage.wait_too_long()
        stage.phone.answer(0)
        stage.rows.open.set()
        await stage.phone.until(dials=2, released=1)
        stage.phone.answer(1)
    await stage.dials.close()
    assert stage.phone.released == [OLD]


@pytest.mark.covers("binding-2")
async def test_a_late_failure_of_a_stale_dial_releases_nothing(stage: Stage) -> None:
    stage.rows.says = NEW
    stage.phone.stubborn = True
    async with asyncio.TaskGroup() as group:
        group.create_task(ok(stage, agent=NEW, switched=True))
        await stage.wait_too_long()
        await stage.phone.until(dials=2, cancelled=1)
        stage.phone.answer(1)
    stage.phone.fail(0)
    await stage.dials.close()
    assert stage.phone.released == []


@pytest.mark.covers("binding-3")
async def test_a_fast_failure_switches_to_the_latest_agent(stage: Stage) -> None:
    stage.rows.says = NEW
    async with asyncio.TaskGroup() as group:
        group.create_task(ok(stage, agent=NEW, switched=True))
        await stage.phone.until(dials=1)
        stage.phone.fail()
        await stage.phone.until(dials=2)
        stage.phone.answer(1)
    assert (stage.phone.dialled, stage.phone.cancelled) == ([OLD, NEW], [])


@pytest.mark.covers("binding-3")
async def test_after_a_fast_failure_the_right_agent_is_dialled_once_more(stage: Stage) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(ok(stage, agent=OLD, switched=False))
        await stage.phone.until(dials=1)
        stage.phone.fail()
        await stage.phone.until(dials=2)
        stage.phone.answer(1)
    assert stage.phone.dialled == [OLD, OLD]


@pytest.mark.covers("binding-3")
async def test_and_not_a_third_time(stage: Stage) -> None:
    async with asyncio.TaskGroup() as group:
        failing = group.create_task(refused(stage, AgentUnreachable))
        await stage.phone.until(dials=1)
        stage.phone.fail(0, "first")
        await stage.phone.until(dials=2)
        stage.phone.fail(1, "second")
    assert failing.result().message == "second"
    assert (len(stage.phone.dialled), stage.rows.asked) == (2, 1)


async def test_a_fast_failure_with_no_agent_says_that_there_is_none(stage: Stage) -> None:
    stage.rows.says = NoAgent("stopped")
    async with asyncio.TaskGroup() as group:
        group.create_task(refused(stage, NoAgent))
        await stage.phone.until(dials=1)
        stage.phone.fail()
    assert stage.phone.dialled == [OLD]


async def test_a_fast_failure_that_cannot_be_looked_into_tells_both(stage: Stage) -> None:
    stage.rows.says = Unavailable("no database")
    async with asyncio.TaskGroup() as group:
        failing = group.create_task(refused(stage, AgentUnreachable))
        await stage.phone.until(dials=1)
        stage.phone.fail(text="Nobody there.")
    error = failing.result()
    # The database's own words may name what a chat must not know.
    assert error.message == "Nobody there. Nor could the workspace be looked up."
    assert error.__cause__ is stage.rows.says


@pytest.mark.covers("binding-3")
async def test_a_slow_dial_that_cannot_be_checked_is_waited_for(stage: Stage) -> None:
    stage.rows.says = Unavailable("no database")
    async with asyncio.TaskGroup() as group:
        group.create_task(ok(stage, agent=OLD, switched=False))
        await stage.wait_too_long()
        stage.phone.answer()
    assert (stage.rows.asked, stage.phone.dialled) == (1, [OLD])


class Cause(ChatdError):
    """Why a test has stopped a dial."""


async def test_a_stop_ends_a_dial_with_its_own_cause(stage: Stage) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(refused(stage, Cause))
        await stage.phone.until(dials=1)
        stage.stop.set(Cause("enough"))
        stage.stop.set(AgentUnreachable("too late to matter"))
    await stage.phone.until(cancelled=1)
    assert (stage.rows.asked, stage.phone.released) == (0, [])


@pytest.mark.covers("binding-3")
async def test_a_dial_that_has_failed_after_a_stop_is_not_looked_into(stage: Stage) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(refused(stage, Cause))
        await stage.phone.until(dials=1)
        stage.phone.fail()
        stage.stop.set(Cause("enough"))
    assert stage.rows.asked == 0


async def test_a_dial_that_has_succeeded_is_preferred_to_a_stop(stage: Stage) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(ok(stage, agent=OLD, switched=False))
        await stage.wait_too_long()
        stage.phone.answer()
        stage.stop.set(Cause("enough"))
    assert stage.phone.released == []


@pytest.mark.parametrize("says", [OLD, NEW])
async def test_a_stop_ends_every_later_wait_too(stage: Stage, says: AgentId) -> None:
    stage.rows.says = says
    async with asyncio.TaskGroup() as group:
        group.create_task(refused(stage, Cause))
        await stage.wait_too_long()
        await stage.phone.until(dials=1 if says == OLD else 2)
        stage.stop.set(Cause("enough"))
    await stage.phone.until(cancelled=1 if says == OLD else 2)
    assert stage.phone.released == []


async def test_a_stop_does_not_wait_for_the_database(stage: Stage) -> None:
    stage.rows.open.clear()
    async with asyncio.TaskGroup() as group:
        group.create_task(refused(stage, Cause))
        await stage.wait_too_long()
        stage.stop.set(Cause("enough"))
    await stage.phone.until(cancelled=1)


async def test_a_caller_who_is_cancelled_leaves_no_dial_behind(stage: Stage) -> None:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(stage.reach())
        await stage.phone.until(dials=1)
        task.cancel()
    await stage.phone.until(cancelled=1)
    assert (task.cancelled(), stage.rows.asked, stage.phone.released) == (True, 0, [])


async def test_what_comes_too_late_for_a_cancelled_caller_is_released(stage: Stage) -> None:
    stage.phone.stubborn = True
    async with asyncio.TaskGroup() as group:
        task = group.create_task(stage.reach())
        await stage.phone.until(dials=1)
        task.cancel()
    await stage.phone.until(cancelled=1)
    stage.phone.answer()
    await stage.phone.until(released=1)
    assert task.cancelled()


async def test_a_caller_cancelled_before_anything_began_is_no_trouble(stage: Stage) -> None:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(stage.reach())
        group.create_task(_cancel(task))
    await stage.dials.close()
    assert stage.phone.released == []


async def _cancel(task: asyncio.Task[Reached[AgentId]]) -> None:
    task.cancel()
