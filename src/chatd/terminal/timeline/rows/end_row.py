"""The one row at the end that says what holds the chat up, or that it works."""

from collections.abc import Iterator
from typing import Final

from chatd.client.state import ShownChat
from chatd.terminal.timeline.rows.row import (
    Activity,
    ActivityRow,
    CompactedMark,
    FailedRow,
    HeldRow,
    MarkRow,
    ProseRow,
    ReasoningRow,
    RetryRow,
    Row,
    ToolRow,
)

END_KEY: Final = "end"
_HELD_KIND: Final = "queue_held"


def end_row(chat: ShownChat, last: Row | None) -> Iterator[Row]:
    if chat.status == "error":
        if chat.error is None:
            return
        if chat.error.kind == _HELD_KIND:
            yield HeldRow(key=END_KEY, queued=len(chat.queue))
        else:
            yield FailedRow(key=END_KEY, error=chat.error)
    elif chat.retry is not None and chat.status in ("running", "pending"):
        yield RetryRow(key=END_KEY, retry=chat.retry)
    elif (activity := _activity(chat, last)) is not None:
        yield ActivityRow(key=END_KEY, activity=activity)


def _activity(chat: ShownChat, last: Row | None) -> Activity | None:
    if chat.status == "interrupting":
        return "interrupting"
    if chat.status == "pending":
        return "pending"
    return "working" if chat.status == "running" and not _is_moving(last) else None


def _is_moving(row: Row | None) -> bool:
    """The row shows by itself that something goes on."""
    match row:
        case ProseRow(is_live=is_live) | ReasoningRow(is_live=is_live):
            return is_live
        case MarkRow(mark=CompactedMark(is_live=is_live)):
            return is_live
        case ToolRow(call=call):
            return call.state in ("streaming", "running", "waiting")
        case _:
            return False
