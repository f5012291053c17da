"""Web push: what a browser subscribes with, and what it is told when a turn of a chat ends.

A subscription is kept like a webhook: its URL is the endpoint of the browser vendor, its secret are
the keys by which only that browser can read a message.
"""

import base64
import binascii
from typing import Final

import msgspec
from msgspec import Struct

from chatd.domain.deployment.webhooks import Delivery
from chatd.domain.errors import InvalidInput

PUBLIC_KEY_BYTES: Final = 65
"""A point of the curve P-256, uncompressed."""
AUTH_BYTES: Final = 16
_PRIME: Final = 2**256 - 2**224 + 2**192 + 2**96 - 1
_B: Final = 0x5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B
"""The curve is y² = x³ - 3x + b."""
MAX_SUBSCRIPTIONS_PER_USER: Final = 20
MAX_TITLE_CHARS: Final = 80
MAX_BODY_CHARS: Final = 160
PUSH_EVENTS: Final = ("turn.finished", "turn.failed", "turn.needs_action")
"""A user who interrupts a turn is there and needs no message."""
PUSH_TTL_S: Final = 86_400
_TEXTS: Final = {
    "ping": "Notifications of chatd arrive here.",
    "turn.finished": "The answer is complete.",
    "turn.failed": "The chat stopped with an error.",
    "turn.needs_action": "The chat needs you.",
}


class SubscriptionKeys(Struct, frozen=True, kw_only=True):
    """`p256dh`: the browser's public key; `auth`: a secret that it shares with this server."""

    p256dh: bytes
    auth: bytes

    def encode(self) -> str:
        return f"{encode_base64url(self.p256dh)}.{encode_base64url(self.auth)}"


class _ChatFailure(Struct):
    message: str = ""


class _NeededAction(Struct):
    summary: str = ""


def decode_keys(p256dh: str, auth: str) -> SubscriptionKeys:
    """Raises InvalidInput."""
    key, secret = _decode("keys.p256dh", p256dh), _decode("keys.auth", auth)
    if len(key) != PUBLIC_KEY_BYTES or key[0] != 4:
        raise InvalidInput("keys.p256dh", f"must be {PUBLIC_KEY_BYTES} bytes in base64url")
    if not _is_point(key):
        raise InvalidInput("keys.p256dh", "is not a point of the curve P-256")
    if len(secret) != AUTH_BYTES:
        raise InvalidInput("keys.auth", f"must be {AUTH_BYTES} bytes in base64url")
    return SubscriptionKeys(p256dh=key, auth=secret)


def needs_summary(answer: str) -> bool:
    """Whether a notification cannot show the whole answer."""
    return len(" ".join(answer.split())) > MAX_BODY_CHARS


def push_payload(delivery: Delivery, answer: str | None) -> bytes:
    """What the page's service worker shows. `answer`: a summary of the last answer or its text, if
    any. Messages of one chat replace each other, by `tag`."""
    text = _TEXTS.get(delivery.event, delivery.event)
    if delivery.event == "turn.finished" and answer:
        text = answer
    if delivery.error is not None:
        text = msgspec.json.decode(delivery.error, type=_ChatFailure).message or text
    if delivery.action is not None:
        text = msgspec.json.decode(delivery.action, type=_NeededAction).summary or text
    return msgspec.json.encode(
        {
            "title": _clip(delivery.title or "chatd", MAX_TITLE_CHARS),
            "body": _clip(text, MAX_BODY_CHARS),
            "event": delivery.event,
            "tag": None if delivery.chat_id is None else str(delivery.chat_id),
            "url": "/" if delivery.chat_id is None else f"/c/{delivery.chat_id}",
        }
    )


def encode_base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _is_point(key: bytes) -> bool:
    x, y = (int.from_bytes(half) for half in (key[1:33], key[33:]))
    return max(x, y) < _PRIME and (y * y - x**3 + 3 * x - _B) % _PRIME == 0


def _clip(text: str, most: int) -> str:
    words = " ".join(text.split())
    return words if len(words) <= most else words[: most - 1].rstrip() + "…"


def _decode(field: str, text: str) -> bytes:
    try:
        plain = text.rstrip("=")
        return base64.b64decode(plain + "=" * (-len(plain) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise InvalidInput(field, "must be base64url") from None
