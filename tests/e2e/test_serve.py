"""`chatd serve` as a process, and the roof under a clock of our own."""

import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import ClientSession, StreamReader

from chatd import app
from chatd.settings.tree import Server, Settings
from chatd.store import migrate
from tests.support.clock import FakeClock
from tests.support.database import scratch_space

CHATD = Path(sys.executable).with_name("chatd")
LAST_LINE = "Ctrl-C stops."


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """As root the database runs as another account, which pytest's directories shut out."""
    path = Path(tempfile.mkdtemp(prefix="chatd-e2e-", dir=scratch_space()))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@asynccontextmanager
async def chatd(*arguments: object) -> AsyncGenerator[Process]:
    env = {"HOME": "/nonexistent", "PATH": "/usr/bin:/bin"}
    process = await asyncio.create_subprocess_exec(
        CHATD, *map(str, arguments), env=env, stdout=PIPE, stderr=PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def said(*arguments: object) -> tuple[int | None, str]:
    async with asyncio.timeout(40), chatd(*arguments) as process:
        out, err = await process.communicate()
        return process.returncode, (out + err).decode()


def pid_file(data_dir: Path) -> Path:
    return data_dir / "pg" / "cluster" / "postmaster.pid"


async def lines_until(process: Process, last: str) -> list[str]:
    assert process.stdout is not None
    lines: list[str] = []
    while not lines or lines[-1] != last:
        line = await process.stdout.readline()
        assert line, f"it ended after {lines}: {(await process.communicate())[1].decode()}"
        lines.append(line.decode().removesuffix("\n"))
    return lines


async def test_serve_makes_a_database_and_leaves_nothing_running(data_dir: Path) -> None:
    """Takes seconds: it makes a cluster and starts the server twice."""
    told: list[str] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        async with (
            asyncio.timeout(50),
            chatd("serve", "--port", "0", "--data-dir", data_dir) as process,
        ):
            told += (await lines_until(process, LAST_LINE))[1:3]
            process.send_signal(number)
            out, err = await process.communicate()
            assert (process.returncode, out, err) == (0, b"Stopped.\n", b"")
    count = len(migrate.load(migrate.packaged()))
    applied = "1 migration applied" if count == 1 else f"{count} migrations applied"
    assert told == [
        f"  data      {data_dir}",
        f"  database  embedded PostgreSQL, {applied}",
        f"  data      {data_dir}",
        "  database  embedded PostgreSQL, up to date",
    ]
    assert not pid_file(data_dir).exists()


@pytest.mark.promise("P16")
async def test_a_fresh_server_answers_a_message_with_the_demo_model(data_dir: Path) -> None:
    """No key, no database, nothing set up. Takes seconds: it makes a cluster."""
    command = ("serve", "--port", "0", "--data-dir", data_dir)
    async with asyncio.timeout(50), chatd(*command) as process:
        lines = await lines_until(process, LAST_LINE)
        url = next(line.split()[1] for line in lines if "/api/v1" in line).rstrip(",")
        token = (data_dir / "admin-token").read_text().strip()
        async with ClientSession(headers={"Authorization": f"Bearer {token}"}) as client:
            wish = {"content": [{"type": "text", "text": "fast: hello"}]}
            async with client.post(f"{url}/chats", json=wish) as created:
                assert created.status == 201
                chat: dict[str, str] = await created.json()
            async with client.get(f"{url}/chats/{chat['id']}/events") as stream:
                answered = [line async for line in answer_in(stream.content)]
        assert answered[-1]["role"] == "assistant"
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


async def answer_in(stream: StreamReader) -> AsyncGenerator[dict[str, str]]:
    """Messages, until the chat rests."""
    async for line in stream:
        if not line.startswith(b"data: "):
            continue
        event: dict[str, dict[str, str]] = json.loads(line.removeprefix(b"data: "))
        if "message" in event:
            yield event["message"]
            if event["message"]["role"] == "assistant":
                return


async def test_migrate_says_what_is_pending_and_does_it_once(empty_dsn: str) -> None:
    at = ("--data-dir", "/nonexistent", "--database-url", empty_dsn)
    files = [migration.file for migration in migrate.load(migrate.packaged())]
    pending = "".join(f"pending {file}\n" for file in files)
    assert await said("migrate", "check", *at) == (3, pending)
    applied = "".join(f"applied {file}\n" for file in files)
    assert await said("migrate", "up", *at) == (0, applied)
    assert await said("migrate", "up", *at) == (0, "up to date\n")
    assert await said("migrate", "check", *at) == (0, "up to date\n")
    code, status = await said("migrate", "status", *at)
    assert code == 0
    assert [line.split()[:2] for line in status.splitlines()] == [
        [file[:4], "applied"] for file in files
    ]


async def test_a_signal_while_starting_breaks_off_without_a_traceback() -> None:
    connected = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        await reader.read(-1)
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    url = f"postgresql://ada@{host}:{port}/chatd?sslmode=disable"
    command = ("serve", "--port", "0", "--data-dir", "/nonexistent", "--database-url", url)
    async with server, asyncio.timeout(40), chatd(*command) as process:
        await connected.wait()
        process.send_signal(signal.SIGTERM)
        out, err = await process.communicate()
        assert (process.returncode, out, err) == (130, b"", b"")


async def test_a_database_that_was_killed_is_brought_back(data_dir: Path) -> None:
    """Takes seconds: PostgreSQL itself refuses to start for a while after a kill."""
    clock, stop, ready = FakeClock(), asyncio.Event(), asyncio.Event()
    settings = Settings(data_dir=data_dir, server=Server(port=0))
    async with asyncio.timeout(50), asyncio.TaskGroup() as group:
        group.create_task(
            app.serve(
                settings, {}, clock=clock, stop=stop, told=app.Told(ready=lambda _: ready.set())
            )
        )
        await ready.wait()
        await clock.asleep_on("database_watch")
        pid, _, _, port, socket_dir, *_ = pid_file(data_dir).read_text().splitlines()
        os.kill(int(pid), signal.SIGKILL)
        await clock.pass_over("database_watch")
        await clock.asleep_on("database_watch", within_s=40)
        dsn = f"postgresql://chatd@/chatd?host={socket_dir}&port={port}"
        assert not (await migrate.check(dsn)).behind
        stop.set()
    assert not pid_file(data_dir).exists()
