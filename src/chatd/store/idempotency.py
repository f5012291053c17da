"""Idempotency keys of requests, of created workspaces and builds, and of tool calls.

A repeated request within the retention finds the first result. Later the key is cleared: what was
created stays, and a repeat creates something new. A tool call that is repeated so late finds its
workspace by the chat's binding and its build by the build number.
"""

from datetime import timedelta
from typing import Final, LiteralString

from msgspec import Struct

from chatd.domain.access.permissions import Actor
from chatd.domain.chat.change import IdempotencyKey
from chatd.domain.chat.row import Fence
from chatd.domain.errors import StaleFence
from chatd.domain.ids import ChatId, MessageId, QueueId, ToolCallId
from chatd.store.database.conn import Conn
from chatd.store.database.row_access import chat_condition, chat_reach

GET: Final[LiteralString] = f"""
    SELECT r.chat_id, r.op, r.fingerprint, r.version, r.message_id, r.queue_id
    FROM chat_requests r JOIN chats c ON c.id = r.chat_id
    WHERE r.scope = $1 AND r.request_id = $2 AND {chat_condition("$3", "$4")}"""

DELETE_OLD_REQUESTS: Final[LiteralString] = """
    WITH old AS MATERIALIZED (
        SELECT scope, request_id FROM chat_requests
        WHERE created_at < now() - $1::interval ORDER BY created_at LIMIT $2
        FOR UPDATE SKIP LOCKED)
    DELETE FROM chat_requests r USING old
    WHERE r.scope = old.scope AND r.request_id = old.request_id"""

REQUEST_RETENTION: Final = timedelta(hours=24)


class RecordedRequest(Struct, frozen=True, kw_only=True):
    """The version that the request wrote, and its message in history or in the queue."""

    chat_id: ChatId
    op: str
    fingerprint: str
    version: int
    message_id: MessageId | None
    queue_id: QueueId | None


async def get(conn: Conn, actor: Actor, request: IdempotencyKey) -> RecordedRequest | None:
    """None also if the actor may not change its chat."""
    reach = chat_reach(actor, "chats.write")
    row = await conn.fetchrow(GET, request.scope, request.id, *reach)
    return None if row is None else RecordedRequest(**dict(row))


async def delete_old_requests(conn: Conn, *, limit: int = 1000) -> int:
    """Delete one batch; call again while it returns `limit`."""
    status = await conn.execute(DELETE_OLD_REQUESTS, REQUEST_RETENTION, limit)
    return int(status.rpartition(" ")[2])


# Uses the partial index of rows that have a key.
CLEAR_WORKSPACE_KEYS: Final[LiteralString] = """
    UPDATE workspaces w SET made_by = NULL
    WHERE w.id = ANY (ARRAY(
        SELECT x.id FROM workspaces x
        WHERE x.made_by IS NOT NULL AND x.created_at < now() - $1::interval
        LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED))"""

CLEAR_BUILD_KEYS: Final[LiteralString] = """
    UPDATE workspace_builds b SET made_by = NULL
    WHERE b.id = ANY (ARRAY(
        SELECT x.id FROM workspace_builds x
        WHERE x.made_by IS NOT NULL AND x.created_at < now() - $1::interval
        LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED))"""


async def clear_old_request_keys(conn: Conn, *, limit: int = 1000) -> int:
    """Clear one batch of each table; call again while it returns `limit`."""
    done = 0
    for statement in (CLEAR_WORKSPACE_KEYS, CLEAR_BUILD_KEYS):
        status = await conn.execute(statement, REQUEST_RETENTION, limit)
        done = max(done, int(status.rpartition(" ")[2]))
    return done


# Fenced like every write of a worker: the row is locked while the fence is checked. The outputs of
# earlier steps, which are committed, are forgotten.
MARK_TOOL_STARTED: Final[LiteralString] = """
    WITH mine AS MATERIALIZED (
        SELECT id, root_chat_id FROM chats
        WHERE id = $1 AND worker_id = $3 AND epoch = $4 AND status = 'running'
          AND history_version = $5 AND snapshot_version >= $7::bigint
          AND ($8::bigint = 0
               OR coalesce(recent_changes[(snapshot_version - $7 + 1)::int], 0) IN ($8, 0))
        FOR SHARE),
    marked AS (
        INSERT INTO chat_tool_runs (chat_id, root_chat_id, tool_call_id, epoch)
        SELECT id, root_chat_id, $2, $4 FROM mine
        ON CONFLICT DO NOTHING RETURNING epoch),
    forgotten AS (
        UPDATE chat_tool_runs t SET output = NULL FROM mine
        WHERE t.chat_id = mine.id AND t.output IS NOT NULL
          AND split_part(t.tool_call_id, ':', 1) <> ($5::bigint)::text)
    SELECT EXISTS (SELECT FROM mine) AS held,
        EXISTS (SELECT FROM marked)
        OR ($6 AND EXISTS (SELECT FROM chat_tool_runs
            WHERE chat_id = $1 AND tool_call_id = $2 AND epoch = $4)) AS first,
        (SELECT output FROM chat_tool_runs WHERE chat_id = $1 AND tool_call_id = $2) AS output"""

# The mark of this epoch is this worker's own, so that no other fence is needed.
KEEP_TOOL_OUTPUT: Final[LiteralString] = """
    UPDATE chat_tool_runs SET output = $4
    WHERE chat_id = $1 AND tool_call_id = $2 AND epoch = $3"""


TOOL_OUTPUT_RETENTION: Final = timedelta(hours=1)
"""An output is needed until its step is committed. After this time the output of a step that is
over is forgotten."""
# A mark begins with the history version of its step. Uses the partial index of kept outputs; a join
# would read all chats.
CLEAR_TOOL_OUTPUTS: Final[LiteralString] = """
    UPDATE chat_tool_runs t SET output = NULL
    WHERE t.output IS NOT NULL AND t.ctid = ANY (ARRAY(
        SELECT x.ctid FROM chat_tool_runs x
        WHERE x.output IS NOT NULL AND x.started_at < now() - $1::interval
          AND (SELECT c.status IN ('waiting', 'error')
                   OR split_part(x.tool_call_id, ':', 1) <> c.history_version::text
               FROM chats c WHERE c.id = x.chat_id)
        LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED))"""


async def clear_old_tool_outputs(conn: Conn, *, limit: int = 1000) -> int:
    """Clear one batch; call again while it returns `limit`."""
    status = await conn.execute(CLEAR_TOOL_OUTPUTS, TOOL_OUTPUT_RETENTION, limit)
    return int(status.rpartition(" ")[2])


class ToolMark(Struct, frozen=True, kw_only=True):
    """`first`: the tool may run. Otherwise it was started before, and `output` is what it returned,
    if it ended."""

    first: bool
    output: str | None = None


async def mark_tool_started(
    conn: Conn, chat_id: ChatId, call_id: ToolCallId, fence: Fence, *, is_retry: bool = False
) -> ToolMark:
    """Set the mark before the tool starts. `is_retry`: the reply to an earlier call was lost, so a
    mark of this epoch is this call's own. Raises StaleFence."""
    row = await conn.fetchrow(
        MARK_TOOL_STARTED,
        chat_id,
        call_id,
        fence.worker_id,
        fence.epoch,
        fence.history_version,
        is_retry,
        fence.snapshot_version,
        fence.change_id,
    )
    if row is None or not row["held"]:
        raise StaleFence(f"Chat {chat_id} is no longer owned under this fence.")
    return ToolMark(first=bool(row["first"]), output=row["output"])


async def keep_tool_output(
    conn: Conn, chat_id: ChatId, call_id: ToolCallId, fence: Fence, output: str
) -> None:
    """Keep the output of a tool whose step is not committed yet. A later one replaces it."""
    await conn.execute(KEEP_TOOL_OUTPUT, chat_id, call_id, fence.epoch, output)
