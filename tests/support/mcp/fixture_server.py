"""Servers for the conformance program, which sends no token: every request is that of one user.

Everything else of a request stays as it is.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry

from chatd.api.mcp.endpoint import mount_mcp
from chatd.api.request import Receive, Scope, Send
from chatd.api.route import ApiMetrics, ServeExchange
from chatd.api.streams import AccessChecks, StreamRegistry
from tests.support.api.server import ME, ApiServer, listening
from tests.support.mcp.fixture_tools import FixtureResources, FixtureTools


class SignedIn:
    """An ASGI application that adds the token of a user to every request."""

    def __init__(self, serve: ServeExchange) -> None:
        self._serve = serve

    async def close(self) -> None:
        """Nothing here stays open."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        token = (b"authorization", f"Bearer {ME}".encode())
        await self._serve({**scope, "headers": [*scope["headers"], token]}, receive, send)


@asynccontextmanager
async def serving_chats(server: ApiServer) -> AsyncGenerator[str]:
    """The URL of `/mcp` with the tools of chatd."""
    async with listening(SignedIn(server.api)) as bound:
        yield f"{bound.url}/mcp"


@asynccontextmanager
async def serving_fixture(server: ApiServer) -> AsyncGenerator[str]:
    """The URL of `/mcp` with the tools and resources that the scenarios expect."""
    deps = server.deps
    metrics = ApiMetrics(CollectorRegistry())
    registry = StreamRegistry(
        AccessChecks(deps.pool, deps.env), deps.limits, metrics, deps.accounts.changes
    )
    route = mount_mcp(deps, FixtureTools(), FixtureResources(), registry)
    async with listening(SignedIn(route.serve)) as bound:
        yield f"{bound.url}/mcp"
