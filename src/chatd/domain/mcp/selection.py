"""Which servers a chat uses. The server decides this, whatever a client sent."""

from collections.abc import Collection

from chatd.domain.ids import McpServerId
from chatd.domain.mcp.servers import McpServer


def is_used(server: McpServer, chosen: Collection[McpServerId] | None) -> bool:
    """`chosen` is None if nobody chose for the chat."""
    if not server.enabled:
        return False
    if server.availability == "force_on":
        return True
    return server.availability == "default_on" if chosen is None else server.id in chosen
