"""Chats that were opened, as the newest event or reply describes them: the open chat may be outside
of what the list shows."""

from typing import Final

from chatd.client.resources import Chat
from chatd.domain.ids import ChatId

MAX_KNOWN: Final = 200


class KnownChats:
    def __init__(self) -> None:
        self._chats: dict[ChatId, Chat] = {}

    def find(self, chat_id: ChatId) -> Chat | None:
        return self._chats.get(chat_id)

    def keep(self, chat: Chat) -> None:
        """From now on `update` keeps it current."""
        known = self._chats.pop(chat.id, None)
        self._chats[chat.id] = known if known is not None and known.version > chat.version else chat
        while len(self._chats) > MAX_KNOWN:
            del self._chats[next(iter(self._chats))]

    def update(self, chat: Chat) -> None:
        if chat.id in self._chats:
            self.keep(chat)

    def forget(self, chat_id: ChatId) -> None:
        self._chats.pop(chat_id, None)
