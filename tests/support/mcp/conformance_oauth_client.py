"""A user of chatd's API as a program for the conformance scenarios of OAuth: it configures the
scenario's server, connects to it as a browser would, and lists its tools.

Arguments: the URL of the API, a token of an administrator, and the URL of the scenario's server.
"""

import asyncio
import os
import sys
from typing import Any

import aiohttp
import msgspec
from yarl import URL


class Visitor:
    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http

    async def ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        async with self._http.request(method, f"/api/v1{path}", json=body) as reply:
            text = await reply.text()
            if reply.status >= 300:
                sys.exit(f"{method} {path}: {reply.status} {text}")
            return msgspec.json.decode(text)

    async def connect(self, server_id: str) -> None:
        started = await self.ask("POST", f"/mcp-servers/{server_id}/connect")
        address = URL(started["authorization_url"], encoded=True)
        async with (
            aiohttp.ClientSession() as browser,
            browser.get(address, allow_redirects=False) as reply,
        ):
            back = URL(reply.headers["location"], encoded=True)
        async with self._http.get(str(back.relative())) as reply:
            if reply.status != 200:
                sys.exit(f"the callback: {reply.status} {await reply.text()}")


async def oauth_setup(url: str) -> dict[str, object]:
    """A client that the scenario has registered already, as an administrator would enter it."""
    context = msgspec.json.decode(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    if "client_id" not in context:
        return {}
    async with aiohttp.ClientSession() as http:
        resource = f"{URL(url).origin()}/.well-known/oauth-protected-resource{URL(url).path}"
        async with http.get(resource) as reply:
            issuer = (await reply.json())["authorization_servers"][0]
        async with http.get(f"{issuer}/.well-known/oauth-authorization-server") as reply:
            found = await reply.json()
    return {
        "oauth": {
            "client_id": context["client_id"],
            "client_secret": context["client_secret"],
            "authorization_url": found["authorization_endpoint"],
            "token_url": found["token_endpoint"],
        }
    }


async def main(api: str, token: str, url: str) -> None:
    headers = {"authorization": f"Bearer {token}", "accept": "text/html,application/json"}
    jar = aiohttp.CookieJar(unsafe=True)
    async with aiohttp.ClientSession(api, headers=headers, cookie_jar=jar) as http:
        visitor = Visitor(http)
        body = {"slug": f"s{URL(url).port}", "url": url, "auth": "oauth2", **await oauth_setup(url)}
        server_id = (await visitor.ask("POST", "/mcp-server-configs", body))["id"]
        await visitor.connect(server_id)
        tried = await visitor.ask("POST", f"/mcp-server-configs/{server_id}/test")
        sys.stderr.write(f"{tried}\n")
        sys.exit(0 if tried.get("ok", not tried.get("problem")) else 1)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
