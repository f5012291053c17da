"""The lines of the chat list: sections, chats and their subagents, and how they are drawn. Pure."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final, Literal, get_args

from msgspec import Struct
from rich.segment import Segment
from rich.style import Style

from chatd.client.resources import Chat, ListedChat
from chatd.domain.ids import ChatId
from chatd.terminal.chats.chat_directory import (
    TURNING,
    ListFilter,
    family_needs_person,
    is_active,
    is_held,
    is_subagent,
    is_unread,
    needs_person,
    sign_of,
)
from chatd.terminal.safe_text import cell_width, safe_line

SectionName = Literal[
    "Needs you", "Pinned", "Today", "Yesterday", "This week", "Older", "Shared with you", "Found"
]
_ORDER: Final[tuple[SectionName, ...]] = get_args(SectionName)


class SectionRow(Struct, frozen=True):
    """The heading of a section, or an empty line before it."""

    name: str


class ChatRow(Struct, frozen=True, kw_only=True):
    """`depth` is 0 for a root. `is_open` says whether its subagents are shown, None if it has none.
    `is_last`: no other subagent of the same chat follows."""

    chat: Chat
    depth: int = 0
    is_open: bool | None = None
    is_last: bool = False


class DetailRow(Struct, frozen=True):
    """What the chat above needs, or where the search found it."""

    chat_id: ChatId
    text: str


Row = SectionRow | ChatRow | DetailRow


def list_rows(
    chats: Iterable[ListedChat], filter_: ListFilter, folded: frozenset[ChatId], now: datetime
) -> Sequence[Row]:
    sections: dict[SectionName, list[ListedChat]] = defaultdict(list)
    for chat in chats:
        sections[_section_of(chat, filter_, now)].append(chat)
    rows: list[Row] = []
    for name in _ORDER:
        if found := sections.get(name):
            rows += [SectionRow("")] if rows else []
            rows.append(SectionRow(name))
            for chat in found:
                rows += _family(chat, folded)
    return rows


def _section_of(chat: ListedChat, filter_: ListFilter, now: datetime) -> SectionName:
    if filter_.query:
        return "Found"
    if family_needs_person(chat):
        return "Needs you"
    if chat.pin_order > 0:
        return "Pinned"
    if chat.is_owner is False:
        return "Shared with you"
    local = now.astimezone()
    days = (local.date() - chat.updated_at.astimezone(local.tzinfo).date()).days
    if days <= 0:
        return "Today"
    if days == 1:
        return "Yesterday"
    return "This week" if days < 7 else "Older"


def _family(root: ListedChat, folded: frozenset[ChatId]) -> Iterator[Row]:
    """The root and its subagents, which come as one flat list: one whose parent is not among them
    hangs on the root."""
    known = {child.id for child in root.children}
    by_parent: dict[ChatId, list[Chat]] = defaultdict(list)
    for child in root.children:
        parent = child.parent_chat_id
        by_parent[parent if parent in known and parent is not None else root.id].append(child)

    def walk(chat: Chat, depth: int, *, is_last: bool) -> Iterator[Row]:
        children = by_parent.pop(chat.id, [])
        is_open = chat.id not in folded
        yield ChatRow(
            chat=chat, depth=depth, is_open=is_open if children else None, is_last=is_last
        )
        if text := detail_of(chat):
            yield DetailRow(chat.id, text)
        if is_open:
            for child in children:
                yield from walk(child, depth + 1, is_last=child is children[-1])

    return walk(root, 0, is_last=True)


def detail_of(chat: Chat) -> str:
    """The second line of a chat; most have none."""
    if needs_person(chat):
        return chat.action_summary or "Needs your answer"
    if isinstance(chat, ListedChat):
        if any(map(needs_person, chat.children)):
            return "A subagent needs you"
        if chat.match is not None:
            return chat.match.text
    if chat.status == "error" and chat.last_error is not None:
        return "Stopped by you, queue held" if is_held(chat) else chat.last_error.message
    return ""


def age_text(at: datetime, now: datetime) -> str:
    """How long ago, in at most four characters."""
    passed = max(now - at, timedelta())
    minutes = int(passed.total_seconds() // 60)
    if minutes < 1:
        return "now"
    if minutes < 60:
        return f"{minutes}m"
    if minutes < 24 * 60:
        return f"{minutes // 60}h"
    days = minutes // (24 * 60)
    return f"{days}d" if days < 365 else f"{days // 365}y"


# A line of the chat list as pieces of styled text.

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
