"""The supervisor program: owns the sandboxes of one data directory. Standard library only.

It is separate from the server, so that commands continue while the server is restarted, killed or
upgraded. One runs per data directory, under a lock that the kernel releases when it dies. Its
sandboxes die with it. A parent process restarts it at once, with the saved orders; the new
supervisor kills stray processes first. It exits when it is idle.
"""

import argparse
import asyncio
import contextlib
import fcntl
import os
import resource
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Final, NoReturn

from chatd.workspaces.local.supervisor import cgroups
from chatd.workspaces.local.supervisor.control import MAX_REQUEST_BYTES, ControlServer, SavedOrders
from chatd.workspaces.local.supervisor.sandbox_processes import (
    ProcessId,
    is_alive,
    kill,
    processes_of_workspaces,
    read_process_id,
    wait_event,
)

LOCK_FILE: Final = "lock"
SOCKET_FILE: Final = "socket"
LOG_FILE: Final = "supervisor.log"
PROCESSES_DIR: Final = "births"
MAX_SUPERVISOR_LOG_BYTES: Final = 1024 * 1024
IDLE_EXIT_AFTER_S: Final = 60.0
FIRST_REQUEST_TIMEOUT_S: Final = 10.0
STRAY_KILL_TIMEOUT_S: Final = 10.0
READY: Final = b"ready"
BUSY: Final = b"busy"

SERVICE_STABLE_AFTER_S: Final = 10.0
MAX_FAST_RESTARTS: Final = 5
FIRST_SERVICE_RESTART_DELAY_S: Final = 0.1
STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
WATCHED_SIGNALS: Final = (*STOP_SIGNALS, signal.SIGCHLD)


def main() -> None:
    parser = argparse.ArgumentParser(description="Own the sandboxes of one data directory.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--idle-s", type=float, default=IDLE_EXIT_AFTER_S)
    options = parser.parse_args()
    directory: Path = options.directory
    idle_s: float = options.idle_s
    reader, writer = os.pipe()
    if child := os.fork():
        os.close(writer)
        answer = os.read(reader, 16)
        os.waitpid(child, 0)  # Without an init process it would stay a zombie.
        sys.exit(0 if answer in (READY, BUSY) else 1)
    os.setsid()
    if os.fork():
        os._exit(0)
    os.close(reader)
    run_daemon(directory, idle_s, writer)


def run_daemon(directory: Path, idle_s: float, ready: int) -> None:
    """Run until stopped or idle. Writes READY or BUSY to the descriptor `ready`."""
    lock = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.write(ready, BUSY)
        return
    redirect_output(directory / LOG_FILE)
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    saved = SavedOrders()

    def run_service(ready: int | None) -> None:
        write_pid_note(lock, f"{os.getpid()}\n")
        with listen(directory) as listener:
            asyncio.run(Supervisor(directory, idle_s, saved).run(listener, ready))
        write_pid_note(lock, "")

    def should_restart(reason: str) -> bool:
        """Not if none ever became ready: the server waits for the first one and tries again."""
        write_pid_note(lock, "")
        log(f"supervisor {reason}")
        return saved.is_started

    run_with_restarts(run_service, ready, should_restart=should_restart)
    write_pid_note(lock, "")  # The last one may have been killed before it could.


def run_with_restarts(
    run_service: Callable[[int | None], None], ready: int, *, should_restart: Callable[[str], bool]
) -> None:
    """Run the service in a child process, and again whenever it crashes or is killed.

    The parent only waits, so little can end it. It keeps the lock, so that the server
    does not start another supervisor. The first child gets the descriptor `ready`. A child that
    exits with code 0, or after a stop signal, is not restarted.
    """
    for number in WATCHED_SIGNALS:
        signal.signal(number, signal.SIG_DFL)  # An inherited SIG_IGN would hide signals.
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED_SIGNALS)
    first_ready: int | None = ready
    fast_exits = 0
    while True:
        began = os.times().elapsed
        child = os.fork()
        if child == 0:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED_SIGNALS)
            _run_child(run_service, first_ready)
        if first_ready is not None:
            os.close(first_ready)
            first_ready = None
        code, stopped = _wait_exit(child)
        fast_exits = 0 if os.times().elapsed - began > SERVICE_STABLE_AFTER_S else fast_exits + 1
        stopped |= -code in STOP_SIGNALS  # A signal before the child had installed its handlers.
        if code == 0 or stopped or fast_exits > MAX_FAST_RESTARTS:
            return
        if not should_restart(f"ended with {code}"):
            return
        delay_s = FIRST_SERVICE_RESTART_DELAY_S * 2 ** (fast_exits - 1) if fast_exits > 1 else 0
        if signal.sigtimedwait(STOP_SIGNALS, delay_s):
            return


def _run_child(run_service: Callable[[int | None], None], ready: int | None) -> NoReturn:
    code = 1
    try:
        run_service(ready)
        code = 0
    except BaseException:  # noqa: BLE001 - the child must not return into the parent's code
        traceback.print_exc()
    finally:
        os._exit(code)


def _wait_exit(child: int) -> tuple[int, bool]:
    """The child's exit code, and whether a stop signal came; a stop signal is passed on."""
    stopped = False
    while True:
        number = signal.sigwait(WATCHED_SIGNALS)
        if number in STOP_SIGNALS:
            stopped = True
            os.kill(child, signal.SIGTERM)  # Not reaped yet, so the pid is still the child's.
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status), stopped


class Supervisor:
    def __init__(self, directory: Path, idle_s: float, saved: SavedOrders) -> None:
        self._processes_dir = directory / PROCESSES_DIR
        self._idle_s = idle_s
        self._saved = saved

    async def run(self, listener: socket.socket, ready: int | None) -> None:
        self._processes_dir.mkdir(mode=0o700, exist_ok=True)
        await self.kill_strays()
        async with asyncio.TaskGroup() as tasks:
            control = ControlServer(
                tasks, self._saved, processes_dir=self._processes_dir, log_event=log
            )
            loop = asyncio.get_running_loop()
            for number in STOP_SIGNALS:
                loop.add_signal_handler(number, control.closing.set)
            control.resume()  # Before the first request, which must see the resumed sandboxes.
            server = await asyncio.start_unix_server(
                control.serve, sock=listener, limit=MAX_REQUEST_BYTES
            )
            if ready is not None:
                os.write(ready, READY)
                os.close(ready)
            log(f"ready, process {os.getpid()}")
            await self._wait_idle(control)
            control.closing.set()  # From now on a start is refused: the server starts another.
            server.close()
            await control.close()
        log("ended")

    async def kill_strays(self) -> None:
        """Kill processes that a killed supervisor left.

        With namespaces the kernel has already killed nearly all; without them only this does.
        """
        loop = asyncio.get_running_loop()
        never = asyncio.Event()
        files = list(self._processes_dir.iterdir())
        deadline = loop.time() + STRAY_KILL_TIMEOUT_S
        while loop.time() < deadline and _kill_recorded(files):
            await wait_event(never, 0.01)
        for file in files:
            cgroups.remove(cgroups.find_existing(file.name))
            file.unlink(missing_ok=True)

    async def _wait_idle(self, control: ControlServer) -> None:
        loop = asyncio.get_running_loop()
        first_deadline = loop.time() + FIRST_REQUEST_TIMEOUT_S
        last_count = -1
        while not await wait_event(control.closing, self._idle_s):
            awaits_first = not control.request_count and loop.time() < first_deadline
            if control.is_idle and control.request_count == last_count and not awaits_first:
                return
            last_count = control.request_count


def _kill_recorded(files: Sequence[Path]) -> bool:
    """Kill the processes of the sandboxes with these files. True if there were any."""
    strays = processes_of_workspaces({file.name for file in files}) if files else set[int]()
    for file in files:
        recorded = ProcessId.parse(file.read_text())
        if recorded is not None and is_alive(recorded):
            strays.add(recorded.pid)
        strays.update(cgroups.list_pids(cgroups.find_existing(file.name)))
    for pid in strays:
        if (found := read_process_id(pid)) is not None:
            kill(found)
    return bool(strays)


@contextlib.contextmanager
def listen(directory: Path) -> Generator[socket.socket]:
    """Bind through the directory's descriptor: the path may be too long for a socket address."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    address = f"/proc/self/fd/{descriptor}/{SOCKET_FILE}"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(address)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(address)
        os.chmod(address, 0o600)
        listener.listen(128)
        listener.settimeout(0)
        try:
            yield listener
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(address)
            os.close(descriptor)


def write_pid_note(lock: int, text: str) -> None:
    """Note the running process in the lock file, for operators. A full disk is ignored."""
    with contextlib.suppress(OSError):
        os.truncate(lock, 0)
        os.pwrite(lock, text.encode(), 0)


def redirect_output(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > MAX_SUPERVISOR_LOG_BYTES:
            path.replace(path.with_name(f"{path.name}.1"))
    output = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.close(null)


def log(text: str) -> None:
    """Log it; a full disk must not end the supervisor."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    with contextlib.suppress(OSError):
        os.write(2, f"{now} {text}\n".encode())
