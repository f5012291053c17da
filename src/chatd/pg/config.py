"""What the embedded server is told: the caller's wishes and our settings for a small server.

Owns names and values only. Settings go on the server's command line and not into its
configuration file, so that a newer chatd can change them for an existing cluster.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

USER: Final = "chatd"
DATABASE: Final = "chatd"
PORT: Final = 5432  # Part of the socket's file name; nothing listens on the network.
OLDEST_MAJOR: Final = 15

SETTINGS: Final[Mapping[str, str]] = {
    "max_connections": "200",
    "shared_buffers": "128MB",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] ",
    # One line every five minutes for ever says nothing; warnings and errors stay.
    "log_checkpoints": "off",
    "jit": "off",
    # Files in the cluster instead of /dev/shm, which is tiny in containers, and which systemd
    # empties when the user logs out.
    "dynamic_shared_memory_type": "mmap",
    "cluster_name": "chatd",
}


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The caller's wishes. Everything left out has a default that works.

    `database_url` names a server that somebody else runs; then nothing is supervised.
    `settings` are PostgreSQL settings that override ours. Processes that share a data directory
    share one server: the settings of the one that starts it hold.
    `ready_within_s` is how long a server may take to recover after a crash before we give up
    waiting for it; it goes on recovering all the same.
    """

    database_url: str | None = None
    data_dir: Path | None = None
    bin_dir: Path | None = None
    settings: Mapping[str, str] = {}
    ready_within_s: float = 120.0


def server_settings(socket_dir: Path, wishes: Mapping[str, str]) -> dict[str, str]:
    """Ours, overridden by the caller's, overridden by what the supervisor depends on."""
    fixed = {
        "listen_addresses": "",
        "port": str(PORT),
        "unix_socket_directories": str(socket_dir),
        "unix_socket_permissions": "0700",
        # Standard error is the log file that we bound; a second writer would escape the bound.
        "logging_collector": "off",
        "log_destination": "stderr",
    }
    return {**SETTINGS, **wishes, **fixed}


def wants_durability(wishes: Mapping[str, str]) -> bool:
    """False when the caller has turned fsync off: then initdb need not sync either."""
    return wishes.get("fsync", "on").strip().lower() not in {"off", "false", "no", "0"}
