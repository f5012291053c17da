"""Webhooks over HTTP."""

import pytest

from tests.support.api.server import OTHER_USER, ApiServer

URL = "https://ci.example.com/hook"


async def create(server: ApiServer, **fields: object) -> dict[str, object]:
    body = {"url": URL, "events": ["turn.finished"], **fields}
    made = await server.ask("POST", "/webhooks", body)
    assert made.status == 201, made.content
    return made.json


async def test_a_webhook_is_created_listed_changed_and_deleted(server: ApiServer) -> None:
    made = await create(server)
    assert str(made["secret"]).startswith("whsec_")
    webhook = made["webhook"]
    assert isinstance(webhook, dict)
    path = f"/webhooks/{webhook['id']}"
    assert (await server.ask("GET", "/webhooks")).items == [webhook]
    assert "secret" not in (await server.ask("GET", path)).json
    changed = await server.ask("PATCH", path, {"events": ["turn.failed"], "enabled": False})
    assert (changed.json["events"], changed.json["enabled"]) == (["turn.failed"], False)
    assert (await server.ask("DELETE", path)).status == 204
    assert (await server.ask("DELETE", path)).code == (404, "not_found")
    assert (await server.ask("GET", path)).code == (404, "not_found")


async def test_a_ping_is_in_the_list_of_deliveries(server: ApiServer) -> None:
    webhook = (await create(server))["webhook"]
    assert isinstance(webhook, dict)
    path = f"/webhooks/{webhook['id']}"
    for _ in range(3):
        assert (await server.ask("POST", f"{path}/ping")).status == 202
    first = await server.ask("GET", f"{path}/deliveries?limit=2")
    rest = await server.ask("GET", f"{path}/deliveries?limit=2&cursor={first.cursor}")
    assert [one["event"] for one in (*first.items, *rest.items)] == ["ping"] * 3
    stranger = await server.ask("GET", f"{path}/deliveries", token=OTHER_USER)
    assert stranger.code == (404, "not_found")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"url": "ftp://x.example/", "events": ["turn.finished"]}, "url"),
        ({"url": URL, "events": []}, "events"),
        ({"url": URL, "events": ["turn.started"]}, "events[0]"),
        ({"url": URL, "events": ["turn.finished"], "secret": "short"}, "secret"),
    ],
)
async def test_a_bad_webhook_is_refused_and_not_stored(
    server: ApiServer, body: dict[str, object], field: str
) -> None:
    refused = await server.ask("POST", "/webhooks", body)
    assert (refused.status, refused.field) == (400, field)
    assert (await server.ask("GET", "/webhooks")).items == []


async def test_a_user_has_at_most_twenty_webhooks(server: ApiServer) -> None:
    for _ in range(20):
        await create(server)
    refused = await server.ask("POST", "/webhooks", {"url": URL, "events": ["turn.failed"]})
    assert refused.code == (409, "too_many_webhooks")
