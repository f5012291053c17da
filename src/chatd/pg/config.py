"""The embedded server's configuration, its PostgreSQL settings, and the error of this package.

Settings go on the server's command line and not into its configuration file, so that a newer chatd
can change them for an existing cluster.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

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
