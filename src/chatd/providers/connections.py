"""Kept connections for streamed replies, below aiohttp's client: bytes go from the socket to the
reader without a task or a timer of their own.

aiohttp opens each connection, so that names, addresses, TLS, time limits and their errors are its
own. Then its transport gets the protocol of this module, which sends one request at a time and
parses the reply as it arrives, cut anywhere. Errors are those of aiohttp, as `faults` reads them.
"""

import asyncio
import zlib
from collections.abc import Callable, Mapping
from ssl import SSLContext
from typing import Final

import aiohttp
import httptools
import yarl
from aiohttp.connector import Connection
from msgspec import Struct

from chatd.aio import RequestMark
from chatd.providers.faults import NotHttp

MAX_HEAD_BYTES: Final = 64 * 1024
"""Of a reply, up to the read in which its head ends."""
MAX_IDLE_BYTES: Final = 64 * 1024
"""Of a reply after its head, without a byte of its body: lengths of chunks, trailers, a compressed
text that says nothing."""
MAX_HELD_BYTES: Final = 128 * 1024
"""Bytes of a reply that wait to be read; above this its socket is not read."""
MAX_INFLATED_BYTES: Final = 16 * 1024 * 1024
"""What one piece of a compressed reply may become, and how much of it may wait for the next piece.
None is asked for; some gateways send it."""
IDLE_S: Final = 15.0
"""A kept connection is closed after this time. Servers close theirs after 30 s and more."""
MAX_TARGETS: Final = 256
_NO_BODY: Final = frozenset({204, 304})


class Target(Struct, frozen=True, kw_only=True):
    """An address as requests need it. Requests with one `origin` share connections."""

    url: yarl.URL
    origin: yarl.URL
    host: str
    path: str

    @classmethod
    def of(cls, text: str) -> "Target":
        """Raises aiohttp's errors for an address that is none."""
        try:
            url = yarl.URL(text)
            origin = url.origin()
        except (ValueError, TypeError):
            raise aiohttp.InvalidURL(text) from None
        if url.scheme not in ("http", "https"):
            raise aiohttp.NonHttpUrlClientError(url)
        host = url.host_subcomponent or ""
        host = host if url.is_default_port() else f"{host}:{url.port}"
        return cls(url=url, origin=origin, host=host, path=url.raw_path_qs)


def request_bytes(target: Target, headers: Mapping[str, str], body: bytes) -> bytes:
    """A POST in one piece. `headers` have lower-case names, and their values no line break
    (`provider_config.merge_headers`). Raises ValueError."""
    fields = {"host": target.host, "accept-encoding": "identity", **headers}
    fields["content-length"] = str(len(body))
    lines = "".join([f"{name}: {value}\r\n" for name, value in fields.items()])
    if lines.count("\n") != len(fields):
        raise ValueError("a header has a line break")
    return f"POST {target.path} HTTP/1.1\r\n{lines}\r\n".encode() + body


def inflater() -> Callable[[bytes], bytes]:
    """For a compressed reply, piece by piece. Raises zlib.error, ValueError."""
    stream = zlib.decompressobj(zlib.MAX_WBITS | 32)

    def inflate(piece: bytes) -> bytes:
        found = stream.decompress(piece, MAX_INFLATED_BYTES)
        if stream.unconsumed_tail:
            raise ValueError("more than a piece may become")
        return found

    return inflate


class StreamedReply:
    """The reply to one request, as it arrives. Satisfies `reply_events.ReplyBody`."""

    def __init__(
        self, connection: "StreamConnection | None", address: str, silence_s: float
    ) -> None:
        self.address = address
        self.status = 0
        self.headers: dict[str, str] = {}
        self.total_bytes = 0
        self.error: Exception | None = None
        self.is_eof = False
        self._connection = connection
        parser = httptools.HttpResponseParser(self)
        # It refers to this reply: `close` and `_end` take it away.
        self._parser: httptools.HttpResponseParser | None = parser
        # As aiohttp's, for servers that are not strict.
        parser.set_dangerous_leniencies(
            lenient_headers=True,
            lenient_optional_cr_before_lf=True,
            lenient_spaces_after_chunk_size=True,
        )
        self._silence_s = silence_s
        self._pieces: list[bytes] = []
        self._held_bytes = 0
        self._has_head = False
        self._head_bytes = 0
        self._idle_bytes = 0
        self._ends_with_connection = False
        self._can_keep = False
        self._has_more = False
        self._inflate: Callable[[bytes], bytes] | None = None
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._heard_at = self._loop.time()
        self._timer = self._loop.call_later(silence_s, self._check_silence)

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def has_begun(self) -> bool:
        """A byte of it has arrived."""
        return self._has_head or self._head_bytes > 0

    # Reading

    async def read_head(self) -> None:
        """Return when the status and the headers are known. Raises the error of the connection."""
        while not self._has_head:
            if self.error is not None:
                raise self.error
            await self._wait()

    async def readany(self) -> bytes:
        """What has arrived and was not read, at least a byte; nothing at the end. Raises the error
        of a reply that was cut, after all of its bytes were read."""
        while not self._pieces:
            if self.error is not None:
                raise self.error
            if self.is_eof:
                return b""
            await self._wait()
        return self.read_nowait()

    def read_nowait(self) -> bytes:
        pieces = self._pieces
        if not pieces:
            return b""
        found = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        if self._held_bytes > MAX_HELD_BYTES:
            self.read_on()
        self._held_bytes = 0
        return found

    async def _wait(self) -> None:
        self._heard_at = self._loop.time()
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def hold(self) -> None:
        """The system keeps what arrives, within its limit, until `read_on`."""
        if self._connection is not None:
            self._connection.pause()

    def read_on(self) -> None:
        if self._connection is not None:
            self._connection.resume()

    def watch_silence(self, *, on: bool) -> None:
        """Nothing to do: only a read that waits is watched."""

    def _check_silence(self) -> None:
        """For a reader that waits; without one, nobody knows whether the provider is silent."""
        now = self._loop.time()
        since = now if self._waiter is None else self._heard_at
        left_s = since + self._silence_s - now
        if left_s > 0.001:
            self._timer = self._loop.call_later(left_s, self._check_silence)
        else:
            self._fail(aiohttp.SocketTimeoutError("Timeout on reading data from socket"))

    def close(self) -> None:
        """The connection of an incomplete reply is closed at once."""
        self._timer.cancel()
        self._parser = None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # The connection calls

    def feed(self, data: bytes) -> None:
        if self._parser is None:
            return
        had_head, had_bytes = self._has_head, self.total_bytes
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade, zlib.error, ValueError):
            self._fail(
                aiohttp.ClientPayloadError("the reply is not HTTP")
                if self._has_head
                else NotHttp("the reply is not HTTP")
            )
            return
        if not self._has_head:
            self._heard_at = self._loop.time()
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._fail(NotHttp("the head of the reply is too large"))
            return
        if self.is_eof:
            self._end()
        elif self.total_bytes > had_bytes:
            self._idle_bytes = 0
            if self._held_bytes > MAX_HELD_BYTES:
                self.hold()
        else:
            self._idle_bytes += len(data)
            if self._idle_bytes > MAX_IDLE_BYTES:
                self._fail(aiohttp.ClientPayloadError("the reply has too much besides its body"))
            elif had_head:
                return  # The reader waits on, and its time runs.
        self._wake()

    def on_lost(self, error: Exception | None) -> None:
        """The server closed the connection, or it broke."""
        self._connection = None
        if self.is_eof:
            return
        if error is None and self._has_head and self._ends_with_connection:
            self.is_eof = True
            self._end()
            self._wake()
        elif isinstance(error, OSError):
            self._fail(aiohttp.ClientOSError(*error.args))
        elif self._has_head:
            self._fail(aiohttp.ClientPayloadError("the reply is not complete"))
        else:
            self._fail(aiohttp.ServerDisconnectedError())

    def _fail(self, error: Exception) -> None:
        if self.error is None and not self.is_eof:
            self.error = error
        self.close()
        self._wake()

    def _end(self) -> None:
        self._timer.cancel()
        self._parser = None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.release(keep=self._can_keep and not self._has_more)

    # The parser calls

    def on_message_begin(self) -> None:
        self._has_more = self.is_eof

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._has_head:
            return  # A trailer.
        key, text = name.decode("latin-1").lower(), value.decode("utf-8", "surrogateescape")
        known = self.headers.get(key)
        self.headers[key] = text if known is None else f"{known}, {text}"

    def on_headers_complete(self) -> None:
        if self.is_eof:
            return
        assert self._parser is not None, "it calls this"
        status = self._parser.get_status_code()
        if status < 200:
            return  # A hint before the reply.
        self.status, self._has_head = status, True
        headers = self.headers
        self._ends_with_connection = (
            "content-length" not in headers
            and not headers.get("transfer-encoding", "").lower().endswith("chunked")
            and status not in _NO_BODY
        )
        if headers.get("content-encoding", "identity").lower() in ("gzip", "x-gzip", "deflate"):
            self._inflate = inflater()

    def on_body(self, body: bytes) -> None:
        if self.is_eof:
            return
        if self._inflate is not None:
            if self._held_bytes > MAX_INFLATED_BYTES:
                raise ValueError("more than pieces of one read may become")
            body = self._inflate(body)
            if not body:
                return
        size = len(body)
        self._pieces.append(body)
        self.total_bytes += size
        self._held_bytes += size

    def on_message_complete(self) -> None:
        if self.is_eof:
            return
        if not self._has_head:
            self.headers.clear()
            return
        assert self._parser is not None, "it calls this"
        self.is_eof = True
        self._can_keep = self._parser.should_keep_alive()


class StreamConnection(asyncio.Protocol):
    """A connection for one request after the other. `opened` is aiohttp's, and closed with it."""

    def __init__(self, pool: "ConnectionPool", target: Target, opened: Connection) -> None:
        transport = opened.transport
        if transport is None:
            opened.close()
            raise aiohttp.ServerDisconnectedError
        self.origin = target.origin
        self.idle_since = 0.0
        self._pool = pool
        self._opened = opened
        self._transport = transport
        self._is_paused = False
        self._reply: StreamedReply | None = None
        transport.set_protocol(self)

    @property
    def is_closed(self) -> bool:
        return self._transport.is_closing()

    def send(self, request: bytes, target: Target, silence_s: float) -> StreamedReply:
        reply = self._reply = StreamedReply(self, str(target.url), silence_s)
        self._transport.write(request)
        return reply

    def pause(self) -> None:
        if not self._is_paused and not self._transport.is_closing():
            self._is_paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._is_paused and not self._transport.is_closing():
            self._is_paused = False
            self._transport.resume_reading()

    def end(self) -> None:
        """The provider is closed: a reader gets an error."""
        self.connection_lost(None)
        self._transport.abort()

    def release(self, *, keep: bool) -> None:
        """The reply is complete."""
        self._reply = None
        if not keep or self._transport.is_closing():
            self.close()
            return
        self.resume()
        self._pool.keep(self)

    def close(self) -> None:
        self._reply = None
        self._transport.abort()
        self._opened.close()
        self._pool.forget(self)

    # The transport calls

    def data_received(self, data: bytes) -> None:
        if self._reply is None:
            self.close()  # Nothing was asked.
        else:
            self._reply.feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        reply, self._reply = self._reply, None
        self._opened.close()
        self._pool.forget(self)
        if reply is not None:
            reply.on_lost(exc)


class ConnectionPool:
    """The connections to one provider. Kept ones are taken in reverse order, so that those that a
    rush has left become idle and are closed."""

    def __init__(self, tls: SSLContext | None, timeout: aiohttp.ClientTimeout) -> None:
        self._connector = aiohttp.TCPConnector(limit=0, ssl=tls or True)
        self._tls = tls
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._idle: dict[yarl.URL, list[StreamConnection]] = {}
        self._open_ones: set[StreamConnection] = set()
        self._targets: dict[str, Target] = {}
        self._sweep: asyncio.TimerHandle | None = None

    def target(self, url: str) -> Target:
        found = self._targets.get(url)
        if found is None:
            if len(self._targets) >= MAX_TARGETS:
                self._targets.clear()
            found = self._targets[url] = Target.of(url)
        return found

    async def post(
        self,
        target: Target,
        request: bytes,
        *,
        mark: RequestMark | None,
        silence_s: float,
        reuse: bool,
    ) -> StreamedReply | None:
        """None if the server had closed a kept connection. Raises aiohttp's errors."""
        connection = self._take(target) if reuse else None
        is_reused = connection is not None
        try:
            if connection is None:
                connection = await self._open(target)
            if mark is not None:
                await mark.send()
            if connection.is_closed:
                raise aiohttp.ServerDisconnectedError
            reply = connection.send(request, target, silence_s)
        except BaseException as error:
            if connection is not None:
                connection.close()
            if is_reused and isinstance(error, aiohttp.ServerDisconnectedError):
                return None
            raise
        try:
            await reply.read_head()
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            # A server that has begun to answer has read the request: sent again, it is paid twice.
            if is_reused and not reply.has_begun:
                return None
            raise
        except BaseException:
            reply.close()
            raise
        return reply

    def _take(self, target: Target) -> StreamConnection | None:
        kept = self._idle.get(target.origin)
        while kept:
            connection = kept.pop()
            if not connection.is_closed:
                return connection
        return None

    async def _open(self, target: Target) -> StreamConnection:
        request = aiohttp.ClientRequest("POST", target.url, loop=self._loop, ssl=self._tls or True)
        try:
            opened = await self._connector.connect(request, [], self._timeout)
        except aiohttp.ClientError:
            raise
        except TimeoutError:
            raise aiohttp.ConnectionTimeoutError from None
        connection = StreamConnection(self, target, opened)
        self._open_ones.add(connection)
        return connection

    def keep(self, connection: StreamConnection) -> None:
        connection.idle_since = self._loop.time()
        self._idle.setdefault(connection.origin, []).append(connection)
        if self._sweep is None:
            self._sweep = self._loop.call_later(IDLE_S, self._close_idle)

    def forget(self, connection: StreamConnection) -> None:
        self._open_ones.discard(connection)
        kept = self._idle.get(connection.origin)
        if kept and connection in kept:
            kept.remove(connection)

    def _close_idle(self) -> None:
        self._sweep = None
        before = self._loop.time() - IDLE_S + 0.01
        for origin, kept in list(self._idle.items()):
            for connection in [each for each in kept if each.idle_since <= before]:
                connection.close()
            if not kept:
                del self._idle[origin]
        if self._idle:
            oldest = min(each.idle_since for kept in self._idle.values() for each in kept)
            self._sweep = self._loop.call_at(oldest + IDLE_S, self._close_idle)

    async def close(self) -> None:
        """Also the connections in use: their readers get an error."""
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in list(self._open_ones):
            connection.end()
        self._idle.clear()
        await self._connector.close()
