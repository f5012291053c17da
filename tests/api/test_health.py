"""Health pages and metrics."""

import asyncio
import logging

import aiohttp
import pytest

from chatd.store.database.pool import Pool
from chatd.stream.chat_list import ChatListSubscription
from tests.support.api.server import ME, ApiOptions, ApiServer, authorized, message_body, serve_api
from tests.support.api.sse_viewer import event_source


async def test_a_running_server_is_alive_and_ready(server: ApiServer) -> None:
    for path in ("/healthz", "/readyz"):
        asked = await server.open_page(path)
        assert (asked.status, asked.json) == (200, {"status": "ok"})


async def test_a_draining_server_is_alive_and_not_ready(dsn: str) -> None:
    draining: list[bool] = []
    async with serve_api(dsn, ApiOptions(draining=lambda: bool(draining))) as server:
        assert (await server.open_page("/readyz")).status == 200
        draining.append(True)
        ready = await server.open_page("/readyz")
        assert (ready.status, ready.json) == (503, {"status": "draining"})
        assert (await server.open_page("/healthz")).status == 200
        assert (await server.ask("GET", "/chats")).status == 200
        refused = await server.ask("POST", "/chats", message_body("hello"))
        assert refused.code == (503, "going_away")
        assert refused.headers["retry-after"] == "1"
        assert "database" not in str(refused.json["message"])


async def test_a_server_without_its_database_is_not_ready(server: ApiServer) -> None:
    await server.replica.pool.close()
    ready = await server.open_page("/readyz")
    assert (ready.status, ready.json["status"]) == (503, "unavailable")
    assert ready.json["reason"] == "database_closed"
    assert (await server.open_page("/healthz")).status == 200


async def test_a_server_that_cannot_write_is_not_ready_and_says_why(dsn: str) -> None:
    """A database with a full disk answers a ping; the worker's heartbeat fails."""
    errors: list[str] = []
    options = ApiOptions(database_error=lambda: errors[-1] if errors else None)
    async with serve_api(dsn, options) as server:
        assert (await server.open_page("/readyz")).status == 200
        errors.append("database_full")
        ready = await server.open_page("/readyz")
        assert (ready.status, ready.json["reason"]) == (503, "database_full")
        assert "disk is full" in str(ready.json["message"])


async def test_a_server_without_nats_is_ready_and_says_so(dsn: str) -> None:
    """A load balancer that took it out would take all out: they share the NATS server."""
    hears: list[bool] = [False]
    async with serve_api(dsn, ApiOptions(hears_hints=lambda: hears[-1])) as server:
        ready = await server.open_page("/readyz")
        assert (ready.status, ready.json["status"]) == (200, "ok")
        assert ready.json["reason"] == "notifications_lost"
        hears.append(True)
        assert (await server.open_page("/readyz")).json == {"status": "ok"}


async def test_metrics_need_a_token_if_the_settings_name_one(dsn: str) -> None:
    token = "a-token-of-prometheus"
    async with serve_api(dsn, ApiOptions(metrics_token=token)) as server:
        for given in ({}, authorized("another-token"), authorized(ME)):
            async with server.http.get("/metrics", headers=given) as reply:
                assert reply.status == 401
        async with server.http.get("/metrics", headers=authorized(token)) as reply:
            assert "chatd_" in await reply.text()
        assert (await server.open_page("/readyz")).status == 200


async def test_requests_are_counted_by_route_template_without_ids(server: ApiServer) -> None:
    chat = await server.create()
    await server.ask("GET", f"/chats/{chat}")
    await server.ask("GET", "/chats", token=None)
    await server.ask("GET", "/no/such/thing")
    async with event_source(server, "/events"):
        counted = (await server.open_page("/metrics")).content.decode()
    requests = "chatd_http_requests_total"
    one = "/api/v1/chats/{chat_id}"
    assert f'{requests}{{method="GET",route="{one}",status="200"}} 1.0' in counted
    assert f'{requests}{{method="GET",route="/api/v1/chats",status="401"}} 1.0' in counted
    assert f'{requests}{{method="GET",route="unmatched",status="404"}} 1.0' in counted
    assert 'chatd_streams{transport="sse"} 1.0' in counted
    assert str(chat) not in counted


async def test_an_internal_error_is_logged_and_its_reply_has_no_details(
    server: ApiServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_args: object) -> None:
        raise RuntimeError("the password is swordfish")

    monkeypatch.setattr(Pool, "fetchrow", broken)
    with caplog.at_level(logging.ERROR):
        chat = "00000000-0000-0000-0000-000000000001"
        for path in (f"/chats/{chat}", f"/chats/{chat}/events"):
            failed = await server.ask("GET", path)
            assert failed.code == (500, "internal")
            assert b"swordfish" not in failed.content
    assert [record.exc_text is not None for record in caplog.records] == [True, True]


async def test_an_internal_error_ends_a_stream_with_a_code(
    server: ApiServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(_self: object) -> None:
        raise RuntimeError("the password is swordfish")

    monkeypatch.setattr(ChatListSubscription, "next", broken)
    async with event_source(server, "/events") as source:
        block = await source.event()
    assert block is not None
    assert (block.event, b"internal" in block.data) == ("end", True)
    assert b"swordfish" not in block.data
    async with server.http.ws_connect("/api/v1/ws", headers=authorized(ME)) as socket:
        await socket.send_str('{"type": "subscribe", "topic": "chats"}')
        async with asyncio.timeout(30):
            while (message := await socket.receive()).type is aiohttp.WSMsgType.TEXT:
                assert "swordfish" not in message.data
        assert message.data == 1011
    assert caplog.text.count("stream_failed") == 2
