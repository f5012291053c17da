"""Lost replies, lost hints, database outages, and rows restored to an older version."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import pytest
from msgspec import Raw
from msgspec.structs import replace

from chatd.domain.answer.tool_output import ToolOutput
from chatd.domain.chat.change import INTERRUPTED_CALL_TEXT
from chatd.domain.chat.row import Chat, Hint
from chatd.domain.ports import Tool, ToolContext
from chatd.domain.prompt.instructions import Instructions
from chatd.engine.acquirer import SlotsConfig
from chatd.engine.worker import WorkerConfig
from chatd.store import idempotency
from chatd.store.chat.apply import APPLY_CALLS, APPLY_LAST_STEP
from chatd.store.database import migrator
from tests.support.clock import FakeClock
from tests.support.database import OwnServer, insert_test_users
from tests.support.engine_rig import NO_SLOTS, EngineRig, advancing, engine_rig, engine_rig_with
from tests.support.eventually import eventually
from tests.support.outcomes import present
from tests.support.providers.openai_chat import FakeCompatible
from tests.support.providers.server import Gate
from tests.support.proxy import Proxy
from tests.support.tools import GatedTool

CLIENT_TOOLS = Raw(b'[{"name":"pick","description":"","input_schema":{"type":"object"}}]')


# Lost replies


class LossyConnection:
    """A connection that drops the reply to one statement, after the database has run it."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._query: str | None = None
        self.dropped = asyncio.Event()

    def __call__(self, query: str) -> None:
        if query == self._query:
            self._query = None
            self._proxy.hold_replies()
            self.dropped.set()

    def drop_reply_to(self, query: str) -> None:
        self._query = query

    def cut(self) -> None:
        self._proxy.cut()


@asynccontextmanager
async def lossy_replica(
    dsn: str, proxy: Proxy, *tools: GatedTool
) -> AsyncGenerator[tuple[EngineRig, EngineRig, LossyConnection]]:
    """A replica behind such a connection, and an observer without slots. The replica has one
    session with all statements prepared, so that a statement is one network message."""
    connection = LossyConnection(proxy)
    options = {"tools": tools, "pool_size": 1, "on_statement": connection}
    async with (
        FakeCompatible.running() as api,
        engine_rig_with(dsn, api, worker=NO_SLOTS) as observer,
        engine_rig_with(proxy.dsn, api, **options) as rig,
    ):
        rig.call_tools(("c0", "echo", "{}"))
        rig.answer("ready")
        await rig.wait_chat_task_left(await rig.create("prepare"))
        yield rig, observer, connection
        assert api.faults == []


@pytest.mark.covers("F4")
@pytest.mark.promise("P1")
async def test_an_answer_with_an_unconfirmed_commit_is_stored_once(dsn: str, proxy: Proxy) -> None:
    async with lossy_replica(dsn, proxy) as (rig, observer, connection):
        connection.drop_reply_to(APPLY_LAST_STEP.text)
        chat_id = await rig.ask("go", "once")
        await observer.wait_state(chat_id, "W")
        connection.cut()
        await rig.wait_chat_task_left(chat_id)
        assert connection.dropped.is_set()
        assert await observer.transcript(chat_id) == ["user: go", "assistant: once"]
        assert len(await observer.recorded_usage()) == 3
        assert len(rig.api.requests) == 3


@pytest.mark.covers("F4")
@pytest.mark.promise("P10")
async def test_a_step_with_an_unconfirmed_commit_is_followed_by_the_next_step(
    dsn: str, proxy: Proxy
) -> None:
    async with lossy_replica(dsn, proxy, GatedTool()) as (rig, observer, connection):
        connection.drop_reply_to(APPLY_CALLS.text)
        rig.call_tools(("c1", "echo", "{}"))
        chat_id = await rig.ask("go", "done")
        await wait_version(observer, chat_id, 2)
        connection.cut()
        await observer.wait_state(chat_id, "W")
        assert await observer.transcript(chat_id) == [
            "user: go",
            "assistant: echo(c1)",
            "tool: result(c1) {'output': 'said {}'}",
            "assistant: done",
        ]
        assert len(rig.api.requests) == 4


@pytest.mark.promise("P4")
async def test_an_interrupt_after_an_unconfirmed_commit_stores_nothing_twice(
    dsn: str, proxy: Proxy
) -> None:
    async with lossy_replica(dsn, proxy, GatedTool()) as (rig, observer, connection):
        connection.drop_reply_to(APPLY_CALLS.text)
        rig.call_tools(("c1", "echo", "{}"))
        chat_id = await rig.create("go")
        await wait_version(observer, chat_id, 2)
        await observer.interrupt(chat_id)
        connection.cut()
        await observer.wait_state(chat_id, "W")
        assert await observer.transcript(chat_id) == [
            "user: go",
            "assistant: echo(c1)",
            f"tool: error(c1) {{'error': {INTERRUPTED_CALL_TEXT!r}}}",
        ]


async def wait_version(rig: EngineRig, chat_id: object, version: int) -> None:
    statement = "SELECT snapshot_version >= $2 FROM chats WHERE id = $1"
    await eventually(lambda: rig.pool.fetchval(statement, chat_id, version))


@pytest.mark.promise("P7")
async def test_a_tool_mark_with_an_unconfirmed_write_is_recognized_as_own(
    dsn: str, proxy: Proxy
) -> None:
    """Otherwise a tool that never ran would be reported with an unknown outcome."""
    tool = GatedTool(effect="once")
    async with lossy_replica(dsn, proxy, tool) as (rig, observer, connection):
        connection.drop_reply_to(idempotency.MARK_TOOL_STARTED)
        rig.call_tools(("c1", "echo", "{}"))
        chat_id = await rig.ask("go", "done")
        marked = "SELECT count(*) = 2 FROM chat_tool_runs"
        await eventually(lambda: observer.pool.fetchval(marked))
        connection.cut()
        await observer.wait_state(chat_id, "W")
        assert tool.runs == ["c0", "c1"]
        assert (await observer.transcript(chat_id))[2] == "tool: result(c1) {'output': 'said {}'}"


# Outages


@pytest.mark.covers("F10")
@pytest.mark.promise("P1")
async def test_a_restart_of_the_database_loses_no_answer(own_server: OwnServer, gate: Gate) -> None:
    await migrator.up(own_server.dsn)
    await insert_test_users(own_server.dsn)
    async with engine_rig(own_server.dsn) as rig:
        chat_id = await rig.ask("go", "all ", gate, "of it")
        await own_server.stop()
        gate.open()
        await rig.events.wait("commit_delayed", chat_id=chat_id)
        await own_server.start()
        await rig.wait_chat_task_left(chat_id)
        assert await rig.transcript(chat_id) == ["user: go", "assistant: all of it"]
        assert len(rig.api.requests) == 1
        rig.answer("and on")
        await rig.send(chat_id, "next")
        await rig.wait_state(chat_id, "W")
        assert (await rig.transcript(chat_id))[-1] == "assistant: and on"


@pytest.mark.covers("F47")
async def test_a_commit_waits_until_the_disk_has_free_space(rig: EngineRig, gate: Gate) -> None:
    chat_id = await rig.ask("go", "kept", gate)
    await rig.pool.execute(
        """CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS
           $$ BEGIN RAISE EXCEPTION 'no space left' USING ERRCODE = '53100'; END $$"""
    )
    try:
        await rig.pool.execute(
            """CREATE TRIGGER full_disk BEFORE INSERT ON chat_messages FOR EACH ROW
               EXECUTE FUNCTION full_disk()"""
        )
        gate.open()
        await rig.events.wait("commit_delayed", error_kind="database_full")
    finally:
        await rig.pool.execute("DROP FUNCTION full_disk CASCADE")
    assert (await rig.wait_chat_task_left(chat_id)).state == "W"
    assert await rig.transcript(chat_id) == ["user: go", "assistant: kept"]


@pytest.mark.covers("F45")
async def test_the_lease_is_renewed_while_the_pool_has_no_free_session(
    dsn: str, api: FakeCompatible
) -> None:
    async with (
        engine_rig_with(dsn, api) as observer,
        engine_rig_with(dsn, api, pool_size=1) as rig,
        rig.pool.transaction(),
    ):
        since = await observer.pool.fetchval("SELECT now()")
        statement = "SELECT renewed_at > $2 FROM chat_workers WHERE worker_id = $1"
        await eventually(lambda: observer.pool.fetchval(statement, rig.replica.worker_id, since))
        assert rig.replica.lease.health == "ok"


# Hints


@pytest.mark.covers("F14")
@pytest.mark.promise("P4")
async def test_an_interrupt_with_a_lost_hint_is_found_before_its_deadline(
    dsn: str, proxy: Proxy, clock: FakeClock, api: FakeCompatible, gate: Gate
) -> None:
    async with (
        engine_rig_with(dsn, api, worker=NO_SLOTS) as observer,
        engine_rig_with(proxy.dsn, api, clock=clock) as rig,
    ):
        chat_id = await rig.ask("go", "so far", gate)
        await rig.wait_shown(chat_id, "so far")
        proxy.deafen()
        await observer.interrupt(chat_id)
        async with advancing(clock):
            assert (await rig.wait_chat_task_left(chat_id)).state == "W"
        assert await observer.transcript(chat_id) == ["user: go", "assistant: so far"]


@pytest.mark.covers("F14")
async def test_a_chat_with_a_lost_hint_is_acquired_after_a_heartbeat(
    dsn: str, proxy: Proxy, api: FakeCompatible
) -> None:
    async with (
        engine_rig_with(dsn, api, worker=NO_SLOTS) as observer,
        engine_rig_with(proxy.dsn, api) as rig,
    ):
        proxy.deafen()
        rig.answer("found")
        chat_id = await observer.create("hi")
        await rig.wait_chat_task_left(chat_id)
        assert await observer.transcript(chat_id) == ["user: hi", "assistant: found"]


@pytest.mark.covers("F15")
async def test_old_repeated_or_wrong_hints_do_not_restart_a_step(rig: EngineRig) -> None:
    gate = Gate()
    chat_id = await rig.ask("go", "undisturbed", gate)
    chat = await rig.chat(chat_id)
    for _ in range(3):
        for version in (0, 1, 2, 1000):
            hint = replace(Hint.of(chat), snapshot_version=version, status="waiting")
            rig.replica.worker.on_hint(hint)
    rig.replica.worker.mark_all_dirty()
    # All requested rows have been read by the time this message is answered.
    await rig.send(chat_id, "later")
    rig.answer("later it is")
    gate.open()
    await rig.wait_chat_task_left(chat_id)
    assert (await rig.transcript(chat_id))[1] == "assistant: undisturbed"
    started = [fields for name, fields in rig.events.seen if name == "task_started"]
    assert len(started) == 1
    assert len(rig.api.requests) == 2


# Clocks


@pytest.mark.covers("F18")
async def test_a_replica_with_a_wrong_clock_expires_no_deadline(dsn: str, clock: FakeClock) -> None:
    """The clock is off by months; only the database's clock expires deadlines."""
    async with engine_rig(dsn, clock=clock) as rig:
        rig.call_tools(("c1", "pick", "{}"))
        chat_id = await rig.create("go", client_tools=CLIENT_TOOLS)
        assert (await rig.wait_chat_task_left(chat_id)).state == "A0"
        for _ in range(3):
            await clock.wait_for_sleeper("heartbeat")
            clock.advance(15)
        await clock.wait_for_sleeper("heartbeat")
        assert (await rig.chat(chat_id)).state == "A0"


@pytest.mark.covers("F11")
@pytest.mark.promise("P3")
async def test_a_row_restored_to_an_older_version_is_continued_from_there(dsn: str) -> None:
    """As after a failover to a standby without the last commits."""
    gate = Gate()
    async with engine_rig(dsn, tools=[GatedTool(gate=gate)]) as rig:
        chat_id = await rig.start_tool("go", gate)
        rig.answer("after all, no tool")
        await rig.pool.execute("DELETE FROM chat_messages WHERE chat_id = $1 AND id > 1", chat_id)
        await rig.pool.execute(
            """UPDATE chats SET snapshot_version = 1, history_version = 1, attempt = 1,
                   next_message_id = 2, pending_calls = '[]',
                   recent_changes = recent_changes[2:] WHERE id = $1""",
            chat_id,
        )
        gate.open()
        await rig.wait_state(chat_id, "W")
        assert await rig.transcript(chat_id) == ["user: go", "assistant: after all, no tool"]


# Slots


@pytest.mark.covers("F40")
async def test_a_waiting_parent_does_not_occupy_the_slot_of_its_subagent(dsn: str) -> None:
    gate = Gate()
    worker = WorkerConfig(heartbeat_interval_s=0.2, slots=SlotsConfig(roots=1, children=1))
    async with engine_rig(dsn, tools=[GatedTool(gate=gate)], worker=worker) as rig:
        rig.call_tools(("c1", "echo", "{}"))
        parent = await rig.create("go")
        await gate.reached.wait()
        rig.answer("for my parent")
        child = await rig.create("help", parent_chat_id=parent, root_chat_id=parent)
        await rig.wait_chat_task_left(child)
        assert (await rig.chat(child)).state == "W"
        other = await rig.create("me too")
        assert (await rig.chat(other)).state == "P0"
        rig.answer("thanks")
        rig.answer("at last")
        gate.open()
        await rig.wait_state(other, "W")
        assert (await rig.chat(parent)).state == "W"


class HangingToolSource:
    """Satisfies `ports.ToolSource`; listing the tools never ends."""

    async def tools(self, chat: Chat) -> Sequence[Tool]:
        del chat
        await asyncio.Event().wait()
        return ()

    async def instructions(self, chat: Chat) -> Instructions:
        del chat
        return Instructions()

    async def save_result(self, context: ToolContext, output: ToolOutput) -> ToolOutput:
        del context
        return output


@pytest.mark.promise("P14")
async def test_a_tool_lookup_that_hangs_fails_the_turn(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chatd.engine.turn_loop.TURN_CONTEXT_TIMEOUT_S", 0.05)
    async with engine_rig(dsn, source=HangingToolSource()) as rig:
        chat_id = await rig.create("hi")
        assert present((await rig.wait_chat_task_left(chat_id)).last_error).kind == "timeout"
        assert rig.api.requests == []


async def test_a_freed_slot_is_filled_without_waiting_for_a_heartbeat(dsn: str) -> None:
    worker = WorkerConfig(heartbeat_interval_s=60, slots=SlotsConfig(roots=1))
    async with engine_rig(dsn, worker=worker) as rig:
        gate = Gate()
        first = await rig.ask("first", "one", gate)
        others = [await rig.create(f"{n}") for n in range(3)]
        for _ in others:
            rig.answer("ok")
        gate.open()
        async with asyncio.timeout(30):
            for chat_id in (first, *others):
                await rig.wait_chat_task_left(chat_id)
