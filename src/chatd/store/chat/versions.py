"""Versions of messages: which lines of messages were replaced, and which of them is shown.

`apply` writes the rows in the statement that replaces a line.
"""

from datetime import datetime
from typing import Final, LiteralString
from uuid import UUID

import msgspec
from msgspec import Struct

from chatd.domain.access.permissions import Actor
from chatd.domain.chat.row import Chat, LineEnd, StoredVersion
from chatd.domain.chat_views.copied_versions import (
    NO_VERSIONS,
    CopiedVersions,
    VersionRow,
    reachable_versions,
)
from chatd.domain.ids import ChatId, MessageId
from chatd.store.chat.chats import chat_from_row
from chatd.store.database.conn import Conn, DatabaseSession, json_text
from chatd.store.database.row_access import chat_condition, chat_reach

MAX_LISTED_VERSIONS: Final = 100
"""How many versions of one message are listed: the newest."""
MAX_VERSION_TEXT_CHARS: Final = 200
_ANSWER_WITHIN: Final[LiteralString] = "20"

MAX_COPIED_VERSIONS: Final = 10_000
"""Versions of one chat in an export or a fork: the newest."""
MAX_LOCK_ATTEMPTS: Final = 3
_END = msgspec.json.Decoder(LineEnd)
_ROWS = msgspec.json.Decoder(tuple[VersionRow, ...])

GET: Final[LiteralString] = """
    SELECT v.hidden, v.line_end, CASE WHEN NOT m.deleted THEN m.id ELSE (
        SELECT s.message_id FROM chat_message_versions s
        JOIN chat_messages sm ON sm.chat_id = s.chat_id AND sm.id = s.message_id
        WHERE s.chat_id = v.chat_id AND s.group_id = v.group_id AND s.hidden IS NULL
          AND NOT sm.deleted) END AS shown_id
    FROM chat_messages m LEFT JOIN chat_message_versions v
        ON v.chat_id = m.chat_id AND v.message_id = m.id
    WHERE m.chat_id = $1 AND m.id = $2 AND m.role = 'user'
      AND (NOT m.deleted OR v.message_id IS NOT NULL)"""
# Retention waits for these locks, or has removed the content and set `deleted_at` to NULL.
LOCK_HIDDEN: Final[LiteralString] = """
    SELECT count(*) FROM (
        SELECT FROM chat_messages
        WHERE chat_id = $1 AND id = ANY ($2::bigint[]) AND deleted_at IS NOT NULL
        ORDER BY id FOR NO KEY UPDATE) locked"""

# The groups of which a version is shown, by its id. The model is that of the first answer, which is
# among the next messages, or the one that was asked for.
LIST: Final[LiteralString] = f"""
    WITH shown AS MATERIALIZED (
        SELECT s.chat_id, s.group_id, s.message_id FROM chats c
        JOIN chat_message_versions s ON s.chat_id = c.id
        JOIN chat_messages m ON m.chat_id = s.chat_id AND m.id = s.message_id
        WHERE c.id = $1 AND {chat_condition("$2", "$3")} AND c.deleted_at IS NULL
          AND s.hidden IS NULL AND NOT m.deleted AND s.message_id > $4
          AND EXISTS (SELECT FROM chat_message_versions o
            JOIN chat_messages om ON om.chat_id = o.chat_id AND om.id = o.message_id
            WHERE o.chat_id = s.chat_id AND o.group_id = s.group_id AND o.hidden IS NOT NULL
              AND om.deleted_at IS NOT NULL)
        ORDER BY s.message_id LIMIT $5)
    SELECT s.message_id AS shown_id, v.message_id, v.created_at, v.text,
        coalesce(v.answered_by, v.model_config_id) AS model_config_id
    FROM shown s CROSS JOIN LATERAL (
        SELECT e.message_id, m.created_at, m.model_config_id,
            (SELECT left(part ->> 'text', $6) FROM json_array_elements(m.content) part
             WHERE part ->> 'type' = 'text' LIMIT 1) AS text,
            (SELECT a.model_config_id FROM chat_messages a
             WHERE a.chat_id = e.chat_id AND a.role = 'assistant' AND a.id > e.message_id
               AND CASE WHEN e.hidden IS NULL
                   THEN a.id <= e.message_id + {_ANSWER_WITHIN} AND NOT a.deleted
                   ELSE a.id = ANY (e.hidden[1:{_ANSWER_WITHIN}]) END
             ORDER BY a.id LIMIT 1) AS answered_by
        FROM chat_message_versions e
        JOIN chat_messages m ON m.chat_id = e.chat_id AND m.id = e.message_id
        WHERE e.chat_id = s.chat_id AND e.group_id = s.group_id
          AND (e.message_id = s.message_id
               OR (e.hidden IS NOT NULL AND m.deleted_at IS NOT NULL))
        ORDER BY e.message_id DESC LIMIT $7) v
    ORDER BY s.message_id, v.message_id"""

# Versions that an earlier release or retention left without a part cannot be shown.
READ: Final[LiteralString] = """
    SELECT c.*, (SELECT json_agg(json_build_object('message_id', v.message_id,
            'group_id', v.group_id, 'hidden', v.hidden, 'end', v.line_end,
            'is_shown', NOT m.deleted, 'previous', CASE WHEN NOT m.deleted THEN (
                SELECT max(p.id) FROM chat_messages p
                WHERE p.chat_id = m.chat_id AND p.id < m.id AND NOT p.deleted) END)
            ORDER BY v.message_id)
        FROM (SELECT * FROM chat_message_versions WHERE chat_id = $1
              ORDER BY message_id DESC LIMIT $2) v
        JOIN chat_messages m ON m.chat_id = v.chat_id AND m.id = v.message_id
        WHERE m.role = 'user' AND m.visibility = 'both' AND NOT m.compressed
          AND (v.hidden IS NULL OR NOT EXISTS (
              SELECT FROM unnest(v.hidden) AS one (id) LEFT JOIN chat_messages h
                  ON h.chat_id = v.chat_id AND h.id = one.id
              WHERE h.deleted_at IS NULL))) AS versions
    FROM chats c WHERE c.id = $1"""
INSERT: Final[LiteralString] = """
    INSERT INTO chat_message_versions (chat_id, message_id, group_id, hidden, line_end)
    SELECT v.chat_id, v.message_id, v.group_id, v.hidden,
        CASE WHEN v.hidden IS NOT NULL THEN '{}'::jsonb END
    FROM json_to_recordset($1::json)
        AS v (chat_id uuid, message_id bigint, group_id bigint, hidden bigint[])"""


class NewVersion(Struct, frozen=True, kw_only=True):
    """A version of a chat that is written by an import: its lines end as those of a chat that
    waits."""

    chat_id: ChatId
    message_id: int
    group_id: int
    hidden: list[int] | None


class ListedVersion(Struct, frozen=True, kw_only=True):
    """`text` is the beginning of the message."""

    shown_id: MessageId
    message_id: MessageId
    created_at: datetime
    model_config_id: UUID | None
    text: str | None


async def lock_version(
    session: Conn, chat_id: ChatId, message_id: MessageId
) -> StoredVersion | None:
    """Lock the hidden messages of a version until the end of the transaction, which holds the
    chat's lock. A message without another version is the one that is shown. None if there is
    no such user message."""
    row = await session.fetchrow(GET, chat_id, message_id)
    if row is None:
        return None
    hidden: list[int] | None = row["hidden"]
    whole = hidden is None or await session.fetchval(LOCK_HIDDEN, chat_id, hidden) == len(hidden)
    return StoredVersion(
        message_id=message_id,
        shown_id=row["shown_id"],
        hidden=None if hidden is None else tuple(MessageId(one) for one in hidden),
        is_whole=whole,
        end=LineEnd() if row["line_end"] is None else _END.decode(row["line_end"]),
    )


async def list_groups(
    conn: Conn, actor: Actor, chat_id: ChatId, after: MessageId, *, limit: int
) -> list[list[ListedVersion]]:
    """The versions of each shown message that has several, oldest first. Empty for a chat that the
    actor may only read by a share."""
    reach = chat_reach(actor, "versions.read")
    rows = await conn.fetch(
        LIST, chat_id, *reach, after, limit, MAX_VERSION_TEXT_CHARS, MAX_LISTED_VERSIONS
    )
    groups: dict[MessageId, list[ListedVersion]] = {}
    for row in rows:
        found = ListedVersion(**dict(row))
        groups.setdefault(found.shown_id, []).append(found)
    return list(groups.values())


async def read_state(conn: Conn, chat: Chat) -> tuple[Chat, CopiedVersions]:
    """The chat as it is now, with the versions that it can show. The caller has loaded the chat for
    its actor. A chat that is gone meanwhile has none."""
    row = await conn.fetchrow(READ, chat.id, MAX_COPIED_VERSIONS)
    if row is None:
        return chat, NO_VERSIONS
    return chat_from_row(row), reachable_versions(_rows(row["versions"]))


async def lock_copied(session: Conn, chat_id: ChatId, until: MessageId) -> CopiedVersions:
    """The versions of messages up to this one, whose content stays until the end of the
    transaction. The caller holds a lock of the chat; only retention can remove a line meanwhile."""
    for _ in range(MAX_LOCK_ATTEMPTS):
        row = await session.fetchrow(READ, chat_id, MAX_COPIED_VERSIONS)
        if row is None:
            break
        found = reachable_versions(_rows(row["versions"]), until)
        if await session.fetchval(LOCK_HIDDEN, chat_id, found.hidden) == len(found.lines):
            return found
    return NO_VERSIONS


def _rows(text: str | None) -> tuple[VersionRow, ...]:
    return () if text is None else _ROWS.decode(text)


async def insert(session: DatabaseSession, found: list[NewVersion]) -> None:
    """Of chats that the same transaction has made."""
    await session.execute(INSERT, json_text(found))
