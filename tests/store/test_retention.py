"""Retention: which chats are archived, which are deleted, and which stay."""

from datetime import timedelta

import pytest

from chatd.domain.chat.commands import ArchiveIdleTree
from chatd.domain.chat.states import State
from chatd.domain.errors import NotFound
from chatd.domain.ids import ChangeId, ChatId
from chatd.engine.maintenance import RetentionConfig, retention_tasks
from chatd.engine.model.attempt import Committer
from chatd.store.account import audit
from chatd.store.chat import chats
from chatd.store.chat.operation import NoChange
from chatd.store.chat.transactor import Transactor
from chatd.store.database.pool import Pool
from chatd.store.deployment import retention
from chatd.store.model import model_calls
from tests.support.clock import FakeClock
from tests.support.factories import HARNESS
from tests.support.operations import operation
from tests.support.seeds import Seed
from tests.support.store import AppliedRecorder, chat_id, insert_seed, open_child
from tests.support.stream_replica import env_with
from tests.support.workspaces import insert_workspace

DAY = timedelta(days=1)


async def planted(pool: Pool, number: int, state: State, *, days: float) -> ChatId:
    """A chat in this state, idle for `days`."""
    chat = await insert_seed(pool, Seed(state=state, chat_id=chat_id(number)))
    await untouched(pool, chat.id, days=days)
    return chat.id


async def untouched(pool: Pool, chat: ChatId, *, days: float) -> None:
    await pool.execute(
        "UPDATE chats SET updated_at = now() - $2::interval WHERE id = $1",
        chat,
        timedelta(days=days),
    )


async def archived(pool: Pool) -> set[int]:
    return {row["id"].int for row in await pool.fetch("SELECT id FROM chats WHERE archived")}


async def work(pool: Pool, config: RetentionConfig, told: AppliedRecorder) -> None:
    env = env_with(FakeClock())
    for task in retention_tasks(config, pool, env, Committer(Transactor(pool, told), env)):
        await task.work()


async def test_idle_chats_are_archived_with_their_tree_and_reported(pool: Pool) -> None:
    await planted(pool, 1, State.W, days=3)
    child = await open_child(pool, 2, root=1)
    await pool.execute(
        "UPDATE chats SET status = 'waiting', runnable_at = NULL WHERE id = $1", child.id
    )
    await untouched(pool, child.id, days=3)
    await planted(pool, 3, State.E0, days=3)
    await planted(pool, 4, State.W, days=0.5)
    await planted(pool, 5, State.R0, days=3)
    pinned = await planted(pool, 6, State.W, days=3)
    await pool.execute("UPDATE chats SET pin_order = 1 WHERE id = $1", pinned)
    told = AppliedRecorder()
    await work(pool, RetentionConfig(archive_after=1), told)
    assert await archived(pool) == {1, 2, 3}
    assert {chat.id.int for chat in told.chats} == {1, 2, 3}


async def test_a_chat_that_was_touched_meanwhile_is_not_archived(pool: Pool) -> None:
    chat = await planted(pool, 1, State.W, days=3)
    ((found, since),) = await retention.list_idle_chats(pool, DAY, limit=10)
    await untouched(pool, chat, days=0)
    transactor, command = Transactor(pool, AppliedRecorder()), ArchiveIdleTree(idle_since=since)
    outcome = await transactor.run(operation(command, ChangeId(7), found))
    assert isinstance(outcome, NoChange)
    assert await archived(pool) == set()
    with pytest.raises(NotFound):
        await transactor.run(operation(command, ChangeId(8), chat_id(99)))


async def test_a_tree_with_a_running_chat_is_left_alone(pool: Pool) -> None:
    await planted(pool, 1, State.W, days=3)
    await open_child(pool, 2, root=1)
    await untouched(pool, chat_id(2), days=3)
    assert await retention.list_idle_chats(pool, DAY, limit=10) == []


async def test_archived_chats_are_deleted_and_their_usage_is_not(pool: Pool) -> None:
    old = await planted(pool, 1, State.XW0, days=3)
    await planted(pool, 2, State.XW0, days=0.5)
    await planted(pool, 3, State.W, days=3)
    spent = await pool.fetchval("SELECT count(*) FROM usage_events")
    await work(pool, RetentionConfig(remove_after=1), AppliedRecorder())
    assert await chats.get(pool, HARNESS, old) is None
    left = {row["id"].int for row in await pool.fetch("SELECT id FROM chats")}
    assert left == {2, 3}
    messages = await pool.fetch("SELECT DISTINCT chat_id FROM chat_messages")
    assert {row["chat_id"].int for row in messages} <= left
    assert await pool.fetchval("SELECT count(*) FROM usage_events") == spent


async def fill(pool: Pool, chat: ChatId, *, messages: int, size: int) -> None:
    """Add messages of `size` random bytes, which do not compress."""
    await pool.execute(
        """INSERT INTO chat_messages (chat_id, id, root_chat_id, revision, role, visibility,
               content, content_version)
           SELECT $1, 1000 + n, $1, 1, 'user', 'both',
               to_json(encode((SELECT string_agg(sha512((n || '/' || k)::text::bytea), '')
                               FROM generate_series(1, $3 / 64) k), 'base64')), 1
           FROM generate_series(1, $2) n""",
        chat,
        messages,
        size,
    )


async def test_a_large_chat_is_deleted_by_statements_of_bounded_size(pool: Pool) -> None:
    """One statement for the whole chat would end at the statement timeout, every time."""
    chat = await planted(pool, 1, State.XW0, days=3)
    await fill(pool, chat, messages=40, size=6_400)
    deleted: list[int] = []
    async with pool.transaction() as session:
        while count := retention.affected_rows(
            await session.execute(retention.DELETE_MESSAGES, chat, 40_000, 1000)
        ):
            deleted.append(count)
        await session.execute("ROLLBACK AND CHAIN")
    assert sum(deleted) >= 40
    assert max(deleted) <= 10
    assert await retention.delete_archived_chat(pool, chat, DAY, max_bytes=40_000, max_rows=7)
    assert await chats.get(pool, HARNESS, chat) is None
    assert await pool.fetchval("SELECT count(*) FROM chat_messages WHERE chat_id = $1", chat) == 0


async def test_a_chat_that_is_in_use_does_not_hold_up_the_others(pool: Pool) -> None:
    busy = await planted(pool, 1, State.XW0, days=4)
    await planted(pool, 2, State.XW0, days=3)
    async with pool.transaction() as user:
        await user.execute("SELECT FROM chats WHERE id = $1 FOR UPDATE", busy)
        await work(pool, RetentionConfig(remove_after=1), AppliedRecorder())
        left = {row["id"].int for row in await pool.fetch("SELECT id FROM chats")}
        assert left == {1}
    await work(pool, RetentionConfig(remove_after=1), AppliedRecorder())
    assert await pool.fetch("SELECT FROM chats") == []


async def test_a_chat_that_was_restored_meanwhile_keeps_all_its_messages(pool: Pool) -> None:
    chat = await planted(pool, 1, State.XW0, days=3)
    await fill(pool, chat, messages=3, size=640)
    before = await pool.fetchval("SELECT count(*) FROM chat_messages")
    [found] = await retention.list_archived_chats(pool, DAY, limit=10)
    await pool.execute("UPDATE chats SET archived = false WHERE id = $1", chat)
    assert not await retention.delete_archived_chat(pool, found, DAY)
    assert await pool.fetchval("SELECT count(*) FROM chat_messages") == before


async def test_deleted_messages_lose_their_content_and_keep_their_row(pool: Pool) -> None:
    chat = await planted(pool, 1, State.W, days=0)
    await fill(pool, chat, messages=3, size=640)
    await pool.execute(
        """UPDATE chat_messages SET deleted = true, deleted_at = now() - $1::interval
           WHERE id > 1001""",
        DAY * 3,
    )
    await pool.execute("UPDATE chat_messages SET deleted_at = now() WHERE id = 1003")
    await work(pool, RetentionConfig(clear_deleted_after=2), AppliedRecorder())
    rows = await pool.fetch(
        "SELECT id, content::text = '[]' AS is_empty FROM chat_messages WHERE id > 1000 ORDER BY id"
    )
    assert [(row["id"], row["is_empty"]) for row in rows] == [
        (1001, False),
        (1002, True),
        (1003, False),
    ]
    assert await retention.clear_deleted_messages(pool, DAY * 2) == 0


async def test_single_usage_events_are_deleted_once_the_daily_sums_have_them(pool: Pool) -> None:
    await pool.execute(
        """INSERT INTO usage_events (at, owner_id, chat_id, root_chat_id, kind, provider, model,
               input_tokens, output_tokens, reasoning_tokens, cache_creation_tokens,
               cache_read_tokens, cost_micros, ok)
           SELECT now() - (n - 0.5) * interval '1 day', $1, $1, $1, 'turn', 'p', 'm',
               1, 1, 0, 0, 0, 5, true
           FROM generate_series(1, 6) n""",
        chat_id(1),
    )
    config = RetentionConfig(remove_usage_after=4)
    await work(pool, config, AppliedRecorder())
    assert await pool.fetchval("SELECT count(*) FROM usage_events") == 6
    while await model_calls.roll_up(pool):
        pass
    await work(pool, config, AppliedRecorder())
    assert await pool.fetchval("SELECT count(*) FROM usage_events") == 4
    assert await pool.fetchval("SELECT sum(cost_micros) FROM usage_daily") == 30


async def test_deleted_workspaces_and_old_builds_are_removed(pool: Pool) -> None:
    await insert_workspace(pool)
    kept = retention.BUILDS_KEPT_PER_WORKSPACE
    await pool.execute(
        """INSERT INTO workspace_builds (id, workspace_id, build_number, transition,
               template_version_id, status, initiator_id, reason, started_at, completed_at)
           SELECT gen_random_uuid(), workspace_id, n, 'stop', template_version_id, 'succeeded',
               initiator_id, 'tool', now(), now()
           FROM workspace_builds, generate_series(2, $1) n""",
        kept + 5,
    )
    await pool.execute(
        "UPDATE workspace_builds SET status = 'succeeded', completed_at = now()"
        " WHERE completed_at IS NULL"
    )
    await pool.execute("UPDATE workspaces SET latest_build = $1", kept + 5)
    config = RetentionConfig(remove_workspaces_after=2)
    await work(pool, config, AppliedRecorder())
    assert await pool.fetchval("SELECT count(*) FROM workspace_builds") == kept + 5
    await pool.execute("UPDATE workspace_builds SET completed_at = now() - interval '3 days'")
    await work(pool, config, AppliedRecorder())
    rows = await pool.fetch("SELECT build_number AS n FROM workspace_builds ORDER BY 1")
    assert [row["n"] for row in rows] == [1, *range(6, kept + 6)]
    await pool.execute(
        "UPDATE workspaces SET deleted = true, last_used_at = now() - interval '3 days'"
    )
    await work(pool, config, AppliedRecorder())
    assert await pool.fetch("SELECT FROM workspaces") == []
    assert await pool.fetch("SELECT FROM workspace_builds") == []


async def test_a_workspace_that_cannot_be_stopped_keeps_its_agents(pool: Pool) -> None:
    await insert_workspace(pool)
    kept = retention.BUILDS_KEPT_PER_WORKSPACE
    await pool.execute(
        "UPDATE workspace_builds SET status = 'failed', error = 'x', completed_at = now()"
    )
    await pool.execute(
        """INSERT INTO workspace_builds (id, workspace_id, build_number, transition,
               template_version_id, status, error, initiator_id, reason, started_at, completed_at)
           SELECT gen_random_uuid(), workspace_id, n, CASE n WHEN 3 THEN 'start' ELSE 'stop' END,
               template_version_id, CASE n WHEN 3 THEN 'succeeded' ELSE 'failed' END,
               CASE n WHEN 3 THEN '' ELSE 'x' END, initiator_id, 'tool', now(), now()
           FROM workspace_builds, generate_series(2, $1) n""",
        kept + 5,
    )
    await pool.execute("UPDATE workspaces SET latest_build = $1", kept + 5)
    await pool.execute("UPDATE workspace_builds SET completed_at = now() - interval '3 days'")
    await work(pool, RetentionConfig(remove_workspaces_after=2), AppliedRecorder())
    rows = await pool.fetch("SELECT build_number AS n FROM workspace_builds ORDER BY 1")
    assert [row["n"] for row in rows] == [1, 3, *range(6, kept + 6)]


async def test_old_entries_of_the_audit_log_are_deleted_in_batches(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "MAX_ENTRIES_PER_BATCH", 2)
    for days in (9, 8, 8, 7, 1, 0):
        await audit.record(pool, HARNESS, action="x.y", object_type="x", object_id=days)
        await pool.execute(
            "UPDATE audit_log SET at = now() - $1::interval WHERE object_id = $2",
            days * DAY,
            str(days),
        )
    assert await audit.delete_old(pool, 5 * DAY) == 2
    env = env_with(FakeClock())
    config = RetentionConfig(remove_audit_after=5)
    committer = Committer(Transactor(pool, AppliedRecorder()), env)
    [task] = retention_tasks(config, pool, env, committer)
    await task.work()
    left = await pool.fetch("SELECT object_id FROM audit_log ORDER BY id")
    assert [row["object_id"] for row in left] == ["1", "0"]


async def test_retention_without_days_has_no_tasks(pool: Pool) -> None:
    env = env_with(FakeClock())
    committer = Committer(Transactor(pool, AppliedRecorder()), env)
    assert retention_tasks(RetentionConfig(), pool, env, committer) == ()
