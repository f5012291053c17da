"""The frame of a tool call: one line folded, its details unfolded; and the output of commands."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace
from rich.style import Style
from rich.text import Text

from chatd.domain.chat.states import PublicStatus
from chatd.terminal.safe_text import safe_text
from chatd.terminal.themes import Palette
from chatd.terminal.timeline.lines import (
    MAX_LINE_CHARS,
    TAB_SIZE,
    Lines,
    duration_text,
    elapsed_text,
    fold,
    headline,
    one_line,
    paragraph,
    prefixed,
    shown_line,
)
from chatd.terminal.timeline.message_rows import is_quiet
from chatd.terminal.timeline.tool_call import CallFacts, CallState

FOLDED: Final = "▸"
UNFOLDED: Final = "▾"
_SHORTEST_S: Final = 0.05
_BODY_INDENT: Final = 4
_OPEN_HINT: Final = "Enter opens the chat of this agent."

_GLYPHS: Final[Mapping[CallState, str]] = {
    "streaming": "●",
    "running": "●",
    "waiting": "◆",
    "background": "◐",
    "failed": "✗",
    "interrupted": "■",
    "done": "✓",
}
_GOING_WORDS: Final[Mapping[CallState, str]] = {
    "streaming": "writing",
    "running": "running",
    "waiting": "waits for you",
    "background": "in the background",
}


class ChildStep(Struct, frozen=True, kw_only=True):
    text: str
    is_going: bool = False


class ChildView(Struct, frozen=True, kw_only=True):
    """`status` is None until the child is loaded."""

    status: PublicStatus | None = None
    steps: tuple[ChildStep, ...] = ()
    gone: bool = False


class Canvas(Struct, frozen=True, kw_only=True):
    """What a card is drawn on. `now` is the time in seconds since the epoch, `children` what is
    known of subagents, by chat. Files are links to the server of `server_url`."""

    width: int
    palette: Palette
    now: float = 0.0
    children: Mapping[str, ChildView] = {}
    server_url: str = ""

    def narrower(self, by: int) -> "Canvas":
        return replace(self, width=max(self.width - by, 1))


Body = Callable[[Canvas], Lines]


class Card(Struct, frozen=True, kw_only=True):
    """`opens`: unfolded as long as the user has not said otherwise; None: if the call failed.
    `body` is called only if the card is unfolded; without one a failed call says why. `meta` takes
    the place of the time at the right, `place` stands before it. `child`: the chat that Enter
    opens. `children`: those whose state it shows."""

    verb: str
    subject: str = ""
    is_sentence: bool = False
    meta: str | None = None
    place: str = ""
    opens: bool | None = None
    body: Body | None = None
    foot: str = ""
    child: str = ""
    children: tuple[str, ...] = ()


def body_of(card: Card, facts: CallFacts) -> Body | None:
    if card.body is None and facts.state == "failed":
        return lambda canvas: failure_lines(facts.error, canvas)
    return card.body


def card_lines(card: Card, facts: CallFacts, canvas: Canvas, *, is_open: bool) -> Lines:
    palette, width = canvas.palette, canvas.width
    body_lines = body_of(card, facts)
    foot = _OPEN_HINT if card.child else card.foot
    fold_mark = (UNFOLDED if is_open else FOLDED) if body_lines or foot else " "
    left = Text.assemble(
        (f"{fold_mark} ", palette.faint), (f"{_GLYPHS[facts.state]} ", _tone(facts, palette))
    )
    left.append(
        one_line(card.verb, width), palette.muted if is_quiet(facts.call) else palette.strong
    )
    if card.subject:
        style = palette.plain if card.is_sentence else palette.code
        left.append(" ").append(one_line(card.subject, width), style)
    meta = time_text(facts, canvas.now) if card.meta is None else card.meta
    meta = one_line(" · ".join(one for one in (card.place, meta) if one), width)
    meta_style = palette.accent if facts.call.is_going else palette.muted
    meta_style = palette.danger if facts.state == "failed" else meta_style
    lines = [headline(left, Text(meta, meta_style), width)]
    if is_open and (body_lines or foot):
        inner = canvas.narrower(_BODY_INDENT)
        body = [] if body_lines is None else body_lines(inner)
        body += paragraph(foot, inner.width, palette.muted) if foot else []
        rule = palette.danger if facts.state == "failed" else palette.faint
        lines += prefixed(body, Text("  │ ", rule))
    return lines


def _tone(facts: CallFacts, palette: Palette) -> Style:
    match facts.state:
        case "failed":
            return palette.danger
        case "waiting":
            return palette.warn
        case "interrupted":
            return palette.muted
        case "done":
            return palette.ok
        case _:
            return palette.accent


def time_text(facts: CallFacts, now: float) -> str:
    """How long the call took, or takes."""
    if facts.call.is_going:
        word = _GOING_WORDS[facts.state]
        if facts.started_at is None or facts.state == "background":
            return word
        return f"{word} {elapsed_text(now - facts.started_at)}"
    took = facts.duration_s
    if took is None or took < _SHORTEST_S:
        return ""
    return f"after {duration_text(took)}" if facts.state == "interrupted" else duration_text(took)


def verb_of(facts: CallFacts, going: str, done: str, failed: str = "") -> str:
    """The word while it runs, when it is done, and when it failed."""
    if facts.call.call is not None and facts.call.call.cut:
        return "Cut off:"
    if facts.state == "interrupted":
        return f"Stopped {going[:1].lower()}{going[1:]}"
    if facts.state == "failed":
        return failed or f"{done}, failed"
    return going if facts.call.is_going and facts.state != "background" else done


def failure_lines(text: str, canvas: Canvas, then: str = "") -> Lines:
    """Why a call failed, and what it means."""
    lines = paragraph(text or "It gave no reason.", canvas.width, canvas.palette.danger)
    return lines + (paragraph(then, canvas.width, canvas.palette.muted) if then else [])


def output_body(text: str) -> Body | None:
    return (lambda canvas: output_lines(text, canvas)) if text else None


# Output of commands: colours become ours, everything else that a terminal obeys is dropped.

_MAX_LINES: Final = 200
_EDGE_LINES: Final = 80
_MAX_TAIL_CHARS: Final = 64_000
_MAX_FOLDS: Final = 8
"""How many lines of the screen one line of output may fill."""
_COLOUR: Final = re.compile("\x1b\\[([0-9;:]*)m")


def output_lines(text: str, canvas: Canvas, tail: int = 0) -> Lines:
    """The beginning and the end of a text; with `tail`, this many lines of its end."""
    width, palette = canvas.width, canvas.palette
    if tail:
        text = text[-_MAX_TAIL_CHARS:]
    rows = text.rstrip("\n").split("\n")
    head, end = (0, tail) if tail else (_EDGE_LINES, _EDGE_LINES)
    if len(rows) <= (tail or _MAX_LINES):
        return _coloured(rows, width, palette)
    hidden = len(rows) - head - end
    note = Text(f"… {hidden:,} lines are not shown …", palette.faint)
    first = _coloured(rows[:head], width, palette)
    return [*first, note, *_coloured(rows[-end:], width, palette)]


def _coloured(rows: list[str], width: int, palette: Palette) -> Lines:
    style = _OutputStyle(palette)
    lines: Lines = []
    for row in rows:
        pieces = fold(_one_row(_written_over(row), style), width)
        lines += pieces[:_MAX_FOLDS]
        if len(pieces) > _MAX_FOLDS:
            lines.append(Text("… the rest of this line is not shown …", palette.faint))
    return lines


def _written_over(row: str) -> str:
    """Apply carriage returns, which write over the line: a progress bar leaves its last state."""
    if "\r" not in row:
        return row
    return row.rstrip("\r").rpartition("\r")[2]


def _one_row(row: str, style: "_OutputStyle") -> Text:
    if "\x1b" not in row:
        return Text(shown_line(row), style=style.current)
    text = Text()
    start = 0
    row = row[: MAX_LINE_CHARS * 2]
    for found in _COLOUR.finditer(row):
        text.append(_safe(row[start : found.start()]), style.current)
        style.apply(found[1])
        start = found.end()
    text.append(_safe(row[start:]), style.current)
    return text


def _safe(piece: str) -> str:
    return safe_text(piece).expandtabs(TAB_SIZE).replace("\n", " ")


class _OutputStyle:
    def __init__(self, palette: Palette) -> None:
        self._plain, self._muted, info = palette.plain, palette.muted, palette.info
        hues = (None, palette.danger, palette.ok, palette.warn, info, palette.accent, info, None)
        self._hues: Sequence[Style | None] = hues
        self._hue: Style | None = None
        self._is_bold = self._is_dim = False

    @property
    def current(self) -> Style:
        style = self._hue or (self._muted if self._is_dim else self._plain)
        return style + Style(bold=True) if self._is_bold else style

    def apply(self, codes: str) -> None:
        numbers = [int(code) if code.isdecimal() else 0 for code in re.split("[;:]", codes[:200])]
        index = 0
        while index < len(numbers):
            code = numbers[index]
            if code in (38, 48):
                index += 2 if numbers[index + 1 : index + 2] == [5] else 4
            elif code == 39:
                self._hue = None
            elif code in (0, 22):
                self._hue = None if code == 0 else self._hue
                self._is_bold = self._is_dim = False
            elif code == 1:
                self._is_bold = True
            elif code == 2:
                self._is_dim = True
            elif 30 <= code <= 37 or 90 <= code <= 97:
                self._hue = self._hues[code % 10]
            index += 1
