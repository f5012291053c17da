"""A big house: many chats of every kind, and their messages, made by the server itself.

By default 300,000 chats and 3 million messages, about 2 GB. Proportions: one chat in thirty
waits for a worker, one in sixty has one, one in three hundred waits for a person; one owner has
far more chats than others, one chat far more messages.
"""

from typing import Final, LiteralString, cast

from msgspec import Struct

from chatd.store.conn import DatabaseSession

SETTINGS: Final = {
    # Nothing here needs to survive anything.
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_wal_size": "8GB",
    "autovacuum": "off",
}

CHATS: Final = """
    INSERT INTO chats (id, owner_id, root_chat_id, parent_chat_id, title, labels, pin_order,
        created_at, updated_at, status, archived, snapshot_version, history_version, attempt,
        next_message_id, pending_calls, worker_id, epoch, runnable_at, action_deadline,
        interrupt_deadline, recent_changes)
    SELECT md5(n::text)::uuid, md5('owner' || CASE WHEN n % 20 = 0 THEN 0 ELSE n % 3000 END)::uuid,
        md5((CASE WHEN n % 20 = 7 THEN n - 1 ELSE n END)::text)::uuid,
        CASE WHEN n % 20 = 7 THEN md5((n - 1)::text)::uuid END,
        'Why does the build fail? ' || n,
        CASE WHEN n % 10 = 5 THEN jsonb_build_object('project', 'p' || n % 100) ELSE '{}' END,
        CASE WHEN n % 1000 = 8 THEN 1 ELSE 0 END,
        now() - n * interval '1 min', now() - n * interval '1 s', kind.status,
        kind.status = 'waiting' AND n % 50 = 4, 11, 11, kind.owned::int, 11,
        CASE WHEN kind.status = 'requires_action'
            THEN '[{"id":"call_1","name":"ask","client":true}]' ELSE '[]' END::json,
        CASE WHEN kind.owned THEN md5('worker' || n / 60 % 25)::uuid END, 1,
        CASE WHEN kind.status = 'running' AND NOT kind.owned THEN now() - n * interval '1 ms' END,
        CASE WHEN kind.status = 'requires_action'
            THEN now() + (n % 300 - 5 + n % 7) * interval '1 s' END,
        CASE WHEN kind.status = 'interrupting' THEN now() + n * interval '1 s' END,
        ARRAY[1, 2, 3, 4, 5, 6, 7, n]
    FROM generate_series(1, $1) n, LATERAL (SELECT
        CASE WHEN n % 30 = 0 OR n % 60 = 1 THEN 'running' WHEN n % 300 = 2 THEN 'requires_action'
            WHEN n % 600 = 3 THEN 'interrupting' ELSE 'waiting' END,
        n % 60 = 1 OR n % 600 = 3) AS kind (status, owned)"""

MESSAGES: Final = """
    INSERT INTO chat_messages (chat_id, id, root_chat_id, revision, role, visibility, content,
        content_version, compressed, created_at)
    SELECT md5(n::text)::uuid, k, md5((CASE WHEN n % 20 = 7 THEN n - 1 ELSE n END)::text)::uuid,
        k + 1, CASE WHEN k % 2 = 1 THEN 'user' ELSE 'assistant' END,
        CASE WHEN n % 100 = 11 AND k = 8 THEN 'model' ELSE 'both' END,
        ('[{"type":"text","text":"' || repeat(md5(n::text || k), 9) || '"}]')::json, 1,
        n % 100 = 11 AND k = 8, now() - n * interval '1 min'
    FROM generate_series(1, $1) n, generate_series(1, CASE WHEN n = $2 THEN 5000 ELSE 10 END) k"""

USAGE: Final = """
    INSERT INTO usage_events (at, owner_id, chat_id, root_chat_id, kind, provider, model,
        input_tokens, output_tokens, reasoning_tokens, cache_creation_tokens, cache_read_tokens,
        cost_micros, ok)
    SELECT now() - n * interval '1 s', owner_id, id, root_chat_id, 'turn', 'anthropic', 'claude',
        1000, 500, 0, 0, 0, 12000, true
    FROM (SELECT *, row_number() OVER () AS n FROM chats) c"""

WORKERS: Final = """
    INSERT INTO chat_workers (worker_id, lock_key, lease_until)
    SELECT md5('worker' || n)::uuid, n, now() + interval '1 h' FROM generate_series(0, 24) n"""

INDEXES: Final = """
    SELECT i.indexrelid::regclass::text AS name, pg_get_indexdef(i.indexrelid) AS index,
        c.conname AS key, pg_get_constraintdef(c.oid) AS definition
    FROM pg_index i LEFT JOIN pg_constraint c ON c.conindid = i.indexrelid AND c.contype = 'p'
    WHERE i.indrelid = 'chat_messages'::regclass"""


class House(Struct, frozen=True, kw_only=True):
    chats: int
    long_chat: int = 12345
    """The number of the one with 5,000 messages."""


async def fill(session: DatabaseSession, house: House) -> None:
    """Foreign keys are not checked and the big table's indexes are made last: ten times faster."""
    await session.execute("SET session_replication_role = replica")
    await session.execute("SET maintenance_work_mem = '512MB'")
    indexes = await session.fetch(INDEXES)
    for row in indexes:
        await _ddl(session, _drop(row["name"], row["key"]))
    await session.execute(CHATS, house.chats)
    await session.execute(MESSAGES, house.chats, house.long_chat)
    for row in indexes:
        await _ddl(session, _restore(row["index"], row["key"], row["definition"]))
    await session.execute(USAGE)
    await session.execute(WORKERS)
    await session.execute("VACUUM (ANALYZE)")
    await session.execute("RESET session_replication_role")


def _drop(name: str, key: str | None) -> str:
    if key is None:
        return f"DROP INDEX {name}"
    return f"ALTER TABLE chat_messages DROP CONSTRAINT {key}"


def _restore(index: str, key: str | None, definition: str | None) -> str:
    if key is None:
        return index
    return f"ALTER TABLE chat_messages ADD CONSTRAINT {key} {definition}"


async def _ddl(session: DatabaseSession, sql: str) -> None:
    """Made of the catalogue's own words."""
    await session.execute(cast("LiteralString", sql))
