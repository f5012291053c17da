"""Changes of accounts, models and settings reach the replicas that listen."""

import asyncio

import pytest

from chatd.clock import SystemClock
from chatd.domain.deployment.config_change import ConfigChange
from chatd.domain.errors import Conflict
from chatd.store.database import notifications
from chatd.store.database.conn import ConnectConfig
from chatd.store.database.notifications import ConfigChanges, HintListener, ListenConfig
from chatd.store.database.pool import Pool


class Heard:
    def __init__(self) -> None:
        self.changes: asyncio.Queue[ConfigChange | None] = asyncio.Queue()

    async def next(self) -> ConfigChange | None:
        async with asyncio.timeout(10):
            return await self.changes.get()


def listener(dsn: str, changes: ConfigChanges) -> HintListener:
    return HintListener(
        ListenConfig(connect=ConnectConfig(dsn=dsn)),
        SystemClock(),
        on_hint=lambda _hint: None,
        on_connected=lambda: None,
        config_changes=changes,
    )


async def roll_back_a_change(pool: Pool) -> None:
    async with pool.transaction() as session:
        await notifications.publish(session, ConfigChange(kind="user", id="undone"))
        raise Conflict("undo")


async def test_a_committed_change_is_heard_and_a_rolled_back_one_is_not(
    dsn: str, pool: Pool
) -> None:
    changes, heard = ConfigChanges(), Heard()
    changes.subscribe(heard.changes.put_nowait)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(listener(dsn, changes).run())
        assert await heard.next() is None  # connected: what happened before may have been missed
        assert changes.is_current
        with pytest.raises(Conflict):
            await roll_back_a_change(pool)
        await pool.execute("SELECT pg_notify($1, 'noise')", notifications.CONFIG_CHANNEL)
        async with pool.transaction() as session:
            await notifications.publish(session, ConfigChange(kind="credential", id="7"))
        assert await heard.next() == ConfigChange(kind="credential", id="7")
        task.cancel()
    assert not changes.is_current
