"""With whom chats are shared. Every write is audited, and published to all replicas.

`domain.access.shares` decides; the statements repeat that only the owner adds readers, to a root
chat that is not deleted.
"""

from collections.abc import Sequence
from typing import Final, LiteralString

from msgspec import Struct

from chatd.domain.access.permissions import (
    Permission,
    UserActor,
    require_permission,
    require_share_change,
    require_sharing,
)
from chatd.domain.access.shares import (
    Readers,
    ShareChange,
    ShareRequest,
    ShareTarget,
    UnknownReaders,
    decide_shares,
    require_preview_share,
)
from chatd.domain.chat.row import Chat
from chatd.domain.deployment.config_change import ConfigChange
from chatd.domain.errors import NotFound
from chatd.domain.ids import ChatId, GroupId, UserId, WorkspaceId
from chatd.store.account import audit
from chatd.store.chat import chats
from chatd.store.database import notifications
from chatd.store.database.conn import Conn, DatabaseSession, MissingReference, strip_unstorable
from chatd.store.database.row_access import (
    SHARING_ENABLED,
    chat_condition,
    chat_reach,
    shared_roots,
)

# The names of users and groups, for users who share chats with them. Emails stay out.

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


# Of the root of the chat, for a subagent too.
_SHARES: Final[LiteralString] = f"""
    FROM chats c JOIN chat_shares s ON s.chat_id = c.root_chat_id
    WHERE c.id = $1 AND c.deleted_at IS NULL AND {chat_condition("$2", "$3")}"""
LIST_USERS: Final[LiteralString] = f"""
    SELECT u.id, u.username, u.name
    FROM users u WHERE u.deleted_at IS NULL AND u.id IN (SELECT s.user_id {_SHARES})
    ORDER BY lower(u.username)"""
LIST_GROUPS: Final[LiteralString] = f"""
    SELECT g.id, g.name FROM groups g WHERE g.id IN (SELECT s.group_id {_SHARES})
    ORDER BY lower(g.name)"""
REMOVE: Final[LiteralString] = f"""
    DELETE FROM chat_shares s USING chats c
    WHERE c.id = $1 AND s.chat_id = c.id AND c.parent_chat_id IS NULL AND c.deleted_at IS NULL
      AND {chat_condition("$2", "$3")}
      AND (s.user_id = ANY ($4::uuid[]) OR s.group_id = ANY ($5::uuid[]))"""
_SHARED: Final[LiteralString] = """
    c.id = $1 AND c.owner_id = $2 AND c.parent_chat_id IS NULL AND c.deleted_at IS NULL"""
ADD_USERS: Final[LiteralString] = f"""
    INSERT INTO chat_shares (chat_id, user_id, created_by)
    SELECT c.id, u.id, $2 FROM chats c JOIN users u ON u.id = ANY ($3::uuid[])
    WHERE {_SHARED} AND u.id <> c.owner_id AND u.status = 'active' AND u.deleted_at IS NULL
    ON CONFLICT (chat_id, user_id) WHERE user_id IS NOT NULL DO NOTHING
    RETURNING user_id"""
ADD_GROUPS: Final[LiteralString] = f"""
    INSERT INTO chat_shares (chat_id, group_id, created_by)
    SELECT c.id, g.id, $2 FROM chats c JOIN groups g ON g.id = ANY ($3::uuid[])
    WHERE {_SHARED}
    ON CONFLICT (chat_id, group_id) WHERE group_id IS NOT NULL DO NOTHING
    RETURNING group_id"""
IS_ENABLED: Final[LiteralString] = f"SELECT {SHARING_ENABLED}"
# For the chat lists of many users: the newest $2 of each.
LIST_ROOTS: Final[LiteralString] = f"""
    SELECT w.user_id, r.id FROM unnest($1::uuid[]) AS w (user_id), LATERAL (
        SELECT c.id FROM chats c
        WHERE c.id = ANY ({shared_roots("w.user_id")}) AND c.owner_id <> w.user_id
          AND c.deleted_at IS NULL
        ORDER BY c.updated_at DESC LIMIT $2) r
    WHERE {SHARING_ENABLED}"""
_READERS: Final[LiteralString] = """
    CROSS JOIN LATERAL (
        SELECT s.user_id FROM chat_shares s WHERE s.chat_id = c.id AND s.user_id = ANY ($2)
        UNION SELECT m.user_id FROM chat_shares s JOIN group_members m ON m.group_id = s.group_id
        WHERE s.chat_id = c.id AND m.user_id = ANY ($2)
        UNION SELECT m.user_id FROM project_members m
        WHERE m.project_id = c.project_id AND m.user_id = ANY ($2)) r"""
LIST_READERS: Final[LiteralString] = f"""
    SELECT c.id, r.user_id FROM chats c {_READERS}
    WHERE c.id = ANY ($1::uuid[]) AND c.deleted_at IS NULL AND c.owner_id <> r.user_id
      AND {SHARING_ENABLED}"""
LIST_RECENTLY_ACTIVE: Final[LiteralString] = f"""
    SELECT c.*, r.user_id AS reader_id FROM chats c {_READERS}
    WHERE c.updated_at > now() - $1::float8 * interval '1 s' AND c.parent_chat_id IS NULL
      AND c.owner_id <> r.user_id AND {SHARING_ENABLED}
    ORDER BY c.updated_at DESC LIMIT $3"""


# A share of a preview counts while its chat still has the workspace for which it was made.
LIST_PREVIEWS: Final[LiteralString] = f"""
    SELECT p.port FROM chats c JOIN preview_shares p ON p.chat_id = c.id
      AND p.workspace_id = c.workspace_id
    WHERE c.id = $1 AND c.deleted_at IS NULL AND {chat_condition("$2", "$3")} ORDER BY p.port"""
# The owner and the workspace are those that the caller has read under the lock of the chat.
ADD_PREVIEW: Final[LiteralString] = """
    INSERT INTO preview_shares (chat_id, workspace_id, port)
    SELECT c.id, c.workspace_id, $3 FROM chats c
    WHERE c.id = $1 AND c.owner_id = $2 AND c.workspace_id = $4 AND c.deleted_at IS NULL
    ON CONFLICT (chat_id, port) DO UPDATE SET workspace_id = excluded.workspace_id"""
REMOVE_PREVIEW: Final[LiteralString] = "DELETE FROM preview_shares WHERE chat_id = $1 AND port = $2"
CAN_SEE_PREVIEW: Final[LiteralString] = f"""
    SELECT EXISTS (
        SELECT FROM preview_shares p
        JOIN chats c ON c.id = p.chat_id AND c.workspace_id = p.workspace_id
        JOIN workspaces w ON w.id = p.workspace_id AND w.owner_id = c.owner_id
        WHERE p.workspace_id = $1 AND p.port = $2 AND NOT w.deleted AND c.deleted_at IS NULL
          AND {chat_condition("$3", "$4")})"""


class SharedChat(Struct, frozen=True, kw_only=True):
    """A root chat and its readers."""

    chat_id: ChatId
    readers: NamedReaders


async def list_readers(conn: Conn, actor: UserActor, chat_id: ChatId) -> SharedChat:
    """The readers of the chat's root. Raises NotFound, and Forbidden for a reader."""
    chat = await _require(conn, actor, chat_id, "shares.read")
    readers = await _load(conn, actor, chat_id, "shares.read")
    return SharedChat(chat_id=chat.root_chat_id, readers=readers)


async def update(
    session: DatabaseSession,
    actor: UserActor,
    chat_id: ChatId,
    request: ShareRequest,
    *,
    ip: str | None = None,
) -> SharedChat:
    """All or nothing, in the caller's transaction. Raises NotFound, Forbidden, Conflict,
    InvalidInput, UnknownReaders."""
    chat = await _require(session, actor, chat_id, "chats.share")
    await chats.lock(session, chat_id)
    before = await _load(session, actor, chat_id, "chats.share")
    target = ShareTarget(
        chat_id=chat.id,
        owner_id=chat.owner_id,
        is_root=chat.parent_chat_id is None,
        readers=before.ids,
    )
    change = decide_shares(actor, target, request)
    if change.is_empty:
        return SharedChat(chat_id=chat.id, readers=before)
    await _apply(session, actor, chat.id, change)
    await audit.record(
        session,
        actor,
        action="chat.share",
        object_type="chat",
        object_id=chat.id,
        ip=ip,
        detail={"owner_id": str(chat.owner_id)} | _detail(change),
    )
    await notifications.publish(session, ConfigChange(kind="share", id=str(chat.id)))
    after = await _load(session, actor, chat_id, "chats.share")
    return SharedChat(chat_id=chat.id, readers=after)


class SharedPreviews(Struct, frozen=True, kw_only=True):
    """The ports of a root chat's workspace whose previews its readers may open."""

    chat_id: ChatId
    workspace_id: WorkspaceId | None
    ports: tuple[int, ...]


async def list_previews(conn: Conn, actor: UserActor, chat_id: ChatId) -> SharedPreviews:
    """The shared previews of the chat's root. Raises NotFound."""
    chat = await chats.get(conn, actor, chat_id)
    root = chat if chat is None or chat.is_root else await chats.get(conn, actor, chat.root_chat_id)
    if root is None:
        raise NotFound("There is no such chat.")
    return await _load_previews(conn, actor, root, "chats.read")


async def _load_previews(
    conn: Conn, actor: UserActor, root: Chat, permission: Permission
) -> SharedPreviews:
    rows = await conn.fetch(LIST_PREVIEWS, root.id, *chat_reach(actor, permission))
    ports = tuple(row["port"] for row in rows)
    return SharedPreviews(chat_id=root.id, workspace_id=root.workspace_id, ports=ports)


async def share_preview(
    session: DatabaseSession,
    actor: UserActor,
    chat_id: ChatId,
    port: int,
    *,
    shared: bool,
    ip: str | None = None,
) -> SharedPreviews:
    """Let the readers of a chat open previews of the port, or stop that. Raises NotFound,
    Forbidden, Conflict."""
    await _require(session, actor, chat_id, "chats.share")
    await chats.lock(session, chat_id)
    chat = await _require(session, actor, chat_id, "chats.share")
    require_share_change(actor, chat.owner_id, adds=shared)
    before = await _load_previews(session, actor, chat, "chats.share")
    if shared == (port in before.ports):
        return before
    require_preview_share(
        before.ports,
        shared=shared,
        is_root=chat.is_root,
        has_workspace=chat.workspace_id is not None,
    )
    if shared:
        await session.execute(ADD_PREVIEW, chat_id, actor.user_id, port, chat.workspace_id)
    else:
        await session.execute(REMOVE_PREVIEW, chat_id, port)
    await audit.record(
        session,
        actor,
        action="preview.share" if shared else "preview.unshare",
        object_type="chat",
        object_id=chat.id,
        ip=ip,
        detail={"owner_id": str(chat.owner_id), "port": port},
    )
    await notifications.publish(session, ConfigChange(kind="share", id=str(chat.id)))
    return await _load_previews(session, actor, chat, "chats.share")


async def can_see_preview(
    conn: Conn, actor: UserActor, workspace_id: WorkspaceId, port: int
) -> bool:
    """Whether the port is shared with the actor, as a reader of a chat or its owner. An
    administrator has no more rights here than others."""
    reach = (actor.user_id, actor.reads_shared)
    return await conn.fetchval(CAN_SEE_PREVIEW, workspace_id, port, *reach)


async def is_enabled(conn: Conn) -> bool:
    return await conn.fetchval(IS_ENABLED)


async def list_roots_of(
    conn: Conn, users: list[UserId], *, limit: int
) -> dict[UserId, set[ChatId]]:
    """The root chats of others that each of the users reads by a share."""
    found: dict[UserId, set[ChatId]] = {}
    for row in await conn.fetch(LIST_ROOTS, users, limit):
        found.setdefault(row["user_id"], set()).add(row["id"])
    return found


async def list_readers_of(
    conn: Conn, roots: list[ChatId], users: list[UserId]
) -> set[tuple[ChatId, UserId]]:
    """Which of the users read which of the root chats by a share."""
    return {(row["id"], row["user_id"]) for row in await conn.fetch(LIST_READERS, roots, users)}


async def list_recently_active(
    conn: Conn, users: list[UserId], *, max_age_s: float, limit: int = 1000
) -> list[tuple[UserId, Chat]]:
    """Root chats that the users read by a share, with an `updated_at` of the last `max_age_s`,
    deleted ones too."""
    rows = await conn.fetch(LIST_RECENTLY_ACTIVE, max_age_s, users, limit)
    return [(row["reader_id"], chats.chat_from_row(row)) for row in rows]


async def _load(
    conn: Conn, actor: UserActor, chat_id: ChatId, permission: Permission
) -> NamedReaders:
    reach = chat_reach(actor, permission)
    users = await conn.fetch(LIST_USERS, chat_id, *reach)
    groups = await conn.fetch(LIST_GROUPS, chat_id, *reach)
    return NamedReaders(
        users=[NamedUser(**dict(row)) for row in users],
        groups=[NamedGroup(**dict(row)) for row in groups],
    )


async def _apply(
    session: DatabaseSession, actor: UserActor, chat_id: ChatId, change: ShareChange
) -> None:
    if change.removed.count:
        reach = chat_reach(actor, "chats.share")
        gone = change.removed
        await session.execute(REMOVE, chat_id, *reach, list(gone.users), list(gone.groups))
    added = change.added
    try:
        users = await session.fetch(ADD_USERS, chat_id, actor.user_id, list(added.users))
        groups = await session.fetch(ADD_GROUPS, chat_id, actor.user_id, list(added.groups))
    except MissingReference:  # a group that is deleted at this moment
        raise UnknownReaders(frozenset(), added.groups) from None
    unknown_users = added.users - {row["user_id"] for row in users}
    unknown_groups = added.groups - {row["group_id"] for row in groups}
    if unknown_users or unknown_groups:
        raise UnknownReaders(unknown_users, unknown_groups)


async def _require(conn: Conn, actor: UserActor, chat_id: ChatId, permission: Permission) -> Chat:
    chat = await chats.get_for_command(conn, actor, chat_id, permission)
    if chat is None:
        raise NotFound("There is no such chat.")
    return chat


def _detail(change: ShareChange) -> dict[str, object]:
    parts = {
        "added_users": change.added.users,
        "added_groups": change.added.groups,
        "removed_users": change.removed.users,
        "removed_groups": change.removed.groups,
    }
    return {name: sorted(map(str, ids)) for name, ids in parts.items() if ids}
