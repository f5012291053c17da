"""An MCP server of the official SDK with one tool, as a process: prints its port, then serves."""

import socket
import sys

import uvicorn
from mcp.server.mcpserver import MCPServer


def main() -> None:
    server = MCPServer("bench", log_level="CRITICAL")

    @server.tool()
    def echo(text: str) -> str:
        """Says the text again."""
        return text

    listener = socket.create_server(("127.0.0.1", 0))
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    config = uvicorn.Config(server.streamable_http_app(), log_level="critical")
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
