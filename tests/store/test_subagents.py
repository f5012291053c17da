"""Subagents in the database: created whole, once and only by the parent's worker; found when a
suspended parent can go on."""

import asyncio
from typing import LiteralString
from uuid import UUID

import pytest
from msgspec.structs import replace

from chatd.domain.access.permissions import WORKER as WORKER_ACTOR
from chatd.domain.chat.commands import CreateChat, SuspendTurn
from chatd.domain.chat.row import AgentWait, Chat, Fence
from chatd.domain.chat.states import State
from chatd.domain.chat.user_transitions import archive
from chatd.domain.chat.worker_transitions import acquire, finish_turn, require_action, suspend
from chatd.domain.errors import ChatdError, Conflict, StaleFence
from chatd.domain.ids import ChangeId, ChatId
from chatd.store.chat import chats, messages, subagents, workers
from chatd.store.chat.transactor import Transactor
from chatd.store.database.pool import Pool
from chatd.store.workspace import bindings
from tests.support.factories import CHAT, HARNESS, OTHER_WORKER, WORKER, call, draft, prompt, text
from tests.support.operations import create_chat, ignore_applied
from tests.support.outcomes import present
from tests.support.seeds import CLIENT_TOOL, Seed, step
from tests.support.store import insert_seed, open_child, write
from tests.support.workspaces import insert_workspace, workspace_id

CHILD = ChatId(UUID(int=21))
ROOT = CHAT.int


def spawn_by(parent: Chat, **fields: object) -> CreateChat:
    command = CreateChat(
        id=CHILD,
        owner_id=parent.owner_id,
        title="Look around",
        prompt=prompt("look"),
        root_chat_id=parent.id,
        parent_chat_id=parent.id,
        parent_fence=Fence.of(parent),
    )
    return replace(command, **fields)


async def spawn(pool: Pool, command: CreateChat, number: int = 5) -> Chat:
    transactor = Transactor(pool, ignore_applied)
    return (await create_chat(transactor, command, ChangeId(number), free=WORKER)).chat


async def running_parent(pool: Pool) -> Chat:
    return await insert_seed(pool, Seed(state=State.R0, calls="local"))


async def test_a_subagent_is_created_with_its_message_and_what_its_parent_has_now(
    pool: Pool,
) -> None:
    """The parent has got its workspace after its worker read the row."""
    parent = await running_parent(pool)
    await insert_workspace(pool, 1)
    await bindings.bind(pool, WORKER_ACTOR, parent.id, expected=None, workspace_id=workspace_id(1))
    await pool.execute("UPDATE chats SET mcp_server_ids = $2 WHERE id = $1", parent.id, [CHILD])
    child = await spawn(pool, spawn_by(parent, mode="explore"))
    assert (child.state, child.worker_id, child.mode) == (State.R0, WORKER, "explore")
    assert (child.workspace_id, child.mcp_server_ids) == (workspace_id(1), (CHILD,))
    assert await chats.get(pool, HARNESS, CHILD) == child
    assert [row.role for row in await messages.load_history(pool, HARNESS, CHILD)] == ["user"]
    bound = present(await bindings.get(pool, HARNESS, CHILD))
    assert bound.workspace_id == workspace_id(1)
    copied = await pool.fetchval("SELECT count(*) FROM chat_bindings WHERE chat_id = $1", CHILD)
    assert copied == 1


@pytest.mark.promise("P3")
@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ("epoch = epoch + 1", StaleFence),
        ("history_version = history_version + 1, snapshot_version = 9", StaleFence),
        ("worker_id = '00000000-0000-0000-0000-0000000000ff'", StaleFence),
        ("status = 'interrupting', interrupt_deadline = now()", StaleFence),
        ("mode = 'explore'", Conflict),
    ],
)
async def test_a_stale_worker_creates_no_subagent(
    pool: Pool, change: LiteralString, refusal: type[ChatdError]
) -> None:
    parent = await running_parent(pool)
    await pool.execute(f"UPDATE chats SET {change} WHERE id = $1", parent.id)
    with pytest.raises(refusal):
        await spawn(pool, spawn_by(parent))
    assert await chats.get(pool, HARNESS, CHILD) is None


async def test_an_archived_parent_gets_no_subagent(pool: Pool) -> None:
    parent = await running_parent(pool)
    await write(pool, archive(parent))
    with pytest.raises(StaleFence):
        await spawn(pool, spawn_by(parent))
    assert await chats.get(pool, HARNESS, CHILD) is None


async def test_a_call_that_runs_again_finds_the_subagent_of_the_first_run(pool: Pool) -> None:
    """Also if both runs write at once."""
    parent = await running_parent(pool)
    made = await asyncio.gather(*(spawn(pool, spawn_by(parent), number) for number in range(1, 6)))
    assert {child.id for child in made} == {CHILD}
    assert len(await messages.load_history(pool, HARNESS, CHILD)) == 1
    assert (await subagents.count(pool, WORKER_ACTOR, parent.id)).total == 1


async def settle(pool: Pool, child: Chat, how: str) -> None:
    if how == "waiting":
        await write(pool, finish_turn(child, step(child, draft("assistant", text("seen")))))
    elif how == "archived":
        await write(pool, archive(child))
    elif how == "requires_action":
        asks = draft("assistant", call("ask", CLIENT_TOOL))
        await write(pool, require_action(child, step(child, asks)))


async def suspended_parent(pool: Pool, *children: Chat, delay_ms: int = 300_000) -> Chat:
    parent = present(await chats.get(pool, HARNESS, CHAT))
    wait = AgentWait(chat_ids=tuple(child.id for child in children), delay_ms=delay_ms)
    command = SuspendTurn(fence=Fence.of(parent), wait=wait)
    return (await write(pool, suspend(parent, command), 77)).chat


async def children(pool: Pool, *numbers: int) -> list[Chat]:
    opened = [await open_child(pool, number, ROOT) for number in numbers]
    return [(await write(pool, acquire(child, WORKER), 78)).chat for child in opened]


@pytest.mark.parametrize("how", ["waiting", "archived", "requires_action"])
async def test_a_suspended_chat_can_go_on_when_all_its_subagents_are_settled(
    pool: Pool, how: str
) -> None:
    await running_parent(pool)
    one, two = await children(pool, 21, 22)
    parent = await suspended_parent(pool, one, two)
    for child in (one, two):
        assert await subagents.list_wakeable(pool) == []
        assert await subagents.list_wakeable(pool, [parent.id]) == []
        await settle(pool, child, how)
    assert await subagents.list_wakeable(pool) == [parent]
    assert await subagents.list_wakeable(pool, [parent.id]) == [parent]
    assert await subagents.list_wakeable(pool, [one.id]) == []


async def test_a_suspended_chat_is_acquired_when_its_time_is_over_and_not_before(
    pool: Pool,
) -> None:
    await running_parent(pool)
    (child,) = await children(pool, 21)
    parent = await suspended_parent(pool, child)
    assert await workers.acquire(pool, OTHER_WORKER, roots=5, children=0) == []
    assert not (await workers.send_heartbeat(pool, heartbeat())).runnable
    await pool.execute("UPDATE chats SET runnable_at = now() WHERE id = $1", parent.id)
    (taken,) = await workers.acquire(pool, OTHER_WORKER, roots=5, children=0)
    assert (taken.id, taken.agent_wait, taken.state) == (parent.id, None, State.R0)
    assert [pending.id for pending in taken.pending_calls] == ["c1", "c2"]


async def test_a_clock_that_went_back_does_not_prolong_a_wait(pool: Pool) -> None:
    await running_parent(pool)
    (child,) = await children(pool, 21)
    parent = await suspended_parent(pool, child)
    await pool.execute(
        "UPDATE chats SET runnable_at = runnable_at + interval '1 h' WHERE id = $1", parent.id
    )
    assert await workers.acquire(pool, OTHER_WORKER, roots=5, children=0)


async def test_a_wait_counts_from_the_commit_of_the_answer_that_has_the_call(pool: Pool) -> None:
    await running_parent(pool)
    (child,) = await children(pool, 21)
    await pool.execute(
        "UPDATE chat_messages SET created_at = created_at - interval '100 s' WHERE chat_id = $1",
        CHAT,
    )
    seen = present(await subagents.get_waited(pool, WORKER_ACTOR, CHAT, child.id))
    assert 100 <= seen.waited_s < 160
    assert await subagents.get_waited(pool, WORKER_ACTOR, child.id, CHAT) is None
    assert await subagents.get_waited(pool, WORKER_ACTOR, CHAT, CHAT) is None


async def test_the_report_is_the_last_answer_with_text(pool: Pool) -> None:
    await running_parent(pool)
    (child,) = await children(pool, 21)
    assert await subagents.read_report(pool, WORKER_ACTOR, child.id) == ()
    await write(pool, finish_turn(child, step(child, draft("assistant", text("all of it")))))
    await pool.execute(
        """INSERT INTO chat_messages (chat_id, root_chat_id, revision, id, role, visibility,
               content, content_version, change_id)
           SELECT chat_id, root_chat_id, revision, 7, 'assistant', 'model',
               '[{"type": "text", "text": "hidden"}]', content_version, change_id
           FROM chat_messages WHERE chat_id = $1 AND id = 2""",
        child.id,
    )
    assert await subagents.read_report(pool, WORKER_ACTOR, child.id) == (text("all of it"),)


async def test_subagents_are_counted_and_listed_in_pages(pool: Pool) -> None:
    await running_parent(pool)
    one, two, three = await children(pool, 21, 22, 23)
    await settle(pool, one, "waiting")
    await settle(pool, two, "archived")
    counts = await subagents.count(pool, WORKER_ACTOR, CHAT)
    assert (counts.running, counts.total) == (1, 3)
    listed, total = await subagents.list_page(pool, WORKER_ACTOR, CHAT, limit=1, offset=0)
    assert ([chat.id for chat in listed], total) == ([one.id], 2)
    listed, total = await subagents.list_page(pool, WORKER_ACTOR, CHAT, limit=5, offset=1)
    assert ([chat.id for chat in listed], total) == ([three.id], 2)
    assert await subagents.list_page(pool, WORKER_ACTOR, CHAT, limit=5, offset=9) == ((), 2)
    oldest = await subagents.list_oldest(pool, WORKER_ACTOR, CHAT, limit=2)
    assert [chat.id for chat in oldest] == [one.id, two.id]


def heartbeat() -> workers.Heartbeat:
    return workers.Heartbeat(worker_id=OTHER_WORKER, running={})
