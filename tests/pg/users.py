"""Processes that use one embedded database, started and stopped by tests."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Protocol, cast

import asyncpg
import msgspec

from chatd.pg.config import ClusterLayout, EmbeddedConfig, choose_socket_dir
from chatd.pg.directories import RealTimeBackoff
from chatd.pg.postmaster import ServerState, probe_server
from tests.pg.user_process import UserOptions

REPLY_TIMEOUT_S = 30.0
NOBODY = 65534
AS_ROOT = os.geteuid() == 0
ENV = {"PATH": os.defpath}
QUICK: Mapping[str, str] = {"fsync": "off", "shared_buffers": "16MB", "max_connections": "20"}


class UserReply(msgspec.Struct, frozen=True):
    kind: str
    text: str


class UserProcess:
    """One user process, the leader of its own process group."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def read_reply(self) -> UserReply:
        assert self._process.stdout is not None
        async with asyncio.timeout(REPLY_TIMEOUT_S):
            line = (await self._process.stdout.readline()).decode()
        kind, _, text = line.partition(" ")
        return (
            UserReply(kind, msgspec.json.decode(text, type=str)) if kind else UserReply("ended", "")
        )

    async def dsn(self) -> str:
        reply = await self.read_reply()
        assert reply.kind == "ready", reply
        return reply.text

    async def failure(self) -> str:
        reply = await self.read_reply()
        assert reply.kind == "failed", reply
        await self.end()
        return reply.text

    async def ensure_running(self) -> UserReply:
        assert self._process.stdin is not None
        self._process.stdin.write(b"ensure\n")
        return await self.read_reply()

    async def leave(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert await self.read_reply() == UserReply("left", "")
        await self.end()

    def interrupt_group(self) -> None:
        os.killpg(self._process.pid, signal.SIGINT)

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self.end()

    async def end(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        async with asyncio.timeout(REPLY_TIMEOUT_S):
            await self._process.wait()


class PgInstance:
    """One data directory and the processes that use it in one test."""

    def __init__(self, data_dir: Path, bin_dir: Path | None = None) -> None:
        self.data_dir = data_dir
        self.bin_dir = bin_dir
        self.ready_timeout_s = REPLY_TIMEOUT_S
        self.users: list[UserProcess] = []

    @property
    def layout(self) -> ClusterLayout:
        owner = self.data_dir.stat().st_uid if self.data_dir.exists() else os.geteuid()
        socket_dir = choose_socket_dir(self.data_dir, owner=owner)
        return ClusterLayout(data_dir=self.data_dir, socket_dir=socket_dir)

    def config(self, **settings: str) -> EmbeddedConfig:
        return EmbeddedConfig(
            data_dir=self.data_dir,
            bin_dir=self.bin_dir,
            settings={**QUICK, **settings},
            ready_timeout_s=self.ready_timeout_s,
        )

    async def user(
        self, config: EmbeddedConfig | None = None, *, uid: int | None = None
    ) -> UserProcess:
        options = UserOptions(config=config or self.config(), env=ENV, uid=uid)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.pg.user_process",
            msgspec.json.encode(options, enc_hook=str).decode(),
            cwd=Path(__file__).parents[2],
            env={"PYTHONPATH": os.pathsep.join(sys.path)},  # The same code as the test.
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        user = UserProcess(process)
        self.users.append(user)
        return user

    def postmaster(self) -> int:
        return int((self.layout.cluster / "postmaster.pid").read_text().splitlines()[0])

    async def state(self) -> ServerState:
        return await probe_server(self.layout.socket, timeout_s=REPLY_TIMEOUT_S)

    async def is_up(self) -> bool:
        return await self.state() is ServerState.ALIVE

    async def kill_postmaster(self) -> None:
        os.kill(self.postmaster(), signal.SIGKILL)
        await until(self.is_dead)

    async def is_dead(self) -> bool:
        return await self.state() is ServerState.DEAD

    async def clean_up(self) -> None:
        for user in self.users:
            await user.kill()
        if self.data_dir.is_dir() and await self.is_up():
            os.kill(self.postmaster(), signal.SIGQUIT)
            await until(self.is_dead)
        if not self.layout.socket_dir.is_relative_to(self.data_dir):
            shutil.rmtree(self.layout.socket_dir, ignore_errors=True)


def copy_data_dir(source: Path, target: Path) -> None:
    subprocess.run(["cp", "-a", source, target], check=True)


async def until(condition: Callable[[], Coroutine[None, None, bool]]) -> None:
    backoff = RealTimeBackoff(REPLY_TIMEOUT_S)
    while not await condition():
        assert await backoff.wait(), f"{condition} is still false"


class UserSession(Protocol):
    async def fetchval(self, query: str) -> object: ...
    async def close(self) -> None: ...
    def terminate(self) -> None: ...


class UserConnect(Protocol):
    async def __call__(self, dsn: str, *, timeout: float) -> UserSession: ...


_connect = cast(
    "UserConnect",
    asyncpg.connect,  # pyright: ignore[reportUnknownMemberType]
)


async def fetch(dsn: str, query: str) -> object:
    """The single value that the query returns, on a new connection."""
    connection = await _connect(dsn, timeout=REPLY_TIMEOUT_S)
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


@contextlib.asynccontextmanager
async def open_backend(dsn: str) -> AsyncGenerator[int]:
    """The pid of a backend that runs until it is killed."""
    connection = await _connect(dsn, timeout=REPLY_TIMEOUT_S)
    try:
        pid = await connection.fetchval("SELECT pg_backend_pid()")
        assert isinstance(pid, int)
        yield pid
    finally:
        connection.terminate()
