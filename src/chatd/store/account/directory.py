"""The names of users and groups, for users who share chats with them. Emails stay out."""

from collections.abc import Sequence
from typing import Final, LiteralString

from msgspec import Struct

from chatd.domain.access.permissions import UserActor, require_permission, require_sharing
from chatd.domain.access.shares import Readers
from chatd.domain.ids import GroupId, UserId
from chatd.store.conn import Conn, strip_unstorable

# $1 is in lower case. The user who searches is left out.
FIND_USERS: Final[LiteralString] = """
    SELECT id, username, name FROM users
    WHERE status = 'active' AND deleted_at IS NULL AND id <> $2
      AND (strpos(lower(username), $1) > 0 OR strpos(lower(name), $1) > 0)
    ORDER BY lower(username) LIMIT $3"""
FIND_GROUPS: Final[LiteralString] = """
    SELECT id, name FROM groups WHERE strpos(lower(name), $1) > 0 ORDER BY lower(name) LIMIT $2"""


class NamedUser(Struct, frozen=True, kw_only=True):
    id: UserId
    username: str
    name: str


class NamedGroup(Struct, frozen=True, kw_only=True):
    id: GroupId
    name: str


class NamedReaders(Struct, frozen=True, kw_only=True):
    """Users and groups, each by name."""

    users: Sequence[NamedUser]
    groups: Sequence[NamedGroup]

    @property
    def ids(self) -> Readers:
        return Readers(
            users=frozenset(user.id for user in self.users),
            groups=frozenset(group.id for group in self.groups),
        )


async def find_readers(conn: Conn, actor: UserActor, text: str, *, limit: int) -> NamedReaders:
    """Active users and groups with the text in a name, at most `limit` of each. Raises
    Forbidden."""
    require_permission(actor, "chats.share")
    require_sharing(actor)
    part = strip_unstorable(text).lower()
    found = await conn.fetch(FIND_USERS, part, actor.user_id, limit)
    groups = await conn.fetch(FIND_GROUPS, part, limit)
    return NamedReaders(
        users=[NamedUser(**dict(row)) for row in found],
        groups=[NamedGroup(**dict(row)) for row in groups],
    )
