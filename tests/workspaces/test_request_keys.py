"""How long the key of a request is recognised."""

from datetime import timedelta

from chatd.engine.maintenance import SearchIndexing, maintenance_tasks
from chatd.engine.model.call_records import UsageWriter
from chatd.store import idempotency
from chatd.store.database.conn import Conn
from chatd.store.database.pool import Pool
from chatd.store.idempotency import REQUEST_RETENTION
from chatd.store.workspace import builds, workspaces
from tests.support.clock import FakeClock
from tests.support.factories import HARNESS
from tests.support.outcomes import present
from tests.support.stream_replica import env_with
from tests.support.workspaces import (
    build_id,
    finish,
    insert_template,
    new_build,
    new_workspace,
    workspace_id,
)


async def age(conn: Conn, by: timedelta) -> None:
    await conn.execute("UPDATE workspaces SET created_at = created_at - $1::interval", by)
    await conn.execute("UPDATE workspace_builds SET created_at = created_at - $1::interval", by)


async def keep_house(pool: Pool) -> None:
    env = env_with(FakeClock())
    chores = maintenance_tasks(pool, env, UsageWriter(pool, env), SearchIndexing(pool, env.clock))
    [chore] = [chore for chore in chores if chore.name == "forget_requests"]
    await chore.work()


async def test_a_key_returns_its_workspace_for_a_day(
    pool: Pool,
) -> None:
    await insert_template(pool)
    await workspaces.create(pool, HARNESS, new_workspace(1, made_by="w"))
    await finish(pool)
    assert await builds.insert(pool, HARNESS, new_build(11, made_by="b")) is not None
    await finish(pool)
    await age(pool, REQUEST_RETENTION - timedelta(minutes=30))
    await keep_house(pool)
    again = await workspaces.create(pool, HARNESS, new_workspace(2, made_by="w"))
    assert (again.workspace.id, again.replayed) == (workspace_id(1), True)
    repeated = present(await builds.insert(pool, HARNESS, new_build(12, after=2, made_by="b")))
    assert repeated.id == build_id(11)

    await age(pool, timedelta(minutes=30))
    await keep_house(pool)
    anew = await workspaces.create(pool, HARNESS, new_workspace(2, made_by="w"))
    assert (anew.workspace.id, anew.replayed) == (workspace_id(2), False)
    another = await builds.insert(
        pool, HARNESS, new_build(12, after=2, transition="start", made_by="b")
    )
    assert another is not None
    assert another.id == build_id(12)


async def test_expired_keys_are_cleared_in_batches(pool: Pool) -> None:
    await insert_template(pool)
    for number in range(1, 6):
        await workspaces.create(pool, HARNESS, new_workspace(number, made_by=f"{number}"))
    await age(pool, REQUEST_RETENTION)
    assert [await idempotency.clear_old_request_keys(pool, limit=3) for _ in range(3)] == [3, 2, 0]
