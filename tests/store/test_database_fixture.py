"""The test database: every test finds it in its initial state."""

from chatd.store.conn import ConnectConfig, connect
from chatd.store.pool import Pool, PoolConfig
from tests.support.database import Clone


async def rows(pool: Pool) -> tuple[int, int]:
    return (
        await pool.fetchval("SELECT count(*) FROM chat_workers"),
        await pool.fetchval("SELECT count(*) FROM usage_rolled_up"),
    )


async def test_rows_are_removed_and_rows_of_the_schema_are_restored(database: Clone) -> None:
    pool = Pool(PoolConfig(connect=ConnectConfig(dsn=database.dsn)))
    await pool.execute(
        "INSERT INTO chat_workers (worker_id, lock_key, lease_until) "
        "VALUES (gen_random_uuid(), 1, now())"
    )
    await pool.execute("DELETE FROM usage_rolled_up")
    assert await rows(pool) == (1, 0)
    await pool.close()
    assert database.clean() == []
    again = Pool(PoolConfig(connect=ConnectConfig(dsn=database.dsn)))
    assert await rows(again) == (0, 1)
    await again.close()


async def test_a_session_left_open_is_named_and_ended(database: Clone) -> None:
    link = ConnectConfig(dsn=database.dsn, application_name="forgetful")
    session = await connect(link)
    await session.execute("SELECT 'what I did last'")
    assert database.clean(patience_s=0) == ["forgetful (idle): SELECT 'what I did last'"]
    assert database.clean() == []
    session.terminate()
