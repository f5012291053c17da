"""One viewer of one chat: durable groups and live parts, in an order a client can trust.

Owns a client's place: the version it has, and how many parts of which episode. Parts of an
episode are sent only after the group that announced it and before the one that ends it; later
they would be shown twice. Writing frames to a socket is the transport's business, and so is
giving up on one that takes nothing.
"""

from collections import deque
from collections.abc import AsyncIterator

from chatd.domain.chat.row import Episode
from chatd.domain.errors import NotFound
from chatd.domain.ports import Clock
from chatd.stream.chat_feed import ChatFeed, EventGroup
from chatd.stream.fanout import Subscription
from chatd.stream.frames import MAX_FRAME_EVENTS, Frame, split_frames
from chatd.stream.live_parts import LivePartSource


class Viewer(Subscription[EventGroup]):
    """Made by `Feeds.view`, which also lets it go."""

    def __init__(
        self, feed: ChatFeed, live: LivePartSource, clock: Clock, version: int | None
    ) -> None:
        super().__init__(feed.groups, clock)
        self._feed = feed
        self._live = live
        self._version = max(version or 0, 0)
        self._episode: Episode | None = None
        self._seq = 0
        self._due: deque[Frame] = deque()

    async def join(self) -> None:
        """Read what leads from the client's version to now. Raises NotFound, Unavailable."""
        self.skip_to_end()
        self._go_to(await self._feed.join(self._version))

    async def frames(self) -> AsyncIterator[Frame]:
        """Ends only by raising: Lagged, NotFound, Unavailable, or because it is cancelled."""
        while True:
            yield await self.next()

    async def next(self) -> Frame:
        """A group is always sent whole, even by one that is too late for the next: it then has
        a version to come back with."""
        while True:
            if self._due:
                return self._due.popleft()
            if self._feed.is_gone:
                raise NotFound("There is no such chat.")
            if (group := self.pull()) is not None:
                await self._meet(group)
            elif (parts := self._parts()) is not None:
                return parts
            else:
                await self.read_new()

    async def _meet(self, group: EventGroup) -> None:
        """After joining, a viewer may be ahead of its feed, or between two of its groups. What
        a group leaves out because it has not changed need not be so for one in between."""
        if group.after == self._version:
            self._go_to(group)
        elif group.version > self._version:
            await self.join()

    def _go_to(self, group: EventGroup) -> None:
        self._version = group.version
        if group.restarts_episode:
            self._seq = 0
        self._episode = group.episode
        self._due.extend(split_frames(group.events, group.version, reset=group.reset))

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
