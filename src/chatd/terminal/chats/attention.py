"""Decides when a person must hear of a chat that they do not look at. Pure."""

from typing import Final

from msgspec import Struct

from chatd.client.resources import Chat
from chatd.domain.ids import ChatId
from chatd.terminal.chats.signs import is_active, is_held, is_subagent, needs_person
from chatd.terminal.messages import Severity
from chatd.terminal.safe_text import safe_line

MAX_SEEN: Final = 2000
"""Chats whose last status is remembered."""
TITLE_CELLS: Final = 48
DETAIL_CELLS: Final = 80


class Alert(Struct, frozen=True, kw_only=True):
    """`text` is safe and one line."""

    chat_id: ChatId
    text: str
    severity: Severity


class Attention:
    """Remembers the last status of each chat, so that only changes count."""

    def __init__(self) -> None:
        self._seen: dict[ChatId, str] = {}

    def see(self, chat: Chat) -> Alert | None:
        """The chat as it is now; an alert if it has begun to need a person, or has ended. What is
        seen for the first time gives none: the list itself shows it."""
        before = self._seen.pop(chat.id, None)
        self._seen[chat.id] = chat.status
        while len(self._seen) > MAX_SEEN:
            del self._seen[next(iter(self._seen))]
        if before is None or before == chat.status or chat.is_owner is False:
            return None
        return _alert(chat, was_active=before in ("pending", "running", "requires_action"))


def _alert(chat: Chat, *, was_active: bool) -> Alert | None:
    name = f"«{safe_line(chat.title or 'New chat', TITLE_CELLS)}»"
    if needs_person(chat):
        who = f"A subagent, {name}," if is_subagent(chat) else name
        what = safe_line(chat.action_summary or "", DETAIL_CELLS)
        text = f"{who} needs you: {what}" if what else f"{who} needs you"
        return Alert(chat_id=chat.id, text=text, severity="warning")
    if not was_active or is_subagent(chat) or is_active(chat):
        return None
    if chat.status == "waiting":
        return Alert(chat_id=chat.id, text=f"{name} has finished", severity="information")
    if chat.status == "error" and not is_held(chat):
        why = safe_line(chat.last_error.message, DETAIL_CELLS) if chat.last_error else ""
        text = f"{name} failed: {why}" if why else f"{name} failed"
        return Alert(chat_id=chat.id, text=text, severity="error")
    return None
