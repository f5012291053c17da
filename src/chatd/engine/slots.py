"""How many chats a worker runs at once: one pool for roots, one for their children, so that a
parent waiting for a child never takes the slot the child needs."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from msgspec import Struct

from chatd.domain.chat import Chat
from chatd.domain.ids import ChatId, WorkerId
from chatd.store.workers import Caps

DEFAULT_ROOT_SLOTS: Final = 100
DEFAULT_CHILD_SLOTS: Final = 200


class SlotsConfig(Struct, frozen=True, kw_only=True):
    """Of this worker; `caps` are those of all workers together."""

    roots: int = DEFAULT_ROOT_SLOTS
    children: int = DEFAULT_CHILD_SLOTS
    caps: Caps | None = None


class Slots:
    """Counts, nothing more. An offer holds a slot until the write it was made for is known.
    Nothing is offered before the worker is registered, nor when it leaves."""

    def __init__(self, config: SlotsConfig, me: WorkerId) -> None:
        self._config = config
        self._me = me
        self._offered = {True: 0, False: 0}
        self._taken: dict[ChatId, bool] = {}
        self._open = False

    def free(self, *, root: bool) -> int:
        if not self._open:
            return 0
        limit = self._config.roots if root else self._config.children
        used = sum(1 for is_root in self._taken.values() if is_root == root)
        return max(limit - used - self._offered[root], 0)

    @property
    def caps(self) -> Caps | None:
        return self._config.caps

    @property
    def load(self) -> float:
        """From 0, nothing runs here, to 1."""
        slots = self._config.roots + self._config.children
        return min(len(self._taken) / slots, 1.0) if slots else 1.0

    @contextmanager
    def offer(self, *, root: bool) -> Generator[WorkerId | None]:
        """This worker, if it could run one more: for whoever is about to write a message. Not
        under a cap: what runs elsewhere is known only when a chat is taken."""
        if self._config.caps is not None or self.free(root=root) == 0:
            yield None
            return
        self._offered[root] += 1
        try:
            yield self._me
        finally:
            self._offered[root] -= 1

    def take(self, chat: Chat) -> None:
        self._taken[chat.id] = chat.is_root

    def give_back(self, chat_id: ChatId) -> None:
        self._taken.pop(chat_id, None)

    def open(self) -> None:
        self._open = True

    def close(self) -> None:
        self._open = False
