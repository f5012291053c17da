"""Any move on any chat, with a command that fits it or comes too late."""

from collections.abc import Callable
from random import Random

from msgspec import Struct

from chatd.domain.change import Change
from chatd.domain.chat import Chat, Fence, RetryState
from chatd.domain.commands import (
    ClientResult,
    EditMessage,
    EditQueued,
    Failure,
    MoveQueued,
    RequestCompaction,
    Retry,
    SendMessage,
    Step,
    SubmitToolResults,
    WhenBusy,
)
from chatd.domain.ids import QueueId, WorkerId
from chatd.domain.messages import Draft
from chatd.domain.queue_moves import delete_queued, edit_queued, move_queued, promote_queued
from chatd.domain.states import Move
from chatd.domain.user_moves import (
    edit_message,
    interrupt,
    request_compaction,
    send_message,
    submit_tool_results,
)
from chatd.domain.worker_moves import (
    acquire,
    commit_step,
    expire_action,
    expire_interrupt,
    fail_turn,
    finish_interrupt,
    finish_turn,
    reap,
    record_retry,
    release,
    require_action,
)
from tests.model.drafts import CLIENT_TOOLS, Drafts
from tests.model.world import Rows
from tests.support.seeds import FAILED


class Moment(Struct, frozen=True, kw_only=True):
    """`fence` is what a worker believes it holds, `free` a replica with a slot, `dead` the
    worker that somebody takes for dead."""

    rng: Random
    drafts: Drafts
    rows: Rows
    fence: Fence
    worker: WorkerId
    dead: WorkerId
    free: WorkerId | None

    @property
    def chat(self) -> Chat:
        return self.rows.chat


def make_move(move: Move, at: Moment) -> Change | None:
    return _MAKE[move](at)


def _send(when_busy: WhenBusy) -> Callable[[Moment], Change | None]:
    def send(at: Moment) -> Change | None:
        command = SendMessage(prompt=at.drafts.prompt(), when_busy=when_busy)
        return send_message(at.chat, command, at.free)

    return send


def _edit(at: Moment) -> Change | None:
    target = at.rng.choice((*at.rows.messages[-12:], None))
    return edit_message(at.chat, EditMessage(target=target, prompt=at.drafts.prompt()), at.free)


def _submit(at: Moment) -> Change | None:
    calls = [*at.chat.pending_calls]
    if calls and at.rng.random() < 0.1:
        calls.pop()
    results = tuple(ClientResult(tool_call_id=call.id, output="{}") for call in calls)
    return submit_tool_results(at.chat, SubmitToolResults(results=results), at.free)


def _compact(at: Moment) -> Change | None:
    command = RequestCompaction(compactable=at.rng.random() < 0.9)
    return request_compaction(at.chat, command, at.free)


def _queue_id(at: Moment) -> QueueId:
    if at.rows.queue and at.rng.random() < 0.9:
        return at.rng.choice(at.rows.queue).id
    return QueueId(at.rng.randint(0, at.chat.next_queue_id + 1))


def _edit_queued(at: Moment) -> Change | None:
    command = EditQueued(id=_queue_id(at), prompt=at.drafts.prompt())
    return edit_queued(at.chat, at.rows.queue, command)


def _move_queued(at: Moment) -> Change | None:
    before = _queue_id(at) if at.rng.random() < 0.7 else None
    return move_queued(at.chat, at.rows.queue, MoveQueued(id=_queue_id(at), before=before))


def _promote(at: Moment) -> Change | None:
    return promote_queued(at.chat, at.rows.queue, _queue_id(at), at.free)


def _delete(at: Moment) -> Change | None:
    return delete_queued(at.chat, at.rows.queue, _queue_id(at))


def _step(at: Moment, *messages: Draft, compacted: bool = False) -> Step:
    return Step(
        fence=at.fence,
        messages=messages,
        usage=at.drafts.usage(),
        client_tools=CLIENT_TOOLS,
        compacted=compacted,
        keep_owner=at.rng.random() < 0.8,
    )


def _commit(at: Moment) -> Change | None:
    calls = at.chat.pending_calls
    if calls:
        answered = at.rng.sample(calls, at.rng.randint(1, len(calls)))
        return commit_step(at.chat, _step(at, *at.drafts.results(answered)))
    if at.chat.compaction_requested or at.rng.random() < 0.05:
        return commit_step(at.chat, _step(at, *at.drafts.summary(), compacted=True))
    return commit_step(at.chat, _step(at, at.drafts.answer(calls=at.rng.randint(0, 2))))


def _finish(at: Moment) -> Change | None:
    messages = at.drafts.results(at.chat.pending_calls)
    if not messages and at.rng.random() < 0.9:
        messages = (at.drafts.answer(calls=0),)
    return finish_turn(at.chat, _step(at, *messages))


def _ask(at: Moment) -> Change | None:
    """What is not the client's to answer is answered first."""
    ours = [call for call in at.chat.pending_calls if not call.client]
    messages = at.drafts.results(ours)
    if len(ours) == len(at.chat.pending_calls):
        messages = (*messages, at.drafts.question())
    return require_action(at.chat, _step(at, *messages))


def _partial(at: Moment) -> tuple[Draft, ...]:
    if at.rng.random() < 0.3:
        return ()
    calls = at.chat.pending_calls
    if calls:
        return at.drafts.results(at.rng.sample(calls, at.rng.randint(0, len(calls))))
    return (at.drafts.answer(calls=at.rng.randint(0, 2)),)


def _fail(at: Moment) -> Change | None:
    return fail_turn(at.chat, Failure(step=_step(at, *_partial(at)), error=FAILED))


def _retry(at: Moment) -> Change | None:
    state = RetryState(attempt=at.chat.attempt, delay_ms=1000, error="overloaded")
    return record_retry(at.chat, Retry(fence=at.fence, state=state))


_MAKE: dict[Move, Callable[[Moment], Change | None]] = {
    Move.SEND_QUEUE: _send("queue"),
    Move.SEND_STEER: _send("steer"),
    Move.SEND_INTERRUPT: _send("interrupt"),
    Move.SEND_ROLLBACK: _send("rollback"),
    Move.SEND_REJECT: _send("reject"),
    Move.EDIT_MESSAGE: _edit,
    Move.INTERRUPT: lambda at: interrupt(at.chat, at.free),
    Move.SUBMIT_TOOL_RESULTS: _submit,
    Move.REQUEST_COMPACTION: _compact,
    Move.EDIT_QUEUED: _edit_queued,
    Move.MOVE_QUEUED: _move_queued,
    Move.PROMOTE_QUEUED: _promote,
    Move.DELETE_QUEUED: _delete,
    Move.ACQUIRE: lambda at: acquire(at.chat, at.worker),
    Move.COMMIT_STEP: _commit,
    Move.FINISH_TURN: _finish,
    Move.REQUIRE_ACTION: _ask,
    Move.FAIL_TURN: _fail,
    Move.RECORD_RETRY: _retry,
    Move.FINISH_INTERRUPT: lambda at: finish_interrupt(at.chat, _step(at, *_partial(at))),
    Move.RELEASE: lambda at: release(at.chat, at.fence.worker_id, at.fence.epoch),
    Move.REAP: lambda at: reap(at.chat, at.dead),
    Move.EXPIRE_INTERRUPT: lambda at: expire_interrupt(at.chat),
    Move.EXPIRE_ACTION: lambda at: expire_action(at.chat),
}
