"""Constraints of workspaces."""

from typing import LiteralString

import pytest

from chatd.domain.chat.row import Fence
from chatd.domain.chat.states import State
from chatd.domain.errors import InvariantBroken
from chatd.store.pool import Pool
from chatd.store.workspace import bindings, build_leases
from tests.support.factories import CHAT
from tests.support.seeds import Seed
from tests.support.store import insert_seed
from tests.support.workspaces import (
    agent_id,
    build_id,
    finish,
    insert_template,
    insert_workspace,
    insert_workspace_for,
    wanted,
    workspace_id,
)

# The first build has succeeded and has an agent, the second runs, the third is pending.
IMPOSSIBLE_WORKSPACES: list[tuple[str, LiteralString]] = [
    ("template_has_a_name", "UPDATE templates SET name = 'two words'"),
    ("template_has_a_name", "UPDATE templates SET name = repeat('x', 33)"),
    ("template_comes_from_somewhere", "UPDATE templates SET origin = 'rumour'"),
    ("template_times_are_not_negative", "UPDATE templates SET default_ttl_s = -1"),
    ("template_times_are_not_negative", "UPDATE templates SET activity_bump_s = -1"),
    (
        "parameter_bounds_are_in_order",
        """INSERT INTO template_parameters SELECT id, 0, 'p', 'number', false, NULL, true, false,
               '', '', '', '[]', '', '', 2, 1 FROM template_versions""",
    ),
    (
        "template_parameters_name_check",
        """INSERT INTO template_parameters SELECT id, 0, '', 'string', false, NULL, true, false,
               '', '', '', '[]', '', '', NULL, NULL FROM template_versions""",
    ),
    (
        "template_parameters_type_check",
        """INSERT INTO template_parameters SELECT id, 0, 'p', 'blob', false, NULL, true, false,
               '', '', '', '[]', '', '', NULL, NULL FROM template_versions""",
    ),
    ("workspace_has_a_name", "UPDATE workspaces SET name = '-'"),
    ("workspaces_ttl_s_check", "UPDATE workspaces SET ttl_s = -1"),
    ("workspaces_latest_build_check", "UPDATE workspaces SET latest_build = -1"),
    (
        "workspace_builds_build_number_check",
        "UPDATE workspace_builds SET build_number = 0 WHERE status = 'succeeded'",
    ),
    (
        "workspace_builds_transition_check",
        "UPDATE workspace_builds SET transition = 'pause' WHERE status = 'succeeded'",
    ),
    ("workspace_builds_attempt_check", "UPDATE workspace_builds SET attempt = -1"),
    (
        "build_status_is_known",
        "UPDATE workspace_builds SET status = 'lost' WHERE status = 'pending'",
    ),
    ("build_reason_is_known", "UPDATE workspace_builds SET reason = 'whim'"),
    (
        "only_running_builds_are_held",
        """UPDATE workspace_builds SET worker_id = id, heartbeat_at = now(), started_at = now(),
               attempt = 1 WHERE status = 'pending'""",
    ),
    (
        "who_holds_a_build_shows_it",
        "UPDATE workspace_builds SET heartbeat_at = NULL WHERE status = 'running'",
    ),
    (
        "a_held_build_was_taken_up",
        "UPDATE workspace_builds SET started_at = NULL WHERE status = 'running'",
    ),
    (
        "ended_builds_have_an_end",
        "UPDATE workspace_builds SET completed_at = NULL WHERE status = 'succeeded'",
    ),
    (
        "failed_builds_say_why",
        "UPDATE workspace_builds SET status = 'failed' WHERE status = 'succeeded'",
    ),
    (
        "only_failed_builds_have_errors",
        "UPDATE workspace_builds SET error = 'oops' WHERE status = 'succeeded'",
    ),
    (
        "only_a_start_has_a_deadline",
        """UPDATE workspace_builds SET transition = 'stop', deadline = now()
           WHERE status = 'succeeded'""",
    ),
    (
        "deadlines_are_in_order",
        """UPDATE workspace_builds SET deadline = now(), max_deadline = now() - interval '1 s'
           WHERE status = 'succeeded'""",
    ),
    (
        "workspace_build_logs_level_check",
        """INSERT INTO workspace_build_logs (build_id, stage, level, output)
           SELECT id, 'seed', 'shout', 'x' FROM workspace_builds""",
    ),
    ("workspace_agents_name_check", "UPDATE workspace_agents SET name = ''"),
    (
        "workspace_agents_connection_timeout_s_check",
        "UPDATE workspace_agents SET connection_timeout_s = -1",
    ),
    ("agent_lifecycle_is_known", "UPDATE workspace_agents SET lifecycle = 'bored'"),
    ("agent_is_its_own_parent_never", "UPDATE workspace_agents SET parent_id = id"),
    (
        "first_connected_before_last",
        "UPDATE workspace_agents SET first_connected_at = now(), last_connected_at = NULL",
    ),
    (
        "agent_context_snapshots_version_check",
        "INSERT INTO agent_context_snapshots SELECT id, 0, 'h', '/', 'linux' FROM workspace_agents",
    ),
    (
        "agent_context_snapshots_hash_check",
        "INSERT INTO agent_context_snapshots SELECT id, 1, '', '/', 'linux' FROM workspace_agents",
    ),
    ("an_agent_is_of_a_build", "UPDATE chat_bindings SET build_id = NULL"),
    ("pinned_whole", "UPDATE chat_bindings SET pinned_at = now()"),
]


async def test_an_impossible_workspace_build_or_agent_is_refused(pool: Pool) -> None:
    await insert_template(pool)
    fence = Fence.of(await insert_seed(pool, Seed(state=State.R0, calls="local")))
    await insert_workspace_for(pool, CHAT, fence)
    await finish(pool)
    await bindings.save_bound_agent(
        pool, CHAT, workspace_id(1), build_id=build_id(1), agent_id=agent_id(1)
    )
    await insert_workspace(pool, 2)
    await build_leases.acquire_builds(pool, wanted())
    await insert_workspace(pool, 3)
    for name, statement in IMPOSSIBLE_WORKSPACES:
        with pytest.raises(InvariantBroken, match=f'"{name}"'):
            await pool.execute(statement)
