"""Tokens and their cache: no look-up per request, and no credential that outlives its end."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest
from aiohttp import WSMsgType

from chatd.api.accounts.authenticator import AccountsConfig
from chatd.api.accounts.request_limits import RequestLimits
from chatd.store.database.notifications import ConfigChanges
from tests.support.api.accounts import Browser, create_token, create_user, listening_changes
from tests.support.api.server import (
    ADMINISTRATOR,
    ME,
    ApiOptions,
    ApiServer,
    Json,
    authorized,
    serve_api,
)
from tests.support.api.shares import two_replicas
from tests.support.api.sse_viewer import event_source
from tests.support.clock import FakeClock


def look_ups(server: ApiServer) -> int:
    return sum("last_seen_at" in statement for statement in server.sent)


async def ada(server: ApiServer, **token: object) -> tuple[Json, Browser, str]:
    """A user with a browser and a token."""
    user = await create_user(server)
    browser = await Browser(server).sign_in()
    return user, browser, str((await create_token(browser, **token))["token"])


async def test_a_token_is_shown_once_and_works_until_it_is_revoked(server: ApiServer) -> None:
    _, browser, token = await ada(server, scopes=["chat:read"])
    (listed,) = (await browser.ask("GET", "/auth/tokens")).items
    assert token.startswith(f"{listed['prefix']}_")
    assert token not in str(listed)
    assert (await server.ask("GET", "/chats", token=token)).status == 200
    body = {"content": [{"type": "text", "text": "hello"}]}
    assert (await server.ask("POST", "/chats", body, token=token)).code == (403, "missing_scope")
    me = await server.ask("GET", "/auth/me", token=token)
    assert (me.json["scopes"], me.json["csrf_token"]) == (["chat:read"], None)
    path = f"/auth/tokens/{listed['id']}"
    assert (await server.ask("DELETE", path, token=ME)).status == 404
    assert (await browser.ask("DELETE", path)).status == 204
    assert (await browser.ask("DELETE", path)).status == 404


async def test_scopes_and_expiry_of_a_new_token_are_checked(server: ApiServer) -> None:
    _, _, token = await ada(server, scopes=["account"])
    refusals: tuple[tuple[Json, tuple[int, str]], ...] = (
        ({"name": "x", "scopes": ["account", "admin"]}, (403, "missing_scope")),
        ({"name": "x", "scopes": ["root"]}, (400, "invalid_input")),
        ({"name": "x", "scopes": []}, (400, "invalid_input")),
        ({"name": "", "scopes": ["account"]}, (400, "invalid_input")),
        ({"name": "x", "expires_at": "2020-01-01T00:00:00Z"}, (400, "invalid_input")),
        ({"name": "x", "expires_at": "2020-01-01T00:00:00"}, (400, "invalid_input")),
    )
    for body, code in refusals:
        assert (await server.ask("POST", "/auth/tokens", body, token=token)).code == code
    made = await server.ask("POST", "/auth/tokens", {"name": "narrow"}, token=token)
    assert made.json["scopes"] == ["account"], "as narrow as its creator"


async def test_a_token_that_a_token_made_does_not_outlive_it(dsn: str, server: ApiServer) -> None:
    end = "2100-01-01T00:00:00Z"
    _, browser, token = await ada(server, expires_at=end)
    path = "/auth/tokens"
    later = {"name": "x", "expires_at": "2100-01-01T00:00:01Z"}
    refused = await server.ask("POST", path, later, token=token)
    assert (refused.status, refused.field) == (400, "expires_at")
    sooner = {"name": "x", "expires_at": "2099-01-01T00:00:00Z"}
    first = await server.ask("POST", path, sooner, token=token)
    assert first.json["expires_at"] == "2099-01-01T00:00:00Z"
    made = await server.ask("POST", path, {"name": "child"}, token=token)
    assert made.json["expires_at"] == end
    child = str(made.json["token"])
    grandchild = await server.ask("POST", path, {"name": "grandchild"}, token=child)
    assert grandchild.json["expires_at"] == end
    by_session = await browser.ask("POST", path, {"name": "for ever"})
    assert by_session.json["expires_at"] is None
    async with listening_changes(dsn) as changes, serve_api(dsn, ApiOptions(changes=changes)) as at:
        last = str(grandchild.json["token"])
        assert (await at.ask("GET", "/chats", token=last)).status == 200
        [parent] = [one for one in (await browser.ask("GET", path)).items if one["name"] == "a job"]
        assert (await browser.ask("DELETE", f"{path}/{parent['id']}")).status == 204
        async with asyncio.timeout(10):
            while (await at.ask("GET", "/chats", token=last)).status != 401:
                pass
        assert (await at.ask("GET", "/chats", token=str(by_session.json["token"]))).status == 200


async def test_a_token_of_a_service_account_expires_with_the_token_that_made_it(
    server: ApiServer,
) -> None:
    root = {"name": "root", "expires_at": "2100-01-01T00:00:00Z"}
    token = str((await server.ask("POST", "/auth/tokens", root, token=ADMINISTRATOR)).json["token"])
    robot = {"username": "robot", "is_service": True}
    user = await server.ask("POST", "/users", robot, token=token)
    path = f"/users/{user.json['id']}/tokens"
    made = await server.ask("POST", path, {"name": "job"}, token=token)
    assert made.json["expires_at"] == root["expires_at"]
    free = await server.ask("POST", path, {"name": "job"}, token=ADMINISTRATOR)
    assert free.json["expires_at"] is None


async def test_only_known_tokens_authenticate(server: ApiServer) -> None:
    for value in (
        "",
        "my-token",
        "Bearer",
        "Bearer ",
        "Bearer My-token",
        f"Bearer {ME} x",
        "Basic x",
    ):
        reply = await server.ask("GET", "/chats", token=None, headers={"Authorization": value})
        assert reply.code == (401, "unauthorized")
    assert (await server.ask("GET", "/chats", token=None)).code == (401, "unauthorized")


async def test_requests_of_a_known_caller_cost_no_look_up(server: ApiServer) -> None:
    _, browser, token = await ada(server)
    server.sent.clear()
    for _ in range(5):
        assert (await server.ask("GET", "/chats", token=token)).status == 200
        assert (await browser.ask("GET", "/chats")).status == 200
        assert (await server.ask("GET", "/chats", token=ADMINISTRATOR)).status == 200
    assert look_ups(server) == 1, "the token, which was not used before"


async def test_requests_that_arrive_together_cost_one_look_up(server: ApiServer) -> None:
    _, _, token = await ada(server)
    server.sent.clear()
    replies = await asyncio.gather(*(server.ask("GET", "/chats", token=token) for _ in range(20)))
    assert {reply.status for reply in replies} == {200}
    assert look_ups(server) <= 4


async def test_a_credential_is_read_again_after_a_minute(dsn: str) -> None:
    clock = FakeClock()
    async with serve_api(dsn, ApiOptions(clock=clock)) as server:
        server.sent.clear()
        await server.ask("GET", "/auth/me", token=ME)
        assert look_ups(server) == 1  # the users row of the reply has this column too
        clock.advance(61)
        await server.ask("GET", "/auth/me", token=ME)
        assert look_ups(server) == 3


async def test_without_a_listener_every_request_reads_its_credential(dsn: str) -> None:
    async with serve_api(dsn, ApiOptions(changes=ConfigChanges())) as server:
        _, _, token = await ada(server)
        server.sent.clear()
        for _ in range(3):
            assert (await server.ask("GET", "/chats", token=token)).status == 200
        assert look_ups(server) == 3


Revocation = Callable[[ApiServer, Browser, Json], Awaitable[object]]


async def suspend(server: ApiServer, _browser: Browser, user: Json) -> None:
    path = f"/users/{user['id']}"
    await server.ask("PATCH", path, {"status": "suspended"}, token=ADMINISTRATOR)


async def delete(server: ApiServer, _browser: Browser, user: Json) -> None:
    await server.ask("DELETE", f"/users/{user['id']}", token=ADMINISTRATOR)


async def revoke(_server: ApiServer, browser: Browser, _user: Json) -> None:
    (token,) = (await browser.ask("GET", "/auth/tokens")).items
    await browser.ask("DELETE", f"/auth/tokens/{token['id']}")


@pytest.mark.promise("P12")
@pytest.mark.parametrize("end", [suspend, delete, revoke])
async def test_a_revoked_token_is_refused_on_every_replica_at_once(
    dsn: str, end: Revocation
) -> None:
    async with (
        listening_changes(dsn) as changes,
        listening_changes(dsn) as other_changes,
        serve_api(dsn, ApiOptions(changes=changes)) as server,
        serve_api(dsn, ApiOptions(changes=other_changes)) as other,
    ):
        user, browser, token = await ada(server)
        for at in (server, other):
            assert (await at.ask("GET", "/chats", token=token)).status == 200
        heard: list[asyncio.Event] = []
        for replica_changes in (changes, other_changes):
            event = asyncio.Event()
            heard.append(event)
            replica_changes.subscribe(lambda _change, event=event: event.set())
        await end(server, browser, user)
        async with asyncio.timeout(10):
            for event in heard:
                await event.wait()
        for at in (server, other):
            assert (await at.ask("GET", "/chats", token=token)).code == (401, "unauthorized")


async def test_a_role_that_is_taken_away_is_gone_on_every_replica(dsn: str) -> None:
    async with (
        listening_changes(dsn) as changes,
        serve_api(dsn, ApiOptions(changes=changes)) as server,
    ):
        user = await create_user(server, role="admin")
        browser = await Browser(server).sign_in()
        assert (await browser.ask("GET", "/users")).status == 200
        heard = asyncio.Event()
        changes.subscribe(lambda _change: heard.set())
        path = f"/users/{user['id']}"
        await server.ask("PATCH", path, {"role": "member"}, token=ADMINISTRATOR)
        async with asyncio.timeout(10):
            await heard.wait()
        assert (await browser.ask("GET", "/users")).code == (403, "forbidden")


async def test_an_expired_token_is_refused_although_it_was_cached(dsn: str) -> None:
    clock = FakeClock()
    async with serve_api(dsn, ApiOptions(clock=clock)) as server:
        _, _, token = await ada(server, expires_at="2999-01-01T00:00:00Z")
        await server.replica.pool.execute(
            "UPDATE credentials SET expires_at = now() + interval '20 seconds' WHERE kind = 'token'"
        )
        assert (await server.ask("GET", "/chats", token=token)).status == 200
        await server.replica.pool.execute(
            "UPDATE credentials SET expires_at = now() - interval '1 second' WHERE kind = 'token'"
        )
        assert (await server.ask("GET", "/chats", token=token)).status == 200
        clock.advance(21)
        assert (await server.ask("GET", "/chats", token=token)).status == 401


async def test_users_are_limited_by_group_of_routes_and_administrators_are_not(dsn: str) -> None:
    limits = AccountsConfig(limits=RequestLimits(requests=5, chats=2, files=1))
    async with serve_api(dsn, ApiOptions(accounts=limits)) as server:
        body = {"content": [{"type": "text", "text": "hello"}]}
        made = [await server.ask("POST", "/chats", body) for _ in range(3)]
        assert [reply.status for reply in made] == [201, 201, 429]
        assert made[-1].code == (429, "rate_limited")
        assert made[-1].headers["retry-after"] == "30"
        listed = [(await server.ask("GET", "/chats")).status for _ in range(6)]
        assert listed == [200] * 5 + [429]
        for _ in range(8):
            assert (await server.ask("GET", "/chats", token=ADMINISTRATOR)).status == 200


@pytest.mark.promise("P12")
@pytest.mark.parametrize("end", [suspend, delete, revoke])
async def test_open_streams_on_every_replica_end_with_the_token_that_opened_them(
    dsn: str, end: Revocation
) -> None:
    async with two_replicas(dsn) as (here, there):
        user, browser, token = await ada(here)
        headers = authorized(token)
        async with (
            event_source(here, "/events", token=token) as source,
            event_source(there, "/events", token=token) as source_there,
            event_source(there, "/events", token=ME) as other,
            there.http.ws_connect("/api/v1/ws", headers=headers) as socket,
        ):
            for each in (source, source_there, other):
                await each.json()
            await end(here, browser, user)
            for each in (source, source_there):
                assert (await each.json())["code"] == "signed_out"
            closed = await socket.receive(timeout=30)
            assert (closed.type, closed.data) == (WSMsgType.CLOSE, 1008)
            await there.create("still here")
            assert (await other.json())["type"] == "chat"


async def test_a_stream_ends_when_its_token_expires(dsn: str) -> None:
    clock = FakeClock()
    async with serve_api(dsn, ApiOptions(clock=clock)) as server:
        expires_at = clock.now() + timedelta(days=10_000)
        _, _, token = await ada(server, expires_at=expires_at.isoformat())
        async with event_source(server, "/events", token=token) as source:
            await source.json()
            clock.advance(10_001 * 86_400)
            assert (await source.json())["code"] == "signed_out"
