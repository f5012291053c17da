"""Routes that share chats with users and groups, and find these."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Literal
from uuid import UUID

from msgspec import Meta, Struct, field
from msgspec.structs import asdict

from chatd.api.deps import ApiDeps
from chatd.api.errors import FieldError, InvalidFields
from chatd.api.request import ApiReply, ApiRequest, BodySpec, reply
from chatd.api.route import ApiRoute
from chatd.api.schemas.accounts import GROUP_ID_EXAMPLE
from chatd.domain.access.shares import MAX_READERS, ShareRequest, ShareRole, UnknownReaders
from chatd.domain.description import CHAT_ID, USER_ID, describe
from chatd.domain.ids import ChatId, GroupId, UserId
from chatd.store.account import shares
from chatd.store.account.shares import SharedChat

# Bodies and replies about with whom chats are shared.

MAX_FOUND: Final = 50
"""Users, and groups, that one search finds."""

Roles = Annotated[dict[UUID, ShareRole | None], Meta(max_length=2 * MAX_READERS)]


class AclBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whom to give a role and from whom to take it; all others keep theirs. All or nothing."""

    openapi_example: ClassVar[Mapping[str, object]] = {
        "user_roles": {USER_ID: "read"},
        "group_roles": {GROUP_ID_EXAMPLE: ""},
    }

    user_roles: Annotated[
        Roles,
        describe("Roles by the id of a user; empty or null: no role.", {USER_ID: "read"}),
    ] = field(default_factory=dict[UUID, ShareRole | None])
    group_roles: Annotated[
        Roles,
        describe("Roles by the id of a group; empty or null: no role.", {GROUP_ID_EXAMPLE: ""}),
    ] = field(default_factory=dict[UUID, ShareRole | None])


class DirectoryQuery(Struct, frozen=True, kw_only=True):
    """What to look for."""

    q: Annotated[
        str,
        Meta(max_length=200),
        describe("A part of a name, in any letter case. Without it: all.", "ada"),
    ] = ""
    limit: Annotated[
        int,
        Meta(ge=1, le=MAX_FOUND),
        describe("The most users, and the most groups, that are found.", 20),
    ] = 20


class DirectoryUser(Struct, frozen=True, kw_only=True):
    """A user, by name."""

    id: Annotated[UserId, describe("The user's id.", USER_ID)]
    username: Annotated[str, describe("The name for signing in.", "ada")]
    name: Annotated[str, describe("The full name; may be empty.", "Ada Lovelace")]


class DirectoryGroup(Struct, frozen=True, kw_only=True):
    """A group, by name."""

    id: Annotated[GroupId, describe("The group's id.", GROUP_ID_EXAMPLE)]
    name: Annotated[str, describe("Its name.", "Engineers")]


class DirectoryReply(Struct, frozen=True, kw_only=True):
    """Users and groups to share chats with."""

    users: Annotated[tuple[DirectoryUser, ...], describe("Active users, by username.")]
    groups: Annotated[tuple[DirectoryGroup, ...], describe("Groups, by name.")]


Role = Annotated[Literal["read"], describe("What the reader may do.", "read")]


class AclUser(DirectoryUser, frozen=True, kw_only=True):
    """A user who reads the chat."""

    role: Role = "read"


class AclGroup(DirectoryGroup, frozen=True, kw_only=True):
    """A group whose members read the chat."""

    role: Role = "read"


class AclReply(Struct, frozen=True, kw_only=True):
    """Who reads a chat and its subagents, beside the owner."""

    chat_id: Annotated[ChatId, describe("The root chat.", CHAT_ID)]
    users: Annotated[tuple[AclUser, ...], describe("Users, by username.")]
    groups: Annotated[tuple[AclGroup, ...], describe("Groups, by name.")]


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
        found = await deps.read(shares.list_readers, actor, request.chat_id)
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
        found = await deps.read(shares.find_readers, actor, query.q.strip(), limit=query.limit)
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
    unknown_users = [
        FieldError(field=f"user_roles.{user}", detail="there is no such active user")
        for user in error.users
    ]
    groups = [
        FieldError(field=f"group_roles.{group}", detail="there is no such group")
        for group in error.groups
    ]
    return InvalidFields(error.message, [*unknown_users, *groups])
