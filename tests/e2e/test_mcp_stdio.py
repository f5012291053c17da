"""`chatd mcp`: what is on its standard output, and what becomes of requests that go wrong."""

import asyncio
import os
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from aiohttp import ClientSession

from chatd.cli.mcp_stdio import Patience, Relay, Unreachable
from chatd.client.exchange import ServerAddress
from tests.e2e.test_mcp import held_server
from tests.support.api.oidc import free_port
from tests.support.chaos.servers import TOKEN, server
from tests.support.mcp.raw_client import Json, call_body, request_body
from tests.support.mcp.servers import CHATD, front_door, run, stdio_client

# Real processes, on a machine that may be busy.
pytestmark = pytest.mark.timeout(150)


@asynccontextmanager
async def bridge(*arguments: str, **env: str) -> AsyncGenerator[Process]:
    process = await asyncio.create_subprocess_exec(
        *(CHATD, "mcp", *arguments),
        env={"HOME": "/nonexistent", "PATH": "/usr/bin:/bin", **env},
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def write(process: Process, *messages: object) -> None:
    assert process.stdin is not None
    for message in messages:
        line = message if isinstance(message, bytes) else msgspec.json.encode(message)
        process.stdin.write(line + b"\n")


async def read(process: Process) -> Json:
    assert process.stdout is not None
    async with asyncio.timeout(60):
        return msgspec.json.decode(await process.stdout.readline(), type=Json)


async def test_lines_that_are_no_messages_get_an_error_and_the_end_of_the_input_ends_it() -> None:
    async with bridge(CHATD_TOKEN=TOKEN) as process:
        write(process, b"{", b"", b"[]", b'{"jsonrpc":"2.0","id":4,"result":{}}', b"\xff")
        assert process.stdin is not None
        process.stdin.close()
        out, err = await process.communicate()

    answers = [msgspec.json.decode(line, type=Json) for line in out.splitlines()]
    codes = [msgspec.convert(answer["error"], Json)["code"] for answer in answers]
    assert codes == [-32700, -32700, -32700]
    assert (process.returncode, err) == (0, b"")


async def test_it_ends_quietly_when_nobody_reads_its_output() -> None:
    here, there = os.pipe()
    process = await asyncio.create_subprocess_exec(
        *(CHATD, "mcp"),
        env={"HOME": "/nonexistent", "PATH": "/usr/bin:/bin", "CHATD_TOKEN": TOKEN},
        stdin=PIPE,
        stdout=there,
        stderr=PIPE,
    )
    os.close(there)
    os.close(here)
    write(process, b"{")
    async with asyncio.timeout(60):
        assert process.stderr is not None
        err = await process.stderr.read()
        code = await process.wait()
    assert (code, err) == (0, b"")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--data-dir", "/nonexistent"), b"no token: set CHATD_TOKEN"),
        (("--token-file", "/nonexistent/token"), b"cannot read the token: /nonexistent/token"),
    ],
)
async def test_without_a_token_it_says_how_to_give_one(
    arguments: tuple[str, ...], text: bytes
) -> None:
    async with bridge(*arguments) as process:
        out, err = await process.communicate()

    assert (process.returncode, out) == (2, b"")
    assert text in err


@pytest.mark.promise("P1", "P10")
async def test_a_chat_is_started_once_though_the_reply_was_lost(dsn: str, tmp_path: Path) -> None:
    async with (
        held_server(dsn, tmp_path) as (installation, model),
        server(installation) as running,
        front_door() as door,
    ):
        model.gate.open()
        door.lead_to(running.url)
        async with stdio_client(door.url, "auto") as client:
            assert (await run(client, "list_chats"))["chats"] == []
            door.lost_replies = 2
            door.cut()
            started = await run(client, "start_chat", message="hello")
            assert door.lost_replies == 0

            (only,) = (await run(client, "list_chats"))["chats"]
            assert only["chat_id"] == started["chat_id"]


async def test_a_cancelled_wait_has_no_answer_and_the_chat_goes_on(
    dsn: str, tmp_path: Path
) -> None:
    async with (
        held_server(dsn, tmp_path) as (installation, model),
        server(installation) as running,
        bridge("--url", running.url, CHATD_TOKEN=TOKEN) as process,
    ):
        write(process, call_body("start_chat", {"message": "hello"}, "start"))
        result = msgspec.convert((await read(process))["result"], Json)
        chat = msgspec.convert(result["structuredContent"], dict[str, str])
        wait: Json = {"chat_id": chat["chat_id"], "timeout_s": 600}
        write(process, call_body("wait_for_chat", wait, 7, progressToken="p"))
        assert (await read(process))["method"] == "notifications/progress"
        cancelled = {"requestId": 7, "reason": "no time"}
        write(
            process,
            {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancelled},
            request_body("ping", request_id="ping"),
        )
        while (answer := await read(process)).get("method") is not None:
            pass
        assert answer["id"] == "ping"

        model.gate.open()
        write(process, call_body("wait_for_chat", wait, 8))
        answer = await read(process)
        assert answer["id"] == 8
        result = msgspec.convert(answer["result"], Json)
        content = msgspec.convert(result["structuredContent"], Json)
        assert (content["done"], content["answer"]) == (True, "Half and whole.")


async def test_a_server_that_cannot_be_reached_is_reported_after_some_time() -> None:
    target = ServerAddress(url=f"http://127.0.0.1:{free_port()}", token=TOKEN)
    async with ClientSession() as http:
        relay = Relay(target, http, "a-test", Patience(first_s=0.5, later_s=0.5))
        for method in ("initialize", "tools/list"):
            with pytest.raises(Unreachable, match="Cannot connect"):
                await anext(relay.request(request_body(method)))


async def test_a_wrong_token_is_answered_at_once_with_the_reason(dsn: str, tmp_path: Path) -> None:
    async with (
        held_server(dsn, tmp_path) as (installation, _),
        server(installation) as running,
        bridge("--url", running.url, CHATD_TOKEN="a-wrong-token-of-enough-length") as process,
    ):
        write(process, request_body("initialize", {"protocolVersion": "2025-11-25"}))
        answer = await read(process)
        error = msgspec.convert(answer["error"], Json)
        assert (answer["id"], error["message"]) == (1, "The token is not valid.")
