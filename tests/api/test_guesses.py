"""Guesses of passwords and tokens are slowed down, and keep no right user out."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from chatd.api.accounts.authenticator import AccountsConfig
from chatd.api.accounts.request_limits import (
    ADDRESS_ATTEMPTS_PER_MINUTE,
    MAX_SIGN_IN_DELAY_S,
    MAX_SLOW_LOOKUPS_WAITING,
    WRONG_SECRETS_PER_MINUTE,
    LookUpLanes,
    address_group,
    delay_s,
)
from chatd.api.accounts.site import SiteConfig
from chatd.api.errors import RateLimited
from tests.support.api.accounts import PASSWORD, Browser, create_token, create_user
from tests.support.api.server import ADMINISTRATOR, ApiOptions, ApiReply, ApiServer, serve_api
from tests.support.clock import FakeClock

WRONG = {"username": "Ada", "password": "a wrong password"}
RIGHT = {"username": "ada", "password": PASSWORD}
PROXIED = AccountsConfig(site=SiteConfig(trusted_proxies=("127.0.0.1",)))


@pytest.fixture
async def server(dsn: str) -> AsyncGenerator[ApiServer]:
    async with serve_api(dsn) as server:
        yield server


def guess(number: int) -> str:
    return f"chatd_{number:012x}_{'g' * 43}"


async def sign_in(at: ApiServer, body: object, ip: str | None = None) -> ApiReply:
    headers = None if ip is None else {"X-Forwarded-For": ip}
    return await Browser(at).ask("POST", "/auth/login", body, headers=headers)


# Tokens


async def test_junk_tokens_keep_no_valid_token_of_the_same_address_out(server: ApiServer) -> None:
    await create_user(server)
    browser = await Browser(server).sign_in()
    token = str((await create_token(browser))["token"])
    numbers = range(3 * WRONG_SECRETS_PER_MINUTE)
    statuses = {(await server.ask("GET", "/chats", token=guess(one))).status for one in numbers}
    assert statuses == {401}
    assert (await server.ask("GET", "/chats", token=token)).status == 200, "never seen here before"
    assert (await browser.ask("GET", "/auth/me")).status == 200
    ticket = (await browser.ask("POST", "/auth/ticket")).json["ticket"]
    for secret, status in (("x" * 43, 401), (ticket, 200)):
        async with server.http.get(f"/api/v1/events?ticket={secret}") as stream:
            assert stream.status == status


async def test_a_known_wrong_token_is_refused_from_memory(server: ApiServer) -> None:
    await server.ask("GET", "/chats", token=guess(0))
    server.sent.clear()
    for _ in range(5):
        assert (await server.ask("GET", "/chats", token=guess(0))).status == 401
    assert not server.sent


async def test_guesses_of_one_address_are_looked_up_one_at_a_time() -> None:
    """And a bounded number waits, while other addresses and known secrets pass."""
    lanes = LookUpLanes(FakeClock())
    for _ in range(WRONG_SECRETS_PER_MINUTE + 5):
        lanes.count_wrong("192.0.2.1")
    asked, running, most = 0, 0, 0
    release, all_wait = asyncio.Event(), asyncio.Event()

    async def look_up() -> None:
        nonlocal asked, running, most
        asked += 1
        if asked == MAX_SLOW_LOOKUPS_WAITING:
            all_wait.set()
        async with lanes.lane("192.0.2.1"):
            running += 1
            most = max(most, running)
            await release.wait()
            running -= 1

    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        waiting = [group.create_task(look_up()) for _ in range(MAX_SLOW_LOOKUPS_WAITING)]
        await all_wait.wait()
        with pytest.raises(RateLimited):
            await look_up()
        async with lanes.lane("192.0.2.2"), lanes.lane("192.0.2.1", is_known=True):
            assert running == 1
        release.set()
    assert (most, len(waiting)) == (1, MAX_SLOW_LOOKUPS_WAITING)


def test_addresses_of_one_subscriber_count_as_one() -> None:
    assert address_group("2001:db8:1:2::1") == address_group("2001:db8:1:2:3::ffff")
    assert address_group("2001:db8:1:3::1") != address_group("2001:db8:1:2::1")
    assert address_group("::ffff:192.0.2.1") == address_group("192.0.2.1") == "192.0.2.1"
    assert (address_group(None), address_group("testclient")) == (None, "testclient")


# Passwords


async def test_wrong_passwords_of_others_do_not_keep_a_known_browser_out(
    dsn: str, server: ApiServer
) -> None:
    await create_user(server)
    await create_user(server, "bob")
    ada = await Browser(server).sign_in()
    async with serve_api(dsn) as other:
        replies = [await sign_in(at, WRONG) for at in (server, other) * 6]
        assert [reply.status for reply in replies] == [401] * 10 + [429] * 2
        refused = await sign_in(other, RIGHT)
        assert refused.code == (429, "rate_limited"), "a browser that Ada has not used"
        assert int(refused.headers["retry-after"]) == 6
        for at in (server, other):
            page = {"Origin": Browser(at).origin}
            again = await ada.ask("POST", "/auth/login", RIGHT, at=at, headers=page)
            assert again.status == 200
        assert (await sign_in(other, {**RIGHT, "username": "bob"})).status == 200


async def test_a_browser_is_known_only_for_the_user_who_signed_in(server: ApiServer) -> None:
    await create_user(server)
    await create_user(server, "bob")
    bob = await Browser(server).sign_in("bob")
    for _ in range(10):
        await sign_in(server, WRONG)
    assert (await bob.ask("POST", "/auth/login", RIGHT)).status == 429
    owner, device, mark = bob.cookies["chatd_device"].split(".")
    users = (await server.ask("GET", "/users", token=ADMINISTRATOR)).items
    [ada] = [str(user["id"]).replace("-", "") for user in users if user["username"] == "ada"]
    for forged in (f"{ada}.{device}.{mark}", f"{ada}..", "x", f"{owner}.{device}.é"):
        bob.cookies["chatd_device"] = forged
        assert (await bob.ask("POST", "/auth/login", RIGHT)).status == 429, forged


async def test_a_known_browser_has_ten_attempts_of_its_own(server: ApiServer) -> None:
    await create_user(server)
    ada = await Browser(server).sign_in()
    statuses = [(await ada.ask("POST", "/auth/login", WRONG)).status for _ in range(11)]
    assert statuses == [401] * 10 + [429]
    assert (await sign_in(server, RIGHT)).status == 200


async def test_wrong_passwords_from_one_address_do_not_keep_the_user_out_at_another(
    dsn: str,
) -> None:
    async with serve_api(dsn, ApiOptions(accounts=PROXIED)) as server:
        await create_user(server)
        statuses = [(await sign_in(server, WRONG, "192.0.2.1")).status for _ in range(11)]
        assert statuses == [401] * 10 + [429]
        assert (await sign_in(server, RIGHT, "192.0.2.2")).status == 200
        assert (await sign_in(server, WRONG, "192.0.2.1")).status == 429, "its own count stays"


async def test_an_account_that_many_addresses_attack_gets_slower_and_not_locked(dsn: str) -> None:
    clock = FakeClock()
    async with serve_api(dsn, ApiOptions(accounts=PROXIED, clock=clock)) as server:
        await create_user(server)
        for number in range(20):
            assert (await sign_in(server, WRONG, f"192.0.2.{number}")).status == 401
        await server.replica.pool.execute(
            "UPDATE sign_in_attempts SET tokens = -20, updated_at = now() + interval '1 hour'"
            " WHERE bucket LIKE 'account:%'"
        )
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            right = group.create_task(sign_in(server, RIGHT, "192.0.2.99"))
            assert await clock.advance_past("sign_in_delay") == pytest.approx(MAX_SIGN_IN_DELAY_S)
        assert right.result().status == 200


def test_the_delay_of_an_attacked_account_grows_to_a_bound() -> None:
    assert [delay_s(level) for level in (5, 0, -10, -20, -1000)] == [0, 0, 1, 2, 8]


async def test_an_address_with_many_failures_is_slower_and_not_refused(server: ApiServer) -> None:
    await create_user(server)
    assert (await sign_in(server, {**WRONG, "username": "nobody"})).status == 401
    taken = await server.replica.pool.execute(
        "UPDATE sign_in_attempts SET tokens = 0, updated_at = now() + interval '1 hour'"
        " WHERE bucket = 'address:127.0.0.1'"
    )
    assert taken == "UPDATE 1"
    assert (await sign_in(server, RIGHT)).status == 200


async def test_a_flood_of_sign_ins_reaches_no_database_and_keeps_no_known_browser_out(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create_user(server)
    ada = await Browser(server).sign_in()
    for number in range(2 * ADDRESS_ATTEMPTS_PER_MINUTE + 10):
        await sign_in(server, {**WRONG, "username": f"user{number}"})
    monkeypatch.setattr("chatd.api.accounts.sign_in.MAX_WAITING_SLOW_HASHES", 0)
    server.sent.clear()
    assert (await sign_in(server, WRONG)).code == (429, "rate_limited")
    assert not server.sent
    assert (await ada.ask("POST", "/auth/login", RIGHT)).status == 200


async def test_a_success_takes_nothing_from_the_counts(server: ApiServer) -> None:
    await create_user(server)
    for _ in range(25):
        assert (await sign_in(server, RIGHT)).status == 200
    least = await server.replica.pool.fetchval("SELECT min(tokens) FROM sign_in_attempts")
    assert least > 18


async def test_guesses_of_others_do_not_keep_a_user_from_changing_the_password(
    server: ApiServer,
) -> None:
    await create_user(server)
    ada = await Browser(server).sign_in()
    for _ in range(12):
        await sign_in(server, WRONG)
    body = {"current_password": PASSWORD, "new_password": "a second long password"}
    assert (await ada.ask("POST", "/auth/password", body)).status == 204
