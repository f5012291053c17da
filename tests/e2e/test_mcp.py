"""chatd as an MCP server, with the official SDK as the client and `chatd` as processes."""

import asyncio
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession
from mcp import Client

from tests.e2e.test_serve import address, chatd
from tests.e2e.test_two_replicas import create_user
from tests.support.chaos.servers import TOKEN, Installation, server
from tests.support.mcp.servers import (
    CHATD,
    HeldModel,
    Mode,
    front_door,
    http_client,
    refusal,
    run,
    stdio_client,
    structured,
)

# Real processes, on a machine that may be busy.
pytestmark = pytest.mark.timeout(150)

ONE_MINUTE = 60
Connect = Callable[[str, Mode], AbstractAsyncContextManager[Client]]


@asynccontextmanager
async def demo_server(dsn: str, data_dir: Path) -> AsyncGenerator[str]:
    """The URL of a server with the demo model."""
    env = {"CHATD_DATABASE_URL": dsn, "CHATD_ADMIN_TOKEN": TOKEN}
    async with chatd("serve", "--port", 0, "--data-dir", data_dir, **env) as process:
        yield await address(process)


@pytest.mark.parametrize("connect", [http_client, stdio_client], ids=["http", "stdio"])
async def test_a_whole_conversation_with_the_demo_model(
    dsn: str, tmp_path: Path, connect: Connect
) -> None:
    async with demo_server(dsn, tmp_path) as url:
        for mode in ("auto", "legacy"):
            async with connect(url, mode) as client:
                await converse(client)
        async with ClientSession(url) as http:
            stranger = await create_user(http, "ada")
        token = stranger.headers["Authorization"].removeprefix("Bearer ")
        async with connect(url, "auto") as client, http_client(url, "auto", token) as other:
            chat_id = (await run(client, "list_chats"))["chats"][0]["chat_id"]
            assert "not_found" in await refusal(other, "read_chat", chat_id=chat_id)
            assert (await run(other, "list_chats"))["chats"] == []


async def test_a_server_speaks_the_protocol_without_the_package(dsn: str, tmp_path: Path) -> None:
    """It costs most of a second and 60 MB; only clients of other servers need it."""
    env = {"CHATD_DATABASE_URL": dsn, "CHATD_ADMIN_TOKEN": TOKEN, "PYTHONPROFILEIMPORTTIME": "1"}
    imported = tmp_path / "imported"
    with imported.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(CHATD, "serve", "--port", "0", "--data-dir", tmp_path / "data"),
            env={"HOME": "/nonexistent", "PATH": "/usr/bin:/bin", **env},
            stdout=PIPE,
            stderr=log,
        )
    try:
        async with http_client(await address(process), "auto") as client:
            assert (await client.list_tools()).tools
            assert (await run(client, "list_chats"))["chats"] == []
    finally:
        process.kill()
        await process.communicate()
    names = {line.rpartition("|")[2].strip() for line in imported.read_text().splitlines()}
    assert "chatd.api.mcp.endpoint" in names
    assert {name for name in names if name.partition(".")[0] in ("mcp", "mcp_types")} == set()


async def converse(client: Client) -> None:
    started = await run(client, "start_chat", message="answer fast", labels={"from": "mcp"})
    chat_id = started["chat_id"]
    reports: list[str] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        del progress, total
        reports.append(message or "")

    arguments = {"chat_id": chat_id, "timeout_s": ONE_MINUTE}
    result = await client.call_tool("wait_for_chat", arguments, progress_callback=on_progress)
    waited = structured(result)
    assert (waited["done"], waited["status"]) == (True, "waiting"), waited
    assert waited["answer"]

    await run(client, "send_message", chat_id=chat_id, message="tell me a long story")
    arguments = {"chat_id": chat_id, "timeout_s": 2}
    result = await client.call_tool("wait_for_chat", arguments, progress_callback=on_progress)
    assert structured(result)["done"] is False
    assert any(report.startswith("running") for report in reports)

    await run(client, "interrupt_chat", chat_id=chat_id)
    stopped = await run(client, "wait_for_chat", chat_id=chat_id, timeout_s=ONE_MINUTE)
    assert stopped["status"] == "waiting"
    page = await run(client, "read_chat", chat_id=chat_id)
    roles = [message["role"] for message in page["messages"]]
    assert roles[:3] == ["user", "assistant", "user"]

    fork = await run(client, "fork_chat", chat_id=chat_id)
    listed = await run(client, "list_chats", query="label:from:mcp")
    assert {chat_id, fork["chat_id"]} <= {chat["chat_id"] for chat in listed["chats"]}


@asynccontextmanager
async def held_server(dsn: str, data_dir: Path) -> AsyncGenerator[tuple[Installation, HeldModel]]:
    async with HeldModel.running() as model:
        yield Installation(dsn=dsn, model_url=model.url, data_dir=data_dir), model


async def begin_wait(client: Client, model: HeldModel) -> asyncio.Task[Mapping[str, Any]]:
    """A wait for a chat whose model has begun to answer, after its first report."""
    chat_id = (await run(client, "start_chat", message="hello"))["chat_id"]
    async with asyncio.timeout(ONE_MINUTE):
        await model.gate.reached.wait()
    reported = asyncio.Event()

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        del progress, total, message
        reported.set()

    async def wait() -> Mapping[str, Any]:
        arguments = {"chat_id": chat_id, "timeout_s": 120}
        result = await client.call_tool("wait_for_chat", arguments, progress_callback=on_progress)
        return structured(result)

    task = asyncio.get_running_loop().create_task(wait())
    async with asyncio.timeout(ONE_MINUTE):
        await reported.wait()
    return task


@pytest.mark.promise("P8")
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_wait_that_is_cut_goes_on_at_another_replica(
    dsn: str, tmp_path: Path, mode: Mode
) -> None:
    """Slow: the client waits for three seconds before it connects again."""
    async with (
        held_server(dsn, tmp_path) as (installation, model),
        server(installation) as first,
        server(installation) as second,
        front_door() as door,
    ):
        door.lead_to(first.url)
        async with http_client(door.url, mode) as client:
            waiting = await begin_wait(client, model)
            door.lead_to(second.url)
            door.cut()
            model.gate.open()
            async with asyncio.timeout(ONE_MINUTE):
                result = await waiting
            assert (result["done"], result["answer"]) == (True, "Half and whole.")


@pytest.mark.promise("P6")
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_wait_survives_the_death_and_the_start_of_its_server(
    dsn: str, tmp_path: Path, mode: Mode
) -> None:
    async with (
        held_server(dsn, tmp_path) as (installation, model),
        front_door() as door,
        server(installation) as first,
    ):
        door.lead_to(first.url)
        async with stdio_client(door.url, mode) as client:
            waiting = await begin_wait(client, model)
            first.kill()
            door.lead_to(None)
            door.cut()
            async with server(installation) as second:
                door.lead_to(second.url)
                model.gate.open()
                async with asyncio.timeout(ONE_MINUTE):
                    result = await waiting
                assert (result["done"], result["answer"]) == (True, "Half and whole.")
                assert len((await run(client, "list_chats"))["chats"]) == 1


@pytest.mark.promise("P6")
async def test_a_wait_survives_the_death_of_the_worker(dsn: str, tmp_path: Path) -> None:
    async with held_server(dsn, tmp_path) as (installation, model):
        env = installation.env
        async with (
            chatd("serve", "--no-worker", "--port", 0, **env) as api,
            chatd("worker", **env) as worker,
        ):
            url = await address(api)
            async with http_client(url, "auto") as client:
                waiting = await begin_wait(client, model)
                worker.kill()
                await worker.wait()
                model.gate.open()
                async with chatd("worker", **env):
                    async with asyncio.timeout(ONE_MINUTE):
                        result = await waiting
                    assert (result["done"], result["answer"]) == (True, "Half and whole.")
