"""Chats are shared over HTTP, and found by their readers."""

import asyncio
from uuid import UUID

import pytest

from chatd.domain.ids import ChatId
from tests.support.api.accounts import create_user, hears, listening_changes
from tests.support.api.server import (
    ADMINISTRATOR,
    OTHER_USER,
    ApiOptions,
    ApiServer,
    serve_api,
)
from tests.support.api.shares import READER, create_group, set_sharing, share
from tests.support.factories import OWNER


async def insert_subagent(server: ApiServer, root: ChatId) -> ChatId:
    """A copy of the root's row below it."""
    child = ChatId(UUID(int=4242))
    await server.replica.pool.execute(
        """INSERT INTO chats SELECT r.* FROM chats c,
            jsonb_populate_record(c, jsonb_build_object('id', $2::uuid, 'parent_chat_id', $1::uuid))
            AS r WHERE c.id = $1""",
        root,
        child,
    )
    return child


@pytest.mark.promise("P12")
async def test_the_owner_shares_a_chat_with_a_user_and_takes_it_back(server: ApiServer) -> None:
    chat_id = await server.create()
    path = f"/chats/{chat_id}"
    shared = await share(server, chat_id)
    assert shared.status == 200
    assert [(user["id"], user["role"]) for user in shared.at("users")] == [(READER, "read")]
    assert (await server.ask("GET", f"{path}/acl")).json == shared.json
    assert (await server.ask("GET", path, token=OTHER_USER)).status == 200
    removed = await share(server, chat_id, None)
    assert (removed.status, removed.at("users")) == (200, [])
    assert (await server.ask("GET", path, token=OTHER_USER)).code == (404, "not_found")


@pytest.mark.promise("P12")
async def test_members_of_a_group_read_a_chat_while_they_are_members(server: ApiServer) -> None:
    path = f"/chats/{await server.create()}"
    group = await create_group(server, READER)
    shared = await server.ask("PATCH", f"{path}/acl", {"group_roles": {group: "read"}})
    assert [one["name"] for one in shared.at("groups")] == ["Readers"]
    assert (await server.ask("GET", path, token=OTHER_USER)).status == 200
    member = f"/groups/{group}/members/{READER}"
    await server.ask("DELETE", member, token=ADMINISTRATOR)
    assert (await server.ask("GET", path, token=OTHER_USER)).status == 404
    await server.ask("PUT", member, token=ADMINISTRATOR)
    assert (await server.ask("GET", path, token=OTHER_USER)).status == 200
    await server.ask("DELETE", f"/groups/{group}", token=ADMINISTRATOR)
    assert (await server.ask("GET", path, token=OTHER_USER)).status == 404
    assert (await server.ask("GET", f"{path}/acl")).at("groups") == []


@pytest.mark.promise("P12")
async def test_a_reader_and_a_stranger_see_and_change_no_shares(server: ApiServer) -> None:
    chat_id = await server.create()
    path = f"/chats/{chat_id}/acl"
    for method in ("GET", "PATCH"):
        body = None if method == "GET" else {"user_roles": {READER: "read"}}
        reply = await server.ask(method, path, body, token=OTHER_USER)
        assert reply.code == (404, "not_found")
    await share(server, chat_id)
    assert (await server.ask("GET", path, token=OTHER_USER)).code == (403, "forbidden")
    assert (await share(server, chat_id, "", OTHER_USER)).code == (403, "forbidden")
    assert len((await server.ask("GET", path)).at("users")) == 1


async def test_an_administrator_removes_readers_and_adds_none(server: ApiServer) -> None:
    chat_id = await server.create()
    assert (await share(server, chat_id, token=ADMINISTRATOR)).code == (403, "forbidden")
    await share(server, chat_id)
    removed = await share(server, chat_id, "", ADMINISTRATOR)
    assert (removed.status, removed.at("users")) == (200, [])


@pytest.mark.promise("P15")
async def test_a_wrong_request_names_each_unknown_reader_and_changes_nothing(
    server: ApiServer,
) -> None:
    chat_id = await server.create()
    path = f"/chats/{chat_id}/acl"
    unknown, group = str(UUID(int=87654)), str(UUID(int=87655))
    suspended = str((await create_user(server, "eve"))["id"])
    await server.ask("PATCH", f"/users/{suspended}", {"status": "suspended"}, token=ADMINISTRATOR)
    roles = {READER: "read", unknown: "read", suspended: "read"}
    refused = await server.ask("PATCH", path, {"user_roles": roles, "group_roles": {group: "read"}})
    assert refused.code == (400, "invalid_input")
    named = {str(one["field"]) for one in refused.at("validations")}
    assert named == {
        f"user_roles.{unknown}",
        f"user_roles.{suspended}",
        f"group_roles.{group}",
    }
    for body in (
        {"user_roles": {str(OWNER): "read"}},
        {"user_roles": {READER: "write"}},
        {"user_roles": {"ada": "read"}},
        {"users": {READER: "read"}},
    ):
        assert (await server.ask("PATCH", path, body)).code == (400, "invalid_input"), body
    assert (await server.ask("GET", path)).at("users") == []


async def test_a_chat_has_at_most_a_hundred_readers(server: ApiServer) -> None:
    path = f"/chats/{await server.create()}/acl"
    groups = [str(UUID(int=1000 + number)) for number in range(101)]
    await server.replica.pool.execute(
        "INSERT INTO groups (id, name) SELECT g, g::text FROM unnest($1::uuid[]) g",
        [UUID(group) for group in groups],
    )
    refused = await server.ask("PATCH", path, {"group_roles": dict.fromkeys(groups, "read")})
    assert refused.code == (409, "too_many_readers")
    halves = ({"group_roles": dict.fromkeys(half, "read")} for half in (groups[:60], groups[41:]))
    replies = await asyncio.gather(*(server.ask("PATCH", path, body) for body in halves))
    assert sorted(reply.status for reply in replies) == [200, 409]


async def test_a_subagent_is_read_with_its_root_and_not_shared_alone(server: ApiServer) -> None:
    root = await server.create()
    child = await insert_subagent(server, root)
    assert (await share(server, child)).code == (409, "not_a_root_chat")
    await share(server, root)
    inherited = await server.ask("GET", f"/chats/{child}/acl")
    assert inherited.json == (await server.ask("GET", f"/chats/{root}/acl")).json
    assert (await server.ask("GET", f"/chats/{child}", token=OTHER_USER)).status == 200


async def test_every_change_of_shares_is_recorded_once(server: ApiServer) -> None:
    chat_id = await server.create()
    for role in ("read", "read", "", None):
        await share(server, chat_id, role)
    where = f"/audit?object_type=chat&object_id={chat_id}"
    entries = (await server.ask("GET", where, token=ADMINISTRATOR)).items
    assert [(entry["action"], entry["actor_id"]) for entry in entries] == [
        ("chat.share", str(OWNER)),
        ("chat.share", str(OWNER)),
    ]
    owner = {"owner_id": str(OWNER)}
    assert [entry["detail"] for entry in entries] == [
        owner | {"removed_users": [READER]},
        owner | {"added_users": [READER]},
    ]


async def test_the_directory_finds_active_users_and_groups_by_name_without_emails(
    server: ApiServer,
) -> None:
    ada = await create_user(server, "Ada", name="Ada Lovelace", email="secret@example.com")
    gone = await create_user(server, "adam")
    await server.ask("DELETE", f"/users/{gone['id']}", token=ADMINISTRATOR)
    group = await create_group(server, name="Adapters")
    found = await server.ask("GET", "/directory?q=aDa")
    user = {"id": ada["id"], "username": "Ada", "name": "Ada Lovelace"}
    assert found.json == {"users": [user], "groups": [{"id": group, "name": "Adapters"}]}
    assert (await server.ask("GET", "/directory?q=love")).at("users") == [user]
    assert (await server.ask("GET", "/directory?q=secret")).at("users") == []
    assert (await server.ask("GET", "/directory?q=%25")).at("users") == []
    everyone = (await server.ask("GET", "/directory")).at("users")
    assert str(OWNER) not in {one["id"] for one in everyone}
    assert len((await server.ask("GET", "/directory?limit=1")).at("users")) == 1
    assert (await server.ask("GET", "/directory?limit=51")).code == (400, "invalid_input")


@pytest.mark.promise("P12")
async def test_without_sharing_readers_read_nothing_and_owners_only_take_back(dsn: str) -> None:
    async with (
        listening_changes(dsn) as changes,
        serve_api(dsn, ApiOptions(changes=changes)) as server,
        asyncio.timeout(30),
    ):
        first, second = await server.create("one"), await server.create("two")
        for chat_id in (first, second):
            await share(server, chat_id)
        heard = hears(changes, "settings")
        await set_sharing(server, enabled=False)
        await heard.wait()
        assert (await server.ask("GET", f"/chats/{first}", token=OTHER_USER)).status == 404
        refused = await share(server, await server.create("three"))
        assert refused.code == (403, "sharing_disabled")
        assert (await server.ask("GET", "/directory")).code == (403, "sharing_disabled")
        assert (await share(server, second, "")).status == 200
        heard = hears(changes, "settings")
        await set_sharing(server, enabled=True)
        await heard.wait()
        assert (await server.ask("GET", f"/chats/{first}", token=OTHER_USER)).status == 200
        assert (await server.ask("GET", f"/chats/{second}", token=OTHER_USER)).status == 404
