"""The front door while the database is away: patient for a moment, then clear about it."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from chatd.domain.chat.states import State
from chatd.store.chat import chats, messages
from chatd.store.pool import Pool
from tests.support.clock import FakeClock
from tests.support.eventually import eventually
from tests.support.factories import CHAT
from tests.support.front import Door, Front, front_door, saying
from tests.support.ledger import said
from tests.support.proxy import Proxy
from tests.support.seeds import Seed
from tests.support.store import plant_in, somebody_waits
from tests.support.stored import stored

SEND = f"/chats/{CHAT}/messages"


@pytest.fixture
async def front(proxy: Proxy, clock: FakeClock) -> AsyncGenerator[Front]:
    """The database is behind a network that can fail; time stands still."""
    async with front_door(proxy.dsn, Door(clock=clock)) as front:
        await clock.asleep_on("journal_empty")
        yield front


async def test_a_request_waits_for_a_database_that_comes_back(
    front: Front, pool: Pool, proxy: Proxy, clock: FakeClock
) -> None:
    await plant_in(pool, Seed(state=State.W))
    proxy.refuse(new=True)
    proxy.cut()
    async with asyncio.TaskGroup() as group:
        sending = group.create_task(front.ask("POST", SEND, saying("still there?")))
        await clock.pass_over("request_retry")
        await clock.asleep_on("request_retry")
        proxy.refuse(new=False)
        await clock.pass_over("request_retry")
    assert sending.result().status == 200
    rows = await messages.load_history(pool, CHAT)
    assert sum("still there?" in str(row.content) for row in rows) == 1


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/chats", saying("hi")),
        ("GET", "/chats", None),
        ("GET", f"/chats/{CHAT}/messages", None),
        ("PATCH", f"/chats/{CHAT}", {"title": "New"}),
        ("POST", f"/chats/{CHAT}/interrupt", None),
        ("GET", f"/chats/{CHAT}/events", None),
    ],
)
async def test_a_request_that_waited_long_enough_is_told_so(
    front: Front, proxy: Proxy, clock: FakeClock, method: str, path: str, body: object
) -> None:
    proxy.refuse(new=True)
    proxy.cut()
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(front.ask(method, path, body))
        waited = sum([await clock.pass_over("request_retry") for _ in range(5)])
    assert 1 < waited < 2
    answer = asking.result()
    assert answer.code == (503, "database_down")
    assert answer.headers["retry-after"] == "1"
    assert b"/tmp" not in answer.content


@pytest.mark.promise("P1")
async def test_a_chat_whose_creation_was_not_heard_of_is_there_once(
    front: Front, pool: Pool, proxy: Proxy, clock: FakeClock
) -> None:
    """The write lands, its reply is lost, and the same write is tried again."""
    first = await front.create("so that the statement is known")
    proxy.hold_replies()

    async def landed() -> bool:
        return len(await stored(pool)) == 2

    async with asyncio.TaskGroup() as group:
        creating = group.create_task(front.ask("POST", "/chats", saying("hello")))
        await eventually(landed)
        proxy.cut()
        await clock.pass_over("request_retry")
    answer = creating.result()
    assert answer.status == 201
    found = {str(chat_id): said(rows) for chat_id, rows in (await stored(pool)).items()}
    del found[str(first)]
    assert found == {answer.json["id"]: ["hello"]}


@pytest.mark.promise("P1")
async def test_a_message_whose_writing_was_not_heard_of_is_there_once_and_told(
    front: Front, pool: Pool, proxy: Proxy, clock: FakeClock
) -> None:
    """The row is held until the write has been sent, and then nobody hears of it."""
    await plant_in(pool, Seed(state=State.R0))

    async def waits() -> bool:
        return await somebody_waits(pool)

    async def landed() -> bool:
        return (await stored(pool))[CHAT].chat.queue_len == 1

    async with asyncio.TaskGroup() as group:
        async with pool.transaction() as holder:
            await chats.lock(holder, CHAT)
            sending = group.create_task(front.ask("POST", SEND, saying("more")))
            await eventually(waits)
            proxy.hold_replies()
        await eventually(landed)
        proxy.cut()
        await clock.pass_over("request_retry")
    answer = sending.result()
    assert (answer.status, answer.json["queued"]) == (200, True)
    queue = await front.ask("GET", f"/chats/{CHAT}/queue")
    assert queue.at("queued_messages") == [answer.json["queued_message"]]
