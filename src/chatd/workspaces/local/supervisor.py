"""The supervisor: a program that owns the sandboxes of one data directory. Standard library only.

Apart from the server, so that commands go on while the server is restarted, killed or upgraded.
One per data directory: it holds a lock that the kernel drops when it dies. Sandboxes die with it;
what might have escaped a killed one is ended by the next, which its keeper starts at once and which
begins with the same sandboxes. When nobody needs it, it leaves.
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
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Final

from chatd.workspaces.local import cgroups, living
from chatd.workspaces.local.control import MAX_LINE, Control
from chatd.workspaces.local.keeper import keep
from chatd.workspaces.local.remembering import Memory
from chatd.workspaces.local.waiting import pause

LOCK: Final = "lock"
SOCKET: Final = "socket"
LOG: Final = "supervisor.log"
BIRTHS: Final = "births"
MAX_LOG: Final = 1024 * 1024
IDLE_S: Final = 60.0
FIRST_S: Final = 10.0
"""For whoever has started it to ask its first question."""
SWEEP_S: Final = 10.0
READY: Final = b"ready"
BUSY: Final = b"busy"


def main() -> None:
    parser = argparse.ArgumentParser(description="Own the sandboxes of one data directory.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--idle-s", type=float, default=IDLE_S)
    options = parser.parse_args()
    directory: Path = options.directory
    idle_s: float = options.idle_s
    reader, writer = os.pipe()
    if between := os.fork():
        os.close(writer)
        said = os.read(reader, 16)
        os.waitpid(between, 0)  # Where nobody collects orphans, it would stay for ever.
        sys.exit(0 if said in (READY, BUSY) else 1)
    os.setsid()
    if os.fork():
        os._exit(0)
    os.close(reader)
    serve(directory, idle_s, writer)


def serve(directory: Path, idle_s: float, ready: int) -> None:
    """As a daemon, until it is told to end or nobody needs it."""
    lock = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.write(ready, BUSY)
        return
    take_output(directory / LOG)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    memory = Memory()

    def live(ready: int | None) -> None:
        note(lock, f"{os.getpid()}\n")
        with listening(directory) as listener:
            asyncio.run(Supervisor(directory, idle_s, memory).run(listener, ready))
        note(lock, "")

    def again(how: str) -> bool:
        """Not for one that never began: somebody waits for that, and would ask again."""
        note(lock, "")
        say(f"supervisor {how}")
        return memory.begun

    keep(live, ready, again=again)
    note(lock, "")  # Also if the last one had no time for it.


def note(lock: int, text: str) -> None:
    """Who runs, for people: without a number that may be somebody else's by now. On a full disk
    we are needed most, so that it cannot be written does not matter."""
    with contextlib.suppress(OSError):
        os.truncate(lock, 0)
        os.pwrite(lock, text.encode(), 0)


class Supervisor:
    def __init__(self, directory: Path, idle_s: float, memory: Memory) -> None:
        self._births = directory / BIRTHS
        self._idle_s = idle_s
        self._memory = memory

    async def run(self, listener: socket.socket, ready: int | None) -> None:
        self._births.mkdir(mode=0o700, exist_ok=True)
        await self.sweep()
        async with asyncio.TaskGroup() as tasks:
            control = Control(tasks, self._memory, births=self._births, say=say)
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, control.closing.set)
            control.resume()  # Before anybody can ask, and be told that nothing runs.
            server = await asyncio.start_unix_server(control.answer, sock=listener, limit=MAX_LINE)
            if ready is not None:
                os.write(ready, READY)
                os.close(ready)
            say(f"ready, process {os.getpid()}")
            await self._until_idle(control)
            control.closing.set()  # Whoever comes now is told to start another.
            server.close()
            await control.close()
        say("ended")

    async def sweep(self) -> None:
        """End what a killed supervisor has left. With namespaces the kernel has done it already in
        all but the smallest gaps; without them this is what ends whoever was orphaned."""
        loop = asyncio.get_running_loop()
        never = asyncio.Event()
        files = list(self._births.iterdir())
        latest = loop.time() + SWEEP_S
        while loop.time() < latest and kill_left(files):
            await pause(never, 0.01)
        for file in files:
            cgroups.remove(cgroups.existing(file.name))
            file.unlink(missing_ok=True)

    async def _until_idle(self, control: Control) -> None:
        loop = asyncio.get_running_loop()
        patient_until = loop.time() + FIRST_S
        seen = -1
        while not await pause(control.closing, self._idle_s):
            expected = not control.asked and loop.time() < patient_until
            if control.idle and control.asked == seen and not expected:
                return
            seen = control.asked


def kill_left(files: Sequence[Path]) -> bool:
    """Whether there was anybody."""
    left = living.marked({file.name for file in files}) if files else set[int]()
    for file in files:
        birth = living.Birth.read(file.read_text())
        if birth is not None and living.lives(birth):
            left.add(birth.pid)
        left.update(cgroups.members(cgroups.existing(file.name)))
    for pid in left:
        if (found := living.birth_of(pid)) is not None:
            living.kill(found)
    return bool(left)


@contextlib.contextmanager
def listening(directory: Path) -> Generator[socket.socket]:
    """Through the descriptor of the directory: a path may be too long for a socket."""
    inside = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    address = f"/proc/self/fd/{inside}/{SOCKET}"
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
            os.close(inside)


def take_output(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > MAX_LOG:
            path.replace(path.with_name(f"{path.name}.1"))
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.close(nothing)


def say(text: str) -> None:
    """If there is room: a full disk must not end whoever keeps the sandboxes."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    with contextlib.suppress(OSError):
        os.write(2, f"{now} {text}\n".encode())


if __name__ == "__main__":
    main()
