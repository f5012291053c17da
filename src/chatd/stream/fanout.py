"""Broadcast of items to subscriptions, reads that concurrent callers share, and the frames of
events.

A subscription holds its position in a linked list; nodes that all subscriptions have passed are
freed. A subscription that falls too far behind gets `Lagged` and must resume by version, so a slow
client costs a bounded amount of memory and does not delay the others.

A shared read coalesces callers: those that arrive during a read share the next one, because the
current result may be older than they need, so a crowd costs two reads. The first waiting caller
performs the read in its own task; if it is cancelled, the next caller does.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence
from typing import Final, Generic, TypeVar

from msgspec import Struct

from chatd.domain.chat_views.events import START, Cursor
from chatd.domain.errors import ChatdError
from chatd.domain.ports import Clock

MAX_VIEWER_LAG_S: Final = 10.0
MAX_VIEWER_LAG_BYTES: Final = 1024 * 1024

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


class Lagged(ChatdError):
    """The subscription is too far behind: the client must resume by version."""

    code = "lagged"


class BroadcastNode(Generic[T]):
    """`end` is the number of bytes up to and including this node."""

    __slots__ = ("end", "item", "next")

    def __init__(self, item: T | None, end: int) -> None:
        self.item = item
        self.end = end
        self.next: BroadcastNode[T] | None = None


class Broadcast(Generic[T]):
    """Starts with an empty node, the position of a subscription before the first item."""

    def __init__(self) -> None:
        self.last: BroadcastNode[T] = BroadcastNode(None, 0)

    def append(self, item: T, size: int) -> None:
        node = BroadcastNode(item, self.last.end + size)
        self.last.next = node
        self.last = node


class Subscription(Generic[T]):
    """A position in a broadcast. `wake` announces new items."""

    def __init__(self, broadcast: Broadcast[T], clock: Clock) -> None:
        self._broadcast = broadcast
        self._clock = clock
        self._node: BroadcastNode[T] | None = broadcast.last
        self._has_new = asyncio.Event()
        self._is_reading_new = False
        self._behind_since: float | None = None

    @property
    def is_idle(self) -> bool:
        """Everything has been taken and sent, and nothing has woken the reader since."""
        return self._is_reading_new and not self._has_new.is_set()

    @property
    def lagged(self) -> bool:
        return self._node is None

    def wake(self) -> None:
        self._has_new.set()
        if self._node is None:
            return
        now = self._clock.monotonic()
        if self._behind_since is None:
            self._behind_since = now
        behind = self._broadcast.last.end - (self._node.next or self._node).end
        if behind > MAX_VIEWER_LAG_BYTES or now - self._behind_since > MAX_VIEWER_LAG_S:
            self._node = None

    def skip_to_end(self) -> None:
        """Skip all items so far."""
        self._node = self._broadcast.last

    def pull(self) -> T | None:
        """The next item; None if there is none yet. Raises Lagged."""
        if self._node is None:
            raise Lagged("The client is too far behind. Reconnect with the last version received.")
        node = self._node.next
        if node is None:
            return None
        self._node = node
        if node.next is None:
            self.caught_up()
        return node.item

    def caught_up(self) -> None:
        """All items have been taken, though perhaps not sent."""
        self._behind_since = None

    @property
    def has_next(self) -> bool:
        return self._node is not None and self._node.next is not None

    async def read_new(self) -> None:
        """Wait for the next `wake`."""
        self.caught_up()
        self._has_new.clear()
        self._is_reading_new = True
        try:
            await self._has_new.wait()
        finally:
            self._is_reading_new = False


SHARED_READ_TIMEOUT_S: Final = 2.0


class SharedReadTimeout(Exception):
    """Another caller's read does not end; its session may be dead."""


class SharedRead(Generic[T]):
    """`waiting` counts the callers."""

    def __init__(self, read: Callable[[], Awaitable[T]]) -> None:
        self._read = read
        self._turn = asyncio.Lock()
        self._started = 0
        self._finished = 0  # the number of the read that gave `_outcome`
        self._outcome: T | ChatdError | None = None
        self.waiting = 0

    async def get(self, timeout_s: float) -> T:
        """Return the result of a read that starts after this call. All callers that share the read
        get its error. Raises SharedReadTimeout if another caller's read takes too long."""
        arrived_at = self._started
        self.waiting += 1
        try:
            await self._acquire_turn(timeout_s)
            try:
                outcome = await self._read_after(arrived_at)
            finally:
                self._turn.release()
        finally:
            self.waiting -= 1
        if isinstance(outcome, ChatdError):
            raise outcome
        return outcome

    async def _acquire_turn(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._turn.acquire()
        except TimeoutError:
            raise SharedReadTimeout from None

    async def _read_after(self, arrived_at: int) -> T | ChatdError:
        if self._outcome is not None and self._finished > arrived_at:
            return self._outcome
        self._started += 1
        self._outcome = None
        try:
            self._outcome = outcome = await self._read()
        except ChatdError as error:
            self._outcome = outcome = error
        self._finished = self._started
        return outcome


class VersionedSharedRead(Generic[K, T]):
    """One shared read per version, or per cursor, kept only while callers wait for it."""

    def __init__(
        self, read: Callable[[K], Awaitable[T]], *, timeout_s: float = SHARED_READ_TIMEOUT_S
    ) -> None:
        self._read = read
        self._timeout_s = timeout_s
        self._reads: dict[K, SharedRead[T]] = {}

    async def get(self, version: K) -> T:
        timeout_s = self._timeout_s
        while True:
            shared = self._reads.get(version)
            if shared is None:
                shared = self._reads[version] = SharedRead(lambda: self._read(version))
            try:
                return await shared.get(timeout_s)
            except SharedReadTimeout:
                # Callers that time out share a new read, and wait for it twice as long.
                self._remove(version, shared)
                timeout_s *= 2
            finally:
                if not shared.waiting:
                    self._remove(version, shared)

    def _remove(self, version: K, shared: SharedRead[T]) -> None:
        if self._reads.get(version) is shared:
            del self._reads[version]


# Split events into frames (one socket write each) and encode frames for each transport.
#
# An encoded event has no line break (`domain.chat.events`), so it fits one line of an SSE stream.

MAX_FRAME_EVENTS: Final = 256
MAX_FRAME_BYTES: Final = 256 * 1024

PING: Final = b": ping\n\n"
_TYPE_FIELD: Final = b'{"type":"'


class Frame(Struct, frozen=True, kw_only=True):
    """`cursor` is set on the frame that completes a state: the client may resume from it. It is the
    start on a frame that resets the client, which cannot resume until the new state is complete."""

    events: Sequence[bytes]
    cursor: Cursor | None = None


def split_frames(
    events: Sequence[bytes], cursor: Cursor, *, reset: bool = False
) -> Iterator[Frame]:
    """Split one group; the last frame has its cursor."""
    if reset:
        yield Frame(events=events[:1], cursor=START)
        events = events[1:]
    pieces = list(_pieces(events))
    for piece in pieces[:-1]:
        yield Frame(events=piece)
    yield Frame(events=pieces[-1] if pieces else (), cursor=cursor)


def _pieces(events: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    start = size = 0
    for index, event in enumerate(events):
        full = index - start >= MAX_FRAME_EVENTS or size + len(event) > MAX_FRAME_BYTES
        if full and index > start:
            yield events[start:index]
            start, size = index, 0
        size += len(event)
    if start < len(events):
        yield events[start:]


def encode_sse(frame: Frame) -> bytes:
    """The id is the cursor, so that `Last-Event-ID` resumes."""
    body = b"\n\n".join(map(sse_block, frame.events)) if frame.events else b"data:"
    if frame.cursor is None:
        return body + b"\n\n"
    # The id goes with the frame's last event: only then the state is complete.
    return body + b"\nid: %b\n\n" % str(frame.cursor).encode()


def sse_block(event: bytes) -> bytes:
    """The `event:` line repeats the type, which is the event's first field."""
    if not event.startswith(_TYPE_FIELD):
        return b"data: " + event
    name = event[len(_TYPE_FIELD) : event.index(b'"', len(_TYPE_FIELD))]
    return b"event: %b\ndata: %b" % (name, event)


def encode_json_array(frame: Frame) -> bytes:
    """For a WebSocket."""
    return b"[" + b",".join(frame.events) + b"]"
