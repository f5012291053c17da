"""A server that is killed under `chatd chat`: the terminal reconnects and shows the answer once."""

import shutil
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process, create_subprocess_exec
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.chaos.servers import TOKEN, Installation
from tests.support.providers.openai_chat import DONE, FakeCompatible, chunk
from tests.support.providers.server import Gate
from tests.support.tmux import tmux_terminal

pytestmark = [
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed"),
    # Real processes, on a machine that may be busy.
    pytest.mark.timeout(150),
]

CHATD = str(Path(sys.executable).with_name("chatd"))
BEGINNING, REST = "The lamp was lit ", "before the storm came."


@asynccontextmanager
async def server(installation: Installation, port: int) -> AsyncGenerator[Process]:
    env = {**installation.env, "CHATD_WORKSPACES_ENABLED": "false", "CHATD_CHATS_TITLES": "false"}
    process = await create_subprocess_exec(
        CHATD, "serve", "--port", str(port), env=env, stdin=DEVNULL, stdout=PIPE
    )
    try:
        assert process.stdout is not None
        async for line in process.stdout:
            if b"Ctrl-C stops" in line:
                break
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


@pytest.mark.promise("P6")
async def test_an_answer_goes_on_in_the_terminal_when_the_server_is_killed(
    dsn: str, tmp_path: Path
) -> None:
    """Slow: starts two servers in sequence, and the terminal."""
    gate, port = Gate(), free_port()
    env = {
        "HOME": str(tmp_path),
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "CHATD_URL": f"http://127.0.0.1:{port}",
        "CHATD_TOKEN": TOKEN,
    }
    async with FakeCompatible.running() as vendor, tmux_terminal(tmp_path, env) as terminal:
        installation = Installation(dsn=dsn, model_url=vendor.url, data_dir=tmp_path / "data")
        vendor.script(chunk(role="assistant", content=BEGINNING), gate)
        vendor.script(chunk(role="assistant", content=BEGINNING + REST), chunk(finish="stop"), DONE)
        async with server(installation, port) as first:
            await terminal.type_command(CHATD, "chat")
            await terminal.until_shown("What should it do?")
            await terminal.write("tell me of the lamp")
            await terminal.press("Enter")
            await terminal.until_shown(BEGINNING.strip())
            first.kill()
            await first.wait()
            await terminal.until_shown("Not connected")
        async with server(installation, port):
            await terminal.press("F5")
            shown = await terminal.until_shown(REST)
            assert shown.count(BEGINNING.strip()) == 1
            await terminal.until_shown("Waiting for you")
            await terminal.press("C-d")
            shown = await terminal.until_shown("code=0")
            assert "  chatd chat " in shown
    gate.open()
