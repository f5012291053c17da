"""Where a request comes from: the client's address, the name of this server that the client used,
the page that sent it, and the cookies of the browser. Pure rules over headers.

A browser sends a cookie with requests that other sites start, and a site can point its own name at
this server's address (DNS rebinding). So a request with a cookie, and a sign-in, must name a host
of this server, and come from a page of it. A request with a bearer token is exempt: no other site
knows the token. An address instead of a name is always accepted: it cannot be rebound.
"""

import hmac
import re
import secrets
from collections.abc import Mapping
from datetime import timedelta
from ipaddress import ip_address, ip_network
from typing import Final
from urllib.parse import urlsplit
from uuid import UUID

from msgspec import Struct

from chatd.api.request import Scope, header
from chatd.domain.access.secret_text import is_opaque_secret, secret_text
from chatd.domain.errors import Conflict, Forbidden
from chatd.domain.ids import UserId
from chatd.domain.workspace.previews import (
    LOOPBACK_PREVIEW_HOST,
    PreviewPlace,
    PreviewTarget,
    looks_like_label,
)
from chatd.store.account.credentials import SESSION_LIFETIME
from chatd.store.database.conn import Conn
from chatd.store.database.sealed_columns import DEVICE_COOKIES, shared_key

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
CORS_MAX_AGE_S: Final = 600
MAX_FORWARDED_CHARS: Final = 1000

_LOOPBACK_NAME: Final = "localhost"
_DEFAULT_PORTS: Final[Mapping[str, int]] = {"http": 80, "https": 443}
_CORS_HEADERS: Final = (
    "authorization, content-type, idempotency-key, last-event-id, x-csrf-token, range,"
    " mcp-method, mcp-name, mcp-protocol-version, mcp-session-id"
)
_CORS_METHODS: Final = "GET, POST, PUT, PATCH, DELETE, OPTIONS"


class SiteConfig(Struct, frozen=True, kw_only=True):
    """`url` is the public address. `allowed_hosts` are further names of this server, and
    `allowed_origins` further sites with pages that may use the API. Addresses or networks of
    `trusted_proxies` tell the client's address in X-Forwarded-For. Names below `preview_host` are
    those of previews."""

    url: str | None = None
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    trusted_proxies: tuple[str, ...] = ()
    preview_host: str | None = None


class Site:
    def __init__(self, config: SiteConfig) -> None:
        public = None if config.url is None else urlsplit(config.url)
        self.url = None if config.url is None else config.url.rstrip("/")
        self._public_host = None if public is None else public.hostname
        self._is_https = public is not None and public.scheme == "https"
        names = {host_name(host) for host in config.allowed_hosts}
        self._hosts = frozenset({*names, self._public_host} - {None})
        origins = [*config.allowed_origins, *([] if self.url is None else [self.url])]
        self._origins = frozenset(_origin(origin) for origin in origins)
        self._cors_origins = frozenset(map(_origin, config.allowed_origins))
        self._proxies = [ip_network(proxy, strict=False) for proxy in config.trusted_proxies]
        self._preview_host = None if config.preview_host is None else config.preview_host.lower()

    def address(self, scope: Scope) -> str | None:
        """The client's: the last one in X-Forwarded-For that no trusted proxy has."""
        client = scope.get("client")
        peer: str | None = client[0] if client else None
        if peer is None or not self._is_proxy(peer):
            return peer
        forwarded = (header(scope, b"x-forwarded-for") or "")[-MAX_FORWARDED_CHARS:]
        for address in reversed([part.strip() for part in forwarded.split(",")]):
            if not _is_address(address):
                break
            peer = address
            if not self._is_proxy(address):
                break
        return peer

    def is_secure(self, scope: Scope) -> bool:
        """Whether the browser uses https, as far as this server can know."""
        client = scope.get("client")
        if client and self._is_proxy(client[0]):
            return header(scope, b"x-forwarded-proto") == "https"
        name = host_name(header(scope, b"host") or "")
        return scope.get("scheme") in ("https", "wss") or (
            self._is_https and name == self._public_host
        )

    def preview_label(self, scope: Scope) -> str | None:
        """The first part of the name of a preview; None for every other host. No route of the API
        is served under such a name."""
        name = host_name(header(scope, b"host") or "")
        if self._preview_host is not None and name not in self._hosts:
            label, _, rest = name.partition(".")
            if rest == host_name(self._preview_host):
                return label
            if name.endswith(f".{host_name(self._preview_host)}"):
                return name.removesuffix(f".{host_name(self._preview_host)}")
        label = name.removesuffix(f".{LOOPBACK_PREVIEW_HOST}")
        return label if label != name and looks_like_label(label) else None

    def preview_place(self, scope: Scope, target: PreviewTarget) -> PreviewPlace:
        """Where the browser that sent this request sees the preview. Raises Conflict."""
        given = header(scope, b"host") or ""
        if self._preview_host is not None:
            scheme = "https" if self._is_https or self.is_secure(scope) else "http"
            base = self._preview_host
            if ":" not in base and (port := _port_of(self.url or f"{scheme}://{given}")):
                base = f"{base}:{port}"
            return PreviewPlace(scheme=scheme, host=f"{target.label}.{base}", port=target.port)
        if not is_loopback(host_name(given)):
            raise Conflict(
                "Previews need host names of their own. The operator can set server.preview_host to"
                " a domain whose names all lead to this server.",
                code="previews_off",
            )
        port = _port_of(f"http://{given}")
        host = f"{target.label}.{LOOPBACK_PREVIEW_HOST}{f':{port}' if port else ''}"
        return PreviewPlace(scheme="http", host=host, port=target.port)

    def seen_preview(self, scope: Scope, target: PreviewTarget) -> PreviewPlace:
        """The preview as the browser names it in this request to it."""
        given = (header(scope, b"host") or "").lower()
        is_loopback_name = host_name(given).endswith(f".{LOOPBACK_PREVIEW_HOST}")
        secure = self.is_secure(scope) or (self._is_https and not is_loopback_name)
        return PreviewPlace(scheme="https" if secure else "http", host=given, port=target.port)

    def framing_origins(self, place: PreviewPlace) -> list[str]:
        """Where chatd's own page may be that shows a preview in a frame."""
        name = host_name(place.host)
        if name.endswith(f".{LOOPBACK_PREVIEW_HOST}"):
            port = _port_of(place.origin)
            ending = f":{port}" if port else ""
            return [f"http://localhost{ending}", f"http://127.0.0.1{ending}"]
        if self.url is not None:
            return [self.url]
        return [f"{place.scheme}://{host}:*" for host in sorted(map(str, self._hosts))]

    @property
    def preview_sources(self) -> str:
        """Of the frames that the page may show, for its content policy."""
        found = [f"http://*.{LOOPBACK_PREVIEW_HOST}:*"]
        if self._preview_host is not None:
            named = self._preview_host if ":" in self._preview_host else f"{self._preview_host}:*"
            found.append(f"{'https' if self._is_https else 'http'}://*.{named}")
        return " ".join(found)

    def can_hold_cookie(self, scope: Scope) -> bool:
        """Over plain http only on this machine, or where the operator has named an http address:
        on the way, a cookie could be read."""
        name = host_name(header(scope, b"host") or "")
        named = not self._is_https and name == self._public_host
        return self.is_secure(scope) or named or is_loopback(name)

    def require_host(self, scope: Scope) -> None:
        """Raises Forbidden for a name that is not this server's."""
        name = host_name(header(scope, b"host") or "")
        if not (is_loopback(name) or _is_address(name) or name in self._hosts):
            raise Forbidden(
                "This server does not answer to that host name. The operator can set server.url to"
                " the public address, or add the name to server.allowed_hosts.",
                code="host_not_allowed",
            )

    def require_same_site(self, scope: Scope, *, needs_proof: bool) -> None:
        """Raises Forbidden for a request that a page of another site started. `needs_proof`: also
        for one that does not say where it comes from, as programs send it and browsers do not."""
        self.require_host(scope)
        origin, fetched = header(scope, b"origin"), header(scope, b"sec-fetch-site")
        if origin is not None:
            is_same = self._is_own_origin(origin, scope)
        elif fetched is not None:
            is_same = fetched in ("same-origin", "none")
        else:
            is_same = not needs_proof
        if not is_same:
            raise Forbidden(
                "A page of another site sent this request, or it does not tell its origin. The"
                " operator can add the site to server.allowed_origins.",
                code="cross_site_request",
            )

    def cors_headers(self, scope: Scope) -> list[tuple[bytes, bytes]]:
        """For a reply to a page of an allowed origin."""
        if not self._cors_origins:
            return []
        vary = (b"vary", b"origin")
        origin = header(scope, b"origin")
        if origin is None or _origin(origin) not in self._cors_origins:
            return [vary]
        return [
            vary,
            (b"access-control-allow-origin", origin.encode("latin-1")),
            (b"access-control-allow-credentials", b"true"),
            (
                b"access-control-expose-headers",
                b"location, retry-after, idempotency-replayed, content-range, mcp-session-id",
            ),
        ]

    def preflight_headers(self, scope: Scope) -> dict[str, str]:
        """For the reply to OPTIONS, beside `cors_headers`."""
        if header(scope, b"access-control-request-method") is None or not self._cors_origins:
            return {}
        return {
            "access-control-allow-methods": _CORS_METHODS,
            "access-control-allow-headers": _CORS_HEADERS,
            "access-control-max-age": str(CORS_MAX_AGE_S),
        }

    def _is_own_origin(self, origin: str, scope: Scope) -> bool:
        scheme = "https" if self.is_secure(scope) else "http"
        own = _origin(f"{scheme}://{header(scope, b'host') or ''}")
        return _origin(origin) in {own, *self._origins} - {None}

    def _is_proxy(self, address: str) -> bool:
        return _is_address(address) and any(ip_address(address) in net for net in self._proxies)


def host_name(host: str) -> str:
    """Without the port and the brackets, in lower case; empty if it is none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def is_loopback(name: str) -> bool:
    if name == _LOOPBACK_NAME or name.endswith(f".{_LOOPBACK_NAME}"):
        return True
    return _is_address(name) and ip_address(name).is_loopback


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _port_of(url: str) -> int | None:
    try:
        return urlsplit(url).port
    except ValueError:
        return None


def _origin(text: str) -> tuple[str, str, int | None] | None:
    """Scheme, host and port; None for `null` and for what is no origin."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return None
    if not parts.scheme or not parts.hostname:
        return None
    return parts.scheme, parts.hostname, port or _DEFAULT_PORTS.get(parts.scheme)


# The cookie of a session: its name, its attributes, and how it is read.

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
