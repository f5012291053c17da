"""Which server a command talks to, and with which token.

Flags count before the environment, that before the profiles of `chatd login`, and those before the
server of the data directory. A token is only used for the server that it was given for.
"""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct

from chatd.cli.profiles import Profiles, profiles_path
from chatd.cli.server_address import read_address
from chatd.client.exchange import ServerAddress, clean_url, is_loopback
from chatd.domain.errors import InvalidInput
from chatd.settings.config_file import default_data_dir, read_config
from chatd.settings.schema import SettingsError

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
        flags, env = self._flags, self._env
        if flags.url is not None:
            return self._at_url(flags.url, "--url")
        if flags.profile is not None:
            return self._by_profile(flags.profile)
        if flags.data_dir is not None:
            return self._local()
        if url := env.get("CHATD_URL"):
            return self._at_url(url, "CHATD_URL")
        if name := env.get("CHATD_PROFILE"):
            return self._by_profile(name)
        if self._given_token() is None and (profiles := self._profiles()) and profiles.default:
            return self._by_profile(profiles.default)
        return self._local()

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
        """A server elsewhere is not told the token of this one."""
        is_named = self._is_data_dir_named or self._flags.url or self._env.get("CHATD_URL")
        refusal = _NO_TOKEN if is_named else _NO_SERVER
        if self._data_dir is None or not is_own:
            raise SettingsError(refusal)
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
