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

from chatd.aio.backoff import Backoff
from chatd.domain.chat.events import encode_value
from chatd.domain.chat.public_chat import (
    ChatListEvent,
    ChatListReady,
    PublicChat,
    chat_list_change,
    public_chat,
)
from chatd.domain.chat.row import Chat, Hint
from chatd.domain.errors import ChatdError, Unavailable
from chatd.domain.ids import ChatId, UserId
from chatd.domain.ports import Clock, Env
from chatd.parts.journal_writer import TAILED_HINT_KIND
from chatd.store.chat import chats
from chatd.store.chat.transactor import AppliedChange
from chatd.store.conn import Conn
from chatd.stream.fanout import Broadcast, Subscription
from chatd.stream.frames import Frame

READY_FRAME: Final = encode_value(ChatListReady())
WORKSPACE_HINT_KIND: Final = "workspace"
"""What is so called may have changed nothing of the row that people see, and is news all the same:
which instructions the chat goes by, and whether its workspace is ready."""
READ_ERRORS: Final = (ChatdError, msgspec.DecodeError)
"""One row that cannot be read must not stop those who read all others."""


class ChatListConfig(Struct, frozen=True, kw_only=True):
    """`remembered`: chats of one person of which it is known what was told last."""

    coalesce_s: float = 0.05
    at_once: int = 500
    remembered: int = 1000
    poll_s: float = 10
    backoff: Backoff = Backoff(first_delay_s=0.1, max_delay_s=2.0)


DEFAULT_CHAT_LIST_CONFIG: Final = ChatListConfig()


class ChatListSubscription(Subscription[bytes]):
    """One client that watches. Made by `ChatListFeeds.watch`."""

    def __init__(self, chain: Broadcast[bytes], clock: Clock) -> None:
        super().__init__(chain, clock)
        self._greeted = False

    async def frames(self) -> AsyncIterator[Frame]:
        """Ends only by raising Lagged or because it is cancelled."""
        while True:
            yield await self.next()

    async def next(self) -> Frame:
        if not self._greeted:
            self._greeted = True
            return Frame(events=(READY_FRAME,))
        while (event := self.pull()) is None:
            await self.read_new()
        return Frame(events=(event,))


class _Desk:
    """What is kept for one person who watches."""

    def __init__(self) -> None:
        self.chain: Broadcast[bytes] = Broadcast()
        self.watchers: set[ChatListSubscription] = set()
        self.on_applied: dict[ChatId, PublicChat] = {}

    def say(self, event: bytes) -> None:
        self.chain.append(event, len(event))
        for watcher in tuple(self.watchers):
            watcher.wake()


class ChatListFeeds:
    """`run` must be running. The methods for news do not wait."""

    def __init__(
        self,
        conn: Conn,
        env: Env,
        config: ChatListConfig = DEFAULT_CHAT_LIST_CONFIG,
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
    def watch(self, owner: UserId) -> Generator[ChatListSubscription]:
        desk = self._desks.setdefault(owner, _Desk())
        watcher = ChatListSubscription(desk.chain, self._env.clock)
        desk.watchers.add(watcher)
        self._some_watch.set()
        try:
            yield watcher
        finally:
            desk.watchers.discard(watcher)
            if not desk.watchers:
                self._desks.pop(owner, None)

    # News

    def on_applied(self, applied: AppliedChange) -> None:
        self.on_metadata_changed(applied.chat)

    def on_metadata_changed(self, chat: Chat, kind: str | None = None) -> None:
        """A row as this replica has just written or read it."""
        desk = self._desks.get(chat.owner_id)
        if desk is None:
            return
        public = public_chat(chat)
        last = desk.on_applied.pop(chat.id, None)
        known = last == public and kind != WORKSPACE_HINT_KIND
        if last is not None and (known or last.version > public.version):
            desk.on_applied[chat.id] = last
            return
        # The one told last is the last in the book, and the first in it is forgotten.
        desk.on_applied[chat.id] = public
        if len(desk.on_applied) > self._config.remembered:
            del desk.on_applied[next(iter(desk.on_applied))]
        desk.say(encode_value(ChatListEvent(kind=chat_list_change(chat, kind), chat=public)))

    def on_hint(self, hint: Hint) -> None:
        desk = self._desks.get(hint.owner_id)
        if desk is None or hint.kind == TAILED_HINT_KIND:
            return
        last = desk.on_applied.get(hint.chat_id)
        if hint.kind is None and last is not None and last.version >= hint.snapshot_version:
            return
        # A word about what happened is worth more than none.
        self._unread[hint.chat_id] = hint.kind or self._unread.get(hint.chat_id)
        self._some_unread.set()

    def mark_all_dirty(self) -> None:
        """Changes may have been missed, or lost by the database."""
        for desk in self._desks.values():
            desk.on_applied.clear()
            desk.say(READY_FRAME)

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
            except READ_ERRORS as error:
                # Today or in a second: it would be asked for again and again.
                self._env.emit("watch_unreadable", error=error)
                continue
            failures = 0
            for row in rows:
                self.on_metadata_changed(row, batch[row.id])
            await self._env.clock.sleep(self._config.coalesce_s, "watch_read")

    async def _poll_in_time(self) -> None:
        while True:
            if not self._desks:
                self._some_watch.clear()
                await self._some_watch.wait()
            await self._env.clock.sleep(self._config.poll_s, "watch_poll")
            try:
                # Further back than the last poll: it may have been slow, or have failed.
                rows = await chats.list_recently_active(
                    self._conn, list(self._desks), within_s=3 * self._config.poll_s
                )
            except READ_ERRORS as error:
                self._env.emit("watch_poll_failed", error=error)
                continue
            for row in rows:
                self.on_metadata_changed(row)
