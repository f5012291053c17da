"""A port of a workspace as a site of its own in a browser. Pure rules over labels and headers.

Every port has a host name, `<label>.<preview host>`, and so an origin apart from chatd's and from
every other preview's. What a browser sends there is passed to the workspace without anything that
identifies the viewer; what comes back is passed on without what concerns other hosts.
"""

import base64
import binascii
import hmac
import re
from collections.abc import Sequence
from typing import Annotated, Final
from uuid import UUID

import msgspec
from msgspec import Struct

from chatd.domain.description import describe
from chatd.domain.errors import ChatdError
from chatd.domain.ids import CredentialId, UserId, WorkspaceId

MAX_PORT: Final = 65_535
LOOPBACK_PREVIEW_HOST: Final = "localhost"
"""Browsers resolve every name below it to this machine, without DNS."""
_LABEL: Final = re.compile(r"([1-9][0-9]{0,4})-([a-z2-7]{26})")

HeaderList = list[tuple[bytes, bytes]]


class ListeningPort(Struct, frozen=True, kw_only=True):
    """A port on which a process of a workspace listens."""

    port: Annotated[int, describe("The port.", 3000)]
    pid: Annotated[int, describe("The process, as the workspace numbers it.", 412)] = 0
    command: Annotated[str, describe("Its command.", "node server.js")] = ""


class PreviewTarget(Struct, frozen=True):
    workspace_id: WorkspaceId
    port: int

    @property
    def label(self) -> str:
        name = base64.b32encode(self.workspace_id.bytes).decode().rstrip("=").lower()
        return f"{self.port}-{name}"


def looks_like_label(text: str) -> bool:
    return _LABEL.fullmatch(text) is not None


def read_label(label: str) -> PreviewTarget | None:
    found = _LABEL.fullmatch(label)
    if found is None or int(found[1]) > MAX_PORT:
        return None
    try:
        raw = base64.b32decode(f"{found[2].upper()}======")
    except binascii.Error:
        return None
    target = PreviewTarget(WorkspaceId(UUID(bytes=raw)), int(found[1]))
    return target if target.label == label else None


# What a viewer's cookie says, signed.

GRANT_LIFETIME_S: Final = 12 * 3600
MAX_GRANT_CHARS: Final = 1000


class PreviewGrant(Struct, frozen=True, kw_only=True, array_like=True):
    """The user who opened a preview, and with which credential: the preview ends with that."""

    label: str
    user_id: UserId
    credential_id: CredentialId | None
    expires_at: int


def sign_grant(key: bytes, grant: PreviewGrant) -> str:
    text = base64.urlsafe_b64encode(msgspec.json.encode(grant)).rstrip(b"=")
    return f"{text.decode()}.{_mark(key, text)}"


def read_grant(key: bytes, text: str, label: str, *, now: float) -> PreviewGrant | None:
    """None if it was not signed with the key, is for another preview, or has expired."""
    body, _, mark = text.partition(".")
    raw = body.encode("ascii", "replace")
    if len(text) > MAX_GRANT_CHARS or not hmac.compare_digest(
        _mark(key, raw).encode(), mark.encode("latin-1", "replace")
    ):
        return None
    try:
        decoded = base64.urlsafe_b64decode(raw + b"=" * (-len(raw) % 4))
        grant = msgspec.json.decode(decoded, type=PreviewGrant)
    except (binascii.Error, ValueError, msgspec.DecodeError):
        return None
    return grant if grant.label == label and grant.expires_at > now else None


def _mark(key: bytes, text: bytes) -> str:
    return hmac.new(key, b"preview\n" + text, "sha256").hexdigest()


# Headers

_HOP_BY_HOP: Final = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization"),
        *(b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade"),
    }
)
_NOT_SENT: Final = _HOP_BY_HOP | {b"authorization", b"expect", b"forwarded", b"host", b"cookie"}
# Headers by which proxies in front of chatd describe the viewer.
_NOT_SENT_PREFIXES: Final = (
    *(b"x-forwarded", b"x-real-ip", b"x-auth-request", b"x-remote", b"remote-", b"cf-access"),
    *(b"x-amzn-oidc", b"x-goog-", b"x-ms-client-principal", b"x-ms-token", b"ssl-client"),
    *(b"x-ssl-", b"x-client-cert", b"tailscale-user", b"x-authentik", b"sec-websocket-"),
)
# `clear-site-data` clears the cookies of the whole domain, chatd's too. A password that a browser
# asks for would not be passed on.
_NOT_RETURNED: Final = _HOP_BY_HOP | {
    *(b"alt-svc", b"clear-site-data", b"date", b"nel", b"report-to"),
    *(b"strict-transport-security", b"www-authenticate", b"x-frame-options", b"set-cookie"),
}
_OWN_COOKIES: Final = ("chatd_", "__host-chatd_", "__secure-chatd_")


class PreviewPlace(Struct, frozen=True, kw_only=True):
    """Where a browser sees a preview, such as `http` and `3000-abc.localhost:7870`, and the port
    that it shows."""

    scheme: str
    host: str
    port: int

    @property
    def origin(self) -> str:
        return f"{self.scheme}://{self.host}"

    @property
    def inner_host(self) -> str:
        """The host that the port is asked for: development servers refuse names they do not
        know."""
        return f"localhost:{self.port}"


def request_headers(given: Sequence[tuple[bytes, bytes]], place: PreviewPlace) -> HeaderList:
    """The headers of a request that the workspace receives."""
    inner = f"http://{place.inner_host}"
    kept: HeaderList = [(b"host", place.inner_host.encode())]
    for name, value in _without(given, _NOT_SENT):
        if name.startswith(_NOT_SENT_PREFIXES):
            continue
        text = value.decode("latin-1")
        if name == b"origin" and text == place.origin:
            kept.append((name, inner.encode()))
        elif name == b"referer":
            if text.startswith(f"{place.origin}/"):
                kept.append((name, (inner + text.removeprefix(place.origin)).encode("latin-1")))
        else:
            kept.append((name, value))
    cookies = [value.decode("latin-1") for name, value in given if name == b"cookie"]
    pairs = [pair.strip() for pair in ";".join(cookies).split(";")]
    own = [pair for pair in pairs if pair and not pair.lower().startswith(_OWN_COOKIES)]
    if own:
        kept.append((b"cookie", "; ".join(own).encode("latin-1")))
    kept.append((b"x-forwarded-host", place.host.encode()))
    kept.append((b"x-forwarded-proto", place.scheme.encode()))
    return kept


def response_headers(
    given: Sequence[tuple[bytes, bytes]], place: PreviewPlace, framed_by: Sequence[str]
) -> HeaderList:
    """The headers of a response that the browser receives. Pages of `framed_by` may show it in a
    frame."""
    small = [(name.lower(), value) for name, value in given]
    kept: HeaderList = []
    for name, value in _without(small, _NOT_RETURNED):
        if name in (b"location", b"access-control-allow-origin"):
            kept.append((name, _outer(value.decode("latin-1"), place).encode("latin-1")))
        else:
            kept.append((name, value))
    for name, value in small:
        if name == b"set-cookie" and (cookie := _own_cookie(value.decode("latin-1"))) is not None:
            kept.append((name, cookie.encode("latin-1")))
    ancestors = " ".join(("'self'", *framed_by))
    kept.append((b"content-security-policy", f"frame-ancestors {ancestors}".encode()))
    return kept


def _without(
    given: Sequence[tuple[bytes, bytes]], gone: frozenset[bytes]
) -> Sequence[tuple[bytes, bytes]]:
    named = {
        word.strip().lower()
        for name, value in given
        if name == b"connection"
        for word in value.split(b",")
    } - {b"content-length"}
    return [(name, value) for name, value in given if name not in gone and name not in named]


def _outer(text: str, place: PreviewPlace) -> str:
    """Rewrite an address of the port itself to one of the preview."""
    for host in ("localhost", "127.0.0.1", "[::1]", "0.0.0.0"):
        inner = f"http://{host}:{place.port}"
        if text == inner or text.startswith((f"{inner}/", f"{inner}?", f"{inner}#")):
            return place.origin + text.removeprefix(inner)
    return text


def _own_cookie(text: str) -> str | None:
    """The cookie, limited to this host. None if it has the name of one of chatd's own."""
    first, *attributes = text.split(";")
    if first.strip().lower().startswith(_OWN_COOKIES):
        return None
    kept = [each for each in attributes if each.strip().lower().partition("=")[0] != "domain"]
    return ";".join((first, *kept))


# What the API needs of a port.


class PortFailed(ChatdError):
    """The process on a port does not speak HTTP, or did not answer in time."""

    code = "port_failed"


class PortRequest(Struct, frozen=True, kw_only=True):
    """`target` is path and query as the browser sent them."""

    method: str
    target: str
    headers: HeaderList
