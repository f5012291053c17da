"""Listening on a port: which one, and how it stops."""

import asyncio

import pytest

from chatd.api.serve import Bound, CannotListen, serve
from chatd.store import chats
from chatd.store.pool import Pool
from tests.support.eventually import eventually
from tests.support.front import Front
from tests.support.listening import Watcher, event_source, reached
from tests.support.store import open_chat, somebody_waits


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
