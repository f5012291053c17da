"""The probes of `chatd doctor` through a proxy: one that passes everything, one that buffers, one
that cannot upgrade, one that leads elsewhere."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import ClientSession, web

from chatd.client.exchange import ServerAddress
from chatd.client.probes import probe_socket, probe_stream, read_date
from chatd.domain.deployment.diagnosis import judge_socket, judge_stream
from tests.support.api.oidc import free_port
from tests.support.api.server import ME, ApiServer
from tests.support.mcp.servers import FrontDoor

NOT_FOR_LONG_S = 0.5
"""Nothing ever arrives through a proxy that buffers: a short wait finds the same."""


@pytest.fixture
async def http() -> AsyncGenerator[ClientSession]:
    async with ClientSession() as http:
        yield http


@asynccontextmanager
async def answering(handle: web.RequestHandler | object) -> AsyncGenerator[str]:
    """An HTTP server whose every path is answered by `handle`."""
    app = web.Application()
    app.router.add_get("/{path:.*}", handle)  # pyright: ignore[reportArgumentType]
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    try:
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def buffering_proxy(upstream: str, *, headers_first: bool) -> AsyncGenerator[str]:
    """Passes a reply on when it has all of it, as nginx does with what fits its buffers, and no
    upgrade."""

    async def pass_on(request: web.Request) -> web.StreamResponse:
        kept = {"Authorization": request.headers["Authorization"]}
        async with ClientSession() as http, http.get(upstream + request.path, headers=kept) as got:
            reply = web.StreamResponse(status=got.status)
            reply.content_type = got.content_type
            if headers_first:
                await reply.prepare(request)
            body = await got.read()
            await reply.prepare(request)
            await reply.write(body)
            return reply

    async with answering(pass_on) as url:
        yield url


def at(url: str, token: str = ME) -> ServerAddress:
    return ServerAddress(url=url, token=token)


async def test_events_and_frames_arrive_through_a_proxy_that_passes_them(
    door: FrontDoor, http: ClientSession
) -> None:
    facts = await probe_stream(at(door.url), http)
    assert judge_stream(facts, door.url).verdict == "ok", facts
    socket = await probe_socket(at(door.url), http)
    assert judge_socket(socket.status, socket.error, door.url).verdict == "ok", socket
    assert await read_date(at(door.url), http) is not None


@pytest.mark.parametrize("headers_first", [False, True])
async def test_a_proxy_that_buffers_event_streams_is_found(
    server: ApiServer, http: ClientSession, *, headers_first: bool
) -> None:
    async with buffering_proxy(server.url, headers_first=headers_first) as url:
        facts = await probe_stream(at(url), http, wait_s=NOT_FOR_LONG_S)
        finding = judge_stream(facts, url)
        assert "buffers event streams" in finding.text, facts
        assert facts.status == (200 if headers_first else None)


async def test_a_proxy_that_passes_no_upgrade_is_found(
    server: ApiServer, http: ClientSession
) -> None:
    async with buffering_proxy(server.url, headers_first=False) as url:
        socket = await probe_socket(at(url), http)
    assert socket.status not in (None, 101)
    assert "proxy_http_version 1.1" in judge_socket(socket.status, socket.error, url).remedy


async def test_a_page_of_another_program_is_not_taken_for_chatd(http: ClientSession) -> None:
    async def welcome(_request: web.Request) -> web.Response:
        return web.Response(text="<title>Welcome</title>", content_type="text/html")

    async with answering(welcome) as url:
        facts = await probe_stream(at(url), http)
    assert "is not chatd" in judge_stream(facts, url).text


async def test_a_wrong_token_is_told_from_a_broken_way(
    server: ApiServer, http: ClientSession
) -> None:
    assert (await probe_stream(at(server.url, "wrong"), http)).status == 401
    assert (await probe_socket(at(server.url, "wrong"), http)).status == 401


async def test_an_address_that_refuses_connections_is_named_as_such(http: ClientSession) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    facts = await probe_stream(at(url), http)
    assert "did not answer" in judge_stream(facts, url).text
    socket = await probe_socket(at(url), http)
    assert judge_socket(socket.status, socket.error, url).verdict == "failed"
    with pytest.raises(aiohttp.ClientError):
        await read_date(at(url), http)
