"""Turns of two users with a protected server of the official SDK: each with its own token."""

import json
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from uuid import UUID

import msgspec
from msgspec import Raw, Struct

from chatd.domain.chat.row import Chat, Fence
from chatd.domain.ids import McpServerId, ToolCallId
from chatd.domain.ports import ToolContext
from tests.support.api.server import ADMINISTRATOR, OTHER_OWNER, OTHER_USER, ApiServer, serve_api
from tests.support.factories import CHAT, OWNER, WORKER
from tests.support.factories import chat as chat_row
from tests.support.mcp.authorization_server import AuthorizationServer, authorization_server
from tests.support.mcp.connections import Browser, add_server
from tests.support.mcp.workers import McpWorker, mcp_worker
from tests.support.processes import ROOT
from tests.support.store import chat_id


@contextmanager
def protected_server(issuer: str) -> Generator[str]:
    """Takes two seconds, mostly imports. Yields its URL."""
    process = subprocess.Popen(
        (sys.executable, "-m", "tests.support.mcp.protected_server", issuer),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{json.loads(process.stdout.readline())['port']}/mcp"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


class World(Struct, frozen=True, kw_only=True):
    server: ApiServer
    authorization: AuthorizationServer
    worker: McpWorker
    server_id: str

    async def whoami(self, row: Chat) -> str:
        tools = {one.spec.name: one for one in await self.worker.runtime.tools.tools(row)}
        if "notes__whoami" not in tools:
            return "no tool"
        context = ToolContext(
            chat=row, call_id=ToolCallId("c"), fence=Fence.of(row), show=lambda _text: None
        )
        output = await tools["notes__whoami"].run(context, Raw(b"{}"))
        return msgspec.json.encode(output).decode()


@asynccontextmanager
async def world_on(dsn: str) -> AsyncGenerator[World]:
    async with serve_api(dsn) as server, authorization_server() as authorization:
        with protected_server(authorization.issuer) as url:
            server_id = await add_server(server, url, availability="force_on")
            async with mcp_worker(server.replica.pool) as worker:
                yield World(
                    server=server,
                    authorization=authorization,
                    worker=worker,
                    server_id=server_id,
                )


def running(owner: UUID, number: int) -> Chat:
    return chat_row(id=chat_id(number), owner_id=owner, status="running", worker_id=WORKER, epoch=1)


async def test_each_user_reaches_a_protected_server_with_its_own_token(dsn: str) -> None:
    """Nine seconds: the SDK is imported here and in the server's process."""
    async with world_on(dsn) as world:
        mine, other = running(OWNER, 1), running(OTHER_OWNER, 2)
        assert await world.whoami(mine) == "no tool", "not connected"
        browsers = {"ada": Browser(world.server), "ben": Browser(world.server, OTHER_USER)}
        for user, browser in browsers.items():
            world.authorization.user = user
            page = await browser.connect(world.server_id, world.authorization)
            assert page.status == 200, page.text
        assert "ada" in await world.whoami(mine)
        assert "ben" in await world.whoami(other)

        world.authorization.expire()
        assert "ada" in await world.whoami(mine), "refused, refreshed and called again"
        assert "ben" in await world.whoami(other)

        assert (await browsers["ben"].disconnect(world.server_id)).json["revoked"] is True
        assert await world.whoami(other) == "no tool"
        assert "ada" in await world.whoami(mine)

        world.authorization.end_grants()
        assert "ada" not in await world.whoami(mine)
        assert (await browsers["ada"].connection(world.server_id))["state"] == "failed"


async def test_the_test_of_an_administrator_uses_the_administrators_connection(dsn: str) -> None:
    async with world_on(dsn) as world:
        path = f"/mcp-server-configs/{world.server_id}/test"
        assert (await world.server.ask("POST", path, token=ADMINISTRATOR)).json["ok"] is False
        browser = Browser(world.server, ADMINISTRATOR)
        await browser.connect(world.server_id, world.authorization)
        found = await world.server.ask("POST", path, token=ADMINISTRATOR)
        assert found.json["ok"]
        assert [one["name"] for one in found.at("tools")] == ["read_note", "wait", "whoami"]


async def test_a_chat_uses_what_is_forced_on_and_what_was_chosen(dsn: str) -> None:
    async with serve_api(dsn) as server, mcp_worker(server.replica.pool) as worker:
        ids: dict[str, McpServerId] = {}
        for slug, fields in {
            "forced": {"availability": "force_on"},
            "default": {"availability": "default_on"},
            "extra": {"availability": "default_off"},
            "off": {"availability": "force_on", "enabled": False},
        }.items():
            url = f"https://{slug}.example.com/mcp"
            made = await add_server(server, url, slug=slug, auth="none", **fields)
            ids[slug] = McpServerId(UUID(made))
        worker.directory.forget()
        for chosen, expected in (
            (None, ["default", "forced"]),
            ((), ["forced"]),
            ((ids["extra"], ids["off"]), ["extra", "forced"]),
        ):
            row = chat_row(id=CHAT, mcp_server_ids=chosen)
            found = [one.slug for one in await worker.directory.servers(row)]
            assert found == expected
