"""Bodies and replies about notifications of browsers. Docstrings here are part of the OpenAPI
document."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

from msgspec import Meta, Struct

from chatd.domain.description import CREATED_AT, describe
from chatd.domain.list_page import ListPage
from chatd.domain.webhooks import MAX_URL_CHARS

MAX_KEY_CHARS = 200
_ID = "5a1c7e02-7b90-5f0b-8f11-0b1f4c7f9a21"
_ENDPOINT = "https://push.example.com/send/dGhpcyBpcw"
_P256DH = "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4"


class BrowserKeys(Struct, frozen=True, kw_only=True):
    """The keys of a subscription, as the browser's `toJSON()` gives them."""

    p256dh: Annotated[
        Annotated[str, Meta(max_length=MAX_KEY_CHARS)],
        describe("The browser's public key, in base64url.", _P256DH),
    ]
    auth: Annotated[
        Annotated[str, Meta(max_length=MAX_KEY_CHARS)],
        describe(
            "The secret that the browser shares with the server, in base64url.",
            "BTBZMqHH6r4Tts7J_aSIgg",
        ),
    ]


class SubscriptionBody(Struct, frozen=True, kw_only=True):
    """A browser's `PushSubscription`, as its `toJSON()` gives it."""

    endpoint: Annotated[
        Annotated[str, Meta(min_length=1, max_length=MAX_URL_CHARS)],
        describe("Where the browser's vendor takes messages for it.", _ENDPOINT),
    ]
    keys: Annotated[BrowserKeys, describe("The keys that messages are encrypted with.")]


class PushKeyReply(Struct, frozen=True, kw_only=True):
    """The key of this deployment."""

    public_key: Annotated[
        str, describe("Subscribe with it as `applicationServerKey`, in base64url.", _P256DH)
    ]


class SubscriptionReply(Struct, frozen=True, kw_only=True):
    """A browser of yours that gets notifications."""

    id: Annotated[UUID, describe("The subscription's id.", _ID)]
    service: Annotated[str, describe("The host of the browser's push service.", "push.example.com")]
    enabled: Annotated[bool, Meta(description="Whether messages are sent.", examples=[True])]
    disabled_by: Annotated[
        str | None, describe("Why the server sends no more messages, if it does not.", None)
    ]
    created_at: Annotated[datetime, describe("When the browser subscribed.", CREATED_AT)]


class SubscriptionPage(ListPage[SubscriptionReply], frozen=True, kw_only=True):
    """Your browsers that get notifications."""
