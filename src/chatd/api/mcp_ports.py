"""What the API needs of MCP servers."""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from chatd.api.schemas.mcp_servers import CreateMcpServerBody, UpdateMcpServerBody
from chatd.domain.access import UserActor
from chatd.domain.ids import McpServerId, UserId
from chatd.domain.mcp.connections import (
    ConnectAnswer,
    Disconnected,
    ServerTrial,
    StartedConnection,
)
from chatd.store.account.audit import ChangeAuthor
from chatd.store.mcp.connections import ServerConnection
from chatd.store.mcp.servers import StoredMcpServer


class McpServerListing(Protocol):
    """The MCP servers of the deployment, also those that are disabled."""

    async def all(self) -> Sequence[StoredMcpServer]: ...
    async def find(self, server_id: McpServerId) -> StoredMcpServer | None: ...


class McpConnections(Protocol):
    """A user's connections to MCP servers by OAuth. Raises NotFound and Conflict."""

    async def list_connections(self, actor: UserActor) -> Sequence[ServerConnection]: ...
    async def start(
        self, actor: UserActor, server_id: McpServerId, redirect_uri: str
    ) -> StartedConnection: ...
    async def finish(
        self, by: ChangeAuthor, server_id: McpServerId, answer: ConnectAnswer, cookie: str | None
    ) -> StoredMcpServer: ...
    async def disconnect(self, by: ChangeAuthor, server_id: McpServerId) -> Disconnected: ...


class McpServerTrials(Protocol):
    """Connects to a server as a user, and lists its tools."""

    async def test(self, stored: StoredMcpServer, user: UserId) -> ServerTrial: ...


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
    directory: McpServerListing
    control: McpServerControl
    connections: McpConnections
    trials: McpServerTrials
