"""Bodies and replies about webhooks. Docstrings here are part of the OpenAPI document."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

from msgspec import UNSET, Meta, Struct, UnsetType

from chatd.domain.chat.turn_events import TurnEvent
from chatd.domain.description import CHAT_ID, CREATED_AT, UPDATED_AT, describe
from chatd.domain.list_page import ListPage
from chatd.domain.webhooks import MAX_URL_CHARS

_ID = "3f0e6f0c-51b7-4c6f-9a3e-6a1f3c0d2b11"
_URL = "https://ci.example.com/hooks/chatd"

Url = Annotated[str, Meta(min_length=1, max_length=MAX_URL_CHARS)]
Events = Annotated[tuple[TurnEvent, ...], Meta(min_length=1, max_length=4)]


class NewWebhookBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A webhook to create."""

    url: Annotated[Url, describe("Where deliveries are sent, by POST.", _URL)]
    events: Annotated[Events, describe("The events to deliver.", ["turn.finished", "turn.failed"])]
    secret: Annotated[
        str | None,
        describe(
            "The key of the signatures: `whsec_` and 24 to 64 bytes in base64. Without it one is"
            " generated.",
            None,
        ),
    ] = None


class WebhookPatch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to change of a webhook. Fields that are not named stay."""

    url: Annotated[Url | UnsetType, describe("Where deliveries are sent.", _URL)] = UNSET
    events: Annotated[Events | UnsetType, describe("The events to deliver.", ["turn.finished"])] = (
        UNSET
    )
    enabled: Annotated[
        bool | UnsetType,
        Meta(description="False: events are not delivered, and not kept.", examples=[True]),
    ] = UNSET


class WebhookReply(Struct, frozen=True, kw_only=True):
    """A webhook of yours."""

    id: Annotated[UUID, describe("The webhook's id.", _ID)]
    url: Annotated[str, describe("Where deliveries are sent.", _URL)]
    events: Annotated[tuple[str, ...], describe("The events to deliver.", ["turn.finished"])]
    enabled: Annotated[bool, Meta(description="Whether events are delivered.", examples=[True])]
    disabled_by: Annotated[str | None, describe("Why the server disabled it, if it did.", None)]
    failing_since: Annotated[
        datetime | None, describe("Since when no delivery has succeeded.", None)
    ]
    created_at: Annotated[datetime, describe("When it was created.", CREATED_AT)]
    updated_at: Annotated[datetime, describe("When it was last changed.", UPDATED_AT)]


class NewWebhookReply(Struct, frozen=True, kw_only=True):
    """A webhook that was created, with its secret, which is shown only here."""

    webhook: Annotated[WebhookReply, describe("The webhook.")]
    secret: Annotated[
        str,
        describe(
            "The key of the signatures.", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw4n9cBfXrRwk="
        ),
    ]


class DeliveryRecordReply(Struct, frozen=True, kw_only=True):
    """One delivery of a webhook."""

    id: Annotated[int, describe("Its number. The header webhook-id is `msg_` and this.", 41)]
    event: Annotated[str, describe("The event.", "turn.finished")]
    chat_id: Annotated[UUID | None, describe("The chat. Null for a ping.", CHAT_ID)]
    created_at: Annotated[datetime, describe("When the event happened.", CREATED_AT)]
    attempts: Annotated[int, describe("How often it was sent.", 1)]
    delivered: Annotated[
        bool, Meta(description="Whether the receiver accepted it.", examples=[True])
    ]
    next_attempt_at: Annotated[
        datetime | None, describe("When it is sent next. Null: it has ended.", None)
    ]
    reply_status: Annotated[int | None, describe("The status of the receiver's last reply.", 204)]
    failure: Annotated[str | None, describe("Why the last attempt got no reply.", None)]


class WebhookPage(ListPage[WebhookReply], frozen=True, kw_only=True):
    """Your webhooks."""


class DeliveryPage(ListPage[DeliveryRecordReply], frozen=True, kw_only=True):
    """The deliveries of a webhook, newest first. Ended ones are kept for a week."""
