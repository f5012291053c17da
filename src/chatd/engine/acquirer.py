"""Looking at rows and taking chats: all that a worker asks of the database but for the tick.

Owns when it is asked. One statement takes several chats; one reads all rows that hints were
about; one gives back chats that are ours by the row but of which nobody here knows.
"""

import asyncio
from collections.abc import Callable, Collection
from typing import Final

from chatd.domain.chat import Chat
from chatd.domain.errors import Unavailable
from chatd.domain.hint import Hint
from chatd.domain.ids import ChatId, WorkerId
from chatd.domain.ports import Env
from chatd.engine.lease import WorkerLease
from chatd.engine.runner_pool import Roster
from chatd.engine.slots import Slots
from chatd.store import chats, workers
from chatd.store.conn import Conn

AT_ONCE: Final = 10
YIELD_S: Final = 0.02
"""A full worker waits this long before it reaches out, so that a free one is faster."""
RETRY_S: Final = 1.0
REMEMBERED: Final = 1000


class Taking:
    def __init__(
        self,
        me: WorkerId,
        conn: Conn,
        env: Env,
        *,
        lease: WorkerLease,
        slots: Slots,
        roster: Roster,
        announce: Callable[[Chat], None],
    ) -> None:
        self._me = me
        self._conn = conn
        self._env = env
        self._lease = lease
        self._slots = slots
        self._roster = roster
        self._announce = announce
        self._wanted = asyncio.Event()
        self._short_of_slots = False
        self._dirty: set[ChatId] = set()
        self._strays: frozenset[ChatId] = frozenset()
        self._to_release: set[ChatId] = set()
        self._rows = asyncio.Event()
        self._left: dict[ChatId, int] = {}
        self._taking = asyncio.Lock()

    # What there is to do

    def some(self) -> None:
        """There may be chats that want a worker."""
        self._wanted.set()

    def look_at(self, chat_ids: Collection[ChatId]) -> None:
        if chat_ids:
            self._dirty.update(chat_ids)
            self._rows.set()

    def hinted(self, hint: Hint) -> None:
        """Something changed elsewhere. Only a row read can tell what."""
        known = self._roster.known(hint.chat_id)
        if known is not None and hint.snapshot_version > known.snapshot_version:
            self.look_at((hint.chat_id,))
        if hint.runnable:
            self.some()

    def left(self, chat: Chat) -> None:
        """Its runner has left: an older row of it that is still on its way means nothing."""
        self._left.pop(chat.id, None)
        self._left[chat.id] = chat.snapshot_version
        if len(self._left) > REMEMBERED:
            del self._left[next(iter(self._left))]
        if self._short_of_slots or self._taking.locked() or self._slots.caps is not None:
            # Nobody else tells us of chats that we could not take when we heard of them.
            self._short_of_slots = False
            self.some()

    def unknown(self, chat_ids: Collection[ChatId]) -> None:
        """Ours by the row, but nobody here runs them: the answer to a write was lost, or the
        lease was for a while. Not at first sight: the answer may just be on its way."""
        now = frozenset(chat_ids)
        self.look_at([chat_id for chat_id in now if chat_id in self._roster])
        nobodys = now - frozenset(self._roster)
        if again := nobodys & self._strays:
            self._to_release |= again
            self._rows.set()
        self._strays = nobodys - again

    # Taking

    async def take(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                async with self._taking:
                    await self._take()
            except Unavailable as error:
                self._env.emit("acquire_failed", error_kind=error.code)
                await self._env.clock.sleep(RETRY_S, "acquire_retry")
                self._wanted.set()

    async def _take(self) -> None:
        if self._slots.load > 0:
            await self._env.clock.sleep(self._slots.load * YIELD_S, "yield")
        roots = min(self._slots.free(root=True), AT_ONCE)
        children = min(self._slots.free(root=False), AT_ONCE)
        self._short_of_slots = roots == 0 or children == 0
        if roots + children == 0 or self._lease.health != "ok":
            return
        caps = self._slots.caps
        taken = await (
            workers.acquire(self._conn, self._me, roots=roots, children=children)
            if caps is None
            else workers.acquire_capped(self._conn, self._me, caps, roots=roots, children=children)
        )
        grown_up = sum(chat.is_root for chat in taken)
        if grown_up == roots or len(taken) - grown_up == children:
            self._short_of_slots = True
        for chat in taken:
            self._env.emit("acquired", chat_id=chat.id, epoch=chat.epoch)
            if chat.orphan_count > 0:
                self._env.emit("taken_over", chat_id=chat.id, epoch=chat.epoch)
            self._announce(chat)
            self._roster.hear(chat)
        if len(taken) >= (AT_ONCE if caps is None else 1):
            self._wanted.set()

    async def none_on_the_way(self, within_s: float) -> None:
        """Chats that are just being taken must be known before all are given back."""
        try:
            async with asyncio.timeout(within_s), self._taking:
                return
        except TimeoutError:
            return

    # Rows

    async def read(self) -> None:
        while True:
            await self._rows.wait()
            self._rows.clear()
            try:
                await self._read()
                await self._give_back()
            except Unavailable:
                await self._env.clock.sleep(RETRY_S, "read_retry")
                self._rows.set()

    async def _read(self) -> None:
        """What is heard of while we read is read again."""
        asked, self._dirty = self._dirty, set()
        if not asked:
            return
        try:
            rows = await chats.get_many(self._conn, list(asked))
        except Unavailable:
            self._dirty |= asked
            raise
        for row in rows:
            if row.snapshot_version >= self._left.get(row.id, 0):
                self._roster.hear(row)
        for missing in asked - {row.id for row in rows}:
            self._roster.gone(missing)

    async def _give_back(self) -> None:
        strays = [chat_id for chat_id in self._to_release if chat_id not in self._roster]
        if strays:
            for chat in await workers.release(self._conn, self._me, strays):
                self._env.emit("stray_released", chat_id=chat.id, epoch=chat.epoch)
                self._announce(chat)
            self.some()
        self._to_release.difference_update(strays)
