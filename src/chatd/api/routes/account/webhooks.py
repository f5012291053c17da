"""Routes that create, list, change and test webhooks of the caller."""

import secrets
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Final, TypeVar
from urllib.parse import urlsplit
from uuid import UUID

from msgspec import UNSET, Meta, Struct, UnsetType

from chatd.api.deps import ApiDeps
from chatd.api.pages import ItemPosition, NumberPosition, Paging, cut_whole, page_reply
from chatd.api.request import NO_CONTENT, ApiReply, ApiRequest, BodySpec, reply
from chatd.api.route import ApiRoute
from chatd.api.schemas.messages import from_rows
from chatd.domain.deployment.webhooks import (
    MAX_URL_CHARS,
    SECRET_BYTES,
    TurnEvent,
    Webhook,
    decode_secret,
    encode_secret,
)
from chatd.domain.description import CHAT_ID, CREATED_AT, UPDATED_AT, describe
from chatd.domain.errors import NotFound
from chatd.domain.list_page import ListPage, ListQuery
from chatd.services.webhooks import check_webhook_url
from chatd.store.account import audit
from chatd.store.database.conn import DatabaseSession
from chatd.store.deployment import webhooks
from chatd.store.deployment.webhooks import SECRET_COLUMN, DeliveryRecord

# Bodies and replies about webhooks. Docstrings here are part of the OpenAPI document.

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


_MISSING_TEXT: Final = "There is no such webhook."
_CREATE: Final = BodySpec(NewWebhookBody)
_PATCH: Final = BodySpec(WebhookPatch)


class WebhookRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps

    def routes(self) -> tuple[ApiRoute, ...]:
        one = "/webhooks/{webhook_id}"
        return (
            ApiRoute(
                endpoint="POST /webhooks",
                permission="account.write",
                summary="Create a webhook: turns of your chats that end are sent to a URL",
                handle=self.create_webhook,
                body_spec=_CREATE,
                replies={201: NewWebhookReply},
                errors=("too_many_webhooks", "secret_key_missing"),
            ),
            ApiRoute(
                endpoint="GET /webhooks",
                permission="account.read",
                summary="List your webhooks",
                handle=self.list_webhooks,
                query=ListQuery,
                replies={200: WebhookPage},
            ),
            ApiRoute(
                endpoint=f"GET {one}",
                permission="account.read",
                summary="Get a webhook",
                handle=self.get_webhook,
                replies={200: WebhookReply},
            ),
            ApiRoute(
                endpoint=f"PATCH {one}",
                permission="account.write",
                summary="Change a webhook, disable it, or enable it again",
                handle=self.change_webhook,
                body_spec=_PATCH,
                replies={200: WebhookReply},
            ),
            ApiRoute(
                endpoint=f"DELETE {one}",
                permission="account.write",
                summary="Delete a webhook with its deliveries",
                handle=self.delete_webhook,
                replies={204: None},
            ),
            ApiRoute(
                endpoint=f"POST {one}/ping",
                permission="account.write",
                summary="Send a test delivery now; the list of deliveries shows the result",
                handle=self.ping_webhook,
                replies={202: None},
            ),
            ApiRoute(
                endpoint=f"GET {one}/deliveries",
                permission="account.read",
                summary="List the deliveries of a webhook, newest first",
                handle=self.list_deliveries,
                query=ListQuery,
                replies={200: DeliveryPage},
            ),
        )

    async def create_webhook(self, request: ApiRequest) -> ApiReply:
        deps, body = self._deps, await request.body(_CREATE)
        url, webhook_id = check_webhook_url(body.url), deps.env.new_id()
        if body.secret is not None:
            decode_secret(body.secret)
        secret = body.secret or encode_secret(secrets.token_bytes(SECRET_BYTES))
        sealed = deps.key_ring.seal(secret, SECRET_COLUMN.context(webhook_id))
        events = tuple(dict.fromkeys(body.events))
        async with deps.pool.transaction() as session:
            made = await webhooks.insert(
                session, request.caller.actor, webhook_id, url=url, events=events, secret=sealed
            )
            await self._record(session, request, "webhook.create", made.id, _facts(made))
        deps.wake_webhooks()
        headers = {"location": f"/api/v1/webhooks/{made.id}"}
        return reply(NewWebhookReply(webhook=_webhook_reply(made), secret=secret), 201, headers)

    async def list_webhooks(self, request: ApiRequest) -> ApiReply:
        actor = request.caller.actor
        paging = Paging(request, request.query(ListQuery), ItemPosition)
        found = await self._deps.read(webhooks.list_own, actor)
        shown, cursor = cut_whole(paging, found, lambda webhook: webhook.id)
        return page_reply(WebhookPage, (_webhook_reply(webhook) for webhook in shown), cursor)

    async def get_webhook(self, request: ApiRequest) -> ApiReply:
        actor = request.caller.actor
        found = await self._deps.read(webhooks.get, actor, request.webhook_id)
        return reply(_webhook_reply(_require(found)))

    async def change_webhook(self, request: ApiRequest) -> ApiReply:
        body, actor = await request.body(_PATCH), request.caller.actor
        url = _given(body.url)
        events = _given(body.events)
        async with self._deps.pool.transaction() as session:
            changed = _require(
                await webhooks.update(
                    session,
                    actor,
                    request.webhook_id,
                    url=None if url is None else check_webhook_url(url),
                    events=None if events is None else tuple(dict.fromkeys(events)),
                    enabled=_given(body.enabled),
                )
            )
            await self._record(session, request, "webhook.update", changed.id, _facts(changed))
        return reply(_webhook_reply(changed))

    async def delete_webhook(self, request: ApiRequest) -> ApiReply:
        actor, webhook_id = request.caller.actor, request.webhook_id
        async with self._deps.pool.transaction() as session:
            known = _require(await webhooks.get(session, actor, webhook_id))
            if not await webhooks.delete(session, actor, webhook_id):
                raise NotFound(_MISSING_TEXT)
            await self._record(session, request, "webhook.delete", webhook_id, _facts(known))
        return NO_CONTENT

    async def _record(
        self,
        session: DatabaseSession,
        request: ApiRequest,
        action: str,
        webhook_id: UUID,
        detail: Mapping[str, object],
    ) -> None:
        await audit.record(
            session,
            request.caller.actor,
            action=action,
            object_type="webhook",
            object_id=webhook_id,
            ip=self._deps.author(request).ip,
            detail=detail,
        )

    async def ping_webhook(self, request: ApiRequest) -> ApiReply:
        actor = request.caller.actor
        self._deps.accounts.limits.take_test(request.caller)
        if await webhooks.insert_ping(self._deps.pool, actor, request.webhook_id) is None:
            raise NotFound(_MISSING_TEXT)
        self._deps.wake_webhooks()
        return ApiReply(status=202)

    async def list_deliveries(self, request: ApiRequest) -> ApiReply:
        actor, webhook_id = request.caller.actor, request.webhook_id
        paging = Paging(request, request.query(ListQuery), NumberPosition)
        _require(await self._deps.read(webhooks.get, actor, webhook_id))
        before = None if paging.position is None else paging.position.number
        found = await self._deps.read(
            webhooks.list_deliveries, actor, webhook_id, before=before, limit=paging.read_limit
        )
        shown, cursor = paging.cut(found, lambda one: NumberPosition(number=one.delivery.id))
        return page_reply(DeliveryPage, (_delivery_reply(one) for one in shown), cursor)


T = TypeVar("T")


def _given(value: T | UnsetType) -> T | None:
    return None if isinstance(value, UnsetType) else value


def _require(found: Webhook | None) -> Webhook:
    if found is None:
        raise NotFound(_MISSING_TEXT)
    return found


def _facts(webhook: Webhook) -> dict[str, object]:
    """For the audit log. The address may contain a secret: only its host is told."""
    return {
        "host": urlsplit(webhook.url).hostname or "",
        "events": list(webhook.events),
        "enabled": webhook.enabled,
    }


def _webhook_reply(webhook: Webhook) -> WebhookReply:
    return from_rows(WebhookReply, webhook)


def _delivery_reply(record: DeliveryRecord) -> DeliveryRecordReply:
    delivery, row = record.delivery, record.row
    return from_rows(
        DeliveryRecordReply,
        delivery,
        delivered=row["delivered"],
        next_attempt_at=row["due_at"],
        reply_status=row["reply_status"],
        failure=row["failure"],
    )
