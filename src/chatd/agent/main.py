"""The workspace agent as a program: configuration, composition, start, stop, and its role as PID 1.

One agent per run directory, because the journals in it have one writer.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import fcntl
import json
import os
import secrets
import signal
import stat
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

from chatd.agent.context.context_sources import ContextSources
from chatd.agent.context.context_watcher import ContextRoutes, ContextWatcher
from chatd.agent.context.mcp_servers import McpRoutes, WorkspaceServers
from chatd.agent.durable_files import open_log_file, write_atomic
from chatd.agent.effect_guards import EpochFence, IdempotencyJournal
from chatd.agent.errors import AgentError
from chatd.agent.files.file_routes import API_PREFIX, FileRoutes
from chatd.agent.git.git_command import GitCommand
from chatd.agent.git.git_repositories import TouchedPaths
from chatd.agent.git.git_routes import GitRoutes
from chatd.agent.processes.listening_ports import PortRoutes
from chatd.agent.processes.process_child import CommandEnvironment
from chatd.agent.processes.process_command import SavedResults
from chatd.agent.processes.process_table import ProcessRoutes, ProcessTable
from chatd.agent.processes.terminal_table import TerminalRoutes, TerminalTable
from chatd.agent.server.agent_server import AgentHttpServer, log_line
from chatd.agent.server.auth import RequestVerifier
from chatd.agent.server.dispatcher import AgentRoute, AgentRouteRequest, Dispatcher
from chatd.agent.server.http_messages import AgentHttpReply, json_reply, read_fields
from chatd.agent.server.network_forward import forward_port
from chatd.agent.threads import AgentSystemClock, WorkerThreads

# Imports inside functions are of parts that most workspaces never use: a fifth of an agent's start.
if TYPE_CHECKING:
    from chatd.agent.browser.browser_routes import BrowserRoutes
    from chatd.agent.desktop.desktop_routes import DesktopRoutes
    from chatd.agent.desktop.desktop_server import ScreenSize
    from chatd.agent.files.archive_routes import ArchiveRoutes

# The agent's configuration, read from a descriptor or a private file.
#
# Never from arguments or environment variables, which other processes can read.

MAX_CONFIG_BYTES = 256 * 1024
KEY_BYTES = 32


class AgentConfigError(Exception):
    """The agent cannot start with this configuration. The message contains no values of it."""


@dataclass(frozen=True)
class AgentConfig:
    """The agent listens on `socket`, on the descriptor `listen_fd` of a listening socket, or on
    `host` and `port`.

    Commands run in `directory` with the variables `env`. The agent's own files are in `run_dir`,
    except the journal of calls if `journal_fd` is the first of two descriptors for it. It forwards
    `network_port` of the loopback to the proxy behind `network_socket`. `desktop` is the size of
    the screen, None without a desktop; `browser` says whether there is a browser.
    """

    agent_id: str
    dial_key: bytes = field(repr=False)
    run_dir: str
    home: str
    directory: str
    env: dict[str, str] = field(repr=False)
    journal_fd: int = 0
    socket: str = ""
    listen_fd: int = 0
    host: str = ""
    port: int = 0
    network_socket: str = ""
    network_port: int = 0
    desktop: ScreenSize | None = None
    browser: bool = False


def load_config(argv: Sequence[str]) -> AgentConfig:
    parser = argparse.ArgumentParser(prog="chatd-agent", description="chatd's workspace agent")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--config", help="file with mode 0600; deleted after it is read")
    source.add_argument("--config-fd", type=int, help="descriptor; read to its end and closed")
    options = parser.parse_args(argv)
    path: str | None = options.config
    fd: int | None = options.config_fd
    try:
        raw = _read_fd(fd) if fd is not None else _read_and_delete(path or "")
    except OSError as error:
        raise AgentConfigError(f"cannot read the configuration: {error.strerror}") from None
    return parse_config(raw)


def _read_fd(fd: int) -> bytes:
    with open(fd, "rb") as source:
        return source.read(MAX_CONFIG_BYTES + 1)


def _read_and_delete(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode) or info.st_mode & 0o077:
        os.close(fd)
        raise AgentConfigError("the configuration must be a file that only its owner can read")
    raw = _read_fd(fd)
    os.unlink(path)
    return raw


def parse_config(raw: bytes) -> AgentConfig:
    if len(raw) > MAX_CONFIG_BYTES:
        raise AgentConfigError(f"the configuration is larger than {MAX_CONFIG_BYTES} bytes")
    try:
        return _build(json.loads(raw))
    except (ValueError, RecursionError):
        raise AgentConfigError("the configuration is not JSON, or dial_key is not hex") from None
    except AgentError as error:
        raise AgentConfigError(f"the configuration is invalid: {error.message}") from None


def _build(value: object) -> AgentConfig:
    fields = read_fields(value, "the configuration")
    home = fields.text("home")
    config = AgentConfig(
        agent_id=fields.text("agent_id"),
        dial_key=bytes.fromhex(fields.text("dial_key")),
        run_dir=fields.text("run_dir"),
        home=home,
        directory=os.path.join(home, fields.text("directory", "")).rstrip("/") or "/",
        env=fields.text_map("env"),
        journal_fd=fields.count("journal_fd"),
        socket=fields.text("socket", ""),
        listen_fd=fields.count("listen_fd"),
        host=fields.text("host", ""),
        port=fields.count("port"),
        network_socket=fields.text("network_socket", ""),
        network_port=fields.count("network_port"),
        desktop=_read_screen(fields.count("desktop_width"), fields.count("desktop_height")),
        browser=fields.flag("browser"),
    )
    fields.reject_unknown()
    if len(config.dial_key) != KEY_BYTES:
        raise AgentError(400, f"dial_key must have {KEY_BYTES} bytes")
    if sum(map(bool, (config.socket, config.listen_fd, config.host))) != 1:
        raise AgentError(400, "exactly one of socket, listen_fd and host is required")
    for path in (config.run_dir, config.home, config.socket or "/"):
        if not os.path.isabs(path):
            raise AgentError(400, "run_dir, home and socket must be absolute paths")
    return config


def _read_screen(width: int, height: int) -> ScreenSize | None:
    if not width or not height:
        return None
    from chatd.agent.desktop.desktop_server import ScreenSize

    return ScreenSize(width, height)


VERSION = "2"
"""Version 2 asks a worker to prove that it owns its chat."""
LOCK_TIMEOUT_S = 5.0
REFUSALS_FILE = "refusals.json"
AUTHORITY_KEY_FILE = "ca.spki"
"""Next to the proxy's socket: the hash of the public key that signs certificates of hosts."""
MAX_REFUSALS_BYTES = 256 * 1024
SOCKET_CHECK_INTERVAL_S = 1.0
CLOSE_TIMEOUT_S = 15.0
_PR_SET_DUMPABLE = 4
_LOCALE_VARIABLES = ("LANG", "LC_ALL", "LC_CTYPE", "TZ")
_INHERITED_VARIABLES = ("PATH", *_LOCALE_VARIABLES, "USER", "LOGNAME", "SHELL", "TMPDIR")
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_FORWARDED_SIGNALS = (*_STOP_SIGNALS, signal.SIGHUP, signal.SIGQUIT)


class AgentStartError(Exception):
    """The agent cannot start now; the message says why."""


class AgentProcess:
    """All parts of the agent. Create it inside the event loop."""

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self._boot_id = secrets.token_hex(16)
        self._started_at = int(time.time())
        self._threads = WorkerThreads()
        self._journal = IdempotencyJournal(
            open_log_file(config.run_dir, "once.jsonl", config.journal_fd)
        )
        self._fence = EpochFence()
        touched = TouchedPaths()
        environment = command_environment(config)
        self._processes = ProcessTable(
            environment,
            journal=self._journal,
            saved_results=SavedResults(config.run_dir),
            on_end=lambda chats, workdir: touched.add(chats, [workdir]),
        )
        git = GitCommand(base=environment.build_variables({}, None))
        self._git = GitRoutes(touched, git, config.directory)
        files = FileRoutes(
            home=config.home,
            directory=config.directory,
            threads=self._threads,
            journal=self._journal,
            fence=self._fence,
            on_touched=touched.add,
            before_effect=self._git.before_effect,
        )
        self._environment = environment
        self._archives: ArchiveRoutes | None = None
        self._desktop: DesktopRoutes | None = None
        self._browser: BrowserRoutes | None = None
        self._terminals = TerminalTable(environment, self._threads, on_used=touched.add)
        self._watcher = ContextWatcher(
            ContextSources(home=config.home, directory=config.directory),
            threads=self._threads,
            clock=AgentSystemClock(),
        )
        self._mcp_servers = WorkspaceServers(
            environment, AgentSystemClock(), self._watcher.on_servers_changed
        )
        self._watcher.servers = self._mcp_servers
        self._tasks: list[asyncio.Task[None]] = []
        verifier = RequestVerifier(
            key=config.dial_key, agent_id=config.agent_id, boot_id=self._boot_id, now=time.time
        )
        routes = [
            AgentRoute("GET", "/healthz", self._health, any_boot=True),
            AgentRoute("GET", f"{API_PREFIX}/network/refusals", self._read_refusals),
            *files.routes(),
            *ProcessRoutes(self._processes, self._fence, self._git.before_effect).routes(),
            *ContextRoutes(self._watcher).routes(),
            *self._git.routes(),
            *TerminalRoutes(self._terminals).routes(),
            *PortRoutes(self._threads, hidden={config.network_port}).routes(),
            *McpRoutes(self._mcp_servers, self._journal, self._fence).routes(),
        ]
        if config.desktop is not None:
            routes += self._desktop_routes()
        if config.browser:
            routes += self._browser_routes()
        later = {
            f"{API_PREFIX}/files/archive": self._archive_routes,
            f"{API_PREFIX}/files/unpack": self._archive_routes,
            **({f"{API_PREFIX}/desktop": self._desktop_routes} if self._desktop is None else {}),
            **({f"{API_PREFIX}/browser": self._browser_routes} if self._browser is None else {}),
        }
        self._server = AgentHttpServer(Dispatcher(verifier, routes, later))

    def _archive_routes(self) -> list[AgentRoute]:
        if self._archives is not None:
            return []
        from chatd.agent.files.archive_routes import ArchiveRoutes

        config = self._config
        self._archives = ArchiveRoutes(
            home=config.home, directory=config.directory, threads=self._threads
        )
        return self._archives.routes()

    def _desktop_routes(self) -> list[AgentRoute]:
        from chatd.agent.desktop.desktop_routes import DesktopRoutes
        from chatd.agent.desktop.desktop_server import DesktopPlace, DesktopServer

        server, screen = None, self._config.desktop
        if screen is not None:
            place = DesktopPlace.of(self._config.run_dir)
            server = DesktopServer(screen, place, self._environment)
        self._desktop = DesktopRoutes(server, self._journal, self._fence)
        return self._desktop.routes()

    def _browser_routes(self) -> list[AgentRoute]:
        from chatd.agent.browser.browser_routes import BrowserRoutes
        from chatd.agent.browser.browser_server import BrowserServer

        server, config = None, self._config
        if config.browser:
            trusted = os.path.join(os.path.dirname(config.network_socket), AUTHORITY_KEY_FILE)
            server = BrowserServer(
                config.home, config.run_dir, self._environment, trusted_keys=trusted
            )
        self._browser = BrowserRoutes(server, self._journal, self._fence)
        return self._browser.routes()

    async def listen(self) -> None:
        """Begin to accept requests. Only the agent's own account can open a socket; every account
        can open a TCP port, but every request needs the key."""
        config = self._config
        self._tasks.append(asyncio.ensure_future(self._watcher.run()))
        self._tasks.append(asyncio.ensure_future(self._terminals.run()))
        if config.network_socket:
            self._tasks.append(asyncio.ensure_future(self._keep_forwarding()))
        if config.socket:
            os.makedirs(os.path.dirname(config.socket), mode=0o700, exist_ok=True)
            await self._listen_unix(config.socket)
            self._tasks.append(asyncio.ensure_future(self._keep_socket(config.socket)))
            return
        if config.listen_fd:
            await self._server.listen_fd(config.listen_fd)
            return
        port = await self._server.listen_tcp(config.host, config.port)
        # The process that configured port 0 waits for this file.
        write_atomic(
            os.path.join(config.run_dir, "port"), str(port).encode(), sync=False, mode=0o666
        )

    async def _read_refusals(self, request: AgentRouteRequest) -> AgentHttpReply:
        """The proxy's refusals, as it wrote them next to its socket."""
        request.query().reject_unknown()
        path = os.path.join(os.path.dirname(self._config.network_socket), REFUSALS_FILE)

        def read() -> bytes:
            with suppress(OSError), open(path, "rb") as file:
                return file.read(MAX_REFUSALS_BYTES)
            return b"[]"

        return AgentHttpReply(200, await self._threads.run(read), "application/json")

    async def _keep_forwarding(self) -> None:
        """Retry: a command that an earlier agent started may still have the port."""
        config = self._config
        while True:
            try:
                server = await forward_port(config.network_socket, config.network_port)
                await server.serve_forever()
            except OSError as error:
                log_line(f"the port of the proxy cannot be opened: {error}")
            await asyncio.sleep(SOCKET_CHECK_INTERVAL_S)

    async def _listen_unix(self, path: str) -> None:
        umask = os.umask(0o177)
        try:
            await self._server.listen_unix(path)
        finally:
            os.umask(umask)

    async def _keep_socket(self, path: str) -> None:
        """Listen again if the socket is gone: commands run under the agent's account and can remove
        it, even by accident. Only a stop and a start would make the workspace reachable again."""
        directory = os.path.dirname(path)
        while True:
            await asyncio.sleep(SOCKET_CHECK_INTERVAL_S)
            if self._server.has_socket(path):
                continue
            try:
                os.chmod(directory, 0o700)
                for name in (path, os.path.join(directory, "new")):
                    with suppress(FileNotFoundError):
                        os.rename(name, os.path.join(directory, f"moved-{secrets.token_hex(4)}"))
                await self._listen_unix(path)
                log_line("the socket was gone: it has been made again")
            except OSError as error:
                log_line(f"the socket is gone and cannot be made again: {error}")

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await self._server.close()
        with suppress(OSError):
            if self._config.socket:
                os.unlink(self._config.socket)
        if self._archives is not None:
            self._archives.close()
        await self._terminals.close()
        for part in (self._desktop, self._browser):
            if part is not None:
                await part.close()
        await self._mcp_servers.close()
        await self._processes.close()
        await self._journal.close()
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


def command_environment(config: AgentConfig) -> CommandEnvironment:
    """Commands inherit only the variables that are the same for every program."""
    base = {name: os.environ[name] for name in _INHERITED_VARIABLES if name in os.environ}
    base.setdefault("PATH", os.defpath)
    if config.desktop is not None:
        from chatd.agent.desktop.desktop_server import DesktopPlace

        base.update(DesktopPlace.of(config.run_dir).variables())
    return CommandEnvironment(
        home=config.home, directory=config.directory, base=base, template=config.env
    )


async def run(config: AgentConfig) -> None:
    """Run until SIGTERM or SIGINT. A second signal ends the process at once."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, stopped.set)
    agent = AgentProcess(config)
    await agent.listen()
    log_line(f"agent {config.agent_id} listens")
    await stopped.wait()
    for number in _STOP_SIGNALS:
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_DFL)
    closing = asyncio.ensure_future(agent.close())
    await asyncio.wait({closing}, timeout=CLOSE_TIMEOUT_S)
    log_line("agent stopped" if closing.done() else "agent stopped before all parts were closed")


def lock_run_dir(run_dir: str, timeout_s: float = LOCK_TIMEOUT_S) -> int:
    """Lock the run directory until the process ends; wait for an agent that is just stopping."""
    os.makedirs(run_dir, mode=0o700, exist_ok=True)
    fd = os.open(os.path.join(run_dir, "agent.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(fd)
                raise AgentStartError("another agent runs in this run directory") from None
            time.sleep(0.05)
        else:
            return fd


def main() -> NoReturn:
    """Run the agent and exit without waiting for threads, which a dead disk may block forever."""
    fork_init()
    code = 0
    try:
        config = load_config(sys.argv[1:])
        _forbid_memory_access()
        lock_run_dir(config.run_dir)
        asyncio.run(run(config))
    except (AgentConfigError, AgentStartError, OSError) as error:
        log_line(f"the agent cannot start: {error}")
        code = 1
    os._exit(code)


def _forbid_memory_access() -> None:
    """Commands run under the agent's account; they must neither read the key from its memory nor
    write through its descriptors, such as that of its log."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def fork_init() -> None:
    """As PID 1, reap orphaned processes in a separate parent process, so that the agent's own
    `waitpid` calls keep their exit codes. Returns in the process that becomes the agent.

    Call it before any thread, secret or event loop exists.
    """
    # A parent may have set SIGCHLD to be ignored; exit codes would then be lost.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if os.getpid() != 1:
        return
    # Blocked from the fork until the handlers are set, or a signal would be lost.
    signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED_SIGNALS)
    agent = os.fork()
    if agent == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED_SIGNALS)
        return
    _close_inherited()
    _forbid_memory_access()
    for number in _FORWARDED_SIGNALS:
        signal.signal(number, lambda number, _frame: _forward(agent, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED_SIGNALS)
    os._exit(_reap_until_exit(agent))


def _close_inherited() -> None:
    """Close the descriptors meant for the agent, such as those of its configuration and its log."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if int(name) > 2:
                os.close(int(name))
    null = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(null, standard)
    os.close(null)


def _forward(agent: int, number: int) -> None:
    with suppress(ProcessLookupError):  # the agent has just exited
        os.kill(agent, number)


def _reap_until_exit(agent: int) -> int:
    """The agent's exit code, as a shell reports it."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == agent:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
