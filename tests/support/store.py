"""Chats in a real database: written by the product's own statements, read back whole.

Owns seeding, copying and comparing rows, and generic query plans, as a session uses them after
several executions.
"""

import json
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, LiteralString, cast
from uuid import UUID

import msgspec
from msgspec.structs import replace

from chatd.domain.chat.change import Change
from chatd.domain.chat.commands import CreateChat
from chatd.domain.chat.row import Chat
from chatd.domain.chat.user_transitions import create
from chatd.domain.ids import ChangeId, ChatId, WorkerId
from chatd.store.chat import chats
from chatd.store.chat.change_writer import apply
from chatd.store.chat.operation import AppliedChange
from chatd.store.database.conn import Conn, ConnectConfig, DatabaseSession, connect
from chatd.store.database.pool import Pool, PoolConfig
from tests.support.factories import HARNESS, OWNER, prompt
from tests.support.outcomes import present
from tests.support.seeds import Seed, seed_chat

TABLES: Final = (
    "chats",
    "chat_messages",
    "chat_queued_messages",
    "chat_requests",
    "chat_tool_runs",
    "chat_workers",
    "usage_events",
)

SEEDING: Final = 2**61
"""The change id of writes that no test checks."""

# A copy differs from the original in its ids only.
_COPY: Final[LiteralString] = """
    WITH copies AS (SELECT unnest($2::uuid[]) AS id),
    chat AS (INSERT INTO chats SELECT (jsonb_populate_record(c, jsonb_build_object(
            'id', n.id, 'root_chat_id', n.id))).* FROM chats c, copies n WHERE c.id = $1),
    message AS (INSERT INTO chat_messages SELECT (json_populate_record(m, json_build_object(
            'chat_id', n.id, 'root_chat_id', n.id))).*
            FROM chat_messages m, copies n WHERE m.chat_id = $1)
    INSERT INTO chat_queued_messages SELECT (json_populate_record(q, json_build_object(
            'chat_id', n.id, 'root_chat_id', n.id))).*
            FROM chat_queued_messages q, copies n WHERE q.chat_id = $1"""


class AppliedRecorder:
    """Records applied changes."""

    def __init__(self) -> None:
        self.applied: list[AppliedChange] = []

    def __call__(self, applied: AppliedChange) -> None:
        self.applied.append(applied)

    @property
    def chats(self) -> list[Chat]:
        return [applied.chat for applied in self.applied]


def chat_id(number: int) -> ChatId:
    return ChatId(UUID(int=number))


def opening_command(number: int, **columns: object) -> CreateChat:
    command = CreateChat(id=chat_id(number), owner_id=OWNER, title="A chat", prompt=prompt("hi"))
    return msgspec.structs.replace(command, **columns)


def opening(number: int, *, free: WorkerId | None = None, **columns: object) -> Change:
    """The change that creates a chat, with the command's columns as given."""
    return create(opening_command(number, **columns), free)


async def open_chat(
    conn: Conn, number: int, *, free: WorkerId | None = None, **columns: object
) -> Chat:
    return (await write(conn, opening(number, free=free, **columns))).chat


async def open_child(conn: Conn, number: int, root: int, parent: int | None = None) -> Chat:
    above = chat_id(root if parent is None else parent)
    return await open_chat(conn, number, root_chat_id=chat_id(root), parent_chat_id=above)


async def write(conn: Conn, change: Change | None, change_id: int = SEEDING) -> AppliedChange:
    """Write a change that must not conflict."""
    assert change is not None
    applied = await apply(conn, change, ChangeId(change_id))
    assert applied is not None, "another change to the chat came first"
    return applied


async def write_all(conn: Conn, changes: Iterable[Change]) -> None:
    """Write changes of the pure model, which knows no change ids, in their order."""
    recent: dict[ChatId, tuple[ChangeId, ...]] = {}
    for change in changes:
        applied = await write(conn, with_recent(change, recent.get(change.after.id, ())))
        recent[change.after.id] = applied.chat.recent_changes


def with_recent(change: Change, recent: tuple[ChangeId, ...]) -> Change:
    """The change as decided from a row with these change ids."""
    before = change.before and replace(change.before, recent_changes=recent)
    return replace(change, before=before)


async def insert_seed(conn: Conn, seed: Seed) -> Chat:
    """Write the changes of a seed."""
    await write_all(conn, seed_chat(seed).changes)
    return present(await chats.get(conn, HARNESS, seed.chat_id))


async def copy(conn: Conn, chat: ChatId, copies: Sequence[ChatId]) -> None:
    await conn.execute(_COPY, chat, copies)


async def dump(conn: Conn) -> dict[str, list[str]]:
    """Every row as text, with the transaction that wrote it: equal means unchanged."""
    return {
        table: [
            row["line"]
            for row in await conn.fetch(
                f"SELECT t.xmin || t::text AS line FROM {table} t ORDER BY 1"
            )
        ]
        for table in TABLES
    }


@asynccontextmanager
async def session_to(dsn: str) -> AsyncGenerator[DatabaseSession]:
    session = await connect(ConnectConfig(dsn=dsn, application_name="another session"))
    try:
        yield session
    finally:
        await session.close(timeout_s=30)


@asynccontextmanager
async def counting_pool(dsn: str) -> AsyncGenerator[tuple[Pool, list[str]]]:
    """A pool, and the list of statements that it sends."""
    sent: list[str] = []
    pool = Pool(PoolConfig(connect=ConnectConfig(dsn=dsn)), on_statement=sent.append)
    try:
        yield pool, sent
    finally:
        await pool.close()


async def age(conn: Conn, which: Iterable[ChatId], *, seconds: float) -> None:
    """Make the times in some rows older, and deadlines nearer."""
    await conn.execute(
        """UPDATE chats SET runnable_at = runnable_at - $2 * interval '1 s',
               updated_at = updated_at - $2 * interval '1 s',
               action_deadline = action_deadline - $2 * interval '1 s',
               interrupt_deadline = interrupt_deadline - $2 * interval '1 s'
           WHERE id = ANY ($1)""",
        list(which),
        float(seconds),
    )


async def has_lock_waiter(conn: Conn) -> bool:
    """Whether a session waits for a lock that another session holds."""
    return await conn.fetchval(
        """SELECT EXISTS (SELECT FROM pg_stat_activity
               WHERE datname = current_database() AND wait_event_type = 'Lock')"""
    )


async def plan_of(
    session: DatabaseSession, statement: str, *args: object, option: str = ""
) -> list[dict[str, Any]]:
    """All nodes of the plan. Arguments default to NULL."""
    await session.execute("SET plan_cache_mode = force_generic_plan")
    await session.script(f"PREPARE it AS {statement}", timeout_s=30)
    expected = await session.fetchval(
        "SELECT cardinality(parameter_types) FROM pg_prepared_statements WHERE name = 'it'"
    )
    values = ", ".join("NULL" if arg is None else f"'{arg}'" for arg in args or [None] * expected)
    explain = f"EXPLAIN ({option} FORMAT JSON) EXECUTE it" + (f" ({values})" if values else "")
    found = json.loads(await session.fetchval(cast("LiteralString", explain)))
    await session.execute("DEALLOCATE it")
    return list(_nodes(found[0]["Plan"]))


async def rows_read(session: DatabaseSession, statement: str, *args: object) -> int:
    """The number of table rows that an execution of the statement reads."""
    return sum(map(_rows_scanned, await plan_of(session, statement, *args, option="ANALYZE,")))


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", []):
        yield from _nodes(child)


def _rows_scanned(node: dict[str, Any]) -> int:
    if "Relation Name" not in node or node["Node Type"] == "ModifyTable":
        return 0
    seen = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
    return int(seen * node["Actual Loops"])
