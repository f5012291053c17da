"""The MCP servers of a chat, in its row: what a copy of a chat keeps of them; and the order of
their tools."""

from collections.abc import Sequence
from typing import Final, LiteralString
from uuid import UUID

from chatd.domain.errors import InvalidInput
from chatd.domain.ids import ChatId, McpServerId
from chatd.store.conn import Conn

FIND: Final[LiteralString] = """
    SELECT id, deleted_at IS NOT NULL AS is_deleted FROM mcp_servers WHERE id = ANY ($1::uuid[])"""

KEEP_ORDER: Final[LiteralString] = """
    WITH kept AS (
        INSERT INTO chat_tool_orders AS o (chat_id, servers)
        SELECT id, $2::text[] FROM chats WHERE id = $1
        ON CONFLICT (chat_id) DO UPDATE SET servers = o.servers || ARRAY(
            SELECT u.server FROM unnest(excluded.servers) WITH ORDINALITY AS u (server, at)
            WHERE u.server <> ALL (o.servers) ORDER BY u.at)
            WHERE NOT excluded.servers <@ o.servers AND cardinality(o.servers) < $3
        RETURNING o.servers)
    SELECT servers FROM kept
    UNION ALL SELECT servers FROM chat_tool_orders WHERE chat_id = $1 LIMIT 1"""
MAX_ORDERED_SERVERS: Final = 1_000
"""That a chat has ever had. Later ones follow in the order of their names."""


def keep_usable(ids: LiteralString) -> LiteralString:
    """The ids of this array whose servers can still be used, in their order. NULL stays NULL."""
    return f"""(SELECT coalesce(array_agg(m.id ORDER BY u.at), '{{}}')
        FROM unnest({ids}) WITH ORDINALITY AS u (id, at)
        JOIN mcp_servers m ON m.id = u.id AND m.enabled AND m.deleted_at IS NULL
        HAVING {ids} IS NOT NULL)"""


async def choose(conn: Conn, ids: Sequence[UUID]) -> tuple[McpServerId, ...]:
    """The servers to store for a chat, each once. A deleted one is left out, so that a client may
    send back what it was told earlier. Raises InvalidInput that names all unknown ones."""
    rows = await conn.fetch(FIND, list(ids))
    known = {row["id"]: row["is_deleted"] for row in rows}
    missing = [str(one) for one in ids if one not in known]
    if missing:
        raise InvalidInput("mcp_server_ids", f"there are no such servers: {', '.join(missing)}")
    return tuple(McpServerId(one) for one in dict.fromkeys(ids) if not known[one])


async def keep_order(conn: Conn, chat_id: ChatId, servers: Sequence[str]) -> tuple[str, ...]:
    """In which order the chat has got its servers, after new ones were added at the end."""
    row = await conn.fetchrow(KEEP_ORDER, chat_id, list(servers), MAX_ORDERED_SERVERS)
    return tuple(servers) if row is None else tuple(row["servers"])
