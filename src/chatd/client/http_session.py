"""The HTTP session of a client process."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib import metadata

import aiohttp

from chatd.client.server import PATIENCE_S, ServerApi
from chatd.client.server_address import ServerAddress


@asynccontextmanager
async def open_api(
    server: ServerAddress, *, patience_s: float = PATIENCE_S
) -> AsyncGenerator[ServerApi]:
    """Requests to a server until the end of the block. Cookies are not kept, and proxies are those
    of the environment (HTTPS_PROXY, NO_PROXY)."""
    headers = {"User-Agent": f"chatd/{metadata.version('chatd')}"}
    jar = aiohttp.DummyCookieJar()
    async with aiohttp.ClientSession(headers=headers, cookie_jar=jar, trust_env=True) as http:
        yield ServerApi(server, http, patience_s=patience_s)
