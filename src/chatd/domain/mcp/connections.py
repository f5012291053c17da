"""Values of a user's connection to an MCP server, and of a test of a server."""

from datetime import timedelta
from typing import Final, Literal

from msgspec import Struct

from chatd.domain.mcp.tools import ListedTool

CONNECT_LIFETIME: Final = timedelta(minutes=10)
"""How long the visit to the authorization server may take."""

ConnectionState = Literal["ready", "connected", "needs_connect", "failed"]


class StartedConnection(Struct, frozen=True, kw_only=True):
    """Where the browser goes, and the cookie's text."""

    authorization_url: str
    cookie: str


class ConnectAnswer(Struct, frozen=True, kw_only=True):
    """The parameters with which the authorization server sends the browser back."""

    code: str | None = None
    state: str | None = None
    iss: str | None = None
    error: str | None = None
    error_description: str | None = None


class Disconnected(Struct, frozen=True, kw_only=True):
    """`failure`: why the authorization server did not revoke the tokens."""

    revoked: bool
    failure: str = ""


class ServerTrial(Struct, frozen=True, kw_only=True):
    """`problem` is empty if the connection gave a list."""

    duration_ms: int
    problem: str = ""
    tools: tuple[ListedTool, ...] = ()
