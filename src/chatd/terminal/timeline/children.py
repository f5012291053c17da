"""Follows the subagents whose cards are on the screen."""

from collections.abc import Callable, Collection, Mapping
from typing import Final
from uuid import UUID

from chatd.client.connection import Connection, FollowedChat
from chatd.domain.ids import ChatId
from chatd.terminal.timeline.cards.child import ChildView, child_view
from chatd.terminal.timeline.rows.row_model import RowModel

MAX_FOLLOWED: Final = 16


class Children:
    """`changed` is called in the connection's task, whenever a child that is followed changes."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._stops: dict[str, Callable[[], None]] = {}
        self._newest: dict[str, FollowedChat] = {}
        self._models: dict[str, RowModel] = {}
        self._views: Mapping[str, ChildView] = {}

    def follow(self, wanted: Collection[str], connection: Connection) -> None:
        """These and no others; a view of one that left the screen is kept until `stop`."""
        some = list(dict.fromkeys(wanted))[:MAX_FOLLOWED]
        for chat_id in self._stops.keys() - set(some):
            self._stops.pop(chat_id)()
        for chat_id in some:
            if chat_id not in self._stops:
                self._stops[chat_id] = connection.follow_chat(ChatId(UUID(chat_id)), self._receive)

    def stop(self) -> None:
        for stop in self._stops.values():
            stop()
        self._stops.clear()
        self._newest.clear()
        self._models.clear()
        self._views = {}

    def views(self) -> Mapping[str, ChildView]:
        """The same object as long as nothing has changed."""
        if self._newest:
            fresh = {key: self._view(key, chat) for key, chat in self._newest.items()}
            self._newest.clear()
            if any(self._views.get(key) != view for key, view in fresh.items()):
                self._views = {**self._views, **fresh}
        return self._views

    def _receive(self, chat: FollowedChat) -> None:
        self._newest[str(chat.chat_id)] = chat
        self._changed()

    def _view(self, key: str, chat: FollowedChat) -> ChildView:
        model = self._models.setdefault(key, RowModel())
        return child_view(chat.shown, model, gone=chat.gone)
