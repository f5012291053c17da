"""History and queue as lines of text for assertions."""

from collections.abc import Iterable

from chatd.domain.chat.change import Change
from chatd.domain.chat.messages import Message, QueuedMessage
from chatd.domain.chat.parts import Part, TextPart, ToolCallPart, ToolResultPart
from chatd.domain.chat.user_transitions import sort_queue
from tests.model.invariants import ChangeChecker
from tests.model.reference_store import ChatRows, ReferenceStore, apply_change
from tests.support.seeds import Seeded


def apply_changes(seeded: Seeded, *changes: Change | None) -> ChatRows:
    """The rows after these changes on top of the seed, with all invariants checked."""
    world, watch = ReferenceStore(), ChangeChecker()
    for change in (*seeded.changes, *changes):
        assert change is not None, "nothing to write"
        rows = apply_change(world, change)
        watch.check_change(change, rows.chat, rows.messages, rows.queue)
    return world.chats[seeded.chat.id]


def history_lines(messages: Iterable[Message]) -> list[str]:
    """Live messages except the system's."""
    return [
        f"{message.role}: {' '.join(_part(part) for part in message.content)}"
        for message in messages
        if not message.deleted and message.role != "system"
    ]


def queue_lines(queue: Iterable[QueuedMessage]) -> list[str]:
    return [
        ("! " if item.steer else "") + " ".join(_part(part) for part in item.content)
        for item in sort_queue(list(queue))
    ]


def _part(part: Part) -> str:
    match part:
        case TextPart(text=words):
            return words
        case ToolCallPart(tool_call_id=call_id):
            return f"[{call_id}]"
        case ToolResultPart(tool_call_id=call_id, is_error=is_error):
            return f"{call_id} {'failed' if is_error else 'done'}"
        case _:
            return type(part).__name__
