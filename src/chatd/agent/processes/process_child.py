"""One command as a child process: its environment, start, output, signals and exit.

A command inherits nothing from the agent's own environment.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import signal
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from chatd.agent.errors import AgentError, from_os_error

_SHELL = "/bin/sh"
# When memory is short, the kernel kills commands before the agent.
_DIE_FIRST = f'{{ echo 1000 >>/proc/self/oom_score_adj; }} 2>/dev/null; exec {_SHELL} -c "$1"'
_PIPE_CHUNK_BYTES = 64 * 1024
# Chunks read from the pipe after the grace: the content of the largest possible pipe.
_LAST_CHUNKS = 16
_EXIT_POLL_S = 0.05


@dataclass(frozen=True)
class SpawnedShell:
    popen: subprocess.Popen[bytes]
    read_fd: int


def spawn(command: str, *, workdir: str, env: Mapping[str, str]) -> SpawnedShell:
    """Start the shell. Blocks until `exec` has succeeded: call it in a thread."""
    # The shell would read a command that begins with - or + as an option.
    script = f" {command}" if command.startswith(("-", "+")) else command
    read_fd, write_fd = os.pipe()
    try:
        os.set_blocking(read_fd, False)
        popen = subprocess.Popen(
            [_SHELL, "-c", _DIE_FIRST, _SHELL, script],
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
        raise _start_error(error, workdir) from error
    finally:
        os.close(write_fd)
    return SpawnedShell(popen, read_fd)


def _start_error(error: Exception, workdir: str) -> AgentError:
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


UNKNOWN_EXIT = -1000


def signal_name(exit_code: int) -> str | None:
    """The signal that ended the shell; None if it exited, or if that is not known."""
    try:
        return None if exit_code >= 0 else signal.Signals(-exit_code).name
    except ValueError:
        return None


class ChildProcess:
    """A running shell. `on_end` is called once, after the last output, with the exit code of the
    shell, with the number of the signal that ended it, negative, or with UNKNOWN_EXIT.

    When the shell exits, background processes may still hold the pipe: they get `grace_s` to
    finish. Until `on_end` the shell stays a zombie, so that its pid, which is also the group id,
    cannot be given to another process that a signal would then reach.
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
        self._is_reading = True
        self._exit_code: int | None = None
        self._grace: asyncio.TimerHandle | None = None
        self._has_ended = False
        self._loop.add_reader(self._read_fd, self._on_readable)
        self._watch_exit()

    @property
    def pid(self) -> int:
        return self._popen.pid

    def signal(self, number: int) -> bool:
        """Signal the whole group, even after the shell's exit. False if no process is left."""
        if not self._has_ended:
            return _send_to_group(self.pid, number)
        return _has_live_process(self.pid) and signal_group(self.pid, number)

    def pause(self) -> None:
        """Read nothing until `resume`: the processes wait once their pipe is full."""
        if self._is_reading:
            self._loop.remove_reader(self._read_fd)

    def resume(self) -> None:
        if self._is_reading:
            self._loop.add_reader(self._read_fd, self._on_readable)

    def kill_now(self) -> None:
        """Kill the group without grace, even if a process still holds the pipe."""
        self.signal(signal.SIGKILL)
        self._grace_s = 0
        if self._exit_code is not None:
            self._end()

    def _watch_exit(self) -> None:
        try:
            self._pidfd = os.pidfd_open(self.pid)
        except (AttributeError, OSError):
            # An old kernel, a kernel that forbids pidfds, or no free descriptor: poll instead.
            self._poll_exit()
        else:
            self._loop.add_reader(self._pidfd, self._on_exit)

    def _poll_exit(self) -> None:
        try:
            is_alive = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None
        except ChildProcessError:
            is_alive = False
        if is_alive:
            self._loop.call_later(_EXIT_POLL_S, self._poll_exit)
        else:
            self._on_exit()

    def _on_exit(self) -> None:
        if self._exit_code is not None:
            return
        self._exit_code = _exit_code(self.pid)
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
        if not self._is_reading or self._grace_s <= 0:
            self._end()
        else:
            self._grace = self._loop.call_later(self._grace_s, self._end)

    def _on_readable(self) -> None:
        if not self._read():
            self._stop_reading()
            if self._exit_code is not None:
                self._end()

    def _read(self) -> bool:
        """Read one chunk, so that endless output does not block the loop. False at the end."""
        try:
            data = os.read(self._read_fd, _PIPE_CHUNK_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if data:
            self._on_output(data)
        return bool(data)

    def _stop_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._read_fd)
            os.close(self._read_fd)

    def _end(self) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        if self._grace is not None:
            self._grace.cancel()
        for _ in range(_LAST_CHUNKS if self._is_reading else 0):
            if not self._read():
                break
        self._stop_reading()
        if self._pidfd >= 0:
            os.close(self._pidfd)
        exit_code = UNKNOWN_EXIT if self._exit_code is None else self._exit_code
        _reap(self._popen, exit_code)
        self._on_end(exit_code)


def signal_group(group: int, number: int) -> bool:
    """Signal the processes that a reaped shell has left in its group; 0 checks if there are any.

    While a group has a process, the kernel gives its id to no new process. So if a process with
    that id exists, the command's processes are gone and the group belongs to another program.
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
        return False  # empty, or all its processes have changed their user
    return True


def _has_live_process(group: int) -> bool:
    """Zombies that PID 1 has not reaped yet are still in the group; they do not count."""
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            # The program's name, in parentheses, may contain any character.
            state, _, its_group = file.read().rpartition(b")")[2].split()[:3]
            if int(its_group) == group and state not in b"ZX":
                return True
    return False


def _exit_code(pid: int) -> int:
    """How the shell ended, as `on_end` gets it. The shell stays a zombie."""
    try:
        status = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    except ChildProcessError:
        return UNKNOWN_EXIT
    if status is None:
        return UNKNOWN_EXIT
    return status.si_status if status.si_code == os.CLD_EXITED else -status.si_status


def _reap(popen: subprocess.Popen[bytes], exit_code: int) -> None:
    with suppress(ChildProcessError):
        os.waitpid(popen.pid, 0)
    popen.returncode = exit_code  # so that Popen does not wait for this pid again


# Environment variables and working directory

_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
_CHAT_ID = "CHATD_CHAT_ID"


@dataclass(frozen=True)
class CommandEnvironment:
    """Shared by all commands of a workspace.

    Values of `template`, from the workspace's template, may refer to variables set before them, as
    in `$HOME/bin:$PATH`.
    """

    home: str
    directory: str = ""
    base: Mapping[str, str] = field(default_factory=dict[str, str])
    template: Mapping[str, str] = field(default_factory=dict[str, str])

    def build_variables(self, request: Mapping[str, str], chat_id: str | None) -> dict[str, str]:
        """Base, template, request, chat id: the later wins."""
        env = {"HOME": self.home, **self.base}
        for name, value in self.template.items():
            env[name] = expand_variables(value, env)
        env.update(request)
        env.pop(_CHAT_ID, None)
        if chat_id:
            env[_CHAT_ID] = chat_id
        for name, value in env.items():
            _check(name, value)
        return env

    def resolve_workdir(self, requested: str | None) -> str:
        """The requested directory; by default the workspace's directory if it exists, else home."""
        default = next((d for d in (self.directory, self.home) if d and os.path.isdir(d)), "/")
        if not requested:
            return default
        path = requested
        if path == "~" or path.startswith("~/"):
            path = self.home + path[1:]
        path = os.path.normpath(os.path.join(default, path))
        if "\0" in path or not os.path.isdir(path):
            raise AgentError(
                400,
                f"The working directory {requested!r} is not a directory in this workspace. "
                "Create it first, or leave workdir out.",
                code="no_such_workdir",
            )
        return path


def expand_variables(value: str, env: Mapping[str, str]) -> str:
    """Replace `$NAME` and `${NAME}`; an unset variable is empty. Any other `$` stays."""
    return _VARIABLE.sub(lambda found: env.get(found[1] or found[2], ""), value)


def _check(name: str, value: str) -> None:
    if not name or "=" in name or "\0" in name:
        raise AgentError(400, f"{name!r} cannot be the name of an environment variable.")
    if "\0" in value:
        raise AgentError(400, f"The environment variable {name} contains a NUL character.")
