"""The chats that this client knows: all that are followed, and some that were."""

from typing import Final

from chatd.client.followed_chat import ChatStore
from chatd.domain.ids import ChatId

MAX_IDLE: Final = 20
"""Chats that nobody follows, kept so that going back to one shows it at once."""


class KeptChats:
    def __init__(self, max_idle: int = MAX_IDLE) -> None:
        self._max_idle = max_idle
        self._stores: dict[ChatId, ChatStore] = {}

    def __len__(self) -> int:
        return len(self._stores)

    def get(self, chat_id: ChatId) -> ChatStore:
        store = self._stores.get(chat_id)
        if store is None:
            store = self._stores[chat_id] = ChatStore(chat_id)
            self._drop_idle(chat_id)
        return store

    def find(self, chat_id: ChatId) -> ChatStore | None:
        return self._stores.get(chat_id)

    def on_left(self, chat_id: ChatId) -> None:
        """It was used last."""
        store = self._stores.pop(chat_id, None)
        if store is not None:
            self._stores[chat_id] = store
        self._drop_idle(chat_id)

    def _drop_idle(self, newest: ChatId) -> None:
        """The ones that were used longest ago; never one with messages on their way."""
        idle = [
            key
            for key, store in self._stores.items()
            if not store.is_followed and not store.view.pending and key != newest
        ]
        for key in idle[: max(0, len(idle) - self._max_idle + 1)]:
            del self._stores[key]
