"""Rows of MCP servers and of tokens."""

from uuid import UUID

from msgspec.structs import replace

from chatd.domain.ids import McpServerId
from chatd.domain.mcp.oauth import OauthClient
from chatd.domain.mcp.servers import McpCredentials, McpServer
from chatd.store.database.pool import Pool
from chatd.store.deployment import mcp_servers
from chatd.store.deployment.mcp_servers import McpServerWrite
from chatd.store.deployment.mcp_tokens import NewToken


def mcp_server_id(number: int) -> McpServerId:
    return McpServerId(UUID(int=0x3C0000 + number))


def mcp_server(number: int, **fields: object) -> McpServer:
    server = McpServer(
        id=mcp_server_id(number),
        slug=f"server{number}",
        display_name=f"Server {number}",
        url=f"https://mcp{number}.test/mcp",
    )
    return replace(server, **fields)


async def insert_mcp_server(
    pool: Pool,
    number: int,
    credentials: McpCredentials = McpCredentials(),  # noqa: B008
    **fields: object,
) -> McpServer:
    server = mcp_server(number, **fields)
    async with pool.transaction() as session:
        await mcp_servers.insert(session, McpServerWrite(server=server, credentials=credentials))
    return server


def new_token(number: int, *, server_version: int = 1) -> NewToken:
    """Sealed by a key of the id `key`, which opens nothing."""
    client = OauthClient(
        client_id="c",
        authorization_endpoint="https://as.test/authorize",
        token_endpoint="https://as.test/token",
        resource=f"https://mcp{number}.test/mcp",
    )
    return NewToken(
        id=UUID(int=0x3D0000 + number),
        server_id=mcp_server_id(number),
        server_version=server_version,
        client=client,
        sealed_tokens="sealed1.key.data",
        expires_in_s=None,
    )
