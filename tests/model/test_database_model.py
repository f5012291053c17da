"""The simulation on a real database, from many seeds. A failure names its seed and steps."""

from random import Random

import pytest

from chatd.store.database.conn import ConnectConfig, connect
from chatd.store.database.pool import Pool
from tests.model.database_machine import DatabaseMachine
from tests.support import run_length

EMPTY = """
    WITH workers AS (DELETE FROM chat_workers), usage AS (DELETE FROM usage_events)
    DELETE FROM chats"""


async def walk(dsn: str, pool: Pool, seed: int, steps: int) -> list[str]:
    """Returns the log of the steps."""
    locks = await connect(ConnectConfig(dsn=dsn, application_name="locks"))
    machine = DatabaseMachine(pool, locks, Random(seed))
    try:
        await machine.walk(steps)
    except Exception as error:
        log = "\n".join(machine.simulation.log)
        error.add_note(f"CHATD_TEST_SEED={seed} replays it. The steps were:\n{log}")
        raise
    finally:
        await locks.close(timeout_s=30)
    return machine.simulation.log


@pytest.mark.promise("P1", "P2", "P3", "P8", "P9", "P11")
@pytest.mark.parametrize("seed", run_length.seeds(20))
async def test_rows_match_the_reference_and_every_chat_settles(
    dsn: str, pool: Pool, seed: int
) -> None:
    """Slow: rare events happen late."""
    await walk(dsn, pool, seed, run_length.steps(260))


async def test_a_seed_replays(dsn: str, pool: Pool) -> None:
    first = await walk(dsn, pool, 1, 60)
    await pool.execute(EMPTY)
    assert await walk(dsn, pool, 1, 60) == first
