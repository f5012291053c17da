"""One workspace that is kept running: started, watched, restarted, stopped. Standard library only.

Owns the process at the door of the sandbox and its control groups. When that process ends, all of
the sandbox has ended; it is started again, later each time it dies young. Knows nothing of who asks
(`control`) and nothing of what runs inside.
"""

import asyncio
import contextlib
import os
import signal
import stat
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from chatd.workspaces.local import cgroups, living
from chatd.workspaces.local.bounded_log import BoundedLog
from chatd.workspaces.local.plan import Order
from chatd.workspaces.local.spawning import kill_group, spawn
from chatd.workspaces.local.waiting import ended, pause

FIRST_BACKOFF_S: Final = 0.05
MAX_BACKOFF_S: Final = 30.0
GROWN_UP_S: Final = 60.0
"""Whoever lived that long died for a reason of its own: the next start does not wait."""
GRACE_S: Final = 2.0
ENTER_S: Final = 10.0
KILL_S: Final = 10.0
LOOK_S: Final = 0.01


@dataclass
class Status:
    state: str = "starting"
    starts: int = 0
    pid: int = 0
    exit_code: int | None = None
    detail: str = ""


class Sandbox:
    def __init__(self, order: Order, *, births: Path, say: Callable[[str], None]) -> None:
        self.order = order
        self.status = Status()
        self.stopping = asyncio.Event()
        self.stopped = asyncio.Event()
        self._wake = asyncio.Event()
        self.log = BoundedLog(Path(order.log))
        self._birth_file = births / order.workspace
        self._say = say
        self._groups = cgroups.Groups()

    async def keep(self) -> None:
        """Until it is stopped. The one task that starts processes of this workspace."""
        young = 0
        try:
            self._groups = cgroups.make(
                self.order.workspace,
                memory_bytes=self.order.memory_bytes,
                processes=self.order.processes,
            )
            while not self.stopping.is_set():
                lived_s = await self._live_once()
                young = 0 if lived_s > GROWN_UP_S else young + 1
                if not self.stopping.is_set():
                    self.status.state = "restarting"
                    await pause(self.stopping, backoff_s(young))
        finally:
            self.status.state = "stopped"
            cgroups.remove(self._groups)
            self.log.close()
            with contextlib.suppress(OSError):  # A disk that is gone must not end the others.
                self._birth_file.unlink()
            self.stopped.set()

    async def started(self, within_s: float) -> bool:
        """Whether the agent's socket came to be. False says it died, or is late."""
        loop = asyncio.get_running_loop()
        latest = loop.time() + within_s
        while loop.time() < latest and not self.stopped.is_set():
            if self.status.state == "running" and _is_socket(self.order.socket):
                return True
            if self.status.exit_code is not None and self.status.starts > 2:
                return False
            await pause(self.stopped, LOOK_S)
        return False

    async def stop(self) -> None:
        self.stopping.set()
        self._wake.set()
        await self.stopped.wait()

    def end_processes(self, why: str) -> None:
        """All of them, and the agent: it is started again. Nobody may run just now."""
        self.status.detail = why
        self._say(f"workspace {self.order.workspace}: {why}")
        if self.status.pid:  # To the kernel 0 is ourselves.
            for pid in living.children_of(self.status.pid) or [self.status.pid]:
                _signal(pid, signal.SIGKILL)

    async def _live_once(self) -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        _unlink(self.order.socket)
        process = None
        try:
            process = self._spawn()
            self.status.pid, self.status.state = process.pid, "running"
            await self._until_end(process)
        except OSError as error:  # No memory, no descriptors: it may be better later.
            self._say(f"workspace {self.order.workspace} cannot be kept: {error}")
        finally:
            if process is not None:
                await self._bury(process)
            self.status.pid = 0  # From here on it may be a stranger's.
        self.status.exit_code = -1 if process is None else process.returncode
        return loop.time() - began

    def _spawn(self) -> "subprocess.Popen[bytes]":
        order = self.order
        limits = dict(order.plan.limits)
        if order.memory_bytes and not self._groups.memory:
            limits["data"] = order.memory_bytes
        groups = [str(path) for path in self._groups.paths]
        output = self.log.listen()
        try:
            process = spawn(replace(order.plan, cgroups=groups, limits=limits), output)
        finally:
            os.close(output)
        self.status.starts += 1
        with contextlib.suppress(OSError):  # A full disk: the kernel still ends it with us.
            self._birth_file.write_text(str(living.birth_of(process.pid) or ""))
        return process

    async def _until_end(self, process: "subprocess.Popen[bytes]") -> None:
        """Ends with the process, or soon after somebody wants it stopped; in either case when
        nobody is left inside."""
        async with ended(process.pid, self._wake) as end, contextlib.AsyncExitStack() as stack:
            inside = await self._inside(process, stack)
            await self._wake.wait()
            if not end.is_set():
                await self._end(process, end)
            # The outer process does not wait for the first one inside, which goes last of all.
            await pause(inside, KILL_S)
        if not self.stopping.is_set():
            self._wake.clear()

    async def _inside(
        self, process: "subprocess.Popen[bytes]", stack: contextlib.AsyncExitStack
    ) -> asyncio.Event:
        """The end of the first process in the namespace."""
        loop = asyncio.get_running_loop()
        latest = loop.time() + ENTER_S
        while self.order.namespaced and loop.time() < latest:
            for pid in living.children_of(process.pid):
                with contextlib.suppress(ProcessLookupError):
                    return await stack.enter_async_context(ended(pid, asyncio.Event()))
            if await pause(self._wake, LOOK_S):
                break
        nothing = asyncio.Event()
        nothing.set()
        return nothing

    async def _end(self, process: "subprocess.Popen[bytes]", end: asyncio.Event) -> None:
        """First the agent is asked, then the first process of the namespace is killed: when the
        outer one has gone after that, nobody is left inside."""
        inits = living.children_of(process.pid)
        for pid in [child for init in inits for child in living.children_of(init)]:
            _signal(pid, signal.SIGTERM)
        if await pause(end, GRACE_S if inits else 0):
            return
        for pid in inits:
            _signal(pid, signal.SIGKILL)
        if not inits or not await pause(end, KILL_S):
            kill_group(process)
            await pause(end, KILL_S)

    async def _bury(self, process: "subprocess.Popen[bytes]") -> None:
        """Without a process namespace others may have outlived the first: they are looked for."""
        kill_group(process)
        loop = asyncio.get_running_loop()
        latest = loop.time() + KILL_S
        while loop.time() < latest:
            left = self._left()
            if process.poll() is not None and not left:
                return
            for pid in left:
                _signal(pid, signal.SIGKILL)
            await pause(self.stopped, LOOK_S)
        self._say(f"workspace {self.order.workspace}: some processes do not end")

    def _left(self) -> set[int]:
        found = set(cgroups.members(self._groups))
        if not self.order.namespaced:
            uid, mark = self.order.plan.uid, self.order.workspace
            found |= living.of_account(uid) if uid is not None else living.marked({mark})
        return found


def backoff_s(young: int) -> float:
    """Before the next start, when so many in a row have died young. It may go on for days."""
    if not young:
        return 0
    return min(FIRST_BACKOFF_S * 2 ** min(young - 1, 30), MAX_BACKOFF_S)


def _unlink(path: str) -> None:
    with contextlib.suppress(OSError):  # A hostile directory may stand there.
        os.unlink(path)


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except OSError:
        return False


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
