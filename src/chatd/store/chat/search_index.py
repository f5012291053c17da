"""Keep the search index behind the commits.

A chat is behind if its history or its title is newer than what the index has of it. Such chats are
found by the time of their last turn, from a little before the last complete run on; a rename marks
the chat itself. One replica works at a time. Each batch commits, and the next one goes on.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, LiteralString

from msgspec import Struct

from chatd.domain.chat.lists.search import searchable_text
from chatd.domain.chat.messages import Message
from chatd.domain.chat.parts import TextPart
from chatd.domain.ids import ChatId, MessageId, UserId
from chatd.store.chat.messages import MESSAGE_COLUMNS, messages_from_json, take_within_bytes
from chatd.store.chat.search import TITLE_ENTRY
from chatd.store.conn import Conn, DatabaseSession
from chatd.store.pool import Pool

OVERLAP: Final = timedelta(minutes=5)
"""A turn that ended before the last run may have been committed after it."""
MAX_CHATS_PER_BATCH: Final = 50
MAX_MESSAGES_PER_READ: Final = 200
MAX_BYTES_PER_READ: Final = 4 * 1024 * 1024

TRY_LOCK: Final[LiteralString] = """
    SELECT pg_try_advisory_xact_lock(hashtextextended('chatd.search_index', 0))"""
# A clock that went back must not leave a gap.
BEGIN: Final[LiteralString] = """
    SELECT now() AS started, least(until, now()) AS until,
        least(until, now()) - $1::interval AS since
    FROM chat_search_progress"""
SAVE_PROGRESS: Final[LiteralString] = "UPDATE chat_search_progress SET until = $1"

_BEHIND: Final[LiteralString] = """
    c.id, c.root_chat_id, c.owner_id, c.title, c.created_at, c.updated_at, c.history_version,
    coalesce(s.version, 0) AS version, coalesce(s.message_id, 0) AS message_id,
    s.title IS DISTINCT FROM c.title AS is_renamed
    FROM chats c LEFT JOIN chat_search_state s ON s.chat_id = c.id
    WHERE c.deleted_at IS NULL"""
LIST_BEHIND: Final[LiteralString] = f"""
    SELECT {_BEHIND} AND c.updated_at >= $1
      AND (s.version IS NULL OR s.version < c.history_version OR s.title IS DISTINCT FROM c.title)
    ORDER BY c.updated_at LIMIT $2"""
LIST_RENAMED: Final[LiteralString] = f"""
    SELECT {_BEHIND} AND c.id = ANY (ARRAY(
        SELECT chat_id FROM chat_search_state WHERE title IS NULL LIMIT $1))"""

_CHANGED: Final[LiteralString] = f"""
    SELECT {MESSAGE_COLUMNS} FROM chat_messages
    WHERE chat_id = $1 AND revision >= $2 AND (revision, id) > ($2, $3)
      AND role IN ('user', 'assistant')
    ORDER BY revision, id LIMIT $4"""
LOAD_CHANGED: Final[LiteralString] = f"""
    SELECT m.messages, m.found
    FROM {take_within_bytes(_CHANGED, order="revision, id", max_bytes="$5")} m"""

WRITE: Final[LiteralString] = """
    INSERT INTO chat_search (chat_id, message_id, root_chat_id, owner_id, at, words)
    SELECT $1, d.id, $2, $3, d.at,
        array_to_tsvector(ARRAY['@' || $3::uuid::text]) || to_tsvector('simple', d.text)
    FROM unnest($4::bigint[], $5::timestamptz[], $6::text[]) AS d (id, at, text)
    ON CONFLICT (chat_id, message_id) DO UPDATE SET words = excluded.words, at = excluded.at"""
REMOVE: Final[LiteralString] = """
    DELETE FROM chat_search WHERE chat_id = $1 AND message_id = ANY ($2::bigint[])"""
# A rename since the read leaves the chat marked.
SAVE_STATE: Final[LiteralString] = """
    INSERT INTO chat_search_state (chat_id, version, message_id, title)
    SELECT id, $2, $3, CASE WHEN title = $4 THEN title END FROM chats WHERE id = $1
    ON CONFLICT (chat_id) DO UPDATE SET version = excluded.version,
        message_id = excluded.message_id, title = excluded.title"""


class ChatBehind(Struct, frozen=True, kw_only=True):
    """A chat that the index has up to a message of a version."""

    id: ChatId
    root_chat_id: ChatId
    owner_id: UserId
    title: str
    created_at: datetime
    updated_at: datetime
    history_version: int
    version: int
    message_id: MessageId
    is_renamed: bool


class IndexEntry(Struct, frozen=True, kw_only=True):
    id: MessageId
    at: datetime
    text: str


async def index_batch(pool: Pool) -> bool:
    """Bring some chats up to date. True if there may be more of them."""
    async with pool.transaction() as session:
        if not await session.fetchval(TRY_LOCK):
            return False
        began = await session.fetchrow(BEGIN, OVERLAP)
        if began is None:
            return False
        renamed = await session.fetch(LIST_RENAMED, MAX_CHATS_PER_BATCH)
        recent = await session.fetch(LIST_BEHIND, began["since"], MAX_CHATS_PER_BATCH)
        found = {row["id"]: ChatBehind(**dict(row)) for row in (*renamed, *recent)}
        is_complete = True
        for chat in found.values():
            is_complete &= await _index_chat(session, chat)
        has_more = not is_complete or max(len(renamed), len(recent)) == MAX_CHATS_PER_BATCH
        if not has_more:
            await session.execute(SAVE_PROGRESS, began["started"])
        elif is_complete and recent:
            # The next batch need not pass the chats of this one again.
            await session.execute(SAVE_PROGRESS, max(began["until"], recent[-1]["updated_at"]))
    return has_more


async def _index_chat(session: DatabaseSession, chat: ChatBehind) -> bool:
    """One read of its changes. False if there are more."""
    row = await session.fetchrow(
        LOAD_CHANGED,
        chat.id,
        chat.version,
        chat.message_id,
        MAX_MESSAGES_PER_READ + 1,
        MAX_BYTES_PER_READ,
    )
    changed = messages_from_json(None if row is None else row["messages"])
    shown = changed[:MAX_MESSAGES_PER_READ]
    is_complete = row is None or len(shown) == row["found"]
    await _write(session, chat, shown)
    last = (chat.history_version, TITLE_ENTRY)
    if not is_complete and shown:
        last = (shown[-1].revision, shown[-1].id)
    await session.execute(SAVE_STATE, chat.id, *last, chat.title)
    return is_complete


async def _write(conn: Conn, chat: ChatBehind, changed: Sequence[Message]) -> None:
    texts = {message.id: message_text(message) for message in changed}
    entries = [
        IndexEntry(id=message.id, at=message.created_at, text=searchable_text(text))
        for message in changed
        if (text := texts[message.id])
    ]
    if chat.is_renamed:
        title = searchable_text(chat.title)
        entries.append(IndexEntry(id=TITLE_ENTRY, at=chat.created_at, text=title))
    if entries:
        ids, times = [entry.id for entry in entries], [entry.at for entry in entries]
        words = [entry.text for entry in entries]
        await conn.execute(WRITE, chat.id, chat.root_chat_id, chat.owner_id, ids, times, words)
    if gone := [message_id for message_id, text in texts.items() if not text]:
        await conn.execute(REMOVE, chat.id, gone)


def message_text(message: Message) -> str:
    """What users see of it as text; nothing of a deleted message or a summary."""
    if message.deleted or message.compressed or message.visibility == "model":
        return ""
    parts = (part.text for part in message.content if isinstance(part, TextPart))
    return "\n".join(text for text in parts if text.strip())
