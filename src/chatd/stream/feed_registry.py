"""All feeds of this replica: made for the first viewer of a chat, dropped after the last.

Owns who reads when. A few readers serve all feeds, so that a database that comes back is not
met by as many reads as there are viewers; a poll every few seconds finds what hints have failed
to tell, in one statement for all. An idle feed costs a row in that poll, and nothing else.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Final

from msgspec import Struct

from chatd.aio.backoff import Backoff
from chatd.aio.waits import InterruptibleSleep
from chatd.domain.chat.row import Chat, Hint
from chatd.domain.errors import ChatdError, Unavailable
from chatd.domain.ids import ChatId
from chatd.domain.ports import Env
from chatd.store.chat import chats
from chatd.store.chat.chats import ChatVersion
from chatd.store.chat.transactor import AppliedChange
from chatd.store.conn import Conn
from chatd.stream.chat_feed import ChatFeed
from chatd.stream.live_parts import LivePartSource
from chatd.stream.viewer import Viewer


class FeedRegistryConfig(Struct, frozen=True, kw_only=True):
    """`joining`: newcomers who read at once, so that a crowd of them leaves sessions to those who
    write. The others wait in line, but no longer than `join_within_s`."""

    poll_s: float = 10
    readers: int = 4
    max_concurrent_joins: int = 4
    join_timeout_s: float = 30
    backoff: Backoff = Backoff(first_delay_s=0.1, max_delay_s=2.0)


DEFAULT_FEED_REGISTRY_CONFIG: Final = FeedRegistryConfig()
DATABASE_BUSY: Final = "database_busy"


class FeedRegistry:
    """`run` must be running. The other methods are to be called by whoever writes, and by
    whoever hears hints; they do not wait."""

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
        self._asking: dict[ChatFeed, None] = {}
        self._being_read: set[ChatFeed] = set()
        self._some_ask = asyncio.Event()
        self._some_feeds = asyncio.Event()
        self._pause = InterruptibleSleep(env.clock)
        self._line = asyncio.Semaphore(config.max_concurrent_joins)

    @property
    def watched(self) -> int:
        return len(self._feeds)

    def known(self, chat_id: ChatId) -> Chat | None:
        """The row of a chat that is watched here, as it was last seen."""
        feed = self._feeds.get(chat_id)
        return None if feed is None else feed.chat

    # For transports

    @asynccontextmanager
    async def open_viewer(self, chat_id: ChatId, after: int | None) -> AsyncGenerator[Viewer]:
        """`after` is the last version that the client has. Raises NotFound or Unavailable
        before there is a viewer, so that a transport can still answer with an error."""
        feed = self._feeds.get(chat_id) or self._new(chat_id)
        viewer = Viewer(feed, self._live, self._env.clock, after)
        feed.ears.add(viewer)
        try:
            await self._join(viewer)
            yield viewer
        finally:
            feed.ears.discard(viewer)
            if not feed.ears:
                self._drop(feed)

    async def _join(self, viewer: Viewer) -> None:
        """Where sessions are short, a newcomer rather waits than is refused."""
        failures = 0
        try:
            async with asyncio.timeout(self._config.join_timeout_s):
                while not await self._joined(viewer):
                    failures += 1
                    delay = self._config.backoff.delay(failures, self._draw)
                    await self._env.clock.sleep(delay, "join_retry")
        except TimeoutError:
            raise Unavailable("Too many viewers have come at once.", code=DATABASE_BUSY) from None

    async def _joined(self, viewer: Viewer) -> bool:
        try:
            await viewer.join()
        except Unavailable as error:
            if error.code != DATABASE_BUSY:
                raise
            return False
        return True

    # For whoever has news

    def on_applied(self, applied: AppliedChange) -> None:
        """A write of this replica; of a row that others than a move have written, too."""
        if (feed := self._feeds.get(applied.chat.id)) is not None:
            feed.on_applied(applied)

    def on_hint(self, hint: Hint) -> None:
        if (feed := self._feeds.get(hint.chat_id)) is not None:
            feed.on_hint(hint.snapshot_version)
            self._live.hurry(hint.chat_id)

    def mark_all_dirty(self) -> None:
        """Hints may have been missed: look at all at once, in one statement."""
        self._pause.wake()

    # Life

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._poll_in_time(), name="feeds_poll")
            for number in range(self._config.readers):
                group.create_task(self._read(), name=f"feeds_read_{number}")

    def _new(self, chat_id: ChatId) -> ChatFeed:
        feed = ChatFeed(chat_id, self._conn, self._live, self._ask, self._line)
        self._feeds[chat_id] = feed
        self._live.watch(chat_id, feed.on_parts)
        self._some_feeds.set()
        return feed

    def _drop(self, feed: ChatFeed) -> None:
        if self._feeds.get(feed.chat_id) is feed:
            del self._feeds[feed.chat_id]
            self._live.unwatch(feed.chat_id)
        self._asking.pop(feed, None)

    # Reading

    def _ask(self, feed: ChatFeed) -> None:
        if feed.ears:
            self._asking[feed] = None
            self._some_ask.set()

    def _next_asking(self) -> ChatFeed | None:
        """One that is being read waits, so that news of one chat are read one after another."""
        feed = next((feed for feed in self._asking if feed not in self._being_read), None)
        if feed is not None:
            del self._asking[feed]
        return feed

    async def _read(self) -> None:
        failures = 0
        while True:
            while (feed := self._next_asking()) is None:
                self._some_ask.clear()
                await self._some_ask.wait()
            self._being_read.add(feed)
            try:
                await feed.catch_up()
                failures = 0
            except ChatdError as error:
                failures += 1
                self._failed(feed, error, failures)
            finally:
                self._being_read.discard(feed)
                if self._asking:
                    self._some_ask.set()
            if failures:
                delay = self._config.backoff.delay(failures, self._draw)
                await self._env.clock.sleep(delay, "feed_retry")

    def _failed(self, feed: ChatFeed, error: ChatdError, failures: int) -> None:
        """A database that is away is waited for. With anything else the poll will try again,
        not we: a row that cannot be read today cannot be read in a second either."""
        self._env.emit(
            "feed_failed", chat_id=feed.chat_id, error_kind=error.code, failures=failures
        )
        if isinstance(error, Unavailable):
            self._ask(feed)

    # The poll

    async def _poll_in_time(self) -> None:
        failures = 0
        while True:
            if not self._feeds:
                self._some_feeds.clear()
                await self._some_feeds.wait()
            await self._pause.sleep(self._config.poll_s, "feeds_poll")
            try:
                await self._poll()
                failures = 0
            except ChatdError as error:
                failures += 1
                self._env.emit("feeds_poll_failed", error_kind=error.code, failures=failures)
                delay = self._config.backoff.delay(failures, self._draw)
                await self._env.clock.sleep(delay, "feeds_poll_retry")
                self._pause.wake()

    async def _poll(self) -> None:
        known = {feed.chat_id: feed.chat for feed in self._feeds.values() if feed.chat is not None}
        if not known:
            return
        found = await chats.list_versions(self._conn, list(known))
        for chat_id, chat in known.items():
            if (feed := self._feeds.get(chat_id)) is not None:
                _compare(feed, chat, found.get(chat_id))


def _compare(feed: ChatFeed, chat: Chat, found: ChatVersion | None) -> None:
    """`chat` is what the feed knew before the row was looked at."""
    if found is None:
        feed.on_deleted()
        return
    newest = chat.recent_changes[0] if chat.recent_changes else None
    same = (found.version, found.change_id) == (chat.snapshot_version, newest)
    now = feed.chat or chat
    overtaken = now is not chat and now.snapshot_version >= found.version
    if not same and not overtaken:
        feed.request_read()
