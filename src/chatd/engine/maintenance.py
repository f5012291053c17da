"""Chores that keep the house small: idle chats are archived, archived ones removed for good.

Owns when and how many at a time. Both are off unless a number of days is set.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct

from chatd.domain.errors import RequestError
from chatd.domain.ids import ChatId
from chatd.domain.ports import Env
from chatd.engine.periodic import PeriodicTask
from chatd.store import keeping
from chatd.store.pool import Pool
from chatd.store.transact import Applied

RETENTION_INTERVAL_S: Final = 600.0
_BATCH: Final = 100
_MOST_BATCHES: Final = 10


class RetentionConfig(Struct, frozen=True, kw_only=True):
    """In days; 0 is never."""

    archive_after: int = 0
    remove_after: int = 0


def retention_tasks(
    config: RetentionConfig, pool: Pool, env: Env, tell: Callable[[Applied], None]
) -> tuple[PeriodicTask, ...]:
    keeper = _Keeper(config, pool, env, tell)
    chores: list[PeriodicTask] = []
    if config.archive_after:
        chores.append(
            PeriodicTask(name="archive_idle", interval_s=RETENTION_INTERVAL_S, work=keeper.archive)
        )
    if config.remove_after:
        chores.append(
            PeriodicTask(
                name="remove_archived", interval_s=RETENTION_INTERVAL_S, work=keeper.remove
            )
        )
    return tuple(chores)


class _Keeper:
    def __init__(
        self, config: RetentionConfig, pool: Pool, env: Env, tell: Callable[[Applied], None]
    ) -> None:
        self._archive_after = timedelta(days=config.archive_after)
        self._remove_after = timedelta(days=config.remove_after)
        self._pool = pool
        self._env = env
        self._tell = tell

    async def archive(self) -> None:
        for _ in range(_MOST_BATCHES):
            found = await keeping.idle(self._pool, self._archive_after, most=_BATCH)
            for chat_id, since in found:
                await self._archive(chat_id, since)
            if len(found) < _BATCH:
                return

    async def _archive(self, chat_id: ChatId, since: datetime) -> None:
        change_id = self._env.new_change_id()
        try:
            archived = await keeping.archive_idle(self._pool, chat_id, since, change_id)
        except RequestError:
            return  # somebody was faster, and means something else
        for applied in archived:
            self._tell(applied)

    async def remove(self) -> None:
        for _ in range(_MOST_BATCHES):
            removed = await keeping.remove_archived(self._pool, self._remove_after, most=_BATCH)
            if removed:
                self._env.emit("chats_removed", chats=removed)
            if removed < _BATCH:
                return
