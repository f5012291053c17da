"""What the front door asks of the database and nobody else does: pages, amendments, a sign of
life. One statement each, but for an amendment, which may take a whole family along.

How long chats are kept: idle ones are archived, archived ones removed, a batch at a time.

Every replica does this; of two that come to the same chat one finds it done.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, LiteralString

from msgspec import Struct, UnsetType

from chatd.domain.chat.commands import ChatUpdate, check_chat_update
from chatd.domain.chat.messages import Message, QueuedMessage
from chatd.domain.chat.row import Chat
from chatd.domain.chat.user_transitions import archive_tree, unarchive_tree
from chatd.domain.errors import InvalidInput, InvariantBroken, NotFound
from chatd.domain.ids import ChangeId, ChatId, MessageId, UserId, WorkspaceId
from chatd.store.chat import chats
from chatd.store.chat.transactor import AppliedChange, apply
from chatd.store.conn import Conn, DatabaseSession
from chatd.store.pool import Pool
from chatd.store.rows import (
    MAX_READ_BYTES,
    MESSAGE_COLUMNS,
    QUEUE_COLUMNS,
    chat_from_row,
    json_text,
    messages_from_json,
    queue_from_json,
    strip_unstorable,
    take_within_bytes,
)
from chatd.store.workspace import bindings, workspaces

ALIVE: Final[LiteralString] = "SELECT 1"

# What clients may see, all of one version.
_SEEN: Final[LiteralString] = f"""
    SELECT {MESSAGE_COLUMNS} FROM chat_messages
    WHERE chat_id = c.id AND id < $2 AND id > $3 AND NOT deleted AND visibility <> 'model'"""
_QUEUE: Final[LiteralString] = f"""
    CASE WHEN c.queue_len > 0 AND $5 THEN (
        SELECT json_agg(q ORDER BY NOT q.steer, q.position) FROM (
            SELECT {QUEUE_COLUMNS} FROM chat_queued_messages WHERE chat_id = c.id) q)
    END AS queue"""
_DOWN: Final[LiteralString] = f"{_SEEN} ORDER BY id DESC LIMIT $4"
_UP: Final[LiteralString] = f"{_SEEN} ORDER BY id LIMIT $4"
NEWEST: Final[LiteralString] = f"""
    SELECT c.*, m.messages, m.found, {_QUEUE}
    FROM chats c, LATERAL {take_within_bytes(_DOWN, order="id DESC", most_bytes="$6")} m
    WHERE c.id = $1"""
OLDEST: Final[LiteralString] = f"""
    SELECT c.*, m.messages, m.found, {_QUEUE}
    FROM chats c, LATERAL {take_within_bytes(_UP, order="id", most_bytes="$6")} m
    WHERE c.id = $1"""

COMPACTABLE: Final[LiteralString] = """
    SELECT EXISTS (SELECT FROM chat_messages
        WHERE chat_id = $1 AND role = 'assistant' AND visibility <> 'user'
          AND NOT deleted AND NOT compressed
          AND id > coalesce((SELECT max(id) FROM chat_messages
              WHERE chat_id = $1 AND compressed AND visibility = 'model' AND NOT deleted), 0))"""

AMEND: Final[LiteralString] = """
    UPDATE chats SET title = coalesce($2, title), labels = coalesce($3, labels),
        pin_order = coalesce($4, pin_order)
    WHERE id = $1 RETURNING *"""

LATEST_IN: Final[LiteralString] = """
    SELECT DISTINCT ON (workspace_id) workspace_id, id FROM chats
    WHERE owner_id = $1 AND NOT archived AND workspace_id = ANY ($2::uuid[])
    ORDER BY workspace_id, updated_at DESC, id DESC"""

_PAST_THE_END: Final = 2**63 - 1


class Range(Struct, frozen=True, kw_only=True):
    """Messages between two ids; the oldest of them first if a lower one is given. No more are read
    once they are so many or so large."""

    before: MessageId | None = None
    after: MessageId | None = None
    limit: int = 50
    most_bytes: int = MAX_READ_BYTES

    @property
    def is_first_page(self) -> bool:
        return self.before is None and self.after is None


class Page(Struct, frozen=True, kw_only=True):
    """`queue` is there on the first page only."""

    chat: Chat
    messages: tuple[Message, ...]
    queue: tuple[QueuedMessage, ...]
    has_more: bool


class UpdatedChats(Struct, frozen=True, kw_only=True):
    """`moved` are the chats that were archived or brought back."""

    chat: Chat
    moved: tuple[AppliedChange, ...]


async def alive(conn: Conn) -> None:
    await conn.fetchval(ALIVE)


async def page(conn: Conn, chat_id: ChatId, which: Range) -> Page | None:
    statement = NEWEST if which.after is None else OLDEST
    top = _PAST_THE_END if which.before is None else which.before
    limits = (which.limit + 1, which.is_first_page, which.most_bytes)
    row = await conn.fetchrow(statement, chat_id, top, which.after or 0, *limits)
    if row is None:
        return None
    messages = messages_from_json(row["messages"])[: which.limit]
    return Page(
        chat=chat_from_row(row),
        messages=messages,
        queue=queue_from_json(row["queue"]),
        has_more=len(messages) < row["found"],
    )


async def compactable(conn: Conn, chat_id: ChatId) -> bool:
    """Something was answered since the last summary, as `domain.compaction` sees it."""
    return await conn.fetchval(COMPACTABLE, chat_id)


async def update_chat(
    pool: Pool, chat_id: ChatId, owner: UserId, wanted: ChatUpdate, change_id: ChangeId
) -> UpdatedChats:
    """All of it or nothing. May be tried again with the same change id. Raises NotFound also
    for a chat of another owner, InvalidInput, Conflict."""
    async with pool.transaction() as session:
        members = await _lock(session, chat_id, family=wanted.archived is not None)
        chat = next((member for member in members if member.id == chat_id), None)
        if chat is None or chat.owner_id != owner:
            raise NotFound("There is no such chat.")
        moved = [
            AppliedChange(chat=member, replayed=True)
            for member in members
            if change_id in member.recent_changes
        ]
        if not moved:
            check_chat_update(chat, wanted)
            moved = await _move(session, members, chat, wanted, change_id)
        if not isinstance(wanted.workspace_id, UnsetType):
            await _bind(session, chat, wanted.workspace_id)
        labels = None if wanted.labels is None else json_text(wanted.labels)
        title = None if wanted.title is None else strip_unstorable(wanted.title)
        row = await session.fetchrow(AMEND, chat_id, title, labels, wanted.pin_order)
    if row is None:
        raise InvariantBroken(f"Chat {chat_id} went away under its lock.")
    return UpdatedChats(chat=chat_from_row(row), moved=tuple(moved))


async def _lock(session: DatabaseSession, chat_id: ChatId, *, family: bool) -> list[Chat]:
    if family:
        found = await chats.get(session, chat_id)
        return [] if found is None else await chats.lock_tree(session, found.root_chat_id)
    await chats.lock(session, chat_id)
    found = await chats.get(session, chat_id)
    return [] if found is None else [found]


async def _move(
    session: DatabaseSession,
    members: Sequence[Chat],
    chat: Chat,
    wanted: ChatUpdate,
    change_id: ChangeId,
) -> list[AppliedChange]:
    if wanted.archived is None or wanted.archived == chat.archived:
        return []
    decide = archive_tree if wanted.archived else unarchive_tree
    moved: list[AppliedChange] = []
    for change in decide(members, chat.id):
        applied = await apply(session, change, change_id)
        if applied is None:
            raise InvariantBroken(f"Chat {change.after.id} changed under its lock.")
        moved.append(applied)
    return moved


async def _bind(session: DatabaseSession, chat: Chat, workspace_id: WorkspaceId | None) -> None:
    """Under the chat's lock, so nobody else gives it another one meanwhile."""
    if workspace_id is not None:
        await usable_workspace(session, workspace_id, chat.owner_id)
    if workspace_id != chat.workspace_id:
        await bindings.bind(session, chat.id, seen=chat.workspace_id, workspace_id=workspace_id)


async def usable_workspace(conn: Conn, workspace_id: WorkspaceId, owner: UserId) -> None:
    """Raises InvalidInput, in the same words for one of somebody else and one that never was."""
    found = await workspaces.get(conn, workspace_id)
    if found is None or found.owner_id != owner:
        raise InvalidInput("workspace_id", "there is no such workspace")
    if found.deleted:
        raise InvalidInput("workspace_id", "the workspace is deleted")


async def latest_in(
    conn: Conn, owner: UserId, which: Sequence[WorkspaceId]
) -> dict[WorkspaceId, ChatId]:
    """By workspace, the chat of this owner that moved last there; archived ones do not count."""
    rows = await conn.fetch(LATEST_IN, owner, list(which))
    return {row["workspace_id"]: row["id"] for row in rows}


# Nothing that is pinned, and no family of which somebody is at work. Counted, because the planner
# would make a join of EXISTS, and read all chats for it.
IDLE: Final[LiteralString] = """
    SELECT c.id, now() - $1::interval AS since FROM chats c
    WHERE c.parent_chat_id IS NULL AND NOT c.archived AND c.pin_order = 0
      AND c.status IN ('waiting', 'error') AND c.updated_at < now() - $1::interval
      AND (SELECT count(*) FROM chats k WHERE k.root_chat_id = c.id
           AND (k.status NOT IN ('waiting', 'error')
                OR k.updated_at >= now() - $1::interval)) = 0
    ORDER BY c.updated_at LIMIT $2"""

# The root takes its family along, and each chat all that is its own; what was spent stays.
REMOVE: Final[LiteralString] = """
    WITH old AS MATERIALIZED (
        SELECT id FROM chats
        WHERE parent_chat_id IS NULL AND archived AND updated_at < now() - $1::interval
        ORDER BY updated_at LIMIT $2 FOR UPDATE SKIP LOCKED)
    DELETE FROM chats c USING old WHERE c.id = old.id"""


async def list_idle_chats(
    conn: Conn, after: timedelta, *, most: int
) -> list[tuple[ChatId, datetime]]:
    """Roots that nobody has touched for so long, each with the time before which that was."""
    rows = await conn.fetch(IDLE, after, most)
    return [(ChatId(row["id"]), row["since"]) for row in rows]


async def archive_idle_tree(
    pool: Pool, chat_id: ChatId, since: datetime, change_id: ChangeId
) -> tuple[AppliedChange, ...]:
    """With its family; nothing if somebody has touched it meanwhile."""
    async with pool.transaction() as session:
        members = await chats.lock_tree(session, chat_id)
        root = next((member for member in members if member.id == chat_id), None)
        if root is None:
            raise NotFound("There is no such chat.")
        rests = all(one.status in ("waiting", "error") for one in members)
        old = all(one.updated_at < since for one in members)
        if root.archived or root.pin_order or not rests or not old:
            return ()
        made = [
            await apply(session, change, change_id) for change in archive_tree(members, chat_id)
        ]
    return tuple(applied for applied in made if applied is not None)


async def delete_archived_chats(conn: Conn, after: timedelta, *, most: int) -> int:
    """A batch; call again while it returns `most`."""
    status = await conn.execute(REMOVE, after, most)
    return int(status.rpartition(" ")[2])
