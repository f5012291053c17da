"""Images of the web over HTTP: fetched by the server for a reader who asks, from public addresses
only, and nothing but an image is handed on."""

import asyncio
import gzip
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from chatd.api.deps import WebImageHosts
from chatd.api.routes.chat.web_images import (
    MAX_WEB_IMAGE_BYTES,
    MAX_WEB_IMAGE_REDIRECTS,
    WEB_IMAGES_AT_ONCE_PER_USER,
    WEB_IMAGES_PER_MINUTE,
    read_image_url,
)
from chatd.domain.errors import InvalidInput
from tests.support.api.server import ME, OTHER_USER, ApiOptions, ApiReply, ApiServer, serve_api
from tests.support.sample_files import PNG

ALL = ApiOptions(web_images="all")


class ImageHost:
    """A host of the web, and what it was asked."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[web.Request] = []
        self.gate = asyncio.Event()
        self.all_held = asyncio.Event()
        self._held = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request)
        match request.path:
            case "/dot.png":
                # What the host says of the type does not count.
                return web.Response(body=PNG, content_type="text/html")
            case "/page":
                return web.Response(text="<script>1</script>", content_type="image/png")
            case "/drawing.svg":
                return web.Response(text="<svg/>", content_type="image/svg+xml")
            case "/large":
                return web.Response(body=PNG + bytes(MAX_WEB_IMAGE_BYTES))
            case "/once":
                raise web.HTTPFound("/dot.png")
            case "/to-file":
                raise web.HTTPFound("file:///etc/passwd")
            case "/to-user":
                raise web.HTTPFound(f"http://user:word@{request.host}/dot.png")
            case "/compressed":
                body = gzip.compress(PNG)
                return web.Response(body=body, headers={"content-encoding": "gzip"})
            case "/loop":
                raise web.HTTPFound("/loop")
            case "/held":
                self._held += 1
                if self._held == WEB_IMAGES_AT_ONCE_PER_USER:
                    self.all_held.set()
                await self.gate.wait()
                return web.Response(body=PNG)
            case _:
                raise web.HTTPNotFound


@asynccontextmanager
async def image_host() -> AsyncGenerator[ImageHost]:
    host, app = ImageHost(), web.Application()
    app.router.add_route("*", "/{name:.*}", host.answer)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        port = runner.addresses[0][1]
        host.url = f"http://127.0.0.1:{port}"
        yield host
    finally:
        host.gate.set()
        await runner.cleanup()


async def load(server: ApiServer, chat_id: object, url: str, token: str | None = ME) -> ApiReply:
    return await server.ask("POST", f"/chats/{chat_id}/web-images", {"url": url}, token=token)


@pytest.mark.parametrize("path", ["/dot.png", "/once"])
async def test_the_bytes_of_an_image_come_and_nothing_of_the_reader_goes(
    dsn: str, path: str
) -> None:
    async with serve_api(dsn, ALL) as server, image_host() as host:
        chat_id = await server.create()
        found = await load(server, chat_id, host.url + path)
        assert (found.status, found.content) == (200, PNG)
        assert found.headers["content-type"] == "image/png"
        assert found.headers["x-content-type-options"] == "nosniff"
        assert "sandbox" in found.headers["content-security-policy"]
        assert found.headers["cache-control"] == "no-store"
        for asked in host.asked:
            sent = {name.lower() for name in asked.headers}
            assert sent <= {"host", "accept", "accept-encoding", "connection", "user-agent"}
            assert asked.headers["user-agent"] == "chatd"


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/page", "did not send a PNG, JPEG, GIF or WebP image"),
        ("/drawing.svg", "did not send a PNG, JPEG, GIF or WebP image"),
        ("/large", "has more than 8 MiB"),
        ("/loop", "redirects too often"),
        ("/to-file", "which is refused"),
        ("/to-user", "which is refused"),
        ("/compressed", "sent the image compressed"),
        ("/nothing", "answered with the status 404"),
    ],
)
async def test_what_is_no_image_is_not_handed_on(dsn: str, path: str, reason: str) -> None:
    async with serve_api(dsn, ALL) as server, image_host() as host:
        chat_id = await server.create()
        found = await load(server, chat_id, host.url + path)
        assert found.code == (409, "web_image_failed")
        assert reason in str(found.json["message"])
        assert len(host.asked) <= MAX_WEB_IMAGE_REDIRECTS + 1


@pytest.mark.promise("P13")
async def test_private_addresses_are_not_reached_unless_the_operator_allows_it(dsn: str) -> None:
    async with serve_api(dsn) as server, image_host() as host:
        chat_id = await server.create()
        found = await load(server, chat_id, f"{host.url}/dot.png")
        assert found.code == (400, "invalid_input")
        for name in ("127.0.0.1", "localhost", "[::1]", "169.254.169.254", "10.0.0.1", "0.0.0.0"):
            found = await load(server, chat_id, f"http://{name}/dot.png")
            assert found.code == (409, "web_image_failed"), name
        assert host.asked == []


async def test_the_operator_turns_it_off(dsn: str) -> None:
    async with serve_api(dsn, ApiOptions(web_images="off")) as server, image_host() as host:
        found = await load(server, await server.create(), f"{host.url}/dot.png")
        assert found.code == (403, "web_images_off")
        assert host.asked == []


@pytest.mark.promise("P12")
async def test_only_readers_of_the_chat_load_images(dsn: str) -> None:
    async with serve_api(dsn, ALL) as server, image_host() as host:
        chat_id = await server.create()
        found = await load(server, chat_id, f"{host.url}/dot.png", OTHER_USER)
        assert found.status == 404
        assert (await load(server, chat_id, f"{host.url}/dot.png", None)).status == 401
        assert host.asked == []


async def test_a_user_loads_so_many_at_once_and_in_a_minute(dsn: str) -> None:
    async with serve_api(dsn, ALL) as server, image_host() as host:
        chat_id = await server.create()
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            held = [
                group.create_task(load(server, chat_id, f"{host.url}/held"))
                for _ in range(WEB_IMAGES_AT_ONCE_PER_USER)
            ]
            await host.all_held.wait()
            more = await load(server, chat_id, f"{host.url}/dot.png")
            assert more.code == (429, "rate_limited")
            host.gate.set()
        assert [task.result().status for task in held] == [200] * WEB_IMAGES_AT_ONCE_PER_USER
        for _ in range(WEB_IMAGES_PER_MINUTE):
            found = await load(server, chat_id, f"{host.url}/nothing")
            if found.status == 429:
                break
        else:
            pytest.fail("There is no limit.")


@pytest.mark.parametrize(
    ("url", "hosts", "is_taken"),
    [
        ("https://example.com/a.png?b=1", "public", True),
        ("http://example.com:80/a.png", "public", True),
        ("https://example.com:8443/a.png", "public", False),
        ("https://example.com:8443/a.png", "all", True),
        ("ftp://example.com/a.png", "all", False),
        ("file:///etc/passwd", "all", False),
        ("data:image/png;base64,AA==", "all", False),
        ("//example.com/a.png", "all", False),
        ("https://user:word@example.com/a.png", "all", False),
        ("https://", "all", False),
        ("http://[::1/a.png", "all", False),
        ("http://example.com:99999/a.png", "all", False),
    ],
)
def test_which_addresses_are_asked(url: str, hosts: WebImageHosts, *, is_taken: bool) -> None:
    if is_taken:
        assert read_image_url(url, hosts).geturl() == url
    else:
        with pytest.raises(InvalidInput):
            read_image_url(url, hosts)
