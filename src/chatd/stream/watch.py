"""All chats of a person at a glance: whoever watches is told of each that changes.

There is no replay. A watch begins with `ready`: the client lists its chats then, and again at
every later `ready`, which says that changes may have been missed. Rows that this replica has
written are told without a query; for hints of others the chats are read, many in one statement.
A poll finds what hints have failed to tell.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import contextmanager
from itertools import islice
from typing import Final

import msgspec
from msgspec import Struct

from chatd.domain.chat import Chat
from chatd.domain.encode import encode_value
from chatd.domain.errors import ChatdError, Unavailable
from chatd.domain.hint import Hint
from chatd.domain.ids import ChatId, UserId
from chatd.domain.ports import Clock, Env
from chatd.domain.public_chat import PublicChat, WatchEvent, WatchReady, public_chat, watch_kind
from chatd.parts.writer import TAILED
from chatd.store import chats, watched
from chatd.store.backoff import Backoff
from chatd.store.conn import Conn
from chatd.store.transact import Applied
from chatd.stream.chain import Chain, Follower
from chatd.stream.frames import Frame

READY: Final = encode_value(WatchReady())
BESIDE: Final = "workspace"
"""What is so called may have changed nothing of the row that people see, and is news all the same:
which instructions the chat goes by, and whether its workspace is ready."""
UNREADABLE: Final = (ChatdError, msgspec.DecodeError)
"""One row that cannot be read must not stop those who read all others."""


class WatchConfig(Struct, frozen=True, kw_only=True):
    """`remembered`: chats of one person of which it is known what was told last."""

    coalesce_s: float = 0.05
    at_once: int = 500
    remembered: int = 1000
    poll_s: float = 10
    backoff: Backoff = Backoff(first_s=0.1, most_s=2.0)


DEFAULTS: Final = WatchConfig()


class Watcher(Follower[bytes]):
    """One client that watches. Made by `Watches.watch`."""

    def __init__(self, chain: Chain[bytes], clock: Clock) -> None:
        super().__init__(chain, clock)
        self._greeted = False

    async def frames(self) -> AsyncIterator[Frame]:
        """Ends only by raising Lagged or because it is cancelled."""
        while True:
            yield await self.next()

    async def next(self) -> Frame:
        if not self._greeted:
            self._greeted = True
            return Frame(events=(READY,))
        while (event := self.pull()) is None:
            await self.news()
        return Frame(events=(event,))


class _Desk:
    """What is kept for one person who watches."""

    def __init__(self) -> None:
        self.chain: Chain[bytes] = Chain()
        self.watchers: set[Watcher] = set()
        self.told: dict[ChatId, PublicChat] = {}

    def say(self, event: bytes) -> None:
        self.chain.append(event, len(event))
        for watcher in tuple(self.watchers):
            watcher.wake()


class Watches:
    """`run` must be running. The methods for news do not wait."""

    def __init__(
        self,
        conn: Conn,
        env: Env,
        config: WatchConfig = DEFAULTS,
        *,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._conn = conn
        self._env = env
        self._config = config
        self._draw = draw
        self._desks: dict[UserId, _Desk] = {}
        self._unread: dict[ChatId, str | None] = {}
        self._some_unread = asyncio.Event()
        self._some_watch = asyncio.Event()

    @contextmanager
    def watch(self, owner: UserId) -> Generator[Watcher]:
        desk = self._desks.setdefault(owner, _Desk())
        watcher = Watcher(desk.chain, self._env.clock)
        desk.watchers.add(watcher)
        self._some_watch.set()
        try:
            yield watcher
        finally:
            desk.watchers.discard(watcher)
            if not desk.watchers:
                self._desks.pop(owner, None)

    # News

    def told(self, applied: Applied) -> None:
        self.changed(applied.chat)

    def changed(self, chat: Chat, kind: str | None = None) -> None:
        """A row as this replica has just written or read it."""
        desk = self._desks.get(chat.owner_id)
        if desk is None:
            return
        public = public_chat(chat)
        last = desk.told.pop(chat.id, None)
        known = last == public and kind != BESIDE
        if last is not None and (known or last.version > public.version):
            desk.told[chat.id] = last
            return
        # The one told last is the last in the book, and the first in it is forgotten.
        desk.told[chat.id] = public
        if len(desk.told) > self._config.remembered:
            del desk.told[next(iter(desk.told))]
        desk.say(encode_value(WatchEvent(kind=watch_kind(chat, kind), chat=public)))

    def hinted(self, hint: Hint) -> None:
        desk = self._desks.get(hint.owner_id)
        if desk is None or hint.kind == TAILED:
            return
        last = desk.told.get(hint.chat_id)
        if hint.kind is None and last is not None and last.version >= hint.snapshot_version:
            return
        # A word about what happened is worth more than none.
        self._unread[hint.chat_id] = hint.kind or self._unread.get(hint.chat_id)
        self._some_unread.set()

    def everything_is_dirty(self) -> None:
        """Changes may have been missed, or lost by the database."""
        for desk in self._desks.values():
            desk.told.clear()
            desk.say(READY)

    # Life

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._read_in_time(), name="watch_read")
            group.create_task(self._poll_in_time(), name="watch_poll")

    async def _read_in_time(self) -> None:
        failures = 0
        while True:
            while not self._unread:
                self._some_unread.clear()
                await self._some_unread.wait()
            batch = dict(islice(self._unread.items(), self._config.at_once))
            for chat_id in batch:
                del self._unread[chat_id]
            try:
                rows = await chats.get_many(self._conn, list(batch))
            except Unavailable as error:
                failures += 1
                self._env.emit("watch_failed", error_kind=error.code, failures=failures)
                self._unread = batch | self._unread
                delay = self._config.backoff.delay(failures, self._draw)
                await self._env.clock.sleep(delay, "watch_retry")
                continue
            except UNREADABLE as error:
                # Today or in a second: it would be asked for again and again.
                self._env.emit("watch_unreadable", error=error)
                continue
            failures = 0
            for row in rows:
                self.changed(row, batch[row.id])
            await self._env.clock.sleep(self._config.coalesce_s, "watch_read")

    async def _poll_in_time(self) -> None:
        while True:
            if not self._desks:
                self._some_watch.clear()
                await self._some_watch.wait()
            await self._env.clock.sleep(self._config.poll_s, "watch_poll")
            try:
                # Further back than the last poll: it may have been slow, or have failed.
                rows = await watched.recent(
                    self._conn, list(self._desks), within_s=3 * self._config.poll_s
                )
            except UNREADABLE as error:
                self._env.emit("watch_poll_failed", error=error)
                continue
            for row in rows:
                self.changed(row)
