"""What the front door asks of the database and nobody else does: pages, amendments, a sign of
life. One statement each, but for an amendment, which may take a whole family along."""

from collections.abc import Sequence
from typing import Final, LiteralString

from msgspec import Struct, UnsetType

from chatd.domain.amend import Amendment, check_amendment
from chatd.domain.chat import Chat
from chatd.domain.errors import InvalidInput, InvariantBroken, NotFound
from chatd.domain.family import archive_family, unarchive_family
from chatd.domain.ids import ChangeId, ChatId, MessageId, UserId, WorkspaceId
from chatd.domain.messages import Message, QueuedMessage
from chatd.store import bindings, chats, workspaces
from chatd.store.conn import Conn, Session
from chatd.store.pool import Pool
from chatd.store.rows import (
    MESSAGE_COLUMNS,
    MOST_BYTES,
    QUEUE_COLUMNS,
    bounded,
    chat_of,
    json_text,
    messages_in,
    plain,
    queue_in,
)
from chatd.store.transact import Applied, apply

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
    FROM chats c, LATERAL {bounded(_DOWN, order="id DESC", most_bytes="$6")} m WHERE c.id = $1"""
OLDEST: Final[LiteralString] = f"""
    SELECT c.*, m.messages, m.found, {_QUEUE}
    FROM chats c, LATERAL {bounded(_UP, order="id", most_bytes="$6")} m WHERE c.id = $1"""

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
    most_bytes: int = MOST_BYTES

    @property
    def is_first_page(self) -> bool:
        return self.before is None and self.after is None


class Page(Struct, frozen=True, kw_only=True):
    """`queue` is there on the first page only."""

    chat: Chat
    messages: tuple[Message, ...]
    queue: tuple[QueuedMessage, ...]
    has_more: bool


class Amended(Struct, frozen=True, kw_only=True):
    """`moved` are the chats that were archived or brought back."""

    chat: Chat
    moved: tuple[Applied, ...]


async def alive(conn: Conn) -> None:
    await conn.fetchval(ALIVE)


async def page(conn: Conn, chat_id: ChatId, which: Range) -> Page | None:
    statement = NEWEST if which.after is None else OLDEST
    top = _PAST_THE_END if which.before is None else which.before
    limits = (which.limit + 1, which.is_first_page, which.most_bytes)
    row = await conn.fetchrow(statement, chat_id, top, which.after or 0, *limits)
    if row is None:
        return None
    messages = messages_in(row["messages"])[: which.limit]
    return Page(
        chat=chat_of(row),
        messages=messages,
        queue=queue_in(row["queue"]),
        has_more=len(messages) < row["found"],
    )


async def compactable(conn: Conn, chat_id: ChatId) -> bool:
    """Something was answered since the last summary, as `domain.compaction` sees it."""
    return await conn.fetchval(COMPACTABLE, chat_id)


async def amend(
    pool: Pool, chat_id: ChatId, owner: UserId, wanted: Amendment, change_id: ChangeId
) -> Amended:
    """All of it or nothing. May be tried again with the same change id. Raises NotFound also
    for a chat of another owner, InvalidInput, Conflict."""
    async with pool.transaction() as session:
        members = await _lock(session, chat_id, family=wanted.archived is not None)
        chat = next((member for member in members if member.id == chat_id), None)
        if chat is None or chat.owner_id != owner:
            raise NotFound("There is no such chat.")
        moved = [
            Applied(chat=member, replayed=True)
            for member in members
            if change_id in member.recent_changes
        ]
        if not moved:
            check_amendment(chat, wanted)
            moved = await _move(session, members, chat, wanted, change_id)
        if not isinstance(wanted.workspace_id, UnsetType):
            await _bind(session, chat, wanted.workspace_id)
        labels = None if wanted.labels is None else json_text(wanted.labels)
        title = None if wanted.title is None else plain(wanted.title)
        row = await session.fetchrow(AMEND, chat_id, title, labels, wanted.pin_order)
    if row is None:
        raise InvariantBroken(f"Chat {chat_id} went away under its lock.")
    return Amended(chat=chat_of(row), moved=tuple(moved))


async def _lock(session: Session, chat_id: ChatId, *, family: bool) -> list[Chat]:
    if family:
        found = await chats.get(session, chat_id)
        return [] if found is None else await chats.lock_family(session, found.root_chat_id)
    await chats.lock(session, chat_id)
    found = await chats.get(session, chat_id)
    return [] if found is None else [found]


async def _move(
    session: Session, members: Sequence[Chat], chat: Chat, wanted: Amendment, change_id: ChangeId
) -> list[Applied]:
    if wanted.archived is None or wanted.archived == chat.archived:
        return []
    decide = archive_family if wanted.archived else unarchive_family
    moved: list[Applied] = []
    for change in decide(members, chat.id):
        applied = await apply(session, change, change_id)
        if applied is None:
            raise InvariantBroken(f"Chat {change.after.id} changed under its lock.")
        moved.append(applied)
    return moved


async def _bind(session: Session, chat: Chat, workspace_id: WorkspaceId | None) -> None:
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
