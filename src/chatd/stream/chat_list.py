"""The chat list of each user as a stream: one event per changed chat.

There is no replay. A stream begins with `ready`: the client then lists its chats, and again at
every later `ready`, which means that changes may have been missed. Changes written by this replica
need no query once the user's read mark of the chat is known; after hints of other replicas the
chats are read, many in one statement, and likewise their read marks. A poll finds changes that no
hint announced.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Final

import msgspec
from msgspec import Struct

from chatd.aio import Backoff
from chatd.domain.chat.events import encode_value
from chatd.domain.chat.public_chat import (
    NOTHING_READ,
    ChatListEvent,
    ChatListReady,
    PublicChat,
    chat_list_change,
    public_chat,
)
from chatd.domain.chat.row import Chat, Hint
from chatd.domain.errors import ChatdError, Unavailable
from chatd.domain.ids import ChatId, MessageId, UserId
from chatd.domain.ports import Clock, Env
from chatd.parts.journal_writer import TAILED_HINT_KIND
from chatd.store.chat import chats, read_marks
from chatd.store.chat.operation import AppliedChange
from chatd.store.conn import Conn
from chatd.stream.chat_feed import FEEDS
from chatd.stream.fanout import Broadcast, Subscription
from chatd.stream.frames import Frame

READY_FRAME: Final = encode_value(ChatListReady())
WORKSPACE_HINT_KIND: Final = "workspace"
"""The kind of a change beside the row's public fields: the chat's instructions, or whether its
workspace is ready. Such a change is sent although the public row is equal."""
READ_HINT_KIND: Final = "read"
"""The kind of a moved read mark, which is not in the row: it is read again."""
READ_ERRORS: Final = (ChatdError, msgspec.DecodeError)
"""A row that cannot be decoded must not end the task that reads all rows."""


class ChatListConfig(Struct, frozen=True, kw_only=True):
    """`max_remembered_chats`: per user, the chats of which the last event is remembered."""

    coalesce_s: float = 0.05
    max_per_read: int = 500
    max_remembered_chats: int = 1000
    poll_s: float = 10
    backoff: Backoff = Backoff(first_delay_s=0.1, max_delay_s=2.0)


DEFAULT_CHAT_LIST_CONFIG: Final = ChatListConfig()


class ChatListSubscription(Subscription[bytes]):
    """One client connection. Created by `ChatListFeeds.watch`."""

    def __init__(self, broadcast: Broadcast[bytes], clock: Clock) -> None:
        super().__init__(broadcast, clock)
        self._sent_ready = False

    async def frames(self) -> AsyncIterator[Frame]:
        """Ends only by raising Lagged or by cancellation."""
        while True:
            yield await self.next()

    async def next(self) -> Frame:
        if not self._sent_ready:
            self._sent_ready = True
            return Frame(events=(READY_FRAME,))
        while (event := self.pull()) is None:
            await self.read_new()
        return Frame(events=(event,))


class _UserList:
    """The state for one user with open chat-list streams."""

    def __init__(self) -> None:
        self.broadcast: Broadcast[bytes] = Broadcast()
        self.subscriptions: set[ChatListSubscription] = set()
        self.last_sent: dict[ChatId, tuple[Chat, PublicChat]] = {}

    def known_mark(self, chat: Chat) -> MessageId | None:
        """The read mark as far as it is known. A new chat that runs has none yet; a copy has."""
        last = self.last_sent.get(chat.id)
        if last is not None:
            return last[1].last_read_message_id or NOTHING_READ
        is_new = chat.snapshot_version == 1 and chat.status == "running"
        return NOTHING_READ if is_new else None

    def send(self, event: bytes) -> None:
        self.broadcast.append(event, len(event))
        for subscription in tuple(self.subscriptions):
            subscription.wake()


class ChatListFeeds:
    """`run` must be running. The `on_` callbacks do not block."""

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
        self._users: dict[UserId, _UserList] = {}
        self._unread: dict[ChatId, str | None] = {}
        self._has_unread = asyncio.Event()
        self._has_users = asyncio.Event()

    @contextmanager
    def watch(self, owner: UserId) -> Generator[ChatListSubscription]:
        user_list = self._users.setdefault(owner, _UserList())
        subscription = ChatListSubscription(user_list.broadcast, self._env.clock)
        user_list.subscriptions.add(subscription)
        self._has_users.set()
        try:
            yield subscription
        finally:
            user_list.subscriptions.discard(subscription)
            if not user_list.subscriptions:
                self._users.pop(owner, None)

    def is_watched(self, owner: UserId) -> bool:
        return owner in self._users

    def send_to(self, owner: UserId, event: bytes) -> None:
        """An event that is not about a chat, to the user's streams on this replica."""
        if (user_list := self._users.get(owner)) is not None:
            user_list.send(event)

    # Callbacks

    def on_applied(self, applied: AppliedChange) -> None:
        self.on_metadata_changed(applied.chat)

    def on_metadata_changed(self, chat: Chat, kind: str | None = None) -> None:
        """This replica has just written or read the row."""
        user_list = self._users.get(chat.owner_id)
        if user_list is None:
            return
        mark = user_list.known_mark(chat)
        if mark is None or kind == READ_HINT_KIND:
            self._request_read(chat.id, kind)
        else:
            self._send(user_list, chat, kind, mark)

    def _send(
        self, user_list: _UserList, chat: Chat, kind: str | None, read_up_to: MessageId
    ) -> None:
        public = public_chat(chat, read_up_to)
        last = user_list.last_sent.pop(chat.id, None)
        if last is not None:
            is_known = last[1] == public and kind != WORKSPACE_HINT_KIND
            is_older = last[0].snapshot_version > chat.snapshot_version
            if is_known or (is_older and last[0].follows(chat)):
                user_list.last_sent[chat.id] = last
                return
            if is_older and last[0].may_follow(chat):
                # Late, or all that the database has left: the next row that is read is sent.
                self._request_read(chat.id, kind)
                return
        # Ordered by the last event; the oldest is forgotten.
        user_list.last_sent[chat.id] = (chat, public)
        if len(user_list.last_sent) > self._config.max_remembered_chats:
            del user_list.last_sent[next(iter(user_list.last_sent))]
        user_list.send(encode_value(ChatListEvent(kind=chat_list_change(chat, kind), chat=public)))

    def on_hint(self, hint: Hint) -> None:
        user_list = self._users.get(hint.owner_id)
        if user_list is None or hint.kind == TAILED_HINT_KIND:
            return
        last = user_list.last_sent.get(hint.chat_id)
        is_known = last and last[0].contains(hint.snapshot_version, hint.change_id)
        if hint.kind is None and is_known:
            return
        self._request_read(hint.chat_id, hint.kind)

    def _request_read(self, chat_id: ChatId, kind: str | None) -> None:
        """A request with a kind is not replaced by one without."""
        self._unread[chat_id] = kind or self._unread.get(chat_id)
        self._has_unread.set()

    def mark_all_dirty(self) -> None:
        """Changes may have been missed, or lost by the database: clients must list again."""
        for user_list in self._users.values():
            user_list.last_sent.clear()
            user_list.send(READY_FRAME)

    # Background tasks

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._read_unread(), name="chat_list_read")
            group.create_task(self._poll_periodically(), name="chat_list_poll")

    async def _read_unread(self) -> None:
        failures = 0
        while True:
            while not self._unread:
                self._has_unread.clear()
                await self._has_unread.wait()
            batch = dict(islice(self._unread.items(), self._config.max_per_read))
            for chat_id in batch:
                del self._unread[chat_id]
            try:
                rows = await chats.get_many(self._conn, FEEDS, list(batch))
                marks = await read_marks.list_marks(self._conn, self._missing_marks(rows, batch))
            except Unavailable as error:
                failures += 1
                self._env.emit("chat_list_read_failed", error_kind=error.code, failures=failures)
                self._unread = batch | self._unread
                delay = self._config.backoff.delay(failures, self._draw)
                await self._env.clock.sleep(delay, "chat_list_retry")
                continue
            except READ_ERRORS as error:
                # A retry would fail in the same way.
                self._env.emit("chat_list_unreadable", error=error)
                continue
            failures = 0
            for row in rows:
                self._on_read(row, batch[row.id], marks.get((row.owner_id, row.id)))
            await self._env.clock.sleep(self._config.coalesce_s, "chat_list_read")

    def _missing_marks(
        self, rows: Sequence[Chat], batch: Mapping[ChatId, str | None]
    ) -> list[tuple[UserId, ChatId]]:
        return [
            (row.owner_id, row.id)
            for row in rows
            if (user_list := self._users.get(row.owner_id)) is not None
            and (batch[row.id] == READ_HINT_KIND or user_list.known_mark(row) is None)
        ]

    def _on_read(self, row: Chat, kind: str | None, found: MessageId | None) -> None:
        """`found` is the mark if it was read: another read may have brought a later one."""
        user_list = self._users.get(row.owner_id)
        if user_list is None:
            return
        known = user_list.known_mark(row)
        mark = max(known or NOTHING_READ, found or NOTHING_READ)
        self._send(user_list, row, kind, mark)

    async def _poll_periodically(self) -> None:
        while True:
            if not self._users:
                self._has_users.clear()
                await self._has_users.wait()
            await self._env.clock.sleep(self._config.poll_s, "chat_list_poll")
            try:
                # Look further back than the last poll, which may have been slow or have failed.
                rows = await chats.list_recently_active(
                    self._conn, list(self._users), max_age_s=3 * self._config.poll_s
                )
            except READ_ERRORS as error:
                self._env.emit("chat_list_poll_failed", error=error)
                continue
            for row in rows:
                self.on_metadata_changed(row)
