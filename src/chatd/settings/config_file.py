"""Finds and reads chatd.toml, and chooses the default data directory."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from chatd.settings.loader import ConfigFile
from chatd.settings.schema import SettingsError

CONFIG_FILE_NAME: Final = "chatd.toml"
MAX_CONFIG_BYTES: Final = 1_000_000


def read_config(flag: Path | None, env: Mapping[str, str], cwd: Path) -> ConfigFile | None:
    """The named file, which must exist; else the first existing default file."""
    named = flag or (Path(env["CHATD_CONFIG"]) if env.get("CHATD_CONFIG") else None)
    if named is not None:
        origin = "--config" if flag is not None else "CHATD_CONFIG"
        return _read(cwd / named, f"{origin}: cannot read")
    for path in (cwd / CONFIG_FILE_NAME, *_in_home(env)):
        # Unlike Path.exists, this returns False for a directory without permission.
        if os.path.exists(path):
            return _read(path, "cannot read")
    return None


def default_data_dir(env: Mapping[str, str], *, uid: int) -> Path | None:
    """`/var/lib/chatd` for root; else below the user's data home, if it has one."""
    if uid == 0:
        return Path("/var/lib/chatd")
    # The XDG specification says to ignore a relative path.
    if (data_home := env.get("XDG_DATA_HOME", "")).startswith("/"):
        return Path(data_home) / "chatd"
    if (home := env.get("HOME", "")).startswith("/"):
        return Path(home) / ".local" / "share" / "chatd"
    return None


def _in_home(env: Mapping[str, str]) -> list[Path]:
    if (config_home := env.get("XDG_CONFIG_HOME", "")).startswith("/"):
        return [Path(config_home) / "chatd" / CONFIG_FILE_NAME]
    if (home := env.get("HOME", "")).startswith("/"):
        return [Path(home) / ".config" / "chatd" / CONFIG_FILE_NAME]
    return []


def _read(path: Path, refusal: str) -> ConfigFile:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_CONFIG_BYTES + 1)
        text = raw.decode()
    except OSError as error:
        raise SettingsError(f"{refusal} {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{refusal} {path}: the file is not UTF-8 text") from None
    if len(raw) > MAX_CONFIG_BYTES:
        raise SettingsError(f"{refusal} {path}: the file is larger than {MAX_CONFIG_BYTES} bytes")
    return ConfigFile(path=path, text=text)
