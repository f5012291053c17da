"""Previews of ports over HTTP, with a real workspace agent and real servers behind it.

The servers of these tests are part of the test process, which the agent can see: it runs under the
same account and without a sandbox.
"""

import asyncio
import hashlib
import socket
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest
from aiohttp import web

from chatd.api.sockets import previews
from chatd.domain.access.shares import MAX_SHARED_PREVIEWS
from chatd.domain.workspace.previews import read_label
from tests.api.workspace_api import WorkspaceApi, end_build, workspace_api
from tests.support.api.accounts import listening_changes
from tests.support.api.server import (
    ME,
    OTHER_OWNER,
    OTHER_USER,
    ApiOptions,
    ApiReply,
    Json,
    authorized,
    message_body,
)
from tests.support.eventually import eventually
from tests.workspaces.agent_process import AGENT, Workbench, running_agent

PAGE = {"sec-fetch-site": "none", "sec-fetch-mode": "navigate"}


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncGenerator[Workbench]:
    async with running_agent(tmp_path) as bench:
        yield bench


LARGE_PIECES = 512
"""32 MiB: more than any buffer on the way."""


class Shown:
    """A server in the workspace. `seen` are the requests that it got."""

    def __init__(self) -> None:
        self.seen: list[web.Request] = []
        self.go_on = asyncio.Event()
        self.port = 0

    async def serve(  # noqa: PLR0912 - a path each
        self, request: web.Request
    ) -> web.StreamResponse:
        self.seen.append(request)
        match request.path:
            case "/upload":
                size = 0
                async for piece in request.content.iter_any():
                    size += len(piece)
                return web.json_response({"size": size})
            case "/large":
                response = web.StreamResponse()
                await response.prepare(request)
                for number in range(LARGE_PIECES):
                    await response.write(bytes([number % 256]) * 65_536)
                return response
            case "/events":
                response = web.StreamResponse(headers={"content-type": "text/event-stream"})
                await response.prepare(request)
                await response.write(b"data: 1\n\n")
                await self.go_on.wait()
                await response.write(b"data: 2\n\n")
                return response
            case "/socket":
                ws = web.WebSocketResponse(protocols=("graph", "chat"))
                await ws.prepare(request)
                async for message in ws:
                    if message.data == "bye":
                        await ws.close(code=4001)
                    else:
                        await ws.send_str(f"you said {message.data}")
                return ws
            case "/away":
                raise web.HTTPFound(f"http://localhost:{self.port}/there?a=1")
            case "/cookies":
                response = web.Response(text="set")
                response.headers.add("set-cookie", "app=1; Domain=example.test; Path=/")
                response.headers.add("set-cookie", "chatd_session=stolen; Path=/")
                for name in ("clear-site-data", "strict-transport-security", "x-frame-options"):
                    response.headers[name] = "x"
                return response
            case _:
                return web.Response(text=f"{request.method} {request.raw_path}")


@pytest.fixture
async def shown() -> AsyncGenerator[Shown]:
    server = Shown()
    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/{path:.*}", server.serve)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.port = runner.addresses[0][1]
    yield server
    server.go_on.set()
    await runner.cleanup()


class Browser:
    """A client that follows no redirect and has the cookies of one preview."""

    def __init__(self, api: WorkspaceApi, made: Json) -> None:
        self.api = api
        self.made = made
        self.host = urlsplit(str(made["origin"])).netloc
        self.cookie = ""

    async def enter(self, url: str | None = None) -> aiohttp.ClientResponse:
        parts = urlsplit(url or str(self.made["url"]))
        reply = await self.get(f"{parts.path}?{parts.query}")
        if found := reply.headers.get("set-cookie"):
            self.cookie = found.split(";")[0]
        return reply

    def headers(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        cookie = {"cookie": f"{self.cookie}; app=mine; chatd_session=secret"}
        return {"host": self.host, **(cookie if self.cookie else {}), **PAGE, **(more or {})}

    async def get(self, path: str, **headers: str) -> aiohttp.ClientResponse:
        return await self.send("GET", path, headers=headers)

    async def send(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        data: object = None,
    ) -> aiohttp.ClientResponse:
        reply = await self.api.server.http.request(
            method, path, headers=self.headers(headers), data=data, allow_redirects=False
        )
        await reply.read()
        return reply


async def workspace_in(api: WorkspaceApi, bench: Workbench) -> str:
    made = await api.make()
    await end_build(api, id=AGENT, endpoints=(bench.process.endpoint(),))
    return str(made["id"])


@pytest.fixture
async def api(dsn: str) -> AsyncGenerator[WorkspaceApi]:
    async with (
        listening_changes(dsn) as changes,
        workspace_api(dsn, ApiOptions(changes=changes)) as api,
    ):
        yield api


@pytest.fixture
async def workspace_id(api: WorkspaceApi, bench: Workbench) -> str:
    return await workspace_in(api, bench)


async def link(api: WorkspaceApi, workspace_id: str, **body: object) -> ApiReply:
    return await api.ask("POST", f"/workspaces/{workspace_id}/previews", body)


@pytest.fixture
async def browser(api: WorkspaceApi, workspace_id: str, shown: Shown) -> Browser:
    made = await link(api, workspace_id, port=shown.port)
    assert made.status == 201, made.content
    browser = Browser(api, made.json)
    entered = await browser.enter()
    assert entered.status == 303, await entered.text()
    return browser


async def test_listening_ports_are_listed_with_their_commands(
    api: WorkspaceApi, workspace_id: str, shown: Shown
) -> None:
    found = await api.ask("GET", f"/workspaces/{workspace_id}/ports")
    ports = {each["port"]: str(each["command"]) for each in found.items}
    assert "pytest" in ports[shown.port], ports


async def test_a_link_opens_a_preview_once_and_its_ticket_is_none_of_the_api(
    api: WorkspaceApi, workspace_id: str, shown: Shown
) -> None:
    made = (await link(api, workspace_id, port=shown.port, path="/a?b=1")).json
    browser = Browser(api, made)
    target = read_label(browser.host.split(".")[0])
    assert target is not None
    assert (str(target.workspace_id), target.port) == (workspace_id, shown.port)
    ticket = str(made["url"]).split("ticket=")[1].split("&")[0]
    stream = await api.ask("GET", f"/chats/events?ticket={ticket}", token=None)
    assert stream.status in (401, 404)
    before = await browser.get("/")
    assert before.status == 401
    first = await browser.enter()
    assert (first.status, first.headers["location"]) == (303, "/a?b=1")
    cookie = first.headers["set-cookie"]
    for word in ("HttpOnly", "Path=/", "Secure", "SameSite=None", "Partitioned"):
        assert word in cookie
    assert "omain" not in cookie
    assert (await Browser(api, made).enter()).status == 401
    shown_page = await browser.get("/a%2Fb?x=%20y")
    assert (shown_page.status, await shown_page.text()) == (200, "GET /a%2Fb?x=%20y")
    for path in ("//evil.test/", "/\\evil.test", "https://evil.test/", "x"):
        made = (await link(api, workspace_id, port=shown.port, path=path)).json
        assert (await Browser(api, made).enter()).headers["location"] == "/"


async def test_nothing_of_the_viewer_reaches_the_workspace_and_nothing_of_it_other_hosts(
    browser: Browser, shown: Shown
) -> None:
    own = str(browser.made["origin"])
    given = {
        "authorization": "Bearer secret",
        "x-forwarded-user": "ada",
        "x-auth-request-email": "ada@example.test",
        "proxy-authorization": "Basic x",
        "origin": own,
        "referer": f"{own}/page",
        "sec-fetch-site": "same-origin",
    }
    assert (await browser.send("POST", "/form", headers=given, data=b"x")).status == 200
    [request] = shown.seen
    inner = f"localhost:{shown.port}"
    assert request.headers["host"] == inner
    assert request.headers["origin"] == f"http://{inner}"
    assert request.headers["referer"] == f"http://{inner}/page"
    assert request.headers["cookie"] == "app=mine"
    assert request.headers["x-forwarded-host"] == browser.host
    named = {name.lower() for name in request.headers}
    assert not named & (given.keys() - {"origin", "referer", "sec-fetch-site"})
    reply = await browser.get("/cookies")
    assert reply.headers.getall("set-cookie") == ["app=1; Path=/"]
    gone = {"clear-site-data", "strict-transport-security", "x-frame-options"}
    assert not gone & {name.lower() for name in reply.headers}
    assert "frame-ancestors 'self' http://localhost" in reply.headers["content-security-policy"]
    away = await browser.get("/away")
    assert away.headers["location"] == f"{own}/there?a=1"


async def test_bodies_pass_both_ways_and_events_as_they_come(
    browser: Browser, shown: Shown
) -> None:
    async def pieces() -> AsyncGenerator[bytes]:
        for _ in range(40):
            yield b"x" * 65_536

    sent = await browser.send("PUT", "/upload", data=pieces())
    assert await sent.json() == {"size": 40 * 65_536}
    http, found = browser.api.server.http, hashlib.sha256()
    async with http.get("/large", headers=browser.headers()) as large:
        async for piece in large.content.iter_any():
            found.update(piece)
    wanted = hashlib.sha256()
    for number in range(LARGE_PIECES):
        wanted.update(bytes([number % 256]) * 65_536)
    assert found.digest() == wanted.digest()
    async with http.get("/events", headers=browser.headers()) as events:
        assert await events.content.readuntil(b"\n\n") == b"data: 1\n\n"
        shown.go_on.set()
        assert await events.content.readuntil(b"\n\n") == b"data: 2\n\n"


async def test_a_viewer_that_leaves_ends_the_exchange_in_the_workspace(
    api: WorkspaceApi, workspace_id: str
) -> None:
    ended = asyncio.Event()

    async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nfirst\n")
        await reader.read()
        ended.set()
        writer.close()

    async with await asyncio.start_server(stream, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        viewer = Browser(api, (await link(api, workspace_id, port=port)).json)
        await viewer.enter()
        reply = await api.server.http.get("/", headers=viewer.headers())
        assert await reply.content.readline() == b"first\n"
        reply.close()
        async with asyncio.timeout(20):
            await ended.wait()


async def test_websockets_pass_with_their_subprotocol_and_close_code(
    browser: Browser, shown: Shown
) -> None:
    headers = browser.headers({"origin": str(browser.made["origin"])})
    http = browser.api.server.http
    async with http.ws_connect("/socket", headers=headers, protocols=("chat",)) as ws:
        assert ws.protocol == "chat"
        await ws.send_str("hello")
        assert (await ws.receive_str(timeout=20)) == "you said hello"
        await ws.send_str("bye")
        assert (await ws.receive(timeout=20)).data == 4001
    assert shown.seen[0].headers["origin"] == f"http://localhost:{shown.port}"
    for wrong in ({"origin": "http://evil.test"}, {"cookie": ""}):
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await http.ws_connect("/socket", headers=browser.headers() | wrong)
        assert refused.value.status in (401, 403)


OTHER_SITES: list[tuple[str, dict[str, str], int]] = [
    ("GET", {"sec-fetch-site": "same-site", "sec-fetch-mode": "navigate"}, 200),
    ("GET", {"sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors"}, 403),
    ("GET", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"}, 403),
    ("POST", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, 403),
    ("POST", {"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}, 200),
    ("TRACE", {}, 405),
]


async def test_pages_of_other_sites_may_only_link_to_a_preview(browser: Browser) -> None:
    for method, headers, status in OTHER_SITES:
        assert (await browser.send(method, "/", headers=headers)).status == status, headers


async def test_a_preview_host_serves_no_api_and_the_api_takes_no_unknown_host(
    browser: Browser, shown: Shown
) -> None:
    api = await browser.get("/api/v1/chats", **authorized(ME))
    assert (api.status, await api.text()) == (200, "GET /api/v1/chats")
    other = browser.host.replace(str(shown.port), str(shown.port ^ 1), 1)
    assert (await browser.get("/", host=other)).status == 401  # a cookie of another port
    for host in (browser.host.replace("localhost", "evil.test"), "evil.test"):
        refused = await browser.get("/api/v1/chats", host=host)
        assert (await refused.json())["code"] in ("host_not_allowed", "unauthorized")
    session = await browser.get("/", cookie="chatd_session=secret")
    assert session.status == 401


async def test_a_preview_says_what_is_wrong_in_plain_words(
    api: WorkspaceApi, browser: Browser, workspace_id: str, bench: Workbench
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        made = (await link(api, workspace_id, port=free.getsockname()[1])).json
        nothing = Browser(api, made)
        await nothing.enter()
        reply = await nothing.get("/")
        assert reply.status == 502
        assert "Nothing in the workspace listens on port" in await reply.text()

    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example.test ESMTP\r\n" * 10)
        writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        mail = Browser(api, (await link(api, workspace_id, port=port)).json)
        await mail.enter()
        reply = await mail.get("/")
        assert (reply.status, "is not HTTP" in await reply.text()) == (502, True)
    stopped = await api.build({"id": workspace_id}, "stop")
    assert stopped.status == 201, stopped.content
    await end_build(api)
    bench.process.end()
    reply = await browser.get("/")
    assert (reply.status, "does not run" in await reply.text()) == (502, True)
    found = await api.ask("DELETE", f"/workspaces/{workspace_id}")
    assert found.status in (200, 202, 204)


async def test_bodies_requests_at_once_and_slow_bodies_are_bounded(
    browser: Browser, shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(previews, "MAX_PREVIEW_BODY_BYTES", 1000)
    monkeypatch.setattr(previews, "PREVIEW_BODY_IDLE_TIMEOUT_S", 0.2)
    monkeypatch.setattr(previews, "MAX_PREVIEW_EXCHANGES", 1)

    async def huge() -> AsyncGenerator[bytes]:
        for _ in range(4):
            yield b"x" * 600

    async def slow() -> AsyncGenerator[bytes]:
        yield b"x"
        await shown.go_on.wait()

    assert (await browser.send("PUT", "/upload", data=b"x" * 2000)).status == 413
    assert (await browser.send("PUT", "/upload", data=huge())).status == 413
    assert (await browser.send("PUT", "/upload", data=slow())).status == 408
    async with browser.api.server.http.get("/events", headers=browser.headers()) as events:
        await events.content.readuntil(b"\n\n")
        assert (await browser.get("/")).status == 503


async def test_a_preview_ends_with_the_credential_and_belongs_to_the_owner(
    api: WorkspaceApi, workspace_id: str, shown: Shown
) -> None:
    for path in ("ports", "previews"):
        method, body = ("GET", None) if path == "ports" else ("POST", {"port": shown.port})
        other = await api.ask(method, f"/workspaces/{workspace_id}/{path}", body, token=OTHER_USER)
        assert other.status == 404
    token = (await api.ask("POST", "/auth/tokens", {"name": "cli"})).json
    made = await api.ask(
        "POST",
        f"/workspaces/{workspace_id}/previews",
        {"port": shown.port},
        token=str(token["token"]),
    )
    browser = Browser(api, made.json)
    await browser.enter()
    assert (await browser.get("/")).status == 200
    revoked = await api.ask("DELETE", f"/auth/tokens/{token['id']}")
    assert revoked.status in (200, 204), revoked.content

    async def is_refused() -> bool:
        return (await browser.get("/")).status == 401

    await eventually(is_refused)


async def test_readers_see_a_preview_that_the_owner_shares_until_it_is_revoked(
    api: WorkspaceApi, workspace_id: str, shown: Shown
) -> None:
    made = await api.ask("POST", "/chats", message_body("hi", workspace_id=workspace_id))
    path = f"/chats/{made.json['id']}"
    mine = {"port": shown.port, "path": "/"}

    async def read_link() -> ApiReply:
        route = f"/workspaces/{workspace_id}/previews"
        return await api.ask("POST", route, mine, token=OTHER_USER)

    async def share(*, shared: bool, port: int = shown.port, token: str = ME) -> ApiReply:
        body = {"port": port, "shared": shared}
        return await api.ask("PATCH", f"{path}/previews", body, token=token)

    assert (await share(shared=True)).json["ports"] == [shown.port]
    assert (await read_link()).status == 404  # not a reader
    await api.ask("PATCH", f"{path}/acl", {"user_roles": {str(OTHER_OWNER): "read"}})
    assert (await share(shared=False)).json["ports"] == []
    assert (await read_link()).status == 404  # a reader, and it is not shared
    assert (await share(shared=True, token=OTHER_USER)).status == 403
    await share(shared=True)
    found = await api.ask("GET", f"{path}/previews", token=OTHER_USER)
    assert (found.json["ports"], found.json["workspace_id"]) == ([shown.port], workspace_id)
    link = await read_link()
    assert link.status == 201, link.content
    browser = Browser(api, link.json)
    await browser.enter()
    assert (await browser.get("/")).status == 200
    # No other port, no list of ports, nothing of the viewer.
    mine["port"] = shown.port + 1
    assert (await read_link()).status == 404
    ports = await api.ask("GET", f"/workspaces/{workspace_id}/ports", token=OTHER_USER)
    assert ports.status == 404
    await share(shared=False)

    async def is_refused() -> bool:
        return (await browser.get("/")).status == 401

    await eventually(is_refused)
    for port in range(1, MAX_SHARED_PREVIEWS + 1):
        assert (await share(shared=True, port=port)).status == 200
    full = await share(shared=True, port=4000)
    assert (full.status, full.json["code"]) == (409, "too_many_previews")


async def test_a_preview_reaches_the_address_that_listens_and_no_other(
    api: WorkspaceApi, workspace_id: str
) -> None:
    """Another program of the machine may have the same port at 127.0.0.1."""
    server = await asyncio.start_server(greet, "127.0.0.2", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        browser = Browser(api, (await link(api, workspace_id, port=port)).json)
        await browser.enter()
        assert await (await browser.get("/")).text() == "from 127.0.0.2"


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    body = f"from {writer.get_extra_info('sockname')[0]}".encode()
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    writer.close()


async def test_an_open_socket_of_a_preview_ends_with_the_credential(
    api: WorkspaceApi, workspace_id: str, shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(previews, "ACCESS_CACHE_S", 0.05)
    token = (await api.ask("POST", "/auth/tokens", {"name": "cli"})).json
    made = await api.ask(
        "POST",
        f"/workspaces/{workspace_id}/previews",
        {"port": shown.port},
        token=str(token["token"]),
    )
    browser = Browser(api, made.json)
    await browser.enter()
    headers = browser.headers({"origin": str(made.json["origin"])})
    async with api.server.http.ws_connect("/socket", headers=headers) as ws:
        await ws.send_str("hello")
        assert (await ws.receive_str(timeout=20)) == "you said hello"
        await api.ask("DELETE", f"/auth/tokens/{token['id']}")
        assert (await ws.receive(timeout=20)).type in (
            aiohttp.WSMsgType.CLOSE,
            aiohttp.WSMsgType.CLOSED,
        )
