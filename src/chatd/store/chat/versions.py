"""Versions of messages: which lines of messages were replaced, and which of them is shown.

`apply` writes the rows in the statement that replaces a line.
"""

from datetime import datetime
from typing import Final, LiteralString
from uuid import UUID

import msgspec
from msgspec import Struct

from chatd.domain.access.permissions import Actor
from chatd.domain.chat.row import LineEnd, StoredVersion
from chatd.domain.ids import ChatId, MessageId
from chatd.store.database.conn import Conn
from chatd.store.database.row_access import chat_condition, chat_reach

MAX_LISTED_VERSIONS: Final = 100
"""How many versions of one message are listed: the newest."""
MAX_VERSION_TEXT_CHARS: Final = 200
_ANSWER_WITHIN: Final[LiteralString] = "20"

_END = msgspec.json.Decoder(LineEnd)

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
