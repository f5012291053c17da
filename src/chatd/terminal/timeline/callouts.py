"""What holds the chat up, how an answer ended, and facts about the chat itself."""

from collections.abc import Mapping
from typing import Final

from rich.style import Style
from rich.text import Text

from chatd.domain.chat.row import ChatError, RetryState
from chatd.terminal.timeline.cards.card import Canvas
from chatd.terminal.timeline.cards.file import file_name
from chatd.terminal.timeline.duration import counted, duration_text, elapsed_text
from chatd.terminal.timeline.lines import (
    MAX_FACT_CHARS,
    Lines,
    one_line,
    paragraph,
    prefixed,
    shown,
    wrap,
)
from chatd.terminal.timeline.markdown.blocks import markdown_lines
from chatd.terminal.timeline.rows.row import (
    Activity,
    CompactedMark,
    CompactionFailedMark,
    ContextMark,
    Mark,
    Note,
    NoticeMark,
    StoppedMark,
    TakeoverMark,
)

_PROVIDER: Final = "It is on the provider's side. Nothing is lost."
_OTHER: Final = ("The turn failed", "What was said is kept.")

_FAILURES: Final[Mapping[str, tuple[str, str]]] = {
    "rate_limit": ("The provider limits the rate", _PROVIDER),
    "overloaded": ("The provider is overloaded", _PROVIDER),
    "timeout": ("The provider did not answer in time", _PROVIDER),
    "stream_silence_timeout": ("The provider stopped sending", _PROVIDER),
    "provider_paused": ("The provider paused too often", _PROVIDER),
    "auth": ("The key was refused", "Set a new key, or choose a model with another one."),
    "missing_key": ("No key is set", "Add one, or choose another model."),
    "provider_disabled": ("The provider is switched off", "An administrator can switch it on."),
    "model_removed": ("The chat's model was removed", ""),
    "usage_limit": ("A limit is reached", ""),
    "config": ("The configuration does not fit", ""),
    "context_overflow": (
        "The chat is too long for the model",
        "Choose a model with a larger context.",
    ),
    "summary_failed": ("The chat is full, and its summary failed", ""),
    "output_limit": ("The output limit is too low", ""),
    "stream_content_timeout": ("The provider sent no answer", _PROVIDER),
    "answer_too_large": ("The answer was too large", "What had arrived is kept."),
    "content_filter": (
        "The provider's filter stopped the answer",
        "Change your message, or choose another model.",
    ),
    "refusal": (
        "The model declined to answer",
        "Change your message, or choose another model.",
    ),
    "crashed": ("The turn crashed", "It is on the server's side. What was said is kept."),
    "internal": ("Something is wrong in the server", "What was said is kept."),
    "unreadable_record": (
        "A stored message cannot be read",
        "An administrator finds more in the server's log.",
    ),
}
_RETRY_TITLES: Final[Mapping[str, str]] = {
    "rate_limit": "Rate limited by the provider",
    "overloaded": "The provider is overloaded",
    "timeout": "The provider did not answer in time",
    "stream_silence_timeout": "The provider stopped sending",
}
_NOTES: Final[Mapping[Note, str]] = {
    "length": "Cut at the output limit of the model.",
    "content-filter": "The provider's content filter stopped the answer.",
    "refusal": "The model declined to answer. Change the message, or choose another model.",
    "error": "The provider broke the answer off.",
}
_ACTIVITIES: Final[Mapping[Activity, tuple[str, str]]] = {
    "working": ("●", "Working"),
    "pending": ("○", "Waiting for a worker. It starts by itself."),
    "interrupting": ("■", "Stopping. What was said is kept."),
}


def failed_lines(error: ChatError, canvas: Canvas, *, is_open: bool) -> Lines:
    title, advice = _FAILURES.get(error.kind, _OTHER)
    details = (error.detail or "", f"HTTP {error.status_code}" if error.status_code else "")
    body = paragraph(f"{error.message} {advice}".strip(), canvas.width - 2, Style())
    if is_open:
        body += _details(details, canvas)
    hint = "r tries again · m switches the model"
    more = " · Enter folds the details" if is_open else " · Enter shows details"
    body += _hint(hint + (more if any(details) else ""), canvas)
    return _callout("✗", title, body, canvas, canvas.palette.danger)


def has_details(error: ChatError) -> bool:
    return bool(error.detail or error.status_code)


def retry_lines(retry: RetryState, canvas: Canvas, *, is_open: bool) -> Lines:
    title = _RETRY_TITLES.get(retry.kind, "The provider did not answer")
    if retry.retrying_at is not None:
        title += f", again in {elapsed_text(retry.retrying_at.timestamp() - canvas.now)}"
    text = f"Nothing is lost. Retry {retry.attempt} starts by itself."
    body = paragraph(text, canvas.width - 2, Style())
    if is_open:
        status = f"HTTP {retry.status_code}" if retry.status_code else ""
        body += _details((retry.error, retry.detail or "", status), canvas)
    more = "Enter folds the details" if is_open else "Enter shows details"
    body += _hint(f"m switches the model · {more}", canvas)
    return _callout("◷", title, body, canvas, canvas.palette.warn)


def held_lines(queued: int, canvas: Canvas) -> Lines:
    waits = "One message waits." if queued == 1 else f"{queued or 'No'} messages wait."
    text = f"You stopped the chat and held its queue. {waits}"
    body = paragraph(text, canvas.width - 2, Style())
    body += _hint("r goes on with the queue", canvas)
    return _callout("‖", "The queue is held", body, canvas, canvas.palette.warn)


def _callout(glyph: str, title: str, body: Lines, canvas: Canvas, tone: Style) -> Lines:
    head = wrap(Text(f"{glyph} {title}", tone + Style(bold=True)), canvas.width - 2)
    return prefixed([*head, *body], Text("┃ ", tone))


def _hint(text: str, canvas: Canvas) -> Lines:
    return wrap(Text(text, canvas.palette.muted), canvas.width - 2)


def _details(texts: tuple[str, ...], canvas: Canvas) -> Lines:
    return [
        line
        for text in texts
        if text
        for line in paragraph(text, canvas.width - 2, canvas.palette.muted)
    ]


def note_lines(note: Note, canvas: Canvas, *, can_continue: bool) -> Lines:
    text = Text(f"✂ {_NOTES[note]}", canvas.palette.warn)
    if can_continue and note in ("length", "error"):
        text.append("  r continues", canvas.palette.muted)
    return wrap(text, canvas.width)


def activity_lines(activity: Activity, canvas: Canvas) -> Lines:
    glyph, text = _ACTIVITIES[activity]
    style = canvas.palette.accent if activity == "working" else canvas.palette.muted
    return wrap(Text.assemble((f"{glyph} ", style), (text, canvas.palette.muted)), canvas.width)


def mark_lines(mark: Mark, canvas: Canvas, *, is_open: bool) -> Lines:
    palette = canvas.palette
    match mark:
        case CompactedMark():
            return _compacted_lines(mark, canvas, is_open=is_open)
        case CompactionFailedMark(reason=reason):
            return _mark("✗", palette.danger, "Context not compacted.", reason, canvas)
        case TakeoverMark(takeover=takeover):
            title = f"Worker {takeover.lost_worker.name} died; {takeover.worker.name} took over"
            after = takeover.after_ms
            took = "." if after is None else f" after {duration_text(after / 1000)}."
            return _mark("↻", palette.ok, f"{title}{took}", "No tool ran twice.", canvas)
        case StoppedMark():
            return _mark("■", palette.muted, "Stopped by you.", "What was said is kept.", canvas)
        case NoticeMark(text=text, can_continue=can_continue):
            hint = "r continues" if can_continue else ""
            return _mark("·", palette.muted, shown(text, MAX_FACT_CHARS), hint, canvas)
        case ContextMark(files=files, skills=skills):
            names = [*dict.fromkeys(one_line(file_name(path), 60) for path in files[:20])]
            names += [counted(len(skills), "skill")] if skills else []
            text = ", ".join(names)
            return _mark("≡", palette.muted, "Read for this chat:", text, canvas) if text else []


def _compacted_lines(mark: CompactedMark, canvas: Canvas, *, is_open: bool) -> Lines:
    palette = canvas.palette
    if mark.is_live:
        return _mark("●", palette.accent, "Compacting the context", "", canvas)
    size = "" if mark.tokens is None else f"from {_thousands(mark.tokens)} tokens"
    kept = "" if mark.kept == 0 else f"{mark.kept} kept word for word"
    size = ", ".join(one for one in (size, kept) if one)
    hint = "Enter hides the summary" if is_open else "Enter shows the summary"
    text = ". ".join(one for one in (size, hint if mark.summary else "") if one)
    lines = _mark("⇊", palette.muted, "Context compacted", text, canvas)
    if is_open and mark.summary:
        summary = markdown_lines(mark.summary, canvas.width - 4, palette)
        lines += prefixed(summary, Text("  │ ", palette.faint))
    return lines


def _mark(glyph: str, tone: Style, title: str, text: str, canvas: Canvas) -> Lines:
    line = Text.assemble((f"{glyph} ", tone), (title, canvas.palette.muted + Style(bold=True)))
    if text:
        line.append(f" {shown(text, MAX_FACT_CHARS)}", canvas.palette.muted)
    return wrap(line, canvas.width)


def _thousands(count: int) -> str:
    return f"{round(count / 1000)}k" if count >= 1000 else str(count)
