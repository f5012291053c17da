"""What retention archives and deletes. Every replica runs these statements: a row that another
replica has locked is skipped, and a row that it has deleted is not found.

Every statement touches a bounded number of rows and bytes, so that none ends at the statement
timeout and fails in the same way the next time.
"""

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Final, LiteralString

from chatd.domain.ids import ChatId
from chatd.store.database.conn import Conn
from chatd.store.database.pool import Pool

# Skips pinned chats and trees with a running chat. It counts, because the planner turns EXISTS into
# a join that reads all chats.
LIST_IDLE: Final[LiteralString] = """
    SELECT c.id, now() - $1::interval AS since FROM chats c
    WHERE c.parent_chat_id IS NULL AND NOT c.archived AND c.pin_order = 0
      AND c.status IN ('waiting', 'error') AND c.updated_at < now() - $1::interval
      AND (SELECT count(*) FROM chats k WHERE k.root_chat_id = c.id
           AND (k.status NOT IN ('waiting', 'error')
                OR k.updated_at >= now() - $1::interval)) = 0
    ORDER BY c.updated_at LIMIT $2"""

LIST_ARCHIVED: Final[LiteralString] = """
    SELECT id FROM chats
    WHERE parent_chat_id IS NULL AND archived AND updated_at < now() - $1::interval
    ORDER BY updated_at LIMIT $2"""
LOCK_ARCHIVED: Final[LiteralString] = """
    SELECT id FROM chats
    WHERE id = $1 AND archived AND updated_at < now() - $2::interval
    FOR UPDATE SKIP LOCKED"""
# The first rows of the tree up to $2 bytes, at least one. The size is that of the stored value,
# which is known without reading the value.
DELETE_MESSAGES: Final[LiteralString] = """
    WITH found AS MATERIALIZED (
        SELECT m.chat_id, m.id, pg_column_size(m.content) AS bytes
        FROM chats c CROSS JOIN LATERAL (
            SELECT * FROM chat_messages r WHERE r.chat_id = c.id ORDER BY r.id LIMIT $3) m
        WHERE c.root_chat_id = $1 LIMIT $3),
    sized AS (
        SELECT chat_id, id, sum(bytes) OVER (ORDER BY chat_id, id) - bytes AS before FROM found)
    DELETE FROM chat_messages m USING sized s
    WHERE m.chat_id = s.chat_id AND m.id = s.id AND s.before < $2"""
DELETE_TOOL_RUNS: Final[LiteralString] = """
    DELETE FROM chat_tool_runs WHERE (chat_id, tool_call_id) IN (
        SELECT t.chat_id, t.tool_call_id FROM chat_tool_runs t JOIN chats c ON c.id = t.chat_id
        WHERE c.root_chat_id = $1 LIMIT $2)"""
DELETE_SEARCH_TEXTS: Final[LiteralString] = """
    DELETE FROM chat_search_texts WHERE (chat_id, message_id) IN (
        SELECT s.chat_id, s.message_id FROM chats c CROSS JOIN LATERAL (
            SELECT * FROM chat_search_texts e WHERE e.chat_id = c.id LIMIT $2) s
        WHERE c.root_chat_id = $1 LIMIT $2)"""
# Deletes the tree and what is left of its rows, except for usage.
DELETE_CHAT: Final[LiteralString] = "DELETE FROM chats WHERE id = $1"

LIST_DELETED: Final[LiteralString] = """
    SELECT id FROM chats
    WHERE parent_chat_id IS NULL AND deleted_at < now() - $1::interval
    ORDER BY deleted_at LIMIT $2"""
REMOVE_DELETED: Final[LiteralString] = "DELETE FROM chats WHERE id = $1 AND deleted_at IS NOT NULL"

# The row stays without its content, because viewers that resume learn from it. By physical place,
# in an array: for a join the planner would read all messages. A version that loses a message cannot
# be shown again.
CLEAR_DELETED_MESSAGES: Final[LiteralString] = """
    WITH found AS MATERIALIZED (
        SELECT ctid AS at, pg_column_size(content) AS bytes FROM chat_messages
        WHERE deleted_at < now() - $1::interval ORDER BY deleted_at LIMIT $3
        FOR NO KEY UPDATE SKIP LOCKED),
    sized AS (SELECT at, sum(bytes) OVER (ORDER BY at) - bytes AS before FROM found),
    cleared AS (
        UPDATE chat_messages SET content = '[]', usage = NULL, deleted_at = NULL
        WHERE ctid = ANY (ARRAY(SELECT at FROM sized WHERE before < $2))
        RETURNING chat_id, id),
    unrated AS (
        DELETE FROM message_ratings r USING cleared c
        WHERE r.chat_id = c.chat_id AND r.message_id = c.id),
    ended AS (
        DELETE FROM chat_message_versions v USING cleared c
        WHERE v.chat_id = c.chat_id AND (v.message_id = c.id OR c.id = ANY (v.hidden)))
    SELECT count(*) FROM cleared"""

# Only events that the daily sums contain: spend limits and reports do not change.
DELETE_USAGE: Final[LiteralString] = """
    DELETE FROM usage_events WHERE id IN (
        SELECT id FROM usage_events
        WHERE at < least(now() - $1::interval, (SELECT until FROM usage_rolled_up))
        LIMIT $2 FOR UPDATE SKIP LOCKED)"""

# With its builds, their logs and agents. The files are gone since the delete build succeeded.
DELETE_WORKSPACES: Final[LiteralString] = """
    DELETE FROM workspaces WHERE id IN (
        SELECT w.id FROM workspaces w
        WHERE w.deleted AND w.last_used_at < now() - $1::interval
          AND NOT EXISTS (SELECT FROM workspace_builds b WHERE b.workspace_id = w.id
                          AND (b.completed_at IS NULL OR b.completed_at > now() - $1::interval))
        ORDER BY w.last_used_at LIMIT $2 FOR UPDATE SKIP LOCKED)"""
# The first build names the request that made the workspace; the newest ones are its history. The
# last build that succeeded has the agents of a workspace that runs, however many stops have failed.
DELETE_BUILDS: Final[LiteralString] = """
    DELETE FROM workspace_builds WHERE id IN (
        SELECT b.id FROM workspace_builds b JOIN workspaces w ON w.id = b.workspace_id
        WHERE b.completed_at < now() - $1::interval
          AND b.build_number > 1 AND b.build_number <= w.latest_build - $3
          AND b.build_number IS DISTINCT FROM (
              SELECT max(x.build_number) FROM workspace_builds x
              WHERE x.workspace_id = w.id AND x.status = 'succeeded')
        ORDER BY b.completed_at LIMIT $2 FOR UPDATE OF b SKIP LOCKED)"""

MAX_BYTES_PER_DELETE: Final = 16 * 1024 * 1024
MAX_ROWS_PER_DELETE: Final = 1000
BUILDS_KEPT_PER_WORKSPACE: Final = 20


async def list_idle_chats(
    conn: Conn, after: timedelta, *, limit: int
) -> list[tuple[ChatId, datetime]]:
    """Root chats idle for longer than `after`, each with the time that it compared with."""
    rows = await conn.fetch(LIST_IDLE, after, limit)
    return [(ChatId(row["id"]), row["since"]) for row in rows]


async def list_archived_chats(conn: Conn, after: timedelta, *, limit: int) -> Collection[ChatId]:
    """Root chats archived for longer than `after`, the oldest first."""
    return [ChatId(row["id"]) for row in await conn.fetch(LIST_ARCHIVED, after, limit)]


async def delete_archived_chat(
    pool: Pool,
    chat_id: ChatId,
    after: timedelta,
    *,
    max_bytes: int = MAX_BYTES_PER_DELETE,
    max_rows: int = MAX_ROWS_PER_DELETE,
) -> bool:
    """Delete a root chat with its tree: many short statements in one transaction, so that a user
    who restores the chat at that moment finds all of it or nothing. False if it is locked or was
    restored."""
    async with pool.transaction() as session:
        if await session.fetchval(LOCK_ARCHIVED, chat_id, after) is None:
            return False
        while affected_rows(await session.execute(DELETE_MESSAGES, chat_id, max_bytes, max_rows)):
            pass
        for statement in (DELETE_TOOL_RUNS, DELETE_SEARCH_TEXTS):
            while affected_rows(await session.execute(statement, chat_id, max_rows)):
                pass
        await session.execute(DELETE_CHAT, chat_id)
    return True


async def list_deleted_chats(conn: Conn, after: timedelta, *, limit: int) -> Collection[ChatId]:
    """Root chats that a user deleted longer ago than `after`, the oldest first."""
    return [ChatId(row["id"]) for row in await conn.fetch(LIST_DELETED, after, limit)]


async def remove_deleted_chat(
    conn: Conn,
    chat_id: ChatId,
    *,
    max_bytes: int = MAX_BYTES_PER_DELETE,
    max_rows: int = MAX_ROWS_PER_DELETE,
) -> bool:
    """Remove the rows of a deleted root chat and of its tree. Each batch commits: no user sees the
    chat, and the next run goes on where this one ended. False if another replica was faster."""
    while affected_rows(await conn.execute(DELETE_MESSAGES, chat_id, max_bytes, max_rows)):
        pass
    for statement in (DELETE_TOOL_RUNS, DELETE_SEARCH_TEXTS):
        while affected_rows(await conn.execute(statement, chat_id, max_rows)):
            pass
    return affected_rows(await conn.execute(REMOVE_DELETED, chat_id)) > 0


async def clear_deleted_messages(
    conn: Conn, after: timedelta, *, max_bytes: int = MAX_BYTES_PER_DELETE
) -> int:
    """Remove the content of one batch of deleted messages; call again until it returns 0."""
    return await conn.fetchval(CLEAR_DELETED_MESSAGES, after, max_bytes, MAX_ROWS_PER_DELETE)


async def delete_usage_events(conn: Conn, after: timedelta) -> int:
    return affected_rows(await conn.execute(DELETE_USAGE, after, MAX_ROWS_PER_DELETE))


async def delete_workspaces(conn: Conn, after: timedelta) -> int:
    """Delete the rows of some workspaces that were deleted longer ago than `after`."""
    return affected_rows(await conn.execute(DELETE_WORKSPACES, after, 10))


async def delete_builds(conn: Conn, after: timedelta) -> int:
    """Delete some old builds with their logs; the newest of each workspace stay."""
    return affected_rows(await conn.execute(DELETE_BUILDS, after, 50, BUILDS_KEPT_PER_WORKSPACE))


def affected_rows(status: str) -> int:
    return int(status.rpartition(" ")[2])
