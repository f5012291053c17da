"""Users connect to MCP servers over HTTP, with a real authorization server on loopback."""

import asyncio

import pytest

from tests.support.api.server import (
    ADMINISTRATOR,
    OTHER_OWNER,
    OTHER_USER,
    ApiServer,
    serve_api,
)
from tests.support.mcp.authorization_server import (
    AuthorizationServer,
    plain_resource,
    query_of,
)
from tests.support.mcp.connections import Browser, add_server, prepared


async def test_two_users_connect_with_one_registered_client(
    server: ApiServer, authorization: AuthorizationServer
) -> None:
    async with prepared(server, authorization) as server_id:
        mine, other = Browser(server), Browser(server, OTHER_USER)
        assert (await mine.connection(server_id))["state"] == "needs_connect"
        started = await mine.start(server_id)
        asked = query_of(str(started.json["authorization_url"]))
        assert (asked["scope"], asked["code_challenge_method"]) == ("tools offline_access", "S256")
        assert asked["resource"].endswith("/mcp")
        page = await mine.connect(server_id, authorization)
        assert (page.status, "You are connected to notes" in page.text) == (200, True)
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert "/sign-in/mcp-connected.js" in page.text
        script = await server.open_page("/sign-in/mcp-connected.js")
        assert (script.status, b"postMessage(result, location.origin)" in script.content) == (
            200,
            True,
        )
        authorization.user = "ben"
        await other.connect(server_id, authorization)
        for browser in (mine, other):
            found = await browser.connection(server_id)
            assert (found["state"], found["reason"]) == ("connected", "")
            assert found["expires_at"] is not None
        assert authorization.calls["register"] == 1
        assert mine.cookies == other.cookies == {}
        rows = await server.replica.pool.fetch("SELECT DISTINCT user_id, id FROM mcp_tokens")
        assert len(rows) == 2


async def test_a_confidential_client_authenticates_with_its_sealed_secret(
    server: ApiServer, authorization: AuthorizationServer
) -> None:
    authorization.confidential = True
    async with prepared(server, authorization) as server_id:
        page = await Browser(server).connect(server_id, authorization)
        assert page.status == 200
    stored = await server.replica.pool.fetchval("SELECT sealed_secret FROM mcp_registrations")
    secret = str(next(iter(authorization.clients.values()))["client_secret"])
    assert stored.startswith("sealed1.")
    assert secret not in stored


@pytest.mark.promise("P13")
async def test_no_secret_is_in_a_reply_or_readable_in_the_database(
    server: ApiServer, authorization: AuthorizationServer
) -> None:
    authorization.confidential = True
    async with prepared(server, authorization) as server_id:
        browser = Browser(server)
        page = await browser.connect(server_id, authorization)
        shown = [page.text]
        for method, path in (
            ("GET", "/mcp-servers"),
            ("GET", "/mcp-server-configs"),
            ("GET", f"/mcp-server-configs/{server_id}"),
            ("POST", f"/mcp-server-configs/{server_id}/test"),
            ("GET", "/audit"),
        ):
            reply = await server.ask(method, path, token=ADMINISTRATOR)
            shown.append(reply.content.decode())
        for table in ("mcp_servers", "mcp_registrations", "mcp_tokens", "audit_log"):
            rows = await server.replica.pool.fetch(f"SELECT t::text AS row FROM {table} t")
            shown += [row["row"] for row in rows]
        shown.append((await browser.disconnect(server_id)).content.decode())
        assert len(authorization.secrets) >= 3
        for secret in authorization.secrets:
            assert all(secret not in text for text in shown), secret


async def test_an_answer_is_used_once(
    server: ApiServer, authorization: AuthorizationServer
) -> None:
    async with prepared(server, authorization) as server_id:
        browser = Browser(server)
        url = await browser.leave(server_id, authorization)
        cookies = dict(browser.cookies)
        assert (await browser.come_back(url)).status == 200
        browser.cookies = cookies
        again = await browser.come_back(url)
        assert (again.status, "Connect again" in again.text) == (409, True)
        assert authorization.calls["token"] == 1


async def test_an_answer_belongs_to_the_user_the_browser_and_the_server_that_began(
    server: ApiServer, authorization: AuthorizationServer
) -> None:
    async with prepared(server, authorization) as server_id, plain_resource(authorization) as url:
        second = await add_server(server, url, slug="second")
        mine, other = Browser(server), Browser(server, OTHER_USER)
        back = await mine.leave(server_id, authorization)
        other.cookies = dict(mine.cookies)
        assert (await other.come_back(back)).status == 409, "another user with the same cookie"
        fresh = Browser(server)
        assert (await fresh.come_back(back)).status == 409, "another browser of the user"
        moved = back.replace(server_id, second)
        renamed = {
            name.replace(server_id.replace("-", ""), second.replace("-", "")): value
            for name, value in mine.cookies.items()
        }
        fresh.cookies = renamed
        assert (await fresh.come_back(moved)).status == 409, "another server"
        assert authorization.calls["token"] == 0
        assert (await mine.come_back(back)).status == 200


async def test_a_state_that_was_changed_is_refused(
    server: ApiServer, authorization: AuthorizationServer
) -> None:
    async with prepared(server, authorization) as server_id:
        browser = Browser(server)
        back = await browser.leave(server_id, authorization)
        state = query_of(back)["state"]
        assert (await browser.come_back(back.replace(state, state[::-1]))).status == 409
        for name in browser.cookies:
            browser.cookies[name] = browser.cookies[name][:-4] + "AAAA"
        assert (await browser.come_back(back)).status == 409
        assert authorization.calls["token"] == 0


async def test_an_answer_of_another_issuer_is_refused(
    server: ApiServer, authorization: AuthorizationServer
) -> None:
    async with prepared(server, authorization) as server_id:
        browser = Browser(server)
        back = await browser.leave(server_id, authorization)
        port = authorization.issuer.rpartition(":")[2]
        forged = back.replace(f":{port}&code", ":1&code")
        assert forged != back
        page = await browser.come_back(forged)
        assert (page.status, "another authorization server" in page.text) == (409, True)
        without = back.partition("&iss=")[0] + "&code=" + query_of(back)["code"]
        assert (await browser.come_back(without)).status == 409, "it promised to name itself"
        assert authorization.calls["token"] == 0


async def test_a_user_who_says_no_gets_a_page_with_the_reason_as_text(
    server: ApiServer, authorization: AuthorizationServer
) -> None:
    async with prepared(server, authorization) as server_id:
        authorization.denies = True
        browser = Browser(server)
        page = await browser.connect(server_id, authorization)
        assert page.status == 409
        assert "access_denied &lt;b&gt;No&lt;/b&gt;" in page.text
        assert (await browser.connection(server_id))["state"] == "needs_connect"


async def test_a_failed_exchange_is_told_and_stores_nothing(
    server: ApiServer, authorization: AuthorizationServer
) -> None:
    async with prepared(server, authorization) as server_id:
        browser = Browser(server)
        back = await browser.leave(server_id, authorization)
        authorization.token_error = (500, {"error": "server_error"})
        page = await browser.come_back(back)
        assert (page.status, "server_error" in page.text) == (409, True)
        assert (await browser.connection(server_id))["state"] == "needs_connect"


async def test_a_client_that_the_authorization_server_forgot_is_registered_again(
    server: ApiServer, authorization: AuthorizationServer
) -> None:
    async with prepared(server, authorization) as server_id:
        browser = Browser(server)
        back = await browser.leave(server_id, authorization)
        authorization.clients.clear()
        assert (await browser.come_back(back)).status == 409
        assert (await browser.connect(server_id, authorization)).status == 200
        assert authorization.calls["register"] == 2


async def test_two_replicas_that_register_at_once_agree_on_one_client(
    dsn: str, authorization: AuthorizationServer
) -> None:
    async with (
        serve_api(dsn) as one,
        serve_api(dsn) as two,
        prepared(one, authorization) as server_id,
    ):
        host = {"host": "127.0.0.1:7915"}
        path = f"/mcp-servers/{server_id}/connect"
        both = await asyncio.gather(
            one.ask("POST", path, headers=host), two.ask("POST", path, headers=host)
        )
        used = {query_of(str(reply.json["authorization_url"]))["client_id"] for reply in both}
        assert len(used) == 1
        assert await one.replica.pool.fetchval("SELECT count(*) FROM mcp_registrations") == 1


async def test_a_server_that_registers_nobody_reads_the_description_that_chatd_publishes(
    server: ApiServer, authorization: AuthorizationServer
) -> None:
    authorization.metadata = {
        "registration_endpoint": None,
        "client_id_metadata_document_supported": True,
    }
    async with prepared(server, authorization) as server_id:
        browser = Browser(server)
        assert (await browser.connect(server_id, authorization)).status == 200
        assert authorization.calls["client document"] == 1
        (client_id,) = authorization.clients
        assert client_id.endswith(f"/api/v1/mcp-servers/{server_id}/client")
        assert (await browser.connection(server_id))["state"] == "connected"


async def test_the_description_is_published_over_https_only(
    dsn: str, authorization: AuthorizationServer
) -> None:
    """Unless the operator named the host: others could change it on the way."""
    authorization.metadata = {
        "registration_endpoint": None,
        "client_id_metadata_document_supported": True,
    }
    async with serve_api(dsn) as server, plain_resource(authorization) as url:
        server_id = await add_server(server, url)
        path, host = f"/mcp-servers/{server_id}/connect", {"host": "localhost:7915"}
        refused = await server.ask("POST", path, headers=host)
        assert refused.code == (409, "mcp_oauth_failed")
        assert "not encrypted" in str(refused.json["message"])


async def test_users_who_connect_at_the_same_moment_cause_one_registration(
    server: ApiServer, authorization: AuthorizationServer
) -> None:
    async with prepared(server, authorization) as server_id:
        both = await asyncio.gather(*(Browser(server).start(server_id) for _ in range(8)))
        assert {reply.status for reply in both} == {200}
        assert authorization.calls["register"] == 1
        (client,) = authorization.clients.values()
        assert client["application_type"] == "native", "it is on loopback"


async def test_fields_that_are_null_and_numbers_that_are_texts_are_understood(
    server: ApiServer, authorization: AuthorizationServer
) -> None:
    authorization.metadata = {"scopes_supported": None, "revocation_endpoint": None}
    authorization.lifetime_s = "120"
    async with prepared(server, authorization) as server_id:
        browser = Browser(server)
        assert (await browser.connect(server_id, authorization)).status == 200
        assert (await browser.connection(server_id))["expires_at"] is not None
        ended = await browser.disconnect(server_id)
        assert (ended.json["revoked"], "no way to revoke" in str(ended.json["failure"])) == (
            False,
            True,
        )


async def test_the_tokens_of_a_deleted_user_are_deleted(
    server: ApiServer, authorization: AuthorizationServer
) -> None:
    async with prepared(server, authorization) as server_id:
        await Browser(server, OTHER_USER).connect(server_id, authorization)
        path = f"/users/{OTHER_OWNER}"
        assert (await server.ask("DELETE", path, token=ADMINISTRATOR)).status == 204
        assert await server.replica.pool.fetchval("SELECT count(*) FROM mcp_tokens") == 0


async def test_a_disconnect_deletes_and_revokes_the_refresh_token(
    server: ApiServer, authorization: AuthorizationServer
) -> None:
    async with prepared(server, authorization) as server_id:
        mine, other = Browser(server), Browser(server, OTHER_USER)
        for browser in (mine, other):
            await browser.connect(server_id, authorization)
        ended = await mine.disconnect(server_id)
        assert (ended.status, ended.json) == (200, {"revoked": True, "failure": ""})
        assert authorization.forms[-1]["token_type_hint"] == "refresh_token"
        assert len(authorization.active_refresh_tokens()) == 1
        assert (await mine.connection(server_id))["state"] == "needs_connect"
        assert (await other.connection(server_id))["state"] == "connected"
        assert (await mine.disconnect(server_id)).code == (404, "not_found")


@pytest.mark.parametrize(
    ("unsupported", "status", "revoked", "calls"),
    [
        ({"refresh_token"}, 200, True, 2),
        ({"refresh_token", "access_token"}, 200, False, 2),
        (set[str](), 503, False, 1),
    ],
)
async def test_a_disconnect_deletes_the_tokens_whatever_the_authorization_server_says(
    server: ApiServer,
    authorization: AuthorizationServer,
    unsupported: set[str],
    status: int,
    revoked: bool,  # noqa: FBT001
    calls: int,
) -> None:
    async with prepared(server, authorization) as server_id:
        browser = Browser(server)
        await browser.connect(server_id, authorization)
        authorization.unsupported, authorization.revocation_status = unsupported, status
        ended = await browser.disconnect(server_id)
        assert (ended.json["revoked"], ended.json["failure"] == "") == (revoked, revoked)
        assert authorization.calls["revoke"] == calls
        assert await server.replica.pool.fetchval("SELECT count(*) FROM mcp_tokens") == 0


async def test_a_change_of_the_configuration_ends_connections_and_those_in_progress(
    server: ApiServer, authorization: AuthorizationServer
) -> None:
    async with prepared(server, authorization) as server_id:
        mine, other = Browser(server), Browser(server, OTHER_USER)
        await mine.connect(server_id, authorization)
        back = await other.leave(server_id, authorization)
        path = f"/mcp-server-configs/{server_id}"
        renamed = await server.ask("PATCH", path, {"display_name": "Notes"}, token=ADMINISTRATOR)
        assert renamed.json["version"] == 2
        assert (await mine.connection(server_id))["state"] == "connected"
        assert (await other.come_back(back)).status == 409, "begun with another configuration"
        await server.ask("PATCH", path, {"scopes": "all"}, token=ADMINISTRATOR)
        assert (await mine.connection(server_id))["state"] == "needs_connect"
        assert await server.replica.pool.fetchval("SELECT count(*) FROM mcp_registrations") == 0
