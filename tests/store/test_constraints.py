"""Each constraint refuses a row that no chat, workspace, build or agent may have."""

from typing import LiteralString

import pytest

from chatd.domain.chat.row import Fence
from chatd.domain.chat.states import State
from chatd.domain.errors import InvariantBroken
from chatd.store.database.pool import Pool
from chatd.store.workspace import bindings, builds
from tests.support.factories import CHAT, HARNESS
from tests.support.seeds import Seed
from tests.support.store import chat_id, dump, insert_seed, open_child
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
    ("deleted_is_archived", State.W, "deleted_at = now()"),
    ("only_an_interrupt_holds_the_queue", State.R1, "queue_held = true"),
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
    (
        "files_have_bytes",
        """INSERT INTO files (id, owner_id, media_type, size_bytes, sha256, store, chunk_bytes)
           SELECT id, owner_id, 'text/plain', 0, '', 'database', 1 FROM chats""",
    ),
    (
        "file_totals_are_not_negative",
        "INSERT INTO file_totals (owner_id, files, bytes) SELECT owner_id, -1, 0 FROM chats",
    ),
    ("usage_rolled_up_one_check", "INSERT INTO usage_rolled_up VALUES (false, now())"),
    ("chat_search_progress_one_check", "INSERT INTO chat_search_progress VALUES (false, now())"),
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
    (
        "a_deleted_model_is_disabled",
        """INSERT INTO model_configs (id, name, provider_id, model, position, parameters, enabled,
               is_default, source, deleted_at)
           SELECT id, 'm', id, 'demo', 0, '{}', true, false, 'database', now() FROM chats""",
    ),
    (
        "a_learned_limit_is_positive",
        """INSERT INTO model_configs (id, name, provider_id, model, position, parameters, enabled,
               is_default, source, learned_limit)
           SELECT id, 'm', id, 'demo', 0, '{}', true, false, 'database', 0 FROM chats""",
    ),
    (
        "override_task_is_known",
        "INSERT INTO model_overrides (task, model_config_id) SELECT 'poetry', id FROM chats",
    ),
    (
        "secret_key_state_is_known",
        "INSERT INTO secret_keys (id, check_value, state) VALUES ('k', '', 'lost')",
    ),
    (
        "deployment_settings_one_check",
        "INSERT INTO deployment_settings (one, version, document) VALUES (false, 1, '{}')",
    ),
    (
        "disabled_schedules_are_not_due",
        """INSERT INTO schedules (id, owner_id, name, cron, timezone, prompt, enabled, next_at)
           SELECT id, owner_id, '', '', '', '', false, now() FROM chats""",
    ),
    (
        "webhooks_have_events",
        """INSERT INTO webhooks (id, owner_id, url, events, secret)
           SELECT id, owner_id, '', '{}', 's.k.x' FROM chats""",
    ),
    (
        "enabled_webhooks_have_no_reason",
        """INSERT INTO webhooks (id, owner_id, url, events, secret, disabled_by)
           SELECT id, owner_id, '', '{x}', 's.k.x', 'tired' FROM chats""",
    ),
    (
        "known_kind_of_webhook",
        """INSERT INTO webhooks (id, owner_id, url, events, secret, kind)
           SELECT id, owner_id, '', '{x}', 's.k.x', 'pigeon' FROM chats""",
    ),
    (
        "push_keys_name_check",
        "INSERT INTO push_keys (id, name, private_key) SELECT id, 'other', 's.k.x' FROM chats",
    ),
    (
        "a_delivery_is_due_or_ended",
        """INSERT INTO webhook_deliveries (webhook_id, event, due_at)
           SELECT id, 'ping', NULL FROM chats""",
    ),
    ("role_is_known", "UPDATE users SET role = 'owner'"),
    ("user_status_is_known", "UPDATE users SET status = 'asleep'"),
    (
        "service_accounts_have_no_password",
        "UPDATE users SET is_service = true, password_hash = 'x'",
    ),
    (
        "credential_kind_is_known",
        """INSERT INTO credentials (id, kind, user_id, secret_sha256, expires_at)
           SELECT id, 'badge', id, '', now() FROM users""",
    ),
    (
        "only_tokens_last_for_ever",
        """INSERT INTO credentials (id, kind, user_id, secret_sha256)
           SELECT id, 'session', id, '' FROM users""",
    ),
    (
        "audit_outcome_is_known",
        """INSERT INTO audit_log (actor, action, object_type, object_id, outcome)
           VALUES ('', '', '', '', 'maybe')""",
    ),
    (
        "default_spend_limit_is_one_row",
        "INSERT INTO default_spend_limit (one, period) VALUES (false, 'day')",
    ),
    (
        "default_spend_limit_is_positive",
        "INSERT INTO default_spend_limit (micros, period) VALUES (0, 'day')",
    ),
    ("spend_period_is_known", "INSERT INTO default_spend_limit (period) VALUES ('year')"),
    (
        "user_spend_limit_is_positive",
        "INSERT INTO user_spend_limits (user_id, micros) SELECT id, 0 FROM users",
    ),
    (
        "group_spend_limit_is_positive",
        """WITH made AS (
               INSERT INTO groups (id, name) SELECT id, username FROM users RETURNING id)
           INSERT INTO group_spend_limits (group_id, micros) SELECT id, 0 FROM made""",
    ),
    (
        "mcp_transport_is_known",
        """INSERT INTO mcp_servers (id, slug, display_name, url, transport, auth, enabled,
               availability, config)
           SELECT id, 's', '', '', 'pigeon', 'none', true, 'force_on', '{}' FROM chats""",
    ),
    (
        "mcp_auth_is_known",
        """INSERT INTO mcp_servers (id, slug, display_name, url, transport, auth, enabled,
               availability, config)
           SELECT id, 's', '', '', 'sse', 'smile', true, 'force_on', '{}' FROM chats""",
    ),
    (
        "mcp_availability_is_known",
        """INSERT INTO mcp_servers (id, slug, display_name, url, transport, auth, enabled,
               availability, config)
           SELECT id, 's', '', '', 'sse', 'none', true, 'never', '{}' FROM chats""",
    ),
    (
        "mcp_source_is_known",
        """INSERT INTO mcp_servers (id, slug, display_name, url, transport, auth, enabled,
               availability, config, source)
           SELECT id, 's', '', '', 'sse', 'none', true, 'force_on', '{}', 'rumour' FROM chats""",
    ),
    (
        "a_deleted_mcp_server_has_no_secret",
        """INSERT INTO mcp_servers (id, slug, display_name, url, transport, auth, enabled,
               availability, config, deleted_at)
           SELECT id, 's', '', '', 'sse', 'none', true, 'force_on', '{}', now() FROM chats""",
    ),
    (
        "mcp_tokens_or_failure",
        """INSERT INTO mcp_tokens (id, server_id, user_id, client)
           SELECT id, id, owner_id, '{}' FROM chats""",
    ),
    (
        "mcp_failure_is_short",
        """INSERT INTO mcp_tokens (id, server_id, user_id, client, failure)
           SELECT id, id, owner_id, '{}', repeat('x', 401) FROM chats""",
    ),
    (
        "a_tool_policy_has_one_subject",
        """INSERT INTO tool_policies (user_id, chat_id, policy)
           SELECT owner_id, id, '{}' FROM chats""",
    ),
    (
        "a_tool_policy_has_few_rules",
        """INSERT INTO tool_policies (chat_id, policy)
           SELECT id, jsonb_build_object('rules', jsonb_agg(n))
           FROM chats, generate_series(1, 201) n GROUP BY id""",
    ),
    ("shared_with_a_user_or_a_group", "INSERT INTO chat_shares (chat_id) SELECT id FROM chats"),
    (
        "a_hidden_line_has_an_end",
        """INSERT INTO chat_message_versions (chat_id, message_id, group_id, hidden)
           SELECT id, 1, 1, '{1}' FROM chats""",
    ),
    (
        "preview_shares_port_check",
        """INSERT INTO preview_shares (chat_id, workspace_id, port) SELECT id, id, 0 FROM chats""",
    ),
    (
        "a_rating_is_up_or_down",
        """INSERT INTO message_ratings (chat_id, message_id, user_id, value)
           SELECT id, 1, owner_id, 'fine' FROM chats""",
    ),
    (
        "a_rating_has_a_short_comment",
        """INSERT INTO message_ratings (chat_id, message_id, user_id, value, comment)
           SELECT id, 1, owner_id, 'up', repeat('x', 2001) FROM chats""",
    ),
    (
        "an_answer_link_has_a_digest",
        """INSERT INTO answer_links (id, chat_id, tool_call_id, user_id, fingerprint, secret_sha256,
               expires_at)
           SELECT id, id, 'c', owner_id, '', 'secret', now() FROM chats""",
    ),
    (
        "an_answer_link_approves_or_denies",
        """INSERT INTO answer_links (id, chat_id, tool_call_id, user_id, fingerprint, secret_sha256,
               expires_at, decision, used_at)
           SELECT id, id, 'c', owner_id, '', sha256(''), now(), 'answer', now() FROM chats""",
    ),
    (
        "a_used_answer_link_has_a_decision",
        """INSERT INTO answer_links (id, chat_id, tool_call_id, user_id, fingerprint, secret_sha256,
               expires_at, used_at)
           SELECT id, id, 'c', owner_id, '', sha256(''), now(), now() FROM chats""",
    ),
    (
        "a_public_link_has_a_digest",
        """INSERT INTO public_links (id, chat_id, secret_sha256, shown, with_tools, with_files,
               expires_at)
           SELECT id, id, 'secret', '{[1,2)}', false, false, now() FROM chats""",
    ),
    (
        "a_whole_backup_has_a_size",
        """INSERT INTO backups (id, host, file, bytes) SELECT id, 'h', 'f', 1 FROM chats""",
    ),
    (
        "restores_one_check",
        """INSERT INTO restores (one, backup_id, made_at, made_on)
           SELECT false, id, now(), 'h' FROM chats""",
    ),
    (
        "secret_reply_is_whole",
        """INSERT INTO secret_requests (id, host_id, name, key_id, with_workspaces, public_key,
               reply)
           SELECT id, 'h', 'n', 'k', true, '', '' FROM chats""",
    ),
    (
        "slack_connections_name_check",
        """INSERT INTO slack_connections (id, name, bot_token, app_token)
           SELECT id, '', 'v1.k.x', 'v1.k.x' FROM chats""",
    ),
    (
        "slack_links_slack_user_check",
        """INSERT INTO slack_links (id, connection_id, slack_user, user_id)
           SELECT id, id, '', owner_id FROM chats""",
    ),
    (
        "slack_link_codes_code_sha256_check",
        """INSERT INTO slack_link_codes (code_sha256, user_id, expires_at)
           SELECT 'x', owner_id, now() FROM chats""",
    ),
    (
        "slack_events_key_check",
        """INSERT INTO slack_events (connection_id, key, place, event)
           SELECT id, '', 'C1 1.1', '{}' FROM chats""",
    ),
    (
        "slack_events_outcome_check",
        """INSERT INTO slack_events (connection_id, key, place, event, outcome, due_at, ended_at)
           SELECT id, 'k', 'C1 1.1', '{}', 'lost', NULL, now() FROM chats""",
    ),
    (
        "an_event_of_slack_is_due_or_ended",
        """INSERT INTO slack_events (connection_id, key, place, event, due_at)
           SELECT id, 'k', 'C1 1.1', '{}', NULL FROM chats""",
    ),
    (
        "repository_connections_app_id_check",
        """INSERT INTO repository_connections (id, name, vendor, url, repositories, mention,
               template_id, user_id, check_rounds, app_id, private_key, secret)
           SELECT id, 'n', 'github', 'u', '{a/b}', 'm', id, owner_id, 1, '', 'v1.k.x', 'v1.k.x'
           FROM chats""",
    ),
    (
        "only_github_has_apps",
        """INSERT INTO repository_connections (id, name, vendor, url, repositories, mention,
               template_id, user_id, check_rounds, app_id, private_key, secret)
           SELECT id, 'n', 'gitea', 'u', '{a/b}', 'm', id, owner_id, 1, '1', 'v1.k.x', 'v1.k.x'
           FROM chats""",
    ),
    (
        "a_connection_has_a_token_or_an_app",
        """INSERT INTO repository_connections (id, name, vendor, url, repositories, mention,
               template_id, user_id, check_rounds, app_id, private_key, token, secret)
           SELECT id, 'n', 'github', 'u', '{a/b}', 'm', id, owner_id, 1, '1', 'v1.k.x', 'v1.k.x',
               'v1.k.x'
           FROM chats""",
    ),
    (
        "repository_connections_name_check",
        """INSERT INTO repository_connections (id, name, vendor, url, repositories, mention,
               template_id, user_id, check_rounds, token, secret)
           SELECT id, '', 'gitea', 'u', '{a/b}', 'm', id, owner_id, 1, 'v1.k.x', 'v1.k.x'
           FROM chats""",
    ),
    (
        "repository_connections_vendor_check",
        """INSERT INTO repository_connections (id, name, vendor, url, repositories, mention,
               template_id, user_id, check_rounds, token, secret)
           SELECT id, 'n', 'svn', 'u', '{a/b}', 'm', id, owner_id, 1, 'v1.k.x', 'v1.k.x'
           FROM chats""",
    ),
    (
        "repository_connections_url_check",
        """INSERT INTO repository_connections (id, name, vendor, url, repositories, mention,
               template_id, user_id, check_rounds, token, secret)
           SELECT id, 'n', 'gitea', repeat('u', 2001), '{a/b}', 'm', id, owner_id, 1, 'v1.k.x',
               'v1.k.x'
           FROM chats""",
    ),
    (
        "repository_connections_repositories_check",
        """INSERT INTO repository_connections (id, name, vendor, url, repositories, mention,
               template_id, user_id, check_rounds, token, secret)
           SELECT id, 'n', 'gitea', 'u', '{}', 'm', id, owner_id, 1, 'v1.k.x', 'v1.k.x'
           FROM chats""",
    ),
    (
        "repository_connections_mention_check",
        """INSERT INTO repository_connections (id, name, vendor, url, repositories, mention,
               template_id, user_id, check_rounds, token, secret)
           SELECT id, 'n', 'gitea', 'u', '{a/b}', '', id, owner_id, 1, 'v1.k.x', 'v1.k.x'
           FROM chats""",
    ),
    (
        "repository_connections_check_rounds_check",
        """INSERT INTO repository_connections (id, name, vendor, url, repositories, mention,
               template_id, user_id, check_rounds, token, secret)
           SELECT id, 'n', 'gitea', 'u', '{a/b}', 'm', id, owner_id, 21, 'v1.k.x', 'v1.k.x'
           FROM chats""",
    ),
    (
        "repository_events_key_check",
        """INSERT INTO repository_events (connection_id, key, delivery_id, repository, number,
               event) SELECT id, '', 'd', 'a/b', 1, '{}' FROM chats""",
    ),
    (
        "repository_events_outcome_check",
        """INSERT INTO repository_events (connection_id, key, delivery_id, repository, number,
               event, outcome, due_at, ended_at)
           SELECT id, 'k', 'd', 'a/b', 1, '{}', 'lost', NULL, now() FROM chats""",
    ),
    (
        "an_event_is_due_or_ended",
        """INSERT INTO repository_events (connection_id, key, delivery_id, repository, number,
               event, ended_at) SELECT id, 'k', 'd', 'a/b', 1, '{}', now() FROM chats""",
    ),
    (
        "repository_threads_rounds_check",
        """INSERT INTO repository_threads (id, connection_id, repository, number, is_pull, title,
               branch, reply_number, reply_is_pull, comment_key, rounds)
           SELECT id, id, 'a/b', 1, false, 't', 'b', 1, false, id, array_fill('c'::text, '{21}')
           FROM chats""",
    ),
    (
        "projects_name_check",
        "INSERT INTO projects (id, name) VALUES (gen_random_uuid(), '')",
    ),
    (
        "projects_instructions_check",
        """INSERT INTO projects (id, name, instructions)
           VALUES (gen_random_uuid(), 'a', repeat('a', 32769))""",
    ),
    (
        "the_state_of_a_note_is_known",
        """INSERT INTO memory_notes (id, owner_id, state, text)
           SELECT id, owner_id, 'lost', 'a' FROM chats""",
    ),
    (
        "a_note_is_short",
        """INSERT INTO memory_notes (id, owner_id, state, text)
           SELECT id, owner_id, 'kept', repeat('a', 501) FROM chats""",
    ),
    (
        "only_kept_notes_are_of_a_project",
        """INSERT INTO memory_notes (id, owner_id, project_id, state, text)
           SELECT id, owner_id, id, 'proposed', 'a' FROM chats""",
    ),
    (
        "project_role_is_known",
        """INSERT INTO project_members (project_id, user_id, role)
           VALUES (gen_random_uuid(), gen_random_uuid(), 'guest')""",
    ),
    (
        "project_files_name_check",
        """INSERT INTO project_files (project_id, file_id, name)
           VALUES (gen_random_uuid(), gen_random_uuid(), '')""",
    ),
    (
        "hooks_name_check",
        """INSERT INTO hooks (id, name, url, events, failure, timeout_ms, secret)
           SELECT id, '', 'u', '{step}', 'open', 100, 'v1.k.x' FROM chats""",
    ),
    (
        "hooks_url_check",
        """INSERT INTO hooks (id, name, url, events, failure, timeout_ms, secret)
           SELECT id, 'n', repeat('u', 2001), '{step}', 'open', 100, 'v1.k.x' FROM chats""",
    ),
    (
        "hooks_events_check",
        """INSERT INTO hooks (id, name, url, events, failure, timeout_ms, secret)
           SELECT id, 'n', 'u', '{}', 'open', 100, 'v1.k.x' FROM chats""",
    ),
    (
        "hooks_failure_check",
        """INSERT INTO hooks (id, name, url, events, failure, timeout_ms, secret)
           SELECT id, 'n', 'u', '{step}', 'ajar', 100, 'v1.k.x' FROM chats""",
    ),
    (
        "hooks_timeout_ms_check",
        """INSERT INTO hooks (id, name, url, events, failure, timeout_ms, secret)
           SELECT id, 'n', 'u', '{step}', 'open', 99, 'v1.k.x' FROM chats""",
    ),
    (
        "host_credentials_host_check",
        """INSERT INTO host_credentials (id, host, port, path, scheme, sealed_secret)
           SELECT id, '', 443, '/', 'bearer', 'v1.k.x' FROM chats""",
    ),
    (
        "host_credentials_port_check",
        """INSERT INTO host_credentials (id, host, port, path, scheme, sealed_secret)
           SELECT id, 'h', 0, '/', 'bearer', 'v1.k.x' FROM chats""",
    ),
    (
        "host_credentials_path_check",
        """INSERT INTO host_credentials (id, host, port, path, scheme, sealed_secret)
           SELECT id, 'h', 443, 'p', 'bearer', 'v1.k.x' FROM chats""",
    ),
    (
        "host_credentials_scheme_check",
        """INSERT INTO host_credentials (id, host, port, path, scheme, sealed_secret)
           SELECT id, 'h', 443, '/', 'digest', 'v1.k.x' FROM chats""",
    ),
    (
        "a_host_credential_has_one_scope",
        """INSERT INTO host_credentials (id, owner_id, group_id, host, port, path, scheme,
               sealed_secret)
           SELECT id, owner_id, id, 'h', 443, '/', 'bearer', 'v1.k.x' FROM chats""",
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


# The first build has succeeded and has an agent, the second runs, the third is pending.
IMPOSSIBLE_WORKSPACES: list[tuple[str, LiteralString]] = [
    ("template_has_a_name", "UPDATE templates SET name = 'two words'"),
    ("template_has_a_name", "UPDATE templates SET name = repeat('x', 33)"),
    ("template_comes_from_somewhere", "UPDATE templates SET origin = 'rumour'"),
    ("template_times_are_not_negative", "UPDATE templates SET default_ttl_s = -1"),
    ("template_times_are_not_negative", "UPDATE templates SET activity_bump_s = -1"),
    ("template_max_ttl_is_not_negative", "UPDATE templates SET max_ttl_s = -1"),
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
    (
        "workspace_builds_attempt_check",
        "UPDATE workspace_builds SET attempt = -1 WHERE worker_id IS NULL",
    ),
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
    ("workspace_agents_network_check", "UPDATE workspace_agents SET network = 'some'"),
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
    (
        "runner_token_has_a_pool",
        """INSERT INTO runner_tokens (id, name, pool, hash, created_by)
           SELECT id, 'ci', 'Big Pool', 'h', id FROM users""",
    ),
    (
        "runner_tokens_name_check",
        """INSERT INTO runner_tokens (id, name, pool, hash, created_by)
           SELECT id, '', 'ci', 'h', id FROM users""",
    ),
    ("a_runner_is_of_one_kind", "INSERT INTO runners (id, name) VALUES ('r', 'r')"),
    ("runners_id_check", "INSERT INTO runners (id, name, builtin) VALUES ('', 'r', true)"),
    ("runners_name_check", "INSERT INTO runners (id, name, builtin) VALUES ('r', '', true)"),
    (
        "runners_capacity_check",
        "INSERT INTO runners (id, name, builtin, capacity) VALUES ('r', 'r', true, -1)",
    ),
    (
        "runners_running_check",
        "INSERT INTO runners (id, name, builtin, running) VALUES ('r', 'r', true, -1)",
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
        pool, HARNESS, CHAT, workspace_id(1), build_id=build_id(1), agent_id=agent_id(1)
    )
    await insert_workspace(pool, 2)
    await builds.acquire_builds(pool, wanted())
    await insert_workspace(pool, 3)
    for name, statement in IMPOSSIBLE_WORKSPACES:
        with pytest.raises(InvariantBroken, match=f'"{name}"'):
            await pool.execute(statement)
