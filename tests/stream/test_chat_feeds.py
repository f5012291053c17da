"""Durable changes: every viewer gets all of them in order, with few reads."""

import asyncio

import msgspec
import pytest

from chatd.domain.chat.commands import ChooseVersion, EditMessage
from chatd.domain.chat_views.events import MessageEvent, StatusEvent, VersionReached
from chatd.domain.errors import NotFound
from chatd.domain.ids import ChangeId, MessageId
from chatd.store.chat import chats
from chatd.store.chat.operation import AppliedChange
from chatd.store.chat.workers import acquire
from chatd.stream.feed_registry import NEW_CHAT_S
from tests.stream.conftest import ReplicaPair
from tests.support.client_state import read_state
from tests.support.clock import FakeClock
from tests.support.domain.turn_decisions import finishes, releases, says, sends
from tests.support.factories import HARNESS, prompt, text
from tests.support.operations import operation
from tests.support.store import chat_id, write
from tests.support.stream_replica import B, StreamClient, at

SINCE, WHOLE, POLL = chats.LOAD_CHANGES, chats.LOAD_NEWEST, chats.LIST_VERSIONS


def reads(sent: list[str]) -> list[str]:
    """Names of the statements that viewers cause."""
    names = {SINCE: "since", WHOLE: "whole", POLL: "poll"}
    return [names[statement] for statement in sent if statement in names]


async def test_a_new_viewer_gets_everything_beginning_with_the_status(pair: ReplicaPair) -> None:
    chat = await pair.here.create()
    client = StreamClient(chat.id)
    await client.see(pair.here.feeds, at(1))
    assert isinstance(client.events[0], StatusEvent)
    assert isinstance(client.events[-1], VersionReached)
    assert client.state == await read_state(pair.pool, chat.id)


@pytest.mark.promise("P8")
async def test_the_first_viewer_of_a_chat_that_was_created_here_needs_no_read(
    pair: ReplicaPair,
) -> None:
    chat = await pair.here.create()
    client = StreamClient(chat.id)
    pair.sent_here.clear()
    async with client.connected(pair.here.feeds) as viewer:
        await client.watch(viewer, at(1))
        assert reads(pair.sent_here) == []
        chat = await pair.here.do(chat, finishes("done"))
        await client.watch(viewer, at(2))
        assert reads(pair.sent_here) == []
    assert client.state == await read_state(pair.pool, chat.id)


@pytest.mark.promise("P8")
async def test_a_new_chat_is_read_for_its_first_viewer_once_it_has_changed(
    pair: ReplicaPair, clock: FakeClock
) -> None:
    changed, old = await pair.here.create(), await pair.here.create()
    changed = await pair.here.do(changed, finishes("done"))
    clock.advance(NEW_CHAT_S)
    for chat in (changed, old):
        client = StreamClient(chat.id)
        pair.sent_here.clear()
        await client.see(pair.here.feeds, at(chat.snapshot_version))
        assert reads(pair.sent_here) == ["whole"]
        assert client.state == await read_state(pair.pool, chat.id)


@pytest.mark.promise("P8")
async def test_a_commit_here_reaches_viewers_here_without_a_query(pair: ReplicaPair) -> None:
    chat = await pair.here.create()
    client = StreamClient(chat.id)
    async with client.connected(pair.here.feeds) as viewer:
        await client.watch(viewer, at(1))
        pair.sent_here.clear()
        for number in range(5):
            chat = await pair.here.do(chat, says(f"step {number}"))
        chat = await pair.here.do(chat, finishes("done"))
        await client.watch(viewer, at(7))
        assert reads(pair.sent_here) == []
    assert client.state == await read_state(pair.pool, chat.id)


@pytest.mark.promise("P8")
async def test_a_commit_elsewhere_is_read_once_for_all_viewers(pair: ReplicaPair) -> None:
    chat = await pair.here.create()
    one, two = StreamClient(chat.id), StreamClient(chat.id)
    async with (
        one.connected(pair.there.feeds) as first,
        two.connected(pair.there.feeds) as second,
    ):
        pair.sent_there.clear()
        chat = await pair.here.do(chat, finishes("done"))
        await one.watch(first, at(2))
        await two.watch(second, at(2))
        assert reads(pair.sent_there) == ["since"]
    assert one.state == two.state == await read_state(pair.pool, chat.id)


@pytest.mark.promise("P8")
async def test_a_version_shown_again_reaches_viewers_that_saw_any_earlier_state(
    pair: ReplicaPair,
) -> None:
    chat = await pair.here.create()
    here, there, away = (StreamClient(chat.id) for _ in range(3))
    chat = await pair.here.do(chat, finishes("one"))
    await away.see(pair.there.feeds, at(2))
    async with (
        here.connected(pair.here.feeds) as first,
        there.connected(pair.there.feeds) as second,
    ):
        target = MessageId(1)
        edit = EditMessage(message_id=target, prompt=prompt("again"))
        with_slot = operation(edit, ChangeId(501), chat.id, free=B)
        await pair.here.transactor.run(with_slot)
        later = StreamClient(chat.id)
        await later.see(pair.here.feeds, at(3))
        chat = await pair.here.do(chat, finishes("two"))
        choice = operation(ChooseVersion(message_id=target), ChangeId(502), chat.id)
        await pair.here.transactor.run(choice)
        await here.watch(first, at(5))
        await there.watch(second, at(5))
    await away.see(pair.here.feeds, at(5))
    await later.see(pair.there.feeds, at(5))
    stored = await read_state(pair.pool, chat.id)
    assert list(stored.messages) == [1, 2]
    for client in (here, there, away, later):
        assert client.state == stored


async def test_a_queue_that_is_not_empty_must_be_read_and_an_empty_one_need_not(
    pair: ReplicaPair,
) -> None:
    chat = await pair.here.create()
    client = StreamClient(chat.id)
    async with client.connected(pair.here.feeds) as viewer:
        pair.sent_here.clear()
        chat = await pair.here.do(chat, sends("later"))
        await client.watch(viewer, at(2))
        assert reads(pair.sent_here) == ["since"]
        pair.sent_here.clear()
        chat = await pair.here.do(chat, finishes("now the other"))
        await client.watch(viewer, at(3))
        assert reads(pair.sent_here) == []
    assert client.state == await read_state(pair.pool, chat.id)


async def test_a_row_from_a_batch_acquire_reaches_viewers(pair: ReplicaPair) -> None:
    chat = await pair.here.create()
    chat = await pair.here.do(chat, releases())
    client = StreamClient(chat.id)
    async with client.connected(pair.there.feeds) as viewer:
        pair.sent_there.clear()
        (taken,) = await acquire(pair.pool, B, roots=1, children=0)
        pair.there.feeds.on_applied(AppliedChange(chat=taken))
        await client.watch(viewer, at(3))
        assert reads(pair.sent_there) == []
    assert client.state == await read_state(pair.pool, chat.id)


async def test_commits_published_out_of_order_all_arrive(pair: ReplicaPair) -> None:
    chat = await pair.here.create()
    pair.network.hold()
    client = StreamClient(chat.id)
    async with client.connected(pair.there.feeds) as viewer:
        second = await write(pair.pool, says("second")(chat), 2)
        third = await write(pair.pool, says("third")(second.chat), 3)
        pair.there.feeds.on_applied(third)
        pair.there.feeds.on_applied(second)
        pair.there.feeds.on_applied(second)
        await client.watch(viewer, at(3))
    assert client.state == await read_state(pair.pool, chat.id)


async def test_a_write_that_cannot_be_published_does_not_harm_the_writer(
    pair: ReplicaPair,
) -> None:
    """It is read back instead: the stored text has U+FFFD in place of lone surrogates."""
    chat = await pair.here.create()
    client = StreamClient(chat.id)
    async with client.connected(pair.here.feeds) as viewer:
        second = await write(pair.pool, says("fine")(chat), 2)
        (row,) = second.messages
        broken = msgspec.structs.replace(row, content=(text("\ud83d"),))
        pair.here.feeds.on_applied(msgspec.structs.replace(second, messages=(broken,)))
        await client.watch(viewer, at(2))
    assert client.state == await read_state(pair.pool, chat.id)


@pytest.mark.promise("P8")
async def test_a_viewer_that_resumes_gets_only_what_has_changed(pair: ReplicaPair) -> None:
    chat = await pair.here.create()
    client = StreamClient(chat.id)
    await client.see(pair.here.feeds, at(1))
    chat = await pair.here.do(chat, says("meanwhile"))
    chat = await pair.here.do(chat, finishes("and done"))
    client.events.clear()
    await client.see(pair.there.feeds, at(3))
    told = [event.message.id for event in client.events if isinstance(event, MessageEvent)]
    assert told == [2, 3]
    assert client.state == await read_state(pair.pool, chat.id)


@pytest.mark.promise("P8")
async def test_viewers_that_resume_from_different_versions_end_alike(pair: ReplicaPair) -> None:
    chat = await pair.here.create()
    clients = [StreamClient(chat.id)]
    for number in range(4):
        late = StreamClient(chat.id)
        await late.see(pair.there.feeds, at(chat.snapshot_version))
        clients.append(late)
        chat = await pair.here.do(chat, says(f"step {number}"))
    async with asyncio.TaskGroup() as group:
        for client in clients:
            group.create_task(client.see(pair.there.feeds, at(6)))
        chat = await pair.here.do(chat, finishes("done"))
    states = [client.state for client in clients]
    assert states == [await read_state(pair.pool, chat.id)] * 5


async def test_a_missing_chat_is_refused_before_anything_is_sent(pair: ReplicaPair) -> None:
    with pytest.raises(NotFound):
        async with pair.here.feeds.open_viewer(HARNESS, chat_id(77), None):
            raise AssertionError
    assert pair.here.feeds.watched == 0


async def test_a_deleted_chat_ends_its_streams(pair: ReplicaPair, clock: FakeClock) -> None:
    chat = await pair.here.create()
    async with pair.here.feeds.open_viewer(HARNESS, chat.id, None) as viewer:
        await viewer.next()
        await pair.pool.execute("DELETE FROM chats")
        await clock.advance_past("feeds_poll")
        with pytest.raises(NotFound):
            async with asyncio.timeout(30):
                await viewer.next()


async def test_a_feed_ends_with_its_last_viewer(pair: ReplicaPair) -> None:
    chat = await pair.here.create()
    async with pair.there.feeds.open_viewer(HARNESS, chat.id, None):
        async with pair.there.feeds.open_viewer(HARNESS, chat.id, None):
            assert pair.there.feeds.watched == 1
        assert pair.there.feeds.watched == 1
        assert pair.there.tail.find(chat.id) is not None
    assert pair.there.feeds.watched == 0
    assert pair.there.tail.find(chat.id) is None
    pair.sent_there.clear()
    await pair.here.do(chat, says("to no viewer"))
    other = await pair.here.create(2)
    await StreamClient(other.id).see(pair.there.feeds, at(1))
    assert reads(pair.sent_there) == ["whole"]


async def test_an_idle_chat_costs_a_row_in_the_poll_and_nothing_else(
    pair: ReplicaPair, clock: FakeClock
) -> None:
    watched_here = [await pair.here.create(number) for number in range(1, 4)]
    for chat in watched_here:
        await pair.here.do(chat, finishes("done"))
    clients = [StreamClient(chat.id) for chat in watched_here]
    async with (
        clients[0].connected(pair.there.feeds),
        clients[1].connected(pair.there.feeds),
        clients[2].connected(pair.there.feeds) as viewer,
    ):
        pair.sent_there.clear()
        await clock.advance_past("feeds_poll")
        await clock.advance_past("feeds_poll")
        # Comes after the poll.
        await pair.here.do(watched_here[2], sends("more"))
        await clients[2].watch(viewer, at(3))
        assert pair.sent_there[:3] == [POLL, POLL, SINCE]


@pytest.mark.covers("F3")
@pytest.mark.promise("P8")
async def test_the_poll_finds_a_change_without_a_hint(pair: ReplicaPair, clock: FakeClock) -> None:
    chat = await pair.here.create()
    pair.network.hold()
    client = StreamClient(chat.id)
    async with client.connected(pair.there.feeds) as viewer:
        await client.watch(viewer, at(1))
        chat = await pair.here.do(chat, finishes("unheard"))
        await clock.advance_past("feeds_poll")
        await client.watch(viewer, at(2))
    assert client.state == await read_state(pair.pool, chat.id)


async def test_after_lost_hints_all_chats_are_checked_in_one_statement(
    pair: ReplicaPair, clock: FakeClock
) -> None:
    chat = await pair.here.create()
    pair.network.hold()
    clients = [StreamClient(chat.id), StreamClient((await pair.here.create(2)).id)]
    async with (
        clients[0].connected(pair.there.feeds) as viewer,
        clients[1].connected(pair.there.feeds),
    ):
        await clock.wait_for_sleeper("feeds_poll")
        pair.sent_there.clear()
        await pair.here.do(chat, finishes("unheard"))
        pair.there.feeds.mark_all_dirty()
        await clients[0].watch(viewer, at(2))
        assert reads(pair.sent_there) == ["poll", "since"]


async def test_late_and_repeated_hints_cause_no_reads(pair: ReplicaPair) -> None:
    chat = await pair.here.create()
    client = StreamClient(chat.id)
    async with client.connected(pair.there.feeds) as viewer:
        chat = await pair.here.do(chat, says("one"))
        await client.watch(viewer, at(2))
        pair.sent_there.clear()
        for hint in (*pair.network.said, *pair.network.said):
            pair.there.on_hint(hint)
        chat = await pair.here.do(chat, says("two"))
        await client.watch(viewer, at(3))
        assert reads(pair.sent_there) == ["since"]
