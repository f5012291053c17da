"""Who this host is, and the secret that the keys of agents are made from: kept in the data
directory, where several servers that start at once agree on them."""

import os
import secrets
from pathlib import Path
from typing import Final

from chatd.domain.errors import ChatdError

HOST: Final = "host-id"
SECRET: Final = "secret"
_LEAST: Final = 16
_MOST: Final = 4096


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
        if not path.exists():
            _make(path)
        with path.open("rb") as file:
            return file.read(_MOST).decode("ascii", "replace").strip()
    except OSError as error:
        raise ChatdError(f"cannot keep {path}: {error.strerror}") from error


def _make(path: Path) -> None:
    """Whole or not at all, for our eyes only, and never over one that is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(f"{secrets.token_hex(32)}\n")
            file.flush()
            os.fsync(file.fileno())
        if not path.exists():
            os.link(new, path)
    except FileExistsError:
        return
    finally:
        new.unlink(missing_ok=True)
