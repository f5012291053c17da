"""News as a chain: whoever follows it holds the last link it has had, and nothing else.

Owns back-pressure. A link that everybody has passed is nobody's any more and goes away; a
follower that is too far behind loses its place, is told so at the next chance, and comes back
by its version. So a slow one costs at most a bound, and the others nothing.
"""

import asyncio
from typing import Final, Generic, TypeVar

from chatd.domain.errors import ChatdError
from chatd.domain.ports import Clock

MAX_BEHIND_S: Final = 10.0
MAX_BEHIND_BYTES: Final = 1024 * 1024

T = TypeVar("T")


class Lagged(ChatdError):
    """The follower is too far behind: it must come back by its version."""

    code = "lagged"


class Link(Generic[T]):
    """`end` counts the bytes of all links up to this one."""

    __slots__ = ("end", "item", "next")

    def __init__(self, item: T | None, end: int) -> None:
        self.item = item
        self.end = end
        self.next: Link[T] | None = None


class Chain(Generic[T]):
    """Begins with an empty link, for those who come before the first news."""

    def __init__(self) -> None:
        self.last: Link[T] = Link(None, 0)

    def append(self, item: T, size: int) -> None:
        link = Link(item, self.last.end + size)
        self.last.next = link
        self.last = link


class Follower(Generic[T]):
    """A place in a chain, and an ear. `wake` says that there is something new."""

    def __init__(self, chain: Chain[T], clock: Clock) -> None:
        self._chain = chain
        self._clock = clock
        self._link: Link[T] | None = chain.last
        self._news = asyncio.Event()
        self._late_since: float | None = None

    @property
    def lagged(self) -> bool:
        return self._link is None

    def wake(self) -> None:
        self._news.set()
        if self._link is None:
            return
        now = self._clock.monotonic()
        if self._late_since is None:
            self._late_since = now
        behind = self._chain.last.end - (self._link.next or self._link).end
        if behind > MAX_BEHIND_BYTES or now - self._late_since > MAX_BEHIND_S:
            self._link = None

    def to_the_end(self) -> None:
        """Leave out what is in the chain so far."""
        self._link = self._chain.last

    def pull(self) -> T | None:
        """The next item; None if there is none yet. Raises Lagged."""
        if self._link is None:
            raise Lagged("Too far behind to go on; come back with the last version seen.")
        link = self._link.next
        if link is None:
            return None
        self._link = link
        if link.next is None:
            self.caught_up()
        return link.item

    def caught_up(self) -> None:
        """All that there is has been taken, though perhaps not sent."""
        self._late_since = None

    @property
    def has_next(self) -> bool:
        return self._link is not None and self._link.next is not None

    async def news(self) -> None:
        """Until the next `wake`."""
        self.caught_up()
        self._news.clear()
        await self._news.wait()
