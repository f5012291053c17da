"""Which server a command talks to, and with which token.

Flags count before the environment, that before the profiles of `chatd login`, and those before the
server of the data directory. A token is only used for the server that it was given for.

A server writes its address into its data directory while it runs: flags give it another port than
its settings. The profiles are servers and tokens by name, in one file that only this account can
read; the last sign-in is the one that counts unless another is named.
"""

import json
import os
import re
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from uuid import UUID

import msgspec
from msgspec import Struct

from chatd import sealed_secrets
from chatd.client.exchange import ServerAddress, clean_url, is_loopback
from chatd.domain.errors import InvalidInput
from chatd.domain.ids import CredentialId
from chatd.settings.config_file import default_data_dir, read_config
from chatd.settings.schema import SettingsError

# The address of the server that uses a data directory

ADDRESS_FILE: Final = "address"


def write_address(data_dir: Path, url: str) -> None:
    """Of this process; the last server that started counts."""
    sealed_secrets.replace(data_dir / ADDRESS_FILE, f"{os.getpid()} {url}\n")


def forget_address(data_dir: Path) -> None:
    """If it is this process's own."""
    if _read_address(data_dir)[0] == os.getpid():
        (data_dir / ADDRESS_FILE).unlink(missing_ok=True)


def read_address(data_dir: Path) -> str | None:
    """None if no server runs here. One that was killed leaves its address."""
    process, url = _read_address(data_dir)
    return url if process is not None and _is_running(process) else None


def _read_address(data_dir: Path) -> tuple[int | None, str]:
    try:
        found = sealed_secrets.read(data_dir / ADDRESS_FILE)
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


# Profiles

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
        found = _read_profiles(path)
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
            sealed_secrets.replace(self.path, "\n".join(lines))
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


def _read_profiles(path: Path) -> _File:
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


DEFAULT_URL: Final = "http://127.0.0.1:7870"
ADMIN_TOKEN_FILE: Final = "admin-token"
MAX_TOKEN_BYTES: Final = 4096
_NO_SERVER: Final = (
    "no server is known here: start one with chatd serve, or sign in at one with chatd login URL"
)
_NO_TOKEN: Final = (
    "no token: set CHATD_TOKEN, or name a file with --token-file, or sign in with chatd login URL."
    " On the server's own machine the administrator's token is in the data directory (--data-dir)"
)


class Target(Struct, frozen=True, kw_only=True):
    """`profile` is the name of the sign-in that was used."""

    server: ServerAddress
    profile: str | None = None


def find_server(
    url: str | None = None,
    token_file: Path | None = None,
    profile: str | None = None,
    data_dir: str | Path | None = None,
) -> Target:
    """By the flags of a command and this process's environment. Raises SettingsError."""
    flags = TargetFlags(
        url=url,
        token_file=token_file,
        profile=profile,
        data_dir=None if data_dir is None else Path(data_dir),
    )
    return choose_server(flags, os.environ, uid=os.geteuid())


def own_data_dir(flags: "TargetFlags", env: Mapping[str, str], *, uid: int) -> Path | None:
    """The data directory whose server a command would use. None if it would use another server.
    Raises SettingsError."""
    return _Choice(flags, env, uid).own_data_dir()


class TargetFlags(Struct, frozen=True, kw_only=True):
    url: str | None = None
    token_file: Path | None = None
    profile: str | None = None
    data_dir: Path | None = None


def choose_server(flags: TargetFlags, env: Mapping[str, str], *, uid: int) -> Target:
    """Raises SettingsError."""
    return _Choice(flags, env, uid).choose()


class _Choice:
    def __init__(self, flags: TargetFlags, env: Mapping[str, str], uid: int) -> None:
        if flags.url is not None and flags.profile is not None:
            raise SettingsError("--url and --profile both name a server: give one of them")
        self._flags = flags
        self._env = env
        named = flags.data_dir or (Path(at) if (at := env.get("CHATD_DATA_DIR")) else None)
        self._data_dir = named or _configured_data_dir(env) or default_data_dir(env, uid=uid)
        self._is_data_dir_named = named is not None

    def choose(self) -> Target:
        return self._named() or self._local()

    def own_data_dir(self) -> Path | None:
        return self._data_dir if self._named() is None else None

    def _named(self) -> Target | None:
        """The server that a flag, the environment or a sign-in names."""
        flags, env = self._flags, self._env
        if flags.url is not None:
            return self._at_url(flags.url, "--url")
        if flags.profile is not None:
            return self._by_profile(flags.profile)
        if flags.data_dir is not None:
            return None
        if url := env.get("CHATD_URL"):
            return self._at_url(url, "CHATD_URL")
        if name := env.get("CHATD_PROFILE"):
            return self._by_profile(name)
        if self._given_token() is None and (profiles := self._profiles()) and profiles.default:
            return self._by_profile(profiles.default)
        return None

    def _at_url(self, text: str, origin: str) -> Target:
        try:
            url = clean_url(text)
        except InvalidInput as error:
            raise SettingsError(f"{origin}: {error.detail}") from None
        if (token := self._given_token()) is not None:
            return Target(server=ServerAddress(url=url, token=token))
        if (profiles := self._profiles()) is not None and (found := profiles.find_url(url)):
            name, saved = found
            return Target(server=saved.server, profile=name)
        is_own = self._is_data_dir_named or is_loopback(urlsplit(url).hostname or "")
        return Target(server=ServerAddress(url=url, token=self._admin_token(is_own=is_own)))

    def _by_profile(self, name: str) -> Target:
        """A token of the environment is not for the profile that a flag names."""
        saved = Profiles(profiles_path(self._env)).get(name)
        is_flag = self._flags.profile is not None and self._flags.token_file is None
        token = None if is_flag else self._given_token()
        server = saved.server if token is None else ServerAddress(url=saved.url, token=token)
        return Target(server=server, profile=name)

    def _local(self) -> Target:
        """The server that uses the data directory, also if it does not run just now."""
        token = self._given_token()
        url = None if self._data_dir is None else read_address(self._data_dir)
        if token is None:
            token = self._admin_token(is_own=True)
        return Target(server=ServerAddress(url=url or DEFAULT_URL, token=token))

    def _given_token(self) -> str | None:
        """By a flag or the environment."""
        if self._flags.token_file is not None:
            return read_token_file(self._flags.token_file)
        if token := self._env.get("CHATD_TOKEN", "").strip():
            return token
        if path := self._env.get("CHATD_TOKEN_FILE"):
            return read_token_file(Path(path))
        return None

    def _admin_token(self, *, is_own: bool) -> str:
        """That of the variable which servers read too, as in a container, or of the data directory.
        A server elsewhere is not told the token of this one."""
        is_named = self._is_data_dir_named or self._flags.url or self._env.get("CHATD_URL")
        refusal = _NO_TOKEN if is_named else _NO_SERVER
        if self._data_dir is None or not is_own:
            raise SettingsError(refusal)
        if token := self._env.get("CHATD_ADMIN_TOKEN", "").strip():
            return check_token(token, "CHATD_ADMIN_TOKEN")
        try:
            return read_token_file(self._data_dir / ADMIN_TOKEN_FILE)
        except SettingsError:
            raise SettingsError(refusal) from None

    def _profiles(self) -> Profiles | None:
        """None without a home directory."""
        try:
            path = profiles_path(self._env)
        except SettingsError:
            return None
        return Profiles(path)


def _configured_data_dir(env: Mapping[str, str]) -> Path | None:
    """That of the user's chatd.toml. The one of the current directory does not count: it may be
    somebody else's, and would name the server to which prompts are sent."""
    try:
        config = read_config(None, env, Path.cwd() if env.get("CHATD_CONFIG") else Path(os.devnull))
        found = {} if config is None else tomllib.loads(config.text)
    except (SettingsError, ValueError):
        return None
    at = found.get("data_dir")
    return Path(at) if isinstance(at, str) and at.startswith("/") else None


def read_token_file(path: Path) -> str:
    """Raises SettingsError."""
    try:
        with path.open("rb") as file:
            token = file.read(MAX_TOKEN_BYTES).decode(errors="replace").strip()
    except OSError as error:
        raise SettingsError(f"cannot read the token: {path}: {error.strerror}") from None
    return check_token(token, str(path))


def check_token(token: str, origin: str) -> str:
    """Raises SettingsError: the text never contains the token."""
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise SettingsError(f"{origin} contains no token: it must be one line of plain characters")
    return token
