"""Where chatd looks: for its configuration file, and for a place for its data.

Owns the search order and the one read of the file. What is in it is for load.py to judge.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from chatd.settings.load import ConfigFile
from chatd.settings.tree import SettingsError

NAME: Final = "chatd.toml"
LARGEST: Final = 1_000_000


def read_config(flag: Path | None, env: Mapping[str, str], cwd: Path) -> ConfigFile | None:
    """The file that was asked for, which must be there; else the first of the usual ones."""
    named = flag or (Path(env["CHATD_CONFIG"]) if env.get("CHATD_CONFIG") else None)
    if named is not None:
        origin = "--config" if flag is not None else "CHATD_CONFIG"
        return _read(cwd / named, f"{origin}: cannot read")
    for path in (cwd / NAME, *_in_home(env)):
        # Unlike Path.exists, this does not mind a directory that we may not enter.
        if os.path.exists(path):
            return _read(path, "cannot read")
    return None


def default_data_dir(env: Mapping[str, str], *, uid: int) -> Path | None:
    """The system's place for root, the user's data home for everybody else who has one."""
    if uid == 0:
        return Path("/var/lib/chatd")
    # The XDG rule: a relative path there is to be ignored.
    if (data_home := env.get("XDG_DATA_HOME", "")).startswith("/"):
        return Path(data_home) / "chatd"
    if (home := env.get("HOME", "")).startswith("/"):
        return Path(home) / ".local" / "share" / "chatd"
    return None


def _in_home(env: Mapping[str, str]) -> list[Path]:
    if (config_home := env.get("XDG_CONFIG_HOME", "")).startswith("/"):
        return [Path(config_home) / "chatd" / NAME]
    if (home := env.get("HOME", "")).startswith("/"):
        return [Path(home) / ".config" / "chatd" / NAME]
    return []


def _read(path: Path, refusal: str) -> ConfigFile:
    try:
        with path.open("rb") as file:
            raw = file.read(LARGEST + 1)
        text = raw.decode()
    except OSError as error:
        raise SettingsError(f"{refusal} {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{refusal} {path}: it is not UTF-8 text") from None
    if len(raw) > LARGEST:
        raise SettingsError(f"{refusal} {path}: it is larger than {LARGEST} bytes")
    return ConfigFile(path=path, text=text)
