"""The cluster on disk: making one, and its major version.

A cluster is made under another name and renamed when it is complete, so one that was being made
when the power went is never mistaken for a cluster.
"""

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
from chatd.pg.process import last_lines, run

INITDB_S: Final = 180.0
UNFINISHED: Final = "cluster.new-"
BUILTIN_LOCALES_SINCE: Final = 17


def require(cluster: Path) -> None:
    if not cluster.exists():
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
        argv = initdb_command(binaries, unfinished, durable=durable)
        done = await run(argv, run_as=account, timeout_s=INITDB_S)
        if done.code != 0:
            raise PgError(explain_failed_initdb(layout.data_dir, done.output))
        unfinished.rename(layout.cluster)
        _sync_dir(layout.data_dir)
    except OSError as error:
        raise PgError(f"Cannot create the database in {layout.data_dir}: {error}.") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def initdb_command(binaries: Binaries, target: Path, *, durable: bool) -> list[str | Path]:
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
    if binaries.major >= BUILTIN_LOCALES_SINCE:
        # The same order as C, and upper and lower case beyond ASCII, whatever the host has.
        argv += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
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
            f"Free some space or choose another data directory. initdb said:\n{said}"
        )
    return f"Creating the database in {data_dir} failed. initdb said:\n{said}"
