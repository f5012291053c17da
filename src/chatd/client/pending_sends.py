"""The messages of an outbox, in the order in which they were sent."""

import asyncio
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from chatd.client.connection import Connection
from chatd.client.drafts import Draft, PendingSend
from chatd.client.followed_chat import call
from chatd.client.server import new_key
from chatd.domain.errors import ChatdError
from chatd.domain.ids import ChatId

MAX_UNSENT: Final = 50
MAX_SENT_KEPT: Final = 50
"""The events of their chats show them long before."""


class OutboxFull(ChatdError):
    code = "outbox_full"

    def __init__(self) -> None:
        super().__init__(
            f"{MAX_UNSENT} messages are not sent yet. Wait until the server has taken one, or"
            " discard one."
        )


class SendDismissed(ChatdError):
    """The message was discarded before the server had it."""

    code = "send_dismissed"


class PendingSends:
    """Every change is shown by the connection, at the chat of the message."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._items: dict[str, PendingSend] = {}
        self._created: dict[str, asyncio.Future[ChatId]] = {}
        self._listeners: list[Callable[[], None]] = []

    @property
    def all(self) -> tuple[PendingSend, ...]:
        return tuple(self._items.values())

    @property
    def unsent(self) -> tuple[PendingSend, ...]:
        return tuple(item for item in self._items.values() if item.state != "sent")

    def find(self, key: str) -> PendingSend | None:
        return self._items.get(key)

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def add(self, chat_id: ChatId | None, draft: Draft) -> PendingSend:
        """Raises OutboxFull."""
        if len(self.unsent) >= MAX_UNSENT:
            raise OutboxFull
        item = PendingSend(key=new_key(), chat_id=chat_id, draft=draft)
        self._items[item.key] = item
        self._expect(item)
        self._show(item)
        return item

    def change(self, item: PendingSend, **change: object) -> PendingSend:
        changed = replace(item, **change)
        if item.key in self._items:
            self._items[item.key] = changed
            self._show(changed)
        return changed

    def renew(self, item: PendingSend) -> PendingSend:
        """The same message in the same place, under another key."""
        again = replace(item, key=new_key(), state="waiting", failures=0, problem=None)
        renewed = (again if one.key == item.key else one for one in self._items.values())
        self._items = {one.key: one for one in renewed}
        self._created.pop(item.key, None)
        self._expect(again)
        self._show(again)
        return again

    def forget(self, item: PendingSend) -> None:
        self._items.pop(item.key, None)
        self.refuse(item, SendDismissed("The message was discarded."))
        self._created.pop(item.key, None)
        self._show(item)

    # New chats

    async def created(self, key: str) -> ChatId:
        """Raises what `refuse` was given."""
        item, created = self._items.get(key), self._created.get(key)
        if item is not None and item.chat_id is not None:
            return item.chat_id
        if created is None:
            raise SendDismissed("The message was discarded.")
        return await asyncio.shield(created)

    def accept(self, item: PendingSend, chat_id: ChatId, version: int) -> None:
        self.change(item, state="sent", chat_id=chat_id, version=version, problem=None)
        if (created := self._created.pop(item.key, None)) is not None and not created.done():
            created.set_result(chat_id)
        sent = [one for one in self._items.values() if one.state == "sent"]
        for old in sent[: max(0, len(sent) - MAX_SENT_KEPT)]:
            self.forget(old)

    def refuse(self, item: PendingSend, error: ChatdError) -> None:
        """For who waits for the new chat."""
        created = self._created.get(item.key)
        if created is not None and not created.done():
            created.set_exception(error)
            # Nobody may be waiting; asyncio would log that.
            created.exception()

    def _expect(self, item: PendingSend) -> None:
        if item.chat_id is None:
            self._created[item.key] = asyncio.get_running_loop().create_future()

    def _show(self, item: PendingSend) -> None:
        if item.chat_id is not None:
            of_chat = tuple(one for one in self._items.values() if one.chat_id == item.chat_id)
            self._connection.show_pending(item.chat_id, of_chat)
        for listener in tuple(self._listeners):
            call(listener)
