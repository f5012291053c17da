"""Who this host is, and the secret that the keys of agents are made from: kept in the data
directory, where several servers that start at once agree on them."""

import secrets
from pathlib import Path
from typing import Final

from chatd.domain.errors import ChatdError
from chatd.secret_files import load_or_create

HOST: Final = "host-id"
SECRET: Final = "secret"
_LEAST: Final = 16


def host_id(data_dir: Path) -> str:
    """Workspaces on this host are found by whoever shares its data directory."""
    return _kept(data_dir / HOST)


def server_secret(given: str | None, data_dir: Path) -> bytes:
    """As given, which several hosts need; else as kept."""
    text = _kept(data_dir / SECRET) if given is None else given.strip()
    if len(text) < _LEAST:
        name = data_dir / SECRET if given is None else "CHATD_SECRET"
        raise ChatdError(f"{name} is too short: at least {_LEAST} characters", code="settings")
    return text.encode()


def _kept(path: Path) -> str:
    try:
        return load_or_create(path, lambda: secrets.token_hex(32))
    except OSError as error:
        raise ChatdError(f"cannot keep {path}: {error.strerror}") from error
