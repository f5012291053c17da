"""What a run tells on standard error: one line for each thing that happened, each once.

Pure: compares the state that the client shows with what was told before, so that a reconnect, which
brings the same state again, tells nothing twice.
"""

from collections.abc import Iterator
from typing import Final

from chatd.cli.run.call_lines import MAX_LINE, call_line, read_object
from chatd.cli.run.turn import SentMessage, text_of, turn_messages
from chatd.client.state import ShownChat
from chatd.domain.chat.parts import (
    NoticePart,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from chatd.domain.chat.public_messages import PublicMessage
from chatd.domain.chat.row import RetryState
from chatd.domain.takeover import TakeoverPayload
from chatd.terminal.safe_text import safe_line

CALL_MARK: Final = "→"
MAX_NOTICE: Final = 400


class ProgressLines:
    def __init__(self, sent: SentMessage) -> None:
        self._sent = sent
        self._told_up_to = 0
        self._retry: RetryState | None = None
        self._takeover: TakeoverPayload | None = None
        self._queue_place: int | None = None
        self._is_first = True

    def lines(self, shown: ShownChat) -> list[str]:
        """What is new since the last call."""
        if not shown.is_loaded:
            return []
        if self._is_first:
            # A takeover of an earlier turn stays in the state.
            self._is_first, self._takeover = False, shown.takeover
        return [*self._queue_lines(shown), *self._message_lines(shown), *self._event_lines(shown)]

    def _queue_lines(self, shown: ShownChat) -> Iterator[str]:
        ids = (at for at, one in enumerate(shown.queue) if one.id == self._sent.queue_id)
        place = next(ids, None)
        if place is not None and place != self._queue_place:
            before = "next" if place == 0 else f"behind {place} other{'s' if place > 1 else ''}"
            yield f"The chat is busy; the message waits in its queue, {before}."
        self._queue_place = place

    def _message_lines(self, shown: ShownChat) -> Iterator[str]:
        for message in turn_messages(shown, self._sent)[1:]:
            if message.id > self._told_up_to:
                self._told_up_to = message.id
                yield from message_lines(message)

    def _event_lines(self, shown: ShownChat) -> Iterator[str]:
        if shown.retry is not None and shown.retry != self._retry:
            yield retry_line(shown.retry)
        self._retry = shown.retry
        if shown.takeover is not None and shown.takeover != self._takeover:
            yield "The worker of this chat died; another one took it over."
        self._takeover = shown.takeover


def message_lines(message: PublicMessage) -> list[str]:
    """Of a step: its calls with what was said before them, and results that failed. The text of an
    answer without calls is the result of the run, so it is not told here."""
    calls = [part for part in message.content if isinstance(part, ToolCallPart)]
    lines = [f"{CALL_MARK} {call_line(call.tool_name, call.args, MAX_LINE)}" for call in calls]
    if calls and (said := text_of(message).strip()):
        lines.insert(0, safe_line(said, MAX_LINE))
    notices = (part.text for part in message.content if isinstance(part, NoticePart))
    lines += [safe_line(text, MAX_NOTICE) for text in notices]
    results = (part for part in message.content if isinstance(part, ToolResultPart))
    return [*lines, *(line for result in results if (line := result_line(result)))]


def result_line(result: ToolResultPart) -> str:
    found = read_object(result.result)
    name = safe_line(result.tool_name, 40)
    if result.is_error:
        said = next((found[key] for key in ("error", "message", "output") if found.get(key)), "")
        return "  " + safe_line(f"{name} failed: {said}".removesuffix(": "), MAX_LINE)
    code = found.get("exit_code")
    return f"  {name} exited with {code}" if isinstance(code, int) and code != 0 else ""


def retry_line(retry: RetryState) -> str:
    said = safe_line(retry.error, MAX_LINE)
    return f"{said} Trying again in {retry.delay_ms / 1000:.0f} s (failed {retry.attempt}x)."


def activity(shown: ShownChat) -> str:
    """What happens right now, for a line of a terminal that is written again and again."""
    live = shown.live
    last = live.parts[-1] if live is not None and live.parts else None
    match last:
        case ReasoningPart():
            return "Thinking…"
        case TextPart(text=text):
            return f"Writing… {len(text.split())} words"
        case ToolCallPart(tool_name=name):
            return f"Calling {safe_line(name, 40)}…"
        case ToolResultPart(tool_name=name):
            return f"Running {safe_line(name, 40)}…"
        case _:
            return "" if shown.status not in ("pending", "running") else "Working…"
