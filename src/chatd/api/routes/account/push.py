"""Routes by which a browser subscribes to notifications of the ends of turns."""

from datetime import datetime
from typing import Annotated, Final
from urllib.parse import urlsplit
from uuid import UUID, uuid5

from msgspec import Meta, Struct

from chatd.api.deps import ApiDeps
from chatd.api.pages import ItemPosition, Paging, cut_whole, page_reply
from chatd.api.request import NO_CONTENT, ApiReply, ApiRequest, BodySpec, reply
from chatd.api.route import ApiRoute
from chatd.api.schemas.messages import from_rows
from chatd.domain.addresses import names_private_host
from chatd.domain.deployment.webhooks import MAX_URL_CHARS, Webhook, decode_keys
from chatd.domain.description import CREATED_AT, describe
from chatd.domain.errors import InvalidInput, NotFound
from chatd.domain.ids import UserId
from chatd.domain.list_page import ListPage, ListQuery
from chatd.services.webhooks import check_webhook_url
from chatd.store.deployment import webhooks
from chatd.store.deployment.webhooks import SECRET_COLUMN

# Bodies and replies about notifications of browsers. Docstrings here are part of the OpenAPI
# document.

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


_MISSING_TEXT: Final = "There is no such subscription."
_SUBSCRIBE: Final = BodySpec(SubscriptionBody)


class PushRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps

    def routes(self) -> tuple[ApiRoute, ...]:
        one = "/push/subscriptions/{subscription_id}"
        return (
            ApiRoute(
                endpoint="GET /push/key",
                permission="account.read",
                summary="Get the public key with which a browser subscribes to notifications",
                handle=self.get_push_key,
                replies={200: PushKeyReply},
                errors=("secret_key_missing",),
            ),
            ApiRoute(
                endpoint="POST /push/subscriptions",
                permission="account.write",
                summary="Send notifications of your chats to a browser; again: with its new keys",
                handle=self.subscribe,
                body_spec=_SUBSCRIBE,
                replies={201: SubscriptionReply},
                errors=("too_many_subscriptions", "secret_key_missing"),
            ),
            ApiRoute(
                endpoint="GET /push/subscriptions",
                permission="account.read",
                summary="List your browsers that get notifications",
                handle=self.list_subscriptions,
                query=ListQuery,
                replies={200: SubscriptionPage},
            ),
            ApiRoute(
                endpoint=f"DELETE {one}",
                permission="account.write",
                summary="Send no more notifications to a browser",
                handle=self.unsubscribe,
                replies={204: None},
            ),
            ApiRoute(
                endpoint=f"POST {one}/test",
                permission="account.write",
                summary="Send a test notification to a browser",
                handle=self.send_test,
                replies={202: None},
            ),
        )

    async def get_push_key(self, request: ApiRequest) -> ApiReply:
        del request
        return reply(PushKeyReply(public_key=await self._deps.push_public_key()))

    async def subscribe(self, request: ApiRequest) -> ApiReply:
        deps, body, actor = self._deps, await request.body(_SUBSCRIBE), request.caller.actor
        endpoint = _check_endpoint(body.endpoint, allow_private=deps.reaches_private_hosts)
        keys = decode_keys(body.keys.p256dh, body.keys.auth)
        subscription_id = _id_of(actor.user_id, endpoint)
        sealed = deps.key_ring.seal(keys.encode(), SECRET_COLUMN.context(subscription_id))
        made = await webhooks.subscribe(
            deps.pool, actor, subscription_id, endpoint=endpoint, secret=sealed
        )
        deps.wake_webhooks()
        headers = {"location": f"/api/v1/push/subscriptions/{made.id}"}
        return reply(_subscription_reply(made), 201, headers)

    async def list_subscriptions(self, request: ApiRequest) -> ApiReply:
        actor = request.caller.actor
        paging = Paging(request, request.query(ListQuery), ItemPosition)
        found = await self._deps.read(webhooks.list_own_push, actor)
        shown, cursor = cut_whole(paging, found, lambda one: one.id)
        return page_reply(SubscriptionPage, (_subscription_reply(one) for one in shown), cursor)

    async def unsubscribe(self, request: ApiRequest) -> ApiReply:
        if not await webhooks.delete_push(
            self._deps.pool, request.caller.actor, request.subscription_id
        ):
            raise NotFound(_MISSING_TEXT)
        return NO_CONTENT

    async def send_test(self, request: ApiRequest) -> ApiReply:
        actor = request.caller.actor
        self._deps.accounts.limits.take_test(request.caller)
        if await webhooks.insert_push_ping(self._deps.pool, actor, request.subscription_id) is None:
            raise NotFound(_MISSING_TEXT)
        self._deps.wake_webhooks()
        return ApiReply(status=202)


def _check_endpoint(endpoint: str, *, allow_private: bool) -> str:
    """Raises InvalidInput. A push service is always reached over https. A name that leads to a
    private address is refused when the notification is sent."""
    try:
        checked = check_webhook_url(endpoint)
    except InvalidInput as error:
        raise InvalidInput("endpoint", error.detail) from None
    if not checked.startswith("https://"):
        raise InvalidInput("endpoint", "must be an https URL")
    if not allow_private and names_private_host(urlsplit(checked).hostname or ""):
        raise InvalidInput("endpoint", "must be a host on the public internet")
    return checked


def _id_of(user_id: UserId, endpoint: str) -> UUID:
    """The same for the same browser, so that it subscribes once; its sealed keys belong to it."""
    return uuid5(user_id, endpoint)


def _subscription_reply(one: Webhook) -> SubscriptionReply:
    return from_rows(SubscriptionReply, one, service=urlsplit(one.url).hostname or "")
