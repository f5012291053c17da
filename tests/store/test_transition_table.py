"""Every transition from every state on a real database.

A listed transition reaches its state, raises the version by one, stores what the pure model says
and is reported once. An unlisted one is refused with its reason, changes no row and is not
reported.
"""

from collections.abc import Iterator
from datetime import timedelta
from uuid import UUID

import pytest
from msgspec.structs import replace

from chatd.domain.chat.call_waits import deadline_shift_s
from chatd.domain.chat.change import Change
from chatd.domain.chat.commands import ReleaseChat
from chatd.domain.chat.row import Chat
from chatd.domain.chat.states import TRANSITIONS, State, Transition
from chatd.domain.chat.transitions import LoadedChat
from chatd.domain.chat.worker_transitions import acquire, release
from chatd.domain.errors import ChatdError
from chatd.domain.ids import ChangeId, ChatId, MessageId
from chatd.store.chat import workers
from chatd.store.chat.operation import AppliedChange, NoChange, Operation
from chatd.store.database.conn import Conn
from chatd.store.database.pool import Pool
from tests.model.reference_store import ChatRows, ReferenceStore, apply_change
from tests.support.domain.transition_cases import (
    TransitionCase,
    expected_refusal,
    list_cases,
    perform_transition,
)
from tests.support.factories import OTHER_WORKER, WORKER
from tests.support.operations import deciding, deciding_transactor, operation
from tests.support.seeds import Seed, Seeded, seed_chat
from tests.support.store import AppliedRecorder, copy, dump, insert_seed
from tests.support.stored import Stored, stored, timeless

ON_THE_QUEUE = frozenset(
    {
        Transition.EDIT_QUEUED,
        Transition.MOVE_QUEUED,
        Transition.PROMOTE_QUEUED,
        Transition.DELETE_QUEUED,
    }
)


class Attempt:
    """One case through the transactor. Records the decided change."""

    def __init__(self, number: int, case: TransitionCase) -> None:
        self.case = case
        self.chat_id = ChatId(UUID(int=number))
        self.change: Change | None = None
        self._change_id = ChangeId(number)
        self._seeded = seed_chat(case.seed)

    def __str__(self) -> str:
        return f"{self.case.move} on {self.case.seed}, with a free slot: {self.case.free}"

    def operation(self) -> Operation:
        on_queue = self.case.move in ON_THE_QUEUE
        command = deciding(self._decide, with_queue=on_queue, message_id=self._target())
        return operation(command, self._change_id, self.chat_id)

    def _target(self) -> MessageId | None:
        if self.case.move is not Transition.EDIT_MESSAGE:
            return None
        return next(message.id for message in self._seeded.history if message.starts_turn)

    def _decide(self, loaded: LoadedChat) -> Change | None:
        read = Seeded(
            seed=self.case.seed,
            chat=loaded.chat,
            history=(loaded.target,) if loaded.target else self._seeded.history,
            queue=loaded.queue,
            changes=self._seeded.changes,
        )
        self.change = perform_transition(self.case, read)
        return self.change


async def attempts(conn: Conn, wanted: list[TransitionCase]) -> list[Attempt]:
    """Each case with its own chat, in the state that it needs."""
    made = [Attempt(number, case) for number, case in enumerate(wanted, 1)]
    seeds = list(dict.fromkeys(case.seed for case in wanted))
    for number, seed in enumerate(seeds, 1_000_000):
        template = await insert_seed(conn, replace(seed, chat_id=ChatId(UUID(int=number))))
        await copy(conn, template.id, [it.chat_id for it in made if it.case.seed == seed])
    return made


def distinct(state: State, move: Transition) -> Iterator[TransitionCase]:
    """Only cases with different effects; the pure tests cover the rest."""
    seen: list[tuple[Seed, Change | None]] = []
    for case in list_cases(state, move):
        outcome = (case.seed, perform_transition(case, seed_chat(case.seed)))
        if outcome not in seen:
            seen.append(outcome)
            yield case


def listed(state: State) -> list[TransitionCase]:
    return [
        case
        for move in Transition
        if TRANSITIONS[move].get(state)
        for case in distinct(state, move)
    ]


def without_effect(state: State) -> list[TransitionCase]:
    return [
        next(list_cases(state, move))
        for move in Transition
        if TRANSITIONS[move].get(state) == frozenset()
    ]


def unlisted(state: State) -> list[TransitionCase]:
    return [next(list_cases(state, move)) for move in Transition if state not in TRANSITIONS[move]]


@pytest.mark.promise("P1")
@pytest.mark.parametrize("state", State)
async def test_a_listed_transition_is_stored_as_decided_and_reported_once(
    pool: Pool, state: State
) -> None:
    told = AppliedRecorder()
    transactor = deciding_transactor(pool, told)
    tried = await attempts(pool, listed(state))
    before = await stored(pool)
    outcomes = [await transactor.run(attempt.operation()) for attempt in tried]
    after = await stored(pool)
    reached: set[tuple[Transition, State]] = set()
    changed: list[AppliedChange] = []
    for attempt, outcome in zip(tried, outcomes, strict=True):
        was, now = before[attempt.chat_id], after[attempt.chat_id]
        if isinstance(outcome, AppliedChange):
            check_written(attempt, was, now, outcome)
            changed.append(outcome)
        else:
            # A message that stands alone has no other place to move to.
            assert attempt.case.move is Transition.MOVE_QUEUED
            assert (outcome, now) == (NoChange(chat=was.chat), was), str(attempt)
        reached.add((attempt.case.move, now.chat.state))
    assert told.applied == changed
    assert reached == {(m, to) for m in Transition for to in TRANSITIONS[m].get(state, frozenset())}


def check_written(attempt: Attempt, was: Stored, now: Stored, outcome: AppliedChange) -> None:
    change, version = attempt.change, was.chat.snapshot_version + 1
    assert change is not None
    assert now.chat.snapshot_version == version, str(attempt)
    assert outcome.change == change, str(attempt)
    assert replace(outcome, change=None, loaded=None, layers=None) == AppliedChange(
        chat=now.chat,
        messages=tuple(m for m in now.messages if m.revision == version and not m.deleted),
        deleted_ids=tuple(m.id for m in now.messages if m.revision == version and m.deleted),
    ), str(attempt)
    assert now.timeless() == predicted(was, change), str(attempt)
    check_times(change, was.chat, now.chat)


def predicted(was: Stored, change: Change) -> Stored:
    world, rows = ReferenceStore(), ChatRows(was.chat)
    rows.messages, rows.queue = list(was.messages), list(was.queue)
    world.chats[was.chat.id] = rows
    apply_change(world, change)
    return timeless(rows.chat, rows.messages, rows.queue)


def check_times(change: Change, was: Chat, now: Chat) -> None:
    """A chat moves up in its list only if it was touched; a wait that goes on has not begun
    anew, but what is left to wait for may have a later deadline. A suspended chat that goes on is
    runnable at once."""
    assert (now.updated_at > was.updated_at) == change.touch
    assert now.created_at == was.created_at
    if was.action_deadline is not None and now.action_deadline is not None:
        shift = timedelta(seconds=deadline_shift_s(was, now))
        assert now.action_deadline - was.action_deadline == shift
    for name in ("runnable_at", "interrupt_deadline"):
        times = getattr(was, name), getattr(now, name)
        if was.is_suspended and not now.is_suspended and name == "runnable_at":
            assert None in times or times[1] < times[0]
            continue
        assert None in times or times[0] == times[1], name


@pytest.mark.parametrize("state", [state for state in State if without_effect(state)])
async def test_a_command_without_effect_touches_no_row(pool: Pool, state: State) -> None:
    told = AppliedRecorder()
    transactor = deciding_transactor(pool, told)
    tried = await attempts(pool, without_effect(state))
    before, chats = await dump(pool), await stored(pool)
    for attempt in tried:
        outcome = await transactor.run(attempt.operation())
        assert outcome == NoChange(chat=chats[attempt.chat_id].chat), str(attempt)
    assert await dump(pool) == before
    assert told.applied == []


@pytest.mark.promise("P15")
@pytest.mark.parametrize("state", State)
async def test_an_unlisted_transition_is_refused_and_touches_no_row(
    pool: Pool, state: State
) -> None:
    told = AppliedRecorder()
    transactor = deciding_transactor(pool, told)
    tried = await attempts(pool, unlisted(state))
    before = await dump(pool)
    for attempt in tried:
        with pytest.raises(ChatdError) as refused:
            await transactor.run(attempt.operation())
        got = type(refused.value), refused.value.code
        assert got == expected_refusal(state, attempt.case.move), str(attempt)
    assert await dump(pool) == before
    assert told.applied == []


HANDED_OVER = [
    Seed(state=state, owned=owned, retry=retry, calls=calls, plain=int(state.endswith("1")))
    for state in State
    for owned in ((True, False) if state in (State.I0, State.I1) else (True,))
    for retry in ((True, False) if state[0] in "PRI" else (False,))
    for calls in (("none", "local") if state[0] in "PRI" else (None,))
]


async def planted(pool: Pool) -> dict[ChatId, Stored]:
    for number, seed in enumerate(HANDED_OVER, 1):
        await insert_seed(pool, replace(seed, chat_id=ChatId(UUID(int=number))))
    return await stored(pool)


@pytest.mark.promise("P3")
@pytest.mark.stock_server
async def test_the_acquire_statement_is_the_pure_transition_of_each_chat(pool: Pool) -> None:
    before = await planted(pool)
    taken = await workers.acquire(pool, OTHER_WORKER, roots=1000, children=1000)
    after = await stored(pool)
    assert {chat.id: chat for chat in taken} == {
        chat_id: now.chat for chat_id, now in after.items() if now != before[chat_id]
    }
    free = {it for it, was in before.items() if was.chat.runnable_at is not None}
    assert {chat.id for chat in taken} == free
    for chat in taken:
        was = before[chat.id]
        assert after[chat.id].timeless() == predicted(was, acquire(was.chat, OTHER_WORKER))
        assert chat.recent_changes == (chat.change_id, *was.chat.recent_changes)[:8]
        assert chat.change_id not in (0, was.chat.change_id)
        assert chat.updated_at == was.chat.updated_at


@pytest.mark.promise("P3")
@pytest.mark.stock_server
async def test_the_release_statement_is_the_pure_transition_of_each_chat(pool: Pool) -> None:
    before = await planted(pool)
    let_go = await workers.release(pool, WORKER)
    after = await stored(pool)
    assert {chat.id: chat for chat in let_go} == {
        chat_id: now.chat for chat_id, now in after.items() if now != before[chat_id]
    }
    owned = {it for it, was in before.items() if was.chat.worker_id == WORKER}
    assert {chat.id for chat in let_go} == owned
    for chat in let_go:
        was = before[chat.id]
        pure = release(was.chat, ReleaseChat(worker_id=WORKER, epoch=was.chat.epoch))
        assert after[chat.id].timeless() == predicted(was, pure)
        assert chat.recent_changes == (chat.change_id, *was.chat.recent_changes)[:8]
        assert chat.change_id not in (0, was.chat.change_id)
        assert chat.updated_at == was.chat.updated_at
