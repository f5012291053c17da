"""Plans on a big house: the hot statements find their rows by an index, and read few pages.

Each is planned twice, for its values and for no values in particular: a session uses either.
A scan of all chats or all messages in any of the plans fails the bench.
"""

import hashlib
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final, LiteralString, cast
from uuid import UUID

from msgspec import Struct

from bench.filling import SETTINGS, House, fill
from chatd.bench.ground import fresh
from chatd.bench.report import Line, plain
from chatd.bench.sent import Sent, as_text, caught, parameter_types
from chatd.bench.workload import answer, new_change_id
from chatd.domain.chat.row import Chat
from chatd.domain.chat.worker_transitions import commit_step
from chatd.domain.ids import ChatId, MessageId, UserId, WorkerId
from chatd.store.chat import chats, messages, updates, usage, workers
from chatd.store.chat.chats import ChatListFilter
from chatd.store.chat.transactor import apply
from chatd.store.chat.workers import Heartbeat
from chatd.store.conn import Conn, DatabaseSession

GUARDED: Final = frozenset({"chats", "chat_messages"})
MODES: Final = ("force_custom_plan", "force_generic_plan")


class Question(Struct, frozen=True, kw_only=True):
    """`pages` is the most that its plan may touch."""

    name: str
    pages: int
    ask: Callable[[Conn], Awaitable[object]]


class Plan(Struct, frozen=True, kw_only=True):
    milliseconds: float
    pages: int
    indexes: frozenset[str]
    scanned: frozenset[str]
    """Guarded tables that are read from end to end."""


async def measure(*, quick: bool) -> list[Line]:
    house = House(chats=30_000 if quick else 300_000)
    async with fresh(SETTINGS) as ground, ground.session(statement_timeout_s=300) as session:
        began = time.perf_counter()
        await fill(session, house)
        size = await session.fetchval("SELECT pg_size_pretty(pg_database_size(current_database()))")
        took = f"{time.perf_counter() - began:.0f} s"
        lines = [plain("plans, filling the house", took, note=f"{house.chats:,} chats, {size}")]
        questions = await _questions(session, house)
        lines += [await _judge(session, question) for question in questions]
    return lines


async def _judge(session: DatabaseSession, question: Question) -> Line:
    sent = await caught(question.ask)
    plans = [await _explain(session, sent, mode) for mode in MODES]
    scanned = frozenset[str]().union(*(plan.scanned for plan in plans))
    pages = max(plan.pages for plan in plans)
    indexes = ", ".join(sorted(frozenset[str]().union(*(plan.indexes for plan in plans))))
    met = not scanned and pages <= question.pages
    return Line(
        name=f"plans, {question.name}",
        value=f"{max(plan.milliseconds for plan in plans):.2f} ms",
        target=f"<= {question.pages} pages",
        verdict="ok" if met else "MISSED",
        note=f"{pages} pages; " + (f"SCANS {', '.join(scanned)}" if scanned else indexes),
    )


async def _explain(session: DatabaseSession, sent: Sent, mode: str) -> Plan:
    """Runs it, twice so that the second finds its pages in memory, and takes it back."""
    types = await parameter_types(session, sent.text)
    texts = [
        await as_text(session, kind, value) for kind, value in zip(types, sent.args, strict=True)
    ]
    values = ", ".join("NULL" if text is None else _quoted(text) for text in texts)
    await session.execute("BEGIN")
    await session.script(f"SET LOCAL plan_cache_mode = {mode}", within_s=5)
    await session.script(f"PREPARE it AS {sent.text}", within_s=5)
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


def _plan(found: dict[str, Any]) -> Plan:
    nodes = list(_nodes(found["Plan"]))
    return Plan(
        milliseconds=found["Execution Time"],
        pages=sum(map(_pages, _whole_parts(nodes))),
        indexes=frozenset(node["Index Name"] for node in nodes if "Index Name" in node),
        scanned=frozenset(
            node["Relation Name"]
            for node in nodes
            if node["Node Type"] == "Seq Scan" and node["Relation Name"] in GUARDED
        ),
    )


def _whole_parts(nodes: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The plan, and what it writes at its end without reading it: not counted in the plan's own
    pages."""
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
    """As the house makes them."""
    return UUID(hashlib.md5(text.encode(), usedforsecurity=False).hexdigest())


async def _questions(session: DatabaseSession, house: House) -> Sequence[Question]:
    worker = WorkerId(_id("worker1"))
    long_chat, compacted = ChatId(_id(str(house.long_chat))), ChatId(_id("11"))
    busy, labelled = UserId(_id("owner0")), UserId(_id("owner105"))
    mine = await session.fetch("SELECT id, epoch FROM chats WHERE worker_id = $1", worker)
    beat = Heartbeat(
        worker_id=worker, running={row["id"]: row["epoch"] for row in mine}, scope="leases"
    )
    running = await chats.get(session, ChatId(mine[0]["id"]))
    late = await _late_page(session, busy)
    assert running is not None, "it was there a moment ago"
    return (
        Question(name="commit a step", pages=80, ask=lambda conn: _commit(conn, running)),
        Question(
            name="acquire ten of 10,000",
            pages=400,
            ask=lambda conn: workers.acquire(conn, worker, roots=10, children=10),
        ),
        Question(
            name=f"tick with {len(mine)} chats",
            pages=3000,
            ask=lambda conn: workers.send_heartbeat(conn, beat),
        ),
        Question(
            name="list, first page",
            pages=120,
            ask=lambda conn: chats.list_roots(conn, ChatListFilter(owner_id=busy)),
        ),
        Question(
            name="list, a late page",
            pages=120,
            ask=lambda conn: chats.list_roots(conn, ChatListFilter(owner_id=busy, after=late)),
        ),
        Question(
            name="list by label",
            pages=1200,
            ask=lambda conn: chats.list_roots(
                conn, ChatListFilter(owner_id=labelled, labels={"project": "p5"})
            ),
        ),
        Question(
            # Nothing but a walk over all of the owner's chats can tell.
            name="list by a label that the owner has not used",
            pages=house.chats // 20 * 2,
            ask=lambda conn: chats.list_roots(
                conn, ChatListFilter(owner_id=busy, labels={"project": "p5"})
            ),
        ),
        Question(name="list of pins", pages=300, ask=lambda conn: chats.list_pinned(conn, busy)),
        Question(
            name="what changed since, 5,000 messages",
            pages=40,
            ask=lambda conn: chats.load_changes_since(conn, long_chat, 4996),
        ),
        Question(
            name="whole, 5,000 messages",
            pages=1500,
            ask=lambda conn: chats.load_changes_since(conn, long_chat, 0),
        ),
        Question(
            name="history",
            pages=30,
            ask=lambda conn: messages.load_history(conn, ChatId(_id("100"))),
        ),
        Question(
            name="history after a summary",
            pages=40,
            ask=lambda conn: messages.load_history(conn, compacted),
        ),
        Question(
            name="page of 50, of 5,000",
            pages=80,
            ask=lambda conn: updates.page(conn, long_chat, updates.Range(before=MessageId(2500))),
        ),
        Question(
            name="spend of an owner",
            pages=400,
            ask=lambda conn: usage.spent_micros(conn, busy, running.created_at),
        ),
    )


def _commit(conn: Conn, chat: Chat) -> Awaitable[object]:
    return apply(conn, commit_step(chat, answer(chat)), new_change_id())


async def _late_page(session: DatabaseSession, owner: UserId) -> tuple[Any, ChatId]:
    row = await session.fetchrow(
        """SELECT updated_at, id FROM chats WHERE owner_id = $1 AND parent_chat_id IS NULL
           ORDER BY updated_at, id OFFSET 60 LIMIT 1""",
        owner,
    )
    assert row is not None, "the owner has many"
    return row["updated_at"], ChatId(row["id"])
