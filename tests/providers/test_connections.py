"""Kept connections below aiohttp's client: replies cut at every byte, framings, reuse, bounds."""

import asyncio
import gc
import gzip
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest

from chatd.aio import RequestMark
from chatd.providers.connections import (
    MAX_HEAD_BYTES,
    MAX_HELD_BYTES,
    MAX_IDLE_BYTES,
    MAX_INFLATED_BYTES,
    ConnectionPool,
    StreamedReply,
    Target,
    request_bytes,
)
from chatd.providers.faults import NotHttp
from tests.support.eventually import eventually

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"X-Of: a\r\nx-of: b\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n6;note=1\r\n world\r\n0\r\nlast: 1\r\n\r\n"
)
SIZED = b"HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\nhello world"
HINTED = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" + SIZED
BARE = b"HTTP/1.0 200 OK\n\nhello world"
PACKED = gzip.compress(b"hello world")
ZIPPED = (
    b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(PACKED)
) + PACKED
REPLIES = [CHUNKED, SIZED, HINTED, ZIPPED]

WAIT_S = 30


async def read_all(reply: StreamedReply) -> bytes:
    await reply.read_head()
    found = b""
    while piece := await reply.readany():
        found += piece
    return found


def fed(*pieces: bytes) -> StreamedReply:
    reply = StreamedReply(None, "http://a/", 30)
    for piece in pieces:
        reply.feed(piece)
    return reply


@pytest.mark.parametrize("whole", REPLIES, ids=["chunked", "sized", "hinted", "zipped"])
async def test_a_reply_cut_at_every_byte_is_read_whole(whole: bytes) -> None:
    for cut in range(len(whole) + 1):
        reply = fed(whole[:cut], whole[cut:])
        assert (reply.status, reply.is_eof, reply.error) == (200, True, None)
        assert await reply.readany() == b"hello world"
        assert await reply.readany() == b""
        assert "link" not in reply.headers
    single = fed(*(whole[at : at + 1] for at in range(len(whole))))
    assert single.read_nowait() == b"hello world"
    assert single.is_eof


async def test_the_headers_are_read_as_one_of_each_name() -> None:
    reply = fed(CHUNKED)
    assert reply.content_type == "text/event-stream"
    assert reply.headers["x-of"] == "a, b"


@pytest.mark.parametrize("whole", [*REPLIES, BARE])
async def test_a_reply_that_ends_at_any_byte_is_a_cut(whole: bytes) -> None:
    head = whole.rfind(b"\r\n\r\nhello") + 4 if whole is SIZED else 0
    for cut in range(len(whole)):
        reply = fed(whole[:cut])
        if reply.is_eof:
            continue
        reply.on_lost(None)
        if whole is BARE and reply.status:
            assert reply.is_eof, "only the end of the connection ends this reply"
            continue
        with pytest.raises(aiohttp.ClientError) as caught:
            await read_all(reply)
        if head:
            is_begun = isinstance(caught.value, aiohttp.ClientPayloadError)
            assert is_begun == (cut >= head)
            assert is_begun or isinstance(caught.value, aiohttp.ServerDisconnectedError)


async def test_what_came_before_a_cut_is_read_first() -> None:
    reply = fed(SIZED[:-6])
    reply.on_lost(ConnectionResetError(104, "reset"))
    assert await reply.readany() == b"hello"
    with pytest.raises(aiohttp.ClientOSError):
        await reply.readany()


@pytest.mark.parametrize(
    "wrong",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * MAX_HEAD_BYTES,
    ],
)
async def test_a_head_that_is_none_or_too_large_is_refused(wrong: bytes) -> None:
    with pytest.raises(NotHttp):
        await fed(wrong).read_head()


@pytest.mark.parametrize(
    "wrong",
    [
        CHUNKED.replace(b"6;note=1", b"xyz"),
        ZIPPED.replace(PACKED, b"z" * len(PACKED)),
        b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n\r\n" + gzip.compress(b"\0" * 40_000_000),
    ],
    ids=["chunk", "not gzip", "bomb"],
)
async def test_a_damaged_body_is_a_cut(wrong: bytes) -> None:
    with pytest.raises(aiohttp.ClientPayloadError):
        await read_all(fed(wrong))


BEGUN = CHUNKED[: CHUNKED.index(b"6;note")]
PACKED_BEGUN = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n\r\n"


@pytest.mark.parametrize(
    ("begun", "more"),
    [
        (BEGUN + b"0\r\n", b"x: " + b"y" * 997 + b"\r\n"),
        (BEGUN + b"6;", b"n" * 1000),
        (PACKED_BEGUN + PACKED, b"z" * 1000),
    ],
    ids=["trailers", "extensions", "after the packed text"],
)
async def test_what_is_not_of_the_body_is_bounded_and_forgotten(begun: bytes, more: bytes) -> None:
    reply = fed(begun)
    known = dict(reply.headers)
    assert len(await reply.readany()) >= len(b"hello")
    for _ in range(MAX_IDLE_BYTES // 1000 + 1):
        reply.feed(more)
    assert reply.headers == known
    with pytest.raises(aiohttp.ClientPayloadError):
        await reply.readany()


async def test_what_is_not_of_the_body_does_not_end_a_silence() -> None:
    reply = StreamedReply(None, "http://a/", 0.3)
    reply.feed(BEGUN)
    assert await reply.readany() == b"hello"
    reply.feed(b"6;")
    loop = asyncio.get_running_loop()

    def drip() -> None:
        reply.feed(b"n")
        if reply.error is None:
            loop.call_later(0.005, drip)

    drip()
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(aiohttp.SocketTimeoutError):
            await reply.readany()


async def test_what_the_pieces_of_one_read_become_is_bounded() -> None:
    packed = gzip.compress(b"\0" * 10 * MAX_INFLATED_BYTES)
    pieces = [packed[at : at + 8192] for at in range(0, len(packed), 8192)]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    reply = fed(
        PACKED_BEGUN.replace(b"\r\n\r\n", b"\r\ntransfer-encoding: chunked\r\n\r\n"), chunks
    )
    assert reply.total_bytes <= 2 * MAX_INFLATED_BYTES
    with pytest.raises(aiohttp.ClientPayloadError):
        await read_all(reply)


async def test_a_finished_reply_is_not_kept_by_its_parser() -> None:
    reply = fed(CHUNKED)
    gone = weakref.ref(reply)
    gc.disable()
    try:
        del reply
        assert gone() is None
    finally:
        gc.enable()


def test_a_request_has_its_headers_once() -> None:
    target = Target.of("https://host:8443/v1/ä?b=c d")
    sent = request_bytes(target, {"host": "other", "x-key": "é"}, b"{}")
    head, _, body = sent.partition(b"\r\n\r\n")
    assert head.splitlines() == [
        b"POST /v1/%C3%A4?b=c+d HTTP/1.1",
        b"host: other",
        b"accept-encoding: identity",
        "x-key: é".encode(),
        b"content-length: 2",
    ]
    assert body == b"{}"
    assert Target.of("http://[::1]:80/").host == "[::1]"
    assert Target.of("http://a.b:81/").host == "a.b:81"
    with pytest.raises(ValueError, match="line break"):
        request_bytes(target, {"x": "1\r\ny: 2"}, b"")


# Over real sockets

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Server:
    def __init__(self) -> None:
        self.connections = 0
        self.url = ""
        self.pool = ConnectionPool(None, aiohttp.ClientTimeout(connect=WAIT_S))

    async def post(self, mark: RequestMark | None = None) -> StreamedReply | None:
        target = self.pool.target(self.url)
        return await self.pool.post(
            target, request_bytes(target, {}, b"{}"), mark=mark, silence_s=WAIT_S, reuse=True
        )

    async def ask(self) -> bytes:
        reply = await self.post()
        assert reply is not None
        return await read_all(reply)


@asynccontextmanager
async def serving(serve: Serve) -> AsyncGenerator[Server]:
    found = Server()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found.connections += 1
        try:
            await serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    found.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    try:
        async with asyncio.timeout(WAIT_S):
            yield found
    finally:
        await found.pool.close()
        server.close()


def answering(*replies: bytes) -> Serve:
    """The replies of one connection, which then ends."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for reply in replies:
            await reader.readuntil(b"{}")
            writer.write(reply)

    return serve


async def test_one_connection_serves_requests_in_a_row() -> None:
    async with serving(answering(CHUNKED, SIZED, CHUNKED)) as server:
        assert [await server.ask() for _ in range(3)] == [b"hello world"] * 3
        assert server.connections == 1


@pytest.mark.parametrize(
    "reply",
    [
        SIZED.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n", 1),
        BARE,
        SIZED + b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nbad",
        SIZED + b"bad",
    ],
    ids=["close", "bare", "second reply", "more"],
)
async def test_a_connection_that_says_or_sends_more_is_not_used_again(reply: bytes) -> None:
    async with serving(answering(reply)) as server:
        assert [await server.ask() for _ in range(2)] == [b"hello world"] * 2
        assert server.connections == 2


async def test_a_connection_that_the_server_closes_while_the_call_is_marked_is_replaced() -> None:
    closes = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        writer.write(SIZED)
        await closes.wait()

    async with serving(serve) as server:
        assert await server.ask() == b"hello world"

        async def wait_for_the_close() -> None:
            closes.set()
            # A connection of its own, as the kept one is taken: by its end the other has ended too.
            assert await server.ask() == b"hello world"

        assert await server.post(RequestMark(wait_for_the_close)) is None
        assert server.connections == 2


async def test_a_request_is_not_sent_again_once_its_reply_has_begun() -> None:
    async with serving(answering(SIZED, b"HTTP/1.1 200 O")) as server:
        assert await server.ask() == b"hello world"
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await server.post()


async def test_a_reply_that_nobody_reads_is_held_and_read_whole_later() -> None:
    size, sent = 64 * 1024 * 1024, asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        if server.connections > 1:
            writer.write(SIZED)
            return
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
        for _ in range(size // 65536):
            writer.write(b"x" * 65536)
            await writer.drain()
        sent.set()

    async with serving(serve) as server:
        reply = await server.post()
        assert reply is not None
        await eventually(lambda: _holds_much(reply))
        held = reply.total_bytes
        assert await server.ask() == b"hello world"
        assert reply.total_bytes == held
        assert not sent.is_set()
        found = 0
        while piece := await reply.readany():
            found += len(piece)
        assert found == size


async def test_closing_the_pool_ends_replies_and_kept_connections() -> None:
    begun = b"HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\nhello"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        writer.write(SIZED if server.connections == 2 else begun)
        await reader.read()

    async with serving(serve) as server:
        reply = await server.post()
        assert await server.ask() == b"hello world"
        assert reply is not None
        reply.hold()
        await server.pool.close()
        with pytest.raises(aiohttp.ClientPayloadError):
            await read_all(reply)


async def _holds_much(reply: StreamedReply) -> bool:
    return reply.total_bytes > MAX_HELD_BYTES
