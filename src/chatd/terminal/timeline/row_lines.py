"""The lines of one row, at one width. Pure."""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace
from rich.style import Style
from rich.text import Text

from chatd.domain.chat.parts import FilePart, FileReferencePart
from chatd.terminal.timeline import callouts
from chatd.terminal.timeline.cards.card import FOLDED, UNFOLDED, Canvas, card_lines
from chatd.terminal.timeline.cards.file import reads_card
from chatd.terminal.timeline.cards.other import web_lines
from chatd.terminal.timeline.cards.registry import card_of
from chatd.terminal.timeline.duration import counted, duration_text, elapsed_text
from chatd.terminal.timeline.lines import (
    MAX_CHARS,
    Lines,
    cut,
    headline,
    one_line,
    padded,
    paragraph,
    prefixed,
)
from chatd.terminal.timeline.markdown.blocks import markdown_lines
from chatd.terminal.timeline.rows.row import (
    ActivityRow,
    CompactedMark,
    FailedRow,
    FilesRow,
    HeldRow,
    MarkRow,
    NoteRow,
    OlderRow,
    PendingNote,
    ProseRow,
    ReadsRow,
    ReasoningRow,
    RetryRow,
    Row,
    SourcesRow,
    ToolRow,
    UserRow,
)
from chatd.terminal.timeline.rows.tool_call import read_call

_REFERENCE_LINES: Final = 6
_MAX_FILES: Final = 20
_THOUGHT_LINES: Final = 12
_THOUGHT_CHARS: Final = 2000
"""Of a thought that goes on, so much of its end is shown."""


class DrawnRow(Struct, frozen=True, kw_only=True):
    """`ticks`: it shows a time that goes on. `child`: the chat that Enter opens. `children`: the
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
            lines = callouts.mark_lines(mark, canvas, is_open=is_open)
            can_fold = isinstance(mark, CompactedMark) and mark.summary != ""
            return DrawnRow(lines=lines, can_fold=can_fold, is_open=is_open)
        case FailedRow(error=error):
            lines = callouts.failed_lines(error, canvas, is_open=is_open)
            can_fold = callouts.has_details(error)
            return DrawnRow(lines=lines, can_fold=can_fold, is_open=is_open)
        case RetryRow(retry=retry):
            lines = callouts.retry_lines(retry, canvas, is_open=is_open)
            return DrawnRow(lines=lines, can_fold=True, is_open=is_open, ticks=True)
        case HeldRow(queued=queued):
            return DrawnRow(lines=callouts.held_lines(queued, canvas))
        case NoteRow(note=note, can_continue=can_continue):
            return DrawnRow(lines=callouts.note_lines(note, canvas, can_continue=can_continue))
        case ActivityRow(activity=activity):
            return DrawnRow(lines=callouts.activity_lines(activity, canvas))
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
    can_fold = card.body is not None or card.foot != ""
    unfolded = can_fold and (card.opens if is_open is None else is_open)
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
    """The end of a thought that goes on, from the beginning of a line. It is read with each word,
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


def _file_lines(files: Sequence[FilePart], canvas: Canvas) -> Lines:
    lines: Lines = []
    for file in files[:_MAX_FILES]:
        name = Text(f"▤ {one_line(file.name or 'file')}", canvas.palette.code)
        kind = Text(f"  {one_line(file.media_type, 60)}", canvas.palette.muted)
        lines.append(cut(Text.assemble(name, kind), canvas.width))
    if len(files) > _MAX_FILES:
        rest = counted(len(files) - _MAX_FILES, "more file")
        lines.append(Text(rest, canvas.palette.muted))
    return lines
