"""MCP servers that administrators configured, and how one user reaches one of them."""

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

from msgspec import Struct

from chatd.domain.chat.row import Chat
from chatd.domain.ids import McpServerId
from chatd.domain.mcp.tools import ListedTool

McpTransport = Literal["streamable_http", "sse"]
McpAuth = Literal["none", "oauth2", "api_key", "custom_headers"]
McpAvailability = Literal["force_on", "default_on", "default_off"]


class McpServer(Struct, frozen=True, kw_only=True):
    """A configured server. `version` changes with every edit: sessions of an older version are
    dropped. `allow` and `deny` name tools as the server does; a non-empty `allow` counts alone."""

    id: McpServerId
    slug: str
    display_name: str
    url: str
    transport: McpTransport = "streamable_http"
    auth: McpAuth = "none"
    enabled: bool = True
    availability: McpAvailability = "default_off"
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    model_intent: bool = False
    allow_in_plan_mode: bool = False
    version: int = 1


class McpAccess(Struct, frozen=True, kw_only=True):
    """One server as one user reaches it. `headers` carry the credential; `problem` says why there
    is none, if the server needs one. `credential_version` changes with the credential."""

    server: McpServer
    headers: Mapping[str, str] = {}
    problem: str = ""
    credential_version: str = ""


class McpDirectory(Protocol):
    async def servers(self, chat: Chat) -> Sequence[McpServer]:
        """Enabled servers that were chosen for this chat or are forced on. Cached: returns
        quickly."""
        ...

    async def access(self, server: McpServer, chat: Chat) -> McpAccess:
        """Refreshes a token that is about to expire, within a bounded time."""
        ...

    async def refused(self, server: McpServer, chat: Chat, access: McpAccess) -> McpAccess | None:
        """Called after the server refused `access` (401). One refresh; None if it did not help."""
        ...

    async def known_tools(self, server: McpServer, chat: Chat) -> tuple[ListedTool, ...]:
        """What the server listed last for the chat's owner, at any replica. Raises Unavailable."""
        ...

    async def keep_tools(
        self, server: McpServer, chat: Chat, tools: tuple[ListedTool, ...]
    ) -> None:
        """Raises Unavailable."""
        ...
