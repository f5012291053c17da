"""The HTTP session of a client process."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib import metadata
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from aiohttp.abc import AbstractCookieJar

from chatd.client.server import PATIENCE_S, ServerApi
from chatd.client.server_address import ServerAddress, is_loopback


@asynccontextmanager
async def open_api(
    server: ServerAddress, *, patience_s: float = PATIENCE_S
) -> AsyncGenerator[ServerApi]:
    """Requests to a server until the end of the block. Cookies are not kept."""
    async with open_session(server.url, aiohttp.DummyCookieJar()) as http:
        yield ServerApi(server, http, patience_s=patience_s)


def open_session(url: str, cookies: AbstractCookieJar) -> aiohttp.ClientSession:
    """For the server at this URL, through the proxy that the environment names for it."""
    # `trust_env` would also send the password of ~/.netrc instead of the token.
    return aiohttp.ClientSession(
        headers={"User-Agent": f"chatd/{metadata.version('chatd')}"},
        cookie_jar=cookies,
        proxy=find_proxy(url),
    )


def find_proxy(url: str) -> str | None:
    """By HTTPS_PROXY, HTTP_PROXY and NO_PROXY. None for this machine."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if is_loopback(host) or proxy_bypass(host):
        return None
    return getproxies().get(parts.scheme)
