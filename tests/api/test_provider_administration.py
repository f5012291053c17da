"""Providers and their keys over the API."""

import re
from collections.abc import AsyncGenerator
from uuid import UUID

import msgspec
import pytest

from chatd.store.database.conn import Conn
from tests.support.api.server import (
    ADMINISTRATOR,
    ME,
    OTHER_USER,
    ApiOptions,
    ApiReply,
    ApiServer,
    serve_api,
)
from tests.support.providers.openai_chat import FakeCompatible, stream
from tests.support.providers.server import RecordedRequest, Reply

KEY = "sk-very-secret-a1b2"
HEADER = "a-secret-header-value"
LOCAL = {"name": "local", "kind": "openai-compat", "base_url": "http://127.0.0.1:1/v1"}
SEALED = re.compile(r"sealed1\.[0-9a-f]{12}\.")


@pytest.fixture
async def server(dsn: str) -> AsyncGenerator[ApiServer]:
    async with serve_api(dsn, ApiOptions(models=None)) as server:
        yield server


async def ask(server: ApiServer, method: str, path: str, body: object = None) -> ApiReply:
    return await server.ask(method, path, body, token=ADMINISTRATOR)


async def create(server: ApiServer, **more: object) -> str:
    made = await ask(server, "POST", "/providers", {**LOCAL, **more})
    assert made.status == 201, made.content
    return str(made.json["id"])


async def stored_text(conn: Conn) -> str:
    rows = await conn.fetch(
        """SELECT row_to_json(p)::text AS t FROM providers p
           UNION ALL SELECT row_to_json(d)::text FROM provider_details d
           UNION ALL SELECT row_to_json(k)::text FROM provider_keys k"""
    )
    return "\n".join(row["t"] for row in rows)


@pytest.mark.promise("P13")
async def test_a_created_provider_shows_no_secret_and_stores_none_in_the_clear(
    server: ApiServer,
) -> None:
    proxy = "http://user:proxy-password@proxy:3128"
    made = await ask(
        server,
        "POST",
        "/providers",
        {**LOCAL, "api_keys": [KEY], "headers": {"X-Team": HEADER}, "proxy": proxy},
    )
    assert made.status == 201
    [key] = made.at("keys")
    assert key["masked"] == "…a1b2"
    assert (made.json["header_names"], made.json["has_proxy"]) == (["X-Team"], True)
    assert (made.json["source"], made.json["has_api_key"]) == ("database", True)
    listed = await ask(server, "GET", "/providers?include_disabled=true")
    one = await ask(server, "GET", f"/providers/{made.json['id']}")
    stored = await stored_text(server.replica.pool)
    assert len(SEALED.findall(stored)) == 2
    for secret in (KEY, HEADER, "proxy-password"):
        for text in (made.content, listed.content, one.content, stored.encode()):
            assert secret.encode() not in text


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"kind": "antropic"}, "kind"),
        ({"base_url": None}, "base_url"),
        ({"base_url": "ftp://x"}, "base_url"),
        ({"base_url": "http://user:pw@x/v1"}, "base_url"),
        ({"proxy": "socks5://x"}, "proxy"),
        ({"headers": {"a b": "c"}}, "headers"),
        ({"ca_file": "relative.pem"}, "ca_file"),
        ({"ca_file": "/nonexistent/ca.pem"}, "ca_file"),
        ({"client_key": "/nonexistent/k.pem"}, "client_key"),
        ({"name": " a"}, "name"),
        ({"api_keys": ["with space"]}, "api_keys[0]"),
        ({"colour": "red"}, "colour"),
    ],
)
async def test_an_invalid_provider_is_refused_by_its_field(
    server: ApiServer, fields: dict[str, object], field: str
) -> None:
    refused = await ask(server, "POST", "/providers", {**LOCAL, **fields})
    assert (refused.status, refused.field) == (400, field), refused.content
    assert [one["name"] for one in (await ask(server, "GET", "/providers")).items] == ["demo"]


async def test_a_name_is_used_once_and_again_after_its_provider_was_deleted(
    server: ApiServer,
) -> None:
    first = await create(server)
    again = await ask(server, "POST", "/providers", LOCAL)
    assert again.code == (409, "name_taken")
    other = await create(server, name="other")
    renamed = await ask(server, "PATCH", f"/providers/{other}", {"name": "local"})
    assert renamed.code == (409, "name_taken")
    assert (await ask(server, "DELETE", f"/providers/{first}")).status == 204
    assert (await ask(server, "GET", f"/providers/{first}")).code == (404, "not_found")
    assert await create(server) != first


async def test_a_change_keeps_what_it_does_not_name(server: ApiServer) -> None:
    made = await create(server, api_keys=[KEY], headers={"X-A": "1", "X-B": "2"}, region="r")
    path = f"/providers/{made}"
    changed = await ask(server, "PATCH", path, {"display_name": "Ours", "region": None})
    assert changed.status == 200
    assert (changed.json["display_name"], changed.json["header_names"]) == ("Ours", ["X-A", "X-B"])
    assert "region" not in changed.json
    assert len(changed.at("keys")) == 1
    headers = await ask(server, "PATCH", path, {"headers": {"x-a": None, "X-C": "3"}})
    assert headers.json["header_names"] == ["X-B", "X-C"]


async def test_keys_are_changed_by_their_ids(server: ApiServer) -> None:
    made = await create(server)
    path = f"/providers/{made}/keys"
    first = await ask(server, "POST", path, {"api_key": KEY, "name": "one"})
    assert (first.status, first.json["masked"]) == (201, "…a1b2")
    second = await ask(server, "POST", path, {"api_key": "sk-another-one-c3d4"})
    replaced = await ask(
        server, "PATCH", f"{path}/{first.json['id']}", {"api_key": "sk-the-new-one-e5f6"}
    )
    assert (replaced.json["masked"], replaced.json["name"]) == ("…e5f6", "one")
    shown = (await ask(server, "GET", f"/providers/{made}")).at("keys")
    assert [one["masked"] for one in shown] == ["…e5f6", "…c3d4"]
    assert (await ask(server, "DELETE", f"{path}/{second.json['id']}")).status == 204
    gone = await ask(server, "DELETE", f"{path}/{second.json['id']}")
    assert gone.code == (404, "not_found")
    unknown = await ask(server, "PATCH", f"{path}/{UUID(int=9)}", {"name": "x"})
    assert unknown.code == (404, "not_found")


async def test_a_provider_with_models_cannot_be_deleted_and_they_are_named(
    server: ApiServer,
) -> None:
    made = await create(server)
    body = {"name": "qwen", "provider": "local", "model": "qwen3:8b"}
    model = await ask(server, "POST", "/models", body)
    refused = await ask(server, "DELETE", f"/providers/{made}")
    assert refused.code == (409, "provider_in_use")
    assert "the models qwen." in str(refused.json["message"])
    assert (await ask(server, "DELETE", f"/models/{model.json['id']}")).status == 204
    assert (await ask(server, "DELETE", f"/providers/{made}")).status == 204
    old = await ask(server, "GET", f"/models/{model.json['id']}")
    assert (old.json["deleted"], old.json["name"]) == (True, "qwen")


async def test_a_provider_of_the_settings_is_read_only(server: ApiServer) -> None:
    [demo] = (await ask(server, "GET", "/providers")).items
    path = f"/providers/{demo['id']}"
    for method, more, body in (
        ("PATCH", "", {"enabled": False}),
        ("DELETE", "", None),
        ("POST", "/keys", {"api_key": KEY}),
    ):
        refused = await ask(server, method, path + more, body)
        assert refused.code == (409, "managed_by_settings")
    taken = await ask(server, "POST", "/providers", {**LOCAL, "name": "demo"})
    assert taken.code == (409, "managed_by_settings")


async def test_only_administrators_see_and_change_providers(server: ApiServer) -> None:
    made = await create(server)
    for method, path, body in (
        ("GET", "/providers", None),
        ("POST", "/providers", LOCAL),
        ("PATCH", f"/providers/{made}", {"enabled": False}),
        ("POST", f"/providers/{made}/test", {}),
        ("POST", "/models", {"name": "m", "provider": "local", "model": "m"}),
        ("PATCH", "/model-overrides", {"title": None}),
    ):
        assert (await server.ask(method, path, body, token=ME)).code == (403, "forbidden"), path


class ListingServer(FakeCompatible):
    """Also answers a request for its models."""

    def refuse(self, request: RecordedRequest) -> Reply | None:
        if request.method == "GET":
            body = b'{"data": [{"id": "qwen3:8b", "max_model_len": 40960}, {"id": "other"}]}'
            return Reply(headers={"content-type": "application/json"}, steps=(body,))
        return super().refuse(request)


async def test_a_provider_is_tested_and_lists_its_models(server: ApiServer) -> None:
    async with ListingServer.running() as fake:
        made = await create(server, base_url=f"{fake.url}/v1", api_keys=[KEY])
        fake.script(stream("text"))
        tested = await ask(server, "POST", f"/providers/{made}/test", {})
        assert (tested.json["ok"], tested.json["model"]) == (True, "other")
        assert fake.requests[-1].headers["authorization"] == f"Bearer {KEY}"
        body = {"name": "qwen", "provider": "local", "model": "qwen3:8b"}
        model = await ask(server, "POST", "/models", body)
        # What the provider tells of the model is known when it is created.
        assert model.json["capabilities"] == {"context_limit": 40960}
        assert model.json["is_default"] is True
        listed = await ask(server, "GET", f"/providers/{made}/models?limit=1")
        assert [(one["model"], one["suggested"]) for one in listed.items] == [("other", True)]
        cursor = listed.json["next_cursor"]
        [qwen] = (await ask(server, "GET", f"/providers/{made}/models?cursor={cursor}")).items
        assert (qwen["capabilities"], qwen["configured_as"]) == ({"context_limit": 40960}, ["qwen"])


async def test_a_test_of_an_unreachable_provider_explains_why(server: ApiServer) -> None:
    made = await create(server)
    failed = await ask(server, "POST", f"/providers/{made}/test", {"model": "m"})
    assert (failed.status, failed.json["ok"]) == (200, False)
    assert str(failed.json["explanation"]).startswith("Nothing answers at this address")
    listed = await ask(server, "GET", f"/providers/{made}/models")
    assert listed.code == (409, "provider_failed")
    unknown = await ask(server, "POST", f"/providers/{made}/test", {"key_id": str(UUID(int=9))})
    assert (unknown.status, unknown.field) == (400, "key_id")


# Keys of users


def key_of(made: ApiReply) -> dict[str, object]:
    return msgspec.convert(made.json["key"], dict[str, object])


async def test_a_user_sees_and_changes_only_keys_of_the_own_account(server: ApiServer) -> None:
    await create(server, user_keys=True)
    await create(server, name="closed")
    body = {"provider": "local", "api_key": KEY}
    mine = await server.ask("POST", "/user-keys", body, token=ME)
    assert (mine.status, key_of(mine)["masked"]) == (201, "…a1b2")
    for token, shown in ((ME, "…a1b2"), (OTHER_USER, None)):
        [one] = (await server.ask("GET", "/user-keys", token=token)).items
        assert one["provider"] == "local"
        key = msgspec.convert(one.get("key", {}), dict[str, object])
        assert key.get("masked") == shown
    path = f"/user-keys/{key_of(mine)['id']}"
    assert (await server.ask("DELETE", path, token=OTHER_USER)).code == (404, "not_found")
    again = await server.ask("POST", "/user-keys", {**body, "api_key": "sk-my-second-c3d4"})
    [one] = (await server.ask("GET", "/user-keys")).items
    assert msgspec.convert(one["key"], dict[str, object])["masked"] == "…c3d4"
    assert (await server.ask("DELETE", f"/user-keys/{key_of(again)['id']}")).status == 204
    closed = await server.ask("POST", "/user-keys", {"provider": "closed", "api_key": KEY})
    assert (closed.status, closed.field) == (400, "provider")
    assert KEY not in await stored_text(server.replica.pool)


@pytest.mark.promise("P13")
async def test_changes_of_providers_and_models_are_recorded_without_values(
    server: ApiServer,
) -> None:
    provider = await create(server, api_keys=[KEY])
    await ask(server, "PATCH", f"/providers/{provider}", {"enabled": False})
    await ask(server, "POST", "/models", {"name": "m", "provider": "local", "model": "m-1"})
    await server.ask("PATCH", f"/providers/{provider}", {"enabled": True})
    rows = await server.replica.pool.fetch("SELECT * FROM audit_log ORDER BY id")
    assert [row["action"] for row in rows] == [
        "provider.create",
        "provider.update",
        "model.create",
    ]
    assert all(row["actor"] == "admin" and row["ip"] == "127.0.0.1" for row in rows)
    assert KEY not in str([row["detail"] for row in rows])
    assert msgspec.json.decode(rows[1]["detail"]) == {"fields": ["enabled"]}
