"""`/v1` as OpenAI's package for TypeScript uses it: the scenarios of `tests/official_clients`."""

from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest
from aiohttp import ClientSession

from tests.support.chaos.servers import TOKEN as SERVER_TOKEN
from tests.support.chaos.servers import Installation
from tests.support.official_clients import Json, ModelSteps, run_scenario
from tests.support.providers.openai_chat import DONE, FakeCompatible, chunk
from tests.support.terminal import TOKEN, serve_terminal
from tests.terminal.test_killed_server import free_port
from tests.terminal.test_killed_server import server as serve_process

UNLISTED = "/api/v1/chats?label=chatd/listed:no"


@pytest.mark.parametrize("scenario", ["completions", "responses", "errors"])
async def test_the_typescript_package_finds_what_it_knows(
    dsn: str, tmp_path: Path, scenario: str
) -> None:
    """Takes seconds: Node is started with the package."""
    async with serve_terminal(dsn, tmp_path) as server:

        async def count_chats(_asked: Json) -> Json:
            page = await server.call("GET", UNLISTED.removeprefix("/api/v1"))
            return {"count": len(msgspec.convert(page["items"], list[Json]))}

        steps = {**ModelSteps(server.vendor).all(), "chats": count_chats}
        arguments: Json = {"url": server.address.url, "token": TOKEN}
        await run_scenario("openai.js", scenario, arguments, steps)


BEGINNING, REST = "The lamp was lit ", "before the storm came."


@pytest.mark.promise("P1", "P6", "P8")
@pytest.mark.timeout(150)
async def test_the_typescript_package_goes_on_after_the_server_was_killed(
    dsn: str, tmp_path: Path
) -> None:
    """Slow: starts two servers in sequence."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    async with FakeCompatible.running() as vendor, AsyncExitStack() as held:
        installation = Installation(dsn=dsn, model_url=vendor.url, data_dir=tmp_path / "data")
        model = ModelSteps(vendor)
        for _ in range(3):
            vendor.script(chunk(role="assistant", content=BEGINNING), model.hold())
        for _ in range(3):
            whole = chunk(role="assistant", content=BEGINNING + REST)
            vendor.script(whole, chunk(finish="stop"), DONE)
        first = await held.enter_async_context(serve_process(installation, port))

        async def kill(_asked: Json) -> None:
            first.kill()
            await first.wait()

        async def restart(_asked: Json) -> None:
            await held.enter_async_context(serve_process(installation, port))

        async def count_chats(_asked: Json) -> Json:
            headers = {"Authorization": f"Bearer {SERVER_TOKEN}"}
            async with ClientSession(url, headers=headers) as http, http.get(UNLISTED) as reply:
                page = msgspec.json.decode(await reply.read(), type=Json)
            return {"count": len(msgspec.convert(page["items"], list[Json]))}

        steps = {**model.all(), "kill": kill, "restart": restart, "chats": count_chats}
        arguments: Json = {"url": url, "token": SERVER_TOKEN}
        await run_scenario("openai.js", "killed", arguments, steps, within_s=120)
        await model.open({})
