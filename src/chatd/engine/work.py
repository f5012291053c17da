"""A chat as its runner holds it between steps: the row, and the history it was read with.

History is read once; every commit of our own adds what it has written, and
only a row with another history makes it be read again.
"""

from collections.abc import Sequence

from chatd.domain.chat import Chat
from chatd.domain.messages import Message
from chatd.store import messages
from chatd.store.conn import Conn
from chatd.store.transact import Applied


class Work:
    def __init__(self, chat: Chat) -> None:
        self.chat = chat
        self._history: list[Message] = []
        self._history_version: int | None = None

    @property
    def history(self) -> Sequence[Message]:
        return self._history

    async def load(self, conn: Conn) -> None:
        if self._history_version == self.chat.history_version:
            return
        self._history = await messages.history(conn, self.chat.id)
        self._history_version = self.chat.history_version

    def begun_with(self, created: Sequence[Message]) -> None:
        """A new chat's history is what has just been written: nothing to read."""
        self._history = list(created)
        self._history_version = self.chat.history_version

    def moved(self, chat: Chat) -> None:
        """The row is newer; whether the history is, its version says."""
        self.chat = chat

    def committed(self, applied: Applied) -> None:
        """Our own write, on top of the history we hold."""
        known = self._history_version == self.chat.history_version and not applied.replayed
        self.chat = applied.chat
        if known and not applied.forgotten:
            self._history.extend(applied.messages)
            self._history_version = applied.chat.history_version
