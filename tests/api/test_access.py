"""What an administrator and a reader of a share may do with another user's chat."""

import pytest

from chatd.domain.access.permissions import ADMIN_USER_ID
from chatd.domain.ids import ChatId
from tests.support.api.server import (
    ADMINISTRATOR,
    OTHER_OWNER,
    OTHER_USER,
    ApiServer,
    message_body,
)


async def recorded_reads(server: ApiServer) -> list[tuple[object, object]]:
    rows = await server.replica.pool.fetch(
        "SELECT actor_id, object_id FROM audit_log WHERE action = 'chat.read' ORDER BY id"
    )
    return [(row["actor_id"], row["object_id"]) for row in rows]


async def share(server: ApiServer, chat_id: ChatId) -> None:
    await server.replica.pool.execute(
        "INSERT INTO chat_shares (chat_id, user_id) VALUES ($1, $2)", chat_id, OTHER_OWNER
    )


@pytest.mark.promise("P12")
async def test_an_administrator_reads_and_stops_another_users_chat_and_writes_nothing_to_it(
    server: ApiServer,
) -> None:
    path = f"/chats/{await server.create()}"
    assert (await server.ask("GET", path, token=ADMINISTRATOR)).status == 200
    assert (await server.ask("GET", f"{path}/messages", token=ADMINISTRATOR)).status == 200
    for method, where, body in (
        ("POST", f"{path}/messages", message_body("mine")),
        ("PATCH", path, {"title": "Mine"}),
        ("PATCH", path, {"title": "Mine", "archived": True}),
        ("POST", f"{path}/title/propose", None),
    ):
        refused = await server.ask(method, where, body, token=ADMINISTRATOR)
        assert refused.code == (403, "forbidden"), where
    assert (await server.ask("POST", f"{path}/interrupt", token=ADMINISTRATOR)).status == 200
    archived = await server.ask("PATCH", path, {"archived": True}, token=ADMINISTRATOR)
    assert archived.status == 200
    assert (await server.ask("DELETE", path, token=ADMINISTRATOR)).status == 204


async def test_a_read_by_the_role_is_recorded_and_a_read_of_the_owner_is_not(
    server: ApiServer,
) -> None:
    chat_id = await server.create()
    for where in (f"/chats/{chat_id}", f"/chats/{chat_id}/messages", f"/chats/{chat_id}/queue"):
        await server.ask("GET", where)
    assert await recorded_reads(server) == []
    for where in (f"/chats/{chat_id}", f"/chats/{chat_id}/messages", f"/chats/{chat_id}/queue"):
        await server.ask("GET", where, token=ADMINISTRATOR)
    assert await recorded_reads(server) == [(ADMIN_USER_ID, str(chat_id))] * 3


@pytest.mark.promise("P12")
async def test_a_reader_of_a_share_reads_the_chat_and_changes_nothing(server: ApiServer) -> None:
    chat_id = await server.create()
    path = f"/chats/{chat_id}"
    assert (await server.ask("GET", path, token=OTHER_USER)).status == 404
    await share(server, chat_id)
    for where in (path, f"{path}/messages", f"{path}/queue"):
        assert (await server.ask("GET", where, token=OTHER_USER)).status == 200, where
    for method, where, body in (
        ("POST", f"{path}/messages", message_body("mine")),
        ("POST", f"{path}/interrupt", None),
        ("PATCH", path, {"archived": True}),
        ("DELETE", path, None),
    ):
        refused = await server.ask(method, where, body, token=OTHER_USER)
        assert refused.code == (403, "forbidden"), where
    assert await recorded_reads(server) == []
