"""Every statement fits the schema, and the frequent ones find their rows by an index.

The tests collect statements from the modules, so that a new one is covered at once.
"""

import json
import re
from typing import LiteralString, cast
from uuid import UUID

import pytest
from asyncpg.protocol import BUILTIN_TYPE_NAME_MAP

from chatd.domain.chat_views.search import index_keys, query_grams, text_grams
from chatd.domain.errors import ChatdError
from chatd.domain.ids import UserId
from chatd.domain.workspace.runners import BuildPlace, RunnerId
from chatd.store import idempotency, search
from chatd.store.account import shares
from chatd.store.chat import chats, message_pages, messages, workers
from chatd.store.database.conn import (
    ARRAY_TYPES,
    Conn,
    DatabaseSession,
    json_text,
    named_statement,
)
from chatd.store.database.pool import Pool
from chatd.store.model import spend
from chatd.store.workspace import bindings, builds, workspaces
from tests.support.factories import CHAT, OTHER_WORKER, OWNER, WORKER
from tests.support.outcomes import present
from tests.support.store import open_chat, plan_of, rows_read, session_to
from tests.support.workspaces import HOST, insert_workspace, workspace_id
from tools.cell_statements import store_constants

OWN = (OWNER, "true")
"""The reach of the owner."""
MIB = 1024 * 1024
VERBS = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\b")
NOT_TO_BE_PREPARED = re.compile(r"\s*(DO|CREATE TABLE|LOCK TABLE)\b")
"""Blocks, definitions and locks cannot be prepared; the tests of their modules run them."""


ALL = dict(store_constants())
STATEMENTS = {
    name: cast("LiteralString", text)
    for name, text in ALL.items()
    if VERBS.match(text) and not name.split(".")[1].startswith("_")
}


def test_every_string_is_a_statement_a_fragment_or_plain_text() -> None:
    """Otherwise a statement in an unusual form would be skipped."""
    whole = [
        *STATEMENTS.values(),
        *(text for text in ALL.values() if NOT_TO_BE_PREPARED.match(text)),
    ]
    unnumbered = [_unnumbered(text) for text in whole]
    for name, text in ALL.items():
        part = _unnumbered(text)
        piece = any(part in other for other in unnumbered)
        assert piece or re.fullmatch(r"[a-z_ -]+|AWS4-HMAC-SHA256", text), (
            f"{name} is SQL that no test prepares"
        )


def _unnumbered(sql: str) -> str:
    return re.sub(r"\$\d+|(?<!:):[a-z_]+", "?", sql)


@pytest.mark.stock_server
async def test_every_statement_can_be_prepared(dsn: str) -> None:
    refused: dict[str, str] = {}
    async with session_to(dsn) as session:
        for number, (name, statement) in enumerate(STATEMENTS.items()):
            try:
                await session.script(f"PREPARE it_{number} AS {statement}", timeout_s=30)
            except ChatdError as error:
                refused[name] = error.message
    assert refused == {}
    assert len(STATEMENTS) > 30, "the search has found too little"


async def test_the_driver_knows_every_type_of_the_statements(dsn: str) -> None:
    """It looks up others in each new session, which takes more round trips than a chat."""
    async with session_to(dsn) as session:
        for number, statement in enumerate(STATEMENTS.values()):
            await session.script(f"PREPARE it_{number} AS {statement}", timeout_s=30)
        used = await session.fetch(
            """SELECT DISTINCT t::oid AS oid, t::text AS name FROM pg_prepared_statements,
                   unnest(parameter_types || coalesce(result_types, '{}')) AS t WHERE from_sql"""
        )
        arrays = await session.fetch("SELECT oid, typname, typelem FROM pg_type WHERE typelem > 0")
    declared = {oid for oid, _ in ARRAY_TYPES.values()}
    known = set(BUILTIN_TYPE_NAME_MAP.values()) | declared
    assert {row["name"] for row in used if row["oid"] not in known} == set()
    assert declared <= {row["oid"] for row in used}, "a type that no statement uses"
    assert (
        ARRAY_TYPES.items()
        <= {row["typname"]: (row["oid"], row["typelem"]) for row in arrays}.items()
    )


@pytest.mark.stock_server
async def test_no_statement_looks_expensive_to_a_server_without_statistics(dsn: str) -> None:
    """At this cost PostgreSQL would compile it, unless told not to, at each execution. One that
    is meant for one row and looks like this is planned for a product of tables."""
    compiled_above = 100_000
    async with session_to(dsn) as session:
        for number, statement in enumerate(STATEMENTS.values()):
            await session.script(f"PREPARE it_{number} AS {statement}", timeout_s=30)
        prepared = await session.fetch(
            "SELECT name, cardinality(parameter_types) FROM pg_prepared_statements"
            " WHERE name LIKE 'it\\_%'"
        )
        expensive: dict[str, float] = {}
        names = list(STATEMENTS)
        for name, parameters in prepared:
            values = f" ({', '.join(['NULL'] * parameters)})" if parameters else ""
            explain = cast("LiteralString", f"EXPLAIN (FORMAT JSON) EXECUTE {name}{values}")
            cost = json.loads(await session.fetchval(explain))[0]["Plan"]["Total Cost"]
            if cost >= compiled_above:
                expensive[names[int(name.removeprefix("it_"))]] = cost
    assert expensive == {}
    assert len(prepared) == len(STATEMENTS)


@pytest.mark.stock_server
async def test_a_new_session_looks_up_no_array_type(dsn: str) -> None:
    ids = [UUID(int=1), UUID(int=2)]
    async with session_to(dsn) as session:
        row = present(
            await session.fetchrow(
                """SELECT $1::uuid[] AS ids, $2::bigint[] AS numbers, $3::boolean[] AS flags,
                       $4::bytea[] AS bytes""",
                ids,
                [1, None],
                [True, False],
                [b"x"],
            )
        )
        assert list(row.values()) == [ids, [1, None], [True, False], [b"x"]]
        looked_up = (
            "SELECT count(*) FROM pg_prepared_statements WHERE statement ~ '^WITH RECURSIVE'"
        )
        assert await session.fetchval(looked_up) == 0


async def test_names_become_numbers_once_each_and_casts_stay() -> None:
    statement = named_statement("SELECT :b::text, :a, x[1:2], ", ":b WHERE '{}' = :a::json")
    assert statement.text == "SELECT $1::text, $2, x[1:2], $1 WHERE '{}' = $2::json"
    assert statement.args({"a": 1, "b": 2, "c": 3}) == [2, 1]


MANY = """
    INSERT INTO chats (id, owner_id, root_chat_id, parent_chat_id, title, status,
        snapshot_version, history_version, runnable_at)
    SELECT md5(n::text)::uuid, $2, CASE WHEN n % 5 < 2 THEN $1 ELSE md5(n::text)::uuid END,
        CASE WHEN n % 5 < 2 THEN $1 END, 'A chat',
        CASE WHEN n % 5 < 2 THEN 'running' ELSE 'waiting' END, 1, 1,
        CASE WHEN n % 5 < 2 THEN now() END
    FROM generate_series(1, 5000) n"""
LONG = """
    INSERT INTO chat_messages (chat_id, id, root_chat_id, revision, role, visibility, content,
        content_version)
    SELECT c.id, n, c.id, n, 'user', 'both', '[]', 1
    FROM chats c, generate_series(1, CASE WHEN c.id = $1 THEN 3000 ELSE 2 END) n
    WHERE (c.id, n) <> ($1, 1)"""


RUNS = """
    INSERT INTO chat_runs (chat_id, run_no, turn_no, epoch, attempt, worker_id, first_message_id)
    SELECT c.id, n, n, n, 1, c.id, n FROM chats c, generate_series(2, 5) n"""


async def fill_large_database(session: DatabaseSession) -> None:
    """Many idle chats, one of them long, and many runnable children. The transaction begins with
    new files: plans must not depend on how much earlier tests have left in tables and indexes."""
    await session.execute("TRUNCATE chats CASCADE")
    await open_chat(session, CHAT.int, free=WORKER)
    await session.execute(MANY, CHAT, OWNER)
    await session.execute(LONG, CHAT)
    await session.execute(RUNS)
    await session.execute("ANALYZE chats, chat_messages, chat_runs")


@pytest.mark.stock_server
async def test_the_hot_statements_do_not_read_what_they_do_not_return(dsn: str) -> None:
    """One test for all, because filling the database is slow."""
    async with session_to(dsn) as session:
        await session.execute("BEGIN")
        await fill_large_database(session)
        assert await rows_read(session, chats.LOAD_CHANGES, CHAT, 2998, 1001, MIB, *OWN) <= 3
        assert await rows_read(session, chats.LOAD_NEWEST, CHAT, 51, MIB, *OWN) <= 52
        page = (CHAT, 1500, 0, 51, "false", MIB, *OWN)
        for statement in (message_pages.LOAD_NEWEST_PAGE, message_pages.LOAD_OLDEST_PAGE):
            assert await rows_read(session, statement, *page) <= 52
        last = await session.fetchrow("SELECT updated_at, id FROM chats ORDER BY 1, 2 LIMIT 1")
        assert last is not None
        late_page = (OWNER, "false", last["updated_at"], last["id"], 50)
        assert await rows_read(session, chats.LIST, *late_page) <= 1
        assert await rows_read(session, chats.LIST, OWNER, "false", None, None, 50) <= 50
        unpinned = (OWNER, "false", None, None, 50, None, "waiting", "false")
        assert await rows_read(session, chats.LIST_MOST, *unpinned) <= 50
        assert await rows_read(session, chats.LIST_ALL_MOST, *unpinned, "true") <= 50
        await session.execute(
            """UPDATE chats SET status = 'error', last_error = '{}' WHERE id IN (
                   SELECT id FROM chats WHERE owner_id = $1 AND status = 'waiting'
                     AND parent_chat_id IS NULL AND NOT archived LIMIT 3)""",
            OWNER,
        )
        failed = (OWNER, "false", None, None, 50, None, "error", None)
        assert await rows_read(session, chats.LIST_RARE, *failed) == 3
        assert await rows_read(session, chats.LIST_ALL_RARE, *failed, "true") == 3
        pinned = (OWNER, "false", None, None, 50, None, None, "true")
        assert await rows_read(session, chats.LIST_OWN_PINS, *pinned) == 0
        assert await rows_read(session, workers.ACQUIRE, OTHER_WORKER, 5, 0, 1, 0) == 0
        assert await rows_read(session, workers.ACQUIRE, OTHER_WORKER, 0, 5, 1, 0) <= 10
        await session.execute("ROLLBACK")


@pytest.mark.stock_server
async def test_the_lists_of_a_reader_read_the_shares_and_not_all_chats(dsn: str) -> None:
    shared, reader = 300, UUID(int=77)
    at_most = 3 * shared + 10  # the shares, their union, and their chats
    async with session_to(dsn) as session:
        await session.execute("BEGIN")
        await fill_large_database(session)
        await session.execute(
            """INSERT INTO chat_shares (chat_id, user_id) SELECT id, $1 FROM chats
               WHERE parent_chat_id IS NULL ORDER BY id LIMIT $2""",
            reader,
            shared,
        )
        await session.execute("ANALYZE chat_shares")
        page = (reader, "false", None, None, 50, None, None, None)
        assert await rows_read(session, chats.LIST_SHARED, *page, "true") <= at_most
        assert await rows_read(session, chats.LIST_ALL, *page, "true") <= at_most + 50
        assert await rows_read(session, shares.LIST_ROOTS, f"{{{reader}}}", 10_000) <= at_most
        words = (*page, "{1,2,3}", "{%walrus%}", None, "true")
        assert await rows_read(session, search.SEARCH_SHARED, *words) <= at_most
        await session.execute("ROLLBACK")


ENTRIES = """
    INSERT INTO chat_search_texts (chat_id, message_id, root_chat_id, owner_id, at, text, grams)
    SELECT chat, n, chat, CASE WHEN n % 10 = 0 THEN $1::uuid ELSE chat END,
        now() + n * interval '1 ms',
        CASE WHEN n = 70 THEN 'a walrus' ELSE 'a common fence' END,
        CASE WHEN n % 10 = 0 THEN $2::integer[] ELSE $3::integer[] END
    FROM generate_series(1, 5000) n, LATERAL (SELECT md5((n % 500 + 2)::text)::uuid AS chat) c"""


@pytest.mark.stock_server
async def test_a_search_reads_the_entries_that_have_the_grams_and_compares_one_page(
    dsn: str,
) -> None:
    """500 of the 5,000 entries are the owner's, in 50 chats. A rare word reads its entry, and a
    common one compares one text of each chat that it shows."""
    rare, common = "a walrus", "a common fence"
    other = UserId(UUID(int=OWNER.int ^ 1))
    async with session_to(dsn) as session:
        await session.execute("BEGIN")
        await session.execute("TRUNCATE chats CASCADE")
        await open_chat(session, CHAT.int, free=WORKER)
        await session.execute(MANY, CHAT, OWNER)
        keys = index_keys(OWNER, text_grams(common))
        await session.execute(ENTRIES, OWNER, keys, index_keys(other, text_grams(common)))
        await session.execute(
            "UPDATE chat_search_texts SET grams = $1 WHERE message_id = 70",
            index_keys(OWNER, text_grams(rare)),
        )
        await session.execute(search.MOVE_PENDING)
        await session.execute("ANALYZE chat_search_texts")
        page = (OWNER, "false", None, None, 10, None, None, None)

        async def read(words: str) -> int:
            grams = ",".join(map(str, query_grams([words])))
            values = (*page, f"{{{grams}}}", f"{{%{words}%}}", None)
            plan = await plan_of(session, search.SEARCH, *values)
            assert "chat_search_texts_grams" in {node.get("Index Name") for node in plan}, words
            return await rows_read(session, search.SEARCH, *values)

        assert await read("walrus") <= 3
        assert await read("com") <= 500 + 10 + 10
        newest = (*page, 100, "{%com%}", "{}")
        assert await rows_read(session, search.SEARCH_NEWEST, *newest) <= 100 + 10 + 50
        await session.execute("ROLLBACK")


@pytest.mark.stock_server
async def test_the_history_of_a_summarized_chat_does_not_read_its_old_messages(dsn: str) -> None:
    async with session_to(dsn) as session:
        await session.execute("BEGIN")
        await fill_large_database(session)
        await session.execute(
            """UPDATE chat_messages SET compressed = true, visibility = 'model'
               WHERE chat_id = $1 AND id = 2990""",
            CHAT,
        )
        await session.execute(
            "UPDATE chat_messages SET role = 'system' WHERE chat_id = $1 AND id = 2", CHAT
        )
        # The summary, what follows it, and the system message; the summary is also the boundary.
        # And the chat's row, for its owner.
        assert await rows_read(session, messages.HISTORY, CHAT, 1 << 26, *OWN) <= 11 + 1 + 1 + 1
        await session.execute("ROLLBACK")


@pytest.mark.stock_server
async def test_no_statement_scans_all_chats_or_all_messages(dsn: str) -> None:
    async with session_to(dsn) as session:
        await session.execute("BEGIN")
        await fill_large_database(session)
        for name, statement in STATEMENTS.items():
            plan = await plan_of(session, statement)
            scanned = {node["Relation Name"] for node in plan if node["Node Type"] == "Seq Scan"}
            assert not scanned & {"chats", "chat_messages"}, name
        await session.execute("ROLLBACK")


@pytest.mark.stock_server
async def test_the_spend_of_an_owner_is_read_by_its_own_rows(dsn: str) -> None:
    async with session_to(dsn) as session:
        await session.execute("BEGIN")
        await session.execute(
            """INSERT INTO usage_events (at, owner_id, chat_id, root_chat_id, kind, provider, model,
                   input_tokens, output_tokens, reasoning_tokens, cache_creation_tokens,
                   cache_read_tokens, cost_micros, ok)
               SELECT now(), md5((n % 500)::text)::uuid, $1, $1, 'turn', 'p', 'm', 1, 1, 0, 0, 0, 1,
                   true FROM generate_series(1, 5000) n""",
            CHAT,
        )
        await session.execute("ANALYZE usage_events")
        one = await session.fetchval("SELECT md5('7')::uuid")
        assert await rows_read(session, spend.READ, one, "month", None, None) <= 12
        await session.execute("ROLLBACK")


async def test_a_step_commit_leaves_the_indexes_alone(pool: Pool) -> None:
    """Heap-only updates: what a step writes to the row is in no index."""
    assert await _indexed(pool) & STEP_COLUMNS == set()


# Without `orphan_count`: a step writes the value that it has, unless a worker died before.
STEP_COLUMNS = {
    "snapshot_version",
    "history_version",
    "queue_version",
    "retry_version",
    "retry_state",
    "attempt",
    "next_message_id",
    "next_queue_id",
    "queue_len",
    "steer_len",
    "pending_calls",
    "turn_message_id",
    "compaction_requested",
    "epoch",
    "recent_changes",
    "model_config_id",
    "reasoning_effort",
    "last_error",
}


async def _indexed(conn: Conn) -> set[str]:
    rows = await conn.fetch(
        """SELECT DISTINCT a.attname FROM pg_index i
           JOIN pg_depend d ON d.objid = i.indexrelid AND d.refobjid = i.indrelid
           JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = d.refobjsubid
           WHERE i.indrelid = 'chats'::regclass"""
    )
    return {row["attname"] for row in rows}


SPACES = """
    INSERT INTO workspaces (id, owner_id, template_id, name, host_id, latest_build, deleted)
    SELECT md5(n::text)::uuid, lpad(to_hex(n % 100), 32, '0')::uuid, w.template_id, 'w' || n,
        'host-' || n % 500, 2, n % 3 = 0
    FROM workspaces w, generate_series(1, 3000) n WHERE w.id = $1"""
BUILDS = """
    INSERT INTO workspace_builds (id, workspace_id, build_number, transition, template_version_id,
        status, initiator_id, reason, completed_at, started_at, attempt, deadline)
    SELECT md5(w.id::text || k)::uuid, w.id, k, 'start', b.template_version_id, 'succeeded',
        w.owner_id, 'tool', now(), now(), 1, CASE k WHEN 2 THEN now() + interval '1 h' END
    FROM workspaces w, workspace_builds b, generate_series(1, 2) k
    WHERE w.id <> $1 AND b.workspace_id = $1"""
AGENTS = """
    INSERT INTO workspace_agents (id, build_id, workspace_id, name, lifecycle)
    SELECT md5(b.id::text)::uuid, b.id, b.workspace_id, 'main',
        CASE b.build_number WHEN 2 THEN 'ready' ELSE 'off' END
    FROM workspace_builds b WHERE b.workspace_id <> $1"""
TABLES = {"workspaces", "workspace_builds", "workspace_agents", "chat_bindings"}


async def big_yard(session: DatabaseSession) -> None:
    """Thousands of workspaces on many hosts, and one with a pending first build on this host."""
    await insert_workspace(session)
    for statement in (SPACES, BUILDS, AGENTS):
        await session.execute(statement, workspace_id(1))
    await session.execute("ANALYZE workspaces, workspace_builds, workspace_agents")


@pytest.mark.stock_server
async def test_frequent_statements_read_no_more_than_they_return(dsn: str) -> None:
    async with session_to(dsn) as session:
        await session.execute("BEGIN")
        await big_yard(session)
        hosts = f"{{{HOST}}}"
        places = json_text([BuildPlace(runner_id=RunnerId(HOST), backend="sandbox")])
        kinds, slots = "{start,stop,delete}", "{2,2,2}"
        take = (WORKER, places, 30, kinds, "{}", 15, 1, slots)
        assert await rows_read(session, builds.ACQUIRE, *take) <= 12
        assert await rows_read(session, builds.REAP, 1800, "late", 100) <= 4
        assert await rows_read(session, workspaces.LIST_AGENTS_ON_HOST, hosts, 1000) <= 4
        page = (hosts, "sandbox", UUID(int=0), 100)
        assert await rows_read(session, workspaces.LIST_ON_HOST, *page) <= 6
        assert await rows_read(session, workspaces.GET_SNAPSHOT, workspace_id(1), OWNER) <= 4
        assert await rows_read(session, builds.LIST_OVERDUE, 600, 50) <= 4
        assert await rows_read(session, bindings.GET, CHAT, *OWN) <= 4
        await session.execute("ROLLBACK")


@pytest.mark.stock_server
async def test_no_statement_on_one_workspace_or_host_scans_them_all(dsn: str) -> None:
    statements = {
        "beat": builds.RENEW,
        "finish": builds.FINISH.text,
        "insert": builds.INSERT.text,
        "take": builds.ACQUIRE,
        "used": workspaces.RECORD_ACTIVITY,
        "heard": workspaces.RECORD_HEALTHY,
        "missed": workspaces.RECORD_MISSED,
        "on host": workspaces.LIST_AGENTS_ON_HOST,
        "remember": bindings.SAVE_BOUND_AGENT,
        "overdue": builds.LIST_OVERDUE,
        "forget who asked for workspaces": idempotency.CLEAR_WORKSPACE_KEYS,
        "forget who asked for builds": idempotency.CLEAR_BUILD_KEYS,
    }
    async with session_to(dsn) as session:
        await session.execute("BEGIN")
        await big_yard(session)
        scans: dict[str, set[str]] = {}
        for name, statement in statements.items():
            plan = await plan_of(session, statement)
            found = {node["Relation Name"] for node in plan if node["Node Type"] == "Seq Scan"}
            if found & TABLES:
                scans[name] = found & TABLES
        assert scans == {}
        await session.execute("ROLLBACK")
