"""Periodic tasks that keep the database small: expired idempotency keys and outputs of tools, usage
totals, and what has passed its retention. Every replica runs them; the statements exclude double
work.
"""

from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Final

from msgspec import Struct

from chatd.aio import PeriodicTask
from chatd.domain.access.permissions import SystemActor
from chatd.domain.chat.commands import ArchiveIdleTree
from chatd.domain.deployment.repositories import EVENTS_KEPT_S
from chatd.domain.deployment.slack import EVENTS_KEPT_S as SLACK_EVENTS_KEPT_S
from chatd.domain.errors import RequestError, Unavailable
from chatd.domain.ids import ChatId
from chatd.domain.ports import Clock, Env
from chatd.engine.model.attempt import Committer
from chatd.engine.model.call_records import UsageWriter
from chatd.store import file_stores, files, idempotency, search
from chatd.store.account import answer_links, audit, credentials, public_links, users
from chatd.store.chat import journal
from chatd.store.database.conn import Conn, MissingReference
from chatd.store.database.pool import Pool
from chatd.store.deployment import repository_work, retention, slack, slack_work, webhooks
from chatd.store.file_stores import FileStores
from chatd.store.files import SweepPosition
from chatd.store.idempotency import REQUEST_RETENTION
from chatd.store.model import model_calls

MAINTENANCE: Final = SystemActor(reason="maintenance")
RETENTION_INTERVAL_S: Final = 600.0
REMOVAL_INTERVAL_S: Final = 60.0
SEARCH_INDEX_INTERVAL_S: Final = 10.0
SEARCH_INDEX_ANYWAY_S: Final = 600.0
"""How often the index is looked at though no replica has told of a change."""
DELIVERIES_KEPT_S: Final = 7 * 86_400.0
"""How long the record of an ended delivery of a webhook is kept."""
REMOVAL_DELAY_S: Final = 60.0
"""Rows of a deleted chat stay this long: replicas that missed the hint poll its mark."""
_MAX_CHATS_PER_BATCH: Final = 100
_MAX_CHAT_BATCHES: Final = 10
_MAX_KEYS_PER_BATCH: Final = 1000
_MAX_ROW_BATCHES: Final = 100


class RetentionConfig(Struct, frozen=True, kw_only=True):
    """In days; 0 disables."""

    archive_after: int = 0
    remove_after: int = 0
    clear_deleted_after: int = 0
    remove_usage_after: int = 0
    remove_debug_after: int = 0
    remove_workspaces_after: int = 0
    remove_audit_after: int = 0


class SearchIndexing:
    """Keeps the search index behind the changes of chats. While nothing changes it costs no
    statement: replicas hear of each other's changes."""

    def __init__(self, pool: Pool, clock: Clock) -> None:
        self._pool = pool
        self._clock = clock
        self._has_changes = True
        self._complete_at = clock.monotonic()

    def on_change(self) -> None:
        """A chat has changed, here or on another replica, or changes may have been missed."""
        self._has_changes = True

    async def run(self) -> None:
        """A run that another replica makes now may have begun before the latest change."""
        now = self._clock.monotonic()
        if not self._has_changes and now - self._complete_at < SEARCH_INDEX_ANYWAY_S:
            return
        self._has_changes = False
        is_complete = False
        try:
            for _ in range(_MAX_ROW_BATCHES):
                if (has_more := await search.index_batch(self._pool)) is not True:
                    is_complete = has_more is False
                    break
        finally:
            self._has_changes |= not is_complete
        self._complete_at = now


def maintenance_tasks(
    pool: Pool, env: Env, usage_writer: UsageWriter, indexing: SearchIndexing
) -> tuple[PeriodicTask, ...]:
    conn: Conn = pool

    async def forget_requests() -> None:
        for forget_old in (
            idempotency.delete_old_requests,
            idempotency.clear_old_request_keys,
            idempotency.clear_old_tool_outputs,
        ):
            for _ in range(_MAX_ROW_BATCHES):
                if await forget_old(conn, limit=_MAX_KEYS_PER_BATCH) < _MAX_KEYS_PER_BATCH:
                    break

    async def remove_deleted() -> None:
        after, limit = timedelta(seconds=REMOVAL_DELAY_S), _MAX_CHATS_PER_BATCH
        found = await retention.list_deleted_chats(conn, after, limit=limit)
        await _remove_each(env, found, lambda chat_id: retention.remove_deleted_chat(conn, chat_id))

    async def remove_expired_credentials() -> None:
        for _ in range(_MAX_ROW_BATCHES):
            gone = await credentials.delete_expired(conn, MAINTENANCE, limit=_MAX_KEYS_PER_BATCH)
            gone += await credentials.delete_old_attempts(conn, limit=_MAX_KEYS_PER_BATCH)
            if gone < _MAX_KEYS_PER_BATCH:
                break
        await users.delete_left_secrets(conn, MAINTENANCE)

    return (
        PeriodicTask(name="forget_requests", interval_s=600, work=forget_requests),
        _batched("forget_deliveries", 600, lambda: _forget_deliveries(conn)),
        _batched("forget_repository_events", 600, lambda: _forget_repository_events(conn)),
        _batched("forget_repository_threads", 600, lambda: _forget_repository_threads(conn)),
        _batched("forget_slack", 600, lambda: _forget_slack(conn)),
        _batched("forget_kept_answers", 600, lambda: _forget_kept_answers(conn)),
        _batched("forget_public_links", 600, lambda: _forget_public_links(conn)),
        _batched("forget_answer_links", 600, lambda: _forget_answer_links(conn)),
        _batched("roll_up_usage", 60, lambda: model_calls.roll_up(conn)),
        PeriodicTask(name="index_messages", interval_s=SEARCH_INDEX_INTERVAL_S, work=indexing.run),
        PeriodicTask(name="remove_deleted", interval_s=REMOVAL_INTERVAL_S, work=remove_deleted),
        PeriodicTask(name="settle_usage", interval_s=30, work=usage_writer.settle_abandoned),
        PeriodicTask(
            name="remove_expired_credentials", interval_s=600, work=remove_expired_credentials
        ),
    )


def _batched(name: str, interval_s: float, batch: Callable[[], Awaitable[bool]]) -> PeriodicTask:
    """`batch` returns whether more is left."""

    async def work() -> None:
        for _ in range(_MAX_ROW_BATCHES):
            if not await batch():
                return

    return PeriodicTask(name=name, interval_s=interval_s, work=work)


async def _forget_deliveries(conn: Conn) -> bool:
    limit = _MAX_KEYS_PER_BATCH
    return await webhooks.delete_ended(conn, after_s=DELIVERIES_KEPT_S, limit=limit) == limit


async def _forget_public_links(conn: Conn) -> bool:
    limit = _MAX_KEYS_PER_BATCH
    return await public_links.delete_expired(conn, limit=limit) == limit


async def _forget_answer_links(conn: Conn) -> bool:
    limit = _MAX_KEYS_PER_BATCH
    return await answer_links.delete_expired(conn, limit=limit) == limit


async def _forget_repository_events(conn: Conn) -> bool:
    limit = _MAX_KEYS_PER_BATCH
    return await repository_work.delete_ended(conn, after_s=EVENTS_KEPT_S, limit=limit) == limit


async def _forget_repository_threads(conn: Conn) -> bool:
    return await repository_work.delete_threads(conn, limit=_MAX_KEYS_PER_BATCH) == (
        _MAX_KEYS_PER_BATCH
    )


async def _forget_slack(conn: Conn) -> bool:
    limit = _MAX_KEYS_PER_BATCH
    gone = (
        await slack_work.delete_ended(conn, after_s=SLACK_EVENTS_KEPT_S, limit=limit),
        await slack_work.delete_threads(conn, limit=limit),
        await slack.delete_codes(conn, limit=limit),
    )
    return limit in gone


async def _forget_kept_answers(conn: Conn) -> bool:
    return await journal.delete_old_kept(conn, limit=_MAX_KEYS_PER_BATCH)


def retention_tasks(
    config: RetentionConfig, pool: Pool, env: Env, committer: Committer
) -> tuple[PeriodicTask, ...]:
    async def archive_idle(after: timedelta) -> None:
        for _ in range(_MAX_CHAT_BATCHES):
            found = await retention.list_idle_chats(pool, after, limit=_MAX_CHATS_PER_BATCH)
            for chat_id, since in found:
                with suppress(RequestError):  # A user changed the chat in the meantime.
                    await committer.archive_idle(chat_id, ArchiveIdleTree(idle_since=since))
            if len(found) < _MAX_CHATS_PER_BATCH:
                return

    async def remove_archived(after: timedelta) -> None:
        limit = _MAX_CHATS_PER_BATCH * _MAX_CHAT_BATCHES
        found = await retention.list_archived_chats(pool, after, limit=limit)
        await _remove_each(
            env, found, lambda chat_id: retention.delete_archived_chat(pool, chat_id, after)
        )

    tasks = (
        ("archive_idle", config.archive_after, archive_idle),
        ("remove_archived", config.remove_after, remove_archived),
        (
            "clear_deleted_messages",
            config.clear_deleted_after,
            _in_batches(pool, retention.clear_deleted_messages),
        ),
        (
            "remove_usage",
            config.remove_usage_after,
            _in_batches(pool, retention.delete_usage_events),
        ),
        (
            "remove_debug_calls",
            config.remove_debug_after,
            _in_batches(pool, model_calls.delete_old_debug_calls),
        ),
        (
            "remove_workspaces",
            config.remove_workspaces_after,
            _in_batches(pool, retention.delete_workspaces),
        ),
        (
            "remove_builds",
            config.remove_workspaces_after,
            _in_batches(pool, retention.delete_builds),
        ),
        ("remove_audit", config.remove_audit_after, _in_batches(pool, audit.delete_old)),
    )
    return tuple(
        PeriodicTask(
            name=name,
            interval_s=RETENTION_INTERVAL_S,
            work=partial(work, timedelta(days=days)),
        )
        for name, days, work in tasks
        if days
    )


async def _remove_each(
    env: Env, found: Iterable[ChatId], remove: Callable[[ChatId], Awaitable[bool]]
) -> None:
    """A chat that cannot be removed now does not hold up the others."""
    removed = 0
    for chat_id in found:
        try:
            removed += await remove(chat_id)
        except Unavailable as error:
            env.emit("chat_not_removed", chat_id=chat_id, error_kind=error.code)
    if removed:
        env.emit("chats_removed", chats=removed)


def _in_batches(
    pool: Pool, delete: Callable[[Conn, timedelta], Awaitable[int]]
) -> Callable[[timedelta], Awaitable[None]]:
    async def run(after: timedelta) -> None:
        for _ in range(_MAX_ROW_BATCHES):
            if not await delete(pool, after):
                return

    return run


# Periodic removal of files that no chat names, of bytes that belong to no file, and of old request
# keys. Every replica runs it; to do it twice is harmless.

UNLINKED_FILE_LIFETIME: Final = timedelta(days=1)
FILE_SWEEP_INTERVAL_S: Final = 600.0
_FILES_PER_PAGE: Final = 500
_PAGES_PER_SWEEP: Final = 20
_UPLOADS_PER_SWEEP: Final = 200
_KEYS_PER_SWEEP: Final = 10_000


class FileSweep:
    """Walks over all files, some pages in each run, and begins again at the end."""

    def __init__(self, conn: Conn, env: Env, stores: FileStores) -> None:
        self._conn = conn
        self._env = env
        self._stores = stores
        self._position = SweepPosition()

    async def run(self) -> None:
        with suppress(MissingReference):  # a message has just named one of them
            await self._delete_unlinked()
        await self._remove_bytes()
        await files.clear_old_keys(self._conn, REQUEST_RETENTION, limit=_KEYS_PER_SWEEP)

    async def _delete_unlinked(self) -> None:
        deleted = 0
        for _ in range(_PAGES_PER_SWEEP):
            page = await files.sweep(
                self._conn, self._position, UNLINKED_FILE_LIFETIME, limit=_FILES_PER_PAGE
            )
            if page is None:
                self._position = SweepPosition()
                break
            self._position = page.position
            deleted += page.deleted
        if deleted:
            self._env.emit("files_deleted", files=deleted)

    async def _remove_bytes(self) -> None:
        """Bytes that cannot be removed now do not hold up the others."""
        for left in await file_stores.list_dead_uploads(self._conn, limit=_UPLOADS_PER_SWEEP):
            try:
                await self._stores.remove_bytes(self._conn, left)
            except Unavailable as error:
                self._env.emit("file_not_removed", file_id=left.id, error_kind=error.code)


def file_tasks(conn: Conn, env: Env, stores: FileStores) -> tuple[PeriodicTask, ...]:
    sweep = FileSweep(conn, env, stores)
    return (PeriodicTask(name="sweep_files", interval_s=FILE_SWEEP_INTERVAL_S, work=sweep.run),)
