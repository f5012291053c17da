"""What chatd accepts of MCP servers and their authorization servers when a user connects."""

import pytest

from chatd.mcp import oauth_http
from tests.support.api.server import ApiOptions, ApiServer, serve_api
from tests.support.mcp.authorization_server import (
    AuthorizationServer,
    authorization_server,
    plain_resource,
    query_of,
)
from tests.support.mcp.bad_servers import never, raw_server
from tests.support.mcp.connections import Browser, add_server, prepared


async def refused_start(server: ApiServer, authorization: AuthorizationServer, url: str) -> str:
    """Why the connection cannot be begun."""
    server_id = await add_server(server, url)
    reply = await Browser(server).start(server_id)
    assert reply.code == (409, "mcp_oauth_failed")
    assert authorization.calls["token"] == 0
    return str(reply.json["message"])


async def test_a_private_server_is_asked_only_if_the_operator_named_its_host(
    dsn: str, authorization: AuthorizationServer
) -> None:
    options = ApiOptions(mcp_hosts=frozenset({"mcp.internal"}))
    async with serve_api(dsn, options) as server, plain_resource(authorization) as url:
        assert "not public" in await refused_start(server, authorization, url)
        assert authorization.calls["metadata"] == 0


@pytest.mark.parametrize(
    ("issuer", "reason"),
    [
        ("http://169.254.169.254/latest/meta-data", "not encrypted"),
        ("https://169.254.169.254/latest/meta-data", "not public"),
        ("https://[::ffff:169.254.169.254]", "not public"),
        ("https://localhost:1", "not public"),
        ("https://2130706433", "cannot be reached"),
        ("https://user@example.com", "no http address"),
        ("file:///etc/passwd", "no http address"),
    ],
)
async def test_a_server_cannot_lead_chatd_to_a_private_authorization_server(
    server: ApiServer, authorization: AuthorizationServer, issuer: str, reason: str
) -> None:
    async with plain_resource(authorization, authorization_servers=[issuer]) as url:
        assert reason in await refused_start(server, authorization, url)


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"issuer": "https://other.example.com"}, "another issuer"),
        ({"token_endpoint": "http://169.254.169.254/token"}, "not encrypted"),
        ({"authorization_endpoint": "javascript:alert(1)"}, "no http address"),
        ({"registration_endpoint": "https://169.254.169.254/register"}, "not public"),
        ({"registration_endpoint": None}, "does not register clients"),
        ({"code_challenge_methods_supported": ["plain"]}, "PKCE"),
        ({"padding": "x" * 1_200_000}, "too long"),
    ],
)
async def test_a_description_that_cannot_be_trusted_is_refused(
    server: ApiServer,
    authorization: AuthorizationServer,
    metadata: dict[str, object],
    reason: str,
) -> None:
    authorization.metadata = metadata
    async with plain_resource(authorization) as url:
        assert reason in await refused_start(server, authorization, url)


async def test_a_code_is_not_sent_to_a_private_token_endpoint(
    server: ApiServer, authorization: AuthorizationServer
) -> None:
    """An endpoint of another host than the issuer is allowed, as large vendors have it; a private
    one is not."""
    authorization.metadata = {"token_endpoint": "https://169.254.169.254/token"}
    async with prepared(server, authorization) as server_id:
        page = await Browser(server).connect(server_id, authorization)
        assert (page.status, "not public" in page.text) == (409, True)


async def test_a_token_endpoint_of_another_origin_is_used(
    server: ApiServer, authorization: AuthorizationServer
) -> None:
    async with authorization_server() as other, prepared(server, authorization) as server_id:
        authorization.metadata = {"token_endpoint": f"{other.issuer}/token"}
        page = await Browser(server).connect(server_id, authorization)
        assert page.status == 409, "the other server does not know the code"
        assert (authorization.calls["token"], other.calls["token"]) == (0, 1)


async def test_a_redirect_to_another_host_is_not_followed(
    server: ApiServer, authorization: AuthorizationServer
) -> None:
    async with authorization_server() as other, plain_resource(authorization) as url:
        path = "/.well-known/oauth-authorization-server"
        authorization.redirects_metadata_to = f"{other.issuer}{path}"
        assert "another host" in await refused_start(server, authorization, url)
        assert other.calls["metadata"] == 0


async def test_a_server_that_describes_another_resource_is_refused(
    server: ApiServer, authorization: AuthorizationServer
) -> None:
    async with plain_resource(authorization, resource="https://bank.example.com/api") as url:
        assert "another resource" in await refused_start(server, authorization, url)


async def test_a_silent_authorization_server_ends_in_an_error(
    server: ApiServer, authorization: AuthorizationServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oauth_http, "OAUTH_TIMEOUT_S", 0.2)
    async with raw_server(never) as (url, _):
        assert "did not answer" in await refused_start(server, authorization, url)


async def test_a_client_that_was_set_up_by_hand_needs_no_discovery(
    server: ApiServer, authorization: AuthorizationServer
) -> None:
    authorization.clients["by-hand"] = {"redirect_uris": [], "client_secret": "hand-made-secret"}
    async with plain_resource(authorization) as url:
        oauth = {
            "client_id": "by-hand",
            "client_secret": "hand-made-secret",
            "authorization_url": f"{authorization.issuer}/authorize",
            "token_url": f"{authorization.issuer}/token",
        }
        server_id = await add_server(server, url, oauth=oauth, scopes="read")
        started = await Browser(server).start(server_id)
        asked = query_of(str(started.json["authorization_url"]))
        authorization.clients["by-hand"]["redirect_uris"] = [asked["redirect_uri"]]
        assert (asked["client_id"], asked["scope"]) == ("by-hand", "read")
        assert (await Browser(server).connect(server_id, authorization)).status == 200
        assert authorization.calls["metadata"] + authorization.calls["register"] == 0
