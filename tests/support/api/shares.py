"""Share chats over HTTP: `ME` owns them, and `OTHER_USER` reads them."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from tests.support.api.accounts import listening_changes
from tests.support.api.server import (
    ADMINISTRATOR,
    ME,
    OTHER_OWNER,
    ApiOptions,
    ApiReply,
    ApiServer,
    serve_api,
)
from tests.support.stream_replica import HintNetwork

READER: Final = str(OTHER_OWNER)


async def share(
    server: ApiServer, chat_id: object, role: str | None = "read", token: str = ME
) -> ApiReply:
    return await server.ask(
        "PATCH", f"/chats/{chat_id}/acl", {"user_roles": {READER: role}}, token=token
    )


async def create_group(server: ApiServer, *members: str, name: str = "Readers") -> str:
    made = await server.ask("POST", "/groups", {"name": name}, token=ADMINISTRATOR)
    group = str(made.json["id"])
    for member in members:
        path = f"/groups/{group}/members/{member}"
        assert (await server.ask("PUT", path, token=ADMINISTRATOR)).status == 200
    return group


async def set_sharing(server: ApiServer, *, enabled: bool) -> None:
    body = {"sharing_enabled": enabled}
    changed = await server.ask("PATCH", "/settings", body, token=ADMINISTRATOR)
    assert changed.status == 200
    assert changed.json["sharing_enabled"] is enabled


@asynccontextmanager
async def two_replicas(dsn: str) -> AsyncGenerator[tuple[ApiServer, ApiServer]]:
    """They hear each other's changes and hints."""
    network = HintNetwork()
    async with (
        listening_changes(dsn) as changes,
        listening_changes(dsn) as other_changes,
        serve_api(dsn, ApiOptions(changes=changes, network=network)) as server,
        serve_api(dsn, ApiOptions(changes=other_changes, network=network)) as other,
        asyncio.timeout(50),
    ):
        yield server, other
