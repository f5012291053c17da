"""Creating chats, and operations on a chat tree: all chats or none."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

import pytest
from msgspec.structs import replace

from chatd.domain.chat.change import Change
from chatd.domain.chat.commands import CreateChat, TreeCommand
from chatd.domain.chat.row import Chat
from chatd.domain.chat.states import State
from chatd.domain.chat.transitions import decide_tree
from chatd.domain.chat.user_transitions import archive, archive_tree
from chatd.domain.chat.user_transitions import create as pure_create
from chatd.domain.chat.worker_transitions import (
    commit_step,
    fail_turn,
    finish_turn,
    require_action,
)
from chatd.domain.errors import Conflict, InvariantBroken, NotFound
from chatd.domain.ids import ChangeId, ChatId, UserId, WorkerId
from chatd.store.chat import chats, workers
from chatd.store.chat.apply import APPLY_STEP
from chatd.store.chat.change_writer import apply
from chatd.store.chat.operation import AppliedChange
from chatd.store.chat.transactor import Transactor
from chatd.store.database.conn import ConnectConfig
from chatd.store.database.pool import SHARED_FROM_SESSIONS, Pool, PoolConfig
from tests.support.eventually import eventually
from tests.support.factories import HARNESS, WORKER, call, draft, text
from tests.support.operations import archiving, by_earlier_run, create_chat, tree
from tests.support.outcomes import raised
from tests.support.seeds import CLIENT_TOOL, FAILED, failing, step
from tests.support.store import (
    AppliedRecorder,
    chat_id,
    dump,
    has_lock_waiter,
    open_chat,
    open_child,
    opening_command,
    write,
)
from tests.support.stored import stored

ROOT, CHILD = chat_id(1), chat_id(2)


def child_of(number: int, parent: int, root: int = 1) -> CreateChat:
    return opening_command(number, root_chat_id=chat_id(root), parent_chat_id=chat_id(parent))


async def create(
    transactor: Transactor, command: CreateChat, number: int = 1, free: WorkerId | None = None
) -> AppliedChange:
    return await create_chat(transactor, command, ChangeId(number), free=free)


def alone(written: list[AppliedChange]) -> list[AppliedChange]:
    """Each change alone, as the callback receives it."""
    return [replace(applied, others=()) for applied in written]


# Creating


@pytest.mark.parametrize("free", [WORKER, None])
async def test_a_new_chat_is_stored_whole_and_reported_once(
    pool: Pool, transactor: Transactor, told: AppliedRecorder, free: WorkerId | None
) -> None:
    before = (draft("system", text("Be kind."), visibility="model"),)
    created = await create(transactor, opening_command(1, before=before), free=free)
    assert (await stored(pool))[ROOT].chat == created.chat
    assert (await stored(pool))[ROOT].messages == created.messages
    assert [message.role for message in created.messages] == ["system", "user"]
    assert created.chat.state is (State.R0 if free else State.P0)
    assert told.applied == [created]


async def test_a_chat_created_again_under_its_id_exists_once(
    pool: Pool, transactor: Transactor, told: AppliedRecorder
) -> None:
    first = await create(transactor, opening_command(1))
    before = await dump(pool)
    again = await create(transactor, opening_command(1, title="Another title"), 2)
    assert again.replayed
    assert again.chat == first.chat
    assert await dump(pool) == before
    assert told.applied == [first]


async def test_a_repeated_creation_finds_that_it_was_applied(
    pool: Pool, transactor: Transactor, told: AppliedRecorder
) -> None:
    first = await create(transactor, opening_command(1), free=WORKER)
    again = await create(transactor, opening_command(1), free=WORKER)
    assert again == by_earlier_run(first)
    assert told.applied == [first, again], "the worker that acquired the chat must be notified"


async def test_an_id_of_another_owners_chat_is_refused(
    pool: Pool, transactor: Transactor, told: AppliedRecorder
) -> None:
    await open_chat(pool, 1)
    before = await dump(pool)
    with pytest.raises(Conflict) as refused:
        await create(transactor, opening_command(1, owner_id=UserId(chat_id(99))), 2)
    assert refused.value.code == "chat_exists"
    assert await dump(pool) == before
    assert told.applied == []


# Joining a tree


async def test_a_child_joins_a_root_and_a_grandchild_the_child(
    pool: Pool, transactor: Transactor
) -> None:
    await open_chat(pool, 1)
    await create(transactor, child_of(2, parent=1))
    await create(transactor, child_of(3, parent=2))
    family = await chats.list_children(pool, HARNESS, [ROOT])
    assert [(it.id, it.parent_chat_id) for it in family] == [(CHILD, ROOT), (chat_id(3), CHILD)]


async def plant_archived_root(pool: Pool) -> None:
    await write(pool, archive(await open_chat(pool, 1)))


async def plant_archived_child(pool: Pool) -> None:
    await open_chat(pool, 1)
    await write(pool, archive(await open_child(pool, 2, root=1)))


async def plant_root(pool: Pool) -> None:
    await open_chat(pool, 1)


async def plant_two_roots(pool: Pool) -> None:
    await open_chat(pool, 1)
    await open_chat(pool, 7)


@pytest.mark.parametrize(
    ("plant", "command"),
    [
        pytest.param(plant_archived_root, child_of(2, parent=1), id="of an archived root"),
        pytest.param(
            plant_archived_child,
            child_of(3, parent=2),
            id="of an archived child under an active root",
        ),
        pytest.param(plant_root, child_of(3, parent=2), id="of a missing parent"),
        pytest.param(plant_root, child_of(3, parent=7, root=7), id="of a missing root"),
        pytest.param(plant_two_roots, child_of(3, parent=7), id="of a parent from another tree"),
    ],
)
async def test_a_child_is_refused(
    pool: Pool,
    transactor: Transactor,
    told: AppliedRecorder,
    plant: Callable[[Pool], Awaitable[None]],
    command: CreateChat,
) -> None:
    await plant(pool)
    before = await dump(pool)
    assert (await raised(Conflict, create(transactor, command))).code == "parent_archived"
    assert await dump(pool) == before
    assert told.applied == []


# Archiving


async def plant_mixed_tree(pool: Pool) -> None:
    """A root and four children: running, failed, waiting for a person, pending, idle."""
    await open_chat(pool, 1)
    for number in (2, 3, 4, 5):
        await open_child(pool, number, root=1)
    await workers.acquire(pool, WORKER, roots=9, children=9)
    running = {it.id: it for it in await chats.lock_tree(pool, HARNESS, ROOT, "chats.control")}
    failed, asking, idle = (running[chat_id(number)] for number in (2, 3, 5))
    await write(pool, fail_turn(failed, failing(step(failed), FAILED)))
    question = draft("assistant", call("c1", CLIENT_TOOL))
    await write(pool, require_action(asking, step(asking, question)))
    await workers.release(pool, WORKER, [chat_id(4)])
    await write(pool, finish_turn(idle, step(idle, draft("assistant", text("Done.")))))
    states = [it.state for it in await chats.lock_tree(pool, HARNESS, ROOT, "chats.control")]
    assert states == [State.R0, State.E0, State.A0, State.P0, State.W]


@pytest.mark.covers("F34", "F38")
async def test_a_tree_in_mixed_states_is_archived_and_unarchived_together(
    pool: Pool, transactor: Transactor, told: AppliedRecorder
) -> None:
    await plant_mixed_tree(pool)
    shelved = tree(await transactor.run(archiving(ROOT, ChangeId(1))))
    found = await stored(pool)
    assert [found[it.chat.id].chat for it in shelved] == [it.chat for it in shelved]
    assert [it.chat.state for it in shelved] == [
        State.XW0,
        State.XE0,
        State.XW0,
        State.XW0,
        State.XW0,
    ]
    assert all(it.chat.archived for it in found.values())
    assert [message.role for message in found[chat_id(3)].messages] == ["user", "assistant", "tool"]
    assert told.applied == alone(shelved)

    back = tree(await transactor.run(archiving(ROOT, ChangeId(2), archived=False)))
    assert [it.chat.state for it in back] == [State.W, State.E0, State.W, State.W, State.W]
    assert told.applied == alone([*shelved, *back])


async def test_if_one_chat_refuses_none_is_archived_and_none_is_reported(
    pool: Pool, transactor: Transactor, told: AppliedRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    await plant_mixed_tree(pool)
    before = await dump(pool)

    def with_a_stale_one(
        members: Sequence[Chat], target: ChatId, command: TreeCommand
    ) -> tuple[Change, ...]:
        *good, last = decide_tree(members, target, command)
        assert last.before is not None
        return (*good, replace(last, before=replace(last.before, snapshot_version=999)))

    with monkeypatch.context() as patched:
        patched.setattr("chatd.store.chat.transactor.decide_tree", with_a_stale_one)
        with pytest.raises(InvariantBroken):
            await transactor.run(archiving(ROOT, ChangeId(1)))
    with pytest.raises(NotFound):
        await transactor.run(archiving(chat_id(77), ChangeId(2)))
    assert await dump(pool) == before
    assert told.applied == []


async def test_a_tree_archived_again_by_the_same_change_is_left_alone(
    pool: Pool, transactor: Transactor, told: AppliedRecorder
) -> None:
    await plant_mixed_tree(pool)
    first = await transactor.run(archiving(ROOT, ChangeId(1)))
    before = await dump(pool)
    again = await transactor.run(archiving(ROOT, ChangeId(1)))
    assert isinstance(first, AppliedChange)
    assert again == by_earlier_run(first)
    assert await dump(pool) == before


# Racing


async def test_a_child_created_just_before_its_root_is_archived_is_archived_too(
    pool: Pool, transactor: Transactor
) -> None:
    await open_chat(pool, 1)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        async with pool.transaction() as spawning:
            child = pure_create(child_of(2, parent=1), None)
            assert await apply(spawning, child, ChangeId(1)) is not None
            shelving = group.create_task(transactor.run(archiving(ROOT, ChangeId(2))))
            await eventually(lambda: has_lock_waiter(pool))
        shelved = tree(await shelving)
    assert {applied.chat.id for applied in shelved} == {ROOT, CHILD}
    assert all(it.chat.archived for it in (await stored(pool)).values())


@pytest.mark.covers("F38")
async def test_a_child_created_just_after_its_root_is_archived_is_refused(
    pool: Pool, transactor: Transactor
) -> None:
    await open_chat(pool, 1)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        async with pool.transaction() as shelving:
            for change in archive_tree(
                await chats.lock_tree(shelving, HARNESS, ROOT, "chats.control"), ROOT
            ):
                assert await apply(shelving, change, ChangeId(2)) is not None
            spawning = group.create_task(
                raised(Conflict, create(transactor, child_of(2, parent=1)))
            )
            await eventually(lambda: has_lock_waiter(pool))
        assert (await spawning).code == "parent_archived"
    assert set(await stored(pool)) == {ROOT}


@pytest.mark.promise("P2")
async def test_writes_of_a_tree_in_a_rush_lock_its_root_first(dsn: str, pool: Pool) -> None:
    """Else an operation on the tree, which has the root and wants a child, and they wait for each
    other until the server refuses one."""
    root = await open_chat(pool, 9, free=WORKER)
    child = await open_chat(pool, 2, free=WORKER, root_chat_id=root.id, parent_chat_id=root.id)
    said, sent = draft("assistant", text("so")), list[str]()
    busy = Pool(PoolConfig(connect=ConnectConfig(dsn=dsn)), on_statement=sent.append)
    try:
        async with AsyncExitStack() as held, asyncio.TaskGroup() as group, pool.transaction() as op:
            for _ in range(SHARED_FROM_SESSIONS):
                await held.enter_async_context(busy.transaction())
            await chats.lock(op, root.id)
            steps = [
                group.create_task(write(busy, commit_step(row, step(row, said))))
                for row in (root, child)
            ]
            await eventually(lambda: has_lock_waiter(pool))
            await chats.lock(op, child.id)
        assert [each.result().chat.snapshot_version for each in steps] == [2, 2]
        assert sent.count(APPLY_STEP.text) == 1, "the server has refused one of them"
    finally:
        await busy.close()
