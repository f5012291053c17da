"""Subscriptions of browsers over HTTP."""

import pytest

from chatd.api.accounts.request_limits import TESTS_PER_MINUTE
from chatd.store.database.pool import Pool
from tests.support.api.server import OTHER_USER, ApiServer

ENDPOINT = "https://push.example.com/send/abc"
KEYS = {
    "p256dh": (
        "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4"
    ),
    "auth": "BTBZMqHH6r4Tts7J_aSIgg",
}
BODY = {"endpoint": ENDPOINT, "keys": KEYS, "expirationTime": None}


async def test_a_browser_subscribes_once_however_often_it_asks(server: ApiServer) -> None:
    first = await server.ask("POST", "/push/subscriptions", BODY)
    again = await server.ask("POST", "/push/subscriptions", BODY)
    assert (first.status, again.status) == (201, 201)
    assert first.json == again.json
    (listed,) = (await server.ask("GET", "/push/subscriptions")).items
    assert (listed["id"], listed["service"]) == (first.json["id"], "push.example.com")
    assert "keys" not in listed


async def test_a_subscription_is_no_webhook_of_the_list(server: ApiServer) -> None:
    made = (await server.ask("POST", "/push/subscriptions", BODY)).json
    assert (await server.ask("GET", "/webhooks")).items == []
    assert (await server.ask("DELETE", f"/webhooks/{made['id']}")).code == (404, "not_found")


async def test_only_its_owner_tests_and_ends_a_subscription(server: ApiServer) -> None:
    made = (await server.ask("POST", "/push/subscriptions", BODY)).json
    path = f"/push/subscriptions/{made['id']}"
    for method, at in (("POST", f"{path}/test"), ("DELETE", path)):
        assert (await server.ask(method, at, token=OTHER_USER)).code == (404, "not_found")
    assert (await server.ask("POST", f"{path}/test")).status == 202
    codes = {(await server.ask("POST", f"{path}/test")).status for _ in range(TESTS_PER_MINUTE)}
    assert codes == {202, 429}
    refused = await server.ask("POST", f"{path}/test")
    assert refused.code == (429, "rate_limited")
    assert int(refused.headers["retry-after"]) > 0
    assert (await server.ask("DELETE", path)).status == 204
    assert (await server.ask("DELETE", path)).code == (404, "not_found")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({**BODY, "endpoint": "http://push.example.com/a"}, "endpoint"),
        ({**BODY, "endpoint": "nowhere"}, "endpoint"),
        ({**BODY, "endpoint": "https://127.0.0.1/a"}, "endpoint"),
        ({**BODY, "endpoint": "https://[::1]/a"}, "endpoint"),
        ({**BODY, "endpoint": "https://localhost:8443/a"}, "endpoint"),
        ({**BODY, "endpoint": "https://169.254.169.254/latest"}, "endpoint"),
        ({**BODY, "endpoint": "https://2130706433/a"}, "endpoint"),
        ({**BODY, "keys": {**KEYS, "auth": "x"}}, "keys.auth"),
        ({**BODY, "keys": {**KEYS, "p256dh": "x"}}, "keys.p256dh"),
        ({**BODY, "keys": {**KEYS, "p256dh": "B" + "A" * 86}}, "keys.p256dh"),
    ],
)
async def test_a_bad_subscription_is_refused_and_not_stored(
    server: ApiServer, body: dict[str, object], field: str
) -> None:
    refused = await server.ask("POST", "/push/subscriptions", body)
    assert (refused.status, refused.field) == (400, field)
    assert (await server.ask("GET", "/push/subscriptions")).items == []


async def test_a_user_has_at_most_twenty_browsers(server: ApiServer) -> None:
    for number in range(20):
        body = {**BODY, "endpoint": f"{ENDPOINT}{number}"}
        assert (await server.ask("POST", "/push/subscriptions", body)).status == 201
    refused = await server.ask("POST", "/push/subscriptions", BODY)
    assert refused.code == (409, "too_many_subscriptions")


async def test_the_places_of_browsers_that_ended_their_subscription_are_free_again(
    server: ApiServer, pool: Pool
) -> None:
    for number in range(20):
        body = {**BODY, "endpoint": f"{ENDPOINT}{number}"}
        await server.ask("POST", "/push/subscriptions", body)
    await pool.execute("UPDATE webhooks SET enabled = false, disabled_by = 'ended'")
    assert (await server.ask("POST", "/push/subscriptions", BODY)).status == 201
    assert len((await server.ask("GET", "/push/subscriptions")).items) == 1


@pytest.mark.promise("P12")
async def test_a_browser_that_another_user_takes_over_shows_no_chats_of_the_former(
    server: ApiServer,
) -> None:
    await server.ask("POST", "/push/subscriptions", BODY)
    assert (await server.ask("POST", "/push/subscriptions", BODY, token=OTHER_USER)).status == 201
    assert (await server.ask("GET", "/push/subscriptions")).items == []
    assert len((await server.ask("GET", "/push/subscriptions", token=OTHER_USER)).items) == 1
