"""The client and the access of chats against the real agent, a process run from the bundle."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from chatd.clock import SystemClock
from chatd.domain.workspace.agent_api import (
    AgentRefused,
    AgentUnreachable,
    FileEdits,
    TextEdit,
    WorkspaceBinding,
)
from chatd.domain.workspace.entities import Endpoint
from chatd.workspaces.agents.agent_access import AccessDeps, AgentAccess
from chatd.workspaces.agents.agent_client import MAX_FILE_BYTES
from tests.support import factories
from tests.support.eventually import eventually
from tests.support.outcomes import raised
from tests.workspaces.agent_process import (
    AGENT,
    Workbench,
    connector,
    new_chat_id,
    running_agent,
)
from tests.workspaces.fake_agents import FIRST, FakeBindings, tool_context

WAIT_S = 30.0


async def test_files_are_written_edited_and_read(bench: Workbench) -> None:
    path = bench.path("a name?&#%41 ü.txt")
    await bench.conn.write_file(path, b"one\ntwo", key=bench.key("k1"))
    edits = (TextEdit(search="two", replace="three"),)
    (diff,) = await bench.conn.edit_files([FileEdits(path=path, edits=edits)], key=bench.key("k2"))
    assert diff.path == path
    assert "-two" in diff.diff
    lines = await bench.conn.read_lines(path, offset=2)
    assert (lines.content, lines.total_lines, lines.lines_read) == ("2\tthree", 2, 1)
    assert await bench.conn.read_file(path) == b"one\nthree"
    assert await bench.conn.read_file(path, offset=1, limit=2) == b"ne"

    assert (await raised(AgentRefused, bench.conn.read_lines(bench.path("nothing")))).status == 404
    with pytest.raises(AgentRefused) as relative:
        await bench.conn.read_file("a.txt")
    assert relative.value.status == 400


async def test_an_effect_with_a_known_key_does_not_happen_again(bench: Workbench) -> None:
    path = bench.path("a")
    await bench.conn.write_file(path, b"first", key=bench.key("k"))
    await bench.conn.write_file(path, b"second", key=bench.key("k"))
    assert await bench.conn.read_file(path) == b"first"

    command = f"echo once >> {bench.path('log')}"
    started = await bench.conn.start_process(command, key=bench.key("p"))
    again = await bench.conn.start_process(command, key=bench.key("p"))
    assert (again.id, again.again, started.again) == (started.id, True, False)
    await bench.conn.output(started.id, wait_s=WAIT_S)
    assert await bench.conn.read_file(bench.path("log")) == b"once\n"


async def test_a_command_is_started_awaited_listed_and_killed(bench: Workbench) -> None:
    ended = await bench.conn.start_process(
        "echo $GREETING $WHO; exit 3", key=bench.key("a"), env={"WHO": "me"}
    )
    output = await bench.conn.output(ended.id, wait_s=WAIT_S)
    assert (output.output, output.exit_code, output.running) == ("hello me\n", 3, False)

    endless = await bench.conn.start_process("exec sleep 600", key=bench.key("b"), background=True)
    snapshot = await bench.conn.output(endless.id)
    assert (snapshot.running, snapshot.exit_code) == (True, None)
    assert {each.id for each in await bench.conn.processes()} == {ended.id, endless.id}
    assert await bench.on_behalf(new_chat_id()).processes() == ()
    foreign = await raised(AgentRefused, bench.on_behalf(new_chat_id()).output(endless.id))
    assert foreign.status == 404
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(bench.conn.output(endless.id, wait_s=WAIT_S))
        await bench.conn.signal(endless.id, "kill")
    assert not waiting.result().running
    assert (await raised(AgentRefused, bench.conn.signal(endless.id, "kill"))).status == 409


async def test_a_worker_that_lost_its_chat_is_refused(bench: Workbench) -> None:
    await bench.on_behalf(epoch=5).write_file(bench.path("a"), b"new", key=bench.key("new"))
    with pytest.raises(AgentRefused) as stale:
        await bench.on_behalf(epoch=4).write_file(bench.path("a"), b"old", key=bench.key("old"))
    assert (stale.value.status, stale.value.code) == (409, "stale_epoch")
    with pytest.raises(AgentRefused):
        await bench.on_behalf(epoch=4).start_process("true", key=bench.key("older"))
    await bench.on_behalf(new_chat_id()).write_file(bench.path("b"), b"", key=bench.key("other"))
    assert await bench.conn.read_file(bench.path("a")) == b"new"


async def test_oversized_requests_and_replies_are_refused(bench: Workbench) -> None:
    most = bytes(MAX_FILE_BYTES)
    await bench.conn.write_file(bench.path("large"), most, key=bench.key("k"))
    assert await bench.conn.read_file(bench.path("large")) == most
    with pytest.raises(AgentRefused) as written:
        await bench.conn.write_file(bench.path("larger"), most + b"!", key=bench.key("l"))
    assert written.value.status == 413
    grow = await bench.conn.start_process(
        f"printf ! >> {bench.path('large')}", key=bench.key("grow")
    )
    await bench.conn.output(grow.id, wait_s=WAIT_S)
    assert (await raised(AgentRefused, bench.conn.read_file(bench.path("large")))).status == 413
    assert await bench.conn.read_file(bench.path("large"), offset=MAX_FILE_BYTES) == b"!"


async def test_a_restarted_agent_gets_a_new_handshake(tmp_path: Path) -> None:
    """Starts two agents: the boot id tells the second from the first."""
    async with running_agent(tmp_path) as bench:
        started = await bench.conn.start_process("exec sleep 600", key=bench.key("p"))
        await bench.conn.write_file(bench.path("a"), b"first", key=bench.key("w"))
        bench.process.end(signal.SIGKILL)
        with pytest.raises(AgentUnreachable):
            await bench.conn.read_file(bench.path("a"))

        bench.process.start()
        await bench.process.connect()
        assert await bench.conn.read_file(bench.path("a")) == b"first"
        await bench.conn.write_file(bench.path("a"), b"second", key=bench.key("w"))
        assert await bench.conn.read_file(bench.path("a")) == b"first"
        with pytest.raises(AgentRefused) as unknown:
            await bench.conn.start_process("exec sleep 600", key=bench.key("p"))
        assert unknown.value.code == "outcome_unknown"
        with pytest.raises(AgentRefused):
            await bench.conn.output(started.id)


@asynccontextmanager
async def losing_first_reply(bench: Workbench, target: bytes, place: Path) -> AsyncGenerator[Path]:
    """A socket that passes requests on to the agent and drops the first reply to `target`."""
    lost: list[bytes] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.read(65536)
        from_agent, to_agent = await asyncio.open_unix_connection(bench.process.socket)
        to_agent.write(request)
        reply = await from_agent.read(65536)
        if target in request and b" 200 " in reply[:15] and not lost:
            lost.append(reply)
        else:
            writer.write(reply)
        to_agent.close()
        writer.close()

    server = await asyncio.start_unix_server(connected, place / "proxy")
    try:
        yield place / "proxy"
    finally:
        server.close()
    assert lost


@pytest.mark.covers("binding-2")
@pytest.mark.promise("P7")
async def test_a_command_whose_reply_is_lost_runs_once(bench: Workbench, tmp_path: Path) -> None:
    async with losing_first_reply(bench, b"/processes/start", tmp_path) as socket:
        row = replace(FIRST, id=AGENT, endpoints=(Endpoint(kind="unix", path=str(socket)),))
        store = FakeBindings()
        store.row = WorkspaceBinding(chat_id=bench.chat_id, workspace_id=row.workspace_id)
        store.latest[row.workspace_id] = row
        deps = AccessDeps(bindings=store, connect=connector().connect_agent, clock=SystemClock())
        chat = factories.chat(id=bench.chat_id, workspace_id=row.workspace_id)
        client = await AgentAccess(deps).connect(tool_context(chat))
        command = f"echo once >> {bench.path('log')}"
        started = await client.start_process(command, key=bench.key("lost"))
        assert started.again
        assert not (await client.output(started.id, wait_s=WAIT_S)).running
        assert await client.read_file(bench.path("log")) == b"once\n"


async def test_an_agent_that_stops_kills_its_commands(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as bench:
        start = bench.conn.start_process("echo $$; exec sleep 600", key=bench.key("p"))
        process = (await start).id

        async def printed() -> str | None:
            return (await bench.conn.output(process)).output

        pid = int(await eventually(printed, within_s=WAIT_S))

        async def until_lost() -> None:
            with pytest.raises(AgentUnreachable):
                await bench.conn.output(process, wait_s=WAIT_S)

        async with asyncio.TaskGroup() as group:
            group.create_task(until_lost())
            await bench.conn.processes()
            assert await asyncio.to_thread(bench.process.end) == 0
        assert "agent.sock" not in os.listdir(bench.process.run_dir)
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_an_agent_answers_on_a_port_too(tmp_path: Path) -> None:
    async with running_agent(tmp_path, tcp=True) as bench:
        await bench.conn.write_file(bench.path("a"), b"x", key=bench.key("k"))
        assert await bench.conn.read_file(bench.path("a")) == b"x"
        elsewhere = bench.process.endpoint()
        with pytest.raises(AgentUnreachable) as untrusted:
            await connector(b"another secret").connect(AGENT, [elsewhere])
        assert untrusted.value.code == "agent_untrusted"
