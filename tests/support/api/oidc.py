"""The real OpenID provider of `tests/oidc` as a process, and a browser that signs in there."""

import asyncio
import re
import shutil
import socket
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urljoin

import pytest
from aiohttp import ClientResponse, ClientSession, CookieJar
from yarl import URL

from tests.support.node_packages import install_packages

DIRECTORY: Final = Path(__file__).parents[2] / "oidc"
CLIENT_SECRET: Final = "a client secret with signs: + / %"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@asynccontextmanager
async def running_provider(port: int, redirect_uri: str) -> AsyncGenerator[None]:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed: the sign-in is not tested with a real OpenID provider")
    await install_packages(DIRECTORY, "oidc-provider")
    process = await asyncio.create_subprocess_exec(
        node, DIRECTORY / "provider.js", str(port), redirect_uri, stdout=PIPE, stderr=PIPE
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            while (line := await process.stdout.readline()) != b"ready\n":
                assert line, (await process.communicate())[1].decode()
        yield
    finally:
        process.kill()
        await process.communicate()


class OidcBrowser:
    """Follows redirects by hand and fills in the provider's forms."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.address = URL(url)
        self.http = ClientSession(cookie_jar=CookieJar(unsafe=True))

    async def sign_in(self, login: str, next_path: str = "/") -> tuple[int, str]:
        """The status and the address of chatd's reply to the provider's answer."""
        return await self.open(await self.answer(login, next_path))

    async def answer(self, login: str, next_path: str = "/") -> str:
        """The address of chatd to which the provider sends the browser back."""
        address = f"{self.url}/api/v1/auth/oidc/start?next={next_path}"
        for _ in range(12):
            if "/auth/oidc/callback" in address:
                return address
            async with self.http.get(address, allow_redirects=False) as reply:
                address = await self._next(reply, login)
        raise AssertionError(f"too many steps, at {address}")

    async def _next(self, reply: ClientResponse, login: str) -> str:
        if reply.status in (302, 303):
            return urljoin(str(reply.url), reply.headers["location"])
        page = await reply.text()
        prompt = re.search(r'name="prompt" value="(\w+)"', page)
        action = re.search(r'action="([^"]+)"', page)
        assert prompt is not None, (reply.status, page)
        assert action is not None
        form = {"prompt": prompt[1], "login": login, "password": "any"}
        target = urljoin(str(reply.url), action[1])
        async with self.http.post(target, data=form, allow_redirects=False) as done:
            return urljoin(str(done.url), done.headers["location"])

    async def open(self, address: str, accept: str = "*/*") -> tuple[int, str]:
        """Status, and where it leads or the code of the error."""
        headers = {"accept": accept}
        async with self.http.get(address, allow_redirects=False, headers=headers) as reply:
            if "location" in reply.headers:
                return reply.status, reply.headers["location"]
            return reply.status, (await reply.json())["code"]

    async def me(self) -> dict[str, object] | None:
        async with self.http.get(f"{self.url}/api/v1/auth/me") as reply:
            return (await reply.json())["user"] if reply.status == 200 else None

    async def close(self) -> None:
        await self.http.close()
