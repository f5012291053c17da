"""`chatd serve` as a process, and `app/process.serve` in this process."""

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import ClientSession, StreamReader
from msgspec.structs import replace
from typer.testing import CliRunner

from chatd.app import process
from chatd.app.composition import LifecycleCallbacks, ReadyInfo
from chatd.cli.main import app as command_line
from chatd.clock import SystemClock
from chatd.settings.schema import (
    ChatSettings,
    DatabaseSettings,
    LimitSettings,
    ModelEntry,
    PriceEntry,
    ServerSettings,
    Settings,
    WorkspaceSettings,
)
from chatd.store.database import migrator
from chatd.store.database.migration_files import load_migrations, packaged_migrations
from tests.support.clock import FakeClock
from tests.support.eventually import eventually
from tests.unit.test_deploy import all_queries

# Real processes, on a machine that may be busy. Each test has its own, shorter timeout.
pytestmark = pytest.mark.timeout(150)

CHATD = Path(sys.executable).with_name("chatd")
LAST_LINE = "Ctrl-C stops."
TOKEN = "a-token-of-the-tests"
STOPPED = b"Stopping: no chat is running, so this takes a few seconds.\nStopped.\n"


@asynccontextmanager
async def chatd(*arguments: object, **more: str) -> AsyncGenerator[Process]:
    env = {"HOME": "/nonexistent", "PATH": "/usr/bin:/bin", **more}
    process = await asyncio.create_subprocess_exec(
        CHATD, *map(str, arguments), env=env, stdout=PIPE, stderr=PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


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


async def address(process: Process) -> str:
    """The URL of the API, once the server listens."""
    lines = await lines_until(process, LAST_LINE)
    return api_of(lines).removesuffix("/api/v1")


def data_and_database_lines(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith(("  data", "  database"))]


async def stopped(process: Process, number: signal.Signals) -> tuple[int | None, bytes]:
    """Its exit code and last output. Nothing above INFO may be logged, except that the tests'
    database is not crash-safe and that hosts have a token and a key file each."""
    process.send_signal(number)
    out, err = await process.communicate()
    expected = (b" INFO ", b"database_unsafe", b"admin_token_of_this_host", b"secret_key_missing")
    others = [line for line in err.splitlines() if not any(text in line for text in expected)]
    assert others == []
    return process.returncode, out


@pytest.mark.usefixtures("real_start")
@pytest.mark.promise("P16")
async def test_a_fresh_server_answers_with_the_demo_model_and_leaves_no_process(
    data_dir: Path,
) -> None:
    """No key, no database, no set-up. Slow: creates a cluster and starts twice."""
    command = ("serve", "--port", "0", "--data-dir", data_dir)
    async with asyncio.timeout(100), chatd(*command) as process:
        first = await lines_until(process, LAST_LINE)
        url = next(line.split()[1] for line in first if "/api/v1" in line).removesuffix("/api/v1,")
        token = (data_dir / "admin-token").read_text().strip()
        async with client_of(url, token) as client:
            assert await is_answered(client, await create_chat(client, "answer fast"))
        assert await stopped(process, signal.SIGTERM) == (0, STOPPED)
    files = len(load_migrations(packaged_migrations()))
    applied = "1 migration" if files == 1 else f"{files} migrations"
    assert data_and_database_lines(first) == [
        f"  data      {data_dir}",
        f"  database  embedded PostgreSQL, {applied} applied",
    ]
    assert not pid_file(data_dir).exists()
    async with asyncio.timeout(100), chatd(*command) as process:
        again = await lines_until(process, LAST_LINE)
        assert await stopped(process, signal.SIGINT) == (0, STOPPED)
    assert data_and_database_lines(again)[1] == "  database  embedded PostgreSQL, up to date"
    assert not pid_file(data_dir).exists()


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
async def test_the_printed_commands_start_a_chat_and_follow_it(dsn: str, tmp_path: Path) -> None:
    directory = tmp_path / "a directory"
    at = ("--port", "0", "--data-dir", directory, "--database-url", dsn)
    async with (
        asyncio.timeout(100),
        chatd("serve", *at, CHATD_WORKSPACES_ENABLED="false") as process,
    ):
        lines = await lines_until(process, LAST_LINE)
        assert lines[0].endswith(f", process {process.pid}")
        first = next(n for n, line in enumerate(lines) if line.startswith("  CHATD="))
        assert lines[first].startswith(f"  CHATD={api_of(lines)} TOKEN=")
        commands = "\n".join(lines[first:-1])
        shell = await asyncio.create_subprocess_exec(
            "sh", "-c", commands, stdout=PIPE, stderr=PIPE, start_new_session=True
        )
        assert shell.stdout is not None
        await until_event(shell.stdout, b"Hello! You are talking to **chatd**")
        os.killpg(shell.pid, signal.SIGKILL)
        await shell.communicate()


def api_of(lines: list[str]) -> str:
    return next(line.split()[1].rstrip(",") for line in lines if line.startswith("  API  "))


async def test_a_port_in_use_is_reported_before_anything_starts(tmp_path: Path) -> None:
    """A server that had started would have acquired chats and abandoned them."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        at = ("--port", port, "--data-dir", tmp_path / "data")
        async with asyncio.timeout(100), chatd("serve", *at) as process:
            out, err = await process.communicate()
    assert (process.returncode, out) == (1, b"")
    assert f"cannot listen on 127.0.0.1, port {port}: Address already in use" in err.decode()
    assert not (tmp_path / "data" / "pg").exists()


async def test_a_stopped_server_reports_the_workspaces_that_keep_running(
    dsn: str, data_dir: Path
) -> None:
    """Slow: creates a workspace."""
    at = ("--port", "0", "--data-dir", data_dir, "--database-url", dsn)
    unsafe = {"CHATD_WORKSPACES_ALLOW_UNSAFE": "true"}
    async with asyncio.timeout(100), chatd("serve", *at, **unsafe) as process:
        url = await address(process)
        async with client_of(url, (data_dir / "admin-token").read_text().strip()) as client:
            await create_workspace(client)
        process.send_signal(signal.SIGTERM)
        out, err = await process.communicate()
    command = f"kill $(cat {data_dir}/ws-supervisor/lock)"
    ending = await asyncio.create_subprocess_shell(command)
    assert await ending.wait() == 0

    async def ended() -> bool:
        return (data_dir / "ws-supervisor" / "lock").read_text() == ""

    await eventually(ended)
    expected = "1 workspace keeps running for the next start; to stop it"
    assert out.decode().splitlines()[1:] == [f"Stopped. {expected}: {command}"], err


async def test_one_process_serves_and_another_runs_the_chats(dsn: str, tmp_path: Path) -> None:
    """Slow: starts two processes in sequence."""
    at = ("--port", "0", "--data-dir", tmp_path, "--database-url", dsn)
    async with asyncio.timeout(100), chatd("serve", "--no-worker", *at) as serving:
        url = await address(serving)
        token = (tmp_path / "admin-token").read_text().strip()
        async with client_of(url, token) as client:
            chat = await create_chat(client, "answer fast")
            assert await status_of(client, chat) == "pending"
            async with chatd("worker", *at, CHATD_WORKSPACES_ENABLED="false") as working:
                lines = await lines_until(working, LAST_LINE)
                health = next(line.split()[1] for line in lines if "health" in line).rstrip(",")
                assert await is_answered(client, chat)
                await assert_health_only(client, health.removesuffix("/healthz"))
                assert await stopped(working, signal.SIGTERM) == (0, STOPPED)
        assert await stopped(serving, signal.SIGTERM) == (0, STOPPED)


async def assert_health_only(client: ClientSession, url: str) -> None:
    for path, status in (("/healthz", 200), ("/readyz", 200), ("/metrics", 200), ("/api/v1", 404)):
        async with client.get(f"{url}{path}") as reply:
            assert reply.status == status, path
    async with client.get(f"{url}/metrics") as reply:
        shown = await reply.text()
    named = {line.split()[0] for line in shown.splitlines()}
    assert {
        "chatd_running_chats",
        'chatd_slots{kind="chats"}',
        "chatd_tick_age_seconds",
        "chatd_database_connections",
        "chatd_database_connections_limit",
        "chatd_database_waiting",
        'chatd_chats{state="pending"}',
        "chatd_oldest_pending_seconds",
    } <= named
    described = set(re.findall(r"^# TYPE (\w+) ", shown, re.MULTILINE))
    of_api = {"chatd_http_requests_total", "chatd_http_request_seconds", "chatd_streams"}
    queried = set(re.findall(r"\bchatd_\w+", " ".join(all_queries().values())))
    assert {re.sub("_(bucket|sum|count)$", "", name) for name in queried} <= described | of_api
    async with client.post(f"{url}/healthz") as reply:
        assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.promise("P5")
async def test_a_draining_server_keeps_its_port_open_and_refuses_new_work(
    dsn: str, tmp_path: Path
) -> None:
    stop = asyncio.Event()
    ready: asyncio.Future[ReadyInfo] = asyncio.get_running_loop().create_future()
    running: list[int] = []
    settings = plain_settings(dsn, tmp_path)
    callbacks = LifecycleCallbacks(ready=ready.set_result, stopping=running.append)
    env = {"CHATD_ADMIN_TOKEN": TOKEN}
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        serving = group.create_task(
            process.serve(settings, env, clock=SystemClock(), stop=stop, callbacks=callbacks)
        )
        url = (await ready).url or ""
        async with client_of(url, TOKEN) as client:
            chat = await create_chat(client, "tell me a long story")
            async with client.get(f"/api/v1/chats/{chat}/events") as stream:
                await until_event(stream.content, b"message_part")
                stop.set()
                await until_event(stream.content, b"going_away")
            assert running == [1]
            async with client.get("/readyz") as reply:
                assert (reply.status, await reply.json()) == (503, {"status": "draining"})
            async with client.get("/healthz") as reply:
                assert reply.status == 200
            for path in ("/chats", f"/chats/{chat}/messages"):
                async with client.post(f"/api/v1{path}", json=message_body("more")) as refused:
                    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
                    assert (await refused.json())["code"] == "going_away"
            async with client.get(f"/api/v1/chats/{chat}/events") as refused:
                assert (refused.status, (await refused.json())["code"]) == (503, "going_away")
            async with client.post(f"/api/v1/chats/{chat}/interrupt") as stopped_chat:
                assert stopped_chat.status == 200
            await serving
    assert serving.done()


@asynccontextmanager
async def limited_server(
    dsn: str, tmp_path: Path, limits: LimitSettings
) -> AsyncGenerator[ClientSession]:
    """A server with one dear model: a dollar for each token of an answer."""
    stop = asyncio.Event()
    ready: asyncio.Future[ReadyInfo] = asyncio.get_running_loop().create_future()
    dear = ModelEntry(
        name="dear", provider="demo", model="demo", prices=PriceEntry(input=1, output=10**6)
    )
    # With titles, the first title would reach the limit before the first answer does.
    settings = replace(
        plain_settings(dsn, tmp_path),
        limits=limits,
        models=(dear,),
        chats=ChatSettings(titles=False),
    )
    callbacks = LifecycleCallbacks(ready=ready.set_result)
    env = {"CHATD_ADMIN_TOKEN": TOKEN}
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(
            process.serve(settings, env, clock=SystemClock(), stop=stop, callbacks=callbacks)
        )
        async with client_of((await ready).url or "", TOKEN) as client:
            yield client
        stop.set()


async def until_status(client: ClientSession, chat_id: str, status: str) -> None:
    async def is_there() -> bool:
        return await status_of(client, chat_id) == status

    await eventually(is_there)


async def test_the_running_limit_of_the_settings_is_enforced(dsn: str, tmp_path: Path) -> None:
    async with limited_server(dsn, tmp_path, LimitSettings(running_per_user=1)) as client:
        first = await create_chat(client, "tell me a long story")
        await until_status(client, first, "running")
        second = await create_chat(client, "answer fast")
        assert await status_of(client, second) == "pending"
        async with client.post(f"/api/v1/chats/{first}/interrupt") as interrupted:
            assert interrupted.status == 200
        await until_status(client, second, "waiting")


async def test_the_spend_limit_of_the_settings_stops_an_answer_and_refuses_the_next(
    dsn: str, tmp_path: Path
) -> None:
    limits = LimitSettings(spend_micros=2_000_000, spend_period="day")
    async with limited_server(dsn, tmp_path, limits) as client:
        first = await create_chat(client, "tell me a long story")
        await until_status(client, first, "error")
        async with client.post("/api/v1/chats", json=message_body("answer fast")) as refused:
            assert refused.status == 409
            body = await refused.json()
        assert body["code"] == "usage_limit_exceeded"
        assert body["spent_micros"] >= body["limit_micros"] == 2_000_000


def plain_settings(dsn: str, data_dir: Path) -> Settings:
    """Without workspaces, which are slow to start and stop."""
    return Settings(
        data_dir=data_dir,
        server=ServerSettings(port=0),
        database=DatabaseSettings(url=dsn),
        workspaces=WorkspaceSettings(enabled=False),
    )


def client_of(url: str, token: str) -> ClientSession:
    return ClientSession(url, headers={"Authorization": f"Bearer {token}"})


def message_body(words: str) -> dict[str, object]:
    return {"content": [{"type": "text", "text": words}]}


async def create_chat(client: ClientSession, words: str) -> str:
    async with client.post("/api/v1/chats", json=message_body(words)) as created:
        assert created.status == 201
        chat: dict[str, str] = await created.json()
        return chat["id"]


async def create_workspace(client: ClientSession) -> None:
    new = {"template": "scratch", "name": "left"}
    async with client.post("/api/v1/workspaces", json=new) as made:
        workspace: dict[str, dict[str, str]] = await made.json()

    async def status() -> bool:
        async with client.get(f"/api/v1/builds/{workspace['latest_build']['id']}") as reply:
            build: dict[str, str] = await reply.json()
        assert build["status"] in {"pending", "running", "succeeded"}, build
        return build["status"] == "succeeded"

    await eventually(status, within_s=60)


async def status_of(client: ClientSession, chat: str) -> str:
    async with client.get(f"/api/v1/chats/{chat}") as reply:
        found: dict[str, str] = await reply.json()
        return found["status"]


async def is_answered(client: ClientSession, chat: str) -> bool:
    async with client.get(f"/api/v1/chats/{chat}/events") as stream:
        found = [message async for message in answer_in(stream.content)]
    return found[-1]["role"] == "assistant"


async def until_event(stream: StreamReader | asyncio.StreamReader, word: bytes) -> None:
    async for line in stream:
        if word in line:
            return
    raise AssertionError(f"the stream ended without {word!r}")


async def answer_in(stream: StreamReader) -> AsyncGenerator[dict[str, str]]:
    """Messages up to the first answer."""
    async for line in stream:
        if not line.startswith(b"data: "):
            continue
        event: dict[str, dict[str, str]] = json.loads(line.removeprefix(b"data: "))
        if "message" in event:
            yield event["message"]
            if event["message"]["role"] == "assistant":
                return


def test_migrate_lists_pending_migrations_and_applies_them_once(
    empty_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CHATD_TEST_DATABASE_URL", raising=False)

    def migrate(command: str) -> tuple[int, str]:
        at = ("--data-dir", "/nonexistent", "--database-url", empty_dsn)
        ran = CliRunner().invoke(command_line, ("migrate", command, *at))
        return ran.exit_code, ran.output

    files = [migration.file for migration in load_migrations(packaged_migrations())]
    assert migrate("check") == (3, "".join(f"pending {file}\n" for file in files))
    assert migrate("up") == (0, "".join(f"applied {file}\n" for file in files))
    assert migrate("up") == (0, "up to date\n")
    assert migrate("check") == (0, "up to date\n")
    code, status = migrate("status")
    assert code == 0
    assert [line.split()[:2] for line in status.splitlines()] == [
        [file[:4], "applied"] for file in files
    ]


@pytest.mark.usefixtures("real_start")
async def test_a_signal_during_the_start_exits_without_a_traceback() -> None:
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


async def test_a_killed_database_is_restarted(data_dir: Path) -> None:
    """Slow: PostgreSQL refuses to start for a while after a kill."""
    clock, stop, ready = FakeClock(), asyncio.Event(), asyncio.Event()
    settings = Settings(
        data_dir=data_dir,
        server=ServerSettings(port=0),
        workspaces=WorkspaceSettings(enabled=False),
    )
    async with asyncio.timeout(50), asyncio.TaskGroup() as group:
        group.create_task(
            process.serve(
                settings,
                {},
                clock=clock,
                stop=stop,
                callbacks=LifecycleCallbacks(ready=lambda _: ready.set()),
            )
        )
        await ready.wait()
        await clock.wait_for_sleeper("database_watch")
        pid, _, _, port, socket_dir, *_ = pid_file(data_dir).read_text().splitlines()
        os.kill(int(pid), signal.SIGKILL)
        await clock.advance_past("database_watch")
        await clock.wait_for_sleeper("database_watch", within_s=40)
        dsn = f"postgresql://chatd@/chatd?host={socket_dir}&port={port}"
        assert not (await migrator.check(dsn)).is_behind
        stop.set()
    assert not pid_file(data_dir).exists()
