"""Which chats the list has, how they are read, and which of them need a person."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from chatd.client.resources import Chat, ListedChat
from chatd.domain.ids import ChatId
from chatd.terminal.messages import Severity
from chatd.terminal.safe_text import safe_line

# How the status of a chat is shown: a sign, a word and a colour, never one of them alone.


class StatusSign(Struct, frozen=True):
    """`tone` is the name of a colour of the theme."""

    sign: str
    word: str
    tone: str


SIGNS: Final[Mapping[str, StatusSign]] = {
    "waiting": StatusSign("○", "Waiting for you", "text-muted"),
    "pending": StatusSign("◌", "Waiting for a worker", "text-muted"),
    "running": StatusSign("◐", "Working", "text-accent"),
    "interrupting": StatusSign("◼", "Stopping", "text-muted"),
    "requires_action": StatusSign("◆", "Needs you", "text-warning"),
    "error": StatusSign("✗", "Failed", "text-error"),
    "done": StatusSign("✓", "Done", "text-success"),
    "stopped": StatusSign("■", "Stopped, queue held", "text-muted"),
    "archived": StatusSign("▪", "Archived", "text-muted"),
}
UNREAD: Final = StatusSign("●", "New answer", "text-accent")
TURNING: Final = "◐◓◑◒"
"""The sign of a working chat, in turn."""


def is_subagent(chat: Chat) -> bool:
    return chat.parent_chat_id is not None


def sign_of(chat: Chat) -> StatusSign:
    """A subagent that waits has done its work; a held queue is no failure."""
    if chat.status == "waiting" and is_subagent(chat):
        return SIGNS["done"]
    if chat.plan_ready:
        return SIGNS["requires_action"]
    if chat.status == "waiting" and is_unread(chat):
        return UNREAD
    if chat.status == "error" and is_held(chat):
        return SIGNS["stopped"]
    return SIGNS.get(chat.status, SIGNS["waiting"])


def is_held(chat: Chat) -> bool:
    """A person stopped the turn and holds the queue."""
    return chat.last_error is not None and chat.last_error.kind == "queue_held"


def is_unread(chat: Chat) -> bool:
    """Whether it has an answer for you. What a subagent says is for its parent."""
    return bool(chat.has_unread) and not is_subagent(chat)


def needs_person(chat: Chat) -> bool:
    return chat.status == "requires_action" or chat.plan_ready


def is_active(chat: Chat) -> bool:
    return chat.status in ("pending", "running", "interrupting")


# The chats of the list, kept current by the events of the topic `chats`. No requests are made
# here: `chat_list` reads the pages.

MAX_DELETED: Final = 500
"""How many ids of deleted chats are kept: a page read before the deletion may still have them."""
MAX_CHANGED: Final = 500
"""How many chats that change while pages are read are kept: the pages may have older states."""

View = Literal["active", "shared", "archived"]


class ListFilter(Struct, frozen=True, kw_only=True):
    """`query` is a search in the words of `GET /chats?q=`."""

    view: View = "active"
    query: str = ""

    def accepts(self, chat: Chat) -> bool:
        """Whether a chat that changed belongs to the list. A search keeps what it has found."""
        if self.query:
            return False
        if chat.archived != (self.view == "archived"):
            return False
        return self.view != "shared" or chat.is_owner is False


class ChatDirectory:
    """Root chats with their subagents. `next_cursor` is None when all of them are here."""

    def __init__(self, filter_: ListFilter | None = None) -> None:
        self.filter = filter_ or ListFilter()
        self.next_cursor: str | None = None
        self.is_loaded = False
        self._roots: dict[ChatId, ListedChat] = {}
        self._deleted: dict[ChatId, None] = {}
        self._changed: dict[ChatId, Chat] = {}

    def __len__(self) -> int:
        return len(self._roots)

    @property
    def is_empty(self) -> bool:
        """Whether the person is known to have no chat at all."""
        is_whole = self.is_loaded and self.filter == ListFilter()
        return is_whole and not self._roots

    def find(self, chat_id: ChatId) -> Chat | None:
        if (root := self._roots.get(chat_id)) is not None:
            return root
        children = (child for root in self._roots.values() for child in root.children)
        return next((child for child in children if child.id == chat_id), None)

    def family(self, root_id: ChatId) -> tuple[Chat, ...]:
        """A root chat and its subagents; nothing if it is not here."""
        root = self._roots.get(root_id)
        return () if root is None else (root, *root.children)

    def chats(self) -> Sequence[ListedChat]:
        """Pinned ones first, then the newest; search results in the server's order."""
        found = tuple(self._roots.values())
        return found if self.filter.query else sorted(found, key=_place)

    def count_needing(self) -> int:
        """Chats that wait for a person, with those whose subagent does."""
        return sum(1 for chat in self._roots.values() if family_needs_person(chat))

    def next_pin_order(self) -> int:
        """The place after the pinned chats."""
        return 1 + max((chat.pin_order for chat in self._roots.values()), default=0)

    def begin_reading(self) -> None:
        """A page is being requested: it has what changed before, and may lack what changes next."""
        self._changed.clear()

    def replace_with(self, chats: Iterable[ListedChat], next_cursor: str | None) -> None:
        """Replace everything with what was read from the beginning."""
        before, self._roots = self._roots, {}
        self._add(chats, next_cursor, before)

    def add_page(self, chats: Iterable[ListedChat], next_cursor: str | None) -> None:
        self._add(chats, next_cursor, self._roots)

    def _add(
        self,
        chats: Iterable[ListedChat],
        next_cursor: str | None,
        known: Mapping[ChatId, ListedChat],
    ) -> None:
        """Apply again what changed while the chats were read, roots before their subagents."""
        for chat in chats:
            if chat.id not in self._deleted:
                kept = tuple(child for child in chat.children if child.id not in self._deleted)
                self._roots[chat.id] = replace(_newer(known.get(chat.id), chat), children=kept)
        self.next_cursor, self.is_loaded = next_cursor, True
        for chat in sorted(self._changed.values(), key=lambda one: one.parent_chat_id is not None):
            self.put(chat)

    def remove(self, chat_id: ChatId) -> None:
        """The chat was deleted, or is no longer shared."""
        self._roots.pop(chat_id, None)
        self._forget(chat_id)

    def _forget(self, chat_id: ChatId) -> None:
        self._changed.pop(chat_id, None)
        self._deleted[chat_id] = None
        while len(self._deleted) > MAX_DELETED:
            del self._deleted[next(iter(self._deleted))]

    def allow(self, chat_id: ChatId) -> None:
        """The chat is shared again."""
        self._deleted.pop(chat_id, None)

    def put(self, chat: Chat) -> None:
        """Take in a chat as it is now, from an event or the reply to an action."""
        if chat.parent_chat_id is not None:
            self._put_child(chat)
        else:
            self._put_root(chat)
        before = self._changed.get(chat.id)
        if before is None or before.version <= chat.version:
            self._changed[chat.id] = self._roots.get(chat.id, chat)
        while len(self._changed) > MAX_CHANGED:
            del self._changed[next(iter(self._changed))]

    def _put_root(self, chat: Chat) -> None:
        known = self._roots.get(chat.id)
        if known is not None and known.version > chat.version:
            return
        if self.filter.query and known is not None:
            self._roots[chat.id] = _merged(known, chat)
        elif not self.filter.accepts(chat):
            self._roots.pop(chat.id, None)
        elif known is not None or self._is_within(chat):
            self.allow(chat.id)
            self._roots[chat.id] = _merged(known, chat)

    def _put_child(self, chat: Chat) -> None:
        root = self._root_of(chat)
        if root is None:
            return
        known = next((child for child in root.children if child.id == chat.id), None)
        if known is not None and known.version > chat.version:
            return
        others = [child for child in root.children if child.id != chat.id]
        children = sorted((*others, chat), key=_age)
        self._roots[root.id] = replace(root, children=tuple(children))

    def remove_child(self, chat: Chat) -> None:
        if (root := self._root_of(chat)) is not None:
            kept = tuple(child for child in root.children if child.id != chat.id)
            self._roots[root.id] = replace(root, children=kept)
        self._forget(chat.id)

    def _root_of(self, child: Chat) -> ListedChat | None:
        return None if child.root_chat_id is None else self._roots.get(child.root_chat_id)

    def _is_within(self, chat: Chat) -> bool:
        """Whether a chat that is not here belongs before the end of what was read."""
        if self.next_cursor is None or needs_person(chat):
            return True
        return not self._roots or _place(chat) < max(map(_place, self._roots.values()))


def family_needs_person(chat: ListedChat) -> bool:
    return needs_person(chat) or any(map(needs_person, chat.children))


def _place(chat: Chat) -> tuple[float, float, str]:
    return (chat.pin_order or float("inf"), -chat.updated_at.timestamp(), str(chat.id))


def _age(chat: Chat) -> tuple[float, str]:
    return (chat.created_at.timestamp(), str(chat.id))


def _newer(known: ListedChat | None, chat: ListedChat) -> ListedChat:
    return known if known is not None and known.version > chat.version else chat


def _merged(known: ListedChat | None, chat: Chat) -> ListedChat:
    """An event has neither subagents nor the hit of a search; a reply to an action does not say
    what is unread and whose the chat is."""
    fields = {name: getattr(chat, name) for name in Chat.__struct_fields__}
    if known is None:
        return replace(ListedChat(id=chat.id), **fields)
    for name in ("has_unread", "is_owner", "owner_username", "shared"):
        if fields[name] is None:
            fields[name] = getattr(known, name)
    return replace(known, **fields)


# Decides when a person must hear of a chat that they do not look at. Pure.

MAX_SEEN: Final = 2000
"""How many chats' last statuses are remembered."""
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
        """Take in the chat as it is now; returns an alert if it has begun to need a person, or has
        ended. A chat seen for the first time gives none: the list itself shows it."""
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
