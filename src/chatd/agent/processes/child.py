"""One command as a child of the agent: its birth, its output, its end.

Owns the pipe, the process group and the exit status of that child. Output goes to a callback and
is not kept here; who may see or signal the child is decided elsewhere.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from chatd.agent.errors import AgentError, from_os_error

_SHELL = "/bin/sh"
_CHUNK = 64 * 1024
# After the grace, what already lies in the pipe is still taken, up to the largest pipe there is.
_LAST_CHUNKS = 16
_LOOK_S = 0.05


@dataclass(frozen=True)
class SpawnedShell:
    popen: subprocess.Popen[bytes]
    read_fd: int


def spawn(command: str, *, workdir: str, env: Mapping[str, str]) -> SpawnedShell:
    """Start the shell. Blocks until it has been executed: call it in a thread."""
    # A command that begins like an option would be taken for one.
    script = f" {command}" if command.startswith(("-", "+")) else command
    read_fd, write_fd = os.pipe()
    try:
        os.set_blocking(read_fd, False)
        popen = subprocess.Popen(
            [_SHELL, "-c", script],
            stdin=subprocess.DEVNULL,
            stdout=write_fd,
            stderr=write_fd,
            cwd=workdir,
            env=dict(env),
            start_new_session=True,
            close_fds=True,
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        os.close(read_fd)
        raise _not_started(error, workdir) from error
    finally:
        os.close(write_fd)
    return SpawnedShell(popen, read_fd)


def _not_started(error: Exception, workdir: str) -> AgentError:
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, OSError) and error.filename == workdir:
        return from_os_error(error, f"run a command in {workdir}")
    if number == errno.E2BIG:
        return AgentError(
            400, "The command or its environment is too long. Write it to a file and run that."
        )
    if number in {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE}:
        return AgentError(
            503,
            f"The workspace cannot start another process now ({os.strerror(number or 0).lower()}). "
            "Stop processes that are no longer needed, then try again.",
            code="no_resources",
        )
    if isinstance(error, ValueError):
        return AgentError(400, f"The command cannot be run: {error}.")
    return AgentError(503, f"The workspace cannot run {_SHELL}: {error}.", code="no_shell")


class ChildProcess:
    """A child under watch. Its end is told once, when nothing more will be read.

    The shell's exit is seen at once, but orphans may still hold the pipe: they get `grace_s` to
    finish. Until the end is told the shell stays a zombie, so that its number, which is also the
    number of the group, cannot be given to a stranger whom a signal would then hit.
    """

    def __init__(
        self,
        spawned: SpawnedShell,
        *,
        grace_s: float,
        on_output: Callable[[bytes], None],
        on_end: Callable[[int], None],
    ) -> None:
        self._popen = spawned.popen
        self._read_fd = spawned.read_fd
        self._grace_s = grace_s
        self._on_output = on_output
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._pidfd = -1
        self._reading = True
        self._exit_code: int | None = None
        self._grace: asyncio.TimerHandle | None = None
        self._ended = False
        self._loop.add_reader(self._read_fd, self._readable)
        self._watch_exit()

    @property
    def pid(self) -> int:
        return self._popen.pid

    def signal(self, number: int) -> bool:
        """To the whole group, also to those the shell has left there. False if all are dead."""
        if not self._ended:
            return _send_to_group(self.pid, number)
        return _somebody_lives(self.pid) and signal_group(self.pid, number)

    def kill_now(self) -> None:
        """Kill the group and grant no grace, whatever still holds the pipe."""
        self.signal(signal.SIGKILL)
        self._grace_s = 0
        if self._exit_code is not None:
            self._end()

    def _watch_exit(self) -> None:
        try:
            self._pidfd = os.pidfd_open(self.pid)
        except (AttributeError, OSError):
            # An old kernel, one that forbids it, or no descriptor left: look now and then.
            self._look()
        else:
            self._loop.add_reader(self._pidfd, self._exited)

    def _look(self) -> None:
        try:
            alive = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None
        except ChildProcessError:
            alive = False
        if alive:
            self._loop.call_later(_LOOK_S, self._look)
        else:
            self._exited()

    def _exited(self) -> None:
        if self._exit_code is not None:
            return
        self._exit_code = _exit_code(self.pid)
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
        if not self._reading or self._grace_s <= 0:
            self._end()
        else:
            self._grace = self._loop.call_later(self._grace_s, self._end)

    def _readable(self) -> None:
        if not self._read():
            self._stop_reading()
            if self._exit_code is not None:
                self._end()

    def _read(self) -> bool:
        """One piece, so that an endless printer cannot hold the loop. False at the end."""
        try:
            data = os.read(self._read_fd, _CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if data:
            self._on_output(data)
        return bool(data)

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._read_fd)
            os.close(self._read_fd)

    def _end(self) -> None:
        if self._ended:
            return
        self._ended = True
        if self._grace is not None:
            self._grace.cancel()
        for _ in range(_LAST_CHUNKS if self._reading else 0):
            if not self._read():
                break
        self._stop_reading()
        if self._pidfd >= 0:
            os.close(self._pidfd)
        exit_code = -1 if self._exit_code is None else self._exit_code
        _bury(self._popen, exit_code)
        self._on_end(exit_code)


def signal_group(group: int, number: int) -> bool:
    """To those whom a buried shell has left in its group; 0 only asks whether there are any.

    While somebody is in the group, its number is given to no new process. So if there is a
    process of that number, ours are gone and the group is a stranger's.
    """
    try:
        os.kill(group, 0)
    except ProcessLookupError:
        return _send_to_group(group, number)
    except PermissionError:
        pass
    return False


def _send_to_group(group: int, number: int) -> bool:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        # Empty, or all in it have changed their user.
        return False
    return True


def _somebody_lives(group: int) -> bool:
    """The dead who wait for a slow first process to bury them are still in the group."""
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            # The name of the program, in parentheses, may contain anything.
            state, _, of_group = file.read().rpartition(b")")[2].split()[:3]
            if int(of_group) == group and state not in b"ZX":
                return True
    return False


def _exit_code(pid: int) -> int:
    """What the shell has returned; -1 if a signal ended it. It stays a zombie."""
    try:
        found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    except ChildProcessError:
        return -1
    if found is None or found.si_code != os.CLD_EXITED:
        return -1
    return found.si_status


def _bury(popen: subprocess.Popen[bytes], exit_code: int) -> None:
    with suppress(ChildProcessError):
        os.waitpid(popen.pid, 0)
    # Popen must not wait for that number again.
    popen.returncode = exit_code
