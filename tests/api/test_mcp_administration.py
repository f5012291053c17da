"""Administrators configure MCP servers over HTTP."""

from collections.abc import Generator

import msgspec
import pytest

from tests.support.api.server import (
    ADMINISTRATOR,
    ApiOptions,
    ApiReply,
    ApiServer,
    Json,
    heard_changes,
    serve_api,
)
from tests.support.mcp.rig import ServerProcess, tool_server

KEYED = {
    "slug": "notes",
    "url": "https://notes.example.com/mcp",
    "auth": "api_key",
    "api_key_header": "X-Api-Key",
    "api_key": "marker-key",
}
OAUTH = {
    "client_id": "chatd",
    "client_secret": "marker-client-secret",
    "authorization_url": "https://login.example.com/authorize",
    "token_url": "https://login.example.com/token",
}


@pytest.fixture(scope="module")
def guarded_server() -> Generator[ServerProcess]:
    with tool_server("http", "--token", "marker-token") as process:
        yield process


async def create(server: ApiServer, **fields: object) -> ApiReply:
    body = {"slug": "notes", "url": "https://notes.example.com/mcp", **fields}
    return await server.ask("POST", "/mcp-server-configs", body, token=ADMINISTRATOR)


async def change(server: ApiServer, server_id: object, **fields: object) -> ApiReply:
    path = f"/mcp-server-configs/{server_id}"
    return await server.ask("PATCH", path, fields, token=ADMINISTRATOR)


async def sealed(server: ApiServer) -> str | None:
    return await server.replica.pool.fetchval("SELECT sealed_secrets FROM mcp_servers")


async def test_a_server_is_created_read_changed_and_deleted(server: ApiServer) -> None:
    made = await create(server, availability="force_on", allow=["a"], model_intent=True)
    assert (made.status, made.json["version"], made.json["source"]) == (201, 1, "database")
    assert (made.json["display_name"], made.json["availability"]) == ("notes", "force_on")
    server_id = made.json["id"]
    assert made.json["redirect_path"] == f"/api/v1/mcp-servers/{server_id}/callback"
    changed = await change(server, server_id, display_name="Notes", enabled=False)
    assert (changed.json["display_name"], changed.json["allow"]) == ("Notes", ["a"])
    assert changed.json["version"] == 2
    path = f"/mcp-server-configs/{server_id}"
    assert (await server.ask("GET", path, token=ADMINISTRATOR)).json == changed.json
    assert (await server.ask("GET", "/mcp-servers")).items == [], "disabled"
    assert (await server.ask("DELETE", path, token=ADMINISTRATOR)).status == 204
    assert (await server.ask("GET", path, token=ADMINISTRATOR)).code == (404, "not_found")
    assert (await create(server)).status == 201, "the slug can be used again"


async def test_a_user_sees_neither_the_address_nor_the_headers(server: ApiServer) -> None:
    await create(server, auth="custom_headers", headers={"X-Team": "marker-header"})
    (found,) = (await server.ask("GET", "/mcp-servers")).items
    assert found.keys() == {
        *("id", "slug", "display_name", "description", "availability", "auth"),
        *("allow_in_plan_mode", "connection"),
    }
    assert found["connection"] == {
        "state": "ready",
        "reason": "",
        "connected_at": None,
        "expires_at": None,
    }


@pytest.mark.promise("P13")
@pytest.mark.parametrize(
    "fields",
    [
        KEYED,
        {"auth": "custom_headers", "headers": {"X-Team": "marker-header"}},
        {"auth": "oauth2", "oauth": OAUTH},
    ],
)
async def test_secrets_are_sealed_and_never_returned(server: ApiServer, fields: Json) -> None:
    made = await create(server, **fields)
    assert made.status == 201, made.content
    assert b"marker" not in made.content
    listed = await server.ask("GET", "/mcp-server-configs", token=ADMINISTRATOR)
    assert b"marker" not in listed.content
    renamed = await change(server, made.json["id"], display_name="Other")
    assert b"marker" not in renamed.content
    rows = await server.replica.pool.fetch("SELECT m::text AS row FROM mcp_servers m")
    assert "marker" not in rows[0]["row"]
    assert str(await sealed(server)).startswith("sealed1.")
    audit = await server.ask("GET", "/audit", token=ADMINISTRATOR)
    assert b"mcp_server.create" in audit.content
    assert b"marker" not in audit.content


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"slug": "Not OK"}, "slug"),
        ({"slug": "a__b"}, "slug"),
        ({"slug": "a\n"}, "slug"),
        ({"url": "ftp://example.com"}, "url"),
        ({"url": "https://user:marker@example.com/mcp"}, "url"),
        ({"slug": "workspace"}, "slug"),
        ({"auth": "api_key"}, "api_key"),
        ({"auth": "custom_headers"}, "headers"),
        ({"auth": "custom_headers", "headers": {"Host": "x"}}, "headers"),
        ({"auth": "custom_headers", "headers": {"X-A": "a\r\nX-B: b"}}, "headers"),
        ({"auth": "oauth2", "oauth": {**OAUTH, "token_url": "http://1.1.1.1"}}, "oauth.token_url"),
        (
            {
                "auth": "oauth2",
                "oauth": {**OAUTH, "client_secret": None, "token_auth": "client_secret_post"},
            },
            "oauth.client_secret",
        ),
    ],
)
async def test_a_wrong_field_is_named_and_nothing_is_stored(
    server: ApiServer, fields: Json, field: str
) -> None:
    refused = await create(server, **fields)
    assert (refused.code, refused.field) == ((400, "invalid_input"), field)
    assert b"marker" not in refused.content
    assert await server.replica.pool.fetchval("SELECT count(*) FROM mcp_servers") == 0


async def test_a_slug_is_taken_once(server: ApiServer) -> None:
    await create(server)
    assert (await create(server)).code == (409, "name_taken")
    other = await create(server, slug="other")
    refused = await change(server, other.json["id"], slug="notes")
    assert refused.code == (409, "name_taken")


async def test_a_key_stays_with_the_host_that_it_was_given_for(server: ApiServer) -> None:
    made = await create(server, **KEYED)
    server_id, before = made.json["id"], await sealed(server)
    same = await change(server, server_id, url="https://notes.example.com/v2")
    assert (same.status, same.json["has_api_key"]) == (200, True)
    refused = await change(server, server_id, url="https://evil.example.com/mcp")
    assert (refused.code, refused.field) == ((400, "invalid_input"), "api_key")
    moved = await change(server, server_id, url="https://new.example.com/mcp", api_key="k2")
    assert moved.status == 200
    assert await sealed(server) != before


async def test_a_change_of_the_kind_of_auth_drops_the_other_secrets(server: ApiServer) -> None:
    made = await create(server, **KEYED)
    changed = await change(server, made.json["id"], auth="none")
    assert (changed.json["has_api_key"], changed.json["api_key_header"]) == (False, None)
    assert await sealed(server) is None


async def test_a_client_secret_stays_with_its_client_and_token_address(server: ApiServer) -> None:
    made = await create(server, auth="oauth2", oauth=OAUTH)
    oauth = {name: value for name, value in OAUTH.items() if name != "client_secret"}
    same = await change(server, made.json["id"], oauth={**oauth, "token_auth": None})
    assert msgspec.convert(same.json["oauth"], Json)["has_client_secret"] is True
    moved = {**oauth, "token_url": "https://evil.example.com/token"}
    changed = await change(server, made.json["id"], oauth=moved)
    assert msgspec.convert(changed.json["oauth"], Json)["has_client_secret"] is False
    assert await sealed(server) is None


async def test_a_test_lists_the_tools_and_says_which_are_used(
    server: ApiServer, guarded_server: ServerProcess
) -> None:
    made = await create(
        server,
        url=guarded_server.url,
        auth="custom_headers",
        headers={"Authorization": "Bearer marker-token"},
        deny=["echo"],
    )
    path = f"/mcp-server-configs/{made.json['id']}/test"
    found = await server.ask("POST", path, token=ADMINISTRATOR)
    assert (found.json["ok"], found.json["problem"]) == (True, "")
    used = {tool["name"]: tool["is_used"] for tool in found.at("tools")}
    assert (used["echo"], used["bump"]) == (False, True)
    await change(server, made.json["id"], headers={"Authorization": "Bearer wrong"})
    failed = await server.ask("POST", path, token=ADMINISTRATOR)
    assert (failed.json["ok"], failed.json["tools"]) == (False, [])
    assert failed.json["problem"]


async def test_a_test_of_a_server_that_needs_a_connection_says_so(server: ApiServer) -> None:
    made = await create(server, auth="oauth2", oauth=OAUTH)
    path = f"/mcp-server-configs/{made.json['id']}/test"
    found = await server.ask("POST", path, token=ADMINISTRATOR)
    assert (found.json["ok"], "not connected" in str(found.json["problem"])) == (False, True)


async def test_another_replica_reads_the_change_once_it_hears_of_it(dsn: str) -> None:
    changes = heard_changes()
    async with serve_api(dsn) as one, serve_api(dsn, ApiOptions(changes=changes)) as two:
        assert (await two.ask("GET", "/mcp-servers")).items == []
        await create(one)
        changes.on_notice('{"kind":"mcp_server"}')
        assert len((await two.ask("GET", "/mcp-servers")).items) == 1
