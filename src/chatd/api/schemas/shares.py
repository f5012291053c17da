"""Bodies and replies about with whom chats are shared."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Literal
from uuid import UUID

from msgspec import Meta, Struct, field

from chatd.api.schemas.accounts import GROUP_ID_EXAMPLE
from chatd.domain.chat.shares import MAX_READERS, ShareRole
from chatd.domain.description import CHAT_ID, USER_ID, describe
from chatd.domain.ids import ChatId, GroupId, UserId

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
