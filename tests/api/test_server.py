"""The server: binding a port, limits of connections, and stopping."""

import asyncio
import gc
import weakref
from contextlib import suppress
from typing import Final

import pytest

from chatd.api.deps import StreamLimits
from chatd.api.server import (
    MAX_HEADERS,
    BoundAddress,
    ListenError,
    ServerTimeouts,
    bind,
    serve,
)
from chatd.api.streams import SIGNED_OUT_END, ClientStream
from chatd.store.chat import chats
from chatd.store.database.pool import Pool
from tests.support.api.server import ME, ApiOptions, ApiServer, serve_api
from tests.support.api.sse_viewer import SseViewer, event_source, reached
from tests.support.eventually import eventually
from tests.support.store import has_lock_waiter, open_chat


class Raw:
    """A client that writes raw bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @staticmethod
    async def to(at: BoundAddress) -> "Raw":
        return Raw(*await asyncio.open_connection(at.host, at.port))

    async def good(self) -> None:
        self._writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(30):
            await self._reader.readuntil(b'{"status":"ok"}\n')

    async def hung_up_on(self) -> None:
        self._writer.write(b"GET /healthz HT")
        with suppress(ConnectionError):
            async with asyncio.timeout(30):
                assert await self._reader.read() == b""

    async def is_hung_up_on_after(self, said: bytes) -> None:
        """Ignores any reply: bytes still in transit can reset the connection before it is read."""
        with suppress(ConnectionError):
            async with asyncio.timeout(30):
                self._writer.write(said)
                await self._writer.drain()
                while await self._reader.read(1024):
                    pass

    async def close(self) -> None:
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()


async def test_a_port_that_cannot_be_bound_is_an_error_with_a_reason(server: ApiServer) -> None:
    with pytest.raises(ListenError, match=f"port {server.port}: Address already in use"):
        await bind("127.0.0.1", server.port)
    with pytest.raises(ListenError, match="port 70000"):
        await bind("127.0.0.1", 70000)
    with pytest.raises(ListenError):
        await bind("no.such.host.invalid", 0)


def test_a_bound_address_has_a_url() -> None:
    assert BoundAddress(host="127.0.0.1", port=7870).url == "http://127.0.0.1:7870"
    assert BoundAddress(host="::1", port=7870).url == "http://[::1]:7870"


async def test_a_stop_ends_streams_and_finishes_requests_in_progress(
    server: ApiServer, pool: Pool
) -> None:
    chat = await open_chat(server.replica.pool, 1)
    stop = asyncio.Event()
    bound: asyncio.Future[BoundAddress] = asyncio.get_running_loop().create_future()
    watcher = SseViewer(chat.id)
    async with asyncio.TaskGroup() as group:
        listening = await bind("127.0.0.1", 0)
        group.create_task(serve(server.api, listening, bound.set_result, stop))
        second = ApiServer(server.replica, server.deps, server.api, await bound)
        async with event_source(second, watcher.path) as source:
            await watcher.watch(source, reached(1))
            async with pool.transaction() as holder:
                await chats.lock(holder, chat.id)
                asking = group.create_task(second.ask("POST", f"/chats/{chat.id}/interrupt"))
                await eventually(lambda: has_lock_waiter(pool))
                stop.set()
                await watcher.read_all(source)
            assert (await asking).status == 200
        await second.http.close()
    assert watcher.end == "going_away"
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", bound.result().port)


_GET: Final = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
ENDLESS: Final = {
    "many fields": _GET + b"a: b\r\n" * 100_000,
    "a long field": _GET + b"a: " + b"b" * 600_000,
    "a long path": b"GET /" + b"a" * 600_000,
    "many fields after the body": _GET
    + b"Transfer-Encoding: chunked\r\n\r\n0\r\n"
    + b"a: b\r\n" * 100_000,
}


@pytest.mark.promise("P15")
async def test_an_endless_request_head_is_aborted(server: ApiServer) -> None:
    at = BoundAddress(host="127.0.0.1", port=server.port)
    for said in ENDLESS.values():
        raw = await Raw.to(at)
        await raw.is_hung_up_on_after(said)
        await raw.close()
    polite = await Raw.to(at)
    await polite.good()
    await polite.close()


async def test_a_request_with_too_many_headers_is_refused(server: ApiServer) -> None:
    at = BoundAddress(host="127.0.0.1", port=server.port)
    for count in (MAX_HEADERS, 10_000):
        reader, writer = await asyncio.open_connection(at.host, at.port)
        writer.write(_GET + b"a:b\r\n" * count + b"\r\n")
        async with asyncio.timeout(30):
            reply = await reader.read()
        assert reply.startswith(b"HTTP/1.1 431 ")
        assert b'"code":"too_large"' in reply
        writer.close()
    polite = await Raw.to(at)
    await polite.good()
    await polite.close()


async def test_a_stream_with_pipelined_requests_ends_with_its_client(dsn: str) -> None:
    """uvicorn notifies only the last pipelined request of a disconnect."""
    door = ApiOptions(limits=StreamLimits(ping_interval_s=0.02, write_timeout_s=0.04))
    async with serve_api(dsn, door) as server:
        chat_id = await server.create("hello")
        head = f"Host: x\r\nAuthorization: Bearer {ME}\r\n\r\n"
        stream = f"GET /api/v1/chats/{chat_id}/events HTTP/1.1\r\n{head}"
        more = f"GET /api/v1/chats HTTP/1.1\r\n{head}" * 3
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write((stream + more).encode())
        async with asyncio.timeout(30):
            await reader.readuntil(b"version")
        assert server.replica.feeds.watched == 1
        writer.transport.abort()

        async def gone() -> bool:
            return server.replica.feeds.watched == 0

        await eventually(gone)


async def test_a_stream_that_the_server_ended_is_forgotten(server: ApiServer) -> None:
    """Its connection stays open, and serves other requests."""
    chat_id = await server.create("hello")
    path = f"GET /api/v1/chats/{chat_id}/events HTTP/1.1\r\n"
    head = f"Host: x\r\nAuthorization: Bearer {ME}\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        async with asyncio.timeout(30):
            writer.write((path + head).encode())
            await reader.readuntil(b"version")
            stream = weakref.ref(_open_stream())
            _open_stream().end(SIGNED_OUT_END)
            await reader.readuntil(b"\r\n0\r\n\r\n")
            for _ in range(2):
                writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
                await reader.readuntil(b'{"status":"ok"}\n')
        gc.collect()
        assert stream() is None
    finally:
        writer.close()
        await writer.wait_closed()


def _open_stream() -> ClientStream:
    found = [one for one in gc.get_objects() if type(one) is ClientStream and one.ended is None]
    (stream,) = found
    return stream


async def test_a_request_head_that_never_ends_is_aborted(server: ApiServer) -> None:
    """Also after a good request. An idle connection stays open. This takes two seconds, because the
    server checks once a second."""
    bound: asyncio.Future[BoundAddress] = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(
            serve(
                server.api,
                await bind("127.0.0.1", 0),
                bound.set_result,
                asyncio.Event(),
                timeouts=ServerTimeouts(head_s=1),
            )
        )
        at = await bound
        idle, fresh, used = [await Raw.to(at) for _ in range(3)]
        await asyncio.gather(idle.good(), used.good())
        await asyncio.gather(fresh.hung_up_on(), used.hung_up_on())
        await idle.good()
        for raw in (idle, fresh, used):
            await raw.close()
        serving.cancel()
