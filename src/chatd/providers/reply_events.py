"""The events of a streamed reply: from the socket to the taker in one call, no task per token.

The first reads of a stream wake the coroutine that waits for the answer, so that the first token
is not delayed. Then the stream is on the beat: between two beats its socket is not read, so that a
token wakes nothing. At a shared interval the sockets of all busy streams are read together, and one
callback decodes what has arrived and passes it on. The coroutine wakes again when the stream ends
or fails, and when the taker has to wait.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any, Final, Protocol, cast

import aiohttp

from chatd.domain.model.protocol import (
    ModelEvent,
    ProviderError,
    ProviderFault,
    StreamFailed,
    StreamPing,
    TextDelta,
    ToolCallDelta,
)
from chatd.domain.ports import TakeEvents
from chatd.providers.faults import too_large_fault, transport_fault
from chatd.providers.sse import FramedDecoder

BEAT_INTERVAL_S: Final = 0.03
"""Not shorter than the interval at which parts for viewers are coalesced: one read is one part."""
MAX_BEAT_INTERVAL_S: Final = 0.15
MAX_READS_PER_S: Final = 1000
"""Limit for all streams of a provider together: the interval grows with their number, so that more
tokens share the cost of a read and of a write."""
WAKING_READS: Final = 4
"""Reads of a stream before it goes on the beat."""
READS_AT_ONCE: Final = 64
"""Reads before other callbacks of the event loop have their turn."""
LARGE_READ_BYTES: Final = 32 * 1024
"""After a larger read the socket is read on: the provider sends faster than the beat."""
MAX_STREAM_BYTES: Final = 256 * 1024 * 1024
"""Limit of one streamed reply with pings and framing, for a provider that never stops sending."""
# A connection can be reused once its reply has been read to the end; wait this long for the end.
_DRAIN_TIMEOUT_S: Final = 0.25

_PING: Final = (StreamPing(),)

OnBeat = Callable[[float], None]
"""Called with the time of the event loop. Must not raise."""


def _nothing() -> None:
    pass


class Beat:
    """Calls all its readers at one interval. Has a timer only while it has readers. `prepare` of a
    reader is called first; before the reader itself is called, the event loop has looked at its
    sockets once."""

    def __init__(self, interval_s: float = BEAT_INTERVAL_S) -> None:
        self._least_s = interval_s
        self.interval_s = interval_s
        self._readers: dict[OnBeat, Callable[[], None]] = {}
        self._is_running = False

    def add(self, reader: OnBeat, prepare: Callable[[], None] = _nothing) -> None:
        self._readers[reader] = prepare
        if not self._is_running:
            self._is_running = True
            asyncio.get_running_loop().call_later(self.interval_s, self._strike)

    def remove(self, reader: OnBeat) -> None:
        self._readers.pop(reader, None)

    def _strike(self) -> None:
        self._prepare(list(self._readers))

    def _prepare(self, due: list[OnBeat]) -> None:
        readers, loop = self._readers, asyncio.get_running_loop()
        for reader in due[:READS_AT_ONCE]:
            if (prepare := readers.get(reader)) is not None:
                prepare()
        # What a callback schedules runs after the loop has looked at its sockets, but the loop has
        # not looked before this callback: that needs two.
        loop.call_soon(loop.call_soon, self._call, due)

    def _call(self, due: list[OnBeat]) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for reader in due[:READS_AT_ONCE]:
            if reader in self._readers:
                reader(now)
        if rest := due[READS_AT_ONCE:]:
            self._prepare(rest)
            return
        many = len(self._readers)
        self.interval_s = max(self._least_s, min(many / MAX_READS_PER_S, MAX_BEAT_INTERVAL_S))
        self._is_running = many > 0
        if many:
            loop.call_later(self.interval_s, self._strike)


def merge_deltas(events: Sequence[ModelEvent]) -> Sequence[ModelEvent]:
    """Merge adjacent deltas of the same text or call."""
    if len(events) < 2:
        return events
    first = events[0]
    if type(first) is TextDelta and all(
        type(event) is TextDelta and event.id == first.id for event in events
    ):
        texts = cast("Sequence[TextDelta]", events)
        return (TextDelta(id=first.id, delta="".join([event.delta for event in texts])),)
    return [event for key, run in groupby(events, key=_piece_of) for event in _joined(key, run)]


def _piece_of(event: ModelEvent) -> tuple[type[ModelEvent], str] | None:
    """Equal for deltas that can be merged; None for other events."""
    return (type(event), event.id) if isinstance(event, TextDelta | ToolCallDelta) else None


def _joined(key: object, run: Iterable[ModelEvent]) -> Sequence[ModelEvent]:
    events = list(run)
    if key is None or len(events) == 1:
        return events
    whole = "".join(event.delta for event in events if isinstance(event, TextDelta | ToolCallDelta))
    match events[0]:
        case TextDelta(id=block):
            return [TextDelta(id=block, delta=whole)]
        case ToolCallDelta(id=call):
            return [ToolCallDelta(id=call, delta=whole)]
        case _:
            return events


class ReplyBody(Protocol):
    """The body of a reply as it arrives. `total_bytes` have arrived; `error`: it was cut."""

    @property
    def address(self) -> str: ...
    @property
    def total_bytes(self) -> int: ...
    @property
    def is_eof(self) -> bool: ...
    @property
    def error(self) -> BaseException | None: ...

    async def readany(self) -> bytes:
        """What was not read, at least a byte; nothing at the end. Raises `error`."""
        ...

    def read_nowait(self) -> bytes:
        """All that has arrived, also what came before a cut: it may end the answer."""
        ...

    def hold(self) -> None:
        """The system keeps what arrives, within its limit, until `read_on`."""
        ...

    def read_on(self) -> None:
        """Unless more is in memory than one reply may hold."""
        ...

    def watch_silence(self, *, on: bool) -> None: ...


class ReplyEvents:
    """Satisfies `ports.PushedEvents`. `first` are bytes of the body that were read already. A reply
    that is silent for `silence_s` has failed."""

    def __init__(
        self,
        body: ReplyBody,
        decoder: FramedDecoder,
        beat: Beat,
        build_failure: Callable[[ProviderFault], ProviderError],
        *,
        first: bytes,
        silence_s: float,
    ) -> None:
        self._body = body
        self._decoder = decoder
        self._beat = beat
        self._build_failure = build_failure
        self._first = first
        self._silence_s = silence_s
        self._waking_reads = WAKING_READS
        self._bytes_read = body.total_bytes
        self._bytes_left = MAX_STREAM_BYTES
        self._is_over = False
        self._data_at = 0.0
        self._take: TakeEvents | None = None
        self._waiter: asyncio.Future[bool] | None = None
        self._unread: list[ModelEvent] = []
        self._cut: ProviderFault | None = None
        self._failed: ProviderFault | None = None

    # One by one, for short answers

    def __aiter__(self) -> "ReplyEvents":
        return self

    async def __anext__(self) -> ModelEvent:
        while not self._unread:
            if self._is_over:
                raise StopAsyncIteration
            self._unread.extend(reversed(await self._read()))
        return self._unread.pop()

    # Pushed

    async def push(self, take: TakeEvents) -> bool:
        while not self._is_over:
            if self._waking_reads > 0 or self._has_ended:
                self._waking_reads -= 1
                events = await self._read()
                if events and not take(events):
                    return False
            elif not await self._follow_beat(take):
                return False
        return True

    async def _follow_beat(self, take: TakeEvents) -> bool:
        """False if the taker has to wait."""
        loop = asyncio.get_running_loop()
        self._take, self._data_at = take, loop.time()
        self._waiter = loop.create_future()
        # This stream watches for silence itself.
        body = self._body
        body.watch_silence(on=False)
        body.hold()
        self._beat.add(self._on_beat, body.read_on)
        try:
            return await self._waiter
        finally:
            self._beat.remove(self._on_beat)
            self._waiter = None
            body.read_on()
            body.watch_silence(on=True)

    @property
    def _has_ended(self) -> bool:
        body = self._body
        return self._decoder.done or body.is_eof or body.error is not None

    def _on_beat(self, now: float) -> None:
        waiter, take = self._waiter, self._take
        if waiter is None or take is None or waiter.done():
            return
        body = self._body
        try:
            size = body.total_bytes - self._bytes_read
            if size < LARGE_READ_BYTES:
                body.hold()
            if not size:
                if self._has_ended:
                    waiter.set_result(True)
                elif now - self._data_at >= self._silence_s:
                    raise self._build_failure(
                        transport_fault(
                            aiohttp.SocketTimeoutError("Timeout on reading data from socket"),
                            body.address,
                        )
                    )
                return
            self._data_at = now
            self._bytes_read = body.total_bytes
            events = self._decode(body.read_nowait())
            takes_more = not events or take(events)
            if not waiter.done() and (not takes_more or self._has_ended):
                waiter.set_result(takes_more)
        except Exception as error:  # noqa: BLE001 - raised where the answer is awaited
            if not waiter.done():  # `take` may have stopped the answer; the beat must go on
                waiter.set_exception(error)

    # Reading

    async def _read(self) -> Sequence[ModelEvent]:
        """The events of the next bytes, or those that the end of the reply gives."""
        if self._failed is not None:
            self._is_over = True
            raise self._build_failure(self._failed)
        if self._decoder.done or self._cut is not None:
            return await self._end()
        chunk, self._first = self._first, b""
        if not chunk:
            try:
                chunk = await self._body.readany()
            except (aiohttp.ClientError, OSError) as error:
                self._cut = transport_fault(error, self._body.address)
                chunk = self._body.read_nowait()
            self._bytes_read = self._body.total_bytes
        return self._decode(chunk) if chunk else await self._end()

    def _decode(self, chunk: bytes) -> Sequence[ModelEvent]:
        """Events before a failure are passed on first."""
        self._bytes_left -= len(chunk)
        if self._bytes_left < 0:
            text = f"the provider sent more than {MAX_STREAM_BYTES} bytes"
            raise self._build_failure(too_large_fault(text))
        events = merge_deltas(self._decoder.feed(chunk)) or _PING
        last = events[-1]
        if type(last) is StreamFailed:
            self._failed = last.fault
            return events[:-1]
        return events

    async def _end(self) -> Sequence[ModelEvent]:
        """Ignores a cut after the final event. Before it, the cut is the fault."""
        self._is_over = True
        events = self._decoder.close()
        for event in events:
            if isinstance(event, StreamFailed):
                raise self._build_failure(self._cut or event.fault)
        if self._body.is_eof:
            return events
        with suppress(aiohttp.ClientError, OSError):
            async with asyncio.timeout(_DRAIN_TIMEOUT_S):
                while await self._body.readany():
                    pass
        return events


class AiohttpBody:
    """Satisfies `ReplyBody`, for a reply to aiohttp's own client."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self._content = response.content
        self._read_timeout_s: float | None = None

    @property
    def address(self) -> str:
        return str(self._response.url)

    @property
    def total_bytes(self) -> int:
        return self._content.total_bytes

    @property
    def is_eof(self) -> bool:
        return self._content.is_eof()

    @property
    def error(self) -> BaseException | None:
        return self._content.exception()

    async def readany(self) -> bytes:
        return await self._content.readany()

    def read_nowait(self) -> bytes:
        content = self._content
        error = content.exception()
        if error is None:
            return content.read_nowait()
        content.set_exception(cast("BaseException", None))
        try:
            return content.read_nowait()
        finally:
            content.set_exception(error)

    @property
    def _protocol(self) -> Any:  # aiohttp's ResponseHandler
        connection = self._response.connection
        return None if connection is None else connection.protocol

    def hold(self) -> None:
        protocol = self._protocol
        if protocol is not None and protocol.transport is not None:
            with suppress(RuntimeError):  # it is closed
                protocol.transport.pause_reading()

    def read_on(self) -> None:
        protocol = self._protocol
        if protocol is not None and protocol.transport is not None and not protocol._reading_paused:
            with suppress(RuntimeError):
                protocol.transport.resume_reading()

    def watch_silence(self, *, on: bool) -> None:
        """aiohttp makes a timer for every read."""
        protocol = self._protocol
        if protocol is None:
            return
        if not on:
            self._read_timeout_s, protocol.read_timeout = protocol.read_timeout, None
        elif not self.is_eof and self.error is None:
            protocol.read_timeout = self._read_timeout_s
            protocol.start_timeout()
