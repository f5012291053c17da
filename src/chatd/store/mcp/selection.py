"""The MCP servers of a chat, in its row: what a copy of a chat keeps of them."""

from collections.abc import Sequence
from typing import Final, LiteralString
from uuid import UUID

from chatd.domain.errors import InvalidInput
from chatd.domain.ids import McpServerId
from chatd.store.conn import Conn

FIND: Final[LiteralString] = """
    SELECT id, deleted_at IS NOT NULL AS is_deleted FROM mcp_servers WHERE id = ANY ($1::uuid[])"""


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
