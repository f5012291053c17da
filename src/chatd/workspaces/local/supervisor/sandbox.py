"""One sandbox: start it, restart it when it exits, stop it. Standard library only.

Owns the outer process of the sandbox and its control groups. When that process exits, the whole
sandbox has ended; it is started again, with a growing delay while it keeps exiting soon after the
start.
"""

import asyncio
import contextlib
import os
import signal
import stat
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from chatd.workspaces.local.supervisor import cgroups
from chatd.workspaces.local.supervisor.plan import SandboxOrder
from chatd.workspaces.local.supervisor.sandbox_processes import (
    LogPipe,
    children_of,
    exit_event,
    kill_group,
    processes_of_uid,
    processes_of_workspaces,
    read_process_id,
    send_signal,
    spawn,
    wait_event,
)

FIRST_RESTART_DELAY_S: Final = 0.05
MAX_RESTART_DELAY_S: Final = 30.0
SANDBOX_STABLE_AFTER_S: Final = 60.0
"""A sandbox that ran this long restarts without backoff."""
STOP_GRACE_S: Final = 2.0
ENTER_TIMEOUT_S: Final = 10.0
SANDBOX_KILL_TIMEOUT_S: Final = 10.0
EXIT_POLL_S: Final = 0.01


@dataclass
class SandboxState:
    phase: str = "starting"
    starts: int = 0
    pid: int = 0
    exit_code: int | None = None
    detail: str = ""
    controllers: list[str] = field(default_factory=list[str])


class Sandbox:
    def __init__(
        self, order: SandboxOrder, *, processes_dir: Path, log_event: Callable[[str], None]
    ) -> None:
        self.order = order
        self.state = SandboxState()
        self.stopping = asyncio.Event()
        self.stopped = asyncio.Event()
        self._wake = asyncio.Event()
        self.log = LogPipe(Path(order.log))
        self._process_file = processes_dir / order.workspace
        self._log_event = log_event
        self._groups = cgroups.CgroupSet()
        self._limits = cgroups.GroupLimits(order.memory_bytes, order.processes, order.cpu_weight)

    async def run(self) -> None:
        """Run until stopped. Only this task starts processes of the workspace."""
        fast_exits = 0
        try:
            self._groups = cgroups.create(self.order.workspace, self._limits)
            self.state.controllers = sorted(self._groups.controllers)
            while not self.stopping.is_set():
                lifetime_s = await self._run_once()
                fast_exits = 0 if lifetime_s > SANDBOX_STABLE_AFTER_S else fast_exits + 1
                if not self.stopping.is_set():
                    self.state.phase = "restarting"
                    await wait_event(self.stopping, restart_delay_s(fast_exits))
        finally:
            self.state.phase = "stopped"
            cgroups.remove(self._groups)
            self.log.close()
            with contextlib.suppress(OSError):  # A lost disk must not end the other sandboxes.
                self._process_file.unlink()
            self.stopped.set()

    async def wait_ready(self, timeout_s: float) -> bool:
        """Whether the agent's socket appeared before the timeout and before repeated exits."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while loop.time() < deadline and not self.stopped.is_set():
            if self.state.phase == "running" and _is_socket(self.order.socket):
                return True
            if self.state.exit_code is not None and self.state.starts > 2:
                return False
            await wait_event(self.stopped, EXIT_POLL_S)
        return False

    async def stop(self) -> None:
        self.stopping.set()
        self._wake.set()
        await self.stopped.wait()

    def kill_processes(self, reason: str) -> None:
        """Kill all processes, if any, including the agent, which is then restarted."""
        self.state.detail = reason
        self._log_event(f"workspace {self.order.workspace}: {reason}")
        if self.state.pid:  # Pid 0 would signal our own process group.
            for pid in self._first_inside(self.state.pid) or [self.state.pid]:
                send_signal(pid, signal.SIGKILL)

    async def _run_once(self) -> float:
        """Start the sandbox and wait for its end. Returns its lifetime in seconds."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        with contextlib.suppress(OSError):  # The workspace may have put a directory there.
            os.unlink(self.order.socket)
        process = None
        try:
            process = self._spawn()
            self.state.pid, self.state.phase = process.pid, "running"
            await self._wait_end(process)
        except OSError as error:  # Out of memory or descriptors: a later start may succeed.
            self._log_event(f"workspace {self.order.workspace} cannot be started: {error}")
        finally:
            if process is not None:
                await self._reap(process)
            self.state.pid = 0  # The kernel may reuse the pid from now on.
        self.state.exit_code = -1 if process is None else process.returncode
        return loop.time() - began

    def _spawn(self) -> "subprocess.Popen[bytes]":
        plan = cgroups.join(self.order.plan, self._groups, self._limits)
        output = self.log.open_pipe()
        try:
            process = spawn(plan, output)
        finally:
            os.close(output)
        self.state.starts += 1
        with contextlib.suppress(OSError):  # Disk full: the kernel still kills it with us.
            self._process_file.write_text(str(read_process_id(process.pid) or ""))
        return process

    async def _wait_end(self, process: "subprocess.Popen[bytes]") -> None:
        """Wait until the process exits or `stop` is called, and no process is left inside."""
        async with exit_event(process.pid, self._wake) as end, contextlib.AsyncExitStack() as stack:
            init_exited = await self._watch_init(process, stack)
            await self._wake.wait()
            if not end.is_set():
                await self._terminate(process, end)
            # The outer process does not wait for the init process inside, which exits last.
            await wait_event(init_exited, SANDBOX_KILL_TIMEOUT_S)
        if not self.stopping.is_set():
            self._wake.clear()

    async def _watch_init(
        self, process: "subprocess.Popen[bytes]", stack: contextlib.AsyncExitStack
    ) -> asyncio.Event:
        """An event for the exit of the first process in the namespace."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + ENTER_TIMEOUT_S
        while self.order.namespaced and loop.time() < deadline:
            for pid in children_of(process.pid):
                with contextlib.suppress(ProcessLookupError):
                    return await stack.enter_async_context(exit_event(pid, asyncio.Event()))
            if await wait_event(self._wake, EXIT_POLL_S):
                break
        exited = asyncio.Event()
        exited.set()
        return exited

    async def _terminate(self, process: "subprocess.Popen[bytes]", end: asyncio.Event) -> None:
        """Send SIGTERM to the agent, then kill the init process of the namespace.

        When the outer process exits after that, no process is left inside. Without a namespace the
        process is the agent itself.
        """
        inits = self._first_inside(process.pid)
        agents = [child for init in inits for child in children_of(init)]
        if not self.order.namespaced:
            agents = [process.pid]
        for pid in agents:
            send_signal(pid, signal.SIGTERM)
        if await wait_event(end, STOP_GRACE_S if inits or agents else 0):
            return
        for pid in inits:
            send_signal(pid, signal.SIGKILL)
        if not inits or not await wait_event(end, SANDBOX_KILL_TIMEOUT_S):
            kill_group(process)
            await wait_event(end, SANDBOX_KILL_TIMEOUT_S)

    def _first_inside(self, pid: int) -> list[int]:
        """The init process of the namespace that the outer process has made, if there is one: the
        children of an agent without a namespace are its commands."""
        return children_of(pid) if self.order.namespaced else []

    async def _reap(self, process: "subprocess.Popen[bytes]") -> None:
        """Kill what is left: without a process namespace, others may outlive the first process."""
        kill_group(process)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SANDBOX_KILL_TIMEOUT_S
        while loop.time() < deadline:
            strays = self._find_strays()
            if process.poll() is not None and not strays:
                return
            for pid in strays:
                send_signal(pid, signal.SIGKILL)
            await wait_event(self.stopped, EXIT_POLL_S)
        self._log_event(f"workspace {self.order.workspace}: some processes do not exit")

    def _find_strays(self) -> set[int]:
        found = set(cgroups.list_pids(self._groups))
        if not self.order.namespaced:
            uid, name = self.order.plan.uid, self.order.workspace
            found |= processes_of_uid(uid) if uid is not None else processes_of_workspaces({name})
        return found


def restart_delay_s(fast_exits: int) -> float:
    """The delay after this many exits in a row, each soon after its start."""
    if not fast_exits:
        return 0
    # The exponent is bounded: exits may go on for days.
    return min(FIRST_RESTART_DELAY_S * 2 ** min(fast_exits - 1, 30), MAX_RESTART_DELAY_S)


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except OSError:
        return False
