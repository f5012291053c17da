"""GitHub for an App, as strict as the real one: it checks the signature and the times of each JWT
with the public key of the App, and takes a token only for its repositories, with its permissions,
until it expires."""

import base64
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from aiohttp import web
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from tests.support.git_apis import REPOSITORY, FakeGitHub, Json

APP_ID: Final = "123456"
TOKEN_LIFETIME_S: Final = 3600.0
GRANTED: Final = {
    "checks": "read",
    "contents": "write",
    "issues": "write",
    "metadata": "read",
    "pull_requests": "write",
    "statuses": "read",
}
_LEVELS: Final = ("read", "write")
_NEEDED: Final = (
    ("GET", r"", "metadata", "read"),
    ("GET", r"/collaborators/.*", "metadata", "read"),
    ("GET", r"/branches/.*", "contents", "read"),
    ("GET", r"/issues/.*", "issues", "read"),
    ("POST", r"/issues/.*", "issues", "write"),
    ("PATCH", r"/issues/.*", "issues", "write"),
    ("GET", r"/pulls.*", "pull_requests", "read"),
    ("POST", r"/pulls", "pull_requests", "write"),
    ("GET", r"/commits/.*/check-runs", "checks", "read"),
    ("GET", r"/commits/.*/status", "statuses", "read"),
)


def new_key() -> RSAPrivateKey:
    return generate_private_key(65_537, 2048)


def pem_of(key: RSAPrivateKey) -> str:
    """In the form in which GitHub gives it."""
    form = PrivateFormat.TraditionalOpenSSL
    return key.private_bytes(Encoding.PEM, form, NoEncryption()).decode()


@dataclass
class Installation:
    id: int
    repositories: set[str]
    permissions: dict[str, str] = field(default_factory=lambda: dict(GRANTED))
    suspended: bool = False


@dataclass
class Minted:
    repositories: set[str]
    permissions: dict[str, str]
    expires_s: float


class FakeAppGitHub(FakeGitHub):
    """`keys` are those of the App that were not deleted; `now` is its clock."""

    def __init__(self, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        super().__init__()
        self.tokens = set[str]()
        self.key = new_key()
        self.keys = [self.key]
        self.now = now
        self.installations = {"acme": Installation(77, {REPOSITORY})}
        self.minted: dict[str, Minted] = {}
        self.waiting = self.most_waiting = 0

    @property
    def pem(self) -> str:
        return pem_of(self.key)

    def expire_tokens(self) -> None:
        for minted in self.minted.values():
            minted.expires_s = 0.0

    async def handle(self, request: web.Request) -> web.Response:
        asks = request.rel_url.raw_path.endswith("/access_tokens")
        self.waiting += asks
        self.most_waiting = max(self.most_waiting, self.waiting)
        try:
            return await super().handle(request)
        finally:
            self.waiting -= asks

    def refuse(self, request: web.Request, path: str) -> web.Response | None:
        path = path.removeprefix(self.prefix)
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme != "Bearer":
            return self.error(401, "Requires authentication")
        if path == "/app" or path.startswith("/app/") or path.endswith("/installation"):
            problem = self.wrong_jwt(token)
            return None if problem is None else self.error(*problem)
        return self._refuse_token(request.method, path, token)

    def wrong_jwt(self, token: str) -> tuple[int, str] | None:
        undecoded = 401, "A JSON web token could not be decoded"
        parts = token.split(".")
        if len(parts) != 3:
            return undecoded
        try:
            header, claims = (json.loads(_decode(part)) for part in parts[:2])
            signature = _decode(parts[2])
        except ValueError:
            return undecoded
        if header != {"alg": "RS256", "typ": "JWT"}:
            return undecoded
        if claims.get("iss") != APP_ID:
            return 404, "Integration not found"
        signed = ".".join(parts[:2]).encode()
        if not any(_is_signed(key, signature, signed) for key in self.keys):
            return undecoded
        now_s, issued, ends = self.now().timestamp(), claims.get("iat"), claims.get("exp")
        if not isinstance(issued, int) or issued > now_s:
            text = "'Issued at' claim ('iat') must be an Integer representing the time that the"
            return 401, f"{text} assertion was issued"
        if not isinstance(ends, int) or ends <= now_s:
            text = "'Expiration time' claim ('exp') must be a numeric value representing the future"
            return 401, f"{text} time at which the assertion expires"
        if ends > now_s + 600 or ends - issued > 600:
            return 401, "'Expiration time' claim ('exp') is too far in the future"
        return None

    def _refuse_token(self, method: str, path: str, token: str) -> web.Response | None:
        minted = self.minted.get(token)
        if minted is None or self.now().timestamp() >= minted.expires_s:
            return self.error(401, "Bad credentials")
        found = re.fullmatch(r"/repos/([\w.-]+/[\w.-]+)(/.*)?", path)
        if found is None:
            return self.error(403, "Resource not accessible by integration")
        if found[1] not in minted.repositories:
            return self.error(404, "Not Found")
        for known, pattern, name, level in _NEEDED:
            if known == method and re.fullmatch(pattern, found[2] or ""):
                if _allows(minted.permissions, name, level):
                    return None
                break
        return self.error(403, "Resource not accessible by integration")

    def route(self, request: web.Request, path: str, body: Json) -> web.Response:
        if path == "/app":
            return web.json_response({"id": int(APP_ID), "slug": "chatd-app"})
        if found := re.fullmatch(r"/(repos|orgs|users)/([\w.-]+)(/[\w.-]+)?/installation", path):
            return self._find_installation(found[1], found[2], f"{found[2]}{found[3] or ''}")
        if found := re.fullmatch(r"/app/installations/(\d+)/access_tokens", path):
            if request.method != "POST":
                return self.error(404, "Not Found")
            return self._make_token(int(found[1]), body)
        return super().route(request, path, body)

    def _find_installation(self, kind: str, owner: str, place: str) -> web.Response:
        one = self.installations.get(owner)
        is_known = place in one.repositories if one and kind == "repos" else kind == "users"
        if one is None or not is_known:
            return self.error(404, "Not Found")
        at = "2026-01-01T00:00:00Z" if one.suspended else None
        shown = {"id": one.id, "suspended_at": at, "permissions": one.permissions}
        return web.json_response({**shown, "account": {"login": owner}})

    def _make_token(self, installation_id: int, body: Json) -> web.Response:
        found = [item for item in self.installations.items() if item[1].id == installation_id]
        if not found:
            return self.error(404, "Not Found")
        ((owner, one),) = found
        if one.suspended:
            return self.error(403, "This installation has been suspended")
        names: list[Any] = body.get("repositories") or []
        permissions: dict[str, str] = body.get("permissions") or {}
        assert names, "a token for all repositories of the installation"
        assert permissions, "a token with all permissions of the App"
        wanted = {f"{owner}/{name}" for name in names}
        if not wanted <= one.repositories:
            text = "There is at least one repository that does not exist or is not accessible"
            return self.error(422, f"{text} to the parent installation.")
        if not all(_allows(one.permissions, *item) for item in permissions.items()):
            return self.error(
                422, "The permissions requested are not granted to this installation."
            )
        token = f"ghs_{self.next_id()}_{'x' * 500}"
        expires_s = self.now().timestamp() + TOKEN_LIFETIME_S
        self.minted[token] = Minted(wanted, permissions, expires_s)
        at = datetime.fromtimestamp(expires_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return web.json_response({"token": token, "expires_at": at}, status=201)


def _allows(granted: dict[str, str], name: str, level: str) -> bool:
    return granted.get(name) in _LEVELS[_LEVELS.index(level) :]


def _decode(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def _is_signed(key: RSAPrivateKey, signature: bytes, signed: bytes) -> bool:
    try:
        key.public_key().verify(signature, signed, PKCS1v15(), SHA256())
    except InvalidSignature:
        return False
    return True
