"""Webhooks and web push: which change is an event, what is sent, how it is signed, and when a
failed delivery is tried again.

The headers and the signature are those of the Standard Webhooks convention, for which receivers
find libraries in most languages.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from datetime import datetime
from typing import Final, Literal, get_args
from uuid import UUID

import msgspec
from msgspec import Raw, Struct

from chatd.domain.chat.change import Change
from chatd.domain.errors import InvalidInput
from chatd.domain.ids import ChatId, UserId

TurnEvent = Literal["turn.finished", "turn.interrupted", "turn.failed", "turn.needs_action"]
TURN_EVENTS: Final[tuple[TurnEvent, ...]] = get_args(TurnEvent)


def turn_event(change: Change) -> TurnEvent | None:
    """None: the turn goes on, none was running, or a new text of the user replaced it."""
    before, after = change.before, change.after
    if before is None or change.delete_from is not None:
        return None
    if after.status == "error":
        return None if before.status == "error" else "turn.failed"
    if after.status == "requires_action":
        return None if before.status == "requires_action" else "turn.needs_action"
    if before.status not in ("running", "interrupting", "requires_action"):
        return None
    goes_on = after.status in ("running", "interrupting")
    if goes_on and after.turn_message_id == before.turn_message_id:
        return None
    is_finished = before.status == "running" and not after.archived
    return "turn.finished" if is_finished else "turn.interrupted"


WebhookEvent = Literal["ping"] | TurnEvent
WebhookKind = Literal["http", "push"]
"""`push`: the endpoint of a browser, see Web push below."""

SECRET_PREFIX: Final = "whsec_"
SECRET_BYTES: Final = 32
MAX_WEBHOOKS_PER_USER: Final = 20
MAX_URL_CHARS: Final = 2000
RETRY_DELAYS_S: Final = (5.0, 30.0, 120.0, 600.0, 1800.0, 3600.0, 10_800.0, 21_600.0, 43_200.0)
"""Delays after each failed attempt, about a day in all. Then the delivery has failed."""
DISABLE_AFTER_S: Final = 3 * 86_400.0
"""A webhook that has failed for so long without a success is disabled."""
GONE: Final = 410
NO_SUBSCRIPTION: Final = (404, GONE)
"""A push service answers so when the browser has ended its subscription."""


class Webhook(Struct, frozen=True, kw_only=True):
    """`disabled_by`: why chatd disabled it. The secret is not part of it."""

    id: UUID
    owner_id: UserId
    url: str
    events: tuple[str, ...]
    enabled: bool
    disabled_by: str | None
    failing_since: datetime | None
    created_at: datetime
    updated_at: datetime


class Delivery(Struct, frozen=True, kw_only=True):
    """`chat_id` and what follows are None for a ping. `action`: what a person must do. `more`: a
    queued message goes on, so that the end of another turn follows."""

    id: int
    webhook_id: UUID
    event: str
    chat_id: ChatId | None
    version: int | None
    title: str | None
    labels: Mapping[str, str]
    error: Raw | None
    action: Raw | None = None
    more: bool = False
    created_at: datetime
    attempts: int


class DeliveryReply(Struct, frozen=True, kw_only=True):
    """What became of one attempt: the status of the reply, or why there was none."""

    status: int | None = None
    failure: str | None = None

    @property
    def is_success(self) -> bool:
        return self.status is not None and 200 <= self.status < 300


def body_of(delivery: Delivery) -> bytes:
    """The same bytes at every attempt."""
    data: dict[str, object] = {}
    if delivery.chat_id is not None:
        data = {
            "chat_id": delivery.chat_id,
            "version": delivery.version,
            "title": delivery.title,
            "labels": delivery.labels,
            "error": delivery.error,
        }
        if delivery.action is not None:
            data["action"] = delivery.action
        if delivery.more:
            data["more"] = True
    return msgspec.json.encode(
        {"type": delivery.event, "timestamp": delivery.created_at, "data": data}
    )


def signed_headers(name: str, body: bytes, secret: str, sent_at_s: int) -> dict[str, str]:
    """`name` becomes `webhook-id`. It is the same at every attempt: the receiver drops what it has
    seen."""
    signed = f"{name}.{sent_at_s}.".encode() + body
    digest = hmac.digest(decode_secret(secret), signed, hashlib.sha256)
    return {
        "content-type": "application/json",
        "user-agent": "chatd",
        "webhook-id": name,
        "webhook-timestamp": str(sent_at_s),
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }


def encode_secret(key: bytes) -> str:
    return SECRET_PREFIX + base64.b64encode(key).decode()


def decode_secret(secret: str) -> bytes:
    """Raises InvalidInput."""
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith(SECRET_PREFIX) or not 24 <= len(key) <= 64:
        raise InvalidInput("secret", f"must be {SECRET_PREFIX} and 24 to 64 bytes in base64")
    return key


def retry_delay_s(attempts: int, jitter: float) -> float | None:
    """The delay after this many failed attempts; None: give up. `jitter` is from 0 to 1."""
    if attempts > len(RETRY_DELAYS_S):
        return None
    return RETRY_DELAYS_S[attempts - 1] * (0.8 + 0.4 * jitter)


def reason_to_disable(
    reply: DeliveryReply, failing_for_s: float, kind: WebhookKind = "http"
) -> str | None:
    """None: the webhook stays enabled."""
    if kind == "push" and reply.status in NO_SUBSCRIPTION:
        return "The browser has ended its subscription."
    if reply.status == GONE:
        return "The receiver answered 410 Gone."
    if not reply.is_success and failing_for_s >= DISABLE_AFTER_S:
        return f"All deliveries failed for {DISABLE_AFTER_S / 86_400:.0f} days."
    return None


# Web push: what a browser subscribes with, and what it is told when a turn of a chat ends.
#
# A subscription is kept like a webhook: its URL is the endpoint of the browser vendor, its secret
# are the keys by which only that browser can read a message.

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


class NotifiedCall(Struct, frozen=True, kw_only=True):
    """The call that a notification is about, in a line. `query` names it in the address of the
    chat. `answer_path`: a link that answers it."""

    query: str
    text: str
    answer_path: str | None = None


def push_payload(delivery: Delivery, answer: str | None, call: NotifiedCall | None = None) -> bytes:
    """What the page's service worker shows. `answer`: a summary of the last answer or its text, if
    any. `call`: a call that waits for approval; the notification opens its card. Messages of one
    chat replace each other, by `tag`."""
    text = _TEXTS.get(delivery.event, delivery.event)
    if delivery.event == "turn.finished" and answer:
        text = answer
    if delivery.error is not None:
        text = msgspec.json.decode(delivery.error, type=_ChatFailure).message or text
    if delivery.action is not None:
        text = msgspec.json.decode(delivery.action, type=_NeededAction).summary or text
    path = "/" if delivery.chat_id is None else f"/c/{delivery.chat_id}"
    if call is not None:
        text, path = call.text, f"{path}?{call.query}"
    more = {} if call is None or call.answer_path is None else {"answer": call.answer_path}
    return msgspec.json.encode(
        {
            "title": _clip(delivery.title or "chatd", MAX_TITLE_CHARS),
            "body": _clip(text, MAX_BODY_CHARS),
            "event": delivery.event,
            "tag": None if delivery.chat_id is None else str(delivery.chat_id),
            "url": path,
            **more,
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
