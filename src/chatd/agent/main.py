"""The workspace agent as a program: put together, started, and stopped by a signal.

Owns the order of starting and stopping and what the agent shows of itself. One agent per run
directory: the journals in it have one writer.

Being the first process: who is left without a parent must be buried by somebody.

Where the agent is the first process of a container, orphans become its children. It cannot bury
whatever child comes up without taking exit codes that others in it wait for; so it leaves a
second process behind that does nothing else. Elsewhere the first process is somebody else's.
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

from chatd.agent.config import AgentConfig, ConfigError, load_config
from chatd.agent.context.sources import ContextSources
from chatd.agent.context.watcher import ContextRoutes, ContextWatcher, SystemClock
from chatd.agent.epochs import EpochFence
from chatd.agent.files.routes import FileRoutes, WorkerThreads
from chatd.agent.git.command import GitCommand
from chatd.agent.git.routes import GitRoutes
from chatd.agent.git.touched_paths import TouchedPaths
from chatd.agent.idempotency import IdempotencyJournal
from chatd.agent.processes.command import SavedResults
from chatd.agent.processes.environment import CommandEnvironment
from chatd.agent.processes.routes import ProcessRoutes
from chatd.agent.processes.table import ProcessTable
from chatd.agent.server.auth import RequestVerifier
from chatd.agent.server.dispatcher import AgentRoute, AgentRouteRequest, Dispatcher
from chatd.agent.server.http_messages import AgentHttpReply, json_reply
from chatd.agent.server.server import AgentHttpServer, log_line

_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def fork_init() -> None:
    """Call it first, before any thread, secret or loop. Returns in the process to go on with."""
    # Whoever started us may have ignored it, and then exit codes are lost.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if os.getpid() != 1:
        return
    # Nothing may come between the fork and the handlers, or a signal would be lost.
    signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
    agent = os.fork()
    if agent == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
        return
    _close_inherited()
    for number in _FORWARDED:
        signal.signal(number, lambda number, _frame: _forward(agent, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
    os._exit(_bury_until(agent))


def _close_inherited() -> None:
    """What the agent was handed, such as its configuration, is not for others to find here."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if int(name) > 2:
                os.close(int(name))


def _forward(agent: int, number: int) -> None:
    # If it has just ended, so do we.
    with suppress(ProcessLookupError):
        os.kill(agent, number)


def _bury_until(agent: int) -> int:
    """The agent's exit code, as a shell would tell it."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == agent:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


VERSION = "1"
LOCK_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 15.0
_PR_SET_DUMPABLE = 4
_BASE_NAMES = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "USER", "LOGNAME", "SHELL", "TMPDIR")


class AgentStartError(Exception):
    """Somebody else must see to it first."""


class AgentProcess:
    """Everything that lives as long as the program. Built inside the loop."""

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self._boot_id = secrets.token_hex(16)
        self._started_at = int(time.time())
        self._threads = WorkerThreads()
        self._once = IdempotencyJournal(config.run_dir)
        self._fence = fence = EpochFence(config.run_dir)
        touched = TouchedPaths()
        around = command_environment(config)
        self._processes = ProcessTable(
            around,
            journal=self._once,
            saved_results=SavedResults(config.run_dir),
            on_end=lambda chats, workdir: touched.add(chats, [workdir]),
        )
        self._git = GitRoutes(touched, GitCommand(base=around.build_variables({}, None)))
        files = FileRoutes(
            home=config.home,
            threads=self._threads,
            once=self._once,
            fence=fence,
            touched=touched.add,
        )
        self._watcher = ContextWatcher(
            ContextSources(home=config.home, directory=config.directory),
            threads=self._threads,
            clock=SystemClock(),
        )
        self._tasks: list[asyncio.Task[None]] = []
        gate = RequestVerifier(
            key=config.dial_key, agent_id=config.agent_id, boot_id=self._boot_id, now=time.time
        )
        routes = [
            AgentRoute("GET", "/healthz", self._health, any_boot=True),
            *files.routes(),
            *ProcessRoutes(self._processes, fence).routes(),
            *ContextRoutes(self._watcher).routes(),
            *self._git.routes(),
        ]
        self._server = AgentHttpServer(Dispatcher(gate, routes))

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

    async def _health(self, request: AgentRouteRequest) -> AgentHttpReply:
        request.query().reject_unknown()
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


def command_environment(config: AgentConfig) -> CommandEnvironment:
    """Of the agent's own environment commands see what is the same for every program."""
    base = {name: os.environ[name] for name in _BASE_NAMES if name in os.environ}
    base.setdefault("PATH", os.defpath)
    return CommandEnvironment(
        home=config.home, directory=config.directory, base=base, template=config.env
    )


async def run(config: AgentConfig) -> None:
    """Until SIGTERM or SIGINT. A second one does not wait for anything."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    agent = AgentProcess(config)
    await agent.listen()
    log_line(f"agent {config.agent_id} listens")
    await stopped.wait()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_DFL)
    closing = asyncio.ensure_future(agent.close())
    await asyncio.wait({closing}, timeout=CLOSE_TIMEOUT_S)
    log_line("agent stopped" if closing.done() else "agent stopped, not all of it in time")


def lock_run_dir(run_dir: str, timeout_s: float = LOCK_TIMEOUT_S) -> int:
    """Held until the process ends. Waits a little for one that is just leaving."""
    os.makedirs(run_dir, mode=0o700, exist_ok=True)
    fd = os.open(os.path.join(run_dir, "agent.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                os.close(fd)
                raise AgentStartError("another agent runs in this run directory") from None
            time.sleep(0.05)
        else:
            return fd


def main() -> NoReturn:
    """Ends the process itself: a thread that hangs on a dead disk must not keep it alive."""
    fork_init()
    code = 0
    try:
        config = load_config(sys.argv[1:])
        _keep_memory_private()
        lock_run_dir(config.run_dir)
        asyncio.run(run(config))
    except (ConfigError, AgentStartError, OSError) as error:
        log_line(f"the agent cannot start: {error}")
        code = 1
    os._exit(code)


def _keep_memory_private() -> None:
    """Commands run under the same account; they shall not read the key from our memory."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
