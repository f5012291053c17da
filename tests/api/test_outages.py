"""Requests while the database is unavailable: retried for a moment, then refused."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from chatd.domain.chat.states import State
from chatd.store.chat import chats, messages
from chatd.store.database.pool import Pool
from tests.support.api.server import OTHER_USER, ApiOptions, ApiServer, message_body, serve_api
from tests.support.api.shares import share
from tests.support.api.sse_viewer import SseViewer, event_source, reached
from tests.support.change_log import prompt_texts
from tests.support.clock import FakeClock
from tests.support.eventually import eventually
from tests.support.factories import CHAT, HARNESS
from tests.support.proxy import Proxy
from tests.support.seeds import Seed
from tests.support.store import has_lock_waiter, insert_seed
from tests.support.stored import stored

SEND = f"/chats/{CHAT}/messages"


@pytest.fixture
async def server(proxy: Proxy, clock: FakeClock) -> AsyncGenerator[ApiServer]:
    """The database is behind a proxy that can fail; the clock is fake."""
    async with serve_api(proxy.dsn, ApiOptions(clock=clock)) as server:
        await clock.wait_for_sleeper("journal_empty")
        yield server


async def test_a_request_waits_until_the_database_recovers(
    server: ApiServer, pool: Pool, proxy: Proxy, clock: FakeClock
) -> None:
    await insert_seed(pool, Seed(state=State.W))
    proxy.refuse(new=True)
    proxy.cut()
    async with asyncio.TaskGroup() as group:
        sending = group.create_task(server.ask("POST", SEND, message_body("still there?")))
        await clock.advance_past("request_retry")
        await clock.wait_for_sleeper("request_retry")
        proxy.refuse(new=False)
        await clock.advance_past("request_retry")
    assert sending.result().status == 200
    rows = await messages.load_history(pool, HARNESS, CHAT)
    assert sum("still there?" in str(row.content) for row in rows) == 1


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/chats", message_body("hi")),
        ("GET", "/chats", None),
        ("GET", f"/chats/{CHAT}/messages", None),
        ("PATCH", f"/chats/{CHAT}", {"title": "New"}),
        ("POST", f"/chats/{CHAT}/interrupt", None),
        ("GET", f"/chats/{CHAT}/events", None),
    ],
)
async def test_a_request_fails_when_the_database_stays_away(
    server: ApiServer, proxy: Proxy, clock: FakeClock, method: str, path: str, body: object
) -> None:
    proxy.refuse(new=True)
    proxy.cut()
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(server.ask(method, path, body))
        waited = sum([await clock.advance_past("request_retry") for _ in range(5)])
    assert 1 < waited < 2
    answer = asking.result()
    assert answer.code == (503, "database_down")
    assert answer.headers["retry-after"] == "1"
    assert b"/tmp" not in answer.content


@pytest.mark.promise("P1")
async def test_a_chat_is_created_once_although_the_reply_was_lost(
    server: ApiServer, pool: Pool, proxy: Proxy, clock: FakeClock
) -> None:
    """The write is committed, its reply is lost, and the same write is retried."""
    first = await server.create("so that the statement is known")
    proxy.hold_replies()

    async def landed() -> bool:
        return len(await stored(pool)) == 2

    async with asyncio.TaskGroup() as group:
        creating = group.create_task(server.ask("POST", "/chats", message_body("hello")))
        await eventually(landed)
        proxy.cut()
        await clock.advance_past("request_retry")
    answer = creating.result()
    assert answer.status == 201
    found = {str(chat_id): prompt_texts(rows) for chat_id, rows in (await stored(pool)).items()}
    del found[str(first)]
    assert found == {answer.json["id"]: ["hello"]}


@pytest.mark.promise("P1")
async def test_a_message_is_stored_and_published_once_although_the_reply_was_lost(
    server: ApiServer, pool: Pool, proxy: Proxy, clock: FakeClock
) -> None:
    """A lock holds the row until the write was sent; then its reply is lost."""
    await insert_seed(pool, Seed(state=State.R0))

    async def waits() -> bool:
        return await has_lock_waiter(pool)

    async def landed() -> bool:
        return (await stored(pool))[CHAT].chat.queue_len == 1

    async with asyncio.TaskGroup() as group:
        async with pool.transaction() as holder:
            await chats.lock(holder, CHAT)
            sending = group.create_task(server.ask("POST", SEND, message_body("more")))
            await eventually(waits)
            proxy.hold_replies()
        await eventually(landed)
        proxy.cut()
        await clock.advance_past("request_retry")
    answer = sending.result()
    assert (answer.status, answer.json["queued"]) == (200, True)
    queue = await server.ask("GET", f"/chats/{CHAT}/queue")
    assert queue.at("queued_messages") == [answer.json["queued_message"]]


async def test_a_chat_list_is_ready_once_the_database_can_tell_what_is_shared(
    server: ApiServer, proxy: Proxy, clock: FakeClock
) -> None:
    proxy.refuse(new=True)
    proxy.cut()
    async with event_source(server, "/events") as source, asyncio.TaskGroup() as group:
        reading = group.create_task(source.json())
        await clock.advance_past("share_read_retry")
        await clock.wait_for_sleeper("share_read_retry")
        assert not reading.done()
        proxy.refuse(new=False)
        await clock.advance_past("share_read_retry")
        assert (await reading)["type"] == "ready"


@pytest.mark.promise("P12")
async def test_a_stream_is_checked_once_the_database_is_back(
    server: ApiServer, pool: Pool, proxy: Proxy, clock: FakeClock
) -> None:
    await insert_seed(pool, Seed(state=State.W))
    await share(server, CHAT)
    reader = SseViewer(CHAT)
    async with event_source(server, reader.path, token=OTHER_USER) as source:
        await reader.watch(source, reached(1))
        await pool.execute("DELETE FROM chat_shares")
        proxy.refuse(new=True)
        proxy.cut()
        server.deps.accounts.changes.on_connected()
        await clock.advance_past("stream_check_retry")
        await clock.wait_for_sleeper("stream_check_retry")
        proxy.refuse(new=False)
        await clock.advance_past("stream_check_retry")
        await reader.read_all(source)
        assert reader.end == "not_found"
