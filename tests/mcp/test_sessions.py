"""Connections of chats: credentials that change, idle ends, bounds, and the end of the process."""

import asyncio
from collections.abc import Generator
from uuid import UUID

import msgspec
import pytest
from msgspec import Raw

from chatd.domain.ids import ChatId
from chatd.mcp.sessions import MCP_IDLE_CHECK_S, MCP_IDLE_S
from tests.support.clock import FakeClock
from tests.support.eventually import eventually
from tests.support.factories import chat
from tests.support.mcp.rig import McpRig, ServerProcess, configured, mcp_rig, tool_server

OLD, NEW = {"Authorization": "Bearer old"}, {"Authorization": "Bearer new"}


@pytest.fixture(scope="module")
def gated_server() -> Generator[ServerProcess]:
    """Accepts only the token `new`."""
    with tool_server("http", "--token", "new") as server:
        yield server


@pytest.fixture(scope="module")
def gated_sse_server() -> Generator[ServerProcess]:
    with tool_server("sse", "--token", "new") as server:
        yield server


@pytest.mark.covers("mcp-7")
async def test_a_refused_credential_is_renewed_once(gated_server: ServerProcess) -> None:
    async with mcp_rig(configured(gated_server.url), headers=OLD) as rig:
        rig.directory.renewed = NEW
        assert "tools__echo" in await rig.tools()
        assert rig.directory.refusals == 1
        assert (await rig.call("tools__who")).text == "Bearer new"


@pytest.mark.covers("mcp-7")
async def test_a_credential_that_stays_refused_has_no_tools(gated_server: ServerProcess) -> None:
    async with mcp_rig(configured(gated_server.url), headers=OLD) as rig:
        assert await rig.tools() == {}
        assert rig.directory.refusals == 1
        assert await rig.tools() == {}
        assert rig.directory.refusals == 1


async def test_a_server_without_a_credential_is_not_dialled(gated_server: ServerProcess) -> None:
    async with mcp_rig(configured(gated_server.url)) as rig:
        rig.directory.problem = "Connect your account first."
        assert await rig.tools() == {}
        assert rig.seen("mcp_server_failed") == []


async def test_a_credential_of_an_event_stream_is_checked_too(
    gated_sse_server: ServerProcess,
) -> None:
    server = configured(gated_sse_server.url, transport="sse")
    async with mcp_rig(server, headers=OLD) as rig:
        assert await rig.tools() == {}
        assert "401" in str(rig.seen("mcp_server_failed"))
    async with mcp_rig(server, headers=NEW) as rig:
        assert (await rig.call("tools__who")).text == "Bearer new"


@pytest.mark.covers("mcp-6")
@pytest.mark.parametrize("change", ["server", "credential"])
async def test_a_changed_server_or_credential_gets_a_new_connection(
    change: str, http_server: ServerProcess
) -> None:
    async with mcp_rig(configured(http_server.url), headers=OLD) as rig:
        assert (await rig.call("tools__who")).text == "Bearer old"
        rig.directory.headers = dict(NEW)
        assert (await rig.call("tools__who")).text == "Bearer old", "the warm connection"
        if change == "server":
            rig.directory.list = [msgspec.structs.replace(rig.directory.list[0], version=2)]
        else:
            rig.directory.credential_version = "2"
        assert (await rig.call("tools__who")).text == "Bearer new"
        await wait_count(rig, 1)


@pytest.mark.parametrize("transport", ["http", "json", "sse"])
async def test_a_call_after_a_restart_of_the_server_runs_once(transport: str) -> None:
    """The connection is of the former process: what was not sent there is sent again."""
    with tool_server(transport) as process:
        port, kind = process.port, "sse" if transport == "sse" else "streamable_http"
        async with mcp_rig(configured(process.url, transport=kind)) as rig:
            tool = (await rig.tools())["tools__bump"]
            process.kill()
            with tool_server(transport, "--port", str(port)) as again:
                assert await again.calls() == {}  # meanwhile the client sees the end
                output = await tool.run(rig.context(), Raw(b"{}"))
                assert output.text == "bumped by 1"
                assert (await again.calls())["bump"] == 1


@pytest.mark.covers("mcp-6")
async def test_an_idle_connection_is_closed(http_server: ServerProcess) -> None:
    clock = FakeClock()
    async with mcp_rig(configured(http_server.url), clock=clock) as rig:
        await rig.tools()
        assert len(rig.sessions) == 1
        clock.advance(MCP_IDLE_S)
        await clock.wait_for_sleeper("mcp_idle")
        clock.advance(MCP_IDLE_CHECK_S)
        await wait_count(rig, 0)
        assert "tools__echo" in await rig.tools()


@pytest.mark.covers("mcp-6")
async def test_the_least_recently_used_connection_makes_place(http_server: ServerProcess) -> None:
    clock = FakeClock()
    async with mcp_rig(configured(http_server.url), clock=clock, max_connections=2) as rig:
        chats = [chat(id=ChatId(UUID(int=number))) for number in (11, 12, 13)]
        for each in chats:
            clock.advance(1)
            assert "tools__echo" in await rig.tools(each)
        assert len(rig.sessions) == 2


async def test_the_end_of_the_process_ends_calls_and_connections(
    http_server: ServerProcess,
) -> None:
    async with mcp_rig(configured(http_server.url)) as rig:
        call = rig.start("tools__hang")
        await http_server.wait_called("hang")
    output = await asyncio.wait_for(call, 20)
    assert output.is_error
    assert "closed before the reply" in output.text


async def wait_count(rig: McpRig, count: int) -> None:
    async def has_count() -> bool:
        return len(rig.sessions) == count

    await eventually(has_count)
