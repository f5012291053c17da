"""MCP servers of two `chatd serve` processes: declared by settings, and connected by OAuth."""

import signal
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest
from aiohttp import ClientSession

from chatd.sealed_secrets import new_key
from tests.e2e.test_serve import address, chatd
from tests.e2e.test_two_replicas import ask
from tests.support.chaos.servers import AUTH, TOKEN
from tests.support.eventually import eventually
from tests.support.mcp.authorization_server import (
    AuthorizationServer,
    authorization_server,
    plain_resource,
)

# Real processes, on a machine that may be busy.
pytestmark = pytest.mark.timeout(150)

MARKERS = ("marker-key-of-settings", "marker-header")
HOST = {"host": "127.0.0.1:7915"}
"""Both servers are reached by one name, as behind a proxy."""


def settings(dsn: str, url: str) -> dict[str, str]:
    declared = {
        "slug": "declared",
        "url": url,
        "auth": "api_key",
        "api_key_header": "X-Api-Key",
        "api_key_env": "NOTES_KEY",
    }
    return {
        "CHATD_DATABASE_URL": dsn,
        "CHATD_ADMIN_TOKEN": TOKEN,
        "CHATD_LOG_LEVEL": "debug",
        "CHATD_MCP_PRIVATE_HOSTS": '["127.0.0.1"]',
        "CHATD_MCP_SERVERS": msgspec.json.encode([declared]).decode(),
        "NOTES_KEY": MARKERS[0],
    }


@asynccontextmanager
async def running(
    data_dir: Path, env: Mapping[str, str]
) -> AsyncGenerator[tuple[Process, ClientSession]]:
    async with (
        chatd("serve", "--port", 0, "--data-dir", data_dir, **env) as process,
        ClientSession(await address(process)) as http,
    ):
        yield process, http


async def connect_over_two(
    one: ClientSession, two: ClientSession, server_id: str, authorization: AuthorizationServer
) -> None:
    """Begun at one server and finished at the other."""
    path = f"/api/v1/mcp-servers/{server_id}/connect"
    async with one.post(path, headers={**AUTH, **HOST}) as reply:
        assert reply.status == 200, await reply.text()
        cookie = reply.headers["set-cookie"].partition(";")[0]
        url = (await reply.json())["authorization_url"]
    back = urlsplit(await authorization.consent(url))
    headers = {**AUTH, **HOST, "cookie": cookie, "accept": "text/html"}
    async with two.get(f"{back.path}?{back.query}", headers=headers) as reply:
        assert reply.status == 200, await reply.text()


async def state_of(http: ClientSession, slug: str) -> object:
    _, found = await ask(http, "GET", "/mcp-servers")
    items = msgspec.convert(found["items"], list[dict[str, object]])
    one = next(item for item in items if item["slug"] == slug)
    return msgspec.convert(one["connection"], dict[str, object])["state"]


async def talk(http: ClientSession) -> None:
    """One turn, to its end."""
    body = {"content": [{"type": "text", "text": "answer fast"}]}
    status, chat = await ask(http, "POST", "/chats", body)
    assert status == 201, chat

    async def is_done() -> bool:
        return (await ask(http, "GET", f"/chats/{chat['id']}"))[1]["status"] == "waiting"

    await eventually(is_done, within_s=60)


@pytest.mark.promise("P13")
async def test_a_connection_is_begun_and_finished_at_two_servers_and_no_secret_is_logged(
    dsn: str, tmp_path: Path
) -> None:
    """Takes seconds: two servers are started, and both import the SDK."""
    async with authorization_server() as authorization, plain_resource(authorization) as url:
        authorization.confidential = True
        authorization.lifetime_s = 5.0
        env = settings(dsn, url) | {"CHATD_SECRET_KEYS": new_key().encode()}
        env |= {"CHATD_SECRET": "a secret of two hosts"}
        async with (
            running(tmp_path / "one", env) as (first, one),
            running(tmp_path / "two", env) as (second, two),
        ):
            body = {"slug": "notes", "url": url, "auth": "oauth2", "availability": "force_on"}
            status, made = await ask(one, "POST", "/mcp-server-configs", body)
            assert status == 201, made
            team = {"slug": "team", "url": url, "auth": "custom_headers"}
            team |= {"headers": {"X-Team": MARKERS[1]}, "availability": "force_on"}  # type: ignore[dict-item]
            assert (await ask(two, "POST", "/mcp-server-configs", team))[0] == 201
            await connect_over_two(one, two, str(made["id"]), authorization)
            for http in (one, two):
                assert await state_of(http, "notes") == "connected"
                await talk(http)
            authorization.end_grants()
            await talk(two)
            assert await state_of(one, "notes") == "failed"
            logs = [await ended(process) for process in (first, second)]
        # By the one that ran the turn: either may take it.
        assert any("mcp_server_failed" in log for log in logs), "it was tried, and logged"
        assert len(authorization.secrets) >= 3
        for secret in (*authorization.secrets, *MARKERS, TOKEN):
            assert all(secret not in log for log in logs), secret


async def ended(process: Process) -> str:
    process.send_signal(signal.SIGTERM)
    out, err = await process.communicate()
    assert process.returncode == 0
    return (out + err).decode()


async def test_a_server_of_the_settings_cannot_be_changed_and_goes_with_them(
    dsn: str, tmp_path: Path
) -> None:
    """Takes seconds: a server is started twice."""
    env = settings(dsn, "https://notes.example.com/mcp")
    async with running(tmp_path, env) as (process, http):
        _, found = await ask(http, "GET", "/mcp-server-configs")
        (item,) = msgspec.convert(found["items"], list[dict[str, object]])
        assert (item["slug"], item["source"], item["has_api_key"]) == ("declared", "settings", True)
        path = f"/mcp-server-configs/{item['id']}"
        for method, body in (("PATCH", {"enabled": False}), ("DELETE", None)):
            status, refused = await ask(http, method, path, body)
            assert (status, refused["code"]) == (409, "managed_by_settings")
        body = {"slug": "declared", "url": "https://other.example.com/mcp"}
        status, refused = await ask(http, "POST", "/mcp-server-configs", body)
        assert (status, refused["code"]) == (409, "managed_by_settings")
        await ended(process)
    async with running(tmp_path, env | {"CHATD_MCP_SERVERS": "[]"}) as (process, http):
        _, found = await ask(http, "GET", "/mcp-server-configs")
        assert found["items"] == []
        assert (await ask(http, "POST", "/mcp-server-configs", body))[0] == 201
        await ended(process)
