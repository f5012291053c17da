"""Operations through the transactor: conflicts, refusals, and the number of statements."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace

from chatd.domain.chat.change import Change
from chatd.domain.chat.commands import ChatCommand, CommitStep, InterruptChat, SendMessage
from chatd.domain.chat.row import Chat, Fence
from chatd.domain.chat.states import State
from chatd.domain.chat.transitions import LoadedChat, ReservedSlots, decide
from chatd.domain.chat.user_transitions import send_message
from chatd.domain.errors import NotFound, StaleFence, TransitionNotAllowed
from chatd.domain.ids import ChangeId, WorkerId
from chatd.store.chat import chats, workers
from chatd.store.chat.apply import (
    APPLY,
    APPLY_CALLS,
    APPLY_LAST_STEP,
    APPLY_STEP,
    APPLY_WITHOUT_QUEUE,
    INSERT_ROOT_CHAT,
)
from chatd.store.chat.chats import LOAD, LOCK
from chatd.store.chat.operation import AppliedChange, NoChange, Operation
from chatd.store.chat.transactor import Decide, Transactor
from chatd.store.chat.workers import ACQUIRE, HEARTBEAT, Heartbeat
from chatd.store.database.conn import ConnectConfig
from chatd.store.database.pool import Pool, PoolConfig
from tests.support.change_log import stored_prompts
from tests.support.database import TestServer
from tests.support.factories import CHAT, HARNESS, OTHER_WORKER, WORKER, draft, prompt, text
from tests.support.operations import archiving, by_earlier_run, create_chat, operation
from tests.support.outcomes import present, raised
from tests.support.seeds import Seed
from tests.support.store import (
    AppliedRecorder,
    counting_pool,
    dump,
    insert_seed,
    opening_command,
    write,
)

Meddle = Callable[[], None]


def sending(
    words: str, number: int, *, free: WorkerId | None = None, known: Chat | None = None
) -> Operation:
    command = SendMessage(prompt=prompt(words))
    return operation(command, ChangeId(number), free=free, known=known)


def meddled(*between: Meddle) -> Decide:
    """The domain's decision; after each, another operation runs before the write."""
    waiting = list(between)

    def decide_meddled(
        loaded: LoadedChat, command: ChatCommand, slots: ReservedSlots
    ) -> Change | None:
        change = decide(loaded, command, slots)
        waiting.pop(0)()
        return change

    return decide_meddled


def committing(chat: Chat, words: str) -> CommitStep:
    return CommitStep(fence=Fence.of(chat), messages=(draft("assistant", text(words)),))


class Rival:
    """Another replica, which writes before the operation continues."""

    def __init__(self, server: TestServer, dsn: str) -> None:
        self._server = server
        self._config = PoolConfig(connect=ConnectConfig(dsn=dsn))

    def runs(self, operation: Operation) -> Meddle:
        return lambda: self._server.run(self._run(operation))

    async def _run(self, operation: Operation) -> None:
        pool = Pool(self._config)
        try:
            await Transactor(pool, AppliedRecorder()).run(operation)
        finally:
            await pool.close()


@pytest.fixture
def rival(test_server: TestServer, dsn: str) -> Rival:
    return Rival(test_server, dsn)


async def test_an_operation_with_a_conflict_decides_again_from_the_new_row(
    pool: Pool, told: AppliedRecorder, rival: Rival
) -> None:
    """Decided from an idle chat; another message has started it since."""
    await insert_seed(pool, Seed(state=State.W))
    late = Transactor(pool, told, meddled(rival.runs(sending("early", 2)), lambda: None))
    outcome = await late.run(sending("late", 1))
    assert isinstance(outcome, AppliedChange)
    assert outcome.chat.state is State.P1
    assert await stored_prompts(pool) == ["first", "early", "late"]
    assert told.applied == [outcome]


WRITE = "write"
"""Any of the statements that write a change."""


def shown(sent: list[str]) -> list[str]:
    writes = {
        statement.text
        for statement in (APPLY, APPLY_WITHOUT_QUEUE, APPLY_STEP, APPLY_CALLS, APPLY_LAST_STEP)
    }
    return [WRITE if text in writes else text for text in sent]


async def test_after_two_conflicts_an_operation_waits_for_the_row_lock(
    dsn: str, pool: Pool, rival: Rival
) -> None:
    await insert_seed(pool, Seed(state=State.W))
    told = AppliedRecorder()
    async with counting_pool(dsn) as (counted, sent), asyncio.TaskGroup() as group:

        def one_more() -> None:
            group.create_task(Transactor(pool, AppliedRecorder()).run(sending("after", 4)))

        early = [rival.runs(sending("one", 2)), rival.runs(sending("two", 3))]
        await Transactor(counted, told, meddled(*early, one_more)).run(sending("mine", 1))
    load_and_try = [LOAD, WRITE]
    assert shown(sent) == [*load_and_try * 2, "BEGIN", LOCK, *load_and_try, "COMMIT"]
    assert await stored_prompts(pool) == ["first", "one", "two", "mine", "after"]
    assert len(told.applied) == 1


async def test_a_chat_changed_between_the_attempts_may_refuse(
    pool: Pool, told: AppliedRecorder, rival: Rival
) -> None:
    chat = await insert_seed(pool, Seed(state=State.W))
    late = Transactor(pool, told, meddled(rival.runs(archiving(CHAT, ChangeId(2)))))
    refused = await raised(TransitionNotAllowed, late.run(sending("late", 1, known=chat)))
    assert refused.code == "chat_archived"
    assert await stored_prompts(pool) == ["first"]
    assert told.applied == []


async def test_an_unknown_chat_is_not_found(transactor: Transactor) -> None:
    with pytest.raises(NotFound):
        await transactor.run(sending("hello?", 1))


# The caller's row


async def test_a_refusal_is_never_decided_from_the_callers_row(
    pool: Pool, transactor: Transactor
) -> None:
    chat = await insert_seed(pool, Seed(state=State.W))
    outdated = replace(chat, archived=True)
    outcome = await transactor.run(sending("again", 1, known=outdated))
    assert isinstance(outcome, AppliedChange)
    assert await stored_prompts(pool) == ["first", "again"]


async def test_no_change_is_never_decided_from_the_callers_row(
    pool: Pool, transactor: Transactor
) -> None:
    idle = await insert_seed(pool, Seed(state=State.W))
    command = SendMessage(prompt=prompt("work"))
    await write(pool, send_message(idle, command, WORKER))
    stop = operation(InterruptChat(), ChangeId(1), known=idle)
    outcome = await transactor.run(stop)
    assert outcome.chat.state is State.I0
    again = await transactor.run(replace(stop, change_id=ChangeId(2)))
    assert again == NoChange(chat=outcome.chat)


@pytest.mark.covers("F20")
@pytest.mark.promise("P3")
async def test_a_worker_that_lost_its_chat_writes_and_reports_nothing(
    pool: Pool, transactor: Transactor, told: AppliedRecorder
) -> None:
    mine = await insert_seed(pool, Seed(state=State.R0))
    taken = committing(mine, "Too late.")
    await workers.release(pool, WORKER)
    await workers.acquire(pool, WORKER, roots=1, children=0)
    before = await dump(pool)
    late = operation(taken, ChangeId(1), known=mine)
    with pytest.raises(StaleFence):
        await transactor.run(late)
    assert await dump(pool) == before
    assert told.applied == []


@pytest.mark.promise("P1", "P10")
async def test_a_repeated_operation_finds_that_it_was_applied(
    pool: Pool, transactor: Transactor, told: AppliedRecorder
) -> None:
    """The reply to the first try was lost, and the chat has changed since."""
    mine = await insert_seed(pool, Seed(state=State.R0))
    taken = committing(mine, "Once.")
    commit = operation(taken, ChangeId(7), known=mine)
    first = await transactor.run(commit)
    await transactor.run(sending("meanwhile", 8))
    await workers.release(pool, WORKER)
    before = await dump(pool)
    again = await transactor.run(commit)
    assert isinstance(first, AppliedChange)
    now = present(await chats.get(pool, HARNESS, CHAT))
    assert again == replace(first, chat=now, replayed=True)
    assert now.snapshot_version == first.chat.snapshot_version + 2
    assert await dump(pool) == before
    assert told.applied[-1] == again, "with the reply the chance to tell was lost"


async def test_a_repeated_edit_reports_the_deleted_messages(
    pool: Pool, transactor: Transactor, told: AppliedRecorder
) -> None:
    await insert_seed(pool, Seed(state=State.R1))
    command = SendMessage(prompt=prompt("instead"), when_busy="rollback")
    rollback = operation(command, ChangeId(7))
    first = await transactor.run(rollback)
    assert isinstance(first, AppliedChange)
    assert len(first.deleted_ids) == 1
    assert await transactor.run(rollback) == by_earlier_run(first)


# Round trips


async def sent_by(dsn: str, work: Callable[[Pool], Awaitable[object]]) -> list[str]:
    async with counting_pool(dsn) as (pool, sent):
        await work(pool)
        return shown(sent)


async def test_a_send_is_one_statement_if_the_row_is_known_and_two_if_not(
    dsn: str, pool: Pool
) -> None:
    chat = await insert_seed(pool, Seed(state=State.W))
    known = sending("known", 1, free=WORKER, known=chat)
    assert await sent_by(dsn, lambda it: Transactor(it, AppliedRecorder()).run(known)) == [WRITE]
    unknown = sending("not known", 2)
    assert await sent_by(dsn, lambda it: Transactor(it, AppliedRecorder()).run(unknown)) == [
        LOAD,
        WRITE,
    ]


async def test_a_step_is_committed_in_one_statement(dsn: str, pool: Pool) -> None:
    chat = await insert_seed(pool, Seed(state=State.R0))
    commit = operation(committing(chat, "Yes."), ChangeId(1), known=chat)
    assert await sent_by(dsn, lambda it: Transactor(it, AppliedRecorder()).run(commit)) == [WRITE]


async def test_creating_acquiring_and_a_heartbeat_are_one_statement_each(dsn: str) -> None:
    command = opening_command(CHAT.int)
    assert await sent_by(
        dsn,
        lambda it: create_chat(Transactor(it, AppliedRecorder()), command, ChangeId(1), free=None),
    ) == [INSERT_ROOT_CHAT.text]
    assert await sent_by(
        dsn, lambda it: workers.acquire(it, OTHER_WORKER, roots=1, children=1)
    ) == [ACQUIRE]
    beat = Heartbeat(worker_id=OTHER_WORKER, running={CHAT: 1})
    assert await sent_by(dsn, lambda it: workers.send_heartbeat(it, beat)) == [HEARTBEAT]
