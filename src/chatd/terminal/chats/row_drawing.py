"""A line of the chat list as pieces of styled text."""

from collections.abc import Callable
from datetime import datetime

from rich.segment import Segment
from rich.style import Style

from chatd.terminal.chats.rows import ChatRow, DetailRow, Row, SectionRow, age_text
from chatd.terminal.chats.signs import TURNING, is_active, is_subagent, is_unread, sign_of
from chatd.terminal.safe_text import cell_width, safe_line

StyleOf = Callable[[str], Style]


def draw_row(
    row: Row, width: int, style_of: StyleOf, *, now: datetime, turn: int, mark: str = ""
) -> list[Segment]:
    """`turn` counts the pictures of the sign of a working chat. `mark` stands before the open chat
    and before the one under the cursor: a colour alone would not be enough."""
    match row:
        case SectionRow():
            return [Segment(f" {row.name}", style_of("section"))]
        case DetailRow():
            return [Segment(f"   {safe_line(row.text, width - 4)}", style_of("detail"))]
        case ChatRow():
            lead, *rest = _draw_chat(row, width, style_of, now=now, turn=turn)
            return [Segment(mark + lead.text[len(mark) :], lead.style), *rest]


def _draw_chat(
    row: ChatRow, width: int, style_of: StyleOf, *, now: datetime, turn: int
) -> list[Segment]:
    chat, sign = row.chat, sign_of(row.chat)
    mark = TURNING[turn % len(TURNING)] if chat.status == "running" else sign.sign
    lead = _lead(row)
    has_age = not is_subagent(chat) and not is_active(chat)
    end = age_text(chat.updated_at, now) if has_age else ""
    room = max(width - len(lead) - len(end) - 4, 0)
    title = safe_line(chat.title or "New chat", room)
    gap = " " * (room - cell_width(title))
    return [
        Segment(lead, style_of("detail")),
        Segment(f"{mark} ", style_of(sign.tone)),
        Segment(title, style_of("unread" if is_unread(chat) else "title")),
        Segment(f"{gap} {end} ", style_of("detail")),
    ]


def _lead(row: ChatRow) -> str:
    """What stands before the sign: branches of the tree, and whether more is hidden."""
    if row.depth == 0:
        return "▸" if row.is_open is False else " "
    branch = "└" if row.is_last else "├"
    fold = "▸" if row.is_open is False else " "
    return "  " * (row.depth - 1) + f" {branch}{fold}"
