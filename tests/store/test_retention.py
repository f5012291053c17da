"""Retention: which chats are archived, which are deleted, and which stay."""

from datetime import timedelta

import pytest

from chatd.domain.chat.commands import ArchiveIdleTree
from chatd.domain.chat.states import State
from chatd.domain.errors import NotFound
from chatd.domain.ids import ChangeId, ChatId
from chatd.engine.attempt import Committer
from chatd.engine.maintenance import RetentionConfig, retention_tasks
from chatd.store.chat import chats, updates
from chatd.store.chat.operation import NoChange
from chatd.store.chat.transactor import Transactor
from chatd.store.pool import Pool
from tests.support.clock import FakeClock
from tests.support.operations import operation
from tests.support.seeds import Seed
from tests.support.store import AppliedRecorder, chat_id, insert_seed, open_child
from tests.support.stream_replica import env_with

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
    ((found, since),) = await updates.list_idle_chats(pool, DAY, limit=10)
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
    assert await updates.list_idle_chats(pool, DAY, limit=10) == []


async def test_archived_chats_are_deleted_and_their_usage_is_not(pool: Pool) -> None:
    old = await planted(pool, 1, State.XW0, days=3)
    await planted(pool, 2, State.XW0, days=0.5)
    await planted(pool, 3, State.W, days=3)
    spent = await pool.fetchval("SELECT count(*) FROM usage_events")
    await work(pool, RetentionConfig(remove_after=1), AppliedRecorder())
    assert await chats.get(pool, old) is None
    left = {row["id"].int for row in await pool.fetch("SELECT id FROM chats")}
    assert left == {2, 3}
    messages = await pool.fetch("SELECT DISTINCT chat_id FROM chat_messages")
    assert {row["chat_id"].int for row in messages} <= left
    assert await pool.fetchval("SELECT count(*) FROM usage_events") == spent


async def test_retention_without_days_has_no_tasks(pool: Pool) -> None:
    env = env_with(FakeClock())
    committer = Committer(Transactor(pool, AppliedRecorder()), env)
    assert retention_tasks(RetentionConfig(), pool, env, committer) == ()
