"""A database that loses answers, hints or itself, and rows that go back in time."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import pytest
from msgspec import Raw
from msgspec.structs import replace

from chatd.domain.chat.change import INTERRUPTED_CALL_TEXT
from chatd.domain.chat.row import Chat, Hint
from chatd.domain.ports import Tool
from chatd.domain.prompt.instructions import Instructions
from chatd.engine.slots import SlotsConfig
from chatd.engine.worker import WorkerConfig
from chatd.store import migrator
from chatd.store.chat import idempotency
from chatd.store.chat.apply import APPLY_STEP
from tests.support.clock import FakeClock
from tests.support.database import OwnServer
from tests.support.eventually import eventually
from tests.support.house import House, a_house, a_house_with, wound
from tests.support.providers.openai_chat import FakeCompatible
from tests.support.providers.server import Gate
from tests.support.proxy import Proxy
from tests.support.tools import GatedTool

NO_ROOM = WorkerConfig(heartbeat_interval_s=0.2, slots=SlotsConfig(roots=0))
CLIENTS = Raw(b'[{"name":"pick","description":"","input_schema":{"type":"object"}}]')


# Answers of the database that are lost


class Line:
    """A way to the database that swallows the answer to one statement, which is carried out."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._query: str | None = None
        self.swallowed = asyncio.Event()

    def __call__(self, query: str) -> None:
        if query == self._query:
            self._query = None
            self._proxy.hold_replies()
            self.swallowed.set()

    def swallows(self, query: str) -> None:
        self._query = query

    def breaks(self) -> None:
        self._proxy.cut()


@asynccontextmanager
async def far_away(
    dsn: str, proxy: Proxy, *tools: GatedTool
) -> AsyncGenerator[tuple[House, House, Line]]:
    """A replica at the end of such a line, and one that only looks. With one session only, and
    everything prepared on it: a statement is then one message."""
    line = Line(proxy)
    ways = {"tools": tools, "pool_size": 1, "on_statement": line}
    async with (
        FakeCompatible.running() as api,
        a_house_with(dsn, api, worker=NO_ROOM) as other,
        a_house_with(proxy.dsn, api, **ways) as house,
    ):
        house.calls(("c0", "echo", "{}"))
        house.says("ready")
        await house.rests(await house.create("get ready"))
        yield house, other, line
        assert api.faults == []


@pytest.mark.covers("F4")
@pytest.mark.promise("P1")
async def test_an_answer_whose_commit_was_not_confirmed_is_there_once(
    dsn: str, proxy: Proxy
) -> None:
    async with far_away(dsn, proxy) as (house, other, line):
        line.swallows(APPLY_STEP.text)
        house.says("once")
        chat_id = await house.create("go")
        await other.until(chat_id, "W")
        line.breaks()
        await house.rests(chat_id)
        assert line.swallowed.is_set()
        assert await other.transcript(chat_id) == ["user: go", "assistant: once"]
        assert len(await other.booked()) == 3
        assert len(house.api.requests) == 3


@pytest.mark.covers("F4")
@pytest.mark.promise("P10")
async def test_a_step_whose_commit_was_not_confirmed_is_followed_by_the_next(
    dsn: str, proxy: Proxy
) -> None:
    async with far_away(dsn, proxy, GatedTool()) as (house, other, line):
        line.swallows(APPLY_STEP.text)
        house.calls(("c1", "echo", "{}"))
        house.says("done")
        chat_id = await house.create("go")
        await until_version(other, chat_id, 2)
        line.breaks()
        await other.until(chat_id, "W")
        assert await other.transcript(chat_id) == [
            "user: go",
            "assistant: echo(c1)",
            "tool: result(c1) {'output': 'said {}'}",
            "assistant: done",
        ]
        assert len(house.api.requests) == 4


@pytest.mark.promise("P4")
async def test_a_stop_after_a_commit_that_was_not_confirmed_doubles_nothing(
    dsn: str, proxy: Proxy
) -> None:
    async with far_away(dsn, proxy, GatedTool()) as (house, other, line):
        line.swallows(APPLY_STEP.text)
        house.calls(("c1", "echo", "{}"))
        chat_id = await house.create("go")
        await until_version(other, chat_id, 2)
        await other.interrupt(chat_id)
        line.breaks()
        await other.until(chat_id, "W")
        assert await other.transcript(chat_id) == [
            "user: go",
            "assistant: echo(c1)",
            f"tool: error(c1) {{'error': {INTERRUPTED_CALL_TEXT!r}}}",
        ]


async def until_version(house: House, chat_id: object, version: int) -> None:
    statement = "SELECT snapshot_version >= $2 FROM chats WHERE id = $1"
    await eventually(lambda: house.pool.fetchval(statement, chat_id, version))


@pytest.mark.promise("P7")
async def test_a_mark_whose_write_was_not_confirmed_is_known_for_ones_own(
    dsn: str, proxy: Proxy
) -> None:
    """Else a tool that never ran would be reported as one that may have."""
    tool = GatedTool(effect="once")
    async with far_away(dsn, proxy, tool) as (house, other, line):
        line.swallows(idempotency.START)
        house.calls(("c1", "echo", "{}"))
        house.says("done")
        chat_id = await house.create("go")
        marked = "SELECT count(*) = 2 FROM chat_tool_runs"
        await eventually(lambda: other.pool.fetchval(marked))
        line.breaks()
        await other.until(chat_id, "W")
        assert tool.runs == ["c0", "c1"]
        assert (await other.transcript(chat_id))[2] == "tool: result(c1) {'output': 'said {}'}"


# A database that is away


@pytest.mark.covers("F10")
@pytest.mark.promise("P1")
async def test_a_restart_of_the_database_costs_no_answer(own_server: OwnServer) -> None:
    gate = Gate()
    await migrator.up(own_server.dsn)
    async with a_house(own_server.dsn) as house:
        house.says("all ", gate, "of it")
        chat_id = await house.create("go")
        await gate.reached.wait()
        await own_server.stop()
        gate.open()
        await house.events.wait("commit_delayed", chat_id=chat_id)
        await own_server.start()
        await house.rests(chat_id)
        assert await house.transcript(chat_id) == ["user: go", "assistant: all of it"]
        assert len(house.api.requests) == 1
        house.says("and on")
        await house.send(chat_id, "next")
        await house.until(chat_id, "W")
        assert (await house.transcript(chat_id))[-1] == "assistant: and on"


@pytest.mark.covers("F47")
async def test_a_full_disk_is_waited_for(dsn: str) -> None:
    gate = Gate()
    async with a_house(dsn) as house:
        house.says("kept", gate)
        chat_id = await house.create("go")
        await gate.reached.wait()
        await house.pool.execute(
            """CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS
               $$ BEGIN RAISE EXCEPTION 'no space left' USING ERRCODE = '53100'; END $$"""
        )
        try:
            await house.pool.execute(
                """CREATE TRIGGER full_disk BEFORE INSERT ON chat_messages FOR EACH ROW
                   EXECUTE FUNCTION full_disk()"""
            )
            gate.open()
            await house.events.wait("commit_delayed", error_kind="database_full")
        finally:
            await house.pool.execute("DROP FUNCTION full_disk CASCADE")
        assert (await house.rests(chat_id)).state == "W"
        assert await house.transcript(chat_id) == ["user: go", "assistant: kept"]


@pytest.mark.covers("F45")
async def test_a_pool_without_a_free_session_does_not_cost_the_lease(dsn: str) -> None:
    async with (
        FakeCompatible.running() as api,
        a_house_with(dsn, api) as other,
        a_house_with(dsn, api, pool_size=1) as house,
        house.pool.transaction(),
    ):
        since = await other.pool.fetchval("SELECT now()")
        statement = "SELECT renewed_at > $2 FROM chat_workers WHERE worker_id = $1"
        await eventually(lambda: other.pool.fetchval(statement, house.replica.me, since))
        assert house.replica.lease.health == "ok"


# Hints


@pytest.mark.covers("F14")
@pytest.mark.promise("P4")
async def test_a_stop_whose_hint_was_lost_is_heard_of_in_time(
    dsn: str, proxy: Proxy, clock: FakeClock
) -> None:
    gate = Gate()
    async with (
        FakeCompatible.running() as api,
        a_house_with(dsn, api, worker=NO_ROOM) as other,
        a_house_with(proxy.dsn, api, clock=clock) as house,
    ):
        house.says("so far", gate)
        chat_id = await house.create("go")
        await house.shown(chat_id, "so far")
        proxy.deafen()
        await other.interrupt(chat_id)
        async with wound(clock):
            assert (await house.rests(chat_id)).state == "W"
        assert await other.transcript(chat_id) == ["user: go", "assistant: so far"]


@pytest.mark.covers("F14")
async def test_a_chat_whose_hint_was_lost_is_taken_by_the_tick(dsn: str, proxy: Proxy) -> None:
    async with (
        FakeCompatible.running() as api,
        a_house_with(dsn, api, worker=NO_ROOM) as other,
        a_house_with(proxy.dsn, api) as house,
    ):
        proxy.deafen()
        house.says("found")
        chat_id = await other.create("hi")
        await house.rests(chat_id)
        assert await other.transcript(chat_id) == ["user: hi", "assistant: found"]


@pytest.mark.covers("F15")
async def test_hints_that_are_old_repeated_or_wrong_disturb_nobody(dsn: str) -> None:
    gate = Gate()
    async with a_house(dsn) as house:
        house.says("undisturbed", gate)
        chat_id = await house.create("go")
        await gate.reached.wait()
        chat = await house.chat(chat_id)
        for _ in range(3):
            for version in (0, 1, 2, 1000):
                hint = replace(Hint.of(chat), snapshot_version=version, status="waiting")
                house.replica.worker.on_hint(hint)
        house.replica.worker.mark_all_dirty()
        # A marker: what was asked for has been read by the time this one is answered.
        await house.send(chat_id, "later")
        house.says("later it is")
        gate.open()
        await house.rests(chat_id)
        assert (await house.transcript(chat_id))[1] == "assistant: undisturbed"
        started = [said for name, said in house.events.seen if name == "task_started"]
        assert len(started) == 1
        assert len(house.api.requests) == 2


# Time


@pytest.mark.covers("F18")
async def test_a_replica_with_a_wrong_clock_ends_nothing_early(dsn: str, clock: FakeClock) -> None:
    """Its date is off by months. Deadlines are the database's business."""
    async with a_house(dsn, clock=clock) as house:
        house.calls(("c1", "pick", "{}"))
        chat_id = await house.create("go", client_tools=CLIENTS)
        assert (await house.rests(chat_id)).state == "A0"
        for _ in range(3):
            await clock.asleep_on("heartbeat")
            clock.advance(15)
        await clock.asleep_on("heartbeat")
        assert (await house.chat(chat_id)).state == "A0"


@pytest.mark.covers("F11")
@pytest.mark.promise("P3")
async def test_a_row_that_goes_back_in_time_is_begun_again_from_there(dsn: str) -> None:
    """A standby without the last commits has taken over."""
    gate = Gate()
    async with a_house(dsn, tools=[GatedTool(gate=gate)]) as house:
        house.calls(("c1", "echo", "{}"))
        chat_id = await house.create("go")
        await gate.reached.wait()
        house.says("after all, no tool")
        await house.pool.execute("DELETE FROM chat_messages WHERE chat_id = $1 AND id > 1", chat_id)
        await house.pool.execute(
            """UPDATE chats SET snapshot_version = 1, history_version = 1, attempt = 1,
                   next_message_id = 2, pending_calls = '[]',
                   recent_changes = recent_changes[2:] WHERE id = $1""",
            chat_id,
        )
        gate.open()
        await house.until(chat_id, "W")
        assert await house.transcript(chat_id) == ["user: go", "assistant: after all, no tool"]


# Room


@pytest.mark.covers("F40")
async def test_a_parent_that_waits_does_not_take_its_childs_slot(dsn: str) -> None:
    gate = Gate()
    worker = WorkerConfig(heartbeat_interval_s=0.2, slots=SlotsConfig(roots=1, children=1))
    async with a_house(dsn, tools=[GatedTool(gate=gate)], worker=worker) as house:
        house.calls(("c1", "echo", "{}"))
        parent = await house.create("go")
        await gate.reached.wait()
        house.says("for my parent")
        child = await house.create("help", parent_chat_id=parent, root_chat_id=parent)
        await house.rests(child)
        assert (await house.chat(child)).state == "W"
        other = await house.create("me too")
        assert (await house.chat(other)).state == "P0"
        house.says("thanks")
        house.says("at last")
        gate.open()
        await house.until(other, "W")
        assert (await house.chat(parent)).state == "W"


class Nowhere:
    """Satisfies `ports.ToolSource`, in its own time."""

    async def tools(self, chat: Chat) -> Sequence[Tool]:
        del chat
        await asyncio.Event().wait()
        return ()

    async def instructions(self, chat: Chat) -> Instructions:
        del chat
        return Instructions()


@pytest.mark.promise("P14")
async def test_tools_that_cannot_be_looked_up_do_not_hang_the_chat(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chatd.engine.turn_loop.TURN_CONTEXT_TIMEOUT_S", 0.05)
    async with a_house(dsn, source=Nowhere()) as house:
        chat_id = await house.create("hi")
        chat = await house.rests(chat_id)
        assert chat.last_error is not None
        assert chat.last_error.kind == "timeout"
        assert house.api.requests == []


async def test_a_slot_that_is_freed_is_filled_at_once(dsn: str) -> None:
    worker = WorkerConfig(heartbeat_interval_s=60, slots=SlotsConfig(roots=1))
    async with a_house(dsn, worker=worker) as house:
        gate = Gate()
        house.says("one", gate)
        first = await house.create("first")
        await gate.reached.wait()
        others = [await house.create(f"{n}") for n in range(3)]
        for _ in others:
            house.says("ok")
        gate.open()
        async with asyncio.timeout(30):
            for chat_id in (first, *others):
                await house.rests(chat_id)
