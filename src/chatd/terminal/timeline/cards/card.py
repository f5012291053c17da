"""The frame of a tool call: one line folded, its details unfolded."""

from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace
from rich.style import Style
from rich.text import Text

from chatd.terminal.timeline.cards.child import ChildView
from chatd.terminal.timeline.duration import duration_text, elapsed_text
from chatd.terminal.timeline.lines import (
    Lines,
    headline,
    one_line,
    paragraph,
    prefixed,
)
from chatd.terminal.timeline.palette import Palette
from chatd.terminal.timeline.rows.row_list import is_quiet
from chatd.terminal.timeline.rows.tool_call import CallFacts, CallState

FOLDED: Final = "▸"
UNFOLDED: Final = "▾"
_SHORTEST_S: Final = 0.05
_BODY_INDENT: Final = 4

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


class Canvas(Struct, frozen=True, kw_only=True):
    """What a card is drawn on. `now` is the time in seconds since the epoch, `children` what is
    known of subagents, by chat."""

    width: int
    palette: Palette
    now: float = 0.0
    children: Mapping[str, ChildView] = {}

    def narrower(self, by: int) -> "Canvas":
        return replace(self, width=max(self.width - by, 1))


Body = Callable[[Canvas], Lines]


class Card(Struct, frozen=True, kw_only=True):
    """`opens`: unfolded as long as the user has not said otherwise. `body` is called only if the
    card is unfolded. `child`: the chat that Enter opens. `children`: those whose state it shows."""

    verb: str
    subject: str = ""
    is_sentence: bool = False
    meta: str | None = None
    opens: bool = False
    body: Body | None = None
    foot: str = ""
    child: str = ""
    children: tuple[str, ...] = ()


def card_lines(card: Card, facts: CallFacts, canvas: Canvas, *, is_open: bool) -> Lines:
    palette = canvas.palette
    has_body = card.body is not None or card.foot != ""
    left = Text()
    left.append(f"{(UNFOLDED if is_open else FOLDED) if has_body else ' '} ", palette.faint)
    left.append(f"{_GLYPHS[facts.state]} ", _tone(facts, palette))
    left.append(
        one_line(card.verb, canvas.width), palette.muted if is_quiet(facts.call) else palette.strong
    )
    if card.subject:
        left.append(" ")
        style = palette.plain if card.is_sentence else palette.code
        left.append(one_line(card.subject, canvas.width), style)
    meta = time_text(facts, canvas.now) if card.meta is None else card.meta
    meta = one_line(meta, canvas.width)
    lines = [headline(left, Text(meta, _meta_style(facts, palette)), canvas.width)]
    if is_open and has_body:
        inner = canvas.narrower(_BODY_INDENT)
        body = card.body(inner) if card.body is not None else []
        body += paragraph(card.foot, inner.width, palette.muted) if card.foot else []
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


def _meta_style(facts: CallFacts, palette: Palette) -> Style:
    if facts.state == "failed":
        return palette.danger
    return palette.accent if facts.call.is_going else palette.muted


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
    """While it goes on, when it is done, when it failed."""
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


def failure_body(facts: CallFacts, then: str = "") -> Body | None:
    """The body of a card that shows nothing else than why its call failed."""
    if facts.state != "failed":
        return None
    return lambda canvas: failure_lines(facts.error, canvas, then)
