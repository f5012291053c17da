"""What a dead server leaves behind, made harmless so that the next one can start.

PostgreSQL asks only whether some process has the pid in its lock file. After a restart of a
container that may be anybody's, and where nothing reaps orphans it is a zombie's for ever; either
way it would refuse to start for good.
"""

import contextlib
import os
import secrets
from pathlib import Path
from typing import Final

from chatd.pg.places import Layout

PROC: Final = Path("/proc")


def clear(layout: Layout) -> None:
    """Behind the gate, when nobody listens. Changes nothing if a server may still be at work.

    The lock file itself stays: it also names the shared memory by which PostgreSQL sees whether a
    backend of the dead server still runs.
    """
    lock = layout.cluster / "postmaster.pid"
    try:
        lines = lock.read_text().splitlines(keepends=True)
        pid = abs(int(lines[0])) if lines else None  # Negative: single-user mode.
    except FileNotFoundError:
        pid, lines = None, []
    except ValueError:
        return  # Not PostgreSQL's writing; it will say so better than we can.
    if pid is not None and not is_gone(pid, layout.cluster):
        return
    if lines:
        # A server's own parent is never taken for a rival.
        _replace(lock, "".join([f"{os.getpid()}\n", *lines[1:]]))
    else:
        lock.unlink(missing_ok=True)
    for name in (layout.socket, layout.socket.with_name(f"{layout.socket.name}.lock")):
        name.unlink(missing_ok=True)


def is_gone(pid: int, cluster: Path, proc: Path = PROC) -> bool:
    """True when the pid is surely not a server of this cluster (a server's cwd is its cluster)."""
    if not (proc / "self").exists():
        return False
    here = proc / str(pid)
    try:
        state = (here / "stat").read_text().rpartition(")")[2].split()[0]
        return state in {"Z", "X"} or os.readlink(here / "cwd") != str(cluster.resolve())
    except (FileNotFoundError, ProcessLookupError):
        return True
    except OSError:
        return False


def _replace(path: Path, text: str) -> None:
    owner = path.lstat()
    new = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with contextlib.closing(os.fdopen(fd, "w")) as file:
        file.write(text)
        if os.geteuid() == 0:
            os.fchown(fd, owner.st_uid, owner.st_gid)
    new.rename(path)
