"""Reads of a chat's subagents: one, a page, their number, a report, and who waits for which."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, LiteralString

from msgspec import Struct

from chatd.domain.access.permissions import Actor
from chatd.domain.chat.messages import decode_parts
from chatd.domain.chat.parts import Part
from chatd.domain.chat.row import Chat
from chatd.domain.ids import ChatId
from chatd.domain.subagents import SubagentCounts
from chatd.store.chat.chats import chat_from_row
from chatd.store.database.conn import Conn
from chatd.store.database.row_access import chat_condition, chat_reach

_OF_PARENT: Final[LiteralString] = f"""
    c.parent_chat_id = $1 AND c.deleted_at IS NULL AND {chat_condition("$2", "$3")}"""

GET: Final[LiteralString] = f"SELECT c.* FROM chats c WHERE c.id = $4 AND {_OF_PARENT}"

# The call that waits is one of the parent's last answer: the commit of the answer is its beginning.
GET_WAITED: Final[LiteralString] = f"""
    SELECT c.*, coalesce((
        SELECT extract(epoch FROM now() - m.created_at)::float8 FROM chat_messages m
        WHERE m.chat_id = $1 AND m.role = 'assistant' AND NOT m.deleted
        ORDER BY m.id DESC LIMIT 1), 0) AS waited_s
    FROM chats c WHERE c.id = $4 AND {_OF_PARENT}"""

COUNT: Final[LiteralString] = f"""
    SELECT count(*) AS total,
        count(*) FILTER (WHERE c.status IN ('running', 'interrupting')) AS running
    FROM chats c WHERE {_OF_PARENT}"""

LIST: Final[LiteralString] = f"""
    SELECT c.*, count(*) OVER () AS total FROM chats c WHERE {_OF_PARENT} AND NOT c.archived
    ORDER BY c.updated_at DESC, c.id DESC LIMIT $4 OFFSET $5"""
COUNT_LISTED: Final[LiteralString] = f"""
    SELECT count(*) FROM chats c WHERE {_OF_PARENT} AND NOT c.archived"""

# The first page compares with -infinity, so that every page is a range.
LIST_OLDEST: Final[LiteralString] = f"""
    SELECT c.* FROM chats c
    WHERE {_OF_PARENT} AND (c.created_at, c.id) > (coalesce($4, '-infinity'::timestamptz), $5)
    ORDER BY c.created_at, c.id LIMIT $6"""

# By id, not by time: messages of one commit have one time.
READ_REPORT: Final[LiteralString] = f"""
    SELECT m.content FROM chats c JOIN chat_messages m ON m.chat_id = c.id
    WHERE c.id = $1 AND {chat_condition("$2", "$3")} AND m.role = 'assistant' AND NOT m.deleted
      AND m.visibility <> 'model' AND NOT m.compressed AND EXISTS (
          SELECT FROM json_array_elements(m.content) p
          WHERE p ->> 'type' = 'text' AND btrim(p ->> 'text') <> '')
    ORDER BY m.id DESC LIMIT 1"""

# LATERAL with a limit: the planner takes the list for a hundred chats, and would scan them all.
_SETTLED: Final[LiteralString] = """
    c.agent_wait IS NOT NULL AND c.status = 'running' AND c.worker_id IS NULL
    AND c.runnable_at > now() AND NOT EXISTS (
        SELECT FROM json_array_elements_text(c.agent_wait -> 'chat_ids') AS w (id),
        LATERAL (SELECT FROM chats a WHERE a.id = w.id::uuid AND NOT a.archived
                   AND a.status IN ('running', 'interrupting') LIMIT 1) at_work)"""
LIST_WAKEABLE: Final[LiteralString] = f"""
    SELECT c.* FROM chats c WHERE c.id = ANY ($1::uuid[]) AND {_SETTLED}"""
# By the index of runnable root chats, which has the suspended ones.
LIST_ALL_WAKEABLE: Final[LiteralString] = f"""
    SELECT c.* FROM chats c
    WHERE c.runnable_at IS NOT NULL AND c.parent_chat_id IS NULL AND {_SETTLED} LIMIT $1"""


class WaitedChild(Struct, frozen=True, kw_only=True):
    """`waited_s`: since the parent's last answer was committed."""

    chat: Chat
    waited_s: float


async def get(conn: Conn, actor: Actor, parent: ChatId, child: ChatId) -> Chat | None:
    """None if there is no such subagent of this chat, or the actor may not read it."""
    row = await conn.fetchrow(GET, parent, *chat_reach(actor, "chats.read"), child)
    return None if row is None else chat_from_row(row)


async def get_waited(conn: Conn, actor: Actor, parent: ChatId, child: ChatId) -> WaitedChild | None:
    row = await conn.fetchrow(GET_WAITED, parent, *chat_reach(actor, "chats.read"), child)
    return None if row is None else WaitedChild(chat=chat_from_row(row), waited_s=row["waited_s"])


async def count(conn: Conn, actor: Actor, parent: ChatId) -> SubagentCounts:
    """Includes archived ones, so that a chat cannot start and archive subagents for ever."""
    row = await conn.fetchrow(COUNT, parent, *chat_reach(actor, "chats.read"))
    assert row is not None  # an aggregate has one row
    return SubagentCounts(running=row["running"], total=row["total"])


async def list_page(
    conn: Conn, actor: Actor, parent: ChatId, *, limit: int, offset: int
) -> tuple[Sequence[Chat], int]:
    """The unarchived ones, last changed first, and how many there are."""
    reach = chat_reach(actor, "chats.read")
    rows = await conn.fetch(LIST, parent, *reach, limit, offset)
    if rows or offset == 0:
        return [chat_from_row(row) for row in rows], rows[0]["total"] if rows else 0
    return (), await conn.fetchval(COUNT_LISTED, parent, *reach)


async def list_oldest(
    conn: Conn,
    actor: Actor,
    parent: ChatId,
    *,
    after: tuple[datetime, ChatId] | None = None,
    limit: int = 50,
) -> Sequence[Chat]:
    """All subagents by creation, from the one after `after`."""
    at, last = after or (None, parent)
    rows = await conn.fetch(LIST_OLDEST, parent, *chat_reach(actor, "chats.read"), at, last, limit)
    return [chat_from_row(row) for row in rows]


async def read_report(conn: Conn, actor: Actor, chat_id: ChatId) -> Sequence[Part]:
    """The last answer with text; nothing if there is none."""
    content = await conn.fetchval(READ_REPORT, chat_id, *chat_reach(actor, "chats.read"))
    return () if content is None else decode_parts(content)


async def list_wakeable(
    conn: Conn, parents: Sequence[ChatId] | None = None, *, limit: int = 500
) -> Sequence[Chat]:
    """Suspended chats, of these or of all, whose awaited subagents are all settled."""
    if parents is None:
        rows = await conn.fetch(LIST_ALL_WAKEABLE, limit)
    else:
        rows = await conn.fetch(LIST_WAKEABLE, list(parents))
    return [chat_from_row(row) for row in rows]
