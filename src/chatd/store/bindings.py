"""Which workspace a chat works in, and what it remembers of whom to talk to there.

The workspace is a column of the chat and has no version, like its title; build and agent are a
cache beside it, and count only while they belong to that workspace. Another owner's workspace is
none, whatever the column says.
"""

from typing import Final, LiteralString

from chatd.domain.ids import ChatId, WorkspaceId
from chatd.domain.workspace import AgentId, BuildId
from chatd.domain.workspace_context import Binding
from chatd.store.conn import Conn

GET: Final[LiteralString] = """
    SELECT c.id AS chat_id, w.id AS workspace_id, b.build_id, b.agent_id
    FROM chats c
    LEFT JOIN workspaces w ON w.id = c.workspace_id AND w.owner_id = c.owner_id
    LEFT JOIN chat_bindings b ON b.chat_id = c.id AND b.workspace_id = w.id
    WHERE c.id = $1"""

# Compared with the workspace that was seen. A pinned context stays until another is pinned.
BIND: Final[LiteralString] = """
    WITH chat AS (
        UPDATE chats SET workspace_id = $3
        WHERE id = $1 AND workspace_id IS NOT DISTINCT FROM $2 RETURNING id),
    bound AS (
        INSERT INTO chat_bindings (chat_id, workspace_id, build_id)
        SELECT id, $3, $4 FROM chat WHERE $3::uuid IS NOT NULL
        ON CONFLICT (chat_id) DO UPDATE SET
            workspace_id = excluded.workspace_id, build_id = excluded.build_id,
            agent_id = NULL, bound_at = now())
    SELECT EXISTS (SELECT FROM chat)"""

REMEMBER: Final[LiteralString] = """
    INSERT INTO chat_bindings (chat_id, workspace_id, build_id, agent_id)
    SELECT c.id, w.id, $3, $4
    FROM chats c JOIN workspaces w ON w.id = c.workspace_id AND w.owner_id = c.owner_id
    WHERE c.id = $1 AND w.id = $2
    ON CONFLICT (chat_id) DO UPDATE SET
        workspace_id = excluded.workspace_id, build_id = excluded.build_id,
        agent_id = excluded.agent_id, bound_at = now()
    RETURNING true"""


async def get(conn: Conn, chat_id: ChatId) -> Binding | None:
    """None if there is no such chat."""
    row = await conn.fetchrow(GET, chat_id)
    return None if row is None else Binding(**dict(row))


async def bind(
    conn: Conn,
    chat_id: ChatId,
    *,
    seen: WorkspaceId | None,
    workspace_id: WorkspaceId | None,
    build_id: BuildId | None = None,
) -> bool:
    """Give the chat another workspace, or none. False if it no longer has the one that was
    seen."""
    return bool(await conn.fetchval(BIND, chat_id, seen, workspace_id, build_id))


async def remember(
    conn: Conn,
    chat_id: ChatId,
    workspace_id: WorkspaceId,
    *,
    build_id: BuildId | None,
    agent_id: AgentId | None,
) -> bool:
    """Whom to talk to next time. False if the chat has another workspace by now."""
    return bool(await conn.fetchval(REMEMBER, chat_id, workspace_id, build_id, agent_id))
