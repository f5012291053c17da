"""What the API needs of MCP servers."""

from typing import Protocol

from msgspec import Struct

from chatd.api.schemas.mcp_servers import CreateMcpServerBody, UpdateMcpServerBody
from chatd.domain.ids import McpServerId
from chatd.mcp.directory import ServerDirectory
from chatd.mcp.oauth_connections import OauthConnections
from chatd.mcp.trials import ServerTrials
from chatd.store.account.audit import ChangeAuthor
from chatd.store.mcp.servers import StoredMcpServer


class McpServerControl(Protocol):
    """Changes of MCP servers by administrators. Raises Conflict and InvalidInput."""

    async def get_server(self, server_id: McpServerId) -> StoredMcpServer: ...
    async def create_server(
        self, by: ChangeAuthor, body: CreateMcpServerBody
    ) -> StoredMcpServer: ...
    async def update_server(
        self, by: ChangeAuthor, server_id: McpServerId, body: UpdateMcpServerBody
    ) -> StoredMcpServer: ...
    async def delete_server(self, by: ChangeAuthor, server_id: McpServerId) -> None: ...


class McpServices(Struct, frozen=True, kw_only=True):
    directory: ServerDirectory
    control: McpServerControl
    connections: OauthConnections
    trials: ServerTrials
