"""The address of the server that uses a data directory, for commands beside it.

Flags give a server another port than its settings: so it writes its address down while it runs.
"""

import os
from pathlib import Path
from typing import Final

from chatd import secret_files

ADDRESS_FILE: Final = "address"


def write_address(data_dir: Path, url: str) -> None:
    """Of this process; the last server that started counts."""
    secret_files.replace(data_dir / ADDRESS_FILE, f"{os.getpid()} {url}\n")


def forget_address(data_dir: Path) -> None:
    """If it is this process's own."""
    if _read(data_dir)[0] == os.getpid():
        (data_dir / ADDRESS_FILE).unlink(missing_ok=True)


def read_address(data_dir: Path) -> str | None:
    """None if no server runs here. One that was killed leaves its address."""
    process, url = _read(data_dir)
    return url if process is not None and _is_running(process) else None


def _read(data_dir: Path) -> tuple[int | None, str]:
    try:
        found = secret_files.read(data_dir / ADDRESS_FILE)
    except OSError:
        found = None
    process, _, url = (found or "").partition(" ")
    return (int(process), url) if process.isdecimal() and url else (None, "")


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return True
