"""The proof that a delivery comes from the host of a connection, and the id of the delivery.

GitHub and Gitea sign the body with HMAC-SHA256. GitLab sends its secret token in a header; if the
secret begins with `whsec_`, it must sign as the Standard Webhooks convention says.
"""

import base64
import hashlib
import hmac
from collections.abc import Mapping
from typing import Final

from chatd.domain.deployment.webhooks import SECRET_PREFIX, decode_secret
from chatd.domain.text import clip
from chatd.domain.workspace.pull_requests import GitHostKind

MAX_SIGNATURE_AGE_S: Final = 300
"""Of a signature with a time, in either direction."""
MAX_DELIVERY_ID_CHARS: Final = 100
_DELIVERY_HEADERS: Final[Mapping[GitHostKind, tuple[str, ...]]] = {
    "github": ("x-github-delivery",),
    "gitea": ("x-gitea-delivery", "x-forgejo-delivery"),
    "gitlab": ("idempotency-key", "webhook-id", "x-gitlab-event-uuid"),
}
_EVENT_HEADERS: Final[Mapping[GitHostKind, tuple[str, ...]]] = {
    "github": ("x-github-event",),
    "gitea": ("x-gitea-event", "x-forgejo-event"),
    "gitlab": ("x-gitlab-event",),
}


def delivery_id(kind: GitHostKind, headers: Mapping[str, str]) -> str:
    return clip(_first(headers, _DELIVERY_HEADERS[kind]), MAX_DELIVERY_ID_CHARS)


def event_name(kind: GitHostKind, headers: Mapping[str, str]) -> str:
    return _first(headers, _EVENT_HEADERS[kind])


def is_authentic(
    kind: GitHostKind, headers: Mapping[str, str], body: bytes, secret: str, now_s: float
) -> bool:
    """Compared in constant time."""
    match kind:
        case "github":
            given = headers.get("x-hub-signature-256", "")
            return _is_equal(given, f"sha256={_hex(secret, body)}")
        case "gitea":
            given = _first(headers, ("x-gitea-signature", "x-forgejo-signature"))
            return _is_equal(given, _hex(secret, body))
        case "gitlab":
            if secret.startswith(SECRET_PREFIX):
                return _is_signed(headers, body, secret, now_s)
            return _is_equal(headers.get("x-gitlab-token", ""), secret)


def _is_signed(headers: Mapping[str, str], body: bytes, secret: str, now_s: float) -> bool:
    sent_at = headers.get("webhook-timestamp", "")
    if not (sent_at.isascii() and sent_at.isdecimal() and len(sent_at) <= 12):
        return False
    if abs(now_s - int(sent_at)) > MAX_SIGNATURE_AGE_S:
        return False
    signed = f"{headers.get('webhook-id', '')}.{sent_at}.".encode() + body
    digest = hmac.digest(decode_secret(secret), signed, hashlib.sha256)
    wanted = f"v1,{base64.b64encode(digest).decode()}"
    given = headers.get("webhook-signature", "").split(" ")[:10]
    return any(_is_equal(each, wanted) for each in given)


def _hex(secret: str, body: bytes) -> str:
    return hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def _is_equal(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())


def _first(headers: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((headers[name] for name in names if headers.get(name)), "")
