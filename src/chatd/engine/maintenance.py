"""Periodic tasks that keep the database small: expired idempotency keys, usage totals, and chats
that are idle or archived for long. Every replica runs them; the statements exclude double work.
"""

from contextlib import suppress
from datetime import timedelta
from typing import Final

from msgspec import Struct

from chatd.aio import PeriodicTask
from chatd.domain.chat.commands import ArchiveIdleTree
from chatd.domain.errors import RequestError
from chatd.domain.ports import Env
from chatd.engine.attempt import Committer
from chatd.store.chat import idempotency, updates, usage
from chatd.store.conn import Conn
from chatd.store.pool import Pool

RETENTION_INTERVAL_S: Final = 600.0
_MAX_CHATS_PER_BATCH: Final = 100
_MAX_CHAT_BATCHES: Final = 10
_MAX_KEYS_PER_BATCH: Final = 1000
_MAX_ROW_BATCHES: Final = 100


class RetentionConfig(Struct, frozen=True, kw_only=True):
    """In days; 0 disables."""

    archive_after: int = 0
    remove_after: int = 0


def maintenance_tasks(conn: Conn) -> tuple[PeriodicTask, ...]:
    async def forget_requests() -> None:
        for forget_old in (idempotency.delete_old_requests, idempotency.clear_old_request_keys):
            for _ in range(_MAX_ROW_BATCHES):
                if await forget_old(conn, limit=_MAX_KEYS_PER_BATCH) < _MAX_KEYS_PER_BATCH:
                    break

    async def roll_up_usage() -> None:
        for _ in range(_MAX_ROW_BATCHES):
            if not await usage.roll_up(conn):
                return

    return (
        PeriodicTask(name="forget_requests", interval_s=600, work=forget_requests),
        PeriodicTask(name="roll_up_usage", interval_s=60, work=roll_up_usage),
    )


def retention_tasks(
    config: RetentionConfig, pool: Pool, env: Env, committer: Committer
) -> tuple[PeriodicTask, ...]:
    limit = _MAX_CHATS_PER_BATCH

    async def archive_idle() -> None:
        for _ in range(_MAX_CHAT_BATCHES):
            idle_for = timedelta(days=config.archive_after)
            found = await updates.list_idle_chats(pool, idle_for, limit=limit)
            for chat_id, since in found:
                with suppress(RequestError):  # A user changed the chat in the meantime.
                    await committer.run(chat_id, ArchiveIdleTree(idle_since=since))
            if len(found) < limit:
                return

    async def remove_archived() -> None:
        for _ in range(_MAX_CHAT_BATCHES):
            archived_for = timedelta(days=config.remove_after)
            removed = await updates.delete_archived_chats(pool, archived_for, limit=limit)
            if removed:
                env.emit("chats_removed", chats=removed)
            if removed < limit:
                return

    tasks = ((config.archive_after, archive_idle), (config.remove_after, remove_archived))
    return tuple(
        PeriodicTask(name=work.__name__, interval_s=RETENTION_INTERVAL_S, work=work)
        for days, work in tasks
        if days
    )
