"""Tokens of users are refreshed before use: once for all chats and replicas, and never after the
grant has ended."""

import asyncio
from collections.abc import AsyncGenerator
from uuid import UUID

import pytest
from msgspec import Struct

from chatd.domain.ids import McpServerId
from chatd.domain.mcp.oauth import MAX_FAILURE_CHARS
from chatd.mcp.oauth_tokens import CANNOT_REFRESH, NEEDS_CONNECT, REFRESH_TIMEOUT_S
from chatd.sealed_secrets import KeyRing, new_key
from chatd.store.database.pool import Pool
from chatd.store.database.sealed_columns import SEALED_COLUMNS, reseal_batch
from chatd.store.deployment.mcp_tokens import TOKENS
from tests.support.api.server import ApiServer, serve_api
from tests.support.clock import FakeClock
from tests.support.factories import OWNER
from tests.support.factories import chat as chat_row
from tests.support.mcp.authorization_server import (
    AuthorizationServer,
    authorization_server,
    plain_resource,
)
from tests.support.mcp.connections import Browser, add_server
from tests.support.mcp.workers import mcp_worker
from tests.support.models import TEST_KEY

SHORT_S = 5.0
"""Below the time before the end at which a token is refreshed."""


class World(Struct, frozen=True, kw_only=True):
    """A user who is connected with a token that soon expires, and new ones that last an hour."""

    server: ApiServer
    authorization: AuthorizationServer
    browser: Browser
    server_id: McpServerId

    @property
    def pool(self) -> Pool:
        return self.server.replica.pool

    async def state(self) -> object:
        return (await self.browser.connection(str(self.server_id)))["state"]

    async def reconnect(self) -> None:
        page = await self.browser.connect(str(self.server_id), self.authorization)
        assert page.status == 200


@pytest.fixture
async def world(dsn: str) -> AsyncGenerator[World]:
    async with (
        serve_api(dsn) as server,
        authorization_server() as authorization,
        plain_resource(authorization) as url,
    ):
        made = await add_server(server, url)
        world = World(
            server=server,
            authorization=authorization,
            browser=Browser(server),
            server_id=McpServerId(UUID(made)),
        )
        authorization.lifetime_s = SHORT_S
        await world.reconnect()
        authorization.lifetime_s = 3600.0
        yield world


async def test_a_token_that_lasts_is_used_as_it_is(world: World) -> None:
    await world.reconnect()
    async with mcp_worker(world.pool) as worker:
        first = await worker.access(world.server_id)
        assert first == await worker.access(world.server_id)
        assert first.headers["Authorization"].startswith("Bearer access-ada-")
        assert world.authorization.calls["token"] == 2, "one for each connection"


async def test_a_token_that_soon_expires_is_refreshed_before_it_is_used(world: World) -> None:
    async with mcp_worker(world.pool) as worker:
        access = await worker.access(world.server_id)
        again = await worker.access(world.server_id)
    assert (access.problem, access) == ("", again)
    form = world.authorization.forms[-1]
    assert (form["grant_type"], form["resource"].endswith("/mcp")) == ("refresh_token", True)
    assert world.authorization.calls["token"] == 2
    assert await world.state() == "connected"


async def test_the_old_refresh_token_stays_if_none_is_returned(world: World) -> None:
    world.authorization.rotates = False
    async with mcp_worker(world.pool) as worker:
        for count in (2, 3):
            world.authorization.lifetime_s = SHORT_S
            assert not (await worker.access(world.server_id)).problem
            assert world.authorization.calls["token"] == count
        one, other = (form["refresh_token"] for form in world.authorization.forms[-2:])
        assert one == other


async def test_many_chats_on_two_replicas_share_one_refresh(world: World) -> None:
    """A second use of the refresh token would end the grant."""
    authorization = world.authorization
    authorization.gate = asyncio.Event()
    authorization.asked.clear()
    async with mcp_worker(world.pool) as one, mcp_worker(world.pool) as two:
        waiting = asyncio.gather(
            *(worker.access(world.server_id) for worker in (one, two) for _ in range(20))
        )
        await authorization.asked.wait()
        authorization.gate.set()
        found = await waiting
    assert len({access.headers["Authorization"] for access in found}) == 1
    assert len({access.credential_version for access in found}) == 1
    assert authorization.calls["token"] == 2, "one exchange, one refresh"
    assert len(authorization.active_refresh_tokens()) == 1


async def test_a_grant_that_has_ended_is_not_tried_again_until_the_user_connects(
    world: World,
) -> None:
    world.authorization.end_grants()
    async with mcp_worker(world.pool) as worker:
        access = await worker.access(world.server_id)
        for _ in range(3):
            assert access == await worker.access(world.server_id)
            assert access.headers == {}
            assert "The grant has ended" in access.problem
        assert world.authorization.calls["token"] == 2
        found = await world.browser.connection(str(world.server_id))
        assert (found["state"], found["reason"]) == ("failed", access.problem)
        assert await world.pool.fetchval("SELECT sealed_tokens FROM mcp_tokens") is None
        await world.reconnect()
        assert not (await worker.access(world.server_id)).problem


@pytest.mark.promise("P13")
async def test_the_reason_is_short_and_repeats_no_secret(world: World) -> None:
    (token,) = world.authorization.active_refresh_tokens()
    text = f"{token} {'x' * 1000}"
    error = {"error": "invalid_grant", "error_description": text}
    world.authorization.token_error = (400, error)
    async with mcp_worker(world.pool) as worker:
        problem = (await worker.access(world.server_id)).problem
    assert "invalid_grant ***" in problem
    assert (token in problem, len(problem) <= MAX_FAILURE_CHARS) == (False, True)


@pytest.mark.parametrize("status", [500, 429, 400])
async def test_a_failure_that_may_pass_keeps_the_token_and_is_tried_again(
    world: World, status: int
) -> None:
    world.authorization.token_error = (status, {"error": "temporarily_unavailable"})
    async with mcp_worker(world.pool) as worker:
        before = await worker.access(world.server_id)
        assert before.headers, "the token that it has"
        world.authorization.token_error = None
        after = await worker.access(world.server_id)
        assert after.headers != before.headers
    assert world.authorization.calls["token"] == 3


async def test_a_refresh_goes_on_when_the_chat_that_asked_is_interrupted(world: World) -> None:
    authorization = world.authorization
    authorization.gate = asyncio.Event()
    authorization.asked.clear()
    async with mcp_worker(world.pool) as worker:
        asking = asyncio.get_running_loop().create_task(worker.access(world.server_id))
        await authorization.asked.wait()
        asking.cancel()
        await asyncio.wait({asking})
        authorization.gate.set()
        access = await worker.access(world.server_id)
        assert not access.problem
        assert authorization.calls["token"] == 2
        assert len(authorization.active_refresh_tokens()) == 1


async def test_a_disconnect_during_a_refresh_wins(world: World) -> None:
    authorization = world.authorization
    authorization.gate = asyncio.Event()
    authorization.asked.clear()
    async with mcp_worker(world.pool) as worker:
        asking = asyncio.get_running_loop().create_task(worker.access(world.server_id))
        await authorization.asked.wait()
        assert (await world.browser.disconnect(str(world.server_id))).status == 200
        authorization.gate.set()
        assert (await asking).problem == NEEDS_CONNECT
    assert await world.pool.fetchval("SELECT count(*) FROM mcp_tokens") == 0


async def test_a_connection_that_is_made_during_a_refresh_wins(world: World) -> None:
    authorization = world.authorization
    back = await world.browser.leave(str(world.server_id), authorization)
    authorization.gate = asyncio.Event()
    authorization.asked.clear()
    async with mcp_worker(world.pool) as worker:
        asking = asyncio.get_running_loop().create_task(worker.access(world.server_id))
        await authorization.asked.wait()
        coming = asyncio.get_running_loop().create_task(world.browser.come_back(back))
        authorization.gate.set()
        assert (await coming).status == 200
        await asking
        latest = await worker.access(world.server_id)
    row = await world.pool.fetchrow("SELECT id, version FROM mcp_tokens")
    assert row is not None
    assert latest.credential_version == f"{UUID(str(row['id'])).hex}.{row['version']}"


async def test_a_claim_of_a_process_that_died_does_not_hold_a_chat_up(world: World) -> None:
    clock = FakeClock()
    await world.pool.execute("UPDATE mcp_tokens SET refreshing_until = now() + interval '1 hour'")
    async with mcp_worker(world.pool, clock) as worker:
        asking = asyncio.get_running_loop().create_task(worker.access(world.server_id))
        await clock.wait_for_sleeper("mcp_refresh")
        clock.advance(REFRESH_TIMEOUT_S)
        assert (await asking).headers, "with the token that it has"
        assert world.authorization.calls["token"] == 1
        await world.pool.execute("UPDATE mcp_tokens SET refreshing_until = now() - interval '1 s'")
        assert (await worker.access(world.server_id)).headers
        assert world.authorization.calls["token"] == 2


async def test_a_refused_token_is_refreshed_once_for_all_who_were_refused(world: World) -> None:
    await world.reconnect()
    row = chat_row(owner_id=OWNER)
    async with mcp_worker(world.pool) as worker:
        old = await worker.access(world.server_id)
        renewed = [await worker.directory.refused(old.server, row, old) for _ in range(3)]
    assert renewed[0] is not None
    assert renewed[0].headers != old.headers
    assert renewed == [renewed[0]] * 3
    assert world.authorization.calls["token"] == 3


async def test_a_refused_token_that_cannot_be_refreshed_ends_the_connection(world: World) -> None:
    world.authorization.gives_refresh_token = False
    world.authorization.lifetime_s = SHORT_S
    await world.reconnect()
    row = chat_row(owner_id=OWNER)
    async with mcp_worker(world.pool) as worker:
        old = await worker.access(world.server_id)
        assert old.headers, "an expiring token is still sent: the server's clock decides"
        assert await worker.directory.refused(old.server, row, old) is None
        assert (await worker.access(world.server_id)).problem == CANNOT_REFRESH


async def test_tokens_are_used_and_refreshed_after_a_rotation_of_the_keys(world: World) -> None:
    key = new_key()
    both, alone = KeyRing([TEST_KEY, key], key.id), KeyRing([key], key.id)
    await world.pool.execute(
        "INSERT INTO secret_keys (id, check_value, state) VALUES ($1, '', 'retired')", key.id
    )

    def seal_again(sealed: str, context: str) -> str:
        return both.seal(both.open(sealed, context), context)

    done = await reseal_batch(world.pool, TOKENS, key.id, seal_again)
    assert (done.resealed, TOKENS in SEALED_COLUMNS) == (1, True)
    async with mcp_worker(world.pool, ring=alone) as worker:
        assert (await worker.access(world.server_id)).headers
    async with mcp_worker(world.pool) as worker:
        assert "does not hold key" in (await worker.access(world.server_id)).problem
    assert world.authorization.calls["token"] == 2


async def test_a_token_is_not_sent_to_another_host_than_it_was_granted_for(world: World) -> None:
    await world.pool.execute("UPDATE mcp_servers SET url = 'https://evil.example.com/mcp'")
    async with mcp_worker(world.pool) as worker:
        access = await worker.access(world.server_id)
    assert (access.headers, access.problem) == ({}, NEEDS_CONNECT)
    assert world.authorization.calls["token"] == 1


async def test_a_client_that_the_authorization_server_forgot_is_registered_again(
    world: World,
) -> None:
    """Its page to sign in does not send browsers of unknown clients back."""
    world.authorization.clients.clear()
    async with mcp_worker(world.pool) as worker:
        access = await worker.access(world.server_id)
    assert "Connect again" in access.problem
    assert await world.state() == "failed"
    await world.reconnect()
    assert world.authorization.calls["register"] == 2
    assert await world.state() == "connected"
