"""The lines of one row, at one width. Pure."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace
from rich.style import Style
from rich.text import Text

from chatd.client.exchange import file_url
from chatd.domain.chat.parts import FilePart, FileReferencePart
from chatd.domain.chat.row import ChatError, RetryState
from chatd.terminal.timeline.card import FOLDED, UNFOLDED, Canvas, body_of, card_lines
from chatd.terminal.timeline.file_cards import file_name, reads_card
from chatd.terminal.timeline.lines import (
    MAX_CHARS,
    MAX_FACT_CHARS,
    Lines,
    counted,
    cut,
    duration_text,
    elapsed_text,
    headline,
    one_line,
    padded,
    paragraph,
    prefixed,
    shown,
    wrap,
)
from chatd.terminal.timeline.markdown_lines import markdown_lines
from chatd.terminal.timeline.row import (
    Activity,
    ActivityRow,
    CompactedMark,
    CompactionFailedMark,
    ContextMark,
    FailedRow,
    FilesRow,
    HeldRow,
    Mark,
    MarkRow,
    Note,
    NoteRow,
    NoticeMark,
    OlderRow,
    PendingNote,
    ProseRow,
    ReadsRow,
    ReasoningRow,
    RetryRow,
    Row,
    SourcesRow,
    StoppedMark,
    TakeoverMark,
    ToolRow,
    UserRow,
    WaitsRow,
)
from chatd.terminal.timeline.tool_call import read_call
from chatd.terminal.timeline.tool_cards import card_of, web_lines

# What holds the chat up, how an answer ended, and facts about the chat itself.

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


def waits_lines(text: str, canvas: Canvas) -> Lines:
    body = paragraph(f"{text} It goes on by itself.", canvas.width - 2, Style())
    return _callout("◷", "The chat waits for a machine", body, canvas, canvas.palette.warn)


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


_REFERENCE_LINES: Final = 6
_MAX_FILES: Final = 20
_THOUGHT_LINES: Final = 12
_THOUGHT_CHARS: Final = 2000
"""How much of the end of a thought in progress is shown."""


class DrawnRow(Struct, frozen=True, kw_only=True):
    """`ticks`: it shows a running time. `child`: the chat that Enter opens. `children`: the
    subagents whose state it shows."""

    lines: Lines
    can_fold: bool = False
    is_open: bool = False
    ticks: bool = False
    child: str = ""
    children: tuple[str, ...] = ()


def draw_row(row: Row, canvas: Canvas, *, is_open: bool | None = None) -> DrawnRow:
    """`is_open` is what the user chose; None: nothing."""
    drawn = _draw(row, canvas, is_open=is_open)
    # Indents leave no space in a very narrow terminal.
    return replace(drawn, lines=[cut(line, canvas.width) for line in drawn.lines])


def _draw(row: Row, canvas: Canvas, *, is_open: bool | None) -> DrawnRow:
    match row:
        case ToolRow() | ReadsRow():
            return _draw_call(row, canvas, is_open=is_open)
        case ReasoningRow():
            return _draw_reasoning(row, canvas, is_open=is_open)
        case UserRow():
            return DrawnRow(lines=_user_lines(row, canvas))
        case ProseRow(text=text):
            return DrawnRow(lines=markdown_lines(text, canvas.width, canvas.palette))
        case SourcesRow():
            return _draw_sources(row, canvas, is_open=is_open or False)
        case FilesRow(files=files):
            return DrawnRow(lines=_file_lines(files, canvas))
        case _:
            return _draw_fact(row, canvas, is_open=is_open or False)


def _draw_fact(row: Row, canvas: Canvas, *, is_open: bool) -> DrawnRow:
    match row:
        case MarkRow(mark=mark):
            lines = mark_lines(mark, canvas, is_open=is_open)
            can_fold = isinstance(mark, CompactedMark) and mark.summary != ""
            return DrawnRow(lines=lines, can_fold=can_fold, is_open=is_open)
        case FailedRow(error=error):
            lines = failed_lines(error, canvas, is_open=is_open)
            can_fold = has_details(error)
            return DrawnRow(lines=lines, can_fold=can_fold, is_open=is_open)
        case RetryRow(retry=retry):
            lines = retry_lines(retry, canvas, is_open=is_open)
            return DrawnRow(lines=lines, can_fold=True, is_open=is_open, ticks=True)
        case WaitsRow(text=text):
            return DrawnRow(lines=waits_lines(text, canvas))
        case HeldRow(queued=queued):
            return DrawnRow(lines=held_lines(queued, canvas))
        case NoteRow(note=note, can_continue=can_continue):
            return DrawnRow(lines=note_lines(note, canvas, can_continue=can_continue))
        case ActivityRow(activity=activity):
            return DrawnRow(lines=activity_lines(activity, canvas))
        case OlderRow(problem=problem):
            text = f"{problem} Enter tries again." if problem else "Loading older messages"
            style = canvas.palette.danger if problem else canvas.palette.faint
            return DrawnRow(lines=paragraph(text, canvas.width, style))
        case _:
            raise TypeError(type(row))


def _draw_call(row: ToolRow | ReadsRow, canvas: Canvas, *, is_open: bool | None) -> DrawnRow:
    if isinstance(row, ReadsRow):
        reads = [read_call(call) for call in row.calls]
        facts, card = reads[0], reads_card(reads)
    else:
        facts = read_call(row.call)
        card = card_of(facts, canvas, is_last=row.is_last)
    can_fold = bool(body_of(card, facts) or card.foot or card.child)
    opens = facts.state == "failed" if card.opens is None else card.opens
    unfolded = can_fold and (opens if is_open is None else is_open)
    return DrawnRow(
        lines=card_lines(card, facts, canvas, is_open=unfolded),
        can_fold=can_fold,
        is_open=unfolded,
        ticks=facts.state in ("running", "streaming", "waiting"),
        child=card.child,
        children=card.children,
    )


def _draw_reasoning(row: ReasoningRow, canvas: Canvas, *, is_open: bool | None) -> DrawnRow:
    palette = canvas.palette
    unfolded = row.text != "" and (row.is_live if is_open is None else is_open)
    took = "" if row.duration_s is None else duration_text(row.duration_s)
    if row.is_live and row.started_at is not None:
        took = elapsed_text(canvas.now - row.started_at)
    title = one_line(row.title) or ("Thinking" if row.is_live else "Thought")
    left = Text(f"{UNFOLDED if unfolded else FOLDED} ", palette.faint)
    left.append(f"✦ {title}", palette.muted + Style(italic=True))
    lines = [headline(left, Text(took, palette.muted), canvas.width)]
    if unfolded:
        text = _last_part(row.text) if row.is_live else row.text
        body = markdown_lines(text, canvas.width - 4, palette)
        body = body[-_THOUGHT_LINES:] if row.is_live else body
        for line in body:
            line.stylize_before(palette.muted)
        lines += prefixed(body, Text("  │ ", palette.faint))
    return DrawnRow(lines=lines, can_fold=row.text != "", is_open=unfolded, ticks=row.is_live)


def _last_part(text: str) -> str:
    """The end of a thought in progress, from the beginning of a line. It is parsed with each word,
    so it must be short."""
    if len(text) <= _THOUGHT_CHARS:
        return text
    end = text[-_THOUGHT_CHARS:]
    return end.partition("\n")[2] or end


def _draw_sources(row: SourcesRow, canvas: Canvas, *, is_open: bool) -> DrawnRow:
    palette = canvas.palette
    mark = UNFOLDED if is_open else FOLDED
    head = Text.assemble(
        (f"{mark} ", palette.faint), (counted(len(row.sources), "source"), palette.muted)
    )
    lines = [head]
    if is_open:
        inner = canvas.narrower(4)
        pages = [web_lines(source.title or "", source.url, inner) for source in row.sources]
        lines += prefixed([line for page in pages for line in page], Text("  │ ", palette.faint))
    return DrawnRow(lines=lines, can_fold=True, is_open=is_open)


def _user_lines(row: UserRow, canvas: Canvas) -> Lines:
    palette, inner = canvas.palette, canvas.narrower(3)
    body = paragraph(row.text, inner.width, palette.plain, MAX_CHARS) if row.text else []
    for reference in row.references[:_MAX_FILES]:
        body += _reference_lines(reference, inner)
    body += _file_lines(row.files, inner)
    bar = Text("▌ ", palette.user_bar)
    lines = [padded(line, canvas.width, palette.user) for line in prefixed(body, bar)]
    if row.is_steering:
        lines.append(Text("  ↳ Steered the running turn", palette.muted))
    if row.pending is not None:
        lines += _pending_lines(row.pending, canvas)
    return lines


def _pending_lines(pending: PendingNote, canvas: Canvas) -> Lines:
    palette = canvas.palette
    if pending.refusal:
        lines = paragraph(f"✗ Not sent: {pending.refusal}", canvas.width - 2, palette.danger)
        lines.append(Text("r sends it again · x discards it", palette.muted))
    elif pending.is_kept:
        text = "Kept here. It is sent when the server answers. x discards it"
        lines = paragraph(text, canvas.width - 2, palette.warn)
    else:
        lines = [Text("Sending", palette.muted)]
    return prefixed(lines, Text("  "))


def _reference_lines(reference: FileReferencePart, canvas: Canvas) -> Lines:
    place = f"{one_line(reference.file_name)}:{reference.start_line}-{reference.end_line}"
    lines = [cut(Text(place, canvas.palette.code), canvas.width)]
    quoted = paragraph(reference.content[:4000], canvas.width - 2, canvas.palette.muted)
    return lines + prefixed(quoted[:_REFERENCE_LINES], Text("│ ", canvas.palette.faint))


_FILE_ID: Final = re.compile(r"[0-9a-f-]{36}")


def _file_lines(files: Sequence[FilePart], canvas: Canvas) -> Lines:
    lines: Lines = []
    for file in files[:_MAX_FILES]:
        style = canvas.palette.code
        if canvas.server_url and file.file_id and _FILE_ID.fullmatch(file.file_id):
            # The browser that it opens in is signed in, or asks for it.
            style += Style(link=file_url(canvas.server_url, file.file_id))
        name = Text(f"▤ {one_line(file.name or 'file')}", style)
        kind = Text(f"  {one_line(file.media_type, 60)}", canvas.palette.muted)
        lines.append(cut(Text.assemble(name, kind), canvas.width))
    if len(files) > _MAX_FILES:
        rest = counted(len(files) - _MAX_FILES, "more file")
        lines.append(Text(rest, canvas.palette.muted))
    return lines
