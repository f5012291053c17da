"""Where things are: data directory, its inner layout, socket directory, connection address.

Pure: paths in, paths out. Creating and checking directories is `dirs`.
"""

import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec

from chatd.pg.config import DATABASE, PORT, USER
from chatd.pg.errors import PgError

SOCKET_NAME: Final = f".s.PGSQL.{PORT}"
SOCKET_PATH_MAX: Final = 103 if sys.platform == "darwin" else 107
ROOT_RUN_DIR: Final = Path("/var/run" if sys.platform == "darwin" else "/run")
SHARED_DIR: Final = Path("/tmp")
ROOT_DATA_DIR: Final = Path("/var/lib/chatd/pg")


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """The inside of one data directory, and the socket directory that belongs to it."""

    data_dir: Path
    socket_dir: Path

    @property
    def cluster(self) -> Path:
        """PostgreSQL's own directory. It exists only once initdb has finished."""
        return self.data_dir / "cluster"

    @property
    def socket(self) -> Path:
        return self.socket_dir / SOCKET_NAME

    @property
    def log(self) -> Path:
        return self.data_dir / "server.log"

    @property
    def gate(self) -> Path:
        return self.data_dir / "gate.lock"

    @property
    def users(self) -> Path:
        return self.data_dir / "users.lock"


def choose_data_dir(wish: Path | None, env: Mapping[str, str], *, uid: int) -> Path:
    """The wish; else the system's place for root and the user's data home for everybody else."""
    if wish is not None:
        return wish
    if uid == 0:
        return ROOT_DATA_DIR
    if (data_home := env.get("XDG_DATA_HOME", "")).startswith("/"):  # The XDG rule: else ignore it.
        return Path(data_home) / "chatd" / "pg"
    if (home := env.get("HOME", "")).startswith("/"):
        return Path(home) / ".local" / "share" / "chatd" / "pg"
    raise PgError(
        "There is no place for the database: neither XDG_DATA_HOME nor HOME is set. "
        "Set one of them, or name a data directory or a database URL."
    )


def choose_socket_dir(data_dir: Path, *, owner: int, limit: int = SOCKET_PATH_MAX) -> Path:
    """`run` in the data directory, or a short path when the kernel or PostgreSQL cannot take that.

    The short path depends on the data directory and its owner alone, not on the environment:
    processes started from a terminal and from cron must meet at the same socket. It is not in
    XDG_RUNTIME_DIR because that goes away at logout while the server may live on.
    """
    inside = data_dir / "run"
    too_long = len(bytes(inside / SOCKET_NAME)) > limit
    # PostgreSQL and the clients read a list here: a comma separates, a quote quotes.
    if not too_long and not set(str(inside)) & set(',"'):
        return inside
    digest = hashlib.sha256(bytes(data_dir)).hexdigest()[:16]
    return (ROOT_RUN_DIR if owner == 0 else SHARED_DIR) / f"chatd-{owner}-{digest}"


def address(socket_dir: Path, database: str = DATABASE) -> str:
    """Port and sslmode are given, or PGPORT and PGSSLMODE in the caller's shell would decide."""
    host = quote(str(socket_dir), safe="/")
    return f"postgresql://{USER}@/{database}?host={host}&port={PORT}&sslmode=disable"
