"""MCP servers of a workspace as real processes: found, called, changed, dead, hanging."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from chatd.agent.context import mcp_servers
from chatd.agent.context.mcp_config import McpServerConfig
from chatd.agent.context.mcp_servers import WorkspaceServers
from chatd.agent.errors import AgentError
from chatd.agent.processes.process_child import CommandEnvironment
from chatd.agent.threads import AgentSystemClock
from tests.support.mcp.bad_servers import never, raw_server
from tests.support.mcp.rig import tool_server
from tests.support.outcomes import raised
from tests.support.processes import ROOT

WAIT_S = 50.0


class ServersFixture:
    def __init__(self, directory: Path, **timeouts: float) -> None:
        self._changed = asyncio.Event()
        environment = CommandEnvironment(
            home=str(directory),
            directory=str(ROOT),
            base={"PATH": os.defpath, "LETTERS": "abc"},
        )
        self.servers = WorkspaceServers(
            environment, AgentSystemClock(), self._changed.set, **timeouts
        )

    def apply(self, *configs: McpServerConfig) -> None:
        self.servers.apply(configs)

    async def tools(self, name: str, *, having: str = "echo") -> list[str]:
        """Wait until the server has this tool."""
        async with asyncio.timeout(WAIT_S):
            while True:
                self._changed.clear()
                for report in self.servers.reports():
                    found = [tool["name"] for tool in json.loads(report.tools or "[]")]
                    if report.name == name and having in found:
                        return found
                await self._changed.wait()

    async def error(self, name: str) -> str:
        async with asyncio.timeout(WAIT_S):
            while True:
                self._changed.clear()
                for report in self.servers.reports():
                    if report.name == name and report.error:
                        return report.error
                await self._changed.wait()

    async def text(self, name: str, tool: str, **args: object) -> str:
        result = await self.servers.call(name, tool, args)
        return json.dumps(result["content"])


@asynccontextmanager
async def running(directory: Path, **timeouts: float) -> AsyncGenerator[ServersFixture]:
    fixture = ServersFixture(directory, **timeouts)
    try:
        yield fixture
    finally:
        await fixture.servers.close()


def stdio(name: str = "local", *args: str, **env: str) -> McpServerConfig:
    argv = ("-m", "tests.support.mcp.tool_server", "stdio", *args)
    return McpServerConfig(
        name, transport="stdio", command=sys.executable, args=argv, env=tuple(env.items())
    )


def http(url: str, name: str = "remote", **headers: str) -> McpServerConfig:
    return McpServerConfig(name, transport="http", url=url, headers=tuple(headers.items()))


async def test_a_server_on_standard_streams_is_listed_and_called(tmp_path: Path) -> None:
    async with running(tmp_path) as fixture:
        fixture.apply(stdio())
        assert "echo" in await fixture.tools("local")
        assert "you said hi" in await fixture.text("local", "echo", text="hi")
        assert "image" in await fixture.text("local", "picture")


@pytest.mark.parametrize("transport", ["http", "json"])
async def test_a_server_at_a_url_is_listed_and_called(transport: str, tmp_path: Path) -> None:
    with tool_server(transport) as process:
        async with running(tmp_path) as fixture:
            fixture.apply(http(process.url, Authorization="Bearer ${LETTERS}"))
            assert "echo" in await fixture.tools("remote")
            assert "Bearer abc" in await fixture.text("remote", "who")
            assert "done" in await fixture.text("remote", "steps"), "notifications come first"


@pytest.mark.covers("mcp-11")
async def test_a_dead_server_does_not_block_the_others(tmp_path: Path) -> None:
    async with running(tmp_path) as fixture:
        missing = McpServerConfig("missing", transport="stdio", command="/no/such/program")
        fixture.apply(missing, McpServerConfig("wrong", error="a reason"), stdio())
        assert "echo" in await fixture.tools("local")
        assert "/no/such/program: not found" in await fixture.error("missing")
        assert await fixture.error("wrong") == "a reason"
        refused = await raised(AgentError, fixture.servers.call("wrong", "t", {}))
        assert "a reason" in refused.message


async def test_a_server_that_dies_in_a_call_is_reported_and_started_again(tmp_path: Path) -> None:
    async with running(tmp_path) as fixture:
        fixture.apply(stdio())
        await fixture.tools("local")
        died = await raised(AgentError, fixture.servers.call("local", "die", {}))
        assert died.code == "outcome_unknown"
        assert "you said again" in await fixture.text("local", "echo", text="again")


async def test_a_call_that_hangs_is_given_up_and_the_server_stays(tmp_path: Path) -> None:
    async with running(tmp_path, call_timeout_s=3.0) as fixture:
        fixture.apply(stdio())
        await fixture.tools("local")
        hung = await raised(AgentError, fixture.servers.call("local", "hang", {}))
        assert hung.code == "outcome_unknown"
        assert "within 3 s" in hung.message
        assert "you said on" in await fixture.text("local", "echo", text="on")


async def test_a_server_that_never_answers_is_given_up(tmp_path: Path) -> None:
    async with raw_server(never) as (url, _), running(tmp_path, connect_timeout_s=0.3) as fixture:
        fixture.apply(http(url))
        assert "did not answer within 0.3 s" in await fixture.error("remote")


async def test_an_error_of_a_tool_is_a_result_and_a_wrong_name_a_refusal(tmp_path: Path) -> None:
    async with running(tmp_path) as fixture:
        fixture.apply(stdio())
        await fixture.tools("local")
        assert (await fixture.servers.call("local", "fail", {}))["isError"] is True
        refused = await raised(AgentError, fixture.servers.call("none", "echo", {}))
        assert refused.status == 404


@pytest.mark.covers("mcp-11")
async def test_a_new_configuration_changes_only_what_differs(tmp_path: Path) -> None:
    with tool_server("json") as process:
        async with running(tmp_path) as fixture:
            fixture.apply(stdio(), http(process.url))
            await fixture.tools("local")
            assert "tool_0001" not in await fixture.tools("remote")
            await fixture.text("local", "grow")
            fixture.apply(stdio(), stdio("more", "--many", "2"))
            assert "tool_0001" in await fixture.tools("more")
            assert "late" in await fixture.text("local", "late"), "the former process"
            assert [report.name for report in fixture.servers.reports()] == ["local", "more"]


async def test_a_changed_server_that_does_not_start_keeps_its_former_connection(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as fixture:
        fixture.apply(stdio())
        before = await fixture.tools("local")
        fixture.apply(McpServerConfig("local", transport="stdio", command="/no/such/program"))
        assert "you said still" in await fixture.text("local", "echo", text="still")
        assert await fixture.tools("local") == before


async def test_new_tools_are_listed_when_the_server_says_so(tmp_path: Path) -> None:
    async with running(tmp_path) as fixture:
        fixture.apply(stdio())
        assert "late" not in await fixture.tools("local")
        await fixture.text("local", "grow")
        await fixture.tools("local", having="late")


async def test_the_list_of_a_servers_tools_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tool_server("json") as process:
        async with running(tmp_path) as fixture:
            fixture.apply(http(process.url))
            every = await fixture.tools("remote")
            monkeypatch.setattr(mcp_servers, "MAX_TOOLS_BYTES", 600)
            fixture.apply(http(process.url, "bounded"))
            few = await fixture.tools("bounded", having=every[0])
            assert 0 < len(few) < len(every)
            assert few == every[: len(few)]


async def test_a_huge_line_ends_its_server_only(tmp_path: Path) -> None:
    async with running(tmp_path) as fixture:
        fixture.apply(stdio())
        await fixture.tools("local")
        lost = await raised(AgentError, fixture.servers.call("local", "huge", {"megabytes": 20}))
        assert "more than" in lost.message
        assert "you said on" in await fixture.text("local", "echo", text="on")
