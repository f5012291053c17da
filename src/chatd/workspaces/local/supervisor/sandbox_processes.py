"""Starts processes through `enter`, finds and kills processes of a workspace, waits for their exit,
and keeps their output.

A pid can be reused; together with its start time it identifies one process. Standard library only.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import AsyncGenerator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from chatd.workspaces.local.supervisor.plan import ProcessPlan, encode_json

SOURCES: Final = Path(__file__).parents[4]
ENTER_MODULE: Final = "chatd.workspaces.local.enter"
# The server's environment must not reach a sandbox.
MODULE_ENVIRONMENT: Final = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONPATH": str(SOURCES),
}
_START_TIME_FIELD: Final = 19
"""Index of the start time among the fields that follow the name in /proc/PID/stat."""


@dataclass(frozen=True)
class ProcessId:
    pid: int
    started: int

    def __str__(self) -> str:
        return f"{self.pid} {self.started}"

    @classmethod
    def parse(cls, text: str) -> "ProcessId | None":
        try:
            pid, started = map(int, text.split())
        except ValueError:
            return None
        return cls(pid, started)


def read_process_id(pid: int) -> ProcessId | None:
    """None if there is no such process, or only a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # The name may contain blanks and brackets.
    if fields[0] in "ZX":
        return None
    return ProcessId(pid, int(fields[_START_TIME_FIELD]))


def is_alive(process: ProcessId) -> bool:
    return read_process_id(process.pid) == process


def kill(process: ProcessId) -> None:
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(process.pid)
        try:
            if is_alive(process):  # Checked after opening: the descriptor cannot change its target.
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        finally:
            os.close(descriptor)


def send_signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def children_of(pid: int) -> list[int]:
    """The children of all threads. Empty if the kernel does not list them."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def processes_of_uid(uid: int) -> set[int]:
    return {pid for pid in _all_pids() if _owner(pid) == uid and read_process_id(pid)}


def processes_of_workspaces(workspaces: AbstractSet[str]) -> set[int]:
    """Processes with the id of one of these workspaces in their environment.

    Misses a process that removed the variable: without a namespace and its own account there is no
    better way.
    """
    variables = {f"CHATD_WORKSPACE_ID={name}".encode() for name in workspaces}
    return {
        pid
        for pid in _all_pids()
        if not variables.isdisjoint(_environment(pid)) and read_process_id(pid)
    }


def _all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _owner(pid: int) -> int | None:
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return None


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def module_command(module: str) -> list[str]:
    """Run a module of chatd that needs no installed package."""
    return [sys.executable, "-S", "-P", "-B", "-m", module]


def spawn(plan: ProcessPlan, output: int) -> "subprocess.Popen[bytes]":
    """Start a process with its output to the descriptor `output`.

    Call it in the main thread: the process dies with the thread that started it. The plan is passed
    in anonymous memory, because it may contain keys.
    """
    plan_fd = os.memfd_create("plan")
    try:
        with os.fdopen(os.dup(plan_fd), "wb") as file:
            fields = encode_json(replace(plan, parent=os.getpid()))
            file.write(json.dumps(fields).encode())
        os.lseek(plan_fd, 0, os.SEEK_SET)
        return subprocess.Popen(
            module_command(ENTER_MODULE),
            stdin=plan_fd,
            stdout=output,
            stderr=output,
            cwd="/",
            env=MODULE_ENVIRONMENT,
            start_new_session=True,
            close_fds=True,
        )
    finally:
        os.close(plan_fd)


def kill_sandbox_init(process: "subprocess.Popen[bytes]") -> None:
    """Kill the first process inside, not the one that waits for it outside.

    Once the outer process has exited too, no process is left in the sandbox.
    """
    if process.poll() is None:
        for pid in children_of(process.pid) or [process.pid]:
            send_signal(pid, signal.SIGKILL)


def kill_group(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            process.kill()


async def wait_event(event: asyncio.Event, timeout_s: float) -> bool:
    """Whether the event was set before the timeout."""
    if event.is_set() or timeout_s <= 0:
        return event.is_set()
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return event.is_set()
    return True


@contextlib.asynccontextmanager
async def exit_event(pid: int, wake: asyncio.Event) -> AsyncGenerator[asyncio.Event]:
    """An event for the exit of a process, which also sets `wake`. Does not reap the process."""
    loop = asyncio.get_running_loop()
    exited = asyncio.Event()
    descriptor = os.pidfd_open(pid)

    def on_exit() -> None:
        loop.remove_reader(descriptor)  # It stays readable and would call this again.
        exited.set()
        wake.set()

    loop.add_reader(descriptor, on_exit)
    try:
        yield exited
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


# The output of a sandbox's first process, written to a log file of bounded size.
#
# The process gets a pipe and never the file: another process of its account could open the file
# through /proc and fill the disk.

MAX_SANDBOX_LOG_BYTES: Final = 256 * 1024
READ_BYTES: Final = 64 * 1024
TAIL_BYTES: Final = 4096


class LogPipe:
    """At most two files: the current one, and the previous one with the suffix `.1`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._readers: set[int] = set()
        self._tail: deque[int] = deque(maxlen=TAIL_BYTES)

    def open_pipe(self) -> int:
        """A descriptor to write to. The caller closes its copy after starting the process."""
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        asyncio.get_running_loop().add_reader(reader, self._read, reader)
        self._readers.add(reader)
        return writer

    def tail(self) -> str:
        return bytes(self._tail).decode(errors="replace")

    def close(self) -> None:
        for reader in tuple(self._readers):
            self._read(reader)
            self._close_reader(reader)

    def _read(self, reader: int) -> None:
        try:
            data = os.read(reader, READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._close_reader(reader)
            return
        self._tail.extend(data[-TAIL_BYTES:])
        with contextlib.suppress(OSError):  # A full disk must not end the supervisor.
            self._write(data)

    def _write(self, data: bytes) -> None:
        with self._path.open("ab") as file:
            file.write(data)
            size = file.tell()
        if size > MAX_SANDBOX_LOG_BYTES:
            self._path.replace(self._path.with_name(f"{self._path.name}.1"))

    def _close_reader(self, reader: int) -> None:
        if reader in self._readers:
            self._readers.discard(reader)
            asyncio.get_running_loop().remove_reader(reader)
            os.close(reader)
