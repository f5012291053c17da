"""The lines of the chat list: sections, chats and their subagents. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final, Literal

from msgspec import Struct

from chatd.client.resources import Chat, ListedChat
from chatd.domain.ids import ChatId
from chatd.terminal.chats.directory import ListFilter, family_needs_person
from chatd.terminal.chats.signs import is_held, needs_person

SectionName = Literal[
    "Needs you", "Pinned", "Today", "Yesterday", "This week", "Older", "Shared with you", "Found"
]
_ORDER: Final[tuple[SectionName, ...]] = (
    "Needs you",
    "Pinned",
    "Today",
    "Yesterday",
    "This week",
    "Older",
    "Shared with you",
    "Found",
)


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
