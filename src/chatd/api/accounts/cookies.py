"""The cookie of a session: its name, its attributes, and how it is read."""

import hmac
import re
import secrets
from datetime import timedelta
from typing import Final
from uuid import UUID

from chatd.api.accounts.site import Site
from chatd.api.request import Scope, header
from chatd.domain.access.secret_text import is_opaque_secret, secret_text
from chatd.domain.ids import UserId
from chatd.store.account.credentials import SESSION_LIFETIME
from chatd.store.conn import Conn
from chatd.store.sealed_columns import DEVICE_COOKIES, shared_key

SECURE_COOKIE: Final = "__Host-chatd_session"
"""Browsers accept this prefix only from https, for this host alone."""
PLAIN_COOKIE: Final = "chatd_session"
MAX_COOKIE_CHARS: Final = 16_384


def session_secret(scope: Scope, *, secure: bool) -> str | None:
    """The secret of the session, if the request has one of the right form."""
    found = read_cookie(scope, SECURE_COOKIE if secure else PLAIN_COOKIE)
    return found if found is not None and is_opaque_secret(found) else None


def read_cookie(scope: Scope, name: str) -> str | None:
    for key, value in scope["headers"]:
        if key == b"cookie" and len(value) <= MAX_COOKIE_CHARS:
            for pair in bytes(value).decode("latin-1").split(";"):
                found, _, text = pair.strip().partition("=")
                if found == name:
                    return text
    return None


def session_cookie(secret: str, *, secure: bool) -> str:
    """The server decides when the session expires; the cookie lasts as long as a session can."""
    name = SECURE_COOKIE if secure else PLAIN_COOKIE
    return set_cookie(name, secret, SESSION_LIFETIME, secure=secure)


def cleared_cookie(*, secure: bool) -> str:
    return set_cookie(SECURE_COOKIE if secure else PLAIN_COOKIE, "", timedelta(0), secure=secure)


def set_cookie(name: str, value: str, lifetime: timedelta, *, secure: bool) -> str:
    age = int(lifetime.total_seconds())
    only_https = "; Secure" if secure else ""
    return f"{name}={value}; Path=/; Max-Age={age}; HttpOnly; SameSite=Lax{only_https}"


def user_agent(scope: Scope) -> str | None:
    """For the list of sessions."""
    text = header(scope, b"user-agent")
    return None if text is None else text[:200]


# The cookie of a browser in which a user has signed in before.
#
# It gives no access. It only keeps attempts of other browsers to guess the user's password from
# keeping this browser out: its attempts are counted apart.

DEVICE_COOKIE_LIFETIME: Final = timedelta(days=365)
_SECURE_COOKIE: Final = "__Host-chatd_device"
_PLAIN_COOKIE: Final = "chatd_device"
_DEVICE_BYTES: Final = 16
_USER_ID: Final = re.compile(r"[0-9a-f]{32}")
_MAX_CHARS: Final = 200


class DeviceCookies:
    def __init__(self, site: Site) -> None:
        self._site = site
        self._key: bytes | None = None

    async def find_device(self, conn: Conn, scope: Scope, user_id: UserId) -> str | None:
        """The id of the browser, if this user has signed in with it before."""
        text = read_cookie(scope, self._name(scope)) or ""
        owner, _, rest = text.partition(".")
        device, _, mark = rest.partition(".")
        if len(text) > _MAX_CHARS or owner != user_id.hex:
            return None
        expected = await self._mark(conn, user_id, device)
        return device if hmac.compare_digest(expected, mark.encode("latin-1")) else None

    async def is_marked(self, conn: Conn, scope: Scope) -> bool:
        """Whether any user has signed in with this browser before."""
        owner = (read_cookie(scope, self._name(scope)) or "").partition(".")[0]
        if not _USER_ID.fullmatch(owner):
            return False
        return await self.find_device(conn, scope, UserId(UUID(hex=owner))) is not None

    async def issue(self, conn: Conn, scope: Scope, user_id: UserId) -> str:
        """The value of a Set-Cookie header."""
        device = secret_text(secrets.token_bytes(_DEVICE_BYTES))
        mark = (await self._mark(conn, user_id, device)).decode()
        value = f"{user_id.hex}.{device}.{mark}"
        secure = self._site.is_secure(scope)
        return set_cookie(self._name(scope), value, DEVICE_COOKIE_LIFETIME, secure=secure)

    def _name(self, scope: Scope) -> str:
        return _SECURE_COOKIE if self._site.is_secure(scope) else _PLAIN_COOKIE

    async def _mark(self, conn: Conn, user_id: UUID, device: str) -> bytes:
        if self._key is None:
            self._key = await shared_key(conn, DEVICE_COOKIES)
        text = user_id.bytes + device.encode("latin-1")
        return secret_text(hmac.digest(self._key, text, "sha256")).encode()
