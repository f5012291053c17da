"""Routes that share chats with users and groups, and find these."""

from typing import Final

from msgspec.structs import asdict

from chatd.api.deps import ApiDeps
from chatd.api.errors import FieldError, InvalidFields
from chatd.api.request import ApiReply, ApiRequest, BodySpec, reply
from chatd.api.route import ApiRoute
from chatd.api.schemas.shares import (
    AclBody,
    AclGroup,
    AclReply,
    AclUser,
    DirectoryGroup,
    DirectoryQuery,
    DirectoryReply,
    DirectoryUser,
)
from chatd.domain.chat.shares import ShareRequest, UnknownReaders
from chatd.domain.ids import GroupId, UserId
from chatd.store.account import directory
from chatd.store.chat import shares
from chatd.store.chat.shares import SharedChat

_ACL: Final = BodySpec(AclBody)


class ShareRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps

    def routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="GET /chats/{chat_id}/acl",
                permission="shares.read",
                summary="List who reads a chat beside its owner",
                description="A subagent is shared with its root chat: the reply is about the root.",
                handle=self.get_acl,
                replies={200: AclReply},
            ),
            ApiRoute(
                endpoint="PATCH /chats/{chat_id}/acl",
                permission="chats.share",
                summary="Share a chat with users and groups, or stop sharing it",
                description=(
                    "Readers see the chat, its subagents, its files and its streams, and change"
                    " nothing. The owner shares; an administrator can only remove readers. Streams"
                    " of a removed reader end within a second."
                ),
                handle=self.change_acl,
                body_spec=_ACL,
                replies={200: AclReply},
                errors=("not_a_root_chat", "sharing_disabled", "too_many_readers"),
            ),
            ApiRoute(
                endpoint="GET /directory",
                permission="chats.share",
                summary="Find users and groups to share a chat with, by name",
                handle=self.search_directory,
                query=DirectoryQuery,
                replies={200: DirectoryReply},
                errors=("sharing_disabled",),
            ),
        )

    async def get_acl(self, request: ApiRequest) -> ApiReply:
        deps, actor = self._deps, request.caller.actor
        found = await deps.retry(lambda: shares.list_readers(deps.pool, actor, request.chat_id))
        return reply(_acl(found))

    async def change_acl(self, request: ApiRequest) -> ApiReply:
        deps, actor, body = self._deps, request.caller.actor, await request.body(_ACL)
        wanted = ShareRequest(
            users={UserId(user): role for user, role in body.user_roles.items()},
            groups={GroupId(group): role for group, role in body.group_roles.items()},
        )
        ip = deps.accounts.site.address(request.scope)
        try:
            async with deps.pool.transaction() as session:
                found = await shares.update(session, actor, request.chat_id, wanted, ip=ip)
        except UnknownReaders as error:
            raise _invalid(error) from None
        return reply(_acl(found))

    async def search_directory(self, request: ApiRequest) -> ApiReply:
        deps, actor, query = self._deps, request.caller.actor, request.query(DirectoryQuery)
        found = await deps.retry(
            lambda: directory.find_readers(deps.pool, actor, query.q.strip(), limit=query.limit)
        )
        return reply(
            DirectoryReply(
                users=tuple(DirectoryUser(**asdict(user)) for user in found.users),
                groups=tuple(DirectoryGroup(**asdict(group)) for group in found.groups),
            )
        )


def _acl(shared: SharedChat) -> AclReply:
    return AclReply(
        chat_id=shared.chat_id,
        users=tuple(AclUser(**asdict(user)) for user in shared.readers.users),
        groups=tuple(AclGroup(**asdict(group)) for group in shared.readers.groups),
    )


def _invalid(error: UnknownReaders) -> InvalidFields:
    users = [
        FieldError(field=f"user_roles.{user}", detail="there is no such active user")
        for user in error.users
    ]
    groups = [
        FieldError(field=f"group_roles.{group}", detail="there is no such group")
        for group in error.groups
    ]
    return InvalidFields(error.message, [*users, *groups])
