"""Every transition from every state, in as many variants as `TRANSITIONS` has outcomes.

`list_cases(state, move)` yields the variants; `expected_refusal` tells how an unlisted transition
must be refused. `perform_transition` makes one on a seeded chat, with a command as its caller sends
it. Tests of the pure functions and of the database use the same cases.
"""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from chatd.domain.chat.answer_transitions import answer_calls, submit_tool_results
from chatd.domain.chat.call_waits import QuestionReply, WaitKind, wait_of, waiting_calls
from chatd.domain.chat.change import Change
from chatd.domain.chat.commands import (
    AnswerCalls,
    CallAnswer,
    ChooseVersion,
    ClientResult,
    EditMessage,
    EditQueued,
    MoveQueued,
    NoteCallWaits,
    ReapChat,
    RecordRetry,
    ReleaseChat,
    RequestCompaction,
    SendMessage,
    Step,
    SubmitToolResults,
    SuspendTurn,
    WhenBusy,
)
from chatd.domain.chat.messages import Draft
from chatd.domain.chat.row import Chat, Fence, LineEnd, RetryState, StoredVersion
from chatd.domain.chat.states import ARCHIVED_STATES, BUSY_STATES, State, Transition, TransitionSide
from chatd.domain.chat.user_transitions import (
    archive,
    choose_version,
    delete_queued,
    edit_message,
    edit_queued,
    interrupt,
    interrupt_and_hold,
    move_queued,
    promote_queued,
    request_compaction,
    resume_queue,
    send_message,
    sort_queue,
    unarchive,
)
from chatd.domain.chat.worker_transitions import (
    acquire,
    commit_step,
    expire_action,
    expire_interrupt,
    fail_turn,
    finish_interrupt,
    finish_turn,
    note_waits,
    reap,
    record_retry,
    release,
    require_action,
    suspend,
    wake,
)
from chatd.domain.errors import ChatBusy, ChatdError, NotFound, StaleFence, TransitionNotAllowed
from chatd.domain.ids import MessageId, QueueId, WorkerId
from tests.support.factories import OTHER_WORKER, OWNER, WORKER, call, draft, prompt, result, text
from tests.support.seeds import CLIENT_TOOL, FAILED, WAIT, OpenCalls, Seed, Seeded, failing

_END_AN_INTERRUPT = frozenset(
    {Transition.FINISH_INTERRUPT, Transition.EXPIRE_INTERRUPT, Transition.REAP}
)
_NEED_OWNER = frozenset({Transition.RELEASE, Transition.REAP, Transition.FINISH_INTERRUPT})
_INTERRUPTING = frozenset(
    {
        Transition.INTERRUPT,
        Transition.INTERRUPT_AND_HOLD,
        Transition.SEND_INTERRUPT,
        Transition.PROMOTE_QUEUED,
    }
)
_NAME_AN_ITEM = frozenset(
    {Transition.EDIT_QUEUED, Transition.MOVE_QUEUED, Transition.PROMOTE_QUEUED}
)


class TransitionCase(Struct, frozen=True, kw_only=True):
    """`free`: this replica has a slot. `keep_owner`: the worker continues with the next step."""

    move: Transition
    seed: Seed
    free: bool = True
    keep_owner: bool = True

    @property
    def slot(self) -> WorkerId | None:
        return OTHER_WORKER if self.free else None


def list_cases(state: State, move: Transition) -> Iterator[TransitionCase]:
    for seed, flag in product(_seeds(state, move), (True, False)):
        yield TransitionCase(move=move, seed=seed, free=flag, keep_owner=flag)


def _seeds(state: State, move: Transition) -> Iterator[Seed]:
    queues = ((1, 0), (2, 0), (0, 1), (1, 1)) if state.endswith("1") else ((0, 0),)
    for (plain, steer), calls, owned, orphans in product(
        queues, _calls(state, move), _owned(state, move), _orphans(state, move)
    ):
        seed = Seed(
            state=state, plain=plain, steer=steer, calls=calls, owned=owned, orphans=orphans
        )
        # A steering message ends the wait for subagents.
        suspends = state[0] == "P" and calls == "local" and not steer
        if move is Transition.WAKE and state[0] == "P":
            if suspends:
                yield replace(seed, suspended=True)
            continue
        yield seed
        if suspends and (move in _INTERRUPTING or move is Transition.SEND_STEER):
            yield replace(seed, suspended=True)
        if state is State.I1 and move in _END_AN_INTERRUPT:
            yield replace(seed, held=True)
        # Before a worker has acquired the chat, a steering message waits for tool results only.
        if move in _INTERRUPTING and state[0] == "P" and (calls == "local" or not steer):
            yield replace(seed, begun=False)


def _calls(state: State, move: Transition) -> tuple[OpenCalls | None, ...]:
    if move is Transition.REQUIRE_ACTION and state in (State.R0, State.R1):
        return ("none", "client")
    if state[0] == "A":
        return _ASKED.get(move, (None,))
    if move in _OF_CALLS and state[0] in "PR":
        return ("local",)
    return ("none", "local") if state[0] in "EPRI" else (None,)


_OF_CALLS = (Transition.SUSPEND, Transition.WAKE, Transition.NOTE_WAITS)
_ASKED: dict[Transition, tuple[OpenCalls | None, ...]] = {
    Transition.SUBMIT_TOOL_RESULTS: ("client", "mixed"),
    Transition.ANSWER_CALLS: ("approval", "question", "mixed"),
    Transition.EXPIRE_ACTION: ("client", "approval", "mixed"),
    Transition.INTERRUPT: ("client", "approval"),
    Transition.ARCHIVE: ("client", "mixed"),
}


def _owned(state: State, move: Transition) -> tuple[bool, ...]:
    if state[0] != "I" or move in _NEED_OWNER:
        return (True,)
    return (False,) if move is Transition.ACQUIRE else (True, False)


def _orphans(state: State, move: Transition) -> tuple[int, ...]:
    return (0, 2) if move is Transition.REAP and state[0] in "RI" else (0,)


def expected_refusal(state: State, move: Transition) -> tuple[type[ChatdError], str]:
    """The type and code with which an unlisted move is refused."""
    if move.side is TransitionSide.WORKER:
        return StaleFence, "stale_fence"
    if state in ARCHIVED_STATES:
        return TransitionNotAllowed, "chat_archived"
    if move is Transition.SEND_REJECT and state in BUSY_STATES:
        return ChatBusy, "chat_busy"
    if move in _NAME_AN_ITEM:
        return NotFound, "not_found"
    return TransitionNotAllowed, "invalid_state"


_WHEN_BUSY: dict[Transition, WhenBusy] = {
    Transition.SEND_QUEUE: "queue",
    Transition.SEND_STEER: "steer",
    Transition.SEND_INTERRUPT: "interrupt",
    Transition.SEND_ROLLBACK: "rollback",
    Transition.SEND_REJECT: "reject",
}


def perform_transition(case: TransitionCase, seeded: Seeded) -> Change | None:
    """Make the transition as its caller does; in a wrong state, as a late caller does."""
    return _PERFORM[case.move](case, seeded)


def _send(case: TransitionCase, seeded: Seeded) -> Change | None:
    command = SendMessage(prompt=prompt("new"), when_busy=_WHEN_BUSY[case.move])
    return send_message(seeded.chat, command, case.slot)


def _edit(case: TransitionCase, seeded: Seeded) -> Change | None:
    target = next(message for message in seeded.history if message.starts_turn)
    return edit_message(
        seeded.chat,
        target,
        EditMessage(message_id=MessageId(1), prompt=prompt("edited")),
        case.slot,
    )


def _choose_version(case: TransitionCase, seeded: Seeded) -> Change | None:
    """Of the last message: a line that failed, or ended well."""
    shown = next(row.id for row in reversed(seeded.history) if row.starts_turn)
    version = StoredVersion(
        message_id=MessageId(1),
        shown_id=shown,
        hidden=(),
        end=LineEnd(error=FAILED) if case.free else LineEnd(),
    )
    command = ChooseVersion(message_id=version.message_id)
    return choose_version(seeded.chat, version, command)


def _submit(case: TransitionCase, seeded: Seeded) -> Change | None:
    results = tuple(
        ClientResult(tool_call_id=call.id, output="{}")
        for call in waiting_calls(seeded.chat)
        if wait_of(call) == "client"
    )
    return submit_tool_results(seeded.chat, SubmitToolResults(results=results), case.slot)


def _answer_calls(case: TransitionCase, seeded: Seeded) -> Change | None:
    """Approve one and deny the others, or answer all questions."""
    decisions: dict[WaitKind | None, Literal["approve", "answer"]] = {
        "approval": "approve",
        "question": "answer",
    }
    answers = tuple(
        CallAnswer(
            tool_call_id=call.id,
            decision=decisions[kind] if number == 0 or kind == "question" else "deny",
            replies=(QuestionReply(labels=("A",)),),
        )
        for number, call in enumerate(waiting_calls(seeded.chat))
        if (kind := wait_of(call)) != "client"
    )
    return answer_calls(seeded.chat, AnswerCalls(answered_by=OWNER, answers=answers), case.slot)


def _compact(case: TransitionCase, seeded: Seeded) -> Change | None:
    return request_compaction(seeded.chat, RequestCompaction(compactable=True), case.slot)


def _last_queued(seeded: Seeded) -> QueueId:
    queue = sort_queue(seeded.queue)
    return queue[-1].id if queue else QueueId(1)


def _edit_queued(case: TransitionCase, seeded: Seeded) -> Change | None:
    command = EditQueued(id=_last_queued(seeded), prompt=prompt("rewritten"))
    return edit_queued(seeded.chat, seeded.queue, command)


def _move_queued(case: TransitionCase, seeded: Seeded) -> Change | None:
    last = _last_queued(seeded)
    kind = [item.steer for item in seeded.queue if item.id == last]
    others = [
        item.id for item in sort_queue(seeded.queue) if item.id != last and [item.steer] == kind
    ]
    command = MoveQueued(id=last, before=others[0] if others else None)
    return move_queued(seeded.chat, seeded.queue, command)


def _promote(case: TransitionCase, seeded: Seeded) -> Change | None:
    return promote_queued(seeded.chat, seeded.queue, _last_queued(seeded), case.slot)


def _delete(case: TransitionCase, seeded: Seeded) -> Change | None:
    return delete_queued(seeded.chat, seeded.queue, _last_queued(seeded))


def _fence(chat: Chat) -> Fence:
    """What the owner holds; for a chat without one, what its last owner held."""
    if chat.worker_id is not None:
        return Fence.of(chat)
    return Fence(
        worker_id=WORKER,
        epoch=chat.epoch,
        status="running",
        history_version=chat.history_version,
    )


def _step(case: TransitionCase, seeded: Seeded, *messages: Draft) -> Step:
    return Step(
        fence=_fence(seeded.chat),
        messages=messages,
        keep_owner=case.keep_owner,
        client_tools=frozenset({CLIENT_TOOL}),
    )


def _answer(seeded: Seeded) -> tuple[Draft, ...]:
    """Results of the pending calls; else text of the model."""
    calls = seeded.chat.pending_calls
    if not calls:
        return (draft("assistant", text("Done.")),)
    return tuple(draft("tool", result(call.id, call.name)) for call in calls)


def _commit(case: TransitionCase, seeded: Seeded) -> Change | None:
    return commit_step(seeded.chat, _step(case, seeded, *_answer(seeded)))


def _finish(case: TransitionCase, seeded: Seeded) -> Change | None:
    return finish_turn(seeded.chat, _step(case, seeded, *_answer(seeded)))


def _require_action(case: TransitionCase, seeded: Seeded) -> Change | None:
    asks = draft("assistant", call("ask", CLIENT_TOOL))
    messages = () if seeded.chat.pending_calls else (asks,)
    return require_action(seeded.chat, _step(case, seeded, *messages))


def _suspend(case: TransitionCase, seeded: Seeded) -> Change | None:
    """The result of the first call, if there is one; the others wait."""
    calls = seeded.chat.pending_calls[:1] if case.keep_owner else ()
    results = tuple(draft("tool", result(call.id, call.name)) for call in calls)
    command = SuspendTurn(fence=_fence(seeded.chat), messages=results, wait=WAIT)
    return suspend(seeded.chat, command)


def _note_waits(case: TransitionCase, seeded: Seeded) -> Change | None:
    waits = {call.id: "Its machine is not connected." for call in seeded.chat.pending_calls}
    return note_waits(seeded.chat, NoteCallWaits(fence=_fence(seeded.chat), waits=waits))


def _fail(case: TransitionCase, seeded: Seeded) -> Change | None:
    return fail_turn(seeded.chat, failing(_step(case, seeded), FAILED))


def _retry(case: TransitionCase, seeded: Seeded) -> Change | None:
    state = RetryState(attempt=1, delay_ms=0 if case.keep_owner else 1, error="overloaded")
    return record_retry(seeded.chat, RecordRetry(fence=_fence(seeded.chat), state=state))


def _finish_interrupt(case: TransitionCase, seeded: Seeded) -> Change | None:
    partial = () if seeded.chat.pending_calls else (draft("assistant", text("Once upon")),)
    return finish_interrupt(seeded.chat, _step(case, seeded, *partial))


_PERFORM: dict[Transition, Callable[[TransitionCase, Seeded], Change | None]] = {
    **dict.fromkeys(_WHEN_BUSY, _send),
    Transition.EDIT_MESSAGE: _edit,
    Transition.CHOOSE_VERSION: _choose_version,
    Transition.INTERRUPT: lambda case, seeded: interrupt(seeded.chat, case.slot),
    Transition.INTERRUPT_AND_HOLD: lambda case, seeded: interrupt_and_hold(seeded.chat, case.slot),
    Transition.RESUME_QUEUE: lambda case, seeded: resume_queue(seeded.chat, case.slot),
    Transition.SUBMIT_TOOL_RESULTS: _submit,
    Transition.ANSWER_CALLS: _answer_calls,
    Transition.REQUEST_COMPACTION: _compact,
    Transition.ARCHIVE: lambda case, seeded: archive(seeded.chat),
    Transition.UNARCHIVE: lambda case, seeded: unarchive(seeded.chat),
    Transition.EDIT_QUEUED: _edit_queued,
    Transition.MOVE_QUEUED: _move_queued,
    Transition.PROMOTE_QUEUED: _promote,
    Transition.DELETE_QUEUED: _delete,
    Transition.ACQUIRE: lambda case, seeded: acquire(seeded.chat, OTHER_WORKER),
    Transition.COMMIT_STEP: _commit,
    Transition.FINISH_TURN: _finish,
    Transition.REQUIRE_ACTION: _require_action,
    Transition.FAIL_TURN: _fail,
    Transition.RECORD_RETRY: _retry,
    Transition.FINISH_INTERRUPT: _finish_interrupt,
    Transition.RELEASE: lambda case, seeded: release(
        seeded.chat, ReleaseChat(worker_id=WORKER, epoch=seeded.chat.epoch)
    ),
    Transition.REAP: lambda case, seeded: reap(
        seeded.chat,
        ReapChat(worker_ids=frozenset({WORKER}), is_task_crash=case.seed.orphans > 0),
    ),
    Transition.EXPIRE_INTERRUPT: lambda case, seeded: expire_interrupt(seeded.chat),
    Transition.SUSPEND: _suspend,
    Transition.WAKE: lambda case, seeded: wake(seeded.chat, case.slot),
    Transition.NOTE_WAITS: _note_waits,
    Transition.EXPIRE_ACTION: lambda case, seeded: expire_action(seeded.chat),
}
