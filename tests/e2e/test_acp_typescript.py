"""`chatd acp` as the protocol's package for TypeScript uses it: the scenarios of
`tests/official_clients`."""

import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import msgspec
import pytest
from aiohttp import ClientSession
from msgspec.structs import replace

from chatd.domain.ids import ChatId
from chatd.domain.prompt.instructions import plan_path
from chatd.settings.schema import Settings, WorkspaceSettings
from tests.support.chaos.servers import TOKEN as SERVER_TOKEN
from tests.support.chaos.servers import Installation
from tests.support.official_clients import Json, ModelSteps, Step, run_scenario
from tests.support.providers.openai_chat import DONE, FakeCompatible, chunk
from tests.support.terminal import TOKEN, TerminalServer, serve_terminal
from tests.terminal.test_killed_server import free_port
from tests.terminal.test_killed_server import server as serve_process

CHATD: Final = str(Path(sys.executable).with_name("chatd"))
BEGINNING, REST = "The lamp was lit ", "before the storm came."


def editor(url: str, token: str, tmp_path: Path, *options: str) -> Json:
    """What starts the agent: in a directory of its own, with an empty home."""
    directory = tmp_path / "shop"
    directory.mkdir()
    env = {
        "HOME": str(tmp_path),
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),  # noqa: TID251
        "CHATD_URL": url,
        "CHATD_TOKEN": token,
    }
    return {"command": [CHATD, "acp", *options], "cwd": str(directory), "env": env}


def with_scripted_model(settings: Settings) -> Settings:
    demo, scripted = settings.models
    return replace(
        settings,
        models=(replace(demo, default=False), replace(scripted, default=True)),
        workspaces=WorkspaceSettings(enabled=True),
    )


@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    ("scenario", "options"),
    [
        ("sessions", ("--remote",)),
        ("permissions", ("--remote",)),
        ("work", ("--no-sandbox", "--yes")),
    ],
)
async def test_the_typescript_package_finds_what_the_protocol_says(
    dsn: str, tmp_path: Path, scenario: str, options: tuple[str, ...]
) -> None:
    """Takes seconds: Node, the command, and for `work` a runner are started."""
    async with serve_terminal(dsn, tmp_path / "data", with_scripted_model) as server:
        steps = {**ModelSteps(server.vendor).all(), **_server_steps(server)}
        arguments = editor(server.address.url, TOKEN, tmp_path, *options)
        await run_scenario("acp.js", scenario, arguments, steps, within_s=100)


def _server_steps(server: TerminalServer) -> dict[str, Step]:
    async def chats() -> list[Json]:
        return msgspec.convert((await server.call("GET", "/chats"))["items"], list[Json])

    async def count_chats(_asked: Json) -> Json:
        return {"count": len(await chats())}

    async def ask_for_calls(_asked: Json) -> None:
        rules = [{"tool": "list_agents", "action": "ask"}]
        await server.call("PUT", "/settings/me/tool-policy", {"rules": rules})

    async def path_of_plan(_asked: Json) -> Json:
        (chat,) = await chats()
        return {"path": plan_path(msgspec.convert(chat["id"], ChatId))}

    return {"chats": count_chats, "rules": ask_for_calls, "plan_path": path_of_plan}


@pytest.mark.promise("P1", "P6", "P8")
@pytest.mark.timeout(150)
async def test_a_prompt_of_the_typescript_package_goes_on_after_the_server_was_killed(
    dsn: str, tmp_path: Path
) -> None:
    """Slow: starts two servers in sequence."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    async with FakeCompatible.running() as vendor, AsyncExitStack() as held:
        installation = Installation(dsn=dsn, model_url=vendor.url, data_dir=tmp_path / "data")
        model = ModelSteps(vendor)
        vendor.script(chunk(role="assistant", content=BEGINNING), model.hold())
        vendor.script(chunk(role="assistant", content=BEGINNING + REST), chunk(finish="stop"), DONE)
        first = await held.enter_async_context(serve_process(installation, port))

        async def kill(_asked: Json) -> None:
            first.kill()
            await first.wait()

        async def restart(_asked: Json) -> None:
            await held.enter_async_context(serve_process(installation, port))

        async def count_chats(_asked: Json) -> Json:
            headers = {"Authorization": f"Bearer {SERVER_TOKEN}"}
            opened = ClientSession(url, headers=headers)
            async with opened as http, http.get("/api/v1/chats") as reply:
                page = msgspec.json.decode(await reply.read(), type=Json)
            return {"count": len(msgspec.convert(page["items"], list[Json]))}

        steps = {**model.all(), "kill": kill, "restart": restart, "chats": count_chats}
        arguments: Json = {
            **editor(url, SERVER_TOKEN, tmp_path, "--remote"),
            "beginning": BEGINNING.strip(),
            "whole": BEGINNING + REST,
        }
        await run_scenario("acp.js", "killed", arguments, steps, within_s=120)
        await model.open({})
