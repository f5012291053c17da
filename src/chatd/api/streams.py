"""Open event streams: how many there are, how each is kept alive, and how it ends.

Whatever ends a stream says why, and the client resumes by its version. Owns the ping and the
patience with a client that does not read; what is sent is up to the transports.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from typing import Final

from msgspec import Struct

from chatd.api.auth import Caller
from chatd.api.call import Message, Send
from chatd.api.doors import Limits
from chatd.api.errors import GOING, Draining, TooManyStreams
from chatd.api.metrics import Metrics
from chatd.domain.errors import ChatdError, NotFound, Unavailable
from chatd.domain.ids import UserId
from chatd.domain.ports import Clock
from chatd.domain.workspace.agent_api import AgentRefused, AgentUnreachable
from chatd.stream.fanout import Lagged

log = logging.getLogger(__name__)

LOST: Final = (OSError, RuntimeError)
"""What writing to a client that has gone raises: the second if the connection is closed already,
by the event loop's word or by the server's."""
FAREWELL_WITHIN_S: Final = 1.0
CLOSE_WITHIN_S: Final = 2.0


class End(Struct, frozen=True, kw_only=True):
    """Why a stream ended. `close_code` is a WebSocket's."""

    code: str
    message: str
    close_code: int


GONE: Final = End(code="client_gone", message="The client has hung up.", close_code=1000)
GOING_AWAY: Final = End(
    code="going_away",
    message="The server is stopping; connect again with the last version seen.",
    close_code=1012,
)
TOO_SLOW: Final = End(
    code="lagged",
    message="Too far behind to go on; connect again with the last version seen.",
    close_code=1013,
)
NOT_READING: Final = End(code="not_reading", message="The client takes nothing.", close_code=1013)
_NOT_FOUND: Final = End(code="not_found", message="There is no such chat.", close_code=1008)
_BUG: Final = End(code="internal", message="Something went wrong on the server.", close_code=1011)


def end_of(error: ChatdError) -> End:
    match error:
        case Lagged():
            return TOO_SLOW
        case NotFound():
            return _NOT_FOUND
        case AgentUnreachable() | AgentRefused():
            return End(code=error.code, message=error.message, close_code=1013)
        case Unavailable():
            text = "The database cannot be reached just now; connect again."
            return End(code=error.code, message=text, close_code=1013)
        case _:
            return _BUG


class Stream:
    """One connection that is written to. Whoever ends it first is right."""

    def __init__(self, send: Send, clock: Clock, limits: Limits) -> None:
        self._send = send
        self._clock = clock
        self._limits = limits
        self._writers = 0
        self._waiting_since = 0.0
        self._cut: asyncio.Timeout | None = None
        self.ended: End | None = None

    async def write(self, message: Message) -> None:
        """Waits while the client does not read; not for ever, see `watch`."""
        if self._writers == 0:
            self._waiting_since = self._clock.monotonic()
        self._writers += 1
        try:
            await self._send(message)
        except LOST:
            self.end(GONE)
        finally:
            self._writers -= 1
            self._waiting_since = self._clock.monotonic()

    def end(self, why: End) -> None:
        if self.ended is None:
            self.ended = why
            if self._cut is not None:
                self._cut.reschedule(asyncio.get_running_loop().time())

    async def run(self, *parts: Callable[[], Awaitable[None]]) -> End:
        """All parts at once, until one of them ends or raises, or somebody calls `end`."""
        try:
            async with asyncio.timeout(None) as self._cut:
                if self.ended is None:
                    await self._run(parts)
        except TimeoutError:
            if self.ended is None:
                raise
        finally:
            self._cut = None
        return self.ended or GONE

    async def _run(self, parts: tuple[Callable[[], Awaitable[None]], ...]) -> None:
        async with asyncio.TaskGroup() as group:
            for part in parts:
                group.create_task(self._one(part))

    async def _one(self, part: Callable[[], Awaitable[None]]) -> None:
        try:
            await part()
        except ChatdError as error:
            self.end(end_of(error))
        except Exception:
            log.exception("an event stream failed")
            self.end(_BUG)
        else:
            self.end(GONE)

    async def watch(self, ping: Message | None = None) -> None:
        """Never ends by itself. A client that takes nothing for too long is let go."""
        every_s = self._limits.write_within_s / 2
        idle_s = 0.0
        while True:
            await self._clock.sleep(every_s, "stream_watch")
            idle_s += every_s
            if self._stuck:
                self.end(NOT_READING)
            elif ping is not None and idle_s >= self._limits.ping_s:
                idle_s = 0.0
                await self._bounded(ping, self._limits.write_within_s)

    @property
    def _stuck(self) -> bool:
        waited = self._clock.monotonic() - self._waiting_since
        return self._writers > 0 and waited > self._limits.write_within_s

    async def _bounded(self, message: Message, within_s: float) -> None:
        try:
            async with asyncio.timeout(within_s):
                await self.write(message)
        except TimeoutError:
            self.end(NOT_READING)

    async def farewell(self, *messages: Message) -> None:
        """The last words, if the client still listens."""
        if self.ended in (GONE, NOT_READING):
            return
        with suppress(*LOST, TimeoutError):
            async with asyncio.timeout(FAREWELL_WITHIN_S):
                for message in messages:
                    await self._send(message)


class Streams:
    """All streams of this replica."""

    def __init__(self, clock: Clock, limits: Limits, metrics: Metrics) -> None:
        self._clock = clock
        self._limits = limits
        self._metrics = metrics
        self._open: set[Stream] = set()
        self._by_user: Counter[UserId] = Counter()
        self._closed = False
        self._none_open = asyncio.Event()

    @contextmanager
    def open(self, caller: Caller, transport: str, send: Send) -> Generator[Stream]:
        if self._closed:
            raise Draining(GOING)
        user = caller.user_id
        if self._by_user[user] >= self._limits.streams_per_user:
            raise TooManyStreams(f"At most {self._limits.streams_per_user} streams at once.")
        stream = Stream(send, self._clock, self._limits)
        self._by_user[user] += 1
        self._open.add(stream)
        self._metrics.opened(transport)
        try:
            yield stream
        finally:
            self._metrics.ended(transport, (stream.ended or GONE).code)
            self._open.discard(stream)
            self._by_user[user] -= 1
            if self._by_user[user] == 0:
                del self._by_user[user]
            if not self._open:
                self._none_open.set()

    async def close(self) -> None:
        """The server stops: every client is sent to another replica, and has a moment to hear
        of it."""
        self._closed = True
        for stream in tuple(self._open):
            stream.end(GOING_AWAY)
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_WITHIN_S):
                while self._open:
                    self._none_open.clear()
                    await self._none_open.wait()
