"""Paths: data directory, its contents, socket directory, connection URL. Pure: no file access."""

import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec

from chatd.pg.config import DATABASE, PORT, USER, PgError

SOCKET_NAME: Final = f".s.PGSQL.{PORT}"
MAX_SOCKET_PATH_BYTES: Final = 103 if sys.platform == "darwin" else 107
ROOT_RUN_DIR: Final = Path("/var/run" if sys.platform == "darwin" else "/run")
SHARED_DIR: Final = Path("/tmp")
ROOT_DATA_DIR: Final = Path("/var/lib/chatd/pg")


class ClusterLayout(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of one data directory, and the socket directory that belongs to it."""

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
    def start_stop_lock(self) -> Path:
        return self.data_dir / "gate.lock"

    @property
    def users_lock(self) -> Path:
        return self.data_dir / "users.lock"


def choose_data_dir(configured: Path | None, env: Mapping[str, str], *, uid: int) -> Path:
    """The configured directory; else /var/lib for root, the user's data home for other users."""
    if configured is not None:
        return configured
    if uid == 0:
        return ROOT_DATA_DIR
    if (data_home := env.get("XDG_DATA_HOME", "")).startswith("/"):  # XDG: ignore relative paths.
        return Path(data_home) / "chatd" / "pg"
    if (home := env.get("HOME", "")).startswith("/"):
        return Path(home) / ".local" / "share" / "chatd" / "pg"
    raise PgError(
        "There is no directory for the database: neither XDG_DATA_HOME nor HOME is set. "
        "Set one of them, or name a data directory or a database URL."
    )


def choose_socket_dir(data_dir: Path, *, owner: int, limit: int = MAX_SOCKET_PATH_BYTES) -> Path:
    """`run` in the data directory, or a short path if the kernel or PostgreSQL cannot use that one.

    The short path depends only on the data directory and its owner, not on the environment, so that
    processes started from a terminal and from cron find the same socket. It is not in
    XDG_RUNTIME_DIR, which is removed at logout while the server may still run.
    """
    inside = data_dir / "run"
    too_long = len(bytes(inside / SOCKET_NAME)) > limit
    # PostgreSQL and its clients parse the path as a list: commas and quotes are special.
    if not too_long and not set(str(inside)) & set(',"'):
        return inside
    digest = hashlib.sha256(bytes(data_dir)).hexdigest()[:16]
    return (ROOT_RUN_DIR if owner == 0 else SHARED_DIR) / f"chatd-{owner}-{digest}"


def connection_url(socket_dir: Path, database: str = DATABASE) -> str:
    """Sets port and sslmode explicitly, so that PGPORT and PGSSLMODE have no effect."""
    host = quote(str(socket_dir), safe="/")
    return f"postgresql://{USER}@/{database}?host={host}&port={PORT}&sslmode=disable"
