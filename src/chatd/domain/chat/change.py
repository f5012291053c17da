"""A change: all that one transition writes, as a value that transitions build by chaining.

`store.chat.apply` writes a change in one statement, if the row still has the version of `before`.
The database sets all times by its own clock: deadlines on entering `requires_action` or
`interrupting`, `runnable_at` when a chat needs a worker and has none, `delay_s` later if it waits.
"""

from typing import Final, Literal, Self
from uuid import UUID

import msgspec
from msgspec import Raw, Struct

from chatd.domain.chat.call_waits import UNASKED_TEXT, has_surely_not_run
from chatd.domain.chat.messages import (
    Draft,
    PendingCall,
    UsageEntry,
    UserInput,
    proposes_plan,
    stopped_notice,
)
from chatd.domain.chat.parts import ToolResultPart
from chatd.domain.chat.row import (
    NO_SETBACKS,
    AgentWait,
    Chat,
    ChatError,
    ChosenFallback,
    Fence,
    ModelSwitch,
    RetryState,
    Setbacks,
    StoredVersion,
)
from chatd.domain.chat.states import ARCHIVED_STATES, TRANSITIONS, State, Transition, TransitionSide
from chatd.domain.chat.takeover import LostOwner, Takeover
from chatd.domain.errors import InvalidInput, StaleFence, TransitionNotAllowed
from chatd.domain.ids import MessageId, QueueId, RequestId, ToolCallId, UserId, WorkerId
from chatd.domain.tool_modes import ModeChoice, chosen_mode
from chatd.domain.tool_policy.rules import ToolRule

MAX_ORPHAN_COUNT: Final = 1000
INTERRUPT_DEADLINE_S: Final = 10.0
"""If the chat's worker has not saved the partial answer by then, the next heartbeat of any worker
saves what the journal has (`engine/lease.py`)."""

INTERRUPTED_CALL_TEXT: Final = (
    "The tool call was interrupted before it produced a result. It may have taken effect: check"
    " that before you repeat the call."
)

UNSENT_CALL_TEXT: Final = (
    "The tool call was interrupted before it was sent to the tool, so it never ran."
)


QUEUE_HELD_ERROR: Final = ChatError(
    kind="queue_held",
    message="The chat was stopped and its queue held. Resume it, send a message or promote one to"
    " continue.",
)


class AppendedMessage(Struct, frozen=True, kw_only=True):
    id: MessageId
    draft: Draft


class EnqueuedMessage(Struct, frozen=True, kw_only=True):
    id: QueueId
    steer: bool
    prompt: UserInput


class EditedQueuedMessage(Struct, frozen=True, kw_only=True):
    id: QueueId
    prompt: UserInput


class MovedQueuedMessage(Struct, frozen=True, kw_only=True):
    id: QueueId
    position: int
    steer: bool


class CallDecision(Struct, frozen=True, kw_only=True):
    """Which user answered a call, and how."""

    tool_call_id: ToolCallId
    decision: Literal["approve", "deny", "answer"]
    answered_by: UserId


class IdempotencyKey(Struct, frozen=True, kw_only=True):
    """`fingerprint` distinguishes a repeat from a reuse with another body."""

    scope: UUID
    id: RequestId
    op: str
    fingerprint: str


class Change(Struct, frozen=True, kw_only=True):
    """`before` is None for a new chat; `parent_fence` is what its parent's worker must hold. `mode`
    is the mode chosen by a message that joins history.

    `promote` counts the queued messages that join history after `messages`: those of
    `promote_ids` in that order, or the first ones of the queue. `rules` join the chat's
    policy. `restore` is the version of a message whose line takes the place of the messages from
    `delete_from` on. `delay_s`: a chat without a worker is runnable after it; None leaves an
    earlier `runnable_at` as it is.
    """

    before: Chat | None
    after: Chat
    messages: tuple[AppendedMessage, ...] = ()
    delete_from: MessageId | None = None
    restore: StoredVersion | None = None
    enqueue: tuple[EnqueuedMessage, ...] = ()
    rewrite: tuple[EditedQueuedMessage, ...] = ()
    place: tuple[MovedQueuedMessage, ...] = ()
    dequeue: tuple[QueueId, ...] = ()
    clear_queue: bool = False
    promote: int = 0
    promote_ids: tuple[QueueId, ...] = ()
    usage: tuple[UsageEntry, ...] = ()
    decisions: tuple[CallDecision, ...] = ()
    rules: tuple[ToolRule, ...] = ()
    request: IdempotencyKey | None = None
    touch: bool = False
    delay_s: float | None = None
    mode: ModeChoice | None = None
    parent_fence: Fence | None = None

    @staticmethod
    def of(chat: Chat, usage: tuple[UsageEntry, ...] = ()) -> "Change":
        after = msgspec.structs.replace(chat, snapshot_version=chat.snapshot_version + 1)
        return Change(before=chat, after=after, usage=usage)

    def _set(self, **columns: object) -> Self:
        after = msgspec.structs.replace(self.after, **columns)
        return msgspec.structs.replace(self, after=after)

    # History. A copy of the row is the cost of a call, and a step's commit makes several: each
    # method copies it once, and the methods of a step name the columns, without a dict.

    def _bump_history(self) -> Self:
        """New history resets the counts of attempts, failures and worker deaths."""
        version = self.after.snapshot_version
        return self._set(
            history_version=version,
            attempt=0,
            orphan_count=0,
            setbacks=_kept_setbacks(self.after.fallback),
            **self._retry_cleared(),
        )

    def append(self, draft: Draft) -> Self:
        return self.append_all((draft,), self.after.pending_calls)

    def append_all(self, drafts: tuple[Draft, ...], pending: tuple[PendingCall, ...]) -> Self:
        """Append messages; `pending` are the calls without a result after them."""
        if not drafts:
            return self.set_pending_calls(pending)
        row, added = self.after, list(self.messages)
        next_id, model, effort = row.next_message_id, row.model_config_id, row.reasoning_effort
        plan_id, fallback = row.plan_message_id, row.fallback
        for draft in drafts:
            added.append(AppendedMessage(id=next_id, draft=draft))
            if draft.role == "tool" and proposes_plan(draft):
                plan_id = next_id
            next_id = MessageId(next_id + 1)
            if draft.visibility == "both" and not draft.compressed:
                # A summary does not set the chat's model: another model may have written it.
                effort = draft.reasoning_effort or effort
                named, is_answer = draft.model_config_id, draft.role == "assistant"
                if named is None or (is_answer and fallback and named == fallback.model_config_id):
                    continue
                if is_answer or named != model:  # the chat's own model answers again or was changed
                    fallback = None
                model = named
        version = row.snapshot_version
        after = msgspec.structs.replace(
            row,
            history_version=version,
            attempt=0,
            orphan_count=0,
            setbacks=_kept_setbacks(fallback),
            retry_state=None,
            retry_version=row.retry_version if row.retry_state is None else version,
            next_message_id=next_id,
            plan_message_id=plan_id,
            pending_calls=pending,
            model_config_id=model,
            reasoning_effort=effort,
        )
        return msgspec.structs.replace(self, messages=tuple(added), after=after)

    def answer_pending_calls(self, reason: str = INTERRUPTED_CALL_TEXT) -> Self:
        """Give each pending call an error result: providers refuse a user message after an open
        one."""
        results = tuple(
            error_result(
                call, UNASKED_TEXT if has_surely_not_run(call) else reason, interrupted=True
            )
            for call in self.after.pending_calls
        )
        return self.append_all(results, ())

    def answer_unsent_calls(self) -> Self:
        """Answer the calls of the answer added here: calls are sent only after their commit."""
        earlier = () if self.before is None else self.before.pending_calls
        sent = {call.id for call in earlier}
        calls = self.after.pending_calls
        unsent = [call for call in calls if call.id not in sent]
        results = tuple(error_result(call, UNSENT_CALL_TEXT, interrupted=True) for call in unsent)
        return self.append_all(results, tuple(call for call in calls if call.id in sent))

    def note_stop(self) -> Self:
        """Record an interrupt between two steps, which history would not show otherwise."""
        row = self.after
        has_steps = row.next_message_id - 1 > (row.turn_message_id or row.next_message_id)
        return self.append(stopped_notice()) if has_steps and not self.messages else self

    def start_turn(self, prompt: UserInput) -> Self:
        return self._new_turn().append(prompt.draft())._choose_mode(prompt)

    def _choose_mode(self, prompt: UserInput) -> Self:
        if prompt.mode is None:
            return self
        changed = msgspec.structs.replace(self, mode=prompt.mode)
        return changed._set(mode=chosen_mode(prompt.mode, self.after.mode))

    def _new_turn(self) -> Self:
        """The next message to join history starts a turn."""
        changed = self.answer_pending_calls()
        first_id = changed.after.next_message_id
        return changed._set(
            turn_message_id=first_id, compaction_requested=False, lost=None
        ).mark_touched()

    def delete_messages_from(self, first: MessageId) -> Self:
        """Soft-delete, so that usage and audit stay. Also clears the pending calls."""
        changed = msgspec.structs.replace(self, delete_from=first)
        return changed._set(pending_calls=())._bump_history()

    def restore_version(self, version: StoredVersion, shown: MessageId) -> Self:
        """Replace the messages from `shown` on with the line of this version. A call that had no
        result when the line was replaced gets an error result."""
        changed = self.delete_messages_from(shown)
        end = version.end
        changed = msgspec.structs.replace(changed, restore=version)._set(
            turn_message_id=end.turn_message_id,
            plan_message_id=end.plan_message_id,
            pending_calls=end.pending_calls,
        )
        return changed.answer_pending_calls()

    def set_pending_calls(self, calls: tuple[PendingCall, ...]) -> Self:
        return self if calls == self.after.pending_calls else self._set(pending_calls=calls)

    def record_decision(self, decision: CallDecision) -> Self:
        return msgspec.structs.replace(self, decisions=(*self.decisions, decision))

    def add_rule(self, rule: ToolRule) -> Self:
        if rule in self.rules:
            return self
        return msgspec.structs.replace(self, rules=(*self.rules, rule))

    # Queue

    def _set_queue(self, *, length: int, steering: int) -> Self:
        return self._set(
            queue_len=length, steer_len=steering, queue_version=self.after.snapshot_version
        )

    def enqueue_message(self, prompt: UserInput, *, steer: bool = False) -> Self:
        added = EnqueuedMessage(id=self.after.next_queue_id, steer=steer, prompt=prompt)
        changed = msgspec.structs.replace(self, enqueue=(*self.enqueue, added))
        changed = changed._set(next_queue_id=QueueId(added.id + 1))
        return changed._set_queue(
            length=self.after.queue_len + 1, steering=self.after.steer_len + steer
        ).mark_touched()

    def dequeue_message(self, item: QueueId, *, steer: bool) -> Self:
        changed = msgspec.structs.replace(self, dequeue=(*self.dequeue, item))
        return changed._set_queue(
            length=self.after.queue_len - 1, steering=self.after.steer_len - steer
        )

    def clear_queue_messages(self) -> Self:
        if self.after.queue_len == 0:
            return self
        changed = msgspec.structs.replace(self, clear_queue=True)
        return changed._set_queue(length=0, steering=0)

    def edit_queued(self, item: QueueId, prompt: UserInput) -> Self:
        changed = msgspec.structs.replace(
            self, rewrite=(EditedQueuedMessage(id=item, prompt=prompt),)
        )
        return changed._set_queue(length=self.after.queue_len, steering=self.after.steer_len)

    def move_queued(self, places: tuple[MovedQueuedMessage, ...], *, steering: int) -> Self:
        changed = msgspec.structs.replace(self, place=places)
        return changed._set_queue(length=self.after.queue_len, steering=steering)

    def join_steering(self) -> Self:
        """Append the steering messages, because a model call follows."""
        if self.after.steer_len == 0:
            return self
        return self._within_turn()._promote(self.after.steer_len, steering=0)

    def steer(self, prompt: UserInput) -> Self:
        """Append a steering message that need not be queued."""
        return self._within_turn().append(prompt.draft())._choose_mode(prompt).mark_touched()

    def _within_turn(self) -> Self:
        """Without a turn in progress, such as during a summary, the next message starts one."""
        if self.after.turn_message_id is not None:
            return self
        return self._set(turn_message_id=self.after.next_message_id)

    def promote_head(self) -> Self:
        """Start the next turn with the head of the queue and all steering messages."""
        return self._new_turn()._promote(max(1, self.after.steer_len), steering=0)

    def promote_named(self, items: tuple[QueueId, ...], *, steering: int) -> Self:
        """Start the next turn with these queued messages."""
        changed = msgspec.structs.replace(self._new_turn(), promote_ids=items)
        return changed._promote(len(items), steering=steering)

    def _promote(self, count: int, *, steering: int) -> Self:
        changed = msgspec.structs.replace(self, promote=count)
        changed = changed._set(next_message_id=MessageId(self.after.next_message_id + count))
        changed = changed._set_queue(length=self.after.queue_len - count, steering=steering)
        return changed._bump_history()

    def hold_queue(self) -> Self:
        """Keep the queue from starting after the interrupt in progress."""
        return self._set(queue_held=True).mark_touched()

    def release_queue(self) -> Self:
        return self._set(queue_held=False) if self.after.queue_held else self

    def stop_with_held_queue(self) -> Self:
        """To E1, with the reason why the queued messages do not run."""
        return self.fail(QUEUE_HELD_ERROR)

    # Status and ownership

    def run(self, worker: WorkerId | None) -> Self:
        """To R under `worker`, or to P without one, runnable at once."""
        changed = self._set(status="running", last_error=None, queue_held=False, agent_wait=None)
        return changed.set_owner(worker)._delay(0.0)

    def continue_running(self, *, keep_owner: bool) -> Self:
        """Stay with the owner for the next step, or release the chat."""
        if not keep_owner:
            return self._set(status="running").set_owner(None)
        row = self.after
        after = msgspec.structs.replace(row, status="running", attempt=row.attempt + 1)
        return msgspec.structs.replace(self, after=after)

    def suspend(self, wait: AgentWait) -> Self:
        """To P, until the subagents are settled or its time is up."""
        return self._set(agent_wait=wait).set_owner(None)._delay(wait.delay_ms / 1e3)

    def interrupt(self, worker: WorkerId | None, *, hold: bool = False) -> Self:
        """The owner saves the partial answer. Without an owner, `worker` acquires the chat. `hold`:
        the queue does not start afterwards."""
        held = hold and self.after.queue_len > 0
        changed = self._set(status="interrupting", queue_held=held).mark_touched()
        if changed.after.worker_id is not None:
            return changed
        return changed.set_owner(worker)._delay(0.0)

    def wait(self) -> Self:
        return self._stop("waiting", None)

    def fail(self, error: ChatError) -> Self:
        """To E with this error. The next turn asks the chat's own model first, not its fallback."""
        changed = self if self.after.fallback is None else self._set(setbacks=None)
        return changed._stop("error", error)

    def wait_for_action(self) -> Self:
        return self._stop("requires_action", None)

    def archive(self) -> Self:
        changed = self._set(archived=True, pin_order=0)
        return changed if self.after.status == "error" else changed.wait()

    def unarchive(self) -> Self:
        return self._set(archived=False).mark_touched()

    def _stop(self, status: str, error: ChatError | None) -> Self:
        changed = self._set(
            status=status,
            last_error=error,
            compaction_requested=False,
            queue_held=False,
            agent_wait=None,
            lost=None,
            **self._retry_cleared(),
        )
        return changed.set_owner(None).mark_touched()

    def set_owner(self, worker: WorkerId | None) -> Self:
        """Every change of owner raises the epoch, even back to the same worker, so that an old
        task of that worker is fenced. A worker that takes over an interrupt starts no attempt: it
        saves the live parts of the last one. The attempt after a retry has begun already."""
        row = self.after
        if worker is None:
            if row.worker_id is None:
                return self
            return self._set(worker_id=None, epoch=row.epoch + 1, **self._retry_cleared())
        is_next = row.status == "running" and not row.waits_for_retry
        return self._set(
            worker_id=worker,
            epoch=row.epoch + 1,
            attempt=row.attempt + is_next,
            agent_wait=None,
            lost=None,
            takeover=(
                row.takeover
                if row.lost is None
                else Takeover.of(row.lost, worker, row.snapshot_version)
            ),
            **self._retry_cleared(),
        )

    def _delay(self, seconds: float) -> Self:
        return msgspec.structs.replace(self, delay_s=seconds)

    def record_worker_death(self, lost: LostOwner, *, is_lone: bool, delay_s: float) -> Self:
        """`is_lone`: the chat was the only suspect."""
        was = self.after.setbacks or NO_SETBACKS
        setbacks = msgspec.structs.replace(was, lone_deaths=was.lone_deaths + is_lone)
        return (
            self._set(
                orphan_count=min(self.after.orphan_count + 1, MAX_ORPHAN_COUNT),
                setbacks=None if setbacks == NO_SETBACKS else setbacks,
                lost=lost,
            )
            .set_owner(None)
            ._delay(delay_s)
        )

    # Retry, compaction, usage

    def retry(
        self,
        state: RetryState,
        *,
        counted: bool,
        keeps_previous: bool,
        switch: ModelSwitch | None = None,
    ) -> Self:
        """The next attempt. A delay is spent without a worker, so that it holds no slot. With
        `keeps_previous` the attempt produced nothing, and the output of earlier attempts stays.
        While a fallback answers viewers see no failure: a notice with the answer reports it."""
        was = self.after.setbacks or NO_SETBACKS
        next_ = switch or ModelSwitch(failed_models=was.failed_models, fallback=was.fallback)
        changed = self if state.delay_ms == 0 else self.set_owner(None)._delay(state.delay_ms / 1e3)
        shown: dict[str, object] = {
            "retry_state": state,
            "retry_version": self.after.snapshot_version,
        }
        if switch is not None and switch.fallback is not None:
            shown = self._retry_cleared()
        return changed._set(
            **shown,
            attempt=self.after.attempt + 1,
            setbacks=msgspec.structs.replace(
                was,
                failed_calls=was.failed_calls + counted,
                waited_ms=was.waited_ms + state.delay_ms,
                discarded_attempt=(
                    self.after.discarded_attempt if keeps_previous else self.after.attempt
                ),
                failed_models=next_.failed_models,
                fallback=next_.fallback,
            ),
        )

    def _retry_cleared(self) -> dict[str, object]:
        if self.after.retry_state is None:
            return {}
        return {"retry_state": None, "retry_version": self.after.snapshot_version}

    def request_compaction(self) -> Self:
        """Starts a new episode and retry budget without a new message. Pending calls of a failed
        turn get an error result: they would otherwise run before the summary."""
        changed = self.answer_pending_calls()
        changed = changed._set(compaction_requested=True, turn_message_id=None)
        return changed._bump_history().mark_touched()

    def clear_compaction_request(self) -> Self:
        return self._set(compaction_requested=False)

    def with_idempotency_key(self, request: IdempotencyKey | None) -> Self:
        return self if request is self.request else msgspec.structs.replace(self, request=request)

    def mark_touched(self) -> Self:
        """Move the chat up in its owner's chat list."""
        return self if self.touch else msgspec.structs.replace(self, touch=True)


def _kept_setbacks(fallback: ChosenFallback | None) -> Setbacks | None:
    """What is left of the setbacks when the history changes."""
    return None if fallback is None else Setbacks(fallback=fallback)


def error_result(call: PendingCall, reason: str, *, interrupted: bool = False) -> Draft:
    part = ToolResultPart(
        tool_call_id=call.id,
        tool_name=call.name,
        result=Raw(msgspec.json.encode({"error": reason})),
        is_error=True,
        interrupted=interrupted,
    )
    return Draft(role="tool", content=(part,))


def require_allowed(chat: Chat, transition: Transition) -> State:
    """The chat's state, if the table allows the transition in it. Raises TransitionNotAllowed for
    a user, StaleFence for a worker."""
    state = chat.state
    if state in TRANSITIONS[transition]:
        return state
    if transition.side is TransitionSide.WORKER:
        raise StaleFence(f"Chat {chat.id} is in state {state}: {transition} does not apply.")
    raise TransitionNotAllowed(transition, state, archived=state in ARCHIVED_STATES)


def require_mode_choice(chat: Chat, choice: ModeChoice | None) -> None:
    """Raises InvalidInput for a subagent: its type sets its mode."""
    if choice is not None and not chat.is_root:
        raise InvalidInput("mode", "only a root chat can change its mode")
