"""Processes that use one embedded database, for tests: start them, ask them, kill them."""

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

from chatd.pg.config import Config
from chatd.pg.places import Layout, choose_socket_dir
from chatd.pg.pulse import Pulse, feel
from chatd.pg.waiting import Patience
from tests.pg.user_process import Orders

ANSWER_S = 30.0
NOBODY = 65534
AS_ROOT = os.geteuid() == 0
ENV = {"PATH": os.defpath}
QUICK: Mapping[str, str] = {"fsync": "off", "shared_buffers": "16MB", "max_connections": "20"}


class Said(msgspec.Struct, frozen=True):
    word: str
    text: str


class User:
    """One user process, the leader of its own process group."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def says(self) -> Said:
        assert self._process.stdout is not None
        async with asyncio.timeout(ANSWER_S):
            line = (await self._process.stdout.readline()).decode()
        word, _, text = line.partition(" ")
        return Said(word, msgspec.json.decode(text, type=str)) if word else Said("ended", "")

    async def dsn(self) -> str:
        said = await self.says()
        assert said.word == "ready", said
        return said.text

    async def failure(self) -> str:
        said = await self.says()
        assert said.word == "failed", said
        await self.end()
        return said.text

    async def ensure(self) -> Said:
        assert self._process.stdin is not None
        self._process.stdin.write(b"ensure\n")
        return await self.says()

    async def leave(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert await self.says() == Said("left", "")
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
        async with asyncio.timeout(ANSWER_S):
            await self._process.wait()


class Place:
    """One data directory and everybody who uses it in one test."""

    def __init__(self, data_dir: Path, bin_dir: Path | None = None) -> None:
        self.data_dir = data_dir
        self.bin_dir = bin_dir
        self.ready_within_s = ANSWER_S
        self.users: list[User] = []

    @property
    def layout(self) -> Layout:
        owner = self.data_dir.stat().st_uid if self.data_dir.exists() else os.geteuid()
        socket_dir = choose_socket_dir(self.data_dir, owner=owner)
        return Layout(data_dir=self.data_dir, socket_dir=socket_dir)

    def config(self, **settings: str) -> Config:
        wishes = {**QUICK, **settings}
        return Config(
            data_dir=self.data_dir,
            bin_dir=self.bin_dir,
            settings=wishes,
            ready_within_s=self.ready_within_s,
        )

    async def user(self, config: Config | None = None, *, uid: int | None = None) -> User:
        orders = Orders(config=config or self.config(), env=ENV, uid=uid)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.pg.user_process",
            msgspec.json.encode(orders, enc_hook=str).decode(),
            cwd=Path(__file__).parents[2],
            env={"PYTHONPATH": os.pathsep.join(sys.path)},  # The same code as the test.
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        user = User(process)
        self.users.append(user)
        return user

    def postmaster(self) -> int:
        return int((self.layout.cluster / "postmaster.pid").read_text().splitlines()[0])

    async def is_up(self) -> bool:
        return await feel(self.layout.socket, within_s=ANSWER_S) is Pulse.ALIVE

    async def kill_postmaster(self) -> None:
        os.kill(self.postmaster(), signal.SIGKILL)
        await until(self.is_dead)

    async def is_dead(self) -> bool:
        return await feel(self.layout.socket, within_s=ANSWER_S) is Pulse.DEAD

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
    patience = Patience(ANSWER_S)
    while not await condition():
        assert await patience.again(), f"{condition} has not come true"


class Session(Protocol):
    async def fetchval(self, query: str) -> object: ...
    async def close(self) -> None: ...
    def terminate(self) -> None: ...


class Connect(Protocol):
    async def __call__(self, dsn: str, *, timeout: float) -> Session: ...


_connect = cast(
    "Connect",
    asyncpg.connect,  # pyright: ignore[reportUnknownMemberType]
)


async def fetch(dsn: str, query: str) -> object:
    """The one value that the query returns, over a connection of its own."""
    connection = await _connect(dsn, timeout=ANSWER_S)
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


@contextlib.asynccontextmanager
async def a_backend(dsn: str) -> AsyncGenerator[int]:
    """The process id of a server process that stays until it is killed."""
    connection = await _connect(dsn, timeout=ANSWER_S)
    try:
        pid = await connection.fetchval("SELECT pg_backend_pid()")
        assert isinstance(pid, int)
        yield pid
    finally:
        connection.terminate()
