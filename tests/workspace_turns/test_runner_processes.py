"""`chatd runner` beside `chatd serve`, as processes that are killed: a command of a workspace on
another machine runs once, and its result arrives."""

import asyncio
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from chatd.workspaces.local.local_backend import LocalConfig
from tests.support.eventually import eventually
from tests.support.local_rig import HOST, NO_BUBBLEWRAP, LocalRig, data_directory, shared_kits
from tests.workspace_turns.servers import (
    CHATD,
    WAIT_TIMEOUT_S,
    Json,
    ServerSite,
    WorkspaceServer,
    execute,
)

pytestmark = [
    pytest.mark.skipif(NO_BUBBLEWRAP, reason="bubblewrap is not installed"),
    pytest.mark.timeout(150),
]

LINES = 16
COUNT = f"for i in $(seq {LINES}); do echo line $i | tee -a lines; sleep 0.25; done"
COUNTED = "".join(f"line {number}\n" for number in range(1, LINES + 1))


class Front:
    """An address whose connections go to these servers in turn, as a load balancer's does."""

    def __init__(self) -> None:
        self.targets: list[str] = []
        self._turns = count()
        self.url = ""
        self._writers: set[asyncio.StreamWriter] = set()

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator["Front"]:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        try:
            yield self
        finally:
            server.close()
            self.cut()

    def cut(self) -> None:
        for writer in tuple(self._writers):
            writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            at = urlsplit(self.targets[next(self._turns) % len(self.targets)])
            there = await asyncio.open_connection(at.hostname, at.port)
            self._writers.add(there[1])
            async with asyncio.TaskGroup() as group:
                group.create_task(_pass(reader, there[1]))
                group.create_task(_pass(there[0], writer))
            self._writers.discard(there[1])
        except OSError:
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()


@asynccontextmanager
async def runner(url: str, token_file: Path, data_dir: Path) -> AsyncGenerator[Process]:
    """Connected. Killed at the end if it still runs."""
    at = ("--server", url, "--token-file", token_file, "--data-dir", data_dir, "--name", "laptop")
    process = await asyncio.create_subprocess_exec(
        CHATD,
        *map(str, ("runner", "start", *at)),
        env={"HOME": "/nonexistent", "PATH": os.defpath},
        stdin=DEVNULL,
        stdout=PIPE,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            while not (line := await process.stdout.readline()).startswith(b"connected"):
                assert line, "it ended before it was connected"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def prepare(server: WorkspaceServer, place: Path) -> tuple[Path, str]:
    """The file with a runner's token, and a template for its pool."""
    made = await server.ask("POST", "/runner-tokens", {"name": "laptop", "pool": "lab"})
    token_file = place / "token"
    token_file.write_text(made["token"])
    body = {"name": "lab", "backend": "sandbox", "spec": {"pool": "lab"}}
    return token_file, (await server.ask("POST", "/template-configs", body))["id"]


def has(path: Path, text: str) -> bool:
    return path.exists() and text in path.read_text()


async def holds(path: Path, text: str) -> None:
    async def look() -> bool:
        return has(path, text)

    await eventually(look, within_s=WAIT_TIMEOUT_S)


def told(results: list[Json]) -> None:
    said, file = results
    assert (said["success"], said["output"]) == (True, COUNTED)
    assert file["output"] == COUNTED


@pytest.mark.promise("P7")
async def test_a_command_on_a_runner_survives_the_death_of_runner_and_server_and_runs_once(
    site: ServerSite, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Takes seconds: servers and runners are started, and two commands run for a while."""
    async with AsyncExitStack() as stack:
        where = stack.enter_context(data_directory(shared_kits(tmp_path_factory)))
        stack.push_async_callback(LocalRig(LocalConfig(data_dir=where, host_id=HOST)).close)
        front = await stack.enter_async_context(Front().listening())
        victim = await stack.enter_async_context(site.server())
        front.targets = [victim.url]
        token_file, template = await prepare(victim, site.data_dir.parent)

        async with runner(front.url, token_file, where) as machine:
            create = ("create_workspace", {"template_id": template})
            chat = await victim.create("make", create)
            made = (await victim.wait_idle(chat))[0]
            lines = where / "ws" / made["workspace_id"] / "home" / "lines"
            await victim.send(chat, "count", execute(COUNT), execute("cat lines"))
            await holds(lines, "line 2\n")
            machine.send_signal(signal.SIGKILL)
            await machine.wait()
        async with runner(front.url, token_file, where):
            told((await victim.wait_idle(chat))[1:])

            await victim.send(
                chat, "again", execute("rm lines"), execute(COUNT), execute("cat lines")
            )
            await holds(lines, "line 2\n")
            heir = await stack.enter_async_context(site.server())
            # Connections to the dead one are refused.
            front.targets = [victim.url, heir.url]
            await victim.kill()
            told((await heir.wait_idle(chat))[4:])
