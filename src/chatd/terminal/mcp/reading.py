"""Reads the MCP servers that the user's chats can use."""

from typing import Final

from chatd.client.resources import McpServer, Page
from chatd.client.server import ServerApi

_PAGE: Final = 200
MAX_SERVERS: Final = 1000


async def read_servers(api: ServerApi) -> tuple[McpServer, ...]:
    """All of them, by name. Raises ApiError and ServerUnreachable."""
    found: list[McpServer] = []
    cursor: str | None = None
    while len(found) < MAX_SERVERS:
        page = await api.get("/mcp-servers", Page[McpServer], limit=_PAGE, cursor=cursor)
        found += page.items
        cursor = page.next_cursor
        if cursor is None:
            break
    return tuple(sorted(found, key=lambda one: (one.display_name or one.slug).casefold()))
