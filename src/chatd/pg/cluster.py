"""The cluster on disk: making one, its major version, and the lock file a dead server left.

A cluster is made under another name and renamed when it is complete, so one that was being made
when the power went is never mistaken for a cluster.
"""

import contextlib
import os
import secrets
import shutil
from pathlib import Path
from typing import Final

from chatd.pg.account import Account
from chatd.pg.binaries import Binaries
from chatd.pg.config import USER
from chatd.pg.dirs import make_private_dir
from chatd.pg.errors import PgError
from chatd.pg.places import Layout
from chatd.pg.process import run

INITDB_S: Final = 180.0
UNFINISHED: Final = "cluster.new-"


def exists(cluster: Path) -> bool:
    return cluster.exists()


def require(cluster: Path) -> None:
    if not exists(cluster):
        raise PgError(
            f"The database in {cluster} has vanished while it was in use. Restore it (or mount "
            "its file system again); restart chatd to begin with an empty one."
        )


async def create(
    layout: Layout, binaries: Binaries, account: Account | None, *, durable: bool
) -> None:
    """Run initdb beside the final place and move the result there. Behind the gate only."""
    _remove_unfinished(layout.data_dir)
    # A fresh name each time: the initdb of a killed chatd may still be writing to the last one.
    unfinished = layout.data_dir / f"{UNFINISHED}{secrets.token_hex(4)}"
    try:
        make_private_dir(unfinished, account)
        argv = _initdb(binaries, unfinished, durable=durable)
        done = await run(argv, run_as=account, timeout_s=INITDB_S)
        if done.code != 0:
            raise PgError(explain_failed_initdb(layout.data_dir, done.output))
        unfinished.rename(layout.cluster)
        _sync_dir(layout.data_dir)
    except OSError as error:
        raise PgError(f"Cannot create the database in {layout.data_dir}: {error}.") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _initdb(binaries: Binaries, target: Path, *, durable: bool) -> list[str | Path]:
    argv: list[str | Path] = [
        binaries.program("initdb"),
        f"--pgdata={target}",
        f"--username={USER}",
        # The socket's directory keeps others out; there is no network to guard.
        "--auth-local=trust",
        "--auth-host=reject",
        "--encoding=UTF8",
        "--locale=C",
        "--no-instructions",
    ]
    return argv if durable else [*argv, "--no-sync"]


def _remove_unfinished(data_dir: Path) -> None:
    for path in data_dir.glob(f"{UNFINISHED}*"):
        shutil.rmtree(path, ignore_errors=True)


def _sync_dir(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def explain_failed_initdb(data_dir: Path, output: str) -> str:
    said = last_lines(output)
    if "No space left on device" in output or "Disk quota exceeded" in output:
        return (
            f"There is no room for the database in {data_dir}: it needs about 40 MB to begin with. "
            f"Free some space or choose another data directory. initdb said: {said}"
        )
    return f"Creating the database in {data_dir} failed. initdb said: {said}"


def last_lines(text: str, count: int = 8) -> str:
    return "\n".join(text.strip().splitlines()[-count:])


def clear_stale_lock(layout: Layout) -> None:
    """Make a dead server's lock file harmless. Behind the gate, when nobody listens.

    PostgreSQL asks only whether some process has the pid in that file. After a restart of a
    container that may be anybody, and where nothing reaps orphans it is a zombie for ever; either
    way it would refuse to start for good. The file itself must stay: it also names the shared
    memory by which PostgreSQL sees whether a backend of the dead server is still at work.
    """
    lock = layout.cluster / "postmaster.pid"
    try:
        lines = lock.read_text().splitlines(keepends=True)
    except FileNotFoundError:
        lines = []
    if lines and not is_gone(int(lines[0]), layout.cluster):
        return
    if lines:
        lines[0] = f"{os.getpid()}\n"  # A server's own parent is never taken for a rival.
        _replace(lock, "".join(lines))
    else:
        lock.unlink(missing_ok=True)
    for name in (layout.socket, layout.socket.with_name(f"{layout.socket.name}.lock")):
        name.unlink(missing_ok=True)


def is_gone(pid: int, cluster: Path, proc: Path = Path("/proc")) -> bool:
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
