"""What a change means for the record of attempts: whether an attempt begins, and how one ended.

An attempt, as people see it, is the time that one worker has the chat for one turn. A retry ends
it, even if the worker keeps the chat.
"""

from typing import Final, Literal, get_args

from msgspec import Struct

from chatd.domain.chat.change import QUEUE_HELD_ERROR, Change
from chatd.domain.chat.messages import early_end
from chatd.domain.chat.parts import ReasoningPart, TextPart
from chatd.domain.chat.row import Chat
from chatd.domain.chat.takeover import DeathSign
from chatd.domain.ids import MessageId, WorkerId

RunOutcome = Literal[
    "finished",
    "interrupted",
    "needs_action",
    "released",
    "suspended",
    "lost",
    "retry",
    "failed",
    "replaced",
    "archived",
]
RUN_OUTCOMES: Final[tuple[RunOutcome, ...]] = get_args(RunOutcome)


class RunDetail(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """More about how an attempt ended; the fields that the outcome does not have are absent."""

    error: str | None = None
    error_kind: str | None = None
    provider: str | None = None
    status_code: int | None = None
    delay_ms: int | None = None
    queue_held: bool = False
    kept_chars: int = 0
    sign: DeathSign | None = None
    missed: int = 0
    seen_at_us: int | None = None
    reaped_by: WorkerId | None = None
    open_calls: tuple[str, ...] = ()


_NO_DETAIL: Final = RunDetail()


class RunEnd(Struct, frozen=True, kw_only=True):
    """`end_message_id` is the id after the last message of the attempt."""

    outcome: RunOutcome
    end_message_id: MessageId
    detail: RunDetail


class RunChange(Struct, frozen=True, kw_only=True):
    end: RunEnd | None
    begins: bool


def run_change(change: Change) -> RunChange | None:
    """None if no attempt begins or ends: so it is for most commits, which are steps within one."""
    before, after = change.before, change.after
    if before is None or before.worker_id is None:
        return None if after.worker_id is None else RunChange(end=None, begins=True)
    if (
        after.worker_id is not None
        and after.epoch == before.epoch
        and after.turn_message_id == before.turn_message_id
        and not _is_retry(after)
    ):
        return None
    outcome = _outcome(change, before)
    end = RunEnd(
        outcome=outcome,
        end_message_id=MessageId(before.next_message_id + len(change.messages)),
        detail=_detail(change, before, outcome),
    )
    return RunChange(end=end, begins=after.worker_id is not None)


def _is_retry(after: Chat) -> bool:
    return after.retry_state is not None and after.retry_version == after.snapshot_version


def _outcome(change: Change, before: Chat) -> RunOutcome:
    after = change.after
    if change.delete_from is not None:
        return "replaced"
    if after.archived:
        return "archived"
    if _is_retry(after):
        return "retry"
    if after.lost is not None:
        return "lost"
    if after.status == "error" and after.last_error != QUEUE_HELD_ERROR:
        return "failed"
    if after.is_suspended:
        return "suspended"
    goes_on = after.status == before.status and after.turn_message_id == before.turn_message_id
    if goes_on and after.worker_id is None:
        return "released"
    if before.status == "interrupting":
        return "interrupted"
    return "needs_action" if after.status == "requires_action" else "finished"


def _detail(change: Change, before: Chat, outcome: RunOutcome) -> RunDetail:
    after = change.after
    early = early_end(added.draft for added in change.messages)
    match outcome:
        case "retry" if after.retry_state is not None:
            state = after.retry_state
            return RunDetail(
                error=state.error,
                error_kind=state.kind,
                provider=state.provider,
                status_code=state.status_code,
                delay_ms=state.delay_ms,
            )
        case "failed" if after.last_error is not None:
            error = after.last_error
            return RunDetail(
                error=error.message,
                error_kind=error.kind,
                provider=error.provider,
                status_code=error.status_code,
            )
        case "lost" if after.lost is not None:
            lost = after.lost
            return RunDetail(
                sign=lost.sign,
                missed=lost.missed,
                seen_at_us=lost.seen_at_us,
                reaped_by=lost.reaped_by,
                open_calls=tuple(call.name for call in before.pending_calls),
            )
        case "interrupted":
            return RunDetail(
                queue_held=after.last_error == QUEUE_HELD_ERROR, kept_chars=_count_text(change)
            )
        case "finished" if early is not None:
            return RunDetail(error=early.text, error_kind=early.code)
        case _:
            return _NO_DETAIL


def _count_text(change: Change) -> int:
    return sum(
        len(part.text)
        for added in change.messages
        if added.draft.role == "assistant"
        for part in added.draft.content
        if isinstance(part, TextPart | ReasoningPart)
    )
