"""Apps of GitHub: how chatd acts as one, with tokens for one repository each.

An App has an id and a private key. With a short-lived JWT that the key signs, chatd finds the
installation of the App for a repository and asks for a token of it. Tokens are in memory only: a
process that dies loses nothing, the next one asks again.
"""

import asyncio
import base64
import hashlib
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, Literal
from uuid import UUID
from weakref import WeakValueDictionary

import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from msgspec import Struct

from chatd.domain.ports import Clock
from chatd.git_hosts.host_api import UNAUTHORIZED, HostCallFailed, HostRequests, T

JWT_BACK_S: Final = 60
"""A JWT is dated back by this much: the clock of GitHub may be behind."""
JWT_LIFETIME_S: Final = 540
"""GitHub takes at most 600, by its own clock."""
RENEW_BEFORE_S: Final = 600.0
"""A token is renewed so long before it expires: runners keep it for five minutes."""
LAST_USE_S: Final = 60.0
"""If it cannot be renewed, it is used until so long before it expires."""
MAX_TOKEN_LIFETIME_S: Final = 3600.0
MAX_KNOWN_TOKENS: Final = 2000
MAX_TRIED_PATTERNS: Final = 10
"""How many of a connection's repositories and owners its test looks up."""
MIN_KEY_BITS: Final = 2048
APP_HEADERS: Final = {
    "accept": "application/vnd.github+json",
    "x-github-api-version": "2022-11-28",
}
_CLOCK_CLAIM: Final = re.compile(r"\b(exp|iat)\b|expiration time|issued at", re.IGNORECASE)

Use = Literal["api", "git"]
PERMISSIONS: Final[Mapping[Use, Mapping[str, str]]] = {
    "api": {
        "checks": "read",
        "contents": "write",
        "issues": "write",
        "metadata": "read",
        "pull_requests": "write",
        "statuses": "read",
    },
    "git": {"contents": "write", "metadata": "read"},
}
"""What a token for the API, or for git in a workspace, may do."""
_LEVELS: Final = ("read", "write", "admin")


class App(Struct, frozen=True, kw_only=True):
    """`private_key` is a PEM text that `load_key` takes."""

    id: str
    private_key: str

    def __repr__(self) -> str:
        """Without the key."""
        return f"App(id={self.id!r})"


class _Installation(Struct, frozen=True, kw_only=True):
    id: int
    suspended_at: datetime | None = None
    permissions: dict[str, str] = msgspec.field(default_factory=dict[str, str])


class _Token(Struct, frozen=True, kw_only=True):
    token: str
    expires_at: datetime


class _ShownApp(Struct, frozen=True, kw_only=True):
    slug: str = ""


class _Known(Struct, frozen=True, kw_only=True):
    token: str
    expires_s: float


_Key = tuple[UUID, bytes, str, Use]


def load_key(pem: str, *, is_checked: bool = False) -> RSAPrivateKey:
    """`is_checked`: it was loaded before. Raises ValueError, without any of the text."""
    try:
        key = load_pem_private_key(pem.encode(), None, unsafe_skip_rsa_key_validation=is_checked)
    except TypeError:
        raise ValueError("is protected by a passphrase") from None
    except (ValueError, UnsupportedAlgorithm):
        raise ValueError("is not a private key in PEM form") from None
    if not isinstance(key, RSAPrivateKey) or key.key_size < MIN_KEY_BITS:
        raise ValueError(f"must be an RSA key with at least {MIN_KEY_BITS} bits")
    return key


def make_jwt(app_id: str, key: RSAPrivateKey, now_s: float) -> str:
    """What proves to GitHub that chatd is the App."""
    issued = int(now_s) - JWT_BACK_S
    claims = {"iat": issued, "exp": int(now_s) + JWT_LIFETIME_S, "iss": app_id}
    parts = [
        _encode(msgspec.json.encode(each)) for each in ({"alg": "RS256", "typ": "JWT"}, claims)
    ]
    signed = ".".join(parts)
    return f"{signed}.{_encode(key.sign(signed.encode(), PKCS1v15(), SHA256()))}"


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def missing_permissions(granted: Mapping[str, str], use: Use) -> Sequence[str]:
    """Those that the installation lacks, as an administrator reads them."""
    return [
        f"{name.replace('_', ' ')} ({wanted})"
        for name, wanted in PERMISSIONS[use].items()
        if granted.get(name) not in _LEVELS[_LEVELS.index(wanted) :]
    ]


class AppTokens:
    """Tokens of installations. Of one account that has installed the App, one is asked for at a
    time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: OrderedDict[_Key, _Known] = OrderedDict()
        self._locks: WeakValueDictionary[tuple[UUID, str], asyncio.Lock] = WeakValueDictionary()

    async def get(
        self,
        requests: HostRequests,
        connection_id: UUID,
        app: App,
        repository: str,
        *,
        use: Use = "api",
        refused: str | None = None,
    ) -> str:
        """`requests` have the headers of no token. `refused`: a token that the host no longer
        takes. Raises HostCallFailed."""
        digest = hashlib.sha256(f"{app.id} {app.private_key}".encode()).digest()
        key: _Key = (connection_id, digest, repository.lower(), use)
        known = self._fresh(key, refused, RENEW_BEFORE_S)
        if known is not None:
            return known
        place = (connection_id, repository.lower().partition("/")[0])
        lock = self._locks.setdefault(place, asyncio.Lock())
        async with lock:
            known = self._fresh(key, refused, RENEW_BEFORE_S)
            if known is not None:
                return known
            try:
                made = await self._ask(requests, app, repository, use)
            except HostCallFailed as error:
                old = self._fresh(key, refused, LAST_USE_S)
                if old is not None and error.reason in ("limited", "unavailable"):
                    return old
                self._known.pop(key, None)
                raise
            left_s = (_utc(made.expires_at) - self._clock.now()).total_seconds()
            expires_s = self._clock.monotonic() + min(left_s, MAX_TOKEN_LIFETIME_S)
            self._known[key] = _Known(token=made.token, expires_s=expires_s)
            self._known.move_to_end(key)
            if len(self._known) > MAX_KNOWN_TOKENS:
                self._known.popitem(last=False)
            return made.token

    async def check(self, requests: HostRequests, app: App, patterns: Sequence[str]) -> str:
        """The account as which the App acts. Raises HostCallFailed if it cannot act for one of the
        first repositories or owners."""
        try:
            shown = await self._as_app(requests, app, "/app", _ShownApp)
        except HostCallFailed as error:
            raise _explain(error, app, "") from None
        for pattern in patterns[:MAX_TRIED_PATTERNS]:
            owner, _, name = pattern.partition("/")
            place = owner if name == "*" else pattern
            found = await self._find(requests, app, place)
            if lacking := missing_permissions(found.permissions, "api"):
                raise _lacks(app, place, ", ".join(lacking))
        return f"{shown.slug}[bot]"

    def _fresh(self, key: _Key, refused: str | None, before_s: float) -> str | None:
        known = self._known.get(key)
        if known is None or known.token == refused:
            return None
        return known.token if self._clock.monotonic() < known.expires_s - before_s else None

    async def _ask(self, requests: HostRequests, app: App, repository: str, use: Use) -> _Token:
        found = await self._find(requests, app, repository)
        if lacking := missing_permissions(found.permissions, use):
            raise _lacks(app, repository, ", ".join(lacking))
        body = {
            "repositories": [repository.partition("/")[2]],
            "permissions": PERMISSIONS[use],
        }
        path = f"/app/installations/{found.id}/access_tokens"
        try:
            return await self._as_app(requests, app, path, _Token, body=body)
        except HostCallFailed as error:
            raise _explain(error, app, repository) from None

    async def _find(self, requests: HostRequests, app: App, place: str) -> _Installation:
        """Of a repository, or of an owner."""
        kinds = ("repos",) if "/" in place else ("orgs", "users")
        for kind in kinds:
            path = f"/{kind}/{place}/installation"
            try:
                found = await self._as_app(requests, app, path, _Installation)
            except HostCallFailed as error:
                if error.reason == "missing" and kind != kinds[-1]:
                    continue
                raise _explain(error, app, place) from None
            if found.suspended_at is not None:
                raise _suspended(app, place)
            return found
        raise AssertionError("the last kind returns or raises")

    async def _as_app(
        self,
        requests: HostRequests,
        app: App,
        path: str,
        kind: type[T],
        *,
        body: object = None,
    ) -> T:
        key = load_key(app.private_key, is_checked=True)
        jwt = make_jwt(app.id, key, self._clock.now().timestamp())
        signed = requests.with_token(jwt)
        if body is None:
            return await signed.get(path, kind)
        return await signed.write("POST", path, body, kind)


def _utc(at: datetime) -> datetime:
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _explain(error: HostCallFailed, app: App, place: str) -> HostCallFailed:
    """What an administrator can do about it."""
    said = f" GitHub says: {error.said}" if error.said else ""
    lowered = error.said.lower()
    if error.reason == "missing":
        if not place or "integration not found" in lowered:
            text = f"GitHub knows no App with the id {app.id}.{said}"
        else:
            text = (
                f"The GitHub App {app.id} is not installed for {place}. Install it there, or add"
                " the repository to its installation."
            )
        return HostCallFailed("refused", text)
    if error.status == UNAUTHORIZED and _CLOCK_CLAIM.search(error.said):
        text = f"GitHub does not accept the time of this server. Set its clock.{said}"
        return HostCallFailed("refused", text)
    if error.status == UNAUTHORIZED:
        text = (
            f"GitHub refuses the private key of the App {app.id}: it was deleted, or it belongs to"
            f" another App. Give a new one.{said}"
        )
        return HostCallFailed("refused", text)
    if error.status == 403 and "suspended" in lowered:
        return _suspended(app, place)
    if error.reason in ("refused", "rejected"):
        text = f"GitHub gives the App {app.id} no token for {place}.{said}"
        return HostCallFailed("refused", text)
    return error


def _suspended(app: App, place: str) -> HostCallFailed:
    text = f"The installation of the GitHub App {app.id} for {place} is suspended."
    return HostCallFailed("refused", f"{text} End its suspension on GitHub.")


def _lacks(app: App, place: str, lacking: str) -> HostCallFailed:
    text = f"The GitHub App {app.id} lacks permissions for {place}: {lacking}."
    return HostCallFailed("refused", f"{text} Grant them, and accept them for the installation.")
