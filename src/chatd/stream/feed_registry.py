"""The feeds of this replica, created for a chat's first viewer and dropped after its last; and
viewers.

Owns when feeds read. A few reader tasks serve all feeds, so that a recovered database does not
receive one read per viewer at once. A periodic poll, one statement for all feeds, finds changes
that no hint announced. An idle feed costs one row of that poll.
"""

import asyncio
import random
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from msgspec import Struct

from chatd.aio import Backoff, InterruptibleSleep
from chatd.domain.access.permissions import Actor, is_allowed
from chatd.domain.chat.row import Chat, Episode, Hint
from chatd.domain.chat_views.diff import ChatSnapshot
from chatd.domain.chat_views.events import START, Cursor
from chatd.domain.errors import ChatdError, NotFound, Unavailable
from chatd.domain.ids import ChatId
from chatd.domain.ports import Clock, Env
from chatd.store.chat import chats
from chatd.store.chat.chats import ChatVersion
from chatd.store.chat.operation import AppliedChange
from chatd.store.database.conn import Conn
from chatd.stream.chat_feed import FEEDS, ChatFeed, EventGroup
from chatd.stream.fanout import MAX_FRAME_EVENTS, Frame, Subscription, split_frames
from chatd.stream.journal_tail import LivePartSource

# One viewer of one chat: event groups and live parts in an order that a client can rely on.
#
# Owns the client's position: its cursor, its episode and the number of parts it has. Parts of an
# episode are sent after the group that starts the episode and before the group that ends it; sent
# later, the client would show them twice. The transport writes frames to the socket and closes a
# connection that does not read.


class Viewer(Subscription[EventGroup]):
    """Created and closed by `FeedRegistry.open_viewer`. `write_now` is the transport's: it writes a
    frame without waiting, or returns False if it cannot."""

    def __init__(
        self, feed: ChatFeed, live: LivePartSource, clock: Clock, cursor: Cursor | None
    ) -> None:
        super().__init__(feed.groups, clock)
        self._feed = feed
        self._live = live
        self._cursor = cursor or START
        self._episode: Episode | None = None
        self._seq = 0
        self._frames: deque[Frame] = deque()
        self._is_revoked = False
        self.write_now: Callable[[Frame], bool] | None = None

    async def join(self) -> None:
        """Read the changes since the client's cursor. Raises NotFound, Unavailable."""
        self.skip_to_end()
        self._advance_to(await self._feed.join(self._cursor))

    def revoke(self) -> None:
        """The client may no longer read the chat: nothing more is sent."""
        self._is_revoked = True
        self.wake()

    def on_parts(self) -> None:
        """There are new live parts. An idle viewer with a connection that takes them is sent them
        in this call; else its task is woken."""
        if self.write_now is None or not self.is_idle:
            self.wake()
            return
        while (frame := self._parts()) is not None:
            if not self.write_now(frame):
                self._frames.append(frame)
                self.wake()
                return
            if len(frame.events) < MAX_FRAME_EVENTS:
                return

    async def frames(self) -> AsyncIterator[Frame]:
        """Ends only by raising Lagged, NotFound, Unavailable, or by cancellation."""
        while True:
            yield await self.next()

    async def next(self) -> Frame:
        """A group is always sent whole, even if the viewer lags for the next one: the client then
        has a version to resume from."""
        while True:
            if self._frames and not self._is_revoked:
                return self._frames.popleft()
            if self._feed.is_gone or self._is_revoked:
                raise NotFound("There is no such chat.")
            if (group := self.pull()) is not None:
                await self._on_group(group)
            elif (parts := self._parts()) is not None:
                return parts
            else:
                await self.read_new()

    async def _on_group(self, group: EventGroup) -> None:
        """After joining, the viewer may be ahead of its feed, or at a version between two groups.
        A group omits what did not change since its own `after`, so a viewer in between joins
        again. So does a viewer that read a past which the database has lost."""
        if group.after == self._cursor:
            self._end_episode(group)
            self._advance_to(group)
        elif group.reached == self._cursor:
            return
        elif group.reset or group.reached.version >= self._cursor.version:
            await self.join()

    def _advance_to(self, group: EventGroup) -> None:
        self._cursor = group.reached
        if group.restarts_episode:
            self._seq = 0
        self._episode = group.episode
        self._frames.extend(split_frames(group.events, group.reached, reset=group.reset))

    def _end_episode(self, group: EventGroup) -> None:
        """The preview is never shorter than the message that replaces it."""
        for first in range(self._seq, len(group.ended), MAX_FRAME_EVENTS):
            self._frames.append(Frame(events=group.ended[first : first + MAX_FRAME_EVENTS]))

    def _parts(self) -> Frame | None:
        if self._episode is None:
            return None
        events = self._live.parts_after(self._episode, self._seq, MAX_FRAME_EVENTS)
        if not events:
            return None
        self._seq += len(events)
        if not self.has_next and not self._live.has_after(self._episode, self._seq):
            self.caught_up()
        return Frame(events=events)


class FeedRegistryConfig(Struct, frozen=True, kw_only=True):
    """`max_concurrent_joins` leaves database sessions to writers when many viewers join at once;
    the other viewers wait, at most for `join_timeout_s`."""

    poll_s: float = 10
    readers: int = 4
    max_concurrent_joins: int = 4
    join_timeout_s: float = 30
    backoff: Backoff = Backoff(first_delay_s=0.1, max_delay_s=2.0)


DEFAULT_FEED_REGISTRY_CONFIG: Final = FeedRegistryConfig()
DATABASE_BUSY: Final = "database_busy"


MAX_NEW_CHATS: Final = 512
NEW_CHAT_S: Final = 10.0
MAX_NEW_CHAT_MESSAGES: Final = 8


class NewChats:
    """Chats that this replica has created a moment ago, for their first viewers, who mostly come
    at once: what the statement has written needs no read. The next change ends it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: dict[ChatId, tuple[float, ChatSnapshot]] = {}

    def on_applied(self, applied: AppliedChange) -> None:
        chat = applied.chat
        change = applied.change
        self._kept.pop(chat.id, None)
        if change is None or change.before is not None or applied.replayed or chat.queue_len:
            return
        if len(applied.messages) > MAX_NEW_CHAT_MESSAGES:
            return  # a copy or an import, which may be large
        if len(self._kept) >= MAX_NEW_CHATS:
            del self._kept[next(iter(self._kept))]
        snapshot = ChatSnapshot(chat=chat, since=0, messages=applied.messages, queue=())
        self._kept[chat.id] = (self._clock.monotonic() + NEW_CHAT_S, snapshot)

    def forget(self, chat_id: ChatId) -> None:
        self._kept.pop(chat_id, None)

    def take(self, chat_id: ChatId) -> ChatSnapshot | None:
        until, snapshot = self._kept.pop(chat_id, (0.0, None))
        return snapshot if until > self._clock.monotonic() else None


class FeedRegistry:
    """`run` must be running. The `on_` callbacks do not block."""

    def __init__(
        self,
        conn: Conn,
        env: Env,
        live: LivePartSource,
        config: FeedRegistryConfig = DEFAULT_FEED_REGISTRY_CONFIG,
        *,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._conn = conn
        self._env = env
        self._live = live
        self._config = config
        self._draw = draw
        self._feeds: dict[ChatId, ChatFeed] = {}
        self._new_chats = NewChats(env.clock)
        self._requested: dict[ChatFeed, None] = {}
        self._being_read: set[ChatFeed] = set()
        self._has_requested = asyncio.Event()
        self._has_feeds = asyncio.Event()
        self._sleep = InterruptibleSleep(env.clock)
        self._join_slots = asyncio.Semaphore(config.max_concurrent_joins)

    @property
    def watched(self) -> int:
        return len(self._feeds)

    def known(self, chat_id: ChatId) -> Chat | None:
        """The last row of a chat that has a viewer here."""
        feed = self._feeds.get(chat_id)
        return None if feed is None else feed.chat

    # For transports

    @asynccontextmanager
    async def open_viewer(
        self, actor: Actor, chat_id: ChatId, after: Cursor | None
    ) -> AsyncGenerator[Viewer]:
        """`after` is the client's last cursor. Raises NotFound or Unavailable before the viewer
        exists, so that a transport can still reply with an error status. NotFound also if the
        actor may not read the chat."""
        feed = self._feeds.get(chat_id) or self._new(chat_id)
        viewer = Viewer(feed, self._live, self._env.clock, after)
        feed.viewers.add(viewer)
        try:
            await self._join(viewer)
            await self._require_readable(actor, chat_id)
            yield viewer
        finally:
            feed.viewers.discard(viewer)
            if not feed.viewers:
                self._drop(feed)

    async def _require_readable(self, actor: Actor, chat_id: ChatId) -> None:
        """The feed has read the row, so that the owner and a worker need no read of their own."""
        row = self.known(chat_id)
        if row is not None and is_allowed(actor, "chats.read", row.owner_id):
            return
        if await chats.get(self._conn, actor, chat_id) is None:
            raise NotFound("There is no such chat.")

    async def _join(self, viewer: Viewer) -> None:
        """While the pool is exhausted, wait and retry instead of refusing the viewer."""
        failures = 0
        try:
            async with asyncio.timeout(self._config.join_timeout_s):
                while not await self._try_join(viewer):
                    failures += 1
                    delay = self._config.backoff.delay(failures, self._draw)
                    await self._env.clock.sleep(delay, "join_retry")
        except TimeoutError:
            raise Unavailable(
                "Too many viewers are joining at once. Retry in a moment.", code=DATABASE_BUSY
            ) from None

    async def _try_join(self, viewer: Viewer) -> bool:
        try:
            await viewer.join()
        except Unavailable as error:
            if error.code != DATABASE_BUSY:
                raise
            return False
        return True

    # Callbacks

    def on_applied(self, applied: AppliedChange) -> None:
        """This replica wrote the row, by a transition or by another statement."""
        if (feed := self._feeds.get(applied.chat.id)) is not None:
            feed.on_applied(applied)
        else:
            self._new_chats.on_applied(applied)

    def on_hint(self, hint: Hint) -> None:
        if (feed := self._feeds.get(hint.chat_id)) is not None:
            feed.on_hint(Cursor(hint.snapshot_version, hint.change_id))
            self._live.hurry(hint.chat_id)
        elif hint.snapshot_version > 1:
            self._new_chats.forget(hint.chat_id)

    def mark_all_dirty(self) -> None:
        """Hints may have been missed: poll now."""
        self._sleep.wake()

    # Background tasks

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._poll_periodically(), name="feeds_poll")
            for number in range(self._config.readers):
                group.create_task(self._read(), name=f"feeds_read_{number}")

    def _new(self, chat_id: ChatId) -> ChatFeed:
        feed = ChatFeed(
            chat_id,
            self._conn,
            self._live,
            self._request_read,
            self._join_slots,
            created=self._new_chats.take(chat_id),
        )
        self._feeds[chat_id] = feed
        self._live.watch(chat_id, feed.on_parts)
        self._has_feeds.set()
        return feed

    def _drop(self, feed: ChatFeed) -> None:
        if self._feeds.get(feed.chat_id) is feed:
            del self._feeds[feed.chat_id]
            self._live.unwatch(feed.chat_id)
        self._requested.pop(feed, None)

    # Reading

    def _request_read(self, feed: ChatFeed) -> None:
        if feed.viewers:
            self._requested[feed] = None
            self._has_requested.set()

    def _next_requested(self) -> ChatFeed | None:
        """A feed that is being read waits: reads of one chat must not overlap."""
        feed = next((feed for feed in self._requested if feed not in self._being_read), None)
        if feed is not None:
            del self._requested[feed]
        return feed

    async def _read(self) -> None:
        failures = 0
        while True:
            while (feed := self._next_requested()) is None:
                self._has_requested.clear()
                await self._has_requested.wait()
            self._being_read.add(feed)
            try:
                await feed.catch_up()
                failures = 0
            except ChatdError as error:
                failures += 1
                self._on_failure(feed, error, failures)
            finally:
                self._being_read.discard(feed)
                if self._requested:
                    self._has_requested.set()
            if failures:
                delay = self._config.backoff.delay(failures, self._draw)
                await self._env.clock.sleep(delay, "feed_retry")

    def _on_failure(self, feed: ChatFeed, error: ChatdError, failures: int) -> None:
        """Retry if the database is unavailable. After any other error the poll tries again later: a
        row that cannot be decoded now cannot be decoded in a second either."""
        self._env.emit(
            "feed_failed", chat_id=feed.chat_id, error_kind=error.code, failures=failures
        )
        if isinstance(error, Unavailable):
            self._request_read(feed)

    # The poll

    async def _poll_periodically(self) -> None:
        failures = 0
        while True:
            if not self._feeds:
                self._has_feeds.clear()
                await self._has_feeds.wait()
            await self._sleep.sleep(self._config.poll_s, "feeds_poll")
            try:
                await self._poll()
                failures = 0
            except ChatdError as error:
                failures += 1
                self._env.emit("feeds_poll_failed", error_kind=error.code, failures=failures)
                delay = self._config.backoff.delay(failures, self._draw)
                await self._env.clock.sleep(delay, "feeds_poll_retry")
                self._sleep.wake()

    async def _poll(self) -> None:
        known = {feed.chat_id: feed.chat for feed in self._feeds.values() if feed.chat is not None}
        if not known:
            return
        found = await chats.list_versions(self._conn, FEEDS, list(known))
        for chat_id, chat in known.items():
            if (feed := self._feeds.get(chat_id)) is not None:
                _compare(feed, chat, found.get(chat_id))


def _compare(feed: ChatFeed, chat: Chat, found: ChatVersion | None) -> None:
    """`chat` is the row that the feed had before the poll's read."""
    if found is None:
        feed.on_deleted()
        return
    same = (found.version, found.change_id) == (chat.snapshot_version, chat.change_id)
    now = feed.chat or chat
    overtaken = now is not chat and now.contains(found.version, found.change_id)
    if not same and not overtaken:
        feed.request_read()
