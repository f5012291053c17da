"""What a subagent does, as the card of its parent shows it."""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct
from rich.style import Style
from rich.text import Text

from chatd.client.state import ShownChat
from chatd.domain.chat.states import PublicStatus
from chatd.terminal.safe_text import safe_line
from chatd.terminal.timeline.lines import Lines, cut, paragraph
from chatd.terminal.timeline.palette import Palette
from chatd.terminal.timeline.rows.brief import brief_of
from chatd.terminal.timeline.rows.row_model import RowModel

_SHOWN_STEPS: Final = 3
_LAST_ROWS: Final = 12
_MAX_STEP: Final = 120

_STATUS_WORDS: Final[dict[str, str]] = {
    "waiting": "done",
    "pending": "starts",
    "running": "works",
    "interrupting": "stops",
    "requires_action": "needs you",
    "error": "failed",
    "archived": "archived",
}


class ChildStep(Struct, frozen=True, kw_only=True):
    text: str
    is_going: bool = False


class ChildView(Struct, frozen=True, kw_only=True):
    """`status` is None until the child is loaded."""

    status: PublicStatus | None = None
    steps: tuple[ChildStep, ...] = ()
    gone: bool = False


def child_view(chat: ShownChat, model: RowModel, *, gone: bool = False) -> ChildView:
    if gone or not chat.is_loaded:
        return ChildView(gone=gone)
    briefs = [brief for row in model.rows(chat)[-_LAST_ROWS:] if (brief := brief_of(row))]
    steps = tuple(
        ChildStep(text=safe_line(text, _MAX_STEP), is_going=is_going)
        for text, is_going in briefs[-_SHOWN_STEPS:]
    )
    return ChildView(status=chat.status, steps=steps)


def status_text(view: ChildView | None) -> str:
    if view is None:
        return ""
    if view.gone:
        return "deleted"
    return "" if view.status is None else _STATUS_WORDS.get(view.status, view.status)


def status_glyph(view: ChildView | None, palette: Palette) -> tuple[str, Style]:
    match None if view is None else view.status:
        case "running" | "pending" | "interrupting":
            return "●", palette.accent
        case "requires_action":
            return "◆", palette.warn
        case "error":
            return "✗", palette.danger
        case "waiting":
            return "✓", palette.ok
        case _:
            return "○", palette.faint


def step_lines(view: ChildView | None, prompt: str, width: int, palette: Palette) -> Lines:
    """The last steps of the child, as the end of a tree; its task before there are any."""
    steps: Sequence[ChildStep] = () if view is None else view.steps
    if not steps:
        return paragraph(prompt, width, palette.muted)[:6] if prompt else []
    lines: Lines = []
    for number, step in enumerate(steps, 1):
        branch = "└ " if number == len(steps) else "├ "
        glyph = ("● ", palette.accent) if step.is_going else ("✓ ", palette.ok)
        line = Text.assemble((branch, palette.faint), glyph, (step.text, palette.muted))
        lines.append(cut(line, width))
    return lines
