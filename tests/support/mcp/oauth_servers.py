"""An authorization server and a protected MCP server for tests in a browser:
`python -m tests.support.mcp.oauth_servers`. Prints their addresses, and ends with its input."""

import asyncio
import json
import sys

from tests.support.mcp.authorization_server import authorization_server


async def _run() -> None:
    async with authorization_server() as authorization:
        module = "tests.support.mcp.protected_server"
        protected = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module, authorization.issuer),
            stdout=asyncio.subprocess.PIPE,
        )
        assert protected.stdout is not None
        try:
            port = json.loads(await protected.stdout.readline())["port"]
            mcp = f"http://127.0.0.1:{port}/mcp"
            sys.stdout.write(json.dumps({"issuer": authorization.issuer, "mcp": mcp}) + "\n")
            sys.stdout.flush()
            await asyncio.to_thread(sys.stdin.read)
        finally:
            protected.kill()
            await protected.wait()


if __name__ == "__main__":
    asyncio.run(_run())
