"""Users that connect to MCP servers over the API, each with the cookies of a browser."""

from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from http.cookies import SimpleCookie
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from tests.support.api.server import ADMINISTRATOR, ME, ApiReply, ApiServer, Json, authorized
from tests.support.mcp.authorization_server import AuthorizationServer, plain_resource

HTML = {"accept": "text/html,application/xhtml+xml"}


async def add_server(server: ApiServer, url: str, **fields: object) -> str:
    """A server with OAuth, unless the fields say otherwise; its id."""
    body = {"slug": "notes", "url": url, "auth": "oauth2", **fields}
    made = await server.ask("POST", "/mcp-server-configs", body, token=ADMINISTRATOR)
    assert made.status == 201, made.content
    return str(made.json["id"])


@asynccontextmanager
async def prepared(server: ApiServer, authorization: AuthorizationServer) -> AsyncGenerator[str]:
    """A configured server with OAuth."""
    async with plain_resource(authorization) as url:
        yield await add_server(server, url)


class Page(Struct, frozen=True, kw_only=True):
    """What a browser shows."""

    status: int
    text: str
    headers: Mapping[str, str]


class Browser:
    """One user's."""

    def __init__(self, server: ApiServer, token: str = ME) -> None:
        self._server = server
        self._token = token
        self.cookies: dict[str, str] = {}

    async def start(self, server_id: str) -> ApiReply:
        path = f"/mcp-servers/{server_id}/connect"
        reply = await self._server.ask("POST", path, token=self._token, headers=self._sent())
        self._keep(reply.set_cookies)
        return reply

    async def come_back(self, url: str) -> Page:
        """To the address at which the authorization server sends the browser."""
        pieces = urlsplit(url)
        headers = {**authorized(self._token), **HTML, **self._sent()}
        address = f"{pieces.path}?{pieces.query}"
        async with self._server.http.get(address, headers=headers) as reply:
            self._keep(reply.headers.getall("set-cookie", []))
            found = {name.lower(): value for name, value in reply.headers.items()}
            return Page(status=reply.status, text=await reply.text(), headers=found)

    async def leave(self, server_id: str, authorization: AuthorizationServer) -> str:
        """Begin and consent: the address to come back to."""
        started = await self.start(server_id)
        assert started.status == 200, started.content
        return await authorization.consent(str(started.json["authorization_url"]))

    async def connect(self, server_id: str, authorization: AuthorizationServer) -> Page:
        return await self.come_back(await self.leave(server_id, authorization))

    async def connection(self, server_id: str) -> Json:
        found = await self._server.ask("GET", "/mcp-servers", token=self._token)
        one = next(item for item in found.items if item["id"] == server_id)
        return msgspec.convert(one["connection"], Json)

    async def disconnect(self, server_id: str) -> ApiReply:
        path = f"/mcp-servers/{server_id}/connection"
        return await self._server.ask("DELETE", path, token=self._token)

    def _sent(self) -> dict[str, str]:
        if not self.cookies:
            return {}
        return {"cookie": "; ".join(f"{name}={value}" for name, value in self.cookies.items())}

    def _keep(self, cookies: Iterable[str]) -> None:
        for text in cookies:
            for name, morsel in SimpleCookie(text).items():
                if morsel["max-age"] == "0":
                    self.cookies.pop(name, None)
                else:
                    self.cookies[name] = morsel.value
