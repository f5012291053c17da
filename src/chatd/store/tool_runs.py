"""Marks of tools that must not run twice: set before the tool starts, found after a crash."""

from typing import Final, LiteralString

from chatd.domain.chat import Fence
from chatd.domain.errors import StaleFence
from chatd.domain.ids import ChatId, ToolCallId
from chatd.store.conn import Conn

# The mark is fenced like any write of a worker: the row is locked while it is checked.
START: Final[LiteralString] = """
    WITH mine AS MATERIALIZED (
        SELECT id, root_chat_id FROM chats
        WHERE id = $1 AND worker_id = $3 AND epoch = $4 AND status = 'running'
          AND history_version = $5 FOR SHARE),
    marked AS (
        INSERT INTO chat_tool_runs (chat_id, root_chat_id, tool_call_id, epoch)
        SELECT id, root_chat_id, $2, $4 FROM mine
        ON CONFLICT DO NOTHING RETURNING epoch)
    SELECT EXISTS (SELECT FROM mine) AS held,
        EXISTS (SELECT FROM marked)
        OR ($6 AND EXISTS (SELECT FROM chat_tool_runs
            WHERE chat_id = $1 AND tool_call_id = $2 AND epoch = $4)) AS first"""


async def start(
    conn: Conn, chat_id: ChatId, call_id: ToolCallId, fence: Fence, *, again: bool = False
) -> bool:
    """True if the tool may run; False if it was started before and its outcome is unknown.
    `again`: the answer to an earlier try was lost, so a mark of this epoch is our own."""
    row = await conn.fetchrow(
        START, chat_id, call_id, fence.worker_id, fence.epoch, fence.history_version, again
    )
    if row is None or not row["held"]:
        raise StaleFence(f"Chat {chat_id} has moved on.")
    return bool(row["first"])
