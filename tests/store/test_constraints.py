"""Each constraint refuses a row that no chat, workspace, build or agent may have."""

from typing import LiteralString

import pytest

from chatd.domain.chat.states import State
from chatd.domain.errors import InvariantBroken
from chatd.store.pool import Pool
from tests.support.factories import CHAT
from tests.support.seeds import Seed
from tests.support.store import chat_id, dump, insert_seed, open_child

# The constraint, the state of a valid chat, and an update that breaks exactly this constraint.
IMPOSSIBLE: list[tuple[str, State, LiteralString]] = [
    ("status_is_known", State.W, "status = 'asleep'"),
    ("no_queue_behind_an_idle_chat", State.W, "queue_len = 1"),
    ("archived_is_at_rest", State.P0, "archived = true"),
    ("archived_is_at_rest", State.R1, "archived = true"),
    ("archived_is_at_rest", State.I0, "archived = true"),
    ("archived_is_at_rest", State.A0, "archived = true"),
    ("only_active_chats_are_owned", State.W, "worker_id = id, attempt = 1"),
    ("only_active_chats_are_owned", State.E0, "worker_id = id, attempt = 1"),
    ("only_active_chats_are_owned", State.A0, "worker_id = id, attempt = 1"),
    ("error_has_a_reason", State.E0, "last_error = NULL"),
    ("error_has_a_reason", State.W, "last_error = '{}'"),
    ("action_has_a_deadline", State.A0, "action_deadline = NULL"),
    ("action_has_a_deadline", State.W, "action_deadline = now()"),
    ("action_has_open_calls", State.A0, "pending_calls = '[]'"),
    ("interrupt_has_a_deadline", State.I0, "interrupt_deadline = NULL"),
    ("interrupt_has_a_deadline", State.R0, "interrupt_deadline = now()"),
    ("runnable_means_wanting_a_worker", State.P0, "runnable_at = NULL"),
    ("runnable_means_wanting_a_worker", State.R0, "runnable_at = now()"),
    ("runnable_means_wanting_a_worker", State.W, "runnable_at = now()"),
    ("rest_has_no_open_calls", State.W, "pending_calls = '[{}]'"),
    ("an_owner_is_at_an_attempt", State.R0, "attempt = 0"),
    ("retry_belongs_to_a_running_chat", State.W, "retry_state = '{}'"),
    ("compaction_belongs_to_an_active_chat", State.W, "compaction_requested = true"),
    ("parts_are_not_newer_than_the_whole", State.W, "history_version = snapshot_version + 1"),
    ("parts_are_not_newer_than_the_whole", State.W, "queue_version = snapshot_version + 1"),
    ("parts_are_not_newer_than_the_whole", State.W, "retry_version = snapshot_version + 1"),
    ("queue_fits", State.R1, "queue_len = 21"),
    ("queue_fits", State.R1, "queue_len = -1, steer_len = -1"),
    ("queue_fits", State.R1, "steer_len = queue_len + 1"),
    ("counters_start_at_one", State.W, "next_message_id = 0"),
    ("counters_start_at_one", State.W, "next_queue_id = 0"),
    ("counters_start_at_one", State.W, "epoch = -1"),
    ("counters_start_at_one", State.W, "attempt = -1"),
    ("only_live_roots_are_pinned", State.XW0, "pin_order = 1"),
    ("only_live_roots_are_pinned", State.W, "pin_order = -1"),
    ("roots_are_their_own_root", State.W, "parent_chat_id = id"),
]

OTHER_ROWS: list[tuple[str, LiteralString]] = [
    ("chat_messages_role_check", "UPDATE chat_messages SET role = 'narrator'"),
    ("chat_messages_visibility_check", "UPDATE chat_messages SET visibility = 'nobody'"),
    ("chat_messages_cost_micros_check", "UPDATE chat_messages SET cost_micros = -1"),
    ("chat_messages_runtime_ms_check", "UPDATE chat_messages SET runtime_ms = -1"),
    (
        "usage_events_cost_micros_check",
        """INSERT INTO usage_events (at, owner_id, chat_id, root_chat_id, kind, provider, model,
               input_tokens, output_tokens, reasoning_tokens, cache_creation_tokens,
               cache_read_tokens, cost_micros, ok)
           SELECT now(), id, id, id, 'turn', '', '', 0, 0, 0, 0, 0, -1, true FROM chats""",
    ),
    ("usage_rolled_up_one_check", "INSERT INTO usage_rolled_up VALUES (false, now())"),
    (
        "provider_source_is_known",
        """INSERT INTO providers (id, name, kind, has_api_key, enabled, source)
           SELECT id, 'p', 'demo', false, true, 'rumour' FROM chats""",
    ),
    (
        "model_source_is_known",
        """INSERT INTO model_configs (id, name, provider_id, model, position, parameters, enabled,
               is_default, source)
           SELECT id, 'm', id, 'demo', 0, '{}', true, false, 'rumour' FROM chats""",
    ),
    (
        "a_default_can_be_used",
        """INSERT INTO model_configs (id, name, provider_id, model, position, parameters, enabled,
               is_default, source)
           SELECT id, 'm', id, 'demo', 0, '{}', false, true, 'settings' FROM chats""",
    ),
]

NAMES = """
    SELECT conname FROM pg_constraint
    WHERE contype = 'c' AND connamespace = 'public'::regnamespace"""


async def test_every_constraint_has_its_row_here(pool: Pool) -> None:
    named = {row["conname"] for row in await pool.fetch(NAMES)}
    listed = (*IMPOSSIBLE, *OTHER_ROWS, *IMPOSSIBLE_WORKSPACES)
    assert {name for name, *_ in listed} == named


async def test_an_impossible_chat_is_refused(pool: Pool) -> None:
    """One test for all, because creating the valid chats takes longer than the refusals."""
    chats = {
        state: await insert_seed(pool, Seed(state=state, chat_id=chat_id(number)))
        for number, state in enumerate({state for _, state, _ in IMPOSSIBLE}, 1)
    }
    before = await dump(pool)
    for name, state, assignment in IMPOSSIBLE:
        with pytest.raises(InvariantBroken, match=f'"{name}"'):
            await pool.execute(f"UPDATE chats SET {assignment} WHERE id = $1", chats[state].id)
    assert await dump(pool) == before


async def test_an_impossible_row_of_another_table_is_refused(pool: Pool) -> None:
    await insert_seed(pool, Seed(state=State.W))
    before = await dump(pool)
    for name, statement in OTHER_ROWS:
        with pytest.raises(InvariantBroken, match=f'"{name}"'):
            await pool.execute(statement)
    assert await dump(pool) == before


async def test_a_child_is_neither_pinned_nor_a_root(pool: Pool) -> None:
    await insert_seed(pool, Seed(state=State.W))
    child = await open_child(pool, 7, root=CHAT.int)
    with pytest.raises(InvariantBroken, match="only_live_roots_are_pinned"):
        await pool.execute("UPDATE chats SET pin_order = 1 WHERE id = $1", child.id)
    with pytest.raises(InvariantBroken, match="roots_are_their_own_root"):
        await pool.execute("UPDATE chats SET root_chat_id = id WHERE id = $1", child.id)
