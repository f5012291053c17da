"""Frequent statements on workspaces read only what they return, however many rows there are."""

from uuid import UUID

from chatd.store.chat import idempotency
from chatd.store.conn import DatabaseSession
from chatd.store.workspace import agents, bindings, build_leases, builds, workspaces
from tests.support.factories import CHAT, WORKER
from tests.support.store import plan_of, rows_read, session_to
from tests.support.workspaces import HOST, insert_workspace, workspace_id

SPACES = """
    INSERT INTO workspaces (id, owner_id, template_id, name, host_id, latest_build, deleted)
    SELECT md5(n::text)::uuid, md5((n % 100)::text)::uuid, w.template_id, 'w' || n,
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


async def test_frequent_statements_read_no_more_than_they_return(dsn: str) -> None:
    async with session_to(dsn) as session:
        await session.execute("BEGIN")
        await big_yard(session)
        hosts, backends = f"{{{HOST}}}", "{fake}"
        take = (WORKER, hosts, backends, 30, 2, "{}", 15)
        assert await rows_read(session, build_leases.ACQUIRE, *take) <= 12
        assert await rows_read(session, build_leases.REAP, 1800, "late", 100) <= 4
        assert await rows_read(session, agents.LIST_ON_HOST, hosts, 1000) <= 4
        page = (hosts, "fake", UUID(int=0), 100)
        assert await rows_read(session, workspaces.LIST_ON_HOST, *page) <= 6
        assert await rows_read(session, workspaces.GET_SNAPSHOT, workspace_id(1)) <= 4
        assert await rows_read(session, builds.LIST_OVERDUE, 600, 50) <= 4
        assert await rows_read(session, bindings.GET, CHAT) <= 4
        await session.execute("ROLLBACK")


async def test_no_statement_on_one_workspace_or_host_scans_them_all(dsn: str) -> None:
    statements = {
        "beat": build_leases.RENEW,
        "finish": build_leases.FINISH.text,
        "insert": builds.INSERT.text,
        "take": build_leases.ACQUIRE,
        "used": workspaces.RECORD_ACTIVITY,
        "heard": agents.RECORD_HEALTHY,
        "missed": agents.RECORD_MISSED,
        "on host": agents.LIST_ON_HOST,
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
