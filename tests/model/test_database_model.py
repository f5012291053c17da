"""The machine on a real database, from many seeds. A failure names its seed and its steps."""

from random import Random

import pytest

from chatd.store.conn import ConnectConfig, connect
from chatd.store.pool import Pool
from tests.model.database_machine import DatabaseMachine
from tests.support import effort


@pytest.mark.parametrize("seed", effort.seeds(24))
async def test_whatever_happens_the_rows_are_as_meant_and_nothing_is_stuck(
    dsn: str, pool: Pool, seed: int
) -> None:
    """Takes a second: rare things happen late."""
    locks = await connect(ConnectConfig(dsn=dsn, application_name="locks"))
    machine = DatabaseMachine(pool, locks, Random(seed))
    try:
        await machine.walk(effort.steps(250))
    except Exception as error:
        steps = "\n".join(machine.stage.log)
        error.add_note(f"CHATD_TEST_SEED={seed} shows it again. The steps were:\n{steps}")
        raise
    finally:
        await locks.close(within_s=5)
