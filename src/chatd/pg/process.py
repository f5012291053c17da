"""Run PostgreSQL's programs: with a timeout, in their own session, as an account that is not root.

Plain `subprocess` in threads: an asyncio transport kills its process when it is closed, and the
server must outlive this process.
"""

import asyncio
import contextlib
import os
import pwd
import signal
import stat
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from chatd.pg.config import ClusterLayout, PgError

# Choose the account that runs the server when chatd runs as root: PostgreSQL refuses root.
#
# chatd creates no account and changes no mode of a directory that it did not create: it uses an
# existing account, and names the directory that the account cannot enter.

CANDIDATES: Final = ("postgres", "nobody", "daemon")


class Account(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    uid: int
    gid: int


def find_account(name: str) -> Account | None:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return None
    return Account(name=name, uid=entry.pw_uid, gid=entry.pw_gid)


def first_account(
    names: Iterable[str] = CANDIDATES, find: Callable[[str], Account | None] = find_account
) -> Account:
    tried = tuple(names)
    for name in tried:
        account = find(name)
        if account is not None and account.uid != 0:
            return account
    raise PgError(
        "PostgreSQL does not run as root, and none of the accounts "
        f"{', '.join(tried)} exists to run it. Start chatd as an ordinary user, "
        "add one of these accounts, or give a database URL."
    )


def owner_of(path: Path) -> Account | None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    try:
        name = pwd.getpwuid(found.st_uid).pw_name
    except KeyError:
        name = f"uid {found.st_uid}"
    return Account(name=name, uid=found.st_uid, gid=found.st_gid)


def choose_account(layout: ClusterLayout, *, uid: int) -> Account | None:
    """The account that runs the server; None: the current one. Only its owner serves a cluster."""
    owner = owner_of(layout.cluster)
    if uid == 0:
        owners = (owner, owner_of(layout.data_dir))
        return (
            next((found for found in owners if found and found.uid != 0), None) or first_account()
        )
    if owner is not None and owner.uid != uid:
        raise PgError(
            f"The database in {layout.cluster} belongs to {owner.name}. Start chatd as that user "
            "(or as root), or choose another data directory."
        )
    return None


def can_enter(found: os.stat_result, account: Account) -> bool:
    if found.st_uid == account.uid:
        return bool(found.st_mode & stat.S_IXUSR)
    if found.st_gid == account.gid:
        return bool(found.st_mode & stat.S_IXGRP)
    return bool(found.st_mode & stat.S_IXOTH)


def first_closed_dir(
    path: Path, account: Account, read_stat: Callable[[Path], os.stat_result] = os.stat
) -> Path | None:
    """The outermost of `path` and its parents that the account cannot enter."""
    for directory in (*reversed(path.parents), path):
        if not can_enter(read_stat(directory), account):
            return directory
    return None


# Not the caller's environment: PGPORT, LC_ALL or LD_PRELOAD would reach the server.
ENVIRONMENT: Final[Mapping[str, str]] = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LC_ALL": "C",
    "TZ": "UTC",
}
KILL_TIMEOUT_S: Final = 5.0


class ProcessResult(msgspec.Struct, frozen=True, kw_only=True):
    code: int
    output: str


def last_lines(text: str, count: int = 8) -> str:
    return "\n".join(text.strip().splitlines()[-count:])


async def run(
    argv: Sequence[str | Path], *, run_as: Account | None, timeout_s: float
) -> ProcessResult:
    """Run a program to its end. Raises OSError when it cannot be executed."""
    process = _spawn(argv, run_as=run_as, output=subprocess.PIPE)
    try:
        output = await asyncio.to_thread(_communicate, process, timeout_s)
    except subprocess.TimeoutExpired:
        raise PgError(f"{argv[0]} did not finish within {timeout_s:.0f} s.") from None
    finally:
        _kill(process)  # It still runs only if this task was cancelled.
    return ProcessResult(code=process.returncode, output=output.decode(errors="replace"))


class DetachedProcess:
    """A process that outlives this one and writes its output to the log.

    A thread reaps it: PostgreSQL would take a zombie for a running server and refuse to start.
    """

    def __init__(self, argv: Sequence[str], *, run_as: Account | None, log_fd: int) -> None:
        self._process = _spawn(argv, run_as=run_as, output=log_fd)
        threading.Thread(target=self._process.wait, name="postmaster-reaper", daemon=True).start()

    def stop(self) -> None:
        """Request a fast shutdown. Does nothing once the process has exited."""
        self._process.send_signal(signal.SIGINT)

    @property
    def exited(self) -> bool:
        return self._process.poll() is not None


def _spawn(
    argv: Sequence[str | Path], *, run_as: Account | None, output: int
) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [str(word) for word in argv],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        cwd="/",  # The account may not be able to enter our working directory.
        env=ENVIRONMENT,
        start_new_session=True,  # A Ctrl-C in the terminal must not reach the server.
        close_fds=True,  # The server must not inherit our locks.
        user=None if run_as is None else run_as.uid,
        group=None if run_as is None else run_as.gid,
        extra_groups=None if run_as is None else [],
        umask=0o077,
    )


def _communicate(process: "subprocess.Popen[bytes]", timeout_s: float) -> bytes:
    try:
        return process.communicate(timeout=timeout_s)[0]
    except subprocess.TimeoutExpired:
        _kill(process)
        process.communicate(timeout=KILL_TIMEOUT_S)
        raise


def _kill(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
