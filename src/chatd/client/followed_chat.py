"""One chat as this client has it: what arrived, what is on its way, and its listeners."""

import logging
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from chatd.client import state
from chatd.client.drafts import PendingSend
from chatd.client.errors import ApiError
from chatd.client.frames import read_message
from chatd.client.resources import MessagePage
from chatd.client.server import ServerApi
from chatd.client.socket import TopicHandler
from chatd.client.state import OlderPage, ShownChat
from chatd.domain.chat_views.events import Event
from chatd.domain.ids import ChatId

log = logging.getLogger(__name__)

PAGE_SIZE: Final = 100
MAX_STALE_PAGES: Final = 5


class FollowedChat(Struct, frozen=True, kw_only=True):
    """A new value whenever something in it has changed. `gone`: the chat does not exist, or may not
    be read any more; `shown` keeps what was there."""

    shown: ShownChat
    pending: tuple[PendingSend, ...] = ()
    gone: bool = False
    loading_older: bool = False

    @property
    def chat_id(self) -> ChatId:
        return self.shown.chat_id


Listener = Callable[[FollowedChat], None]


class ChatStore:
    """`tell` calls the listeners in their order, if something has changed since."""

    def __init__(self, chat_id: ChatId) -> None:
        self.chat_id = chat_id
        self._received = state.start(chat_id)
        self._view = FollowedChat(shown=self._received.shown)
        self._told = self._view
        self._listeners: list[Listener] = []

    @property
    def view(self) -> FollowedChat:
        return self._view

    @property
    def is_followed(self) -> bool:
        return bool(self._listeners)

    @property
    def handler(self) -> TopicHandler:
        return TopicHandler(
            cursor=lambda: self._received.shown.cursor, restart=self._restart, gone=self._on_gone
        )

    def add(self, listener: Listener) -> None:
        if self._view.gone:
            self._view = replace(self._view, gone=False)
        self._listeners.append(listener)

    def remove(self, listener: Listener) -> None:
        self._listeners.remove(listener)

    def receive(self, events: Sequence[Event]) -> None:
        self._received = state.reduce_all(self._received, events)
        self._show_received()

    def show_pending(self, items: Sequence[PendingSend]) -> None:
        pending = _not_arrived(items, self._view.shown.version)
        if pending or self._view.pending:
            self._show(replace(self._view, pending=pending))

    async def load_older(self, api: ServerApi) -> None:
        """Raises ApiError and ServerUnreachable."""
        if self._view.loading_older or not self._view.shown.has_older:
            return
        self._show(replace(self._view, loading_older=True))
        try:
            await self._read_older(api)
        finally:
            self._show(replace(self._view, loading_older=False))

    def tell(self) -> None:
        """Call the listeners. One that fails does not affect the others."""
        if self._view is self._told:
            return
        self._told = self._view
        for listener in tuple(self._listeners):
            call(lambda listener=listener: listener(self._view))

    async def _read_older(self, api: ServerApi) -> None:
        """Read again if messages were deleted after the page was read."""
        for _ in range(MAX_STALE_PAGES):
            messages = self._received.shown.messages
            if not messages:
                return
            before = messages[0].id
            page = await api.list_messages(self.chat_id, before_id=before, limit=PAGE_SIZE)
            added = state.add_older_page(self._received, before, read_page(page))
            if added is not None:
                self._received = added
                self._show_received()
                return

    def _show(self, view: FollowedChat) -> None:
        self._view = view
        self.tell()

    def _restart(self) -> None:
        self._received = state.drop_partial_group(self._received)

    def _on_gone(self) -> None:
        self._view = replace(self._view, gone=True)

    def _show_received(self) -> None:
        shown = self._received.shown
        if shown is self._view.shown:
            return
        pending = _not_arrived(self._view.pending, shown.version)
        self._view = replace(self._view, shown=shown, pending=pending)


def read_page(page: MessagePage) -> OlderPage:
    """Raises ApiError for a message that this client cannot read."""
    try:
        messages = tuple(read_message(bytes(one)) for one in page.items)
    except msgspec.MsgspecError as error:
        text = f"This client does not understand a message of the server ({error})."
        raise ApiError(200, "unexpected_reply", text) from None
    return OlderPage(messages=messages, has_more=page.has_more, version=page.version)


def _not_arrived(items: Sequence[PendingSend], version: int) -> tuple[PendingSend, ...]:
    """Leave out messages that have arrived: each goes in the same value in which its event
    comes."""
    return tuple(item for item in items if not item.has_arrived(version))


def call(listener: Callable[[], None]) -> None:
    """A listener is code of a screen: its bug must not end the connection."""
    try:
        listener()
    except Exception:
        log.exception("a listener of the connection failed")


MAX_IDLE: Final = 20
"""How many chats are kept without a follower, so that going back to one shows it at once."""


class KeptChats:
    """The chats that this client knows: all that are followed, and some that were."""

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
        """Mark the chat, which is no longer followed, as the most recently used."""
        store = self._stores.pop(chat_id, None)
        if store is not None:
            self._stores[chat_id] = store
        self._drop_idle(chat_id)

    def _drop_idle(self, newest: ChatId) -> None:
        """Drop the least recently used chats; never one with messages on their way."""
        idle = [
            key
            for key, store in self._stores.items()
            if not store.is_followed and not store.view.pending and key != newest
        ]
        for key in idle[: max(0, len(idle) - self._max_idle + 1)]:
            del self._stores[key]
