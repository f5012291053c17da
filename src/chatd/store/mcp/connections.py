"""A stored MCP server together with one user's token for it."""

from msgspec import Struct

from chatd.domain.mcp.servers import ConnectionState
from chatd.store.mcp.servers import StoredMcpServer
from chatd.store.mcp.tokens import StoredToken


class ServerConnection(Struct, frozen=True, kw_only=True):
    """One server as one user sees it. A server without OAuth is `ready` for every user."""

    stored: StoredMcpServer
    state: ConnectionState
    reason: str = ""
    token: StoredToken | None = None
