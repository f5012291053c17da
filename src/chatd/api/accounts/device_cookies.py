"""The cookie of a browser in which a user has signed in before.

It gives no access. It only keeps attempts of other browsers to guess the user's password from
keeping this browser out: its attempts are counted apart.
"""

import hmac
import re
import secrets
from datetime import timedelta
from typing import Final
from uuid import UUID

from chatd.api.accounts.cookies import read_cookie, set_cookie
from chatd.api.accounts.site import Site
from chatd.api.request import Scope
from chatd.domain.account.secret_text import secret_text
from chatd.domain.ids import UserId
from chatd.store.conn import Conn
from chatd.store.shared_keys import DEVICE_COOKIES, shared_key

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
