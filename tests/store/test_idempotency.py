"""Idempotency keys: a repeated request writes nothing and gets the same answer.

Marks of tools that must not run twice: a second start and a stale worker are refused.
"""

import asyncio
from uuid import UUID

import pytest
from msgspec.structs import replace

from chatd.domain.chat.change import IdempotencyKey
from chatd.domain.chat.commands import CreateChat, SendMessage, WhenBusy
from chatd.domain.chat.row import MAX_QUEUED_MESSAGES, Fence
from chatd.domain.chat.states import State
from chatd.domain.chat.user_transitions import archive, interrupt, send_message
from chatd.domain.errors import NotFound, QueueFull, RequestReused, StaleFence, TransitionNotAllowed
from chatd.domain.ids import ChangeId, MessageId, QueueId, RequestId, ToolCallId, UserId
from chatd.store import idempotency
from chatd.store.chat import chats, workers
from chatd.store.chat.operation import AppliedChange, Operation
from chatd.store.chat.transactor import Transactor
from chatd.store.database.pool import Pool
from chatd.store.idempotency import RecordedRequest
from tests.support.change_log import stored_prompts
from tests.support.eventually import eventually
from tests.support.factories import CHAT, HARNESS, OTHER_WORKER, OWNER, member, prompt
from tests.support.operations import create_chat, operation
from tests.support.outcomes import present
from tests.support.seeds import Seed
from tests.support.store import (
    AppliedRecorder,
    chat_id,
    dump,
    has_lock_waiter,
    insert_seed,
    open_chat,
    opening_command,
    write,
)
from tests.support.stored import stored


def key(number: int = 1, fingerprint: str = "hello", scope: UUID = CHAT) -> IdempotencyKey:
    return IdempotencyKey(
        scope=scope, id=RequestId(UUID(int=number)), op="send", fingerprint=fingerprint
    )


def sending(
    words: str, number: int, request: IdempotencyKey, busy: WhenBusy = "queue"
) -> Operation:
    command = SendMessage(prompt=prompt(words), when_busy=busy)
    return operation(command, ChangeId(number), actor=OWNER, request=request)


async def create(
    transactor: Transactor, command: CreateChat, number: int, by: IdempotencyKey
) -> AppliedChange:
    return await create_chat(transactor, command, ChangeId(number), free=None, request=by)


async def test_the_result_of_a_request_is_recorded_with_it(
    pool: Pool, transactor: Transactor
) -> None:
    await insert_seed(pool, Seed(state=State.W))
    sent = await transactor.run(sending("at once", 1, key(1)))
    queued = await transactor.run(sending("later", 2, key(2)))
    assert isinstance(sent, AppliedChange)
    assert await idempotency.get(pool, HARNESS, key(1)) == RecordedRequest(
        chat_id=CHAT,
        op="send",
        fingerprint="hello",
        version=sent.chat.snapshot_version,
        message_id=sent.messages[-1].id,
        queue_id=None,
    )
    assert await idempotency.get(pool, HARNESS, key(2)) == RecordedRequest(
        chat_id=CHAT,
        op="send",
        fingerprint="hello",
        version=queued.chat.snapshot_version,
        message_id=None,
        queue_id=QueueId(1),
    )
    assert await idempotency.get(pool, HARNESS, key(3)) is None


@pytest.mark.promise("P1")
async def test_the_same_request_again_gets_the_recorded_answer_and_writes_nothing(
    pool: Pool, transactor: Transactor, told: AppliedRecorder
) -> None:
    await insert_seed(pool, Seed(state=State.W))
    await transactor.run(sending("hello", 1, key()))
    before = await dump(pool)
    again = await transactor.run(sending("hello", 2, key()))
    assert again == AppliedChange(
        chat=told.applied[0].chat,
        request=await idempotency.get(pool, HARNESS, key()),
        replayed=True,
    )
    assert await dump(pool) == before
    assert len(told.applied) == 1


@pytest.mark.covers("F23")
@pytest.mark.promise("P1")
async def test_ten_of_the_same_request_at_once_send_one_message(
    pool: Pool, transactor: Transactor, told: AppliedRecorder
) -> None:
    await insert_seed(pool, Seed(state=State.W))
    same = [sending("hello", number, key()) for number in range(1, 11)]
    outcomes = await asyncio.gather(*(transactor.run(operation) for operation in same))
    assert await stored_prompts(pool) == ["first", "hello"]
    assert len(told.applied) == 1
    applied = [it for it in outcomes if isinstance(it, AppliedChange)]
    assert len(applied) == 10
    assert [it.replayed for it in applied].count(False) == 1
    assert {it.request.message_id for it in applied if it.request} == {MessageId(4)}


async def test_ten_different_requests_at_once_all_apply(
    pool: Pool, transactor: Transactor, told: AppliedRecorder
) -> None:
    await insert_seed(pool, Seed(state=State.W))
    many = [sending(f"{number}", number, key(number)) for number in range(1, 11)]
    await asyncio.gather(*(transactor.run(operation) for operation in many))
    assert sorted(await stored_prompts(pool)) == sorted(["first", *map(str, range(1, 11))])
    assert len(told.applied) == 10


@pytest.mark.promise("P15")
async def test_a_key_that_comes_back_with_another_body_is_refused(
    pool: Pool, transactor: Transactor, told: AppliedRecorder
) -> None:
    await insert_seed(pool, Seed(state=State.W))
    await transactor.run(sending("hello", 1, key()))
    before = await dump(pool)
    with pytest.raises(RequestReused):
        await transactor.run(sending("good bye", 2, key(fingerprint="good bye")))
    with pytest.raises(RequestReused):
        await transactor.run(sending("hello", 3, replace(key(), op="edit")))
    assert await dump(pool) == before
    assert len(told.applied) == 1


async def test_the_same_key_in_another_scope_is_another_request(
    pool: Pool, transactor: Transactor
) -> None:
    await insert_seed(pool, Seed(state=State.W))
    await transactor.run(sending("hello", 1, key()))
    await transactor.run(sending("hello too", 2, key(scope=chat_id(50))))
    assert await stored_prompts(pool) == ["first", "hello", "hello too"]


@pytest.mark.promise("P1")
async def test_a_repeat_is_answered_although_the_chat_would_refuse_it_now(
    pool: Pool, transactor: Transactor
) -> None:
    """The queue is full because of the first try."""
    await insert_seed(pool, Seed(state=State.R1, plain=MAX_QUEUED_MESSAGES - 1))
    await transactor.run(sending("the last", 1, key()))
    with pytest.raises(QueueFull):
        await transactor.run(sending("one more", 2, key(2)))
    again = await transactor.run(sending("the last", 3, key()))
    assert isinstance(again, AppliedChange)
    assert again.request == await idempotency.get(pool, HARNESS, key())

    full = present(await chats.get(pool, HARNESS, CHAT))
    await write(pool, archive(full))
    with pytest.raises(TransitionNotAllowed):
        await transactor.run(sending("one more", 4, key(2)))
    archived = await transactor.run(sending("the last", 5, key()))
    assert isinstance(archived, AppliedChange)
    assert archived.replayed


async def test_a_key_finds_nothing_for_a_user_who_does_not_own_the_chat(
    pool: Pool, transactor: Transactor
) -> None:
    await insert_seed(pool, Seed(state=State.W))
    mine = sending("hello", 1, key())
    await transactor.run(mine)
    stranger = UserId(chat_id(99))
    with pytest.raises(NotFound):
        await transactor.run(replace(mine, actor=member(stranger), change_id=ChangeId(2)))


async def test_a_refused_request_may_be_tried_again_under_its_key(
    pool: Pool, transactor: Transactor
) -> None:
    with pytest.raises(NotFound):
        await transactor.run(sending("hello", 1, key()))
    await insert_seed(pool, Seed(state=State.W))
    outcome = await transactor.run(sending("hello", 2, key()))
    assert isinstance(outcome, AppliedChange)
    assert not outcome.replayed


async def test_a_chat_created_twice_under_one_key_exists_once(
    pool: Pool, transactor: Transactor, told: AppliedRecorder
) -> None:
    """Each try uses a new chat id."""
    mine = key(scope=OWNER)
    first = await create(transactor, opening_command(1), 1, mine)
    again = await create(transactor, opening_command(2), 2, mine)
    assert again.chat == first.chat
    assert again.replayed
    assert set(await stored(pool)) == {chat_id(1)}
    assert told.applied == [first]
    with pytest.raises(RequestReused):
        await create(transactor, opening_command(3), 3, replace(mine, fingerprint="other"))


async def test_ten_creations_at_once_under_one_key_make_one_chat(
    pool: Pool, transactor: Transactor, told: AppliedRecorder
) -> None:
    mine = key(scope=OWNER)
    made = await asyncio.gather(
        *(create(transactor, opening_command(number), number, mine) for number in range(1, 11))
    )
    [only] = await stored(pool)
    assert {it.chat.id for it in made} == {only}
    assert [it.chat.id for it in told.applied] == [only]


async def test_a_repeated_creation_is_answered_although_the_tree_is_archived_now(
    pool: Pool, transactor: Transactor
) -> None:
    mine = key(scope=OWNER)
    root = await open_chat(pool, 1)
    first, second = (
        opening_command(number, root_chat_id=root.id, parent_chat_id=root.id) for number in (2, 3)
    )
    created = await create(transactor, first, 1, mine)
    await write(pool, archive(root))
    again = await create(transactor, second, 2, mine)
    assert again.chat == created.chat


async def test_old_keys_are_deleted_in_batches_and_recent_ones_stay(
    pool: Pool, transactor: Transactor
) -> None:
    await insert_seed(pool, Seed(state=State.W))
    for number in range(1, 6):
        await transactor.run(sending(f"{number}", number, key(number)))
    await pool.execute(
        "UPDATE chat_requests SET created_at = created_at - interval '24 hours 1 second'"
        " WHERE request_id <> $1",
        key(5).id,
    )
    assert await idempotency.delete_old_requests(pool, limit=3) == 3
    assert await idempotency.delete_old_requests(pool, limit=3) == 1
    assert await idempotency.delete_old_requests(pool, limit=3) == 0
    assert await idempotency.get(pool, HARNESS, key(5)) is not None


async def test_two_concurrent_deletions_of_old_keys_do_not_block(
    pool: Pool, transactor: Transactor
) -> None:
    await insert_seed(pool, Seed(state=State.W))
    for number in range(1, 5):
        await transactor.run(sending(f"{number}", number, key(number)))
    await pool.execute("UPDATE chat_requests SET created_at = 'epoch'")
    async with pool.transaction() as one, pool.transaction() as other:
        assert await idempotency.delete_old_requests(one, limit=3) == 3
        assert await idempotency.delete_old_requests(other, limit=3) == 1


CALL, OTHER_CALL = ToolCallId("c1"), ToolCallId("c2")


async def running(pool: Pool) -> Fence:
    return Fence.of(await insert_seed(pool, Seed(state=State.R0, calls="local")))


async def marks(pool: Pool) -> list[tuple[str, int]]:
    rows = await pool.fetch("SELECT tool_call_id, epoch FROM chat_tool_runs ORDER BY 1")
    return [(row["tool_call_id"], row["epoch"]) for row in rows]


async def test_the_first_start_may_run_and_the_second_may_not(pool: Pool) -> None:
    fence = await running(pool)
    assert (await idempotency.mark_tool_started(pool, CHAT, CALL, fence)).first
    assert not (await idempotency.mark_tool_started(pool, CHAT, CALL, fence)).first
    assert (await idempotency.mark_tool_started(pool, CHAT, OTHER_CALL, fence)).first
    assert await marks(pool) == [(CALL, fence.epoch), (OTHER_CALL, fence.epoch)]


async def test_a_retry_after_a_lost_reply_finds_its_own_mark(pool: Pool) -> None:
    fence = await running(pool)
    await idempotency.mark_tool_started(pool, CHAT, CALL, fence)
    assert (await idempotency.mark_tool_started(pool, CHAT, CALL, fence, is_retry=True)).first
    await workers.release(pool, fence.worker_id)
    [taken] = await workers.acquire(pool, OTHER_WORKER, roots=1, children=0)
    assert not (
        await idempotency.mark_tool_started(pool, CHAT, CALL, Fence.of(taken), is_retry=True)
    ).first


async def test_the_output_of_a_step_that_is_over_is_forgotten_after_an_hour(pool: Pool) -> None:
    fence = await running(pool)
    current, earlier = (
        ToolCallId(f"{version}:c1")
        for version in (fence.history_version, fence.history_version - 1)
    )
    for call in (current, earlier):
        await idempotency.mark_tool_started(pool, CHAT, call, fence)
        await idempotency.keep_tool_output(pool, CHAT, call, fence, "done")

    async def kept() -> set[str]:
        rows = await pool.fetch("SELECT tool_call_id FROM chat_tool_runs WHERE output IS NOT NULL")
        return {row["tool_call_id"] for row in rows}

    async def age(minutes: int) -> None:
        older = "UPDATE chat_tool_runs SET started_at = started_at - $1::int * interval '1 minute'"
        await pool.execute(older, minutes)

    await age(59)
    assert await idempotency.clear_old_tool_outputs(pool, limit=1) == 0
    await age(2)
    assert await idempotency.clear_old_tool_outputs(pool, limit=1) == 1
    assert await idempotency.clear_old_tool_outputs(pool, limit=1) == 0
    assert await kept() == {current}, "the next worker of the running step finds it"
    await pool.execute(
        "UPDATE chats SET status = 'waiting', pending_calls = '[]', worker_id = NULL"
    )
    assert await idempotency.clear_old_tool_outputs(pool, limit=1) == 1
    assert await kept() == set()
    assert len(await marks(pool)) == 2, "the marks stay: no call runs twice"


async def test_kept_outputs_are_found_by_their_index(pool: Pool) -> None:
    """A chat may have thousands of marks, and the next tool looks for the outputs among them."""
    await running(pool)
    await pool.execute(
        "INSERT INTO chat_tool_runs (chat_id, root_chat_id, tool_call_id, epoch, output)"
        " SELECT $1, $1, '1:c' || n, 1, CASE WHEN n = 1 THEN 'x' END"
        " FROM generate_series(1, 3000) n",
        CHAT,
    )
    await pool.execute("ANALYZE chat_tool_runs")
    plan = await pool.fetch(
        "EXPLAIN SELECT output FROM chat_tool_runs WHERE chat_id = $1 AND output IS NOT NULL", CHAT
    )
    assert any("chat_tool_runs_kept" in row[0] for row in plan), plan


async def test_after_a_crash_the_next_worker_finds_the_mark(pool: Pool) -> None:
    fence = await running(pool)
    await idempotency.mark_tool_started(pool, CHAT, CALL, fence)
    await workers.release(pool, fence.worker_id)
    [taken] = await workers.acquire(pool, OTHER_WORKER, roots=1, children=0)
    assert not (await idempotency.mark_tool_started(pool, CHAT, CALL, Fence.of(taken))).first
    assert (await idempotency.mark_tool_started(pool, CHAT, OTHER_CALL, Fence.of(taken))).first


@pytest.mark.covers("T13")
@pytest.mark.promise("P3")
async def test_a_worker_that_lost_its_chat_starts_nothing(pool: Pool) -> None:
    fence = await running(pool)
    others = (
        replace(fence, worker_id=OTHER_WORKER),
        replace(fence, epoch=fence.epoch - 1),
        replace(fence, history_version=fence.history_version - 1),
    )
    for stale in others:
        with pytest.raises(StaleFence):
            await idempotency.mark_tool_started(pool, CHAT, CALL, stale)
    with pytest.raises(StaleFence):
        await idempotency.mark_tool_started(pool, chat_id(99), CALL, fence)
    assert await marks(pool) == []


async def test_no_tool_starts_in_an_interrupting_chat(pool: Pool) -> None:
    chat = await insert_seed(pool, Seed(state=State.R0, calls="local"))
    stopped = await write(pool, interrupt(chat, None))
    for fence in (Fence.of(chat), Fence.of(stopped.chat)):
        with pytest.raises(StaleFence):
            await idempotency.mark_tool_started(pool, CHAT, CALL, fence)
    assert await marks(pool) == []


@pytest.mark.promise("P3")
async def test_a_start_waits_for_a_concurrent_change_of_owner(pool: Pool) -> None:
    chat = await insert_seed(pool, Seed(state=State.R0, calls="local"))
    rollback = SendMessage(prompt=prompt("instead"), when_busy="rollback")

    async def start() -> None:
        with pytest.raises(StaleFence):
            await idempotency.mark_tool_started(pool, CHAT, CALL, Fence.of(chat))

    async with asyncio.timeout(30), asyncio.TaskGroup() as group, pool.transaction() as session:
        await write(session, send_message(chat, rollback, OTHER_WORKER))
        group.create_task(start())
        await eventually(lambda: has_lock_waiter(pool))
    assert await marks(pool) == []


async def test_marks_are_deleted_with_their_chat(pool: Pool) -> None:
    await idempotency.mark_tool_started(pool, CHAT, CALL, await running(pool))
    await pool.execute("DELETE FROM chats")
    assert await marks(pool) == []
