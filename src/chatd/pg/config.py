"""The embedded server's configuration, paths and PostgreSQL settings, and the error of this
package.

Settings go on the server's command line and not into its configuration file, so that a newer chatd
can change them for an existing cluster.
"""

import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec

USER: Final = "chatd"
DATABASE: Final = "chatd"
PORT: Final = 5432  # Only part of the socket's file name: the server opens no TCP port.
MIN_POSTGRES_MAJOR: Final = 15

SETTINGS: Final[Mapping[str, str]] = {
    "max_connections": "200",
    "shared_buffers": "128MB",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] ",
    # Checkpoints would log a line every five minutes. Warnings and errors are still logged.
    "log_checkpoints": "off",
    "jit": "off",
    # Files in the cluster instead of /dev/shm, which is tiny in containers, and which systemd
    # empties when the user logs out.
    "dynamic_shared_memory_type": "mmap",
    "cluster_name": "chatd",
}


class PgError(Exception):
    """The database cannot be used. The message tells the operator what is wrong and what to do."""


class EmbeddedConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Which database to use; every field has a default that works.

    `database_url` names an external server, which chatd does not supervise.
    `settings` override our PostgreSQL settings. Processes that share a data directory share one
    server, with the settings of the process that started it.
    `ready_timeout_s` bounds the wait for a server that recovers after a crash. The server goes on
    recovering after the timeout.
    """

    database_url: str | None = None
    data_dir: Path | None = None
    bin_dir: Path | None = None
    settings: Mapping[str, str] = {}
    ready_timeout_s: float = 120.0


def server_settings(socket_dir: Path, overrides: Mapping[str, str]) -> dict[str, str]:
    """Our defaults, then the caller's overrides, then the values that this package depends on."""
    fixed = {
        "listen_addresses": "",
        "port": str(PORT),
        "unix_socket_directories": str(socket_dir),
        "unix_socket_permissions": "0700",
        # Standard error is the log file that chatd bounds; the collector's files would grow.
        "logging_collector": "off",
        "log_destination": "stderr",
    }
    return {**SETTINGS, **overrides, **fixed}


def is_durable(settings: Mapping[str, str]) -> bool:
    """False when the settings turn fsync off: then initdb need not sync either."""
    return settings.get("fsync", "on").strip().lower() not in {"off", "false", "no", "0"}


# Paths: data directory, its contents, socket directory, connection URL. Pure: no file access.

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
