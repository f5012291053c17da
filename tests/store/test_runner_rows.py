"""Runners and their tokens in a real database: what administrators and owners read and change."""

from datetime import timedelta
from uuid import UUID

import pytest

from chatd.domain.access.permissions import UserActor
from chatd.domain.errors import Conflict, Forbidden
from chatd.domain.ids import UserId
from chatd.domain.workspace.entities import TemplateSpec
from chatd.domain.workspace.runners import (
    BackendOffer,
    Requirements,
    RunnerId,
    explain_wait,
    is_connected,
)
from chatd.store.database.conn import json_text
from chatd.store.database.pool import Pool
from chatd.store.workspace import builds, runners
from tests.support.factories import AT, HARNESS, OWNER, member
from tests.support.outcomes import present
from tests.support.runners import (
    ADMINISTRATOR,
    insert_runner,
    insert_runner_token,
    new_runner_token,
    own_runner,
    runner,
    token_id,
)
from tests.support.workspaces import HOST, build_id, finish, insert_workspace, wanted, workspace_id

OTHER = UserId(UUID(int=5))
STRANGER = UserActor(user_id=OTHER, role="member")


async def names(pool: Pool, actor: UserActor) -> list[str]:
    return [
        found.runner.name for found in await runners.list_page(pool, actor, after=None, limit=10)
    ]


async def test_a_user_reads_the_own_runners_and_an_administrator_all(pool: Pool) -> None:
    token = await insert_runner_token(pool)
    await insert_runner(pool, runner("a-server"))
    await insert_runner(pool, runner("pooled", pool="build", token_id=token.id))
    await insert_runner(pool, own_runner("laptop"))
    assert await names(pool, member()) == ["laptop"]
    assert await names(pool, STRANGER) == []
    assert await names(pool, ADMINISTRATOR) == ["a-server", "laptop", "pooled"]
    assert await names(pool, UserActor(user_id=OTHER, role="viewer")) == [
        "a-server",
        "laptop",
        "pooled",
    ]
    assert await runners.get(pool, STRANGER, RunnerId("laptop")) is None
    mine = present(await runners.get(pool, member(), RunnerId("laptop")))
    assert (mine.runner.owner_id, mine.token, mine.workspaces) == (OWNER, None, 0)
    pooled = present(await runners.get(pool, ADMINISTRATOR, RunnerId("pooled")))
    assert (pooled.token, pooled.owner, pooled.runner.pool) == ("token-1", None, "build")


async def test_a_page_of_runners_goes_on_after_its_last_one(pool: Pool) -> None:
    token = await insert_runner_token(pool)
    for name in ("c", "a", "b"):
        await insert_runner(pool, runner(f"id-{name}", name=name))
    await insert_runner(pool, runner("id-0", name="a", pool="build", token_id=token.id))
    seen: list[str] = []
    after: tuple[str, str, str] | None = None
    while page := await runners.list_page(pool, ADMINISTRATOR, after=after, limit=3):
        seen += [found.runner.id for found in page]
        last = page[-1].runner
        after = (last.pool, last.name, last.id)
    assert seen == ["id-a", "id-b", "id-c", "id-0"]


async def test_a_runner_comes_back_as_stored_and_is_connected_by_the_databases_clock(
    pool: Pool,
) -> None:
    given = runner(
        "r",
        version="0.9.1",
        labels=("gpu", "big"),
        backends=(BackendOffer(kind="container", isolation="runc", detail="Podman 5.4"),),
        capacity=4,
        running=2,
        orphans=("w-1",),
    )
    await insert_runner(pool, given)
    await insert_runner(pool, runner("silent"), seen_ago=timedelta(seconds=31))
    await insert_runner(pool, runner("gone"), connected=False)
    found = present(await runners.get(pool, HARNESS, RunnerId("r")))
    for field in ("version", "labels", "backends", "capacity", "running", "orphans"):
        assert getattr(found.runner, field) == getattr(given, field), field
    assert is_connected(found.runner, found.now)
    for name in ("silent", "gone"):
        stored = present(await runners.get(pool, HARNESS, RunnerId(name)))
        assert not is_connected(stored.runner, stored.now), name


async def test_an_owner_drains_the_own_runner_only(pool: Pool) -> None:
    await insert_runner(pool, own_runner("laptop"))
    await insert_runner(pool, runner("server"))
    async with pool.transaction() as session:
        assert await runners.update(session, member(), RunnerId("laptop"), draining=True)
        assert not await runners.update(session, member(), RunnerId("server"), draining=True)
        assert await runners.lock(session, member(), RunnerId("server")) is None
        with pytest.raises(Forbidden):
            await runners.update(
                session, UserActor(user_id=OWNER, role="viewer"), RunnerId("laptop"), name="x"
            )
        assert await runners.update(session, ADMINISTRATOR, RunnerId("server"), name="north")
    laptop = present(await runners.get(pool, HARNESS, RunnerId("laptop"))).runner
    server = present(await runners.get(pool, HARNESS, RunnerId("server"))).runner
    assert (laptop.name, laptop.draining) == ("laptop", True)
    assert (server.name, server.draining) == ("north", False)


async def test_a_runner_with_workspaces_is_not_deleted(pool: Pool) -> None:
    await insert_runner(pool, runner(HOST))
    await insert_workspace(pool)
    await pool.execute(
        "INSERT INTO tunnels (holder, replica, address) VALUES ($1, $2, '')", HOST, OWNER
    )
    async with pool.transaction() as session:
        locked = present(await runners.lock(session, ADMINISTRATOR, RunnerId(HOST)))
        assert locked.workspaces == 1
        assert not await runners.delete(session, ADMINISTRATOR, RunnerId(HOST))
        await session.execute("UPDATE workspaces SET deleted = true")
        assert await runners.delete(session, ADMINISTRATOR, RunnerId(HOST))
    assert await runners.get(pool, HARNESS, RunnerId(HOST)) is None
    assert await pool.fetchval("SELECT count(*) FROM tunnels") == 0


async def test_a_runners_workspaces_have_their_owner_and_the_state_of_their_latest_build(
    pool: Pool,
) -> None:
    await insert_runner(pool, runner(HOST))
    await insert_workspace(pool, 1)
    await finish(pool)
    await insert_workspace(pool, 2, owner_id=OTHER)
    found = await runners.list_workspaces(pool, ADMINISTRATOR, RunnerId(HOST), limit=5)
    assert {(each.id, each.owner_id, each.transition, each.status) for each in found} == {
        (workspace_id(1), OWNER, "start", "succeeded"),
        (workspace_id(2), OTHER, "start", "pending"),
    }
    mine = await runners.list_workspaces(pool, member(), RunnerId(HOST), limit=5)
    assert [each.id for each in mine] == [workspace_id(1)]


async def test_builds_that_wait_are_those_that_no_worker_has_taken(pool: Pool) -> None:
    await insert_workspace(pool, 1)
    await insert_workspace(pool, 2, host_id=None)
    await insert_workspace(pool, 3, host_id="far", owner_id=OTHER)
    spec = TemplateSpec(pool="build", labels=("gpu",))
    await pool.execute("UPDATE template_versions SET spec = $1::json", json_text(spec))
    waiting = await runners.list_waiting(pool, ADMINISTRATOR, limit=9)
    assert [each.id for each in waiting] == [build_id(1), build_id(2), build_id(3)]
    assert waiting[1].needs == Requirements(backend="sandbox", pool="build", labels=("gpu",))
    assert [each.runner_id for each in waiting] == [HOST, None, "far"]
    mine = await runners.list_waiting(pool, member(), limit=9)
    assert [each.id for each in mine] == [build_id(1), build_id(2)]
    far = await runners.list_waiting(pool, ADMINISTRATOR, runner_id=RunnerId("far"), limit=9)
    assert [each.id for each in far] == [build_id(3)]
    chosen = await runners.list_waiting(pool, member(), builds=[build_id(2), build_id(3)], limit=9)
    assert [each.id for each in chosen] == [build_id(2)]
    after = (waiting[0].created_at, waiting[0].id)
    rest = await runners.list_waiting(pool, ADMINISTRATOR, after=after, limit=1)
    assert [each.id for each in rest] == [build_id(2)]
    await builds.acquire_builds(pool, wanted())
    left = await runners.list_waiting(pool, ADMINISTRATOR, limit=9)
    assert [each.id for each in left] == [build_id(2), build_id(3)]


async def test_the_runners_that_builds_wait_for_are_of_their_pools_or_have_their_workspaces(
    pool: Pool,
) -> None:
    token = await insert_runner_token(pool)
    await insert_workspace(pool, 1, host_id="far")
    await insert_workspace(pool, 2, host_id=None)
    await insert_runner(pool, own_runner("far"), seen_ago=timedelta(hours=2))
    await insert_runner(pool, runner("server"))
    await insert_runner(pool, own_runner("laptop"))
    await insert_runner(pool, runner("pooled", pool="build", token_id=token.id))
    waiting = await runners.list_waiting(pool, ADMINISTRATOR, limit=9)
    found, now = await runners.list_waited_for(pool, waiting)
    assert {each.id for each in found} == {"far", "server"}
    assert "The runner far is not connected" in explain_wait(
        waiting[0].needs, waiting[0].runner_id, found, now
    )
    alone, _ = await runners.list_waited_for(pool, waiting[:1])
    assert [each.id for each in alone] == ["far"]
    assert (await runners.list_waited_for(pool, ()))[0] == []


async def test_a_token_is_found_by_its_digest_until_it_expires_or_is_revoked(pool: Pool) -> None:
    token = await insert_runner_token(pool, 1)
    await insert_runner_token(pool, 2, expires_at=AT + timedelta(days=36500))
    digest = new_runner_token(1).hash
    found = present(await runners.find_token(pool, digest))
    assert (found.id, found.name, found.pool) == (token.id, "token-1", "build")
    assert await runners.find_token(pool, b"another") is None
    short = new_runner_token(2).hash
    assert present(await runners.find_token(pool, short)).expires_at is not None
    await pool.execute("UPDATE runner_tokens SET expires_at = now() WHERE id = $1", token_id(2))
    assert await runners.find_token(pool, short) is None
    async with pool.transaction() as session:
        revoked = present(await runners.revoke_token(session, ADMINISTRATOR, token.id))
        assert revoked.name == token.name
        assert await runners.revoke_token(session, ADMINISTRATOR, token.id) is None
    assert await runners.find_token(pool, digest) is None


async def test_the_use_of_a_token_is_marked_at_most_once_a_minute(pool: Pool) -> None:
    token = await insert_runner_token(pool)
    digest = new_runner_token(1).hash

    async def last_use() -> object:
        return await pool.fetchval("SELECT last_used_at FROM runner_tokens WHERE id = $1", token.id)

    assert await last_use() is None
    await runners.find_token(pool, digest)
    first = present(await last_use())
    await runners.find_token(pool, digest)
    assert await last_use() == first
    await pool.execute("UPDATE runner_tokens SET last_used_at = now() - interval '61 s'")
    aged = await last_use()
    # The row's lock of another session is not waited for: the use is marked the next time.
    async with pool.transaction() as session:
        await session.execute("SELECT FROM runner_tokens FOR UPDATE")
        assert await runners.find_token(pool, digest) is not None
        assert await last_use() == aged
    await runners.find_token(pool, digest)
    assert await last_use() != aged


async def test_tokens_are_listed_with_their_runners_and_without_revoked_ones(pool: Pool) -> None:
    first = await insert_runner_token(pool, 1)
    second = await insert_runner_token(pool, 2)
    await insert_runner(pool, runner("r", pool="build", token_id=first.id))
    page = await runners.list_tokens(pool, ADMINISTRATOR, after=None, limit=9)
    assert [(each.token.id, each.runners) for each in page] == [(second.id, 0), (first.id, 1)]
    after = (second.created_at, second.id)
    rest = await runners.list_tokens(pool, ADMINISTRATOR, after=after, limit=9)
    assert [each.token.id for each in rest] == [first.id]
    async with pool.transaction() as session:
        await runners.revoke_token(session, ADMINISTRATOR, first.id)
        await runners.revoke_token(session, ADMINISTRATOR, second.id)
    assert await runners.list_tokens(pool, ADMINISTRATOR, after=None, limit=9) == []
    with pytest.raises(Forbidden):
        await runners.list_tokens(pool, member(), after=None, limit=9)


async def test_tokens_are_bounded_and_old_revoked_ones_make_room(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runners, "MAX_RUNNER_TOKENS", 2)
    first = await insert_runner_token(pool, 1)
    await insert_runner_token(pool, 2)
    with pytest.raises(Conflict) as refused:
        await insert_runner_token(pool, 3)
    assert refused.value.code == "too_many_runner_tokens"
    await insert_runner(pool, runner("r", pool="build", token_id=first.id))
    async with pool.transaction() as session:
        await runners.revoke_token(session, ADMINISTRATOR, first.id)
        await runners.revoke_token(session, ADMINISTRATOR, token_id(2))
    await pool.execute("UPDATE runner_tokens SET revoked_at = now() - interval '2 days'")
    await insert_runner_token(pool, 3)
    kept = {row["id"] for row in await pool.fetch("SELECT id FROM runner_tokens")}
    assert kept == {first.id, token_id(3)}, "the one that a runner names stays"
