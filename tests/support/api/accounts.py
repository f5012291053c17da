"""Users, browsers and listeners for tests of accounts."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Final

from chatd.clock import SystemClock
from chatd.domain.deployment.config_change import ConfigChange
from chatd.store.database.conn import ConnectConfig
from chatd.store.database.notifications import ConfigChanges, HintListener, ListenConfig
from tests.support.api.server import ADMINISTRATOR, ApiReply, ApiServer, Json

PASSWORD: Final = "correct horse battery"


@asynccontextmanager
async def listening_changes(dsn: str) -> AsyncGenerator[ConfigChanges]:
    """What a replica hears of changes, from a real listener."""
    changes, connected = ConfigChanges(), asyncio.Event()

    def on_change(change: ConfigChange | None) -> None:
        if change is None:
            connected.set()

    changes.subscribe(on_change)
    listener = HintListener(
        ListenConfig(connect=ConnectConfig(dsn=dsn)),
        SystemClock(),
        on_hint=lambda _hint: None,
        on_connected=lambda: None,
        config_changes=changes,
    )
    async with asyncio.TaskGroup() as group:
        task = group.create_task(listener.run())
        async with asyncio.timeout(10):
            await connected.wait()
        yield changes
        task.cancel()


def hears(changes: ConfigChanges, kind: str) -> asyncio.Event:
    """Set at the next change of this kind, after all who subscribed before have heard it."""
    heard = asyncio.Event()

    def on_change(change: ConfigChange | None) -> None:
        if change is not None and change.kind == kind:
            heard.set()

    changes.subscribe(on_change)
    return heard


async def create_user(server: ApiServer, username: str = "ada", **fields: object) -> Json:
    body = {"username": username, **fields}
    if not fields.get("is_service"):
        body.setdefault("password", PASSWORD)
    made = await server.ask("POST", "/users", body, token=ADMINISTRATOR)
    assert made.status == 201, made.content
    return made.json


async def create_token(browser: "Browser", **fields: object) -> Json:
    made = await browser.ask("POST", "/auth/tokens", {"name": "a job", **fields})
    assert made.status == 201, made.content
    return made.json


class Browser:
    """Keeps a cookie and a CSRF token, and sends what a page of this server sends."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self.cookies: dict[str, str] = {}
        self.csrf_token: str | None = None

    @property
    def cookie(self) -> str | None:
        """The value of a Cookie header."""
        return "; ".join(f"{name}={value}" for name, value in self.cookies.items()) or None

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    async def sign_in(self, username: str = "ada", password: str = PASSWORD) -> "Browser":
        reply = await self.ask("POST", "/auth/login", {"username": username, "password": password})
        assert reply.status == 200, reply.content
        return self

    async def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        headers: Mapping[str, str | None] | None = None,
        at: ApiServer | None = None,
    ) -> ApiReply:
        """A header of None is left out. `at` is another replica."""
        sent: dict[str, str | None] = {"Origin": self.origin, "X-CSRF-Token": self.csrf_token}
        sent |= {"Cookie": self.cookie} | dict(headers or {})
        present = {name: value for name, value in sent.items() if value is not None}
        reply = await (at or self.server).ask(method, path, body, token=None, headers=present)
        for cookie in reply.set_cookies:
            name, _, value = cookie.partition(";")[0].partition("=")
            self.cookies[name] = value
        if reply.status == 200 and path in ("/auth/login", "/auth/link"):
            self.csrf_token = str(reply.json["csrf_token"])
        return reply
