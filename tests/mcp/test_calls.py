"""Tools of real MCP servers: found, named, filtered, called; every kind of result."""

import asyncio

import msgspec
import pytest

from chatd.domain.mcp.servers import McpServer
from tests.support.factories import chat
from tests.support.mcp.rig import ServerProcess, configured, mcp_rig
from tests.support.mcp.tool_server import PNG

Server = tuple[str, ServerProcess]


def over(server: Server) -> McpServer:
    transport, process = server
    return configured(process.url, transport=transport)


@pytest.mark.covers("mcp-1")
async def test_tools_are_found_and_called(any_server: Server) -> None:
    async with mcp_rig(over(any_server)) as rig:
        tools = await rig.tools()
        assert {"tools__echo", "tools__picture", "tools__fail"} <= tools.keys()
        assert list(tools) == sorted(tools)
        echo = tools["tools__echo"]
        assert echo.spec.description == "Says the text again."
        assert echo.effect == "read"
        assert tools["tools__bump"].effect == "once"
        assert echo.mcp_origin.config_id == str(rig.directory.list[0].id)
        assert (await rig.call("tools__echo", text="hi")).text == "you said hi"


@pytest.mark.covers("mcp-3")
async def test_every_kind_of_content_arrives(any_server: Server) -> None:
    async with mcp_rig(over(any_server)) as rig:
        picture = await rig.call("tools__picture")
        assert picture.media is not None
        assert (picture.media.media_type, picture.media.data) == ("image/png", PNG)
        assert (await rig.call("tools__everything")).text.split("\n") == [
            "a text",
            "a page",
            "[resource Log <note://log>: today]",
            "[5 bytes of audio/wav were left out]",
            "[5 bytes of application/zip were left out]",
        ]


@pytest.mark.covers("mcp-3")
async def test_a_failed_tool_and_wrong_arguments_are_error_results(any_server: Server) -> None:
    async with mcp_rig(over(any_server)) as rig:
        failed = await rig.call("tools__fail")
        assert failed.is_error
        assert "fail" in failed.text
        wrong = await rig.call("tools__echo", text={"not": "a text"})
        assert wrong.is_error
        assert (await rig.call("tools__echo", text="still here")).text == "you said still here"


@pytest.mark.covers("mcp-1")
async def test_calls_of_one_chat_run_side_by_side(any_server: Server) -> None:
    async with mcp_rig(over(any_server)) as rig:
        texts = [f"number {number}" for number in range(10)]
        outputs = await asyncio.gather(*(rig.call("tools__echo", text=text) for text in texts))
        assert [output.text for output in outputs] == [f"you said {text}" for text in texts]
        assert len(rig.sessions) == 1


async def test_one_connection_serves_all_steps_of_a_chat(http_server: ServerProcess) -> None:
    async with mcp_rig(configured(http_server.url)) as rig:
        first = await rig.tools()
        second = await rig.tools()
        assert first["tools__echo"] is second["tools__echo"]
        assert len(rig.sessions) == 1
        other = chat(id=rig.chat.owner_id)
        await rig.tools(other)
        assert len(rig.sessions) == 2


@pytest.mark.covers("mcp-2")
async def test_several_servers_give_their_tools_in_one_order(http_server: ServerProcess) -> None:
    servers = [
        configured(http_server.url, slug="b", number=1, allow=("echo",)),
        configured(http_server.url, slug="a", number=2, allow=("echo", "bump")),
        configured(http_server.url, slug="a", number=3, allow=("echo",)),
        configured(http_server.url, slug="off", number=4, enabled=False),
    ]
    async with mcp_rig(*servers) as rig:
        tools = await rig.tools()
        assert list(tools) == ["a__bump", "a__echo", "a__echo_2", "b__echo"]
        assert [str(tool.server.id)[-1] for tool in tools.values()] == ["2", "2", "3", "1"]
        assert (await rig.call("a__echo_2", text="x")).text == "you said x"


@pytest.mark.covers("mcp-1")
async def test_allow_and_deny_lists_choose_tools(http_server: ServerProcess) -> None:
    server = configured(http_server.url, allow=("echo", "bump"), deny=("echo",))
    async with mcp_rig(server) as rig:
        assert list(await rig.tools()) == ["tools__bump", "tools__echo"]
        rig.directory.list = [msgspec.structs.replace(server, allow=(), version=2)]
        found = await rig.tools()
        assert "tools__echo" not in found
        assert "tools__bump" in found


async def test_every_mode_offers_all_servers_and_says_which_allow_planning(
    http_server: ServerProcess,
) -> None:
    servers = [
        configured(http_server.url, slug="a", number=1, allow=("echo",)),
        configured(http_server.url, slug="b", number=2, allow=("echo",), allow_in_plan_mode=True),
    ]
    async with mcp_rig(*servers) as rig:
        for mode in (None, "plan"):
            found = await rig.tools(msgspec.structs.replace(rig.chat, mode=mode))
            origins = {name: tool.origin for name, tool in found.items()}
            assert origins == {"a__echo": "mcp", "b__echo": "mcp_in_plans"}


async def test_a_tool_that_asks_for_the_intent_gets_its_own_arguments(
    http_server: ServerProcess,
) -> None:
    server = configured(http_server.url, model_intent=True)
    async with mcp_rig(server) as rig:
        schema = msgspec.json.decode((await rig.tools())["tools__echo"].spec.input_schema)
        assert schema["required"] == ["model_intent", "properties"]
        wrapped = await rig.call(
            "tools__echo", model_intent="to greet", properties={"text": "hello"}
        )
        assert wrapped.text == "you said hello"
        assert (await rig.call("tools__echo", text="flat")).text == "you said flat"


async def test_progress_is_shown_while_the_call_runs(http_server: ServerProcess) -> None:
    async with mcp_rig(configured(http_server.url)) as rig:
        assert (await rig.call("tools__steps")).text == "done"
        assert rig.shown[0] == "1 of 2: step 1\n"


async def test_a_credential_is_sent_and_a_missing_one_is_not(any_server: Server) -> None:
    headers = {"Authorization": "Bearer secret"}
    async with mcp_rig(over(any_server), headers=headers) as rig:
        assert (await rig.call("tools__who")).text == "Bearer secret"
    async with mcp_rig(over(any_server)) as rig:
        assert (await rig.call("tools__who")).text == "None"
