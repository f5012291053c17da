"""Keep the search index behind the commits.

A chat is behind if its history or its title is newer than what the index has of it. Such chats are
found by the time of their last turn, from a little before the last complete run on; a rename marks
the chat itself. One replica works at a time. Each batch commits, and the next one goes on, so that
a killed run is continued. After a release with a new index all chats are read in batches, newest
first.

Replicas of the previous release keep an index of their own in `chat_search`, with its own progress.
A title that they have read is not the one that this index has: it is read again here.
"""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, LiteralString

from msgspec import Struct

from chatd.domain.chat.messages import Message
from chatd.domain.chat_views.search_text import (
    fold,
    index_keys,
    message_text,
    one_line,
    text_grams,
    title_gram,
)
from chatd.domain.ids import ChatId, MessageId, UserId
from chatd.store.chat.messages import messages_from_json
from chatd.store.chat.search import TITLE_ENTRY, changed_messages
from chatd.store.conn import Conn, DatabaseSession
from chatd.store.pool import Pool

OVERLAP: Final = timedelta(minutes=5)
"""A turn that ended before the last run may have been committed after it."""
RECENT: Final = timedelta(hours=1)
"""While older chats are indexed after an upgrade, each batch also takes chats that changed so
lately."""
MAX_CHATS_PER_BATCH: Final = 50
MAX_MESSAGES_PER_READ: Final = 200
MAX_BYTES_PER_READ: Final = 1024 * 1024

TRY_LOCK: Final[LiteralString] = """
    SELECT pg_try_advisory_xact_lock(hashtextextended('chatd.search_texts', 0))"""
# A clock that went back must not leave a gap.
BEGIN: Final[LiteralString] = """
    SELECT now() AS started, least(texts_until, now()) AS until,
        least(texts_until, now()) - $1::interval AS since,
        now() - $1::interval AS overlap, texts_left_until AS left_until,
        texts_left_until = 'epoch' AS is_filled
    FROM chat_search_progress"""
SAVE_PROGRESS: Final[LiteralString] = """
    UPDATE chat_search_progress
    SET texts_until = $1, texts_left_until = coalesce($2::timestamptz, 'epoch')"""

_BEHIND: Final[LiteralString] = """
    c.id, c.root_chat_id, c.owner_id, c.title, c.created_at, c.updated_at, c.history_version,
    s.text_version AS version, s.text_message_id AS message_id,
    s.text_title IS DISTINCT FROM c.title AS is_renamed
    FROM chats c LEFT JOIN chat_search_state s ON s.chat_id = c.id
    WHERE c.deleted_at IS NULL"""
_IS_BEHIND: Final[LiteralString] = """(
    s.text_version IS NULL OR s.text_version < c.history_version
    OR s.text_message_id IS NOT NULL OR s.text_title IS DISTINCT FROM c.title)"""
LIST_BEHIND: Final[LiteralString] = f"""
    SELECT {_BEHIND} AND c.updated_at >= $1 AND {_IS_BEHIND}
    ORDER BY c.updated_at LIMIT $2"""
LIST_OLDER: Final[LiteralString] = f"""
    SELECT {_BEHIND} AND c.updated_at <= $1 AND {_IS_BEHIND}
    ORDER BY c.updated_at DESC LIMIT $2"""
LIST_RENAMED: Final[LiteralString] = f"""
    SELECT {_BEHIND} AND c.id = ANY (ARRAY(
        SELECT chat_id FROM chat_search_state
        WHERE text_version > 0 AND (text_title IS NULL OR title <> text_title) LIMIT $1))"""
LOAD_CHANGED: Final[LiteralString] = f"""
    SELECT m.messages, m.found
    FROM {changed_messages("$1", "$2::bigint", "$3::bigint", limit="$4", max_bytes="$5")} m"""

WRITE: Final[LiteralString] = """
    INSERT INTO chat_search_texts (chat_id, message_id, root_chat_id, owner_id, at, text, grams)
    SELECT $1, d.id, $2, $3, d.at, d.text, d.grams::integer[]
    FROM unnest($4::bigint[], $5::timestamptz[], $6::text[], $7::text[]) AS d (id, at, text, grams)
    ON CONFLICT (chat_id, message_id) DO UPDATE
        SET text = excluded.text, grams = excluded.grams, at = excluded.at"""
REMOVE: Final[LiteralString] = """
    DELETE FROM chat_search_texts WHERE chat_id = $1 AND message_id = ANY ($2::bigint[])"""
# A rename since the read leaves the chat marked.
SAVE_STATE: Final[LiteralString] = """
    INSERT INTO chat_search_state (chat_id, version, message_id, text_version, text_message_id,
        text_title)
    SELECT id, 0, 0, $2, $3, CASE WHEN title = $4 THEN title END FROM chats WHERE id = $1
    ON CONFLICT (chat_id) DO UPDATE SET text_version = excluded.text_version,
        text_message_id = excluded.text_message_id, text_title = excluded.text_title"""


class ChatBehind(Struct, frozen=True, kw_only=True):
    """A chat that the index has up to a version, or up to a message of it; or not at all."""

    id: ChatId
    root_chat_id: ChatId
    owner_id: UserId
    title: str
    created_at: datetime
    updated_at: datetime
    history_version: int
    version: int | None
    message_id: MessageId | None
    is_renamed: bool


class IndexEntry(Struct, frozen=True, kw_only=True):
    id: MessageId
    at: datetime
    text: str
    grams: str
    """As PostgreSQL writes an array."""


async def index_batch(pool: Pool) -> bool:
    """Bring some chats up to date. True if there may be more of them."""
    async with pool.transaction() as session:
        if not await session.fetchval(TRY_LOCK):
            return False
        began = await session.fetchrow(BEGIN, OVERLAP)
        if began is None:
            return False
        since, until, left = began["since"], began["until"], began["left_until"]
        if left is None:  # the first batch after an upgrade
            since, until, left = began["overlap"], began["started"], began["started"]
        limit = MAX_CHATS_PER_BATCH
        renamed = await session.fetch(LIST_RENAMED, limit)
        recent = await session.fetch(LIST_BEHIND, since, limit)
        lately, older = [], []
        if until < (newest := began["started"] - RECENT):
            lately = await session.fetch(LIST_BEHIND, newest, limit)
        if not began["is_filled"]:
            older = await session.fetch(LIST_OLDER, left, limit)
        found = {row["id"]: ChatBehind(**dict(row)) for row in (*renamed, *recent, *lately, *older)}
        is_complete = True
        for chat in found.values():
            is_complete &= await _index_chat(session, chat)
        # The next batch need not pass the chats of this one again.
        if is_complete:
            is_last = len(renamed) < limit and len(recent) < limit
            until = (
                began["started"] if is_last else max([until, *(r["updated_at"] for r in recent)])
            )
            left = older[-1]["updated_at"] if len(older) == limit else None
        await session.execute(SAVE_PROGRESS, until, left)
    return not is_complete or max(len(renamed), len(recent), len(older)) == limit


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
    last: tuple[int, MessageId | None] = (chat.history_version, None)
    if not is_complete and shown:
        last = (shown[-1].revision, shown[-1].id)
    await session.execute(SAVE_STATE, chat.id, *last, chat.title)
    return is_complete


async def _write(conn: Conn, chat: ChatBehind, changed: Sequence[Message]) -> None:
    # Not on the event loop: a long text takes tens of milliseconds.
    entries = await asyncio.to_thread(make_entries, chat, changed)
    if entries:
        await conn.execute(
            WRITE,
            chat.id,
            chat.root_chat_id,
            chat.owner_id,
            [entry.id for entry in entries],
            [entry.at for entry in entries],
            [entry.text for entry in entries],
            [entry.grams for entry in entries],
        )
    kept = {entry.id for entry in entries}
    if gone := [message.id for message in changed if message.id not in kept]:
        await conn.execute(REMOVE, chat.id, gone)


def make_entries(chat: ChatBehind, changed: Sequence[Message]) -> list[IndexEntry]:
    found = [(message.id, message.created_at, message_text(message)) for message in changed]
    if chat.is_renamed:
        found.append((TITLE_ENTRY, chat.created_at, one_line(chat.title)))
    entries: list[IndexEntry] = []
    for entry_id, at, line in found:
        if line:
            text = fold(line)
            grams = text_grams(text)
            if entry_id == TITLE_ENTRY and chat.id == chat.root_chat_id:
                grams.add(title_gram())
            keys = index_keys(chat.owner_id, grams)
            array = f"{{{','.join(map(str, keys))}}}"
            entries.append(IndexEntry(id=entry_id, at=at, text=text, grams=array))
    return entries
