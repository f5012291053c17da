"""Create a cluster on disk.

initdb runs under another name and the result is renamed when complete, so that a cluster left
unfinished by a power cut is never used.
"""

import os
import secrets
import shutil
from pathlib import Path
from typing import Final

from chatd.pg.account import Account
from chatd.pg.binaries import Binaries
from chatd.pg.config import USER, PgError
from chatd.pg.directories import create_private_dir
from chatd.pg.layout import ClusterLayout
from chatd.pg.process import last_lines, run

INITDB_TIMEOUT_S: Final = 180.0
UNFINISHED: Final = "cluster.new-"
BUILTIN_LOCALES_SINCE: Final = 17


def require_cluster(cluster: Path) -> None:
    if not cluster.exists():
        raise PgError(
            f"The database in {cluster} has vanished while it was in use. Restore it (or mount "
            "its file system again); restart chatd to begin with an empty one."
        )


async def create_cluster(
    layout: ClusterLayout, binaries: Binaries, account: Account | None, *, durable: bool
) -> None:
    """Run initdb and rename its result. Call it under the start/stop lock."""
    for path in layout.data_dir.glob(f"{UNFINISHED}*"):
        shutil.rmtree(path, ignore_errors=True)
    # A new name each time: the initdb of a killed chatd may still be writing to the last one.
    unfinished = layout.data_dir / f"{UNFINISHED}{secrets.token_hex(4)}"
    try:
        create_private_dir(unfinished, account)
        argv = initdb_command(binaries, unfinished, durable=durable)
        done = await run(argv, run_as=account, timeout_s=INITDB_TIMEOUT_S)
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
        # The mode of the socket's directory restricts access; there is no TCP port.
        "--auth-local=trust",
        "--auth-host=reject",
        "--encoding=UTF8",
        "--locale=C",
        "--no-instructions",
    ]
    if binaries.major >= BUILTIN_LOCALES_SINCE:
        # Sorts as C does, and knows upper and lower case beyond ASCII, on every host.
        argv += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    return argv if durable else [*argv, "--no-sync"]


def _sync_dir(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def explain_failed_initdb(data_dir: Path, output: str) -> str:
    end = last_lines(output)
    if "No space left on device" in output or "Disk quota exceeded" in output:
        return (
            f"There is not enough disk space for the database in {data_dir}: it needs about 40 MB "
            f"at first. Free some space or choose another data directory. initdb printed:\n{end}"
        )
    return f"Creating the database in {data_dir} failed. initdb printed:\n{end}"
