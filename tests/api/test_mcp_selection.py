"""The MCP servers of a chat: chosen when it is created, changed and sent to, kept by copies."""

from collections.abc import Sequence
from uuid import UUID

import msgspec

from chatd.domain.ids import ChatId
from chatd.store.chat import chats
from chatd.store.deployment import mcp_servers
from tests.support.api.server import OTHER_USER, ApiServer, message_body
from tests.support.factories import HARNESS
from tests.support.mcp_servers import insert_mcp_server, mcp_server_id
from tests.support.outcomes import present

ONE, TWO, GONE, UNKNOWN = (str(mcp_server_id(number)) for number in (1, 2, 3, 9))


async def prepare(server: ApiServer) -> None:
    pool = server.replica.pool
    for number in (1, 2, 3):
        await insert_mcp_server(pool, number)
    async with pool.transaction() as session:
        await mcp_servers.delete(session, mcp_server_id(3))


async def chosen(server: ApiServer, chat: object) -> Sequence[str] | None:
    row = present(await chats.get(server.replica.pool, HARNESS, ChatId(UUID(str(chat)))))
    return None if row.mcp_server_ids is None else [str(one) for one in row.mcp_server_ids]


async def test_a_chat_is_created_with_the_servers_that_were_chosen(server: ApiServer) -> None:
    await prepare(server)
    body = {**message_body("hi"), "mcp_server_ids": [TWO, ONE, TWO, GONE]}
    made = await server.ask("POST", "/chats", body)
    assert (made.status, made.json["mcp_server_ids"]) == (201, [TWO, ONE]), (
        "each once, none deleted"
    )
    assert await chosen(server, made.json["id"]) == [TWO, ONE]
    plain = await server.ask("POST", "/chats", message_body("hi"))
    assert "mcp_server_ids" not in plain.json, "those that are on by default"


async def test_unknown_servers_are_all_named_and_nothing_is_written(server: ApiServer) -> None:
    await prepare(server)
    body = {**message_body("hi"), "mcp_server_ids": [ONE, UNKNOWN]}
    refused = await server.ask("POST", "/chats", body)
    assert (refused.code, refused.field) == ((400, "invalid_input"), "mcp_server_ids")
    assert UNKNOWN in str(refused.json["message"])
    assert ONE not in str(refused.json["message"])
    chat = await server.create("hi", mcp_server_ids=[ONE])
    for method, path, given in (
        ("PATCH", f"/chats/{chat}", {"mcp_server_ids": [UNKNOWN], "title": "New"}),
        ("POST", f"/chats/{chat}/messages", {**message_body("more"), "mcp_server_ids": [UNKNOWN]}),
    ):
        refused = await server.ask(method, path, given)
        assert refused.code == (400, "invalid_input")
    assert await chosen(server, chat) == [ONE]
    assert (await server.ask("GET", f"/chats/{chat}")).json["title"] == "hi"


async def test_a_change_replaces_the_servers_and_null_takes_the_default_ones(
    server: ApiServer,
) -> None:
    await prepare(server)
    chat = await server.create("hi", mcp_server_ids=[ONE])
    for given in ([TWO], [], None):
        assert (
            await server.ask("PATCH", f"/chats/{chat}", {"mcp_server_ids": given})
        ).status == 200
        assert await chosen(server, chat) == given
        found = (await server.ask("GET", f"/chats/{chat}")).json
        assert found.get("mcp_server_ids") == given
    await server.ask("PATCH", f"/chats/{chat}", {"mcp_server_ids": [ONE]})
    await server.ask("PATCH", f"/chats/{chat}", {"title": "Other"})
    assert await chosen(server, chat) == [ONE], "not given: as before"


async def test_a_message_may_replace_the_servers(server: ApiServer) -> None:
    await prepare(server)
    chat = await server.create("hi", mcp_server_ids=[ONE])
    path = f"/chats/{chat}/messages"
    sent = await server.ask("POST", path, {**message_body("more"), "mcp_server_ids": [TWO]})
    assert (sent.status, await chosen(server, chat)) == (200, [TWO])
    await server.ask("POST", path, message_body("and more"))
    assert await chosen(server, chat) == [TWO]


async def test_a_refused_message_leaves_the_servers_as_they_are(server: ApiServer) -> None:
    await prepare(server)
    chat = await server.create("hi", mcp_server_ids=[ONE])
    body = {**message_body("more"), "mcp_server_ids": [TWO], "busy_behavior": "reject"}
    refused = await server.ask("POST", f"/chats/{chat}/messages", body)
    assert (refused.code, await chosen(server, chat)) == ((409, "chat_busy"), [ONE])
    other = await server.ask("POST", f"/chats/{chat}/messages", body, token=OTHER_USER)
    assert (other.code, await chosen(server, chat)) == ((404, "not_found"), [ONE])


async def test_a_repeated_request_sets_the_servers_once(server: ApiServer) -> None:
    await prepare(server)
    chat = await server.create("hi", mcp_server_ids=[ONE])
    path, key = f"/chats/{chat}/messages", {"idempotency-key": "k1"}
    body = {**message_body("more"), "mcp_server_ids": [TWO]}
    first = await server.ask("POST", path, body, headers=key)
    await server.ask("PATCH", f"/chats/{chat}", {"mcp_server_ids": []})
    again = await server.ask("POST", path, body, headers=key)
    assert (first.status, again.status) == (200, 200)
    assert await chosen(server, chat) == [], "the first request is not applied again"


async def test_copies_keep_the_servers_that_can_still_be_used(server: ApiServer) -> None:
    await prepare(server)
    chat = await server.create("hi", mcp_server_ids=[ONE, TWO])
    file = (await server.ask("GET", f"/chats/{chat}/export")).content
    assert b"mcp_server_ids" in file
    await server.replica.pool.execute(
        "UPDATE mcp_servers SET enabled = false WHERE id = $1", mcp_server_id(1)
    )
    fork = await server.ask("POST", f"/chats/{chat}/fork", {})
    assert fork.json["mcp_server_ids"] == [TWO]
    made = await server.ask("POST", "/chats/import", file)
    assert (made.status, await chosen(server, made.json["id"])) == (201, [TWO])
    for given in (list[str](), None):
        await server.ask("PATCH", f"/chats/{chat}", {"mcp_server_ids": given})
        fork = await server.ask("POST", f"/chats/{chat}/fork", {})
        assert await chosen(server, fork.json["id"]) == given


async def test_a_file_with_too_many_servers_is_refused(server: ApiServer) -> None:
    await prepare(server)
    chat = await server.create("hi", mcp_server_ids=[ONE])
    lines = (await server.ask("GET", f"/chats/{chat}/export")).content.splitlines()
    line = msgspec.json.decode(lines[1])
    line["mcp_server_ids"] = [str(UUID(int=number)) for number in range(101)]
    lines[1] = msgspec.json.encode(line)
    refused = await server.ask("POST", "/chats/import", b"\n".join(lines) + b"\n")
    assert refused.code == (400, "invalid_input")
