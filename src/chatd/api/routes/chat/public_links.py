"""Routes that make, list, update and revoke public links of chats, and the two by which a reader
without an account sees what a link shows.

The readers' routes take the secret in the body: it stands in no address, so that no log of a server
or proxy and no Referer has it. They look at no cookie and no token. Whatever is wrong with a link,
the reply is the same.
"""

import secrets
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, ClassVar, Final, TypeVar
from uuid import UUID

from msgspec import Meta, Struct

from chatd.api.accounts.request_limits import Buckets, address_group
from chatd.api.deps import ApiDeps
from chatd.api.error_codes import FILE_STORE_CODES
from chatd.api.pages import Paging, TimePosition, page_reply
from chatd.api.request import NO_CONTENT, ApiReply, ApiRequest, BodySpec, StreamedReply, reply
from chatd.api.route import ApiRoute
from chatd.api.routes.files import SANDBOX
from chatd.api.schemas.messages import MAX_INT64, from_rows
from chatd.domain.access.permissions import SystemActor
from chatd.domain.access.secret_text import SECRET_BYTES, is_opaque_secret, secret_text
from chatd.domain.chat_views.public_links import (
    MAX_LINK_DAYS,
    MAX_LINKS_PER_CHAT,
    MAX_SHARED_MESSAGES,
    PUBLIC_LINK_PATH,
    PublicLink,
    SharedMessage,
    shared_file_part,
    shared_message,
)
from chatd.domain.description import CHAT_ID, CREATED_AT, UPDATED_AT, USER_ID, describe
from chatd.domain.errors import NotFound
from chatd.domain.files import ByteRange, content_disposition
from chatd.domain.ids import ChatId, FileId, MessageId, UserId
from chatd.domain.list_page import ListPage, ListQuery
from chatd.domain.media_types import is_text_type
from chatd.store import files
from chatd.store.account import public_links, runtime_settings
from chatd.store.account.public_links import LinkRules, NewPublicLink

READS_PER_MINUTE: Final = 120
"""Of one address on this replica: pages of messages, and files."""
MAX_SECRET_CHARS: Final = 200

_LINK_ID: Final = "0193c5c0-51aa-7e10-8d3f-1a2b3c4d5e6f"
_SECRET: Final = "qd0zZ5Yk3Gf1x8o2Vw6b9Jm4Tn7RcLsHpEaUiQyXtBg"
_GONE: Final = "There is nothing under this link: it was revoked, has expired, or is incomplete."
_SERVER: Final = SystemActor(reason="public links")

Secret = Annotated[
    str,
    Meta(max_length=MAX_SECRET_CHARS),
    describe("What follows # in the link.", _SECRET),
]


class PublicLinkBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the link shows, and for how long."""

    openapi_example: ClassVar[Mapping[str, object]] = {"days": 7}

    days: Annotated[
        int,
        Meta(ge=1, le=MAX_LINK_DAYS),
        describe("After how many days it ends; at most what the settings allow.", 7),
    ]
    with_tools: Annotated[
        bool, describe("Whether it shows calls of tools and their output, each cut.")
    ] = False
    with_files: Annotated[bool, describe("Whether it shows files and quotations of files.")] = False


class PublicLinkReply(Struct, frozen=True, kw_only=True):
    """A public link to a chat."""

    id: Annotated[UUID, describe("The link's id, which does not open it.", _LINK_ID)]
    chat_id: Annotated[ChatId, describe("The chat.", CHAT_ID)]
    chat_title: Annotated[str, describe("Its title, which readers see.", "Fix the test")]
    owner_id: Annotated[UserId, describe("The user to whom the chat belongs.", USER_ID)]
    owner_username: Annotated[str, describe("The name of that user.", "ada")]
    with_tools: Annotated[bool, describe("Whether it shows calls of tools and their output.")]
    with_files: Annotated[bool, describe("Whether it shows files.")]
    has_newer: Annotated[
        bool, describe("Whether the chat has newer messages, which it does not show.")
    ]
    created_at: Annotated[datetime, describe("When it was made.", CREATED_AT)]
    updated_at: Annotated[
        datetime, describe("It shows what the chat had at this time.", UPDATED_AT)
    ]
    expires_at: Annotated[datetime, describe("When it ends.", UPDATED_AT)]
    last_read_at: Annotated[
        datetime | None, describe("When it was last opened, to the minute.", UPDATED_AT)
    ]


class NewPublicLinkReply(PublicLinkReply, frozen=True, kw_only=True):
    """A link that was just made."""

    path: Annotated[
        str,
        describe(
            "Where it leads on this server, with its secret, which is told only now.",
            f"{PUBLIC_LINK_PATH}#{_SECRET}",
        ),
    ]


class PublicLinkList(Struct, frozen=True, kw_only=True):
    """The public links of a chat."""

    items: Annotated[tuple[PublicLinkReply, ...], describe("The links, the oldest first.")]
    enabled: Annotated[bool, describe("Whether the settings let users make links.")]
    max_days: Annotated[int, describe("The longest life of a new link.", 30)]


class PublicLinkPage(ListPage[PublicLinkReply], frozen=True, kw_only=True):
    """A page of public links."""


class PublicLinksQuery(ListQuery, frozen=True, kw_only=True):
    """Whose links."""

    everyone: Annotated[
        bool, describe("Those of all users, for administrators and viewers; else your own.")
    ] = False


class SharedChatBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which part of which shared chat."""

    openapi_example: ClassVar[Mapping[str, object]] = {"secret": _SECRET}

    secret: Secret
    after: Annotated[
        int,
        Meta(ge=0, le=MAX_INT64),
        describe(
            "Only messages after this one, by id: that of the last one of the page before.", 7
        ),
    ] = 0


class SharedChatReply(Struct, frozen=True, kw_only=True):
    """What a public link shows of a chat."""

    title: Annotated[str, describe("The title of the chat.", "Fix the test")]
    shared_at: Annotated[datetime, describe("Messages after this time are not shown.", UPDATED_AT)]
    expires_at: Annotated[datetime, describe("When the link ends.", UPDATED_AT)]
    messages: Annotated[tuple[SharedMessage, ...], describe("The messages, the oldest first.")]
    next_after: Annotated[
        MessageId | None, describe("`after` of the next page; null on the last page.", 7)
    ]


class SharedFileBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of a message."""

    openapi_example: ClassVar[Mapping[str, object]] = {
        "secret": _SECRET,
        "message_id": 7,
        "part": 1,
    }

    secret: Secret
    message_id: Annotated[int, Meta(ge=1, le=MAX_INT64), describe("The message.", 7)]
    part: Annotated[int, Meta(ge=0, le=10_000), describe("`part` of the file.", 1)]


_Asked = TypeVar("_Asked", SharedChatBody, SharedFileBody)
_NEW: Final = BodySpec(PublicLinkBody)
_READ: Final = BodySpec(SharedChatBody)
_FILE: Final = BodySpec(SharedFileBody)


class PublicLinkRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps
        self._readers = Buckets(deps.env.clock)

    def routes(self) -> tuple[ApiRoute, ...]:
        one = "/public-links/{public_link_id}"
        return (
            ApiRoute(
                endpoint="GET /chats/{chat_id}/public-links",
                permission="shares.read",
                summary="List the public links of a chat",
                handle=self.list_links_of_chat,
                replies={200: PublicLinkList},
            ),
            ApiRoute(
                endpoint="POST /chats/{chat_id}/public-links",
                permission="chats.share",
                summary="Make a link by which everyone who has it reads a chat",
                description=(
                    "It shows the texts that the chat has now: no later ones until it is updated,"
                    " and none that the chat does not show any more. It never shows reasoning,"
                    " prompts, names of users, models or workspaces. A chat has at most"
                    f" {MAX_LINKS_PER_CHAT} links. Only the owner makes them."
                ),
                handle=self.create_public_link,
                body_spec=_NEW,
                replies={201: NewPublicLinkReply},
                errors=("not_a_root_chat", "public_links_off", "too_many_public_links"),
            ),
            ApiRoute(
                endpoint="GET /public-links",
                permission="shares.read",
                summary="List your public links, or those of all users, newest first",
                handle=self.list_public_links,
                query=PublicLinksQuery,
                replies={200: PublicLinkPage},
            ),
            ApiRoute(
                endpoint=f"POST {one}/update",
                permission="chats.share",
                summary="Let a public link show what its chat has now",
                handle=self.update_public_link,
                replies={200: PublicLinkReply},
            ),
            ApiRoute(
                endpoint=f"DELETE {one}",
                permission="chats.share",
                summary="Revoke a public link",
                handle=self.revoke_public_link,
                replies={204: None},
            ),
            ApiRoute(
                endpoint="POST /public/chat",
                permission="public",
                summary="Read a chat by the secret of a public link",
                description=(
                    f"At most {MAX_SHARED_MESSAGES} messages at once. The reply to a link that was"
                    " revoked, has expired or never was is the same. An address may ask"
                    f" {READS_PER_MINUTE} times a minute."
                ),
                handle=self.read_shared_chat,
                body_spec=_READ,
                replies={200: SharedChatReply},
                errors=("not_found", "rate_limited"),
            ),
            ApiRoute(
                endpoint="POST /public/file",
                permission="public",
                summary="Load a file of a chat by the secret of a public link",
                handle=self.read_shared_file,
                body_spec=_FILE,
                replies={200: bytes},
                errors=("not_found", "rate_limited", *FILE_STORE_CODES),
            ),
        )

    async def list_links_of_chat(self, request: ApiRequest) -> ApiReply:
        deps, actor = self._deps, request.caller.actor
        found = await deps.read(public_links.list_of_chat, actor, request.chat_id)
        rules = await self._rules()
        return reply(
            PublicLinkList(
                items=tuple(_link_reply(link) for link in found),
                enabled=rules.enabled and actor.reads_shared,
                max_days=rules.max_days,
            )
        )

    async def create_public_link(self, request: ApiRequest) -> ApiReply:
        deps, actor, body = self._deps, request.caller.actor, await request.body(_NEW)
        rules = await self._rules()
        new = NewPublicLink(
            id=deps.env.new_id(),
            chat_id=request.chat_id,
            secret=secret_text(secrets.token_bytes(SECRET_BYTES)),
            days=body.days,
            with_tools=body.with_tools,
            with_files=body.with_files,
        )
        ip = deps.accounts.site.address(request.scope)
        async with deps.pool.transaction() as session:
            made = await public_links.insert(session, actor, new, rules, ip=ip)
        path = f"{PUBLIC_LINK_PATH}#{new.secret}"
        return reply(from_rows(NewPublicLinkReply, made, path=path), 201)

    async def list_public_links(self, request: ApiRequest) -> ApiReply:
        query = request.query(PublicLinksQuery)
        paging = Paging(request, query, TimePosition)
        last = paging.position
        found = await self._deps.read(
            public_links.list_page,
            request.caller.actor,
            everyone=query.everyone,
            before=None if last is None else (last.at, last.id),
            limit=paging.read_limit,
        )
        shown, cursor = paging.cut(found, lambda link: TimePosition(link.created_at, link.id))
        return page_reply(PublicLinkPage, map(_link_reply, shown), cursor)

    async def update_public_link(self, request: ApiRequest) -> ApiReply:
        deps, actor = self._deps, request.caller.actor
        ip = deps.accounts.site.address(request.scope)
        async with deps.pool.transaction() as session:
            link = await public_links.update(session, actor, request.public_link_id, ip=ip)
        return reply(_link_reply(link))

    async def revoke_public_link(self, request: ApiRequest) -> ApiReply:
        deps, actor = self._deps, request.caller.actor
        ip = deps.accounts.site.address(request.scope)
        async with deps.pool.transaction() as session:
            await public_links.revoke(session, actor, request.public_link_id, ip=ip)
        return NO_CONTENT

    async def read_shared_chat(self, request: ApiRequest) -> ApiReply:
        deps, body = self._deps, await self._admitted(request, _READ)
        found = await deps.read(
            public_links.read,
            body.secret,
            after=MessageId(body.after),
            limit=MAX_SHARED_MESSAGES,
        )
        if found is None:
            raise NotFound(_GONE)
        link = found.link
        if not body.after:
            await deps.retry(lambda: public_links.note_read(deps.pool, link.id))
        shared = (shared_message(row, link) for row in found.messages)
        return reply(
            SharedChatReply(
                title=link.chat_title,
                shared_at=link.updated_at,
                expires_at=link.expires_at,
                messages=tuple(message for message in shared if message is not None),
                next_after=found.messages[-1].id if found.has_more else None,
            )
        )

    async def read_shared_file(self, request: ApiRequest) -> ApiReply:
        deps, body = self._deps, await self._admitted(request, _FILE)
        message_id = MessageId(body.message_id)
        found = await deps.read(public_links.read_message, body.secret, message_id)
        part = None if found is None else shared_file_part(found.message, body.part)
        if found is None or part is None or part.file_id is None:
            raise NotFound(_GONE)
        try:
            file = await deps.read(files.get, FileId(UUID(part.file_id)), found.actor)
        except (NotFound, ValueError):
            raise NotFound(_GONE) from None
        charset = "; charset=utf-8" if is_text_type(file.media_type) else ""
        return StreamedReply(
            pieces=deps.files.of(file.store).read(file, ByteRange(0, file.size_bytes)),
            length=file.size_bytes,
            media_type=file.media_type + charset,
            headers={
                "cache-control": "no-store",
                "content-disposition": content_disposition("attachment", file.name),
                "content-security-policy": SANDBOX,
                "cross-origin-resource-policy": "same-origin",
            },
        )

    async def _admitted(self, request: ApiRequest, spec: BodySpec[_Asked]) -> _Asked:
        """The body of a reader. Raises RateLimited before anything is looked up, and NotFound for
        what cannot be a secret."""
        address = self._deps.accounts.site.address(request.scope)
        self._readers.take(address_group(address), READS_PER_MINUTE)
        body = await request.body(spec)
        if not is_opaque_secret(body.secret):
            raise NotFound(_GONE)
        return body

    async def _rules(self) -> LinkRules:
        stored = await self._deps.read(runtime_settings.get_deployment, _SERVER)
        document = stored.document
        return LinkRules(enabled=document.public_links, max_days=document.public_link_days)


def _link_reply(link: PublicLink) -> PublicLinkReply:
    return from_rows(PublicLinkReply, link)
