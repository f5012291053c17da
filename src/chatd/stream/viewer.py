"""One viewer of one chat: event groups and live parts in an order that a client can rely on.

Owns the client's position: its cursor, its episode and the number of parts it has. Parts of an
episode are sent after the group that starts the episode and before the group that ends it; sent
later, the client would show them twice. The transport writes frames to the socket and closes a
connection that does not read.
"""

from collections import deque
from collections.abc import AsyncIterator

from chatd.domain.chat.row import Episode
from chatd.domain.chat_views.events import START, Cursor
from chatd.domain.errors import NotFound
from chatd.domain.ports import Clock
from chatd.stream.chat_feed import ChatFeed, EventGroup
from chatd.stream.fanout import Subscription
from chatd.stream.frames import MAX_FRAME_EVENTS, Frame, split_frames
from chatd.stream.live_parts import LivePartSource


class Viewer(Subscription[EventGroup]):
    """Created and closed by `FeedRegistry.open_viewer`."""

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

    async def join(self) -> None:
        """Read the changes since the client's cursor. Raises NotFound, Unavailable."""
        self.skip_to_end()
        self._advance_to(await self._feed.join(self._cursor))

    def revoke(self) -> None:
        """The client may no longer read the chat: nothing more is sent."""
        self._is_revoked = True
        self.wake()

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
