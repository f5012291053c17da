"""What a change means to a listener outside: how a turn ended, or that it needs the client."""

from typing import Final, Literal, get_args

from chatd.domain.chat.change import Change

TurnEvent = Literal["turn.finished", "turn.interrupted", "turn.failed", "turn.needs_action"]
TURN_EVENTS: Final[tuple[TurnEvent, ...]] = get_args(TurnEvent)


def turn_event(change: Change) -> TurnEvent | None:
    """None: the turn goes on, none was running, or a new text of the user replaced it."""
    before, after = change.before, change.after
    if before is None or change.delete_from is not None:
        return None
    if after.status == "error":
        return None if before.status == "error" else "turn.failed"
    if after.status == "requires_action":
        return None if before.status == "requires_action" else "turn.needs_action"
    if before.status not in ("running", "interrupting", "requires_action"):
        return None
    goes_on = after.status in ("running", "interrupting")
    if goes_on and after.turn_message_id == before.turn_message_id:
        return None
    is_finished = before.status == "running" and not after.archived
    return "turn.finished" if is_finished else "turn.interrupted"
