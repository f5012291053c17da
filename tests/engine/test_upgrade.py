"""A database of the version before accounts is migrated while its old replicas still write."""

from pathlib import Path
from typing import Final, LiteralString
from uuid import UUID

import pytest

from chatd.domain.access.permissions import ADMIN_USER_ID
from chatd.domain.ids import ChatId
from chatd.store import migrator
from chatd.store.conn import ConnectConfig, DatabaseSession, connect
from chatd.store.migration_files import packaged_migrations
from tests.support.engine_rig import engine_rig

LAST_OLD_MIGRATION: Final = 12
IDLE, RUNNING, STRANGERS, LATE = (ChatId(UUID(int=number)) for number in (1, 2, 3, 4))
STRANGER: Final = UUID(int=0xABC)

# As the old version wrote them.
CHAT: Final[LiteralString] = """
    INSERT INTO chats (id, owner_id, root_chat_id, title, status, snapshot_version,
        history_version, next_message_id, turn_message_id, queue_len, next_queue_id,
        queue_version, worker_id, epoch, attempt, runnable_at, recent_changes)
    VALUES ($1, $2, $1, 'A chat', $3::text, 3, 3, $4, 1, $5::int, $5::int + 1,
        CASE WHEN $5::int > 0 THEN 3 ELSE 0 END,
        $6::uuid, CASE WHEN $6::uuid IS NULL THEN 0 ELSE 1 END,
        CASE WHEN $6::uuid IS NULL THEN 0 ELSE 1 END,
        CASE WHEN $3::text = 'running' AND $6::uuid IS NULL THEN now() END, ARRAY[7]::bigint[])"""
MESSAGE: Final[LiteralString] = """
    INSERT INTO chat_messages (chat_id, id, root_chat_id, revision, role, visibility, content,
        content_version, created_by)
    VALUES ($1, $2, $1, $2, $3, 'both', ('[{"type":"text","text":"' || $4 || '"}]')::json, 1, $5)"""
QUEUED: Final[LiteralString] = """
    INSERT INTO chat_queued_messages (chat_id, id, root_chat_id, position, content,
        content_version, created_by)
    VALUES ($1, 1, $1, 1, '[{"type":"text","text":"and then?"}]', 1, $2)"""

WORKER: Final[LiteralString] = """
    INSERT INTO chat_workers (worker_id, lock_key, lease_until)
    VALUES ($1, 4711, now() - interval '1 min')"""


def old_migrations(folder: Path) -> Path:
    for entry in packaged_migrations().iterdir():
        if entry.name.endswith(".sql") and int(entry.name[:4]) <= LAST_OLD_MIGRATION:
            (folder / entry.name).write_text(entry.read_text(encoding="utf-8"), encoding="utf-8")
    return folder


async def write_old_rows(session: DatabaseSession) -> None:
    dead_worker = UUID(int=99)
    await session.execute(WORKER, dead_worker)
    await session.execute(CHAT, IDLE, ADMIN_USER_ID, "waiting", 3, 0, None)
    await session.execute(MESSAGE, IDLE, 1, "user", "hi", ADMIN_USER_ID)
    await session.execute(MESSAGE, IDLE, 2, "assistant", "hello", None)
    await session.execute(CHAT, RUNNING, ADMIN_USER_ID, "running", 2, 1, dead_worker)
    await session.execute(MESSAGE, RUNNING, 1, "user", "go", ADMIN_USER_ID)
    await session.execute(QUEUED, RUNNING, ADMIN_USER_ID)
    await session.execute(CHAT, STRANGERS, STRANGER, "waiting", 2, 0, None)


@pytest.mark.promise("P1", "P2")
async def test_chats_queue_and_a_running_turn_survive_the_migration(
    empty_dsn: str, tmp_path: Path
) -> None:
    await migrator.up(empty_dsn, old_migrations(tmp_path))
    session = await connect(ConnectConfig(dsn=empty_dsn))
    try:
        await write_old_rows(session)
        await migrator.up(empty_dsn)
        # An old replica goes on writing.
        await session.execute(CHAT, LATE, ADMIN_USER_ID, "running", 2, 0, None)
        await session.execute(MESSAGE, LATE, 1, "user", "late", ADMIN_USER_ID)
        users = await session.fetch("SELECT id, role FROM users")
        assert {row["id"]: row["role"] for row in users} == {
            ADMIN_USER_ID: "admin",
            STRANGER: "member",
        }
        async with engine_rig(empty_dsn) as rig:
            for answer in ("done", "done too", "done late"):
                rig.answer(answer)
            for chat_id in (RUNNING, LATE):
                await rig.wait_state(chat_id, "W")
            assert await rig.transcript(IDLE) == ["user: hi", "assistant: hello"]
            running = await rig.transcript(RUNNING)
            assert [line.partition(":")[0] for line in running] == ["user", "assistant"] * 2
            assert running[2] == "user: and then?"
            assert (await rig.transcript(LATE))[0] == "user: late"
    finally:
        await session.close(timeout_s=10)
