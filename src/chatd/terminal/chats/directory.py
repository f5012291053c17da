"""The chats of the list, kept current by the events of the topic `chats`. No requests are made
here: `chat_list` reads the pages."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from chatd.client.resources import Chat, ListedChat
from chatd.domain.ids import ChatId
from chatd.terminal.chats.signs import needs_person

MAX_DELETED: Final = 500
"""Ids of deleted chats, which a page that was read before may still have."""
MAX_CHANGED: Final = 500
"""Chats that changed while pages are read, which the pages may have as they were before."""

View = Literal["active", "shared", "archived"]


class ListFilter(Struct, frozen=True, kw_only=True):
    """`query` is a search in the words of `GET /chats?q=`."""

    view: View = "active"
    query: str = ""

    def parameters(self) -> dict[str, str | int | bool | None]:
        return {
            "source": "shared" if self.view == "shared" else "all",
            "archived": self.view == "archived" or None,
            "q": self.query or None,
        }

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
        """Pinned ones first, then the newest; of a search in the server's order."""
        found = tuple(self._roots.values())
        return found if self.filter.query else sorted(found, key=_place)

    def count_needing(self) -> int:
        """Chats that wait for a person, with those whose subagent does."""
        return sum(1 for chat in self._roots.values() if family_needs_person(chat))

    def next_pin_order(self) -> int:
        """The place after the pinned chats."""
        return 1 + max((chat.pin_order for chat in self._roots.values()), default=0)

    def begin_reading(self) -> None:
        """A page is asked for now: it has what changed before, and may lack what changes next."""
        self._changed.clear()

    def replace_with(self, chats: Iterable[ListedChat], next_cursor: str | None) -> None:
        """All that was read from the beginning, in place of what was here."""
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
        """What changed while the chats were read is put again, roots before their subagents."""
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
        """A chat as it is now, of an event or of the reply to an action."""
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
