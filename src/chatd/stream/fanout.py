"""News as a chain: whoever follows it holds the last link it has had, and nothing else.

Owns back-pressure. A link that everybody has passed is nobody's any more and goes away; a
follower that is too far behind loses its place, is told so at the next chance, and comes back
by its version. So a slow one costs at most a bound, and the others nothing.

One read for all who want the same thing at once.

What was read before somebody came may be too old for them. So whoever comes while a read is under
way shares the next one, and a crowd costs two. Owns who reads: the first in line does, in their
own time; if they give up, the next one does. There is no task that could be left behind, and no
read of another that is waited for long: its session may be dead.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from chatd.domain.errors import ChatdError
from chatd.domain.ports import Clock

MAX_VIEWER_LAG_S: Final = 10.0
MAX_VIEWER_LAG_BYTES: Final = 1024 * 1024

T = TypeVar("T")


class Lagged(ChatdError):
    """The follower is too far behind: it must come back by its version."""

    code = "lagged"


class BroadcastNode(Generic[T]):
    """`end` counts the bytes of all links up to this one."""

    __slots__ = ("end", "item", "next")

    def __init__(self, item: T | None, end: int) -> None:
        self.item = item
        self.end = end
        self.next: BroadcastNode[T] | None = None


class Broadcast(Generic[T]):
    """Begins with an empty link, for those who come before the first news."""

    def __init__(self) -> None:
        self.last: BroadcastNode[T] = BroadcastNode(None, 0)

    def append(self, item: T, size: int) -> None:
        link = BroadcastNode(item, self.last.end + size)
        self.last.next = link
        self.last = link


class Subscription(Generic[T]):
    """A place in a chain, and an ear. `wake` says that there is something new."""

    def __init__(self, chain: Broadcast[T], clock: Clock) -> None:
        self._chain = chain
        self._clock = clock
        self._link: BroadcastNode[T] | None = chain.last
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
        if behind > MAX_VIEWER_LAG_BYTES or now - self._late_since > MAX_VIEWER_LAG_S:
            self._link = None

    def skip_to_end(self) -> None:
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

    async def read_new(self) -> None:
        """Until the next `wake`."""
        self.caught_up()
        self._news.clear()
        await self._news.wait()


SHARED_READ_TIMEOUT_S: Final = 2.0


class SharedReadTimeout(Exception):
    """Somebody else's read does not end."""


class SharedRead(Generic[T]):
    """`wanted` is how many are waiting for it."""

    def __init__(self, read: Callable[[], Awaitable[T]]) -> None:
        self._read = read
        self._turn = asyncio.Lock()
        self._begun = 0
        self._ended = 0  # the number of the read that this is the outcome of
        self._outcome: T | ChatdError | None = None
        self.wanted = 0

    async def get(self, patience_s: float) -> T:
        """By a read that begins later than now. One that fails has failed for all. Raises Stuck if
        it is nobody's turn for so long."""
        came = self._begun
        self.wanted += 1
        try:
            await self._my_turn(patience_s)
            try:
                outcome = await self._after(came)
            finally:
                self._turn.release()
        finally:
            self.wanted -= 1
        if isinstance(outcome, ChatdError):
            raise outcome
        return outcome

    async def _my_turn(self, patience_s: float) -> None:
        try:
            async with asyncio.timeout(patience_s):
                await self._turn.acquire()
        except TimeoutError:
            raise SharedReadTimeout from None

    async def _after(self, came: int) -> T | ChatdError:
        if self._outcome is not None and self._ended > came:
            return self._outcome
        self._begun += 1
        self._outcome = None
        try:
            self._outcome = outcome = await self._read()
        except ChatdError as error:
            self._outcome = outcome = error
        self._ended = self._begun
        return outcome


class VersionedSharedRead(Generic[T]):
    """For those who want the same from different versions on. Keeps nothing that nobody wants."""

    def __init__(
        self, read: Callable[[int], Awaitable[T]], *, patience_s: float = SHARED_READ_TIMEOUT_S
    ) -> None:
        self._read = read
        self._patience_s = patience_s
        self._wanted: dict[int, SharedRead[T]] = {}

    async def get(self, version: int) -> T:
        patience_s = self._patience_s
        while True:
            shared = self._wanted.get(version)
            if shared is None:
                shared = self._wanted[version] = SharedRead(lambda: self._read(version))
            try:
                return await shared.get(patience_s)
            except SharedReadTimeout:
                # All who give up share the next one. If that is slow too, it is not the session.
                self._forget(version, shared)
                patience_s *= 2
            finally:
                if not shared.wanted:
                    self._forget(version, shared)

    def _forget(self, version: int, shared: SharedRead[T]) -> None:
        if self._wanted.get(version) is shared:
            del self._wanted[version]
