"""How many chats a worker runs at once. Root chats and subagents have separate slots, so that a
parent that waits for a subagent never holds the slot that the subagent needs."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from msgspec import Struct

from chatd.domain.chat.row import Chat
from chatd.domain.ids import ChatId, WorkerId
from chatd.store.chat.workers import RunningLimits

DEFAULT_ROOT_SLOTS: Final = 100
DEFAULT_CHILD_SLOTS: Final = 200


class SlotsConfig(Struct, frozen=True, kw_only=True):
    """`roots` and `children` limit this worker, `caps` all workers together."""

    roots: int = DEFAULT_ROOT_SLOTS
    children: int = DEFAULT_CHILD_SLOTS
    caps: RunningLimits | None = None


class Slots:
    """A reservation holds a slot until the result of its write is known. There are no free slots
    before the worker is registered and while it drains."""

    def __init__(self, config: SlotsConfig, worker_id: WorkerId) -> None:
        self._config = config
        self._worker_id = worker_id
        self._reserved = {True: 0, False: 0}
        self._occupied: dict[ChatId, bool] = {}
        self.is_open = False

    def free(self, *, root: bool) -> int:
        if not self.is_open:
            return 0
        limit = self._config.roots if root else self._config.children
        used = sum(1 for is_root in self._occupied.values() if is_root == root)
        return max(limit - used - self._reserved[root], 0)

    @property
    def caps(self) -> RunningLimits | None:
        return self._config.caps

    @property
    def load(self) -> float:
        """The occupied share of all slots, from 0 to 1."""
        slots = self._config.roots + self._config.children
        return min(len(self._occupied) / slots, 1.0) if slots else 1.0

    @contextmanager
    def reserve(self, *, root: bool) -> Generator[WorkerId | None]:
        """This worker's id, or None without a free slot. None under a cap too: only the acquire
        statement knows how many chats run on other workers."""
        if self._config.caps is not None or self.free(root=root) == 0:
            yield None
            return
        self._reserved[root] += 1
        try:
            yield self._worker_id
        finally:
            self._reserved[root] -= 1

    def occupy(self, chat: Chat) -> None:
        self._occupied[chat.id] = chat.is_root

    def free_slot(self, chat_id: ChatId) -> None:
        self._occupied.pop(chat_id, None)
