"""Listening on a port: which one, and how it stops."""

import asyncio
from contextlib import suppress
from typing import Final

import pytest

from chatd.api.doors import Limits
from chatd.api.serve import Bound, CannotListen, Patience, serve
from chatd.store.chat import chats
from chatd.store.pool import Pool
from tests.support.eventually import eventually
from tests.support.front import ME, Door, Front, front_door
from tests.support.listening import Watcher, event_source, reached
from tests.support.store import open_chat, somebody_waits


class Raw:
    """A client that writes what it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @staticmethod
    async def to(at: Bound) -> "Raw":
        return Raw(*await asyncio.open_connection(at.host, at.port))

    async def good(self) -> None:
        self._writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(30):
            await self._reader.readuntil(b'{"status":"ok"}')

    async def hung_up_on(self) -> None:
        self._writer.write(b"GET /healthz HT")
        with suppress(ConnectionError):
            async with asyncio.timeout(30):
                assert await self._reader.read() == b""

    async def is_hung_up_on_after(self, said: bytes) -> None:
        """Whatever it is told first: what is still on its way can sweep a refusal away."""
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


async def test_a_port_that_is_taken_is_refused_with_a_reason(front: Front) -> None:
    stop = asyncio.Event()
    with pytest.raises(CannotListen, match=f"port {front.port}: Address already in use"):
        await serve(front.api, "127.0.0.1", front.port, lambda _bound: None, stop)
    with pytest.raises(CannotListen, match="port 70000"):
        await serve(front.api, "127.0.0.1", 70000, lambda _bound: None, stop)
    with pytest.raises(CannotListen):
        await serve(front.api, "no.such.host.invalid", 0, lambda _bound: None, stop)


def test_an_address_can_be_copied_into_a_browser() -> None:
    assert Bound(host="127.0.0.1", port=7870).url == "http://127.0.0.1:7870"
    assert Bound(host="::1", port=7870).url == "http://[::1]:7870"


async def test_a_stop_ends_streams_and_lets_requests_under_way_finish(
    front: Front, pool: Pool
) -> None:
    chat = await open_chat(front.replica.pool, 1)
    stop = asyncio.Event()
    bound: asyncio.Future[Bound] = asyncio.get_running_loop().create_future()
    watcher = Watcher(chat.id)
    async with asyncio.TaskGroup() as group:
        group.create_task(serve(front.api, "127.0.0.1", 0, bound.set_result, stop))
        second = Front(front.replica, front.doors, front.api, await bound)
        async with event_source(second, watcher.path) as source:
            await watcher.watch(source, reached(1))
            async with pool.transaction() as holder:
                await chats.lock(holder, chat.id)
                asking = group.create_task(second.ask("POST", f"/chats/{chat.id}/interrupt"))
                await eventually(lambda: somebody_waits(pool))
                stop.set()
                await watcher.to_the_end(source)
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
async def test_a_head_without_end_is_not_kept(front: Front) -> None:
    at = Bound(host="127.0.0.1", port=front.port)
    for said in ENDLESS.values():
        raw = await Raw.to(at)
        await raw.is_hung_up_on_after(said)
        await raw.close()
    polite = await Raw.to(at)
    await polite.good()
    await polite.close()


async def test_a_stream_with_requests_behind_it_ends_with_its_client(dsn: str) -> None:
    """A server that answers them one by one looks only at the last."""
    door = Door(limits=Limits(ping_s=0.02, write_within_s=0.04))
    async with front_door(dsn, door) as front:
        chat_id = await front.create("hello")
        head = f"Host: x\r\nAuthorization: Bearer {ME}\r\n\r\n"
        stream = f"GET /api/v1/chats/{chat_id}/events HTTP/1.1\r\n{head}"
        more = f"GET /api/v1/chats HTTP/1.1\r\n{head}" * 3
        reader, writer = await asyncio.open_connection("127.0.0.1", front.port)
        writer.write((stream + more).encode())
        async with asyncio.timeout(30):
            await reader.readuntil(b"version")
        assert front.replica.feeds.watched == 1
        writer.transport.abort()

        async def gone() -> bool:
            return front.replica.feeds.watched == 0

        await eventually(gone)


async def test_whoever_never_ends_a_request_is_hung_up_on(front: Front) -> None:
    """Also if there was a good one before. Whoever is merely idle may stay. It takes two seconds,
    because the server looks once in each."""
    bound: asyncio.Future[Bound] = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as group:
        server = group.create_task(
            serve(
                front.api,
                "127.0.0.1",
                0,
                bound.set_result,
                asyncio.Event(),
                patience=Patience(head_s=1),
            )
        )
        at = await bound
        idle, fresh, used = [await Raw.to(at) for _ in range(3)]
        await asyncio.gather(idle.good(), used.good())
        await asyncio.gather(fresh.hung_up_on(), used.hung_up_on())
        await idle.good()
        for raw in (idle, fresh, used):
            await raw.close()
        server.cancel()
