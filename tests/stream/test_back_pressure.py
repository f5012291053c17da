"""Viewers that do not keep up: they are disconnected, can resume, and do not affect others."""

import gc
import weakref

import pytest

from chatd.domain.chat_views.events import VersionReached
from chatd.stream.fanout import Broadcast, Lagged, Subscription
from tests.stream.conftest import ReplicaPair
from tests.support.client_state import read_state
from tests.support.clock import FakeClock
from tests.support.domain.turn_decisions import commits, says
from tests.support.factories import draft, text
from tests.support.outcomes import present, raised
from tests.support.stream_replica import StreamClient, at

HALF = "x" * 600_000


@pytest.mark.covers("F17")
async def test_a_viewer_one_mebibyte_behind_is_disconnected_and_others_are_not(
    pair: ReplicaPair,
) -> None:
    chat = await pair.here.create()
    slow, quick = StreamClient(chat.id), StreamClient(chat.id)
    async with (
        slow.connected(pair.here.feeds) as stuck,
        quick.connected(pair.here.feeds) as viewer,
    ):
        await slow.watch(stuck, at(1))
        for version in range(2, 6):
            chat = await pair.here.do(chat, says(HALF))
            await quick.watch(viewer, at(version))
        assert (await raised(Lagged, slow.watch(stuck, at(5)))).code == "lagged"
    await slow.see(pair.here.feeds, at(5))
    assert slow.state == quick.state == await read_state(pair.pool, chat.id)


async def test_one_large_group_disconnects_no_viewer(pair: ReplicaPair) -> None:
    chat = await pair.here.create()
    client = StreamClient(chat.id)
    async with client.connected(pair.here.feeds) as viewer:
        await client.watch(viewer, at(1))
        big = [draft("assistant", text(HALF)) for _ in range(4)]
        chat = await pair.here.do(chat, commits(*big))
        await client.watch(viewer, at(2))
    assert client.state == await read_state(pair.pool, chat.id)


@pytest.mark.covers("F17")
async def test_a_viewer_that_reads_nothing_for_ten_seconds_is_disconnected(
    pair: ReplicaPair, clock: FakeClock
) -> None:
    chat = await pair.here.create()
    client = StreamClient(chat.id)
    async with client.connected(pair.here.feeds) as viewer:
        await client.watch(viewer, at(1))
        chat = await pair.here.do(chat, says("two"))
        clock.advance(9)
        chat = await pair.here.do(chat, says("three"))
        assert not viewer.lagged
        clock.advance(2)
        chat = await pair.here.do(chat, says("four"))
        with pytest.raises(Lagged):
            await client.watch(viewer, at(4))


async def test_a_viewer_that_keeps_up_is_never_disconnected(
    pair: ReplicaPair, clock: FakeClock
) -> None:
    """Also if new groups arrive all the time."""
    chat = await pair.here.create()
    client = StreamClient(chat.id)
    async with client.connected(pair.here.feeds) as viewer:
        await client.watch(viewer, at(1))
        chat = await pair.here.do(chat, says("ahead"))
        recorder = pair.here.record(chat)
        for _ in range(20):
            recorder.add("assistant", [text("x")])
            client.take(await viewer.next())
            clock.advance(4)
    assert not viewer.lagged


async def test_a_group_is_sent_whole_also_to_a_viewer_too_late_for_the_next(
    pair: ReplicaPair, clock: FakeClock
) -> None:
    """So that it has a version to resume from and makes progress each time."""
    chat = await pair.here.create()
    big = [draft("assistant", text("x" * 100_000)) for _ in range(10)]
    chat = await pair.here.do(chat, commits(*big))
    client = StreamClient(chat.id)
    async with client.connected(pair.here.feeds) as viewer:
        client.take(await viewer.next())
        assert client.state.version == 0
        chat = await pair.here.do(chat, says("one more"))
        clock.advance(11)
        chat = await pair.here.do(chat, says("and another"))
        with pytest.raises(Lagged):
            await client.watch(viewer, at(4))
    assert isinstance(client.events[-1], VersionReached)
    assert present(client.last_id).startswith("2-")
    await client.see(pair.here.feeds, at(4))
    assert client.state == await read_state(pair.pool, chat.id)


class Thing:
    """A value with weak references, to notice when it is freed."""


async def test_groups_that_all_viewers_have_read_are_freed(clock: FakeClock) -> None:
    chain: Broadcast[Thing] = Broadcast()
    quick, stuck = Subscription(chain, clock), Subscription(chain, clock)
    thing = Thing()
    kept = weakref.ref(thing)
    chain.append(thing, 2 * 1024 * 1024)
    chain.append(Thing(), 1)
    del thing
    assert quick.pull() is kept()
    quick.pull()
    gc.collect()
    assert kept() is not None, "one has not had it yet"
    chain.append(Thing(), 2 * 1024 * 1024)
    stuck.wake()
    gc.collect()
    assert (stuck.lagged, kept()) == (True, None)
