"""The workspace agent as a program: put together, started, and stopped by a signal.

Owns the order of starting and stopping and what the agent shows of itself. One agent per run
directory: the journals in it have one writer.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import os
import secrets
import signal
import sys
import time
from contextlib import suppress
from typing import NoReturn

from chatd.agent.answering import Desk, Request, Route
from chatd.agent.auth import Gate
from chatd.agent.config import BadConfig, Config, load
from chatd.agent.context_places import Places
from chatd.agent.environment import Surroundings
from chatd.agent.fence import Fence
from chatd.agent.finished import Finished
from chatd.agent.git_paths import PathStore
from chatd.agent.git_run import Git
from chatd.agent.http import Server, say
from chatd.agent.once import Once
from chatd.agent.processes import Processes
from chatd.agent.reaping import leave_init_behind
from chatd.agent.replies import Reply, json_reply
from chatd.agent.routes_context import ContextRoutes
from chatd.agent.routes_files import FileRoutes, Threads
from chatd.agent.routes_git import GitRoutes
from chatd.agent.routes_processes import ProcessRoutes
from chatd.agent.watching import SystemClock, Watcher

VERSION = "1"
LOCK_S = 5.0
CLOSE_S = 15.0
_PR_SET_DUMPABLE = 4
_BASE_NAMES = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "USER", "LOGNAME", "SHELL", "TMPDIR")


class CannotStart(Exception):
    """Somebody else must see to it first."""


class Agent:
    """Everything that lives as long as the program. Built inside the loop."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._boot_id = secrets.token_hex(16)
        self._started_at = int(time.time())
        self._threads = Threads()
        self._once = Once(config.run_dir)
        self._fence = fence = Fence(config.run_dir)
        touched = PathStore()
        around = surroundings(config)
        self._processes = Processes(
            around,
            once=self._once,
            finished=Finished(config.run_dir),
            on_end=lambda chats, workdir: touched.add(chats, [workdir]),
        )
        self._git = GitRoutes(touched, Git(base=around.environment({}, None)))
        files = FileRoutes(
            home=config.home,
            threads=self._threads,
            once=self._once,
            fence=fence,
            touched=touched.add,
        )
        self._watcher = Watcher(
            Places(home=config.home, directory=config.directory),
            threads=self._threads,
            clock=SystemClock(),
        )
        self._tasks: list[asyncio.Task[None]] = []
        gate = Gate(
            key=config.dial_key, agent_id=config.agent_id, boot_id=self._boot_id, now=time.time
        )
        routes = [
            Route("GET", "/healthz", self._health, any_boot=True),
            *files.routes(),
            *ProcessRoutes(self._processes, fence).routes(),
            *ContextRoutes(self._watcher).routes(),
            *self._git.routes(),
        ]
        self._server = Server(Desk(gate, routes))

    async def listen(self) -> None:
        """Others of this machine cannot open the socket; a port is for whoever has the key."""
        config = self._config
        self._tasks.append(asyncio.ensure_future(self._watcher.run()))
        if config.socket:
            os.makedirs(os.path.dirname(config.socket), mode=0o700, exist_ok=True)
            before = os.umask(0o177)
            try:
                await self._server.listen_unix(config.socket)
            finally:
                os.umask(before)
            return
        port = await self._server.listen_tcp(config.host, config.port)
        _note_port(os.path.join(config.run_dir, "port"), port)

    async def close(self) -> None:
        await self._server.close()
        with suppress(OSError):
            if self._config.socket:
                os.unlink(self._config.socket)
        for task in self._tasks:
            task.cancel()
        await self._processes.close()
        await self._once.close()
        self._fence.close()
        self._threads.close()
        self._git.close()

    async def _health(self, request: Request) -> Reply:
        request.query().done()
        return json_reply(
            {
                "agent_id": self._config.agent_id,
                "boot_id": self._boot_id,
                "version": VERSION,
                "started_at": self._started_at,
                "ready": True,
                "directory": self._config.directory,
            }
        )


def _note_port(path: str, port: int) -> None:
    """Whole or not at all: whoever has asked for any port waits for this file."""
    with open(f"{path}.new", "w", encoding="ascii") as file:
        file.write(str(port))
    os.replace(f"{path}.new", path)


def surroundings(config: Config) -> Surroundings:
    """Of the agent's own environment commands see what is the same for every program."""
    base = {name: os.environ[name] for name in _BASE_NAMES if name in os.environ}
    base.setdefault("PATH", os.defpath)
    return Surroundings(
        home=config.home, directory=config.directory, base=base, template=config.env
    )


async def run(config: Config) -> None:
    """Until SIGTERM or SIGINT. A second one does not wait for anything."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    agent = Agent(config)
    await agent.listen()
    say(f"agent {config.agent_id} listens")
    await stopped.wait()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_DFL)
    closing = asyncio.ensure_future(agent.close())
    await asyncio.wait({closing}, timeout=CLOSE_S)
    say("agent stopped" if closing.done() else "agent stopped, not all of it in time")


def lock(run_dir: str, within_s: float = LOCK_S) -> int:
    """Held until the process ends. Waits a little for one that is just leaving."""
    os.makedirs(run_dir, mode=0o700, exist_ok=True)
    fd = os.open(os.path.join(run_dir, "agent.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until = time.monotonic() + within_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                os.close(fd)
                raise CannotStart("another agent runs in this run directory") from None
            time.sleep(0.05)
        else:
            return fd


def main() -> NoReturn:
    """Ends the process itself: a thread that hangs on a dead disk must not keep it alive."""
    leave_init_behind()
    code = 0
    try:
        config = load(sys.argv[1:])
        _keep_memory_private()
        lock(config.run_dir)
        asyncio.run(run(config))
    except (BadConfig, CannotStart, OSError) as error:
        say(f"the agent cannot start: {error}")
        code = 1
    os._exit(code)


def _keep_memory_private() -> None:
    """Commands run under the same account; they shall not read the key from our memory."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
