"""Query plans on a large database: hot statements use an index and read few pages.

Each statement is planned for its values and generically, because a session may use either plan. A
sequential scan of chats, messages or usage fails the row.
"""

import hashlib
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import date
from typing import Any, Final, LiteralString, cast
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from bench.environment import fresh_database
from bench.large_database import UNSAFE_SETTINGS, LargeDatabase, fill_database
from bench.pgbench import CapturedStatement, capture_statement, parameter_types, value_as_text
from bench.report import ReportRow, text_row
from bench.workload import answer_step, new_change_id
from chatd.domain.access.permissions import WORKER, UserActor
from chatd.domain.chat.row import Chat
from chatd.domain.chat.worker_transitions import commit_step
from chatd.domain.chat_views.search import query_grams
from chatd.domain.ids import ChatId, MessageId, UserId, WorkerId
from chatd.store import search
from chatd.store.chat import chats, message_pages, messages, workers
from chatd.store.chat.change_writer import apply
from chatd.store.chat.chats import ChatListFilter, filter_values
from chatd.store.chat.workers import Heartbeat
from chatd.store.database.conn import Conn, DatabaseSession
from chatd.store.model import costs, model_calls, spend
from chatd.store.model.costs import DayRange
from chatd.store.model.spend import DefaultLimit

GUARDED_TABLES: Final = frozenset({"chats", "chat_messages", "chat_search_texts", "usage_events"})
_ALL_DAYS: Final = DayRange(start=date(2000, 1, 1), end=date(2100, 1, 1))
PLAN_CACHE_MODES: Final = ("force_custom_plan", "force_generic_plan")


class HotStatement(Struct, frozen=True, kw_only=True):
    name: str
    max_pages: int
    run: Callable[[Conn], Awaitable[object]]


class QueryPlan(Struct, frozen=True, kw_only=True):
    milliseconds: float
    pages: int
    indexes: frozenset[str]
    scanned_tables: frozenset[str]
    """Guarded tables with a sequential scan."""


async def measure_plans(*, quick: bool) -> list[ReportRow]:
    large = LargeDatabase(chats=30_000 if quick else 300_000)
    async with (
        fresh_database(UNSAFE_SETTINGS) as database,
        database.session(statement_timeout_s=300) as session,
    ):
        began = time.perf_counter()
        await fill_database(session, large)
        while await model_calls.roll_up(session):
            pass
        size = await session.fetchval("SELECT pg_size_pretty(pg_database_size(current_database()))")
        took = f"{time.perf_counter() - began:.0f} s"
        lines = [
            text_row("plans, filling the database", took, note=f"{large.chats:,} chats, {size}")
        ]
        statements = await _hot_statements(session, large)
        lines += [await _judge(session, statement) for statement in statements]
    return lines


async def _judge(session: DatabaseSession, statement: HotStatement) -> ReportRow:
    sent = await capture_statement(statement.run)
    plans = [await _explain(session, sent, mode) for mode in PLAN_CACHE_MODES]
    scanned = frozenset[str]().union(*(plan.scanned_tables for plan in plans))
    pages = max(plan.pages for plan in plans)
    indexes = ", ".join(sorted(frozenset[str]().union(*(plan.indexes for plan in plans))))
    met = not scanned and pages <= statement.max_pages
    return ReportRow(
        name=f"plans, {statement.name}",
        value=f"{max(plan.milliseconds for plan in plans):.2f} ms",
        target=f"<= {statement.max_pages} pages",
        verdict="ok" if met else "MISSED",
        note=f"{pages} pages; " + (f"SCANS {', '.join(scanned)}" if scanned else indexes),
    )


async def _explain(session: DatabaseSession, sent: CapturedStatement, mode: str) -> QueryPlan:
    """Run it twice, so that its pages are in memory, and roll back."""
    types = await parameter_types(session, sent.text)
    texts = [
        await value_as_text(session, kind, value)
        for kind, value in zip(types, sent.args, strict=True)
    ]
    values = ", ".join("NULL" if text is None else _quoted(text) for text in texts)
    await session.execute("BEGIN")
    await session.script(f"SET LOCAL plan_cache_mode = {mode}", timeout_s=5)
    await session.script(f"PREPARE it AS {sent.text}", timeout_s=5)
    execute = "EXECUTE it" + (f" ({values})" if values else "")
    explain = cast("LiteralString", f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {execute}")
    await session.execute("SAVEPOINT clean")
    await session.execute(explain)
    await session.execute("ROLLBACK TO SAVEPOINT clean")
    found = json.loads(await session.fetchval(explain))[0]
    await session.execute("ROLLBACK")
    await session.execute("DEALLOCATE it")
    return _plan(found)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _plan(found: dict[str, Any]) -> QueryPlan:
    nodes = list(_nodes(found["Plan"]))
    return QueryPlan(
        milliseconds=found["Execution Time"],
        pages=sum(map(_pages, _whole_parts(nodes))),
        indexes=frozenset(node["Index Name"] for node in nodes if "Index Name" in node),
        scanned_tables=frozenset(
            node["Relation Name"]
            for node in nodes
            if node["Node Type"] == "Seq Scan" and node["Relation Name"] in GUARDED_TABLES
        ),
    )


def _whole_parts(nodes: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The root and the writing CTEs that no node reads: the root's pages do not include them."""
    read = {f"CTE {node['CTE Name']}" for node in nodes if "CTE Name" in node}
    yield nodes[0]
    for node in nodes[1:]:
        if node["Node Type"] == "ModifyTable" and node.get("Subplan Name", "") not in read:
            yield node


def _pages(node: dict[str, Any]) -> int:
    return node["Shared Hit Blocks"] + node["Shared Read Blocks"]


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", []):
        yield from _nodes(child)


def _id(text: str) -> UUID:
    """The id that `large_database` generates."""
    return UUID(hashlib.md5(text.encode(), usedforsecurity=False).hexdigest())


def _member(name: str) -> UserActor:
    return UserActor(user_id=UserId(_id(name)), role="member")


async def _search_index(conn: Conn, actor: UserActor, term: str) -> object:
    """As a search does for what the newest entries have too little of."""
    grams = sorted(query_grams([term]))
    values = filter_values(actor, ChatListFilter())
    return await conn.fetch(search.SEARCH, *values, grams, [f"%{term}%"], None)


async def _hot_statements(session: DatabaseSession, large: LargeDatabase) -> Sequence[HotStatement]:
    worker = WorkerId(_id("worker1"))
    long_chat, compacted = ChatId(_id(str(large.long_chat))), ChatId(_id("11"))
    busy, labelled = _member("owner0"), _member("owner105")
    mine = await session.fetch("SELECT id, epoch FROM chats WHERE worker_id = $1", worker)
    heartbeat = Heartbeat(worker_id=worker, running={row["id"]: row["epoch"] for row in mine})
    running = await chats.get(session, WORKER, ChatId(mine[0]["id"]))
    late = await _late_page(session, busy.user_id)
    anyone = (None, False)
    recently = await session.fetchval("SELECT now() - interval '5 min'")
    assert running is not None
    return (
        HotStatement(name="commit a step", max_pages=80, run=lambda conn: _commit(conn, running)),
        HotStatement(
            name="acquire ten of 10,000",
            max_pages=400,
            run=lambda conn: workers.acquire(conn, worker, roots=10, children=10),
        ),
        HotStatement(
            name=f"tick with {len(mine)} chats",
            max_pages=3000,
            run=lambda conn: workers.send_heartbeat(conn, heartbeat),
        ),
        HotStatement(
            name="list, first page",
            max_pages=120,
            run=lambda conn: chats.list_roots(conn, busy, ChatListFilter()),
        ),
        HotStatement(
            name="list, a late page",
            max_pages=120,
            run=lambda conn: chats.list_roots(conn, busy, ChatListFilter(after=late)),
        ),
        HotStatement(
            name="list by label",
            max_pages=1200,
            run=lambda conn: chats.list_roots(
                conn, labelled, ChatListFilter(labels={"project": "p5"})
            ),
        ),
        HotStatement(
            # Needs a walk over all chats of the owner.
            name="list by a label that the owner has not used",
            max_pages=large.chats // 20 * 2,
            run=lambda conn: chats.list_roots(conn, busy, ChatListFilter(labels={"project": "p5"})),
        ),
        HotStatement(
            name="list by a status that the owner's chats do not have",
            max_pages=large.chats // 20 * 2,
            run=lambda conn: chats.list_roots(conn, busy, ChatListFilter(status="error")),
        ),
        HotStatement(
            name="search for a rare word",
            max_pages=1000,
            run=lambda conn: _search_index(conn, labelled, "rare0123"),
        ),
        HotStatement(
            name="search for a piece of a path",
            max_pages=2000,
            run=lambda conn: _search_index(conn, labelled, "7.py"),
        ),
        HotStatement(
            name="search for a command that nobody has run",
            max_pages=1000,
            run=lambda conn: _search_index(conn, labelled, "pytest -x"),
        ),
        HotStatement(
            # The newest entries of the owner fill a page.
            name="search for a letter in each message of a busy owner",
            max_pages=2 * search.MAX_NEWEST_ENTRIES,
            run=lambda conn: search.search(conn, busy, ChatListFilter(), ("c",), ()),
        ),
        HotStatement(
            # Reads all titles of the owner.
            name="search for a word in each title of a busy owner",
            max_pages=large.chats // 20 * 4 + 1000,
            run=lambda conn: search.search(conn, busy, ChatListFilter(), (), ("common",)),
        ),
        HotStatement(
            name="find a word in a chat",
            max_pages=200,
            run=lambda conn: conn.fetch(search.FIND, long_chat, ["%tenth3%"], 1000, *anyone),
        ),
        HotStatement(
            name="chats that the search index lacks",
            max_pages=2000,
            run=lambda conn: conn.fetch(search.LIST_BEHIND, recently, 50),
        ),
        HotStatement(
            name="prompts of a busy owner",
            max_pages=2000,
            run=lambda conn: message_pages.list_prompts_of_user(conn, busy, None, limit=200),
        ),
        HotStatement(
            name="list of pins", max_pages=300, run=lambda conn: chats.list_pinned(conn, busy)
        ),
        HotStatement(
            name="what changed since, 5,000 messages",
            max_pages=40,
            run=lambda conn: chats.load_changes_since(conn, WORKER, long_chat, 4996),
        ),
        HotStatement(
            name="whole, 5,000 messages",
            max_pages=1500,
            run=lambda conn: chats.load_changes_since(conn, WORKER, long_chat, 0),
        ),
        HotStatement(
            name="history",
            max_pages=30,
            run=lambda conn: messages.load_history(conn, WORKER, ChatId(_id("100"))),
        ),
        HotStatement(
            name="history after a summary",
            max_pages=40,
            run=lambda conn: messages.load_history(conn, WORKER, compacted),
        ),
        HotStatement(
            name="page of 50, of 5,000",
            max_pages=80,
            run=lambda conn: message_pages.load_page(
                conn, WORKER, long_chat, message_pages.MessageRange(before=MessageId(2500))
            ),
        ),
        HotStatement(
            name="limit check of an owner and a tree",
            max_pages=100,
            run=lambda conn: spend.read_spending(
                conn, busy.user_id, DefaultLimit(), chat=replace(running, max_cost_micros=1)
            ),
        ),
        HotStatement(
            name="cost of a tree",
            max_pages=60,
            run=lambda conn: model_calls.tree_cost(conn, running.root_chat_id),
        ),
        HotStatement(
            name="costs of an owner by model",
            max_pages=100,
            run=lambda conn: costs.by_model(conn, busy.user_id, _ALL_DAYS),
        ),
        HotStatement(
            name="costs of an owner by chat",
            max_pages=3000,
            run=lambda conn: costs.by_chat(conn, busy.user_id, _ALL_DAYS),
        ),
    )


def _commit(conn: Conn, chat: Chat) -> Awaitable[object]:
    return apply(conn, commit_step(chat, answer_step(chat)), new_change_id())


async def _late_page(session: DatabaseSession, owner: UserId) -> tuple[Any, ChatId]:
    row = await session.fetchrow(
        """SELECT updated_at, id FROM chats WHERE owner_id = $1 AND parent_chat_id IS NULL
           ORDER BY updated_at, id OFFSET 60 LIMIT 1""",
        owner,
    )
    assert row is not None
    return row["updated_at"], ChatId(row["id"])
