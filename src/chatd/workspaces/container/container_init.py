"""The first process of a workspace's container: `python3 container_init.py NAME DIRECTORY`, with
the name of its order in the directory.

It is root inside, with five capabilities, and runs nothing but this file. It prepares what only
root can, then runs the agent (or one command of a build) under the workspace's account, which has
no capabilities. When the agent ends, it kills all processes and starts the agent again, with a
growing delay; when the command ends, it ends with the same exit code.

What the account must not reach stays with this process: the two files of the agent's journal,
which the agent gets as descriptors, and, in a directory that only root can enter, the listening
socket and the order with the agent's key.

In a pod it has no privileges: the agent and the commands have its own account, and can read what it
can. Standard library only.
"""

import base64
import contextlib
import ctypes
import errno
import fcntl
import json
import os
import resource
import runpy
import shutil
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

STATE_DIR = "/run/chatd"
PRIVATE_DIR = "/run/chatd/private"
RUN_DIR = "/run/chatd/run"
SOCKET_PARENT = "/run/chatd-socket"
SOCKET_DIR = "/run/chatd-socket/d"
AGENT_SOCKET = "agent.sock"
STATUS_FILE = "status.json"
FILLED_MARK = "filled"
SYSTEM_GITCONFIG = "/etc/gitconfig"
KIT_GITCONFIG = "/opt/chatd/etc/gitconfig"
AGENT_PROGRAM = "/opt/chatd/agent"

CONFIG_FD = 3
JOURNAL_FD = 5
LISTEN_FD = 7
TIMED_OUT_EXIT_CODE = 124
DISK_FULL_EXIT_CODE = 122
FIRST_RESTART_DELAY_S = 0.05
MAX_RESTART_DELAY_S = 30.0
MAX_FAST_EXITS = 4
STABLE_AFTER_S = 60.0
STOP_GRACE_S = 3.0
KILL_TIMEOUT_S = 10.0
MAX_UNMEASURED_S = 60.0
MEASURE_TIMEOUT_S = 120.0
BYTES_PER_FILE = 4096
MIN_FILE_LIMIT = 10_000
PR_SET_NO_NEW_PRIVS = 38
SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)
NOT_INHERITED = ("HOSTNAME", "TERM", "container")


@dataclass(frozen=True)
class Order:
    """`agent` is the agent's configuration, or `argv` a command. `variables` are the template's:
    they win over those of the image. `private` is the directory of the agent's journal. A new home
    (`is_new`) is emptied, gets `files`, by their base64, and is marked as filled when the command
    has succeeded; one with the mark is left alone. `rlimits` are limits of each process, by their
    names."""

    uid: int
    home: str
    directory: str
    variables: dict[str, str] = field(repr=False)
    base: dict[str, str] = field(default_factory=dict[str, str])
    agent: dict[str, Any] | None = field(default=None, repr=False)
    argv: list[str] = field(default_factory=list[str])
    timeout_s: float = 0
    disk_bytes: int = 0
    disk_interval_s: float = 3.0
    private: str = PRIVATE_DIR
    rlimits: dict[str, int] = field(default_factory=dict[str, int])
    is_new: bool = False
    files: dict[str, str] = field(default_factory=dict[str, str])

    def environment(self) -> dict[str, str]:
        image = {k: v for k, v in os.environ.items() if k not in NOT_INHERITED}
        defaults = {"LANG": "C.UTF-8", "SHELL": "/bin/sh", "PATH": os.defpath}
        if not os.path.exists(SYSTEM_GITCONFIG):
            defaults["GIT_CONFIG_SYSTEM"] = KIT_GITCONFIG
        own = {"HOME": self.home, "USER": "dev", "LOGNAME": "dev", "TMPDIR": "/tmp"}
        return {**defaults, **image, **own, **self.base, **self.variables}


def main() -> None:
    os.umask(0o022)
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    name, directory = sys.argv[1:]
    with open(os.path.join(directory, f"{name}.json"), "rb") as file:
        order = Order(**json.loads(file.read()))
    if os.geteuid() == 0:
        prepare(order)
    else:
        prepare_unprivileged(order)
    sys.exit(AgentInit(order).run() if order.agent is not None else CommandInit(order).run())


def prepare(order: Order) -> None:
    """Prepare the home and the account. Idempotent: every start of the container does it."""
    os.chmod(STATE_DIR, 0o755)
    for path in (PRIVATE_DIR, RUN_DIR):
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
    os.chmod(PRIVATE_DIR, 0o700)
    for path in (RUN_DIR, order.home):
        if os.stat(path).st_uid != order.uid:
            os.chmod(path, 0o700)
            os.chown(path, order.uid, order.uid)
    os.chmod(SOCKET_PARENT, 0o700)
    with contextlib.suppress(OSError):  # Without an entry programs only show a number.
        add_account(order)


def prepare_unprivileged(order: Order) -> None:
    """Prepare the home in a pod, where the volumes are writable already."""
    for path in (SOCKET_DIR, RUN_DIR, order.private, order.home):
        os.makedirs(path, 0o700, exist_ok=True)
    if order.is_new:
        if os.path.exists(os.path.join(order.private, FILLED_MARK)):
            sys.exit(0)
        for entry in os.scandir(order.home):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)
    for name, content in order.files.items():
        path = os.path.join(order.directory, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(base64.b64decode(content))


def add_account(order: Order) -> None:
    """Add an entry for the account, which programs look up by its number."""
    for path, line in (
        ("/etc/passwd", f"dev:x:{order.uid}:{order.uid}:dev:{order.home}:/bin/sh"),
        ("/etc/group", f"dev:x:{order.uid}:"),
    ):
        number = str(order.uid)
        found = ""
        if os.path.exists(path):
            with open(path, encoding="utf-8", errors="replace") as file:
                found = file.read()
        if not any(entry.split(":")[2:3] == [number] for entry in found.splitlines()):
            with open(path, "a", encoding="utf-8") as file:
                file.write(f"{'' if found.endswith(chr(10)) or not found else chr(10)}{line}\n")
            os.chmod(path, 0o644)  # Podman creates a missing one for root alone.


# Processes


def spawn(order: Order, files: dict[int, int], act: Callable[[dict[str, str]], object]) -> int:
    """Run `act` with the environment, in a process of the account. `files` maps its descriptors to
    ours, none of which is among its own."""
    environment = order.environment()
    child = os.fork()
    if child:
        return child
    try:
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        for target, source in files.items():
            os.dup2(source, target, inheritable=True)
            os.close(source)
        os.setsid()
        if os.geteuid() == 0:
            os.setgroups([])
            os.setresgid(order.uid, order.uid, order.uid)
            os.setresuid(order.uid, order.uid, order.uid)
        for limit, value in order.rlimits.items():
            number = getattr(resource, f"RLIMIT_{limit.upper()}")
            hard = resource.getrlimit(number)[1]
            highest = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(number, (highest, highest))
        ctypes.CDLL(None).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        os.makedirs(order.directory, exist_ok=True)
        os.chdir(order.directory)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        act(environment)
    except BaseException as error:  # noqa: BLE001 - the child must not run the parent's code
        os.write(2, f"the workspace cannot run it: {error!r}\n".encode())
    os._exit(126)


def run_agent(environment: dict[str, str]) -> None:
    """Run it in this interpreter: another one would take a tenth of a second to start."""
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [AGENT_PROGRAM, "--config-fd", str(CONFIG_FD)]
    runpy.run_path(AGENT_PROGRAM, run_name="__main__")


def reap() -> dict[int, int]:
    """Exit codes of children, and of orphans that became our children."""
    ended: dict[int, int] = {}
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            code = os.waitstatus_to_exitcode(status)
            ended[pid] = code if code >= 0 else 128 - code
    return ended


def wait_signal(timeout_s: float) -> int:
    """The next signal; 0 after the timeout."""
    found = signal.sigtimedwait(SIGNALS, max(timeout_s, 0))
    return found.si_signo if found else 0


def kill_all() -> None:
    """Kill every process but this one, and wait until they have ended."""
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            return
        reap()
        time.sleep(0.01)


def write_status(**fields: object) -> None:
    """Write the state for the runner, which reads it in the socket's directory."""
    path = os.path.join(SOCKET_DIR, STATUS_FILE)
    with contextlib.suppress(OSError):
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            json.dump(fields, file)
        os.chmod(f"{path}.new", 0o644)
        os.replace(f"{path}.new", path)


# The disk limit: a forked process measures the home, when it may have reached the limit.


class DiskWatch:
    def __init__(self, order: Order) -> None:
        self._paths = (order.home, RUN_DIR)
        self._limit = order.disk_bytes
        self._max_files = max(MIN_FILE_LIMIT, order.disk_bytes // BYTES_PER_FILE)
        self._used = (0, 0)
        self._highest = (order.disk_bytes, self._max_files)
        self._free = 0
        self._measured_at = float("-inf")
        self._child = 0
        self._result = -1
        self.detail = ""

    def begin(self) -> None:
        """Start a measurement if one is due."""
        if not self._limit or self._child:
            return
        found = os.statvfs(self._paths[0])
        free = found.f_bfree * found.f_frsize
        now = time.monotonic()
        may_hold = self._used[0] + max(self._free - free, 0) <= self._limit
        if may_hold and now - self._measured_at < MAX_UNMEASURED_S:
            return
        self._measured_at, self._free = now, free
        reader, writer = os.pipe()
        self._child = os.fork()
        if self._child:
            os.close(writer)
            self._result = reader
            return
        code = 0
        try:
            signal.alarm(int(MEASURE_TIMEOUT_S))
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            os.nice(10)
            os.write(writer, json.dumps(measure(self._paths)).encode())
        except BaseException:  # noqa: BLE001 - the child must not run the parent's code
            code = 1
        os._exit(code)

    def forget(self) -> None:
        """Forget the measurement: its process has been killed."""
        if self._child:
            os.close(self._result)
            self._child = 0

    def is_over(self, ended: dict[int, int]) -> bool:
        """Whether a measurement has just found more than the limit, and more than it found before:
        after a kill, files can be removed."""
        if self._child not in ended or not self._child:
            return False
        self._child = 0
        with os.fdopen(self._result, "rb") as pipe:
            text = pipe.read(100)
        if not text:
            return False
        size, files = json.loads(text)
        self._used = (size, files)
        if size <= self._limit and files <= self._max_files:
            self._highest = (self._limit, self._max_files)
            self.detail = ""
            return False
        if size <= self._highest[0] and files <= self._highest[1]:
            return False
        self._highest = (max(size, self._highest[0]), max(files, self._highest[1]))
        self.detail = (
            f"the files take {size} bytes in {files} files and {self._limit} bytes in "
            f"{self._max_files} files are allowed: all processes were killed; remove files before "
            "going on"
        )
        return True


def measure(paths: tuple[str, ...]) -> tuple[int, int]:
    """Count bytes and files. A tree that is too deep to walk counts as too large."""

    def fail(error: OSError) -> None:
        if error.errno in (errno.ENAMETOOLONG, errno.EMFILE):
            raise RecursionError

    size = files = 0
    seen: set[int] = set()
    try:
        for top in paths:
            for _, names, others, directory in os.fwalk(top, onerror=fail):
                for name in (*names, *others):
                    with contextlib.suppress(FileNotFoundError):
                        info = os.stat(name, dir_fd=directory, follow_symlinks=False)
                        if info.st_nlink > 1 and not stat.S_ISDIR(info.st_mode):
                            if info.st_ino in seen:
                                continue
                            seen.add(info.st_ino)
                        size += info.st_blocks * 512
                        files += 1
    except RecursionError:
        return 1 << 62, files
    return size, files


# The agent, and the commands of a build


class AgentInit:
    """Runs the agent until SIGTERM."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._disk = DiskWatch(order)
        # Without privileges commands can remove the socket; the agent then makes it again.
        self._listener = open_listener() if os.geteuid() == 0 else None
        self._starts = 0

    def run(self) -> int:
        fast_exits = 0
        write_status(starts=0, exit_code=None, detail="")
        while True:
            began = time.monotonic()
            code = self._run_once()
            kill_all()
            self._disk.forget()
            if code is None:
                return 0
            write_status(starts=self._starts, exit_code=code, detail=self._disk.detail)
            lasted_s = time.monotonic() - began
            fast_exits = 0 if lasted_s > STABLE_AFTER_S else fast_exits + 1
            if fast_exits >= MAX_FAST_EXITS and os.geteuid() != 0:
                return 1  # The cluster shows it, and starts the container again.
            delay_s = min(FIRST_RESTART_DELAY_S * 2 ** min(fast_exits, 30), MAX_RESTART_DELAY_S)
            deadline = time.monotonic() + delay_s
            while (left_s := deadline - time.monotonic()) > 0:
                if wait_signal(left_s) in (signal.SIGTERM, signal.SIGINT):
                    return 0
                reap()

    def _run_once(self) -> int | None:
        """The agent's exit code; None if the container is being stopped."""
        agent = self._start()
        stop_deadline = 0.0
        while True:
            wait_s = self._order.disk_interval_s if self._order.disk_bytes else 60.0
            number = wait_signal(0.1 if stop_deadline else wait_s)
            if number in (signal.SIGTERM, signal.SIGINT):
                stop_deadline = time.monotonic() + STOP_GRACE_S
                with contextlib.suppress(ProcessLookupError):
                    os.kill(agent, signal.SIGTERM)
            ended = reap()
            if stop_deadline and (agent in ended or time.monotonic() > stop_deadline):
                return None
            if agent in ended:
                return ended[agent]
            before = self._disk.detail
            if self._disk.is_over(ended):
                return 128 + signal.SIGKILL
            if before and not self._disk.detail:
                write_status(starts=self._starts, exit_code=None, detail="")
            self._disk.begin()

    def _start(self) -> int:
        assert self._order.agent is not None
        config = {
            **self._order.agent,
            "run_dir": RUN_DIR,
            "home": self._order.home,
            "directory": self._order.directory,
            "journal_fd": JOURNAL_FD,
            "env": self._order.environment(),
        }
        if self._listener is None:
            config["socket"] = os.path.join(SOCKET_DIR, AGENT_SOCKET)
        else:
            config["listen_fd"] = LISTEN_FD
        files: list[int] = [pipe_with(json.dumps(config).encode())]
        for name in ("once.a", "once.b"):
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            files.append(os.open(os.path.join(self._order.private, name), flags, 0o600))
        # Above the numbers that the agent expects, so that none overwrites another.
        high = [move_up(fd) for fd in files]
        targets = (CONFIG_FD, JOURNAL_FD, JOURNAL_FD + 1)
        inherited: dict[int, int] = dict(zip(targets, high, strict=True))
        if self._listener is not None:
            inherited[LISTEN_FD] = self._listener
        try:
            agent = spawn(self._order, inherited, run_agent)
        finally:
            for fd in high:
                os.close(fd)
        self._starts += 1
        return agent


class CommandInit:
    """Run one command of a build; its output is the container's."""

    def __init__(self, order: Order) -> None:
        self._order = order

    def run(self) -> int:
        disk = DiskWatch(self._order)
        deadline = time.monotonic() + self._order.timeout_s
        argv = self._order.argv
        command = spawn(self._order, {}, lambda env: os.execve(argv[0], argv, env))
        while True:
            wait_s = min(self._order.disk_interval_s, deadline - time.monotonic())
            if wait_signal(wait_s) in (signal.SIGTERM, signal.SIGINT):
                return 128 + signal.SIGTERM
            ended = reap()
            if command in ended:
                kill_all()
                code = self._check_disk(ended[command])
                if self._order.is_new and code == 0:
                    os.sync()
                    with open(os.path.join(self._order.private, FILLED_MARK), "xb"):
                        return code
                return code
            if time.monotonic() > deadline:
                return TIMED_OUT_EXIT_CODE
            if disk.is_over(ended):
                return self._over(disk.detail)
            disk.begin()

    def _check_disk(self, code: int) -> int:
        """Measure once more at the end: a command may write much between two measurements."""
        if self._order.disk_bytes:
            size, files = measure((self._order.home, RUN_DIR))
            max_files = max(MIN_FILE_LIMIT, self._order.disk_bytes // BYTES_PER_FILE)
            if size > self._order.disk_bytes or files > max_files:
                return self._over(
                    f"the files take {size} bytes in {files} files, and "
                    f"{self._order.disk_bytes} bytes in {max_files} files are allowed"
                )
        return code

    def _over(self, detail: str) -> int:
        write_status(detail=detail)
        os.write(2, f"{detail}\n".encode())
        return DISK_FULL_EXIT_CODE


def pipe_with(data: bytes) -> int:
    """A pipe with the data: once read, the configuration cannot be found in /proc."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    if len(data) > 65_536:
        with contextlib.suppress(OSError):
            fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, len(data))
    if os.write(writer, data) != len(data):
        raise ValueError("the configuration is too long for a pipe")
    os.close(writer)
    return reader


def move_up(fd: int) -> int:
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 20)
    os.close(fd)
    return moved


def open_listener() -> int:
    """The agent's socket. It appears under its name when it accepts connections, which wait until
    an agent runs; it outlives the agent."""
    os.chdir(SOCKET_DIR)  # Its own path may be too long for a socket address on other systems.
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.suppress(FileNotFoundError):
        os.unlink("new")
    listener.bind("new")
    # The runner has another account than this process where the engine maps accounts. The
    # directory is closed to others on both sides, and every request needs the agent's key.
    os.chmod("new", 0o666)
    listener.listen(64)
    os.replace("new", AGENT_SOCKET)
    os.chdir("/")
    return move_up(listener.detach())


if __name__ == "__main__":
    main()
