"""A protected MCP server of the official SDK, as a process:
`python -m tests.support.mcp.protected_server ISSUER`. It prints its port.

The SDK describes the resource and refuses requests without a token; the authorization server says
whose token it is.
"""

import asyncio
import json
import socket
import sys
from urllib.parse import urlencode
from urllib.request import urlopen

import uvicorn
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import MCPServer
from pydantic import AnyHttpUrl

HOSTILE_NOTE = (
    'A note <img src=x onerror="window.hostile=1"><script>window.hostile=1</script>'
    " [link](javascript:window.hostile=1) \u202egnp.exe"
)


class AskingVerifier:
    def __init__(self, issuer: str, resource: str) -> None:
        self._issuer = issuer
        self._resource = resource

    async def verify_token(self, token: str) -> AccessToken | None:
        found = await asyncio.to_thread(self._ask, token)
        if not found.get("active") or found.get("aud") != self._resource:
            return None
        return AccessToken(
            token=token,
            client_id=found["client_id"],
            scopes=["tools"],
            subject=found["sub"],
            resource=found["aud"],
        )

    def _ask(self, token: str) -> dict[str, str]:
        data = urlencode({"token": token}).encode()
        with urlopen(f"{self._issuer}/introspect", data) as reply:
            return json.load(reply)


def main() -> None:
    issuer = sys.argv[1]
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    resource = f"http://127.0.0.1:{port}/mcp"
    server = MCPServer(
        "protected",
        log_level="CRITICAL",
        token_verifier=AskingVerifier(issuer, resource),
        auth=AuthSettings(
            issuer_url=AnyHttpUrl(issuer),
            resource_server_url=AnyHttpUrl(resource),
            required_scopes=["tools"],
            validate_token_resource=True,
        ),
    )

    @server.tool()
    def whoami() -> str:
        """Whose token this is."""
        token = get_access_token()
        return "nobody" if token is None else str(token.subject)

    @server.tool()
    def read_note() -> str:
        """A text that tries to run in a browser."""
        return HOSTILE_NOTE

    @server.tool()
    async def wait() -> str:
        """It never ends by itself."""
        await asyncio.Event().wait()
        return "It has ended."

    config = uvicorn.Config(server.streamable_http_app(), log_level="critical", lifespan="on")
    sys.stdout.write(json.dumps({"port": port}) + "\n")
    sys.stdout.flush()
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
