"""Sign-in by a real, certified OpenID provider."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

import pytest
from aiohttp import CookieJar
from msgspec.structs import replace

from chatd.api.accounts.authenticator import AccountsConfig
from chatd.api.accounts.oidc import OidcConfig
from chatd.domain.access.accounts import IdentityRules
from tests.support.api.accounts import create_user
from tests.support.api.oidc import CLIENT_SECRET, OidcBrowser, free_port, running_provider
from tests.support.api.server import ADMINISTRATOR, ApiOptions, ApiServer, serve_api

# Starts a provider in node, which may have to be installed.
pytestmark = pytest.mark.timeout(180)

RULES: Final = IdentityRules(allowed_domains=("example.com",), auto_create=True)


@asynccontextmanager
async def oidc_server(
    dsn: str, rules: IdentityRules = RULES
) -> AsyncGenerator[tuple[ApiServer, str]]:
    """A server and its address."""
    port = free_port()
    config = AccountsConfig(
        oidc=OidcConfig(
            issuer=f"http://127.0.0.1:{port}",
            client_id="chatd",
            client_secret=CLIENT_SECRET,
            name="Example",
            scopes="openid email profile groups",
        ),
        identity_rules=rules,
        managed_groups=("Crew", "Pilots"),
    )
    async with serve_api(dsn, ApiOptions(accounts=config)) as server:
        url = f"http://127.0.0.1:{server.port}"
        async with running_provider(port, f"{url}/api/v1/auth/oidc/callback"):
            yield server, url


@asynccontextmanager
async def browser_at(url: str) -> AsyncGenerator[OidcBrowser]:
    browser = OidcBrowser(url)
    try:
        yield browser
    finally:
        await browser.close()


async def test_users_of_the_provider_sign_in_and_get_accounts(dsn: str) -> None:
    """Slow: starts node. One provider for all that it may say."""
    rules = replace(RULES, groups_claim="groups", admin_groups=("ops",))
    async with oidc_server(dsn, rules) as (server, url):
        methods = await server.ask("GET", "/auth/methods", token=None)
        assert methods.json == {"password": True, "oidc": "Example"}
        async with browser_at(url) as browser:
            assert await browser.sign_in("ada@example.com", "/docs") == (302, "/docs")
            me = await browser.me()
            assert me is not None
            assert (me["username"], me["email"], me["role"], me["name"]) == (
                *("ada", "ada@example.com", "member", "Ada Lovelace"),
            )
            assert [one["name"] for one in (await groups(server))] == ["Crew"]
            again = await browser.sign_in("ada@example.com", "//evil.example")
            assert again == (302, "/"), "only a path of this server"
        async with browser_at(url) as browser:
            assert await browser.sign_in("ada@example.com") == (302, "/")
            assert await browser.me() == me, "known by issuer and subject"
        async with browser_at(url) as browser:
            await browser.sign_in("ops@example.com")
            assert (await browser.me() or {})["role"] == "admin"
        for login in ("eve@evil.example", "unverified@example.com"):
            async with browser_at(url) as browser:
                assert await browser.sign_in(login) == (403, "identity_not_allowed")
                assert await browser.me() is None
        await check_refused_answers(url)


async def groups(server: ApiServer) -> list[dict[str, object]]:
    return (await server.ask("GET", "/groups", token=ADMINISTRATOR)).items


async def check_refused_answers(url: str) -> None:
    """Replayed, of another browser, with another state or code."""
    refused = (401, "identity_refused")
    async with browser_at(url) as browser, browser_at(url) as other:
        answer = await browser.answer("ada@example.com")
        assert await other.open(answer) == refused, "begun in another browser"
        assert await browser.open(answer.replace("state=", "state=x")) == refused
        kept = [cookie for cookie in browser.http.cookie_jar if cookie.key == "chatd_oidc"]
        assert await browser.open(answer) == (302, "/")
        jar = browser.http.cookie_jar
        assert isinstance(jar, CookieJar)
        jar.update_cookies({cookie.key: cookie.value for cookie in kept}, browser.address)
        assert await browser.open(answer) == refused, "used before"
    async with browser_at(url) as browser:
        answer = await browser.answer("ada@example.com")
        assert await browser.open(answer.replace("code=", "code=x")) == refused
    async with browser_at(url) as browser:
        answer = await browser.answer("ada@example.com")
        denied = answer.replace("code=", "error=access_denied&was=")
        assert await browser.open(denied) == refused
        page = (302, "/sign-in?problem=identity_refused")
        assert await browser.open(denied, "text/html,*/*;q=0.8") == page


async def test_an_existing_user_is_linked_by_email_only_if_that_is_allowed(dsn: str) -> None:
    """Slow: starts node twice."""
    for link_by_email, status in ((False, 403), (True, 302)):
        rules = IdentityRules(link_by_email=link_by_email)
        async with oidc_server(dsn, rules) as (server, url), browser_at(url) as browser:
            if not link_by_email:
                await create_user(server, "countess", email="ada@example.com", role="viewer")
            assert (await browser.sign_in("ada@example.com"))[0] == status
            me = await browser.me()
            assert (None if me is None else me["username"]) == (
                "countess" if link_by_email else None
            )
            async with browser_at(url) as other:
                assert (await other.sign_in("bob@example.com"))[0] == 403, "no new accounts"


async def test_a_provider_that_is_away_is_reported(dsn: str) -> None:
    oidc = OidcConfig(issuer=f"http://127.0.0.1:{free_port()}", client_id="chatd")
    options = ApiOptions(accounts=AccountsConfig(oidc=oidc))
    async with serve_api(dsn, options) as server:
        reply = await server.ask("GET", "/auth/oidc/start", token=None)
        assert reply.code == (502, "identity_provider_failed")
    async with serve_api(dsn) as server:
        reply = await server.ask("GET", "/auth/oidc/start", token=None)
        assert reply.code == (404, "not_found")
