"""Servers that hang, die, lie or answer too much: each costs only its own calls."""

import asyncio

import msgspec
import pytest

from chatd.domain.mcp.results import OUTCOME_UNKNOWN_TEXT
from chatd.mcp.http_transport import DialPolicy, McpLimits
from tests.support.clock import FakeClock
from tests.support.eventually import eventually
from tests.support.mcp.bad_servers import (
    Answer,
    compressed,
    impatient_gateway,
    never,
    raw_server,
    reply,
)
from tests.support.mcp.rig import LIMITS, McpRig, ServerProcess, configured, mcp_rig, tool_server

SHORT_CALLS = msgspec.structs.replace(LIMITS, call_s=2.0)
SHORT_CONNECTS = McpLimits(connect_s=0.3, call_s=20.0)

TRANSPORTS = {"http": "streamable_http", "json": "streamable_http", "sse": "sse"}


@pytest.mark.covers("mcp-4")
@pytest.mark.parametrize("transport", ["http", "json", "sse"])
async def test_a_tool_that_hangs_is_given_up_cancelled_and_leaves_the_others_alone(
    transport: str,
) -> None:
    with tool_server(transport) as process:
        server = configured(process.url, transport=TRANSPORTS[transport])
        async with mcp_rig(server, limits=SHORT_CALLS) as rig:
            await rig.tools()
            hung, echo = await asyncio.gather(
                rig.call("tools__hang"), rig.call("tools__echo", text="quick")
            )
            assert echo.text == "you said quick"
            assert hung.is_error
            assert "did not answer within 2 s" in hung.text
            assert OUTCOME_UNKNOWN_TEXT in hung.text
            if transport != "json":  # such a server learns nothing until it has answered
                await process.wait_called("hang cancelled")
            assert (await rig.call("tools__echo", text="again")).text == "you said again"


@pytest.mark.covers("mcp-4")
@pytest.mark.parametrize("transport", ["http", "json", "sse"])
async def test_a_server_that_dies_in_a_call_is_reported_and_retried_later(transport: str) -> None:
    with tool_server(transport) as process:
        server = configured(process.url, transport=TRANSPORTS[transport])
        async with mcp_rig(server) as rig:
            before = {name: tool.spec for name, tool in (await rig.tools()).items()}
            died = await rig.call("tools__die")
            assert died.is_error
            assert OUTCOME_UNKNOWN_TEXT in died.text
            # A changed list would cost the prompt cache.
            assert {name: tool.spec for name, tool in (await rig.tools()).items()} == before
            [failed] = rig.seen("mcp_server_failed")
            assert failed["server"] == "tools"
            called = await rig.call("tools__echo", text="hello")
            assert called.is_error
            assert OUTCOME_UNKNOWN_TEXT not in called.text


@pytest.mark.covers("mcp-4")
async def test_a_dead_server_keeps_its_tools_at_another_replica() -> None:
    with tool_server("http") as process:
        server = configured(process.url)
        async with mcp_rig(server) as first:
            before = list(await first.tools())
        process.kill()
        async with mcp_rig(server) as second:
            second.directory.kept = first.directory.kept
            assert list(await second.tools()) == before != []
            assert (await second.call("tools__echo", text="hello")).is_error
            second.directory.list = [msgspec.structs.replace(server, version=2)]
            assert await second.tools() == {}


@pytest.mark.covers("mcp-4")
@pytest.mark.parametrize(
    ("status", "body", "media_type"),
    [
        (504, "<html>", "text/html"),
        (502, "", "text/plain"),
        (504, '{"message": "Endpoint request timed out"}', "application/json"),
    ],
)
async def test_a_call_that_a_gateway_gave_up_has_an_unknown_outcome(
    status: int, body: str, media_type: str
) -> None:
    async with (
        impatient_gateway(status, body, media_type) as url,
        mcp_rig(configured(url)) as rig,
    ):
        given_up = await rig.call("tools__bump")
        assert given_up.is_error
        assert OUTCOME_UNKNOWN_TEXT in given_up.text


async def test_a_cancelled_call_is_cancelled_on_the_server(http_server: ServerProcess) -> None:
    async with mcp_rig(configured(http_server.url)) as rig:
        call = rig.start("tools__hang")
        await http_server.wait_called("hang")
        before = (await http_server.calls()).get("hang cancelled", 0)
        call.cancel()
        await http_server.wait_called("hang cancelled", before + 1)
        assert (await rig.call("tools__echo", text="on")).text == "you said on"


@pytest.mark.covers("mcp-4")
@pytest.mark.parametrize("transport", ["http", "json"])
async def test_a_long_result_arrives_whole_and_a_huge_one_is_refused(transport: str) -> None:
    with tool_server(transport) as process:
        async with mcp_rig(configured(process.url)) as rig:
            long = await rig.call("tools__huge", megabytes=7)
            assert not long.is_error
            assert len(long.text) == 7 * 1024 * 1024, "the step's own rule cuts it"
            huge = await rig.call("tools__huge", megabytes=20)
            assert huge.is_error
            assert OUTCOME_UNKNOWN_TEXT not in huge.text, "it only reads"
            assert (await rig.call("tools__echo", text="on")).text == "you said on"


async def test_a_huge_event_costs_its_own_connection_only() -> None:
    with tool_server("sse") as process:
        async with mcp_rig(configured(process.url, transport="sse")) as rig:
            huge = await rig.call("tools__huge", megabytes=4)
            assert huge.is_error
            assert (await rig.call("tools__echo", text="on")).text == "you said on"


@pytest.mark.covers("mcp-4")
@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_new_tools_of_a_server_are_offered_when_it_says_so(transport: str) -> None:
    with tool_server(transport) as process:
        server = configured(process.url, transport=TRANSPORTS[transport])
        async with mcp_rig(server) as rig:
            assert "tools__late" not in await rig.tools()
            await rig.call("tools__grow")

            async def is_offered() -> bool:
                return "tools__late" in await rig.tools()

            await eventually(is_offered)
            assert len(rig.sessions) == 1
            assert (await rig.call("tools__late")).text == "late"
            await rig.clock.wait_for_sleeper("mcp_list")
            lists = len(rig.seen("mcp_tools_changed"))
            for _ in range(3):
                await rig.call("tools__grow")
            assert len(rig.seen("mcp_tools_changed")) == lists, "it waits before it lists again"


@pytest.mark.covers("mcp-5")
async def test_a_hanging_server_delays_a_step_once_and_not_the_tools_of_others(
    http_server: ServerProcess,
) -> None:
    async with raw_server(never) as (url, heads):
        servers = [
            configured(url, slug="hangs", number=1),
            configured(http_server.url, slug="works", number=2),
        ]
        async with mcp_rig(*servers, limits=SHORT_CONNECTS) as rig:
            # The first connection imports the SDK, which has nothing to do with the server.
            rig.directory.list = servers[1:]
            while not await rig.tools():
                rig.sessions.forget_failures()
            rig.directory.list = servers
            assert "works__echo" in await rig.tools()
            tried = len(heads)
            assert tried > 0
            for _ in range(5):
                assert "works__echo" in await rig.tools()
            assert len(heads) == tried, "a failed server is not tried at every step"


@pytest.mark.covers("mcp-5")
async def test_a_failed_server_is_tried_again_after_a_growing_delay() -> None:
    clock = FakeClock()
    async with (
        raw_server(reply("500 Broken")) as (url, _),
        mcp_rig(configured(url), clock=clock) as rig,
    ):
        delays: list[float] = []
        for _ in range(4):
            assert await rig.tools() == {}
            failures, waited = len(rig.seen("mcp_server_failed")), 0.0
            while len(rig.sessions) == 0 and len(rig.seen("mcp_server_failed")) == failures:
                clock.advance(5)
                waited += 5
                await rig.tools()
            delays.append(waited)
            await wait_failed(rig, failures + 1)
        assert delays == [5, 10, 20, 40]
        assert len(rig.seen("mcp_server_failed")) == 5


async def wait_failed(rig: McpRig, times: int) -> None:
    async def is_failed() -> bool:
        return len(rig.seen("mcp_server_failed")) >= times

    await eventually(is_failed)


@pytest.mark.covers("mcp-4")
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (reply("500 Broken"), "status 500"),
        (reply("307 Moved", b"", "location: http://169.254.169.254/meta"), "not followed"),
        (reply("200 OK", b"<html>", "content-type: text/html"), "content type"),
        (reply("200 OK", b"{", "content-type: application/json"), "JSON"),
        (compressed(64), "compressed"),
    ],
    ids=["error", "redirect elsewhere", "no MCP", "no JSON", "compressed"],
)
async def test_a_server_that_speaks_nonsense_has_no_tools_and_the_log_says_why(
    answer: Answer, reason: str
) -> None:
    async with raw_server(answer) as (url, _), mcp_rig(configured(f"{url}?key=secret")) as rig:
        assert await rig.tools() == {}
        [failed] = rig.seen("mcp_server_failed")
        assert reason in str(failed["reason"])
        assert "secret" not in str(rig.events)


@pytest.mark.covers("mcp-8")
async def test_a_private_address_is_refused_unless_its_host_is_named(
    http_server: ServerProcess,
) -> None:
    async with mcp_rig(configured(http_server.url), policy=DialPolicy()) as rig:
        assert await rig.tools() == {}
        [failed] = rig.seen("mcp_server_failed")
        assert "not on the public internet" in str(failed["reason"])
        assert str(failed["reason"]).endswith("name it in the setting mcp.private_hosts.")


@pytest.mark.covers("mcp-8")
async def test_a_name_that_leads_to_a_private_address_is_refused(
    http_server: ServerProcess,
) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        del host, port
        return ["127.0.0.1"]

    url = f"http://public.example:{http_server.port}/mcp"
    async with mcp_rig(configured(url), policy=DialPolicy(resolve=resolve)) as rig:
        assert await rig.tools() == {}
        assert "not on the public internet" in str(rig.seen("mcp_server_failed"))


async def test_a_server_that_ended_is_found_again_when_it_is_back() -> None:
    with tool_server("http") as process:
        port = process.port
        async with mcp_rig(configured(process.url)) as rig:
            await rig.tools()
            process.kill()
            gone = await rig.call("tools__bump")
            assert gone.is_error
            assert "cannot be reached" in gone.text
            assert OUTCOME_UNKNOWN_TEXT not in gone.text, "the request was not sent"
            with tool_server("http", "--port", str(port)):
                rig.sessions.forget_failures()
                assert (await rig.call("tools__echo", text="back")).text == "you said back"
