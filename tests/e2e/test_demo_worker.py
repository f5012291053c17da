"""The demo of a killed worker: a real process dies, and the server goes on with its chat."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from tests.e2e.test_serve import TOKEN, address, chatd
from tests.support.eventually import eventually

# Real processes, on a machine that may be busy.
pytestmark = pytest.mark.timeout(150)


@asynccontextmanager
async def demo_server(dsn: str, directory: Path, **more: str) -> AsyncGenerator[ClientSession]:
    at = ("--port", "0", "--data-dir", directory, "--database-url", dsn)
    given = {"CHATD_ADMIN_TOKEN": TOKEN, "CHATD_WORKSPACES_ENABLED": "false", **more}
    async with asyncio.timeout(100), chatd("serve", *at, **given) as process:
        url = f"{await address(process)}/api/v1/"
        headers = {"authorization": f"Bearer {TOKEN}"}
        async with ClientSession(url, headers=headers) as client:
            yield client


async def code_of(client: ClientSession, path: str) -> tuple[int, str]:
    async with client.post(path) as reply:
        return reply.status, (await reply.json())["code"]


async def attempts_of(client: ClientSession, chat_id: str) -> list[dict[str, Any]]:
    async with client.get(f"chats/{chat_id}/runs") as reply:
        turns = (await reply.json())["items"]
    return turns[0]["attempts"] if turns else []


async def test_a_killed_worker_process_is_taken_over_by_the_server(
    dsn: str, tmp_path: Path
) -> None:
    async with demo_server(dsn, tmp_path) as client:
        assert await code_of(client, "demo/kill-worker") == (409, "no_demo_worker")
        async with client.post("demo/worker") as reply:
            assert await reply.json() == {"available": True, "worker_running": True}
        text = {"type": "text", "text": "tell me a long story"}
        async with client.post("chats", json={"content": [text]}) as reply:
            chat_id = (await reply.json())["id"]

        async def started() -> list[dict[str, Any]]:
            return await attempts_of(client, chat_id)

        first = (await eventually(started))[0]
        async with client.post("demo/kill-worker") as reply:
            assert reply.status == 204

        async def taken_over() -> dict[str, Any] | None:
            return next((one for one in await started() if one["takeover"] is not None), None)

        second = await eventually(taken_over)
        assert second["takeover"]["lost_worker"]["name"] == first["worker"]["name"]
        assert second["takeover"]["noticed_by"] == "lock_gone"
        assert second["worker"]["id"] != first["worker"]["id"]
        async with client.get("demo") as reply:
            assert await reply.json() == {"available": True, "worker_running": False}


async def test_the_setting_disables_the_demo_of_a_killed_worker(dsn: str, tmp_path: Path) -> None:
    async with demo_server(dsn, tmp_path, CHATD_DEMO_KILL_WORKER="false") as client:
        async with client.get("demo") as reply:
            assert await reply.json() == {"available": False, "worker_running": False}
        assert await code_of(client, "demo/worker") == (409, "not_in_demo")
        assert await code_of(client, "demo/kill-worker") == (409, "not_in_demo")
