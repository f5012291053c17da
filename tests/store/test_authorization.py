"""Every function of the store on users' rows takes the actor; the owner gets something from it and
a stranger nothing."""

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Final, LiteralString, cast

import pytest
from msgspec.structs import replace

import chatd.store
from chatd.domain.access.permissions import UserActor
from chatd.domain.chat.row import Chat
from chatd.domain.errors import Forbidden
from chatd.store.chat import chats
from chatd.store.database.pool import Pool
from tests.store.authorization_cases import (
    CASES,
    REFUSALS,
    STRANGER,
    allowed,
    is_nothing,
    prepare,
    stranger,
)
from tests.support.factories import CHAT, HARNESS
from tests.support.outcomes import present

WITHOUT_ACTOR: Final[Mapping[str, str]] = {
    "account.audit.delete_old": "maintenance",
    "account.credentials.load": "finds the actor",
    "account.credentials.use": "finds the actor",
    "account.credentials.load_user": "finds the actor",
    "account.users.use_answer": "before there is an actor",
    "account.credentials.take_attempt": "before there is an actor",
    "account.credentials.take_attempt_below": "before there is an actor",
    "account.credentials.give_back_attempt": "before there is an actor",
    "account.credentials.clear_attempts": "before there is an actor",
    "account.credentials.delete_old_attempts": "before there is an actor",
    "account.users.has_other_administrator": "counts, inside the transaction of a write",
    "account.users.needs_setup": "before there is an actor",
    "chat.change_writer.apply": "compares with a row that was loaded for the actor",
    "chat.chats.has_change": "tells the feeds whether a change was stored, and no content",
    "chat.chats.lock": "returns nothing",
    "chat.versions.lock_version": "under the lock of a chat that the actor may write to",
    "chat.chats.lock_files": "reads nothing: before a statement that takes the actor or the fence",
    "chat.chats.list_recently_active": "the feeds ask for the owners that watch their lists",
    "model.model_calls.insert_debug_call": "the worker that made the call",
    "model.model_calls.delete_old_debug_calls": "maintenance",
    "idempotency.delete_old_requests": "maintenance",
    "idempotency.clear_old_request_keys": "maintenance",
    "idempotency.clear_old_tool_outputs": "maintenance",
    "idempotency.mark_tool_started": "fenced: only the worker that owns the chat",
    "database.nats.measure_nats": "asks no database",
    "chat.journal": "live parts of the chats that this replica runs or feeds",
    "chat.messages.decode_in_slices": "reads no row",
    "model.model_calls.forget_unsent": "model calls of workers, for billing",
    "model.model_calls.write_open_calls": "model calls of workers, for billing",
    "model.model_calls.list_before": "model calls of workers, for billing",
    "model.model_calls.list_of_workers": "model calls of workers, for billing",
    "model.model_calls.list_abandoned": "model calls of workers, for billing",
    "model.model_calls.give_up": "model calls of workers, for billing",
    "chat.updates.list_views": "the feeds ask for the users that watch their lists",
    "chat.runs.list_lanes": "the workers of the deployment, no rows of users",
    "search.is_indexed": "the same for all",
    "search.index_batch": "maintenance of the index",
    "account.answer_links.insert": "the sender of notifications, for the owner of a chat",
    "account.answer_links.find": "finds the actor of a link",
    "account.answer_links.claim": "by a link that was found by its secret, with its actor",
    "account.answer_links.delete_expired": "maintenance",
    "account.public_links.read": "by the secret of a link: its reader has no account",
    "account.public_links.read_message": "by the secret of a link: its reader has no account",
    "account.public_links.note_read": "by a link that was found by its secret",
    "account.public_links.delete_expired": "maintenance",
    "account.shares.is_enabled": "no rows of users",
    "account.shares.list_roots_of": "the feeds ask for the users that watch their lists",
    "account.shares.list_readers_of": "the feeds ask for the users that watch their lists",
    "account.shares.list_recently_active": "the feeds ask for the users that watch their lists",
    "chat.subagents.list_wakeable": "the waker of all chats that wait for subagents",
    "chat.updates.release_title_lease": "by the id of the lease, which only its holder knows",
    "chat.transfer.read_family": "of a root that was loaded for the actor",
    "chat.transfer.read_rules": "of a root that was loaded for the actor",
    "chat.transfer.read_messages": "of a chat that was loaded for the actor",
    "chat.versions.read_state": "of a chat that was loaded for the actor",
    "chat.versions.lock_copied": "under the lock of a chat that the actor may write to",
    "chat.versions.insert": "of chats that the same transaction has made",
    "chat.updates.lock_pins": "returns nothing",
    "model.model_calls.roll_up": "billing, of a chat that was read for the actor",
    "model.model_calls.insert_usage": "billing, of a chat that was read for the actor",
    "model.model_calls.tree_cost": "billing, of a chat that was read for the actor",
    "chat.workers": "leases of workers",
    "database.notifications.publish": "notices without content",
    "memory.propose": "fenced: only the worker that owns the chat",
    "memory.read_brief": "the worker, for the owner of a chat that it runs",
    "memory.read_of_project": "the worker, for a chat that it runs",
    "memory.is_answered_in_public": "the worker, for a chat that it runs",
    "projects.put_chats": "of a tree that the actor has locked, for its owner's membership",
    "projects.announce_chat": "notices without content",
    "projects.load_files": "after the project was read for the actor, or by the worker",
    "projects.read_brief": "the worker, for a chat that it runs",
    "projects.find_file_of_chat": "the worker, for a chat that it runs",
    "projects.list_members_among": "the feeds ask for the users that watch their lists",
    "database.conn": "no rows of users",
    "model.costs.by_model": "after require_readable",
    "model.costs.by_day": "after require_readable",
    "model.costs.by_day_and_model": "after require_readable",
    "model.costs.by_chat": "after require_readable",
    "deployment.mcp_servers.keep_order": "by the worker that runs the chat: ids of servers",
    "files.begin_for_chat": "fenced: only the worker that owns the chat",
    "files.finish_for_chat": "fenced: only the worker that owns the chat",
    "files.find_of_call": "by the key of a call, for the worker that runs the chat",
    "files.list_of_chat": "for the worker that runs the chat",
    "files.sweep": "maintenance",
    "files.clear_old_keys": "maintenance",
    "files.get_link_user": "finds the actor of a signed link",
    "file_stores.finish_upload": "by the id of the upload, which its request made",
    "file_stores.abandon_upload": "by the id of the upload, which its request made",
    "file_stores.list_dead_uploads": "maintenance",
    "file_stores.forget_upload": "maintenance",
    "idempotency.keep_tool_output": "the worker, under its fence",
    "account.git_credentials.find": "the worker, for the owner of a chat",
    "account.host_credentials.list_usable": "the server, for the proxies of workspaces",
    "account.host_credentials.list_git_tokens": "the server, for the proxies of workspaces",
    "account.host_credentials.list_proxied": "the server, for the proxies of workspaces",
    "deployment.hooks.load": "the engine, for all chats",
    "deployment.hooks.template_of": "the engine, for a chat that it runs",
    "deployment.hooks.record_answer": "the engine, for a chat that it runs",
    "deployment.repositories.open_connection": "the server, to check a delivery and to act upon it",
    "deployment.repositories.set_problem": "the worker of all events of git hosts",
    "deployment.repositories.rest": "the worker of all events of git hosts",
    "deployment.repositories.has_any": "tells the worker whether there is a connection",
    "deployment.repository_work.store_event": "the worker of all events of git hosts",
    "deployment.repository_work.claim_events": "the worker of all events of git hosts",
    "deployment.repository_work.end_event": "the worker of all events of git hosts",
    "deployment.repository_work.retry_event": "the worker of all events of git hosts",
    "deployment.repository_work.place_thread": "the worker of all events of git hosts",
    "deployment.repository_work.find_thread": "the worker of all events of git hosts",
    "deployment.repository_work.find_by_branch": "the worker of all events of git hosts",
    "deployment.repository_work.bind": "the worker of all events of git hosts",
    "deployment.repository_work.begin_reply": "the worker of all events of git hosts",
    "deployment.repository_work.add_round": "the worker of all events of git hosts",
    "deployment.repository_work.claim_threads": "the worker of all events of git hosts",
    "deployment.repository_work.try_comment": "the worker of all events of git hosts",
    "deployment.repository_work.set_comment": "the worker of all events of git hosts",
    "deployment.repository_work.set_pull": "the worker of all events of git hosts",
    "deployment.repository_work.set_shown": "the worker of all events of git hosts",
    "deployment.repository_work.postpone": "the worker of all events of git hosts",
    "deployment.repository_work.delete_ended": "maintenance",
    "deployment.repository_work.delete_threads": "maintenance",
    "deployment.repository_work.list_workspace_access": "the server, for the proxies of workspaces",
    "deployment.repository_work.count_recent": "the server, for the events of a connection",
    "deployment.repository_work.find_chat_access": "the worker, for the owner of a chat",
    "deployment.slack.open_connection": "the server, to act upon events",
    "deployment.slack.list_open": "the server, to connect to Slack",
    "deployment.slack.has_any": "tells the worker whether there is any connection, and no content",
    "deployment.slack.set_problem": "the worker of all events of Slack",
    "deployment.slack.set_team": "the server, of the tokens that it uses",
    "deployment.slack.find_twin": "the server, of the tokens that it uses",
    "deployment.slack.rest": "the worker of all events of Slack",
    "deployment.slack.hold": "the processes, of who is connected to Slack",
    "deployment.slack.set_connected": "the processes, of who is connected to Slack",
    "deployment.slack.release": "the processes, of who is connected to Slack",
    "deployment.slack.find_person": "the worker, to know who acts",
    "deployment.slack.find_person_by_email": "the worker, to know who acts",
    "deployment.slack.use_code": "the code is the proof",
    "deployment.slack.revoke_code": "the code is the proof",
    "deployment.slack.delete_codes": "maintenance",
    "deployment.slack_work.store_event": "the worker of all events of Slack",
    "deployment.slack_work.claim_events": "the worker of all events of Slack",
    "deployment.slack_work.renew_events": "the worker of all events of Slack",
    "deployment.slack_work.renew_threads": "the worker of all events of Slack",
    "deployment.slack_work.end_event": "the worker of all events of Slack",
    "deployment.slack_work.retry_event": "the worker of all events of Slack",
    "deployment.slack_work.place_thread": "the worker of all events of Slack",
    "deployment.slack_work.find_thread": "the worker of all events of Slack",
    "deployment.slack_work.get_thread": "the worker of all events of Slack",
    "deployment.slack_work.begin_request": "the worker of all events of Slack",
    "deployment.slack_work.show": "the worker of all events of Slack",
    "deployment.slack_work.hurry": "the worker of all events of Slack",
    "deployment.slack_work.claim_threads": "the worker of all events of Slack",
    "deployment.slack_work.set_shown": "the worker of all events of Slack",
    "deployment.slack_work.advance": "the worker of all events of Slack",
    "deployment.slack_work.postpone": "the worker of all events of Slack",
    "deployment.slack_work.list_answers": "the worker of all events of Slack",
    "deployment.slack_work.list_posts": "the worker of all events of Slack",
    "deployment.slack_work.get_post": "the worker of all events of Slack",
    "deployment.slack_work.last_ts": "the worker of all events of Slack",
    "deployment.slack_work.begin_post": "the worker of all events of Slack",
    "deployment.slack_work.set_ts": "the worker of all events of Slack",
    "deployment.slack_work.close_post": "the worker of all events of Slack",
    "deployment.slack_work.delete_ended": "maintenance",
    "deployment.slack_work.delete_threads": "maintenance",
    "deployment.mcp_tokens.find_registration": "configuration, no rows of users",
    "deployment.mcp_tokens.add_registration": "configuration, no rows of users",
    "deployment.mcp_tokens.delete_registration": "configuration, no rows of users",
    "deployment.mcp_tokens.delete_client": "configuration, no rows of users",
    "deployment.mcp_servers.choose": "the catalog, which all users read",
    "deployment.mcp_servers.list_servers": "configuration; the route requires the permission",
    "deployment.mcp_servers.find_to_change": "configuration; the route requires the permission",
    "deployment.mcp_servers.insert": "configuration; the route requires the permission",
    "deployment.mcp_servers.update": "configuration; the route requires the permission",
    "deployment.mcp_servers.declare": "configuration; the route requires the permission",
    "deployment.mcp_servers.release_slug": "configuration; the route requires the permission",
    "deployment.mcp_servers.delete": "configuration; the route requires the permission",
    "deployment.mcp_servers.forget_credentials": "configuration; the route requires the permission",
    "deployment.mcp_servers.keep_tools": "configuration; the route requires the permission",
    "deployment.mcp_servers.known_tools": "configuration; the route requires the permission",
    "deployment.mcp_tokens.find": "the worker of a chat of the user that the statement names",
    "deployment.mcp_tokens.claim": "by a row that was found for the user",
    "deployment.mcp_tokens.release": "by a row that was found for the user",
    "deployment.mcp_tokens.replace": "by a row that was found for the user",
    "deployment.mcp_tokens.fail": "by a row that was found for the user",
    "database.migrator": "the schema",
    "model.model_configs": "no rows of users",
    "model.model_declarations": "no rows of users",
    "deployment.webhooks.insert_signing_key": "the server's own key",
    "deployment.webhooks.load_signing_key": "the server's own key",
    "deployment.webhooks.last_answer": "the sender of all webhooks, to the chat's owner",
    "model.providers": "configuration; a user's own keys have the user in the statement",
    "deployment.retention": "maintenance",
    "deployment.schedules.list_due": "the runner of all schedules",
    "deployment.schedules.finish": "the runner of all schedules",
    "deployment.schedules.read_time": "no rows of users",
    "database.sealed_columns.count_by_key": "key rotation",
    "database.sealed_columns.reseal_batch": "key rotation",
    "database.sealed_columns.lock": "no rows of users",
    "database.sealed_columns.list_keys": "no rows of users",
    "database.sealed_columns.insert_key": "no rows of users",
    "database.sealed_columns.make_current": "no rows of users",
    "database.sealed_columns.delete_retired": "no rows of users",
    "database.sealed_columns.renew_holder": "no rows of users",
    "database.sealed_columns.remove_holder": "no rows of users",
    "database.sealed_columns.list_processes": "no rows of users",
    "database.sealed_columns.insert_request": "no rows of users",
    "database.sealed_columns.list_requests": "no rows of users",
    "database.sealed_columns.answer_request": "no rows of users",
    "database.sealed_columns.read_reply": "no rows of users",
    "database.sealed_columns.delete_request": "no rows of users",
    "database.sealed_columns.read_sealed": "opened to count those that cannot be, and not returned",
    "deployment.diagnosis": "no rows of users",
    "deployment.backups": "an operator's command with the database's own credentials",
    "database.sealed_columns.list_without": "no rows of users",
    "database.sealed_columns.shared_key": "the server's own keys",
    "database.pool.check_server": "no rows of users",
    "model.spend.has_limits": "the limit check of the server",
    "model.spend.read_spending": "the limit check of the server",
    "model.spend.set_reserved": "the limit check of the server",
    "model.spend.warn": "the limit check of the server",
    "model.spend.list_warnings": "the limit check of the server",
    "deployment.tool_policies.get_template": "the catalog, which all users read",
    "deployment.tool_policies.load_layers": "for the worker that runs the chat",
    "deployment.tool_policies.load_owner_layers": "for a decision on a call of the owner",
    "deployment.webhooks.claim": "the sender of all webhooks",
    "deployment.webhooks.finish": "the sender of all webhooks",
    "deployment.webhooks.has_any": "tells the sender whether there is any webhook, and no content",
    "deployment.webhooks.delete_ended": "maintenance",
    "workspace.workspaces.get_with_time": "the monitor of a host's agents",
    "workspace.workspaces.list_agents_on_host": "the monitor of a host's agents",
    "workspace.workspaces.record_agent_healthy": "the monitor of a host's agents",
    "workspace.workspaces.record_agent_missed": "the monitor of a host's agents",
    "workspace.workspaces.mark_agent_gone": "the monitor of a host's agents",
    "workspace.bindings.is_owner": "fenced: only the worker that owns the chat",
    "workspace.bindings.save_context": "the monitor of a host's agents",
    "workspace.builds.acquire_builds": "leases of build workers",
    "workspace.builds.renew_builds": "leases of build workers",
    "workspace.builds.finish_build": "leases of build workers",
    "workspace.builds.release_build": "leases of build workers",
    "workspace.builds.reap_builds": "leases of build workers",
    "workspace.builds.append_log": "leases of build workers",
    "workspace.builds.list_overdue": "maintenance",
    "workspace.runners.find_token": "finds the runner's pool",
    "workspace.runners.list_waited_for": "for builds that were read for the actor",
    "workspace.templates": "the catalog, which all users read",
    "workspace.tunnels": "connections of runners, by the replica that holds them",
    "workspace.workspaces.list_on_host": "maintenance of a host",
    "workspace.workspaces.list_deleted": "maintenance of a host",
    "workspace.workspaces.record_activity": "maintenance of a host",
}
"""A function, or a module for all its functions without an actor, and why it has none."""

LIST_DIGESTS: Final = """
    SELECT string_agg(format(
        'SELECT %L AS name, md5(string_agg(t.xmin || t::text, chr(10) ORDER BY t::text)) AS digest'
        ' FROM public.%I t', tablename, tablename), ' UNION ALL ')
    FROM pg_tables WHERE schemaname = 'public'"""
SYSTEMS: Final = (None, "SystemActor", "WorkerActor")
WITHOUT_CASE: Final[Mapping[str, str]] = {
    "account.audit.record": "writes down who did something, and reads nothing",
}
"""Functions with an actor that refuse nobody, and why."""


def store_functions() -> dict[str, str | None]:
    """Every public async function of the store, and the type of the actor that it takes."""
    root = Path(chatd.store.__path__[0])
    found: dict[str, str | None] = {}
    for path in sorted(root.rglob("*.py")):
        module = ".".join(path.relative_to(root).with_suffix("").parts)
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.AsyncFunctionDef) and not node.name.startswith("_"):
                taken = {one.arg: one for one in (*node.args.args, *node.args.kwonlyargs)}
                kind = taken["actor"].annotation if "actor" in taken else None
                found[f"{module}.{node.name}"] = None if kind is None else ast.unparse(kind)
    return found


@pytest.mark.promise("P12")
def test_every_function_takes_the_actor_or_says_why_not() -> None:
    functions = store_functions()
    without = {name for name, kind in functions.items() if kind is None}
    explained = {name for name in without if {name, name.rpartition(".")[0]} & set(WITHOUT_ACTOR)}
    assert without - explained == set(), "add an actor, or the reason to WITHOUT_ACTOR"
    used = {each for name in without for each in (name, name.rpartition(".")[0])}
    assert set(WITHOUT_ACTOR) - used == set(), "these reasons are not needed"


@pytest.mark.promise("P12")
def test_every_function_that_a_user_can_be_the_actor_of_has_a_case() -> None:
    """The type checker keeps users away from those that take an actor of the system."""
    names = {name for name, kind in store_functions().items() if kind not in SYSTEMS}
    assert names == {*CASES, *WITHOUT_CASE}


async def digest_all_rows(pool: Pool) -> dict[str, str]:
    """Of each table, with the transactions that wrote its rows: equal means unchanged."""
    statement = cast("LiteralString", await pool.fetchval(LIST_DIGESTS))
    return {row["name"]: row["digest"] for row in await pool.fetch(statement)}


async def ask(pool: Pool, name: str, who: UserActor, chat: Chat) -> object:
    try:
        return await CASES[name](pool, who, chat)
    except REFUSALS:
        return None


@pytest.mark.promise("P12")
async def test_a_stranger_reads_nothing_and_changes_nothing(pool: Pool) -> None:
    chat = await prepare(pool)
    before = await digest_all_rows(pool)
    for name in CASES:
        assert is_nothing(await ask(pool, name, stranger(name), chat)), name
    assert await digest_all_rows(pool) == before


@pytest.mark.promise("P12")
async def test_the_owner_gets_what_a_stranger_does_not(pool: Pool) -> None:
    """In the order of the cases: some need what an earlier one wrote."""
    chat = await prepare(pool)
    for name in CASES:
        assert is_nothing(await ask(pool, name, stranger(name), chat)), name
        assert not is_nothing(await ask(pool, name, allowed(name), chat)), name
        chat = present(await chats.get(pool, HARNESS, CHAT))


@pytest.mark.promise("P12")
async def test_readers_of_a_share_and_roles_read_the_chat_and_change_nothing(pool: Pool) -> None:
    await prepare(pool)
    user = STRANGER.user_id
    await pool.execute(
        "INSERT INTO users (id, username, role) VALUES ($1, 'stranger', 'member')", user
    )
    await pool.execute("INSERT INTO chat_shares (chat_id, user_id) VALUES ($1, $2)", CHAT, user)
    mine = await chats.get(pool, HARNESS, CHAT)
    assert await chats.get(pool, STRANGER, CHAT) == mine
    with pytest.raises(Forbidden):
        await chats.get_for_command(pool, STRANGER, CHAT, "chats.write")
    assert await chats.get(pool, replace(STRANGER, reads_shared=False), CHAT) is None
    await pool.execute("DELETE FROM chat_shares")
    assert await chats.get(pool, STRANGER, CHAT) is None
    for role in ("admin", "viewer"):
        assert await chats.get(pool, replace(STRANGER, role=role), CHAT) == mine
    admin = replace(STRANGER, role="admin")
    assert await chats.get_for_command(pool, admin, CHAT, "chats.control") == mine
    with pytest.raises(Forbidden):
        await chats.get_for_command(pool, admin, CHAT, "chats.write")
