"""Any transition on any chat, with a command that fits or comes too late."""

from collections.abc import Callable
from random import Random
from typing import Literal

from msgspec import Raw, Struct
from msgspec.structs import replace

from chatd.domain.chat.answer_transitions import answer_calls, submit_tool_results
from chatd.domain.chat.call_waits import CallWait, QuestionReply, WaitKind, wait_of, waiting_calls
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
from chatd.domain.chat.messages import Draft, PendingCall, local_calls
from chatd.domain.chat.row import Chat, Fence, RetryState
from chatd.domain.chat.states import Transition
from chatd.domain.chat.user_transitions import (
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
from chatd.domain.ids import MessageId, QueueId, ToolCallId, WorkerId
from tests.model.drafts import CLIENT_TOOLS, Drafts
from tests.model.reference_store import ChatRows
from tests.support.seeds import FAILED, QUESTIONS, WAIT, failing


class TransitionInput(Struct, frozen=True, kw_only=True):
    """`fence` may be stale; `free` is a replica with a free slot; `dead` is the worker to reap."""

    rng: Random
    drafts: Drafts
    rows: ChatRows
    fence: Fence
    worker: WorkerId
    dead: WorkerId
    free: WorkerId | None

    @property
    def chat(self) -> Chat:
        return self.rows.chat


def make_transition(move: Transition, at: TransitionInput) -> Change | None:
    return _MAKE[move](at)


def _send(when_busy: WhenBusy) -> Callable[[TransitionInput], Change | None]:
    def send(at: TransitionInput) -> Change | None:
        command = SendMessage(prompt=at.drafts.prompt(), when_busy=when_busy)
        return send_message(at.chat, command, at.free)

    return send


def _edit(at: TransitionInput) -> Change | None:
    target = at.rng.choice((*at.rows.messages[-12:], None))
    return edit_message(
        at.chat, target, EditMessage(message_id=MessageId(1), prompt=at.drafts.prompt()), at.free
    )


def _choose(at: TransitionInput) -> Change | None:
    known = list(at.rows.versions)
    chosen = at.rng.choice((*known, *known, at.chat.next_message_id))
    return choose_version(at.chat, at.rows.version(chosen), ChooseVersion(message_id=chosen))


def _submit(at: TransitionInput) -> Change | None:
    calls = [call for call in waiting_calls(at.chat) if wait_of(call) == "client"]
    if calls and at.rng.random() < 0.1:
        calls.pop()
    results = tuple(ClientResult(tool_call_id=call.id, output="{}") for call in calls)
    return submit_tool_results(at.chat, SubmitToolResults(results=results), at.free)


def _answer_asked(at: TransitionInput) -> Change | None:
    """Some of the asked calls, as owners and late or second answerers do."""
    asked = [call for call in at.chat.pending_calls if wait_of(call) != "client"]
    chosen = at.rng.sample(asked, at.rng.randint(min(1, len(asked)), len(asked)))
    answers = tuple(
        CallAnswer(
            tool_call_id=call.id,
            decision=at.rng.choice(_DECISIONS[wait_of(call)]),
            replies=(QuestionReply(labels=("A",)),),
            always=at.rng.random() < 0.2,
        )
        for call in chosen
    )
    command = AnswerCalls(answered_by=at.chat.owner_id, answers=answers)
    return answer_calls(at.chat, command, at.free)


_DECISIONS: dict[WaitKind | None, tuple[Literal["approve", "deny", "answer"], ...]] = {
    "question": ("answer", "answer", "deny"),
    "approval": ("approve", "approve", "deny"),
    "client": ("approve",),
    None: ("approve",),
}


def _compact(at: TransitionInput) -> Change | None:
    command = RequestCompaction(compactable=at.rng.random() < 0.9)
    return request_compaction(at.chat, command, at.free)


def _queue_id(at: TransitionInput) -> QueueId:
    if at.rows.queue and at.rng.random() < 0.9:
        return at.rng.choice(at.rows.queue).id
    return QueueId(at.rng.randint(0, at.chat.next_queue_id + 1))


def _edit_queued(at: TransitionInput) -> Change | None:
    command = EditQueued(id=_queue_id(at), prompt=at.drafts.prompt())
    return edit_queued(at.chat, at.rows.queue, command)


def _move_queued(at: TransitionInput) -> Change | None:
    before = _queue_id(at) if at.rng.random() < 0.7 else None
    return move_queued(at.chat, at.rows.queue, MoveQueued(id=_queue_id(at), before=before))


def _promote(at: TransitionInput) -> Change | None:
    return promote_queued(at.chat, at.rows.queue, _queue_id(at), at.free)


def _delete(at: TransitionInput) -> Change | None:
    return delete_queued(at.chat, at.rows.queue, _queue_id(at))


def _step(at: TransitionInput, *messages: Draft, compacted: bool = False) -> Step:
    return Step(
        fence=at.fence,
        messages=messages,
        usage=at.drafts.usage(),
        client_tools=CLIENT_TOOLS,
        compacted=compacted,
        keep_owner=at.rng.random() < 0.8,
    )


def _commit(at: TransitionInput) -> Change | None:
    calls = at.chat.pending_calls
    if calls:
        answered = at.rng.sample(calls, at.rng.randint(1, len(calls)))
        return commit_step(at.chat, _step(at, *at.drafts.results(answered)))
    if at.chat.compaction_requested or at.rng.random() < 0.05:
        return commit_step(at.chat, _step(at, *at.drafts.summary(), compacted=True))
    return commit_step(at.chat, _step(at, at.drafts.answer(calls=at.rng.randint(0, 2))))


def _finish(at: TransitionInput) -> Change | None:
    messages = at.drafts.results(at.chat.pending_calls)
    if not messages and at.rng.random() < 0.9:
        messages = (at.drafts.answer(calls=0),)
    return finish_turn(at.chat, _step(at, *messages))


def _ask(at: TransitionInput) -> Change | None:
    """Some calls of other tools are answered first, the others are asked for."""
    ours = [call for call in at.chat.pending_calls if not call.client]
    answered = at.rng.sample(ours, at.rng.randint(0, len(ours)))
    messages = at.drafts.results(answered)
    done = {call.id for call in answered}
    waits = [_wait(at, call.id, call) for call in ours if call.id not in done]
    if len(answered) == len(at.chat.pending_calls):
        asking = at.drafts.asking()
        messages = (*messages, asking)
        waits = [
            _wait(at, call.tool_call_id)
            for call in local_calls(asking.content)
            if call.tool_name not in CLIENT_TOOLS
        ]
    return require_action(at.chat, replace(_step(at, *messages), waits=tuple(waits)))


def _wait(at: TransitionInput, call_id: ToolCallId, mark: PendingCall | None = None) -> CallWait:
    kind: WaitKind = at.rng.choice(("approval", "approval", "question"))
    if mark is not None and mark.approved_by is not None:
        kind = "question"
    args = Raw(QUESTIONS.encode() if kind == "question" else b"{}")
    timeout_s = at.rng.choice((60.0, 3600.0, 86400.0))
    return CallWait(call_id=call_id, kind=kind, timeout_s=timeout_s, args=args, always=True)


def _partial(at: TransitionInput) -> tuple[Draft, ...]:
    if at.rng.random() < 0.3:
        return ()
    calls = at.chat.pending_calls
    if calls:
        return at.drafts.results(at.rng.sample(calls, at.rng.randint(0, len(calls))))
    return (at.drafts.answer(calls=at.rng.randint(0, 2)),)


def _fail(at: TransitionInput) -> Change | None:
    return fail_turn(at.chat, failing(_step(at, *_partial(at)), FAILED))


def _retry(at: TransitionInput) -> Change | None:
    state = RetryState(attempt=at.chat.attempt, delay_ms=at.rng.randint(0, 1), error="overloaded")
    return record_retry(at.chat, RecordRetry(fence=at.fence, state=state))


def _suspend(at: TransitionInput) -> Change | None:
    """Some calls have their result, and others wait."""
    calls = at.chat.pending_calls
    if calls:
        answered = at.rng.sample(calls, at.rng.randint(0, len(calls) - 1))
        messages = at.drafts.results(answered)
    else:
        messages = (at.drafts.asking(),)
    return suspend(at.chat, SuspendTurn(fence=at.fence, messages=messages, wait=WAIT))


def _note_waits(at: TransitionInput) -> Change | None:
    """Some calls begin to wait, and others go on."""
    waits = {call.id: at.rng.choice(("", "Its machine.")) for call in at.chat.pending_calls}
    return note_waits(at.chat, NoteCallWaits(fence=at.fence, waits=waits))


def _reap(at: TransitionInput) -> Change | None:
    dead, is_task_crash = frozenset({at.dead}), at.rng.random() < 0.7
    return reap(at.chat, ReapChat(worker_ids=dead, is_task_crash=is_task_crash))


_MAKE: dict[Transition, Callable[[TransitionInput], Change | None]] = {
    Transition.SEND_QUEUE: _send("queue"),
    Transition.SEND_STEER: _send("steer"),
    Transition.SEND_INTERRUPT: _send("interrupt"),
    Transition.SEND_ROLLBACK: _send("rollback"),
    Transition.SEND_REJECT: _send("reject"),
    Transition.EDIT_MESSAGE: _edit,
    Transition.CHOOSE_VERSION: _choose,
    Transition.INTERRUPT: lambda at: interrupt(at.chat, at.free),
    Transition.INTERRUPT_AND_HOLD: lambda at: interrupt_and_hold(at.chat, at.free),
    Transition.RESUME_QUEUE: lambda at: resume_queue(at.chat, at.free),
    Transition.SUBMIT_TOOL_RESULTS: _submit,
    Transition.ANSWER_CALLS: _answer_asked,
    Transition.REQUEST_COMPACTION: _compact,
    Transition.EDIT_QUEUED: _edit_queued,
    Transition.MOVE_QUEUED: _move_queued,
    Transition.PROMOTE_QUEUED: _promote,
    Transition.DELETE_QUEUED: _delete,
    Transition.ACQUIRE: lambda at: acquire(at.chat, at.worker),
    Transition.COMMIT_STEP: _commit,
    Transition.FINISH_TURN: _finish,
    Transition.REQUIRE_ACTION: _ask,
    Transition.FAIL_TURN: _fail,
    Transition.RECORD_RETRY: _retry,
    Transition.FINISH_INTERRUPT: lambda at: finish_interrupt(at.chat, _step(at, *_partial(at))),
    Transition.RELEASE: lambda at: release(
        at.chat, ReleaseChat(worker_id=at.fence.worker_id, epoch=at.fence.epoch)
    ),
    Transition.REAP: _reap,
    Transition.EXPIRE_INTERRUPT: lambda at: expire_interrupt(at.chat),
    Transition.SUSPEND: _suspend,
    Transition.WAKE: lambda at: wake(at.chat, at.free),
    Transition.NOTE_WAITS: _note_waits,
    Transition.EXPIRE_ACTION: lambda at: expire_action(at.chat),
}
