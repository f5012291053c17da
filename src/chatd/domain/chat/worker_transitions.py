"""Transitions of workers. Each raises StaleFence if the chat changed since the worker read it."""

from datetime import datetime

from msgspec import UNSET
from msgspec.structs import replace

from chatd.domain.chat.answer_transitions import continue_after
from chatd.domain.chat.call_waits import AGENT_WAIT, expired_calls, expired_text, mark_wait
from chatd.domain.chat.change import Change, error_result, require_allowed
from chatd.domain.chat.commands import (
    ExpireDeadline,
    FailTurn,
    NoteCallWaits,
    ReapChat,
    RecordRetry,
    ReleaseChat,
    Step,
    SuspendTurn,
)
from chatd.domain.chat.lease import (
    MAX_LONE_DEATHS,
    WORKER_CRASHED_ERROR,
    is_isolated,
    suspect_delay_s,
)
from chatd.domain.chat.messages import Draft, PendingCall, local_calls, local_results
from chatd.domain.chat.parts import ToolCallPart
from chatd.domain.chat.row import NO_SETBACKS, Chat, Episode
from chatd.domain.chat.states import Transition
from chatd.domain.chat.takeover import DeathNotice, DeathSign, LostOwner
from chatd.domain.errors import InvariantBroken, StaleFence
from chatd.domain.ids import MessageId, ToolCallId, WorkerId


def acquire(chat: Chat, worker: WorkerId) -> Change:
    """P -> R. I without an owner -> I."""
    require_allowed(chat, Transition.ACQUIRE)
    if chat.worker_id is not None:
        raise StaleFence(f"Chat {chat.id} has an owner.")
    return Change.of(chat).set_owner(worker)


def commit_step(chat: Chat, step: Step) -> Change:
    """R -> R, or P if the owner releases the chat. Steering messages join if no call is pending,
    because a model call follows."""
    change = _append_step(chat, step, Transition.COMMIT_STEP)
    # The notice of a failed summary keeps the chat task from another try.
    is_silent = not step.compacted and all(draft.is_notice for draft in step.messages)
    if is_silent or not step.messages:
        raise InvariantBroken(
            "A step must add a message, and not only notices: the chat task would repeat it."
        )
    if step.compacted:
        change = change.clear_compaction_request()
    if not change.after.pending_calls:
        change = change.join_steering()
    return change.continue_running(keep_owner=step.keep_owner)


def finish_turn(chat: Chat, step: Step) -> Change:
    """R0 -> W. R1 -> R|P with the head of the queue promoted."""
    change = _append_step(chat, step, Transition.FINISH_TURN)
    if change.after.pending_calls:
        raise InvariantBroken("A turn cannot finish while tool calls are pending.")
    if change.after.queue_len == 0:
        return change.wait()
    return change.promote_head().continue_running(keep_owner=step.keep_owner)


def require_action(chat: Chat, step: Step) -> Change:
    """R -> A. The client or a person must answer; until then no worker owns the chat. Calls that
    wait for subagents stay pending too, and run after the answers."""
    change = _append_step(chat, step, Transition.REQUIRE_ACTION)
    waits = {wait.call_id: wait for wait in step.waits}
    calls = tuple(
        mark_wait(call, waits[call.id]) if call.id in waits else call
        for call in change.after.pending_calls
    )
    if not calls or not all(call.client or call.asks for call in calls):
        raise InvariantBroken("A chat waits only for calls of client tools and asked ones.")
    if all(call.asks == AGENT_WAIT for call in calls):
        raise InvariantBroken("A chat requires action only if a call waits for somebody.")
    return change.set_pending_calls(calls).wait_for_action()


def suspend(chat: Chat, command: SuspendTurn) -> Change:
    """R -> P until the subagents are settled or the time is over. The calls that wait stay
    pending: the next owner runs them again. R1 -> R1|P1 if a steering message has come: they are
    run again at once, and then do not wait."""
    change = _append_step(chat, command, Transition.SUSPEND)
    if not change.after.pending_calls:
        raise InvariantBroken("A turn is suspended only while a call waits.")
    if change.after.steer_len:
        return change.continue_running(keep_owner=command.keep_owner)
    return change.suspend(command.wait)


def wake(chat: Chat, worker: WorkerId | None) -> Change:
    """P -> R|P. Raises StaleFence if the chat is not suspended."""
    require_allowed(chat, Transition.WAKE)
    if not chat.is_suspended:
        raise StaleFence(f"Chat {chat.id} is not suspended.")
    return Change.of(chat).run(worker)


def fail_turn(chat: Chat, command: FailTurn) -> Change:
    """R -> E with the step's messages. Pending calls stay until the next message; those of a
    partial answer among the messages were not sent, and are answered at once."""
    change = _append_step(chat, command, Transition.FAIL_TURN).answer_unsent_calls()
    return change.fail(command.error)


def record_retry(chat: Chat, command: RecordRetry) -> Change:
    """R -> P until the time of the retry; R -> R without a delay. The next attempt begins here,
    so that viewers see the delay in place of the failed answer."""
    command.fence.check(chat)
    require_allowed(chat, Transition.RECORD_RETRY)
    return Change.of(chat, command.usage).retry(
        command.state,
        counted=command.counted,
        keeps_previous=command.keeps_previous,
        switch=command.switch,
    )


def note_waits(chat: Chat, command: NoteCallWaits) -> Change | None:
    """R -> R. What calls wait for is only shown to viewers: the calls run on under their keys. The
    hooks' answers about a call are set once and then stay."""
    command.fence.check(chat)
    require_allowed(chat, Transition.NOTE_WAITS)
    calls = tuple(
        replace(
            call,
            waits_for=command.waits.get(call.id, call.waits_for),
            hooks=call.hooks or command.hooks.get(call.id),
        )
        for call in chat.pending_calls
    )
    return None if calls == chat.pending_calls else Change.of(chat).set_pending_calls(calls)


def finish_interrupt(chat: Chat, step: Step) -> Change:
    """I0 -> W. I1 -> R|P, or E1 if the queue is held. Saves the partial answer, then answers its
    pending calls."""
    change = _append_step(chat, step, Transition.FINISH_INTERRUPT)
    change = change.answer_unsent_calls().answer_pending_calls().note_stop()
    return _after_interrupt(change, keep_owner=step.keep_owner)


def release(chat: Chat, command: ReleaseChat) -> Change:
    """R -> P, I -> I without an owner."""
    require_allowed(chat, Transition.RELEASE)
    if (chat.worker_id, chat.epoch) != (command.worker_id, command.epoch):
        raise StaleFence(f"Chat {chat.id} has another owner.")
    return Change.of(chat).set_owner(None)


def reap(chat: Chat, command: ReapChat) -> Change:
    """The owner is dead. R -> P after a delay, I -> I at once. After too many deaths with this
    chat as the only suspect R -> E, and an interrupt ends without saving the partial answer."""
    require_allowed(chat, Transition.REAP)
    if chat.worker_id not in command.worker_ids or command.epoch not in (None, chat.epoch):
        raise StaleFence(f"Chat {chat.id} has another owner.")
    is_alone = is_isolated(chat) and chat.id in command.blamed
    is_lone = is_alone or command.is_task_crash
    if (chat.setbacks or NO_SETBACKS).lone_deaths + is_lone < MAX_LONE_DEATHS:
        is_running = chat.status == "running"
        delay_s = suspect_delay_s(chat.orphan_count + 1, command.jitter) if is_running else 0.0
        lost = _lost_owner(chat, command)
        return Change.of(chat).record_worker_death(lost, is_lone=is_lone, delay_s=delay_s)
    change = Change.of(chat)
    if chat.status == "interrupting":
        return _after_interrupt(change.answer_pending_calls(), keep_owner=False)
    return change.fail(WORKER_CRASHED_ERROR)


def _lost_owner(chat: Chat, command: ReapChat) -> LostOwner:
    owner = chat.worker_id
    assert owner is not None  # only an owner dies
    sign: DeathSign = "runner_crashed" if command.is_task_crash else "lock_gone"
    notice = command.notices.get(owner, DeathNotice(sign=sign))
    return LostOwner(
        lost_worker_id=owner,
        sign=notice.sign,
        seen_at_us=notice.seen_at_us,
        missed=notice.missed,
        reaped_by=command.reaper,
        message_id=MessageId(chat.next_message_id - 1),
        open_calls=len(chat.pending_calls),
        repeats_answer=chat.status == "running" and not chat.pending_calls,
    )


def expire_deadline(chat: Chat, command: ExpireDeadline) -> Change:
    """Expire the passed deadline. Raises StaleFence if the chat now has a later one or none."""
    if chat.interrupt_deadline is not None and chat.interrupt_deadline < command.now:
        same = command.episode == Episode.of(chat)
        return expire_interrupt(chat, command.messages if same else ())
    if chat.action_deadline is not None and chat.action_deadline < command.now:
        return expire_action(chat, command.now)
    raise StaleFence(f"No deadline of chat {chat.id} has passed.")


def expire_interrupt(chat: Chat, partial: tuple[Draft, ...] = ()) -> Change:
    """I -> W|P. An interrupt ends in time even if a tool does not. Saves the live parts, because
    the owner did not commit its partial answer."""
    require_allowed(chat, Transition.EXPIRE_INTERRUPT)
    change = _append(Change.of(chat), partial, frozenset()).answer_unsent_calls()
    return _after_interrupt(change.answer_pending_calls(), keep_owner=False)


def expire_action(chat: Chat, now: datetime | None = None) -> Change:
    """A -> P, or A if other calls wait longer. The calls whose time is over get an error; without
    `now` these are the ones with the earliest deadline."""
    require_allowed(chat, Transition.EXPIRE_ACTION)
    expired = expired_calls(chat, now)
    results = {
        call.id: error_result(call, expired_text(call))
        for call in chat.pending_calls
        if call.id in expired
    }
    return continue_after(Change.of(chat), results, chat.pending_calls, None)


def _after_interrupt(change: Change, *, keep_owner: bool) -> Change:
    if change.after.queue_len == 0:
        return change.wait()
    if change.after.queue_held:
        return change.stop_with_held_queue()
    return change.promote_head().continue_running(keep_owner=keep_owner)


def _append_step(chat: Chat, step: Step, transition: Transition) -> Change:
    step.fence.check(chat)
    require_allowed(chat, transition)
    return _append(Change.of(chat, step.usage), step.messages, step.client_tools)


def _append(change: Change, drafts: tuple[Draft, ...], client_tools: frozenset[str]) -> Change:
    pending = {call.id: call for call in change.after.pending_calls}
    for draft in drafts:
        _update_pending(pending, draft, client_tools)
    return change.append_all(drafts, tuple(pending.values()))


def _update_pending(
    pending: dict[ToolCallId, PendingCall], draft: Draft, client_tools: frozenset[str]
) -> None:
    """Update the pending calls by one draft; refuse a history that no provider accepts."""
    if draft.role in ("assistant", "user") and pending:
        raise InvariantBroken(f"A message of role {draft.role} cannot follow a pending call.")
    if draft.role == "tool":
        for result in local_results(draft.content):
            if pending.pop(result.tool_call_id, None) is None:
                raise InvariantBroken(f"No pending call {result.tool_call_id!r} to answer.")
    for call in local_calls(draft.content):
        if call.tool_call_id in pending:
            raise InvariantBroken(f"Two calls with the id {call.tool_call_id!r}.")
        pending[call.tool_call_id] = _pending(call, client_tools)


def _pending(call: ToolCallPart, client_tools: frozenset[str]) -> PendingCall:
    client = call.tool_name in client_tools and not call.cut
    return PendingCall(
        id=call.tool_call_id,
        name=call.tool_name,
        client=client,
        args=call.args if client else UNSET,
    )
