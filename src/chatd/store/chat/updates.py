"""Write what a chat has besides its versioned state: title, labels, pin, MCP servers, the mark of a
deletion; the read marks of users; and leases of title generations."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final, LiteralString
from uuid import UUID

from msgspec import UNSET, UnsetType

from chatd.domain.access.permissions import Actor, UserActor
from chatd.domain.chat.commands import UpdateChat
from chatd.domain.chat.row import Chat
from chatd.domain.chat_views.public_chat import ReaderView
from chatd.domain.chat_views.search import place_pin
from chatd.domain.errors import InvariantBroken
from chatd.domain.ids import ChatId, McpServerId, MessageId, UserId, WorkspaceId
from chatd.store import projects
from chatd.store.chat.chats import chat_from_row
from chatd.store.database.conn import Conn, DatabaseSession, json_text, strip_unstorable
from chatd.store.database.row_access import SHARING_ENABLED, chat_condition, chat_reach
from chatd.store.workspace import bindings

# Also the time of the list: its poll finds the chat if the hint was lost.
MARK_DELETED: Final[LiteralString] = f"""
    UPDATE chats c SET deleted_at = now(), updated_at = now()
    WHERE c.root_chat_id = $1 AND c.deleted_at IS NULL AND {chat_condition("$2", "$3")}
    RETURNING c.*"""

# The search index reads a new title again.
UPDATE_CHAT: Final[LiteralString] = f"""
    WITH marked AS (
        UPDATE chat_search_state SET title = NULL
        WHERE chat_id = $1 AND $2::text IS NOT NULL)
    UPDATE chats c SET title = coalesce($2, title), labels = coalesce($3, labels),
        pin_order = coalesce($4, pin_order),
        mcp_server_ids = CASE WHEN $5::boolean THEN $6::uuid[] ELSE mcp_server_ids END,
        mode = CASE WHEN $7::text IS NULL THEN mode ELSE nullif($7, 'off') END,
        model_required = coalesce($8, model_required)
    WHERE c.id = $1 AND {chat_condition("$9", "$10")} RETURNING c.*"""
# Before a message that is sent by the same transaction.
SET_MCP_SERVERS: Final[LiteralString] = f"""
    UPDATE chats c SET mcp_server_ids = $2::uuid[]
    WHERE c.id = $1 AND {chat_condition("$3", "$4")}"""


# Taken before the lock of any row, so that two changes of one user's pins cannot deadlock.
LOCK_PINS: Final[LiteralString] = """
    SELECT pg_advisory_xact_lock(hashtextextended('chatd.pins.' || owner_id::text, 0))
    FROM chats WHERE id = $1"""
LIST_PINS: Final[LiteralString] = """
    SELECT id FROM chats WHERE owner_id = $1 AND pin_order > 0 ORDER BY pin_order, id"""
# A chat that has been archived stays unpinned.
RENUMBER_PINS: Final[LiteralString] = """
    UPDATE chats c SET pin_order = p.place
    FROM unnest($1::uuid[], $2::int[]) AS p (id, place)
    WHERE c.id = p.id AND c.pin_order > 0 AND c.pin_order <> p.place RETURNING c.*"""


async def lock_pins(session: DatabaseSession, chat_id: ChatId) -> None:
    """Wait for other changes of the pins of this chat's owner."""
    await session.execute(LOCK_PINS, chat_id)


async def update_chat(
    session: DatabaseSession, actor: Actor, chat: Chat, command: UpdateChat
) -> tuple[Chat, tuple[Chat, ...]]:
    """Write the columns that have no version. The caller holds the lock of `chat`'s row, and of its
    owner's pins if the command sets one. Also returns the chats that got another pin order."""
    if not isinstance(command.workspace_id, UnsetType):
        await _bind(session, actor, chat, command.workspace_id)
    elif _sets_nothing(command):
        return chat, ()
    if not isinstance(command.project_id, UnsetType):
        await projects.put_chats(session, chat.owner_id, chat.id, command.project_id)
    places: dict[ChatId, int] = {}
    if command.pin_order is not None:
        pinned = [ChatId(row["id"]) for row in await session.fetch(LIST_PINS, chat.owner_id)]
        places = place_pin(pinned, chat.id, command.pin_order)
    labels = None if command.labels is None else json_text(command.labels)
    title = None if command.title is None else strip_unstorable(command.title)
    place = places.pop(chat.id, None)
    reach = chat_reach(actor, "chats.write")
    servers = command.mcp_server_ids
    chosen = (False, None) if isinstance(servers, UnsetType) else (True, servers)
    values = (title, labels, place, *chosen, command.mode, command.model_required)
    row = await session.fetchrow(UPDATE_CHAT, chat.id, *values, *reach)
    if row is None:
        raise InvariantBroken(f"Chat {chat.id} was deleted under its lock.")
    return chat_from_row(row), await _renumber(session, places)


def _sets_nothing(command: UpdateChat) -> bool:
    values = (
        *(command.title, command.labels, command.pin_order),
        *(command.mode, command.model_required),
    )
    chosen = (command.mcp_server_ids, command.project_id)
    return all(one is UNSET for one in chosen) and all(value is None for value in values)


async def set_mcp_servers(
    session: DatabaseSession, actor: Actor, chat_id: ChatId, servers: Sequence[McpServerId]
) -> bool:
    """False if the actor may not write to the chat."""
    reach = chat_reach(actor, "chats.write")
    return await session.execute(SET_MCP_SERVERS, chat_id, servers, *reach) == "UPDATE 1"


async def _renumber(session: DatabaseSession, places: Mapping[ChatId, int]) -> tuple[Chat, ...]:
    if not places:
        return ()
    rows = await session.fetch(RENUMBER_PINS, list(places), list(places.values()))
    return tuple(chat_from_row(row) for row in rows)


async def mark_deleted(session: DatabaseSession, actor: Actor, root: ChatId) -> list[Chat]:
    """The chats of the tree that were not marked before. The caller holds the tree's locks."""
    rows = await session.fetch(MARK_DELETED, root, *chat_reach(actor, "chats.control"))
    return [chat_from_row(row) for row in rows]


async def _bind(
    session: DatabaseSession, actor: Actor, chat: Chat, workspace_id: WorkspaceId | None
) -> None:
    """The chat's lock keeps other transactions from binding it."""
    if workspace_id is not None:
        await bindings.require_usable_workspace(session, actor, workspace_id, chat.owner_id)
    if workspace_id != chat.workspace_id:
        await bindings.bind(
            session, actor, chat.id, expected=chat.workspace_id, workspace_id=workspace_id
        )


# What users see of chats besides their rows: how far they have read, and whose chat it is.
#
# Read marks only move forward.

# At most to the last message: the user cannot have read a later one.
MOVE_READ_MARK: Final[LiteralString] = f"""
    WITH chat AS MATERIALIZED (
        SELECT c.* FROM chats c
        WHERE c.id = $2 AND c.deleted_at IS NULL AND {chat_condition("$4", "$5")}),
    moved AS (
        INSERT INTO chat_read_marks AS m (user_id, chat_id, message_id)
        SELECT $1, id, least($3, next_message_id - 1) FROM chat
        WHERE least($3, next_message_id - 1) > 0
        ON CONFLICT (user_id, chat_id) DO UPDATE
            SET message_id = excluded.message_id, read_at = now()
            WHERE m.message_id < excluded.message_id
        RETURNING true)
    SELECT chat.*, EXISTS (SELECT FROM moved) AS has_moved FROM chat"""

LIST_VIEWS: Final[LiteralString] = f"""
    SELECT w.user_id, c.id AS chat_id, c.owner_id = w.user_id AS is_owner,
        u.username AS owner_username, coalesce(m.message_id, 0) AS read_up_to,
        (EXISTS (SELECT FROM chat_shares s WHERE s.chat_id = c.root_chat_id)
            OR EXISTS (SELECT FROM project_members pm
                       WHERE pm.project_id = c.project_id AND pm.user_id <> c.owner_id))
            AND {SHARING_ENABLED} AS shared
    FROM unnest($1::uuid[], $2::uuid[]) AS w (user_id, chat_id)
    JOIN chats c ON c.id = w.chat_id
    JOIN users u ON u.id = c.owner_id
    LEFT JOIN chat_read_marks m ON m.user_id = w.user_id AND m.chat_id = c.id"""


async def move_read_mark(
    conn: Conn, actor: UserActor, chat_id: ChatId, message_id: MessageId
) -> tuple[Chat, bool] | None:
    """The chat, and whether its mark has moved. None if the user may not read the chat."""
    reach = chat_reach(actor, "chats.read")
    row = await conn.fetchrow(MOVE_READ_MARK, actor.user_id, chat_id, message_id, *reach)
    return None if row is None else (chat_from_row(row), row["has_moved"])


async def list_views(
    conn: Conn, wanted: Collection[tuple[UserId, ChatId]]
) -> dict[tuple[UserId, ChatId], ReaderView]:
    """One statement for all chats; includes deleted ones whose row still exists."""
    if not wanted:
        return {}
    users, chat_ids = zip(*wanted, strict=True)
    return {
        (row["user_id"], row["chat_id"]): ReaderView(
            is_owner=row["is_owner"],
            owner_username=row["owner_username"],
            shared=row["shared"],
            read_up_to=row["read_up_to"],
        )
        for row in await conn.fetch(LIST_VIEWS, users, chat_ids)
    }


async def list_views_of(
    conn: Conn, actor: UserActor, chat_ids: Collection[ChatId]
) -> dict[ChatId, ReaderView]:
    """How the user sees chats that were read for this user."""
    found = await list_views(conn, [(actor.user_id, chat_id) for chat_id in chat_ids])
    return {chat_id: view for (_, chat_id), view in found.items()}


# Leases of title generations that users asked for: one for each chat, over all replicas.

# The same lease again is a repeated attempt after a lost reply.
ACQUIRE_TITLE_LEASE: Final[LiteralString] = f"""
    INSERT INTO chat_title_leases (chat_id, id, until)
    SELECT c.id, $2, now() + $3::float8 * interval '1 s' FROM chats c
    WHERE c.id = $1 AND c.deleted_at IS NULL AND {chat_condition("$4", "$5")}
    ON CONFLICT (chat_id) DO UPDATE SET id = excluded.id, until = excluded.until
        WHERE chat_title_leases.until < now() OR chat_title_leases.id = excluded.id
    RETURNING true"""
RELEASE_TITLE_LEASE: Final[LiteralString] = (
    "DELETE FROM chat_title_leases WHERE chat_id = $1 AND id = $2"
)


async def acquire_title_lease(
    conn: Conn, actor: Actor, chat_id: ChatId, lease_id: UUID, *, seconds: float
) -> bool:
    """False if another lease is valid, or the actor may not change the chat."""
    reach = chat_reach(actor, "chats.write")
    return await conn.fetchval(ACQUIRE_TITLE_LEASE, chat_id, lease_id, seconds, *reach) is True


async def release_title_lease(conn: Conn, chat_id: ChatId, lease_id: UUID) -> None:
    await conn.execute(RELEASE_TITLE_LEASE, chat_id, lease_id)
