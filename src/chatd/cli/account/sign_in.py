"""The work of `chatd login`, `logout`, `whoami` and `tokens`."""

import getpass
import os
import re
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Final, get_args
from urllib.parse import urlsplit

import aiohttp
import msgspec
from msgspec import Struct

from chatd.cli.api_session import UsageProblem
from chatd.cli.chats.run_request import read_id
from chatd.cli.output import (
    print_json,
    print_json_line,
    print_notice,
    print_table,
    print_text,
    short_time,
)
from chatd.cli.target import (
    Profiles,
    SavedSignIn,
    Target,
    check_name,
    check_token,
    profiles_path,
    read_token_file,
)
from chatd.client.errors import ApiError, ServerUnreachable
from chatd.client.exchange import ServerAddress, clean_url, is_loopback
from chatd.client.resources import CreatedToken, Token
from chatd.client.server import ServerApi, open_api, open_session
from chatd.domain.access.permissions import TokenScope
from chatd.domain.errors import ChatdError, InvalidInput
from chatd.domain.ids import CredentialId
from chatd.settings.schema import SettingsError
from chatd.terminal.safe_text import safe_line

MAX_TOKEN_NAME: Final = 100
MAX_LINE_CHARS: Final = 4096
MAX_SHOWN: Final = 1000
"""A server names its users as it likes."""
PATIENCE_S: Final = 3.0
"""A person waits: report an unreachable server quickly."""
_LINK: Final = "/sign-in"
_ASKED: Final = "-"
"""In place of a link, which is then asked for."""


class NotEncrypted(ChatdError):
    """Everybody on the way could read the password."""

    code = "not_encrypted"

    def __init__(self, url: str) -> None:
        super().__init__(
            f"The connection to {url} is not encrypted: nothing was sent. Use the server's https"
            " address, or sign in with a token (--token-file)."
        )


class Given(Struct, frozen=True, kw_only=True):
    """How the user signs in: with a token, a password, or the secret of a link."""

    url: str
    token: str = ""
    username: str = ""
    password: str = ""
    link_secret: str = ""

    def __repr__(self) -> str:
        return f"Given(url={self.url!r})"


def read_given(text: str, username: str | None, token_file: Path | None) -> Given:
    """Asks on a terminal only. Raises SettingsError."""
    if username is not None and token_file is not None:
        raise SettingsError("--username and --token-file are two ways to sign in: give one of them")
    if text == _ASKED:
        text = _read_link()
    address, _, secret = text.partition("#")
    try:
        url = clean_url(address.strip().rstrip("/").removesuffix(_LINK) if secret else address)
    except InvalidInput as error:
        raise SettingsError(f"URL: {error.detail}") from None
    if secret:
        return Given(url=url, link_secret=secret.strip())
    if token_file is not None and str(token_file) != "-":
        return Given(url=url, token=read_token_file(token_file))
    is_terminal = sys.stdin.isatty()
    if token_file is not None or (username is None and not is_terminal):
        return Given(url=url, token=check_token(_read_line(), "standard input"))
    if username is None:
        username = _ask("Username: ")
    password = getpass.getpass(f"Password of {username}: ") if is_terminal else _read_line()
    return Given(url=url, username=username, password=password)


def _read_link() -> str:
    """Hidden on a terminal, else the first line of standard input: other users of the machine can
    read the arguments of a process. Raises SettingsError."""
    link = getpass.getpass("Sign-in link: ") if sys.stdin.isatty() else _read_line()
    if not link.partition("#")[2].strip():
        raise SettingsError("that is no sign-in link: it has the form URL/sign-in#SECRET")
    return link.strip()


async def sign_in(given: Given, profile: str | None) -> None:
    name = check_name(profile or _name_of(given.url))
    path = profiles_path(os.environ)
    Profiles(path)
    saved = await _make_token(given)
    # Read again: another command may have written it meanwhile.
    profiles = Profiles(path)
    before = profiles.find(name)
    try:
        profiles.save(name, saved)
    except SettingsError:
        await _revoke(saved)
        raise
    # A token ends with the one that it was made with.
    if before is not None and before.token != given.token:
        await _revoke(before)
    username = safe_line(saved.username, MAX_SHOWN)
    print_text(f"Signed in as {username} at {given.url}, as the profile {name}.")
    if saved.token_id is None:
        print_notice("The token may not make another one, so it is stored itself.")


async def sign_out(profile: str | None, *, is_revoking: bool) -> None:
    profiles = Profiles(profiles_path(os.environ))
    name = profile or os.environ.get("CHATD_PROFILE") or profiles.default
    if not name:
        known = f": name one of {', '.join(profiles.names)} with --profile" * bool(profiles.names)
        raise SettingsError(f"you are not signed in{known}")
    saved = profiles.get(name)
    if is_revoking and not await _revoke(saved):
        raise ServerUnreachable(
            saved.url, "the token is not revoked and stays here; --forget removes it all the same"
        )
    profiles.forget(name)
    print_text(f"Signed out of {saved.url}; the profile {name} is removed.")


async def print_user(found: Target, *, as_json: bool) -> None:
    async with open_api(found.server, patience_s=PATIENCE_S) as api:
        me = await api.get_me()
    if as_json:
        shown = {"url": found.server.url, "profile": found.profile, **msgspec.to_builtins(me)}
        print_json_line(shown)
        return
    place = found.server.url if found.profile is None else f"{found.server.url} ({found.profile})"
    print_text(safe_line(f"{me.user.username} ({me.user.role}) at {place}", MAX_SHOWN))
    if me.scopes is not None:
        print_text(safe_line(f"The token may only: {', '.join(me.scopes) or 'nothing'}", MAX_SHOWN))
    if me.expires_at is not None:
        print_text(f"The token expires at {me.expires_at:%Y-%m-%d %H:%M} UTC")


async def _make_token(given: Given) -> SavedSignIn:
    """A token of this computer, so that it can be revoked alone."""
    name = f"chatd on {socket.gethostname()}"[:MAX_TOKEN_NAME]
    if given.token:
        created = await _derive_token(ServerAddress(url=given.url, token=given.token), name)
    else:
        created = await make_token_by_session(given, name)
    token = given.token if created is None else created.token
    async with open_api(ServerAddress(url=given.url, token=token)) as api:
        me = await api.get_me()
    token_id = None if created is None else created.id
    return SavedSignIn(url=given.url, token=token, username=me.user.username, token_id=token_id)


async def make_token_by_session(given: Given, name: str) -> CreatedToken:
    """Signs in as a browser does, to make a token; the session ends with it. Raises ApiError,
    ServerUnreachable and NotEncrypted."""
    parts = urlsplit(given.url)
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        raise NotEncrypted(given.url)
    # The cookie of an address such as 127.0.0.1 is kept too.
    jar = aiohttp.CookieJar(unsafe=True)
    async with open_session(given.url, jar) as http:
        http.headers["Origin"] = f"{parts.scheme}://{parts.netloc}"
        api = ServerApi(ServerAddress(url=given.url, token=""), http)
        if given.link_secret:
            signed_in = await api.sign_in_with_link(given.link_secret)
        else:
            signed_in = await api.sign_in_with_password(given.username, given.password)
        http.headers["X-CSRF-Token"] = signed_in.csrf_token
        try:
            return await api.create_token(name)
        finally:
            with suppress(ApiError, ServerUnreachable):
                await api.sign_out()


async def _derive_token(server: ServerAddress, name: str) -> CreatedToken | None:
    """None if the given token may not make one."""
    async with open_api(server, patience_s=PATIENCE_S) as api:
        await api.get_me()
        try:
            return await api.create_token(name)
        except ApiError as error:
            if error.status != HTTPStatus.FORBIDDEN:
                raise
            return None


async def _revoke(saved: SavedSignIn) -> bool:
    """Whether the token is not valid any more, as far as it is ours to revoke."""
    if saved.made is None:
        return True
    async with open_api(saved.server, patience_s=PATIENCE_S) as api:
        try:
            await api.revoke_token(saved.made)
        except ApiError as error:
            return error.status in (HTTPStatus.NOT_FOUND, HTTPStatus.UNAUTHORIZED)
        except ServerUnreachable:
            return False
    return True


def _name_of(url: str) -> str:
    """The host and its port, as a profile's name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", urlsplit(url).netloc).strip(".-_")[:64] or "server"


def _ask(prompt: str) -> str:
    """On standard error, as getpass does: standard output is for results."""
    print(prompt, end="", file=sys.stderr, flush=True)
    return _read_line()


def _read_line() -> str:
    return sys.stdin.readline(MAX_LINE_CHARS).rstrip("\r\n")


# API tokens

MAX_TOKENS: Final = 1000
_DURATION: Final = re.compile(r"(\d{1,5})\s*(h|d|w)")
_HOURS: Final = {"h": 1, "d": 24, "w": 24 * 7}
_HEADINGS: Final = ("ID", "BEGINS WITH", "USED", "EXPIRES", "MAY", "NAME")


async def create_token(
    api: ServerApi, name: str, *, scopes: Sequence[str], expires: str | None, as_json: bool
) -> None:
    """The token is the output: it cannot be shown again."""
    now = datetime.now(UTC)
    raw = await api.create_token(
        name,
        scopes=check_scopes(scopes) or None,
        expires_at=None if expires is None else read_expiry(expires, now),
    ).raw()
    if as_json:
        print_json(raw)
        return
    made = msgspec.json.decode(raw, type=CreatedToken)
    print_text(made.token)
    until = "never" if made.expires_at is None else short_time(made.expires_at, now)
    print_notice(f"Keep it now: it cannot be shown again. It expires {until}. Its id: {made.id}")


async def list_tokens(api: ServerApi, *, as_json: bool) -> None:
    listed = api.list_tokens()
    if as_json:
        print_json(await listed.raw_items(MAX_TOKENS))
        return
    now = datetime.now(UTC)
    print_table(_HEADINGS, [token_row(token, now) for token in await listed.items(MAX_TOKENS)])


def token_row(token: Token, now: datetime) -> tuple[str, ...]:
    return (
        str(token.id),
        token.prefix,
        short_time(token.last_used_at, now),
        short_time(token.expires_at, now),
        "all" if token.scopes is None else " ".join(token.scopes),
        token.name,
    )


async def revoke_token(api: ServerApi, token_id: str, *, as_json: bool) -> None:
    if (found := read_id(token_id)) is None:
        raise UsageProblem(f"{token_id!r} is no id of a token; chatd tokens list shows them")
    await api.revoke_token(CredentialId(found))
    if as_json:
        print_json({"revoked": token_id})
        return
    print_notice(f"revoked {token_id}")


def check_scopes(scopes: Sequence[str]) -> tuple[str, ...]:
    """Raises UsageProblem."""
    known = get_args(TokenScope)
    if unknown := [scope for scope in scopes if scope not in known]:
        raise UsageProblem(f"--scope {unknown[0]!r}: choose among {', '.join(known)}")
    return tuple(scopes)


def read_expiry(text: str, now: datetime) -> datetime:
    """After a time such as `90d`, or on a day such as `2027-01-31`. Raises UsageProblem."""
    if (found := _DURATION.fullmatch(text.strip())) is not None:
        return now + timedelta(hours=int(found[1]) * _HOURS[found[2]])
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise UsageProblem(f"--expires {text!r}: write 90d, 12h, 4w or 2027-01-31") from None
    when = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
    if when <= now:
        raise UsageProblem(f"--expires {text!r}: this time has passed")
    return when
