"""Durable changes: every viewer gets all of them in order, with few reads."""

import asyncio

import msgspec
import pytest

from chatd.domain.chat.events import MessageEvent, StatusEvent, VersionReached
from chatd.domain.errors import NotFound
from chatd.store.chat import chats
from chatd.store.chat.operation import AppliedChange
from chatd.store.chat.workers import acquire
from tests.stream.conftest import House
from tests.support.clock import FakeClock
from tests.support.factories import text
from tests.support.store import chat_id, write
from tests.support.stream_replica import B, StreamClient, at
from tests.support.turn_decisions import finishes, releases, says, sends
from tests.support.viewer_state import read_state

SINCE, WHOLE, POLL = chats.LOAD_CHANGES, chats.LOAD_NEWEST, chats.LIST_VERSIONS


def reads(sent: list[str]) -> list[str]:
    """The statements that viewers cause, by their names."""
    names = {SINCE: "since", WHOLE: "whole", POLL: "poll"}
    return [names[statement] for statement in sent if statement in names]


async def test_a_new_viewer_gets_everything_beginning_with_the_status(house: House) -> None:
    chat = await house.here.create()
    client = StreamClient(chat.id)
    await client.see(house.here.feeds, at(1))
    assert isinstance(client.events[0], StatusEvent)
    assert isinstance(client.events[-1], VersionReached)
    assert client.state == await read_state(house.pool, chat.id)


@pytest.mark.promise("P8")
async def test_a_commit_here_reaches_viewers_here_without_a_query(house: House) -> None:
    chat = await house.here.create()
    client = StreamClient(chat.id)
    async with client.connected(house.here.feeds) as viewer:
        await client.watch(viewer, at(1))
        house.sent_here.clear()
        for number in range(5):
            chat = await house.here.do(chat, says(f"step {number}"))
        chat = await house.here.do(chat, finishes("done"))
        await client.watch(viewer, at(7))
        assert reads(house.sent_here) == []
    assert client.state == await read_state(house.pool, chat.id)


@pytest.mark.promise("P8")
async def test_a_commit_elsewhere_is_read_once_for_all_viewers(house: House) -> None:
    chat = await house.here.create()
    one, two = StreamClient(chat.id), StreamClient(chat.id)
    async with (
        one.connected(house.there.feeds) as first,
        two.connected(house.there.feeds) as second,
    ):
        house.sent_there.clear()
        chat = await house.here.do(chat, finishes("done"))
        await one.watch(first, at(2))
        await two.watch(second, at(2))
        assert reads(house.sent_there) == ["since"]
    assert one.state == two.state == await read_state(house.pool, chat.id)


async def test_a_queue_that_is_not_empty_must_be_read_and_an_empty_one_need_not(
    house: House,
) -> None:
    chat = await house.here.create()
    client = StreamClient(chat.id)
    async with client.connected(house.here.feeds) as viewer:
        house.sent_here.clear()
        chat = await house.here.do(chat, sends("later"))
        await client.watch(viewer, at(2))
        assert reads(house.sent_here) == ["since"]
        house.sent_here.clear()
        chat = await house.here.do(chat, finishes("now the other"))
        await client.watch(viewer, at(3))
        assert reads(house.sent_here) == []
    assert client.state == await read_state(house.pool, chat.id)


async def test_a_row_from_a_batch_acquire_reaches_viewers(house: House) -> None:
    chat = await house.here.create()
    chat = await house.here.do(chat, releases())
    client = StreamClient(chat.id)
    async with client.connected(house.there.feeds) as viewer:
        house.sent_there.clear()
        (taken,) = await acquire(house.pool, B, roots=1, children=0)
        house.there.feeds.on_applied(AppliedChange(chat=taken))
        await client.watch(viewer, at(3))
        assert reads(house.sent_there) == []
    assert client.state == await read_state(house.pool, chat.id)


async def test_commits_published_out_of_order_all_arrive(house: House) -> None:
    chat = await house.here.create()
    house.network.hold()
    client = StreamClient(chat.id)
    async with client.connected(house.there.feeds) as viewer:
        second = await write(house.pool, says("second")(chat), 2)
        third = await write(house.pool, says("third")(second.chat), 3)
        house.there.feeds.on_applied(third)
        house.there.feeds.on_applied(second)
        house.there.feeds.on_applied(second)
        await client.watch(viewer, at(3))
    assert client.state == await read_state(house.pool, chat.id)


async def test_a_write_that_cannot_be_published_does_not_harm_the_writer(house: House) -> None:
    """It is read back instead: what is stored has been mended."""
    chat = await house.here.create()
    client = StreamClient(chat.id)
    async with client.connected(house.here.feeds) as viewer:
        second = await write(house.pool, says("fine")(chat), 2)
        (row,) = second.messages
        broken = msgspec.structs.replace(row, content=(text("\ud83d"),))
        house.here.feeds.on_applied(msgspec.structs.replace(second, messages=(broken,)))
        await client.watch(viewer, at(2))
    assert client.state == await read_state(house.pool, chat.id)


@pytest.mark.promise("P8")
async def test_a_viewer_that_resumes_gets_only_what_has_changed(house: House) -> None:
    chat = await house.here.create()
    client = StreamClient(chat.id)
    await client.see(house.here.feeds, at(1))
    chat = await house.here.do(chat, says("meanwhile"))
    chat = await house.here.do(chat, finishes("and done"))
    client.events.clear()
    await client.see(house.there.feeds, at(3))
    told = [event.message.id for event in client.events if isinstance(event, MessageEvent)]
    assert told == [2, 3]
    assert client.state == await read_state(house.pool, chat.id)


@pytest.mark.promise("P8")
async def test_viewers_that_resume_from_different_versions_end_alike(house: House) -> None:
    chat = await house.here.create()
    clients = [StreamClient(chat.id)]
    for number in range(4):
        late = StreamClient(chat.id)
        await late.see(house.there.feeds, at(chat.snapshot_version))
        clients.append(late)
        chat = await house.here.do(chat, says(f"step {number}"))
    async with asyncio.TaskGroup() as group:
        for client in clients:
            group.create_task(client.see(house.there.feeds, at(6)))
        chat = await house.here.do(chat, finishes("done"))
    states = [client.state for client in clients]
    assert states == [await read_state(house.pool, chat.id)] * 5


async def test_a_missing_chat_is_refused_before_anything_is_sent(house: House) -> None:
    with pytest.raises(NotFound):
        async with house.here.feeds.open_viewer(chat_id(77), None):
            raise AssertionError
    assert house.here.feeds.watched == 0


async def test_a_deleted_chat_ends_its_streams(house: House, clock: FakeClock) -> None:
    chat = await house.here.create()
    async with house.here.feeds.open_viewer(chat.id, None) as viewer:
        await viewer.next()
        await house.pool.execute("DELETE FROM chats")
        await clock.advance_past("feeds_poll")
        with pytest.raises(NotFound):
            async with asyncio.timeout(30):
                await viewer.next()


async def test_a_feed_ends_with_its_last_viewer(house: House) -> None:
    chat = await house.here.create()
    async with house.there.feeds.open_viewer(chat.id, None):
        async with house.there.feeds.open_viewer(chat.id, None):
            assert house.there.feeds.watched == 1
        assert house.there.feeds.watched == 1
        assert house.there.tail.find(chat.id) is not None
    assert house.there.feeds.watched == 0
    assert house.there.tail.find(chat.id) is None
    house.sent_there.clear()
    await house.here.do(chat, says("to nobody"))
    other = await house.there.create(2)
    await StreamClient(other.id).see(house.there.feeds, at(1))
    assert reads(house.sent_there) == ["whole"]


async def test_an_idle_chat_costs_a_row_in_the_poll_and_nothing_else(
    house: House, clock: FakeClock
) -> None:
    watched_here = [await house.here.create(number) for number in range(1, 4)]
    for chat in watched_here:
        await house.here.do(chat, finishes("done"))
    clients = [StreamClient(chat.id) for chat in watched_here]
    async with (
        clients[0].connected(house.there.feeds),
        clients[1].connected(house.there.feeds),
        clients[2].connected(house.there.feeds) as viewer,
    ):
        house.sent_there.clear()
        await clock.advance_past("feeds_poll")
        await clock.advance_past("feeds_poll")
        # Comes after: whoever polls has had its turn.
        await house.here.do(watched_here[2], sends("more"))
        await clients[2].watch(viewer, at(3))
        assert house.sent_there[:3] == [POLL, POLL, SINCE]


@pytest.mark.covers("F3")
@pytest.mark.promise("P8")
async def test_the_poll_finds_a_change_without_a_hint(house: House, clock: FakeClock) -> None:
    chat = await house.here.create()
    house.network.hold()
    client = StreamClient(chat.id)
    async with client.connected(house.there.feeds) as viewer:
        await client.watch(viewer, at(1))
        chat = await house.here.do(chat, finishes("unheard"))
        await clock.advance_past("feeds_poll")
        await client.watch(viewer, at(2))
    assert client.state == await read_state(house.pool, chat.id)


async def test_after_lost_hints_all_chats_are_checked_in_one_statement(
    house: House, clock: FakeClock
) -> None:
    chat = await house.here.create()
    house.network.hold()
    clients = [StreamClient(chat.id), StreamClient((await house.here.create(2)).id)]
    async with (
        clients[0].connected(house.there.feeds) as viewer,
        clients[1].connected(house.there.feeds),
    ):
        await clock.wait_for_sleeper("feeds_poll")
        house.sent_there.clear()
        await house.here.do(chat, finishes("unheard"))
        house.there.feeds.mark_all_dirty()
        await clients[0].watch(viewer, at(2))
        assert reads(house.sent_there) == ["poll", "since"]


async def test_late_and_repeated_hints_cause_no_reads(house: House) -> None:
    chat = await house.here.create()
    client = StreamClient(chat.id)
    async with client.connected(house.there.feeds) as viewer:
        chat = await house.here.do(chat, says("one"))
        await client.watch(viewer, at(2))
        house.sent_there.clear()
        for hint in (*house.network.said, *house.network.said):
            house.there.on_hint(hint)
        chat = await house.here.do(chat, says("two"))
        await client.watch(viewer, at(3))
        assert reads(house.sent_there) == ["since"]
