"""Find chats by words of their titles and messages.

The index is a table of its own, filled behind the commits by `search_index`. Every entry has its
owner as one more word, so that a search reads only entries of the user, or of the owners of chats
that are shared with the user.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, LiteralString

from msgspec import Struct

from chatd.domain.access import Actor, UserActor
from chatd.domain.chat.lists.search import match_expression
from chatd.domain.chat.messages import Message
from chatd.domain.chat.row import Chat
from chatd.domain.ids import ChatId, MessageId
from chatd.store.chat.chats import FILTERS, ChatListFilter, chat_from_row, filter_values
from chatd.store.chat.messages import MESSAGE_COLUMNS, messages_from_json
from chatd.store.conn import Conn
from chatd.store.row_access import chat_condition, chat_reach, shared_roots

TITLE_ENTRY: Final = MessageId(0)
"""The number of the entry of a chat's title, which is no message."""

_OWN_WORD: Final[LiteralString] = "('''@' || $1::uuid::text || '''')"
_SHARED_WORDS: Final[LiteralString] = """
    (SELECT string_agg(DISTINCT '''@' || owner_id::text || '''', ' | ') FROM shared)"""
# $11: whether sharing is enabled.
_SHARED: Final[LiteralString] = f"""
    shared AS MATERIALIZED (
        SELECT id, owner_id FROM chats
        WHERE $11::boolean AND id = ANY ({shared_roots("$1")}) AND owner_id <> $1),"""
_IS_SHARED: Final[LiteralString] = "IN (SELECT id FROM shared)"


def _search(
    words: LiteralString,
    entries: LiteralString,
    roots: LiteralString,
    shared: LiteralString = "",
) -> LiteralString:
    """The newest hit of each root chat, newest first. The inner order and OFFSET 0 let the search
    end after one page of chats. $9 searches titles and texts; $10 titles only. `words` are those of
    the owners, `entries` and `roots` conditions."""
    return f"""
    WITH {shared} hits AS MATERIALIZED (
        SELECT DISTINCT ON (s.root_chat_id) s.root_chat_id, s.chat_id, s.message_id, s.at
        FROM chat_search s
        WHERE s.words @@ ({words}::tsquery && to_tsquery('simple', coalesce($9, $10)))
          AND {entries} AND ($9::text IS NOT NULL OR s.message_id = 0)
        ORDER BY s.root_chat_id, s.at DESC, s.message_id DESC)
    SELECT c.*, h.chat_id AS hit_chat_id, h.message_id AS hit_message_id, h.at AS hit_at
    FROM (SELECT * FROM hits ORDER BY at DESC, root_chat_id DESC) h
    CROSS JOIN LATERAL (
        SELECT * FROM chats
        WHERE id = h.root_chat_id AND {roots} AND archived = $2 AND deleted_at IS NULL
          AND {FILTERS}
          AND ($9::text IS NULL OR $10::text IS NULL OR (
              SELECT t.words @@ to_tsquery('simple', $10) FROM chat_search t
              WHERE t.chat_id = h.root_chat_id AND t.message_id = 0))
        OFFSET 0) c
    WHERE (h.at, h.root_chat_id) < (coalesce($3, 'infinity'::timestamptz), coalesce($4, $1))
    ORDER BY h.at DESC, h.root_chat_id DESC LIMIT $5"""


SEARCH: Final[LiteralString] = _search(_OWN_WORD, "true", "owner_id = $1")
SEARCH_SHARED: Final[LiteralString] = _search(
    _SHARED_WORDS, f"s.root_chat_id {_IS_SHARED}", f"id {_IS_SHARED}", _SHARED
)
SEARCH_ALL: Final[LiteralString] = _search(
    f"concat_ws(' | ', {_OWN_WORD}, {_SHARED_WORDS})",
    f"(s.owner_id = $1 OR s.root_chat_id {_IS_SHARED})",
    f"(owner_id = $1 OR id {_IS_SHARED})",
    _SHARED,
)

# A message may have been deleted since it was indexed.
LOAD_HITS: Final[LiteralString] = f"""
    SELECT h.chat_id, (SELECT json_agg(m) FROM (
        SELECT {MESSAGE_COLUMNS} FROM chat_messages
        WHERE chat_id = h.chat_id AND id = h.message_id AND NOT deleted) m) AS message
    FROM unnest($1::uuid[], $2::bigint[]) AS h (chat_id, message_id)
    JOIN chats c ON c.id = h.chat_id AND {chat_condition("$3", "$4")}"""


class SearchHit(Struct, frozen=True, kw_only=True):
    """A root chat with its newest hit: a message of the chat or of a subagent, or the title."""

    root: Chat
    chat_id: ChatId
    message_id: MessageId
    at: datetime

    @property
    def is_title(self) -> bool:
        return self.message_id == TITLE_ENTRY


async def search(
    conn: Conn,
    actor: UserActor,
    which: ChatListFilter,
    texts: Sequence[str],
    titles: Sequence[str],
) -> list[SearchHit]:
    """`texts` match within one message or the title; `titles` match the beginnings of its words."""
    values = (
        *filter_values(actor, which),
        match_expression(texts) if texts else None,
        match_expression(titles, prefix=True) if titles else None,
    )
    if which.source == "mine":
        rows = await conn.fetch(SEARCH, *values)
    else:
        statement = SEARCH_SHARED if which.source == "shared" else SEARCH_ALL
        rows = await conn.fetch(statement, *values, actor.reads_shared)
    return [
        SearchHit(
            root=chat_from_row(row),
            chat_id=ChatId(row["hit_chat_id"]),
            message_id=MessageId(row["hit_message_id"]),
            at=row["hit_at"],
        )
        for row in rows
    ]


async def load_messages(
    conn: Conn, actor: Actor, hits: Sequence[SearchHit]
) -> dict[ChatId, Message]:
    """The messages of the hits by their chats, without deleted ones."""
    wanted = [hit for hit in hits if not hit.is_title]
    if not wanted:
        return {}
    ids = [hit.chat_id for hit in wanted], [hit.message_id for hit in wanted]
    rows = await conn.fetch(LOAD_HITS, *ids, *chat_reach(actor, "chats.read"))
    found = ((ChatId(row["chat_id"]), messages_from_json(row["message"])) for row in rows)
    return {chat_id: messages[0] for chat_id, messages in found if messages}
