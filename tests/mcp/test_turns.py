"""Turns with tools of MCP servers: what the model is sent, and what history keeps."""

from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager

import msgspec
import pytest

from chatd.domain.answer.tool_output import ToolOutput
from chatd.domain.chat.parts import ToolCallPart, ToolResultPart
from chatd.domain.chat.row import Chat
from chatd.domain.ids import ChatId
from chatd.domain.mcp.tool_search import FIND_TOOLS, budget_chars
from chatd.domain.ports import Tool, ToolContext
from chatd.domain.prompt.instructions import Instructions
from chatd.store.chat import messages
from tests.support.engine_rig import EngineRig, engine_rig
from tests.support.factories import HARNESS
from tests.support.mcp.rig import McpRig, ServerProcess, configured, mcp_rig, tool_server

WINDOW = 64_000


@pytest.fixture(scope="module")
def large_server() -> Generator[ServerProcess]:
    """With 500 more tools."""
    with tool_server("http", "--many", "500") as server:
        yield server


class McpSource:
    """Satisfies `ports.ToolSource`."""

    def __init__(self, rig: McpRig) -> None:
        self._rig = rig

    async def tools(self, chat: Chat) -> Sequence[Tool]:
        return await self._rig.family.tools(chat)

    async def instructions(self, chat: Chat) -> Instructions:
        del chat
        return Instructions()

    async def save_result(self, context: ToolContext, output: ToolOutput) -> ToolOutput:
        del context
        return output


@asynccontextmanager
async def turns(dsn: str, server: ServerProcess, **fields: object) -> AsyncGenerator[EngineRig]:
    configured_server = msgspec.structs.replace(configured(server.url), **fields)
    async with (
        mcp_rig(configured_server) as mcp,
        engine_rig(dsn, source=McpSource(mcp)) as rig,
    ):
        rig.set_context_limit(WINDOW)
        yield rig


class _SentTool(msgspec.Struct):
    function: dict[str, object]


def sent_tools(rig: EngineRig, request: int) -> dict[str, str]:
    """The tools of the request, each as its JSON."""
    body = msgspec.json.decode(rig.api.requests[request].body, type=dict[str, object])
    tools = msgspec.convert(body.get("tools", []), list[_SentTool])
    return {
        str(tool.function["name"]): msgspec.json.encode(tool.function).decode() for tool in tools
    }


async def end_of(rig: EngineRig, chat_id: ChatId) -> list[str]:
    assert (await rig.wait_chat_task_left(chat_id)).state == "W"
    return await rig.transcript(chat_id)


async def test_a_call_names_its_server_in_history(dsn: str, http_server: ServerProcess) -> None:
    async with turns(dsn, http_server) as rig:
        rig.call_tools(("c1", "tools__echo", '{"text":"hi"}'))
        chat_id = await rig.ask("go", "ok")
        transcript = await end_of(rig, chat_id)
        assert "tool: result(c1) {'output': 'you said hi'}" in transcript
        rows = await messages.load_history(rig.pool, HARNESS, chat_id)
        named = [
            part.mcp_server_config_id
            for row in rows
            for part in row.content
            if isinstance(part, ToolCallPart | ToolResultPart)
        ]
        assert named == [str(configured("").id)] * 2


async def test_arguments_that_only_the_server_understands_reach_it(
    dsn: str, http_server: ServerProcess
) -> None:
    """A key that differs in case only is for the server to judge."""
    async with turns(dsn, http_server) as rig:
        rig.call_tools(("c1", "tools__echo", '{"text":"hi","TEXT":"no"}'))
        transcript = await end_of(rig, await rig.ask("go", "ok"))
        assert "tool: result(c1) {'output': 'you said hi'}" in transcript


@pytest.mark.covers("mcp-10")
async def test_five_hundred_tools_cost_no_more_than_their_share_of_the_prompt(
    dsn: str, large_server: ServerProcess
) -> None:
    async with turns(dsn, large_server) as rig:
        rig.call_tools(("c1", FIND_TOOLS, '{"queries":["tool 0123"],"names":["tools__tool_0007"]}'))
        rig.call_tools(("c2", "tools__tool_0123", '{"first":"a"}'))
        chat_id = await rig.ask("go", "ok")
        transcript = await end_of(rig, chat_id)
        first, second, third = (sent_tools(rig, number) for number in range(3))
        for sent in (first, second, third):
            assert sum(map(len, sent.values())) <= budget_chars(WINDOW)
        assert list(first) == [FIND_TOOLS]
        assert "tools: 511 tools" in first[FIND_TOOLS]
        assert {"tools__tool_0007", "tools__tool_0123"} <= second.keys()
        assert first[FIND_TOOLS] == second[FIND_TOOLS] == third[FIND_TOOLS]
        assert "tool: result(c2) {'output': '123 a 0'}" in transcript


@pytest.mark.covers("mcp-10")
async def test_a_deferred_tool_can_be_called_directly_and_is_sent_then(
    dsn: str, large_server: ServerProcess
) -> None:
    async with turns(dsn, large_server) as rig:
        rig.call_tools(("c1", "tools__tool_0042", '{"first":"b"}'))
        transcript = await end_of(rig, await rig.ask("go", "ok"))
        assert "tool: result(c1) {'output': '42 b 0'}" in transcript
        assert list(sent_tools(rig, 0)) == [FIND_TOOLS]
        assert list(sent_tools(rig, 1)) == [FIND_TOOLS, "tools__tool_0042"]


async def test_a_picture_is_stored_as_media(dsn: str, http_server: ServerProcess) -> None:
    async with turns(dsn, http_server) as rig:
        rig.call_tools(("c1", "tools__picture", "{}"))
        chat_id = await rig.ask("go", "ok")
        await end_of(rig, chat_id)
        rows = await messages.load_history(rig.pool, HARNESS, chat_id)
        [result] = [
            part for row in rows for part in row.content if isinstance(part, ToolResultPart)
        ]
        assert result.is_media
        assert not result.is_error
