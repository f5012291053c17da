"""The sign-ins of `chatd login`: servers and tokens by name, in one file that only this account can
read. The last sign-in is the one that counts unless another is named."""

import json
import re
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from uuid import UUID

import msgspec
from msgspec import Struct

from chatd import secret_files
from chatd.client.exchange import ServerAddress
from chatd.domain.ids import CredentialId
from chatd.settings.schema import SettingsError

FILE_NAME: Final = "profiles.toml"
MAX_FILE_BYTES: Final = 1_000_000
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HEAD: Final = "# Written by chatd login. It contains tokens: keep it to yourself."


class SavedSignIn(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`token_id` is that of a token which `chatd login` made, and `chatd logout` revokes."""

    url: str
    token: str
    username: str = ""
    token_id: UUID | None = None

    def __repr__(self) -> str:
        return f"SavedSignIn(url={self.url!r}, username={self.username!r})"

    @property
    def server(self) -> ServerAddress:
        return ServerAddress(url=self.url, token=self.token)

    @property
    def made(self) -> CredentialId | None:
        return None if self.token_id is None else CredentialId(self.token_id)


class _File(Struct, frozen=True, kw_only=True):
    default: str = ""
    profiles: dict[str, SavedSignIn] = {}


class Profiles:
    def __init__(self, path: Path) -> None:
        """Raises SettingsError."""
        self.path = path
        found = _read(path)
        self.default = found.default if found.default in found.profiles else ""
        self._saved = dict(found.profiles)

    @property
    def names(self) -> list[str]:
        return sorted(self._saved)

    def get(self, name: str) -> SavedSignIn:
        """Raises SettingsError."""
        if (saved := self._saved.get(name)) is not None:
            return saved
        known = f"There are {', '.join(self.names)}" if self.names else "There is none yet"
        raise SettingsError(
            f"there is no profile {name!r} in {self.path}. {known}: chatd login URL --profile"
            f" {name} makes it"
        )

    def find(self, name: str) -> SavedSignIn | None:
        return self._saved.get(name)

    def find_url(self, url: str) -> tuple[str, SavedSignIn] | None:
        """The sign-in at this server; of several the default one."""
        at = [(name, one) for name, one in self._saved.items() if one.url == url]
        return min(at, key=lambda pair: pair[0] != self.default, default=None)

    def save(self, name: str, saved: SavedSignIn) -> None:
        """It is the default from now on. Raises SettingsError."""
        self._saved[check_name(name)] = saved
        self.default = name
        self._write()

    def forget(self, name: str) -> None:
        """Raises SettingsError."""
        self._saved.pop(name, None)
        if self.default == name:
            self.default = self.names[0] if len(self.names) == 1 else ""
        self._write()

    def _write(self) -> None:
        lines = [_HEAD, f"default = {_quoted(self.default)}"]
        for name in self.names:
            lines += ["", f"[profiles.{_quoted(name)}]"]
            fields = msgspec.to_builtins(self._saved[name])
            lines += [f"{field} = {_quoted(str(value))}" for field, value in fields.items()]
        try:
            secret_files.replace(self.path, "\n".join(lines))
        except OSError as error:
            raise SettingsError(f"cannot write {self.path}: {error.strerror}") from None


def profiles_path(env: Mapping[str, str]) -> Path:
    """Raises SettingsError."""
    if (config_home := env.get("XDG_CONFIG_HOME", "")).startswith("/"):
        return Path(config_home) / "chatd" / FILE_NAME
    if (home := env.get("HOME", "")).startswith("/"):
        return Path(home) / ".config" / "chatd" / FILE_NAME
    raise SettingsError("no place for profiles: set HOME or XDG_CONFIG_HOME")


def check_name(name: str) -> str:
    """Raises SettingsError."""
    if _NAME.fullmatch(name) is None:
        raise SettingsError(
            "--profile: a name has 1 to 64 letters, digits and . _ -, and begins with a letter or"
            " digit"
        )
    return name


def _read(path: Path) -> _File:
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(path.stat().st_mode)
            raw = file.read(MAX_FILE_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return _File()
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from None
    if mode & 0o077:
        raise SettingsError(
            f"{path} contains tokens and other users can read it: run chmod 600 {path}"
        )
    try:
        return msgspec.convert(tomllib.loads(raw.decode()), _File)
    except (ValueError, msgspec.ValidationError) as error:
        # The text of the file has tokens: only the place and the reason are told.
        reason = str(error).splitlines()[0]
        raise SettingsError(
            f"{path} cannot be understood ({reason}): correct it, or remove it and sign in again"
            " with chatd login"
        ) from None


def _quoted(text: str) -> str:
    """A string of JSON is one of TOML too."""
    return json.dumps(text)
