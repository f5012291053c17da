"""Sign-in against a real process, with a client that keeps cookies as browsers do."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from aiohttp import ClientSession

from tests.e2e.test_accounts import PASSWORD, browser_at
from tests.e2e.test_serve import TOKEN, address, chatd, client_of

pytestmark = pytest.mark.timeout(150)

LOGIN = "/api/v1/auth/login"
RIGHT = {"username": "ada", "password": PASSWORD}
WRONG = {"username": "ada", "password": "a wrong password"}


async def post(
    http: ClientSession, path: str, body: object = None, **headers: str
) -> tuple[int, dict[str, str]]:
    async with http.post(path, json=body, headers=headers) as reply:
        return reply.status, await reply.json() if reply.status != 204 else {}


async def status_of(http: ClientSession, path: str) -> int:
    async with http.get(path) as reply:
        return reply.status


@pytest.mark.promise("P12")
async def test_a_browser_signs_in_writes_and_opens_streams_and_no_other_can(
    dsn: str, tmp_path: Path
) -> None:
    """Slow: starts a server."""
    arguments = ("serve", "--data-dir", tmp_path, "--port", "0", "--database-url", dsn)
    variables = {"CHATD_ADMIN_TOKEN": TOKEN, "CHATD_WORKSPACES_ENABLED": "false"}
    async with chatd(*arguments, **variables) as process:
        url = await address(process)
        async with client_of(url, TOKEN) as administrator:
            made, _ = await post(administrator, "/api/v1/users", {**RIGHT, "role": "member"})
            assert made == 201
        async with browser_at(url) as http, browser_at(url) as stranger:
            status, refused = await post(http, LOGIN, RIGHT, Origin="https://evil.example")
            assert (status, refused["code"]) == (403, "cross_site_request")
            status, signed_in = await post(http, LOGIN, RIGHT, Origin=url)
            assert status == 200
            await check_writes(http, url, signed_in["csrf_token"])
            await check_tickets(http, stranger, url, signed_in["csrf_token"])
            await check_guesses(http, stranger, url)


async def check_writes(http: ClientSession, url: str, token: str) -> None:
    path, body = "/api/v1/auth/tokens", {"name": "job"}
    proof = {"Origin": url, "X-CSRF-Token": token}
    for headers, code in (
        ({"Origin": url}, "csrf_token_required"),
        ({**proof, "X-CSRF-Token": token[::-1]}, "csrf_token_required"),
        ({**proof, "Origin": "https://evil.example"}, "cross_site_request"),
        ({**proof, "Origin": "null"}, "cross_site_request"),
    ):
        status, reply = await post(http, path, body, **headers)
        assert (status, reply["code"]) == (403, code)
    status, _ = await post(http, path, body, **proof)
    assert status == 201


async def check_tickets(http: ClientSession, stranger: ClientSession, url: str, token: str) -> None:
    headers = {"Origin": url, "X-CSRF-Token": token}
    _, made = await post(http, "/api/v1/auth/ticket", **headers)
    path = f"/api/v1/events?ticket={made['ticket']}"
    assert await status_of(stranger, path) == 200
    assert await status_of(stranger, path) == 401, "a used ticket is useless"
    assert await status_of(stranger, "/api/v1/chats") == 401, "and leaves no session behind"


async def check_guesses(http: ClientSession, stranger: ClientSession, url: str) -> None:
    """Another browser at the same address guesses; only that one is kept out."""
    replies = await asyncio.gather(*(post(stranger, LOGIN, WRONG, Origin=url) for _ in range(20)))
    statuses = Counter(status for status, _ in replies)
    assert statuses.keys() == {401, 429}
    assert statuses[401] < 15
    assert await status_of(http, "/api/v1/auth/me") == 200, "the session goes on"
    assert (await post(http, LOGIN, RIGHT, Origin=url))[0] == 200, "and so does a new sign-in"
