"""Sign-in with a password or a link, sessions, CSRF, tickets, and limits of attempts."""

import asyncio
from collections import Counter
from uuid import UUID

import aiohttp
import pytest

from chatd.api.accounts.authenticator import AccountsConfig
from chatd.api.accounts.sign_in import create_link
from chatd.api.accounts.site import SiteConfig
from chatd.domain.access.permissions import ADMIN_USER_ID, SystemActor
from chatd.domain.ids import CredentialId
from tests.support.api.accounts import (
    PASSWORD,
    Browser,
    create_token,
    create_user,
    listening_changes,
)
from tests.support.api.server import (
    ADMINISTRATOR,
    ApiOptions,
    ApiServer,
    authorized,
    serve_api,
)


async def audit_actions(server: ApiServer) -> list[tuple[object, object]]:
    """Of sign-ins, newest first."""
    listed = await server.ask("GET", "/audit?limit=200", token=ADMINISTRATOR)
    return [
        (entry["outcome"], entry["object_id"])
        for entry in listed.items
        if entry["action"] == "user.sign_in"
    ]


async def test_a_browser_signs_in_and_uses_the_api(server: ApiServer) -> None:
    user = await create_user(server)
    browser = await Browser(server).sign_in()
    me = await browser.ask("GET", "/auth/me")
    assert (me.json["credential"], me.json["csrf_token"]) == ("session", browser.csrf_token)
    seen = await server.ask("GET", f"/users/{user['id']}", token=ADMINISTRATOR)
    assert me.json["user"] == seen.json
    chat = {"content": [{"type": "text", "text": "hello"}]}
    assert (await browser.ask("POST", "/chats", chat)).status == 201
    (session,) = (await browser.ask("GET", "/auth/sessions")).items
    assert (session["is_current"], session["ip"]) == (True, "127.0.0.1")
    assert await audit_actions(server) == [("done", user["id"])]


async def test_a_session_that_was_signed_out_is_refused(dsn: str) -> None:
    async with listening_changes(dsn) as changes, serve_api(dsn, ApiOptions(changes=changes)) as at:
        await create_user(at)
        browser = await Browser(at).sign_in()
        old = browser.cookie
        assert (await browser.ask("POST", "/auth/logout")).status == 204
        assert browser.cookies["chatd_session"] == ""
        async with asyncio.timeout(10):
            while (await browser.ask("GET", "/auth/me", headers={"Cookie": old})).status != 401:
                pass
        assert (await at.ask("POST", "/auth/logout", token=ADMINISTRATOR)).status == 204
        assert (await at.ask("GET", "/auth/me", token=ADMINISTRATOR)).status == 200


async def test_an_unknown_user_and_a_wrong_password_get_the_same_reply(server: ApiServer) -> None:
    ada = await create_user(server, email="ada@example.com")
    await create_user(server, "robot", is_service=True)
    replies = [
        await Browser(server).ask("POST", "/auth/login", {"username": name, "password": given})
        for name, given in (
            ("ada", "a wrong password"),
            ("nobody-at-all", PASSWORD),
            ("robot", PASSWORD),
            ("admin", PASSWORD),
            ("ada", ""),
        )
    ]
    assert {reply.code for reply in replies} == {(401, "invalid_login")}
    assert len({reply.content for reply in replies}) == 1
    assert all("set-cookie" not in reply.headers for reply in replies)
    assert Counter(await audit_actions(server))["refused", ada["id"]] == 2
    assert Counter(await audit_actions(server))["refused", "unknown"] == 1
    await Browser(server).sign_in("ADA@example.com")


async def test_a_suspended_user_cannot_sign_in(server: ApiServer) -> None:
    user = await create_user(server)
    path = f"/users/{user['id']}"
    await server.ask("PATCH", path, {"status": "suspended"}, token=ADMINISTRATOR)
    reply = await Browser(server).ask(
        "POST", "/auth/login", {"username": "ada", "password": PASSWORD}
    )
    assert reply.code == (401, "invalid_login")


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, None),
        ({"Origin": None, "Sec-Fetch-Site": "same-origin"}, None),
        ({"X-CSRF-Token": None}, "csrf_token_required"),
        ({"X-CSRF-Token": "wrong"}, "csrf_token_required"),
        ({"Origin": "https://evil.example"}, "cross_site_request"),
        ({"Origin": "null"}, "cross_site_request"),
        ({"Origin": None}, "cross_site_request"),
        ({"Origin": None, "Sec-Fetch-Site": "cross-site"}, "cross_site_request"),
        ({"Host": "evil.example", "Origin": "http://evil.example"}, "host_not_allowed"),
        ({"Cookie": None}, "unauthorized"),
    ],
)
async def test_a_write_with_the_cookie_needs_the_csrf_token_and_a_page_of_this_server(
    server: ApiServer, headers: dict[str, str | None], code: str | None
) -> None:
    await create_user(server)
    browser = await Browser(server).sign_in()
    reply = await browser.ask("POST", "/auth/tokens", {"name": "x"}, headers=headers)
    assert (None if reply.status == 201 else reply.json["code"]) == code


async def test_a_bearer_token_is_exempt_from_checks_of_pages(server: ApiServer) -> None:
    headers = {"Origin": "https://evil.example", "Host": "anything.example"}
    assert (await server.ask("GET", "/chats", headers=headers)).status == 200
    chat = {"content": [{"type": "text", "text": "hello"}]}
    assert (await server.ask("POST", "/chats", chat, headers=headers)).status == 201


async def test_another_site_cannot_sign_a_browser_in(server: ApiServer) -> None:
    await create_user(server)
    body = {"username": "ada", "password": PASSWORD}
    for headers, code in (
        ({"Origin": "https://evil.example"}, "cross_site_request"),
        ({"Origin": None, "Sec-Fetch-Site": "cross-site"}, "cross_site_request"),
        ({"Host": "evil.example", "Origin": "http://evil.example"}, "host_not_allowed"),
        ({"Host": "192.0.2.1", "Origin": "http://192.0.2.1"}, "insecure_connection"),
    ):
        reply = await Browser(server).ask("POST", "/auth/login", body, headers=headers)
        assert reply.code == (403, code)
    program = await Browser(server).ask("POST", "/auth/login", body, headers={"Origin": None})
    assert program.status == 200


async def test_a_public_server_gives_a_cookie_for_https_only(dsn: str) -> None:
    site = SiteConfig(url="https://chat.example.com", allowed_origins=("https://app.example.com",))
    async with serve_api(dsn, ApiOptions(accounts=AccountsConfig(site=site))) as server:
        await create_user(server)
        page = {"Host": "chat.example.com", "Origin": "https://chat.example.com"}
        browser = Browser(server)
        reply = await browser.ask(
            "POST", "/auth/login", {"username": "ada", "password": PASSWORD}, headers=page
        )
        assert set(browser.cookies) == {"__Host-chatd_session", "__Host-chatd_device"}
        for cookie in reply.set_cookies:
            assert cookie.endswith("; HttpOnly; SameSite=Lax; Secure")
        assert (await browser.ask("GET", "/auth/me", headers=page)).status == 200
        other = {"Host": "chat.example.com", "Origin": "https://app.example.com"}
        answer = await browser.ask("GET", "/auth/me", headers=other)
        assert answer.headers["access-control-allow-origin"] == "https://app.example.com"
        preflight = {**other, "Access-Control-Request-Method": "PATCH"}
        asked = await browser.ask("OPTIONS", "/chats", headers=preflight)
        assert (asked.status, asked.headers["access-control-max-age"]) == (204, "600")


async def test_a_changed_password_ends_all_other_sessions(dsn: str) -> None:
    async with listening_changes(dsn) as changes, serve_api(dsn, ApiOptions(changes=changes)) as at:
        await create_user(at)
        mine, other = await Browser(at).sign_in(), await Browser(at).sign_in()
        token = await create_token(other)
        new = {"current_password": PASSWORD, "new_password": "another passphrase"}
        for body, code in (
            (new | {"current_password": "a wrong password"}, "wrong_password"),
            (new | {"current_password": None}, "wrong_password"),
            (new | {"new_password": "short"}, "invalid_input"),
        ):
            assert (await mine.ask("POST", "/auth/password", body)).code == (400, code)
        assert (await mine.ask("POST", "/auth/password", new)).status == 204
        assert (await mine.ask("GET", "/auth/me")).status == 200
        async with asyncio.timeout(10):
            while (await other.ask("GET", "/auth/me")).status != 401:
                pass
        assert (await at.ask("GET", "/chats", token=str(token["token"]))).status == 200
        await Browser(at).sign_in("ada", "another passphrase")


@pytest.mark.promise("P12")
async def test_a_token_with_scopes_cannot_set_the_first_password_of_its_user(
    server: ApiServer,
) -> None:
    """Such a password would give its holder a session with all scopes."""
    wanted = {"name": "narrow", "scopes": ["account"]}
    made = await server.ask("POST", "/auth/tokens", wanted, token=ADMINISTRATOR)
    body, token = {"new_password": "another passphrase"}, str(made.json["token"])
    refused = await server.ask("POST", "/auth/password", body, token=token)
    assert refused.code == (403, "missing_scope")
    assert (await server.ask("POST", "/auth/password", body, token=ADMINISTRATOR)).status == 204


async def test_a_link_signs_in_once(server: ApiServer) -> None:
    async def link(number: int) -> str:
        made = await create_link(
            server.replica.pool,
            SystemActor(reason="test"),
            ADMIN_USER_ID,
            CredentialId(UUID(int=number)),
        )
        return made[0]

    assert (await Browser(server).ask("GET", "/setup")).json["needed"] is True
    secret, browser = await link(1), Browser(server)
    assert (await browser.ask("POST", "/auth/link", {"secret": secret})).status == 200
    me = await browser.ask("GET", "/auth/me")
    assert (
        me.json["user"] == (await server.ask("GET", "/auth/me", token=ADMINISTRATOR)).json["user"]
    )
    assert (await Browser(server).ask("GET", "/setup")).json == {"needed": False, "message": None}
    again = await Browser(server).ask("POST", "/auth/link", {"secret": secret})
    assert again.code == (401, "invalid_link")
    old = await link(2)
    await server.replica.pool.execute(
        "UPDATE credentials SET expires_at = now() - interval '1 second' WHERE kind = 'link'"
    )
    for wrong in (old, "", "x" * 43, "x" * 1000):
        reply = await Browser(server).ask("POST", "/auth/link", {"secret": wrong})
        assert reply.code == (401, "invalid_link")
    fresh = await link(3)
    for number in range(70):
        await Browser(server).ask("POST", "/auth/link", {"secret": f"{number:043}"})
    reply = await Browser(server).ask("POST", "/auth/link", {"secret": fresh})
    assert reply.status == 200, "guesses keep no valid link out"
    refused = [entry for entry in await audit_actions(server) if entry[0] == "refused"]
    assert 60 <= len(refused) < 70, "a flood fills no audit log"


async def test_a_session_is_revoked_by_its_id_and_only_by_its_user(server: ApiServer) -> None:
    await create_user(server)
    await create_user(server, "bob")
    mine, other = await Browser(server).sign_in(), await Browser(server).sign_in("bob")
    (session,) = (await other.ask("GET", "/auth/sessions")).items
    path = f"/auth/sessions/{session['id']}"
    assert (await mine.ask("DELETE", path)).status == 404
    assert (await other.ask("DELETE", path)).status == 204
    assert (await other.ask("DELETE", path)).status in (401, 404)


# Tickets


async def new_ticket(server: ApiServer, token: str = ADMINISTRATOR) -> str:
    made = await server.ask("POST", "/auth/ticket", token=token)
    assert made.status == 200
    return str(made.json["ticket"])


async def stream_status(server: ApiServer, path: str, **headers: str) -> int:
    async with server.http.get(f"/api/v1{path}", headers=headers) as response:
        return response.status


async def test_a_ticket_opens_one_stream(server: ApiServer) -> None:
    ticket = await new_ticket(server)
    assert await stream_status(server, f"/events?ticket={ticket}") == 200
    assert await stream_status(server, f"/events?ticket={ticket}") == 401
    for wrong in ("", "x", "y" * 43):
        assert await stream_status(server, f"/events?ticket={wrong}") == 401
    ticket = await new_ticket(server)
    assert (await server.ask("GET", f"/chats?ticket={ticket}", token=None)).status == 401
    async with server.http.ws_connect(f"/api/v1/ws?ticket={ticket}") as socket:
        await socket.send_json({"type": "ping"})
        assert "pong" in (await socket.receive()).data
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await server.http.ws_connect(f"/api/v1/ws?ticket={ticket}")
    assert refused.value.status == 401


async def test_a_ticket_is_consumed_once_over_two_replicas(dsn: str, server: ApiServer) -> None:
    async with serve_api(dsn) as other:
        ticket = await new_ticket(server)
        opened = await asyncio.gather(
            *(stream_status(at, f"/events?ticket={ticket}") for at in (server, other) * 3)
        )
    assert sorted(opened) == [200] + [401] * 5


async def test_a_ticket_has_the_scopes_of_its_token_and_ends_with_it(server: ApiServer) -> None:
    await create_user(server)
    browser = await Browser(server).sign_in()
    token = await create_token(browser, scopes=["account"])
    ticket = await new_ticket(server, str(token["token"]))
    assert await stream_status(server, f"/events?ticket={ticket}") == 403
    token = await create_token(browser, scopes=["chat:read"])
    ticket = await new_ticket(server, str(token["token"]))
    await browser.ask("DELETE", f"/auth/tokens/{token['id']}")
    assert await stream_status(server, f"/events?ticket={ticket}") == 401


async def test_streams_by_cookie_are_for_pages_of_this_server(server: ApiServer) -> None:
    await create_user(server)
    browser = await Browser(server).sign_in()
    cookie, own = {"Cookie": browser.cookie or ""}, {"Origin": browser.origin}
    evil = {"Origin": "https://evil.example"}
    assert await stream_status(server, "/events", **cookie) == 200
    assert await stream_status(server, "/events", **cookie, **own) == 200
    assert await stream_status(server, "/events", **cookie, **evil) == 403
    async with server.http.ws_connect("/api/v1/ws", headers=cookie | own) as socket:
        await socket.send_json({"type": "ping"})
        assert "pong" in (await socket.receive()).data
    for headers in (cookie, cookie | evil):
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await server.http.ws_connect("/api/v1/ws", headers=headers)
        assert refused.value.status == 403
    exempt = authorized(ADMINISTRATOR) | evil
    async with server.http.ws_connect("/api/v1/ws", headers=exempt) as socket:
        assert not socket.closed
