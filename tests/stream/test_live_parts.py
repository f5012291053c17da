"""Live parts: on every replica, in order, once, and only while they are live."""

import asyncio
from functools import partial

import pytest

from chatd.domain.chat.row import Episode
from chatd.domain.chat_views.events import MessageEvent, MessagePart, PreviewReset
from chatd.store.chat import chats, journal
from chatd.stream.episodes import PREVIEW_TRUNCATED_PART, PartEncoder, encode_live_part
from chatd.stream.fanout import Frame
from chatd.stream.feed_registry import Viewer
from tests.stream.conftest import ReplicaPair
from tests.support.client_state import read_state
from tests.support.clock import FakeClock
from tests.support.domain.turn_decisions import (
    acquires,
    fails,
    finishes,
    interrupts,
    releases,
    retries,
    says,
    sends,
)
from tests.support.engine_rig import advancing
from tests.support.eventually import eventually
from tests.support.factories import CHAT, HARNESS, text
from tests.support.stream_replica import A, B, StreamClient, at, shows


async def is_idle(viewer: Viewer) -> bool:
    return viewer.is_idle


def parts_in(client: StreamClient) -> list[tuple[int, int, int]]:
    return [
        (part.history_version, part.attempt, part.seq)
        for event in client.events
        if isinstance(event, MessagePart)
        for part in [event.message_part]
    ]


@pytest.mark.covers("T34")
@pytest.mark.promise("P8")
async def test_viewers_here_and_elsewhere_see_the_same_parts(live_pair: ReplicaPair) -> None:
    pair = live_pair
    chat = await pair.here.create()
    async with pair.two_viewers(chat) as viewers:
        recorder = pair.here.record(chat)
        for word in ("Once", " upon", " a", " time"):
            recorder.add("assistant", [text(word)])
        await viewers.watch(shows("Once upon a time"))
        assert parts_in(viewers.near) == parts_in(viewers.far)
        recorder.close()
        chat = await pair.here.do(chat, finishes("Once upon a time"))
        await viewers.watch(at(2))
    expected = await read_state(pair.pool, chat.id)
    assert viewers.near.state == viewers.far.state == expected


@pytest.mark.covers("T32")
@pytest.mark.promise("P8")
async def test_a_late_viewer_sees_the_text_so_far(live_pair: ReplicaPair) -> None:
    pair = live_pair
    chat = await pair.here.create()
    recorder = pair.here.record(chat)
    words = [f"word {number} " for number in range(400)]
    for word in words:
        recorder.add("assistant", [text(word)])
    recorder.close()
    for feeds in (pair.here.feeds, pair.there.feeds):
        client = StreamClient(chat.id)
        await client.see(feeds, shows("".join(words)))


async def test_an_idle_viewer_is_written_to_at_once_and_its_task_is_not_woken(
    pair: ReplicaPair, clock: FakeClock
) -> None:
    """A connection that takes no more leaves the rest to the task, and nothing is sent twice."""
    chat = await pair.here.create()
    client = StreamClient(chat.id)
    is_full = False

    def write_now(frame: Frame) -> bool:
        if not is_full:
            client.take(frame)
        return not is_full

    async with client.connected(pair.here.feeds) as viewer, asyncio.TaskGroup() as group:
        await client.watch(viewer, at(1))
        viewer.write_now = write_now
        recorder = pair.here.record(chat)
        recorder.add("assistant", [text("by the task, ")])
        client.take(await viewer.next())
        pumping = group.create_task(viewer.next())
        await eventually(partial(is_idle, viewer))
        for word in ("at ", "once, "):
            clock.advance(0.03)
            recorder.add("assistant", [text(word)])
            assert viewer.is_idle
        assert shows("by the task, at once, ")(client)
        is_full = True
        clock.advance(0.03)
        recorder.add("assistant", [text("later")])
        assert not viewer.is_idle
        clock.advance(0.03)
        recorder.add("assistant", [text(" and last")])
        client.take(await pumping)
        client.take(await viewer.next())
        assert shows("by the task, at once, later and last")(client)
    assert [seq for _, _, seq in parts_in(client)] == [1, 2, 3, 4, 5]


async def test_parts_of_a_new_answer_are_sent_after_the_group_that_begins_it(
    pair: ReplicaPair, clock: FakeClock
) -> None:
    chat = await pair.here.create()
    client, written = StreamClient(chat.id), list[Frame]()
    async with client.connected(pair.here.feeds) as viewer, asyncio.TaskGroup() as group:
        await client.watch(viewer, at(1))
        viewer.write_now = lambda frame: written.append(frame) is None
        pumping = group.create_task(viewer.next())
        await eventually(partial(is_idle, viewer))
        chat = await pair.here.do(chat, says("first"))
        pair.here.record(chat).add("assistant", [text("second")])
        assert written == []
        client.take(await pumping)
        await client.watch(viewer, shows("second"))
    assert client.state.version == 2


@pytest.mark.parametrize("said", ["plain", 'quo"te \\ \n\u2028', "ü€😀", "\ud83d", ""])
def test_a_plain_text_is_encoded_like_every_other_part(said: str) -> None:
    episode = Episode(chat_id=CHAT, history_version=7, attempt=2)
    encoder = PartEncoder(episode)
    for seq in (1, 12):
        expected = encode_live_part(episode, seq, "assistant", text(said))
        assert encoder.encode(seq, "assistant", text(said)) == expected


async def test_a_reload_on_the_running_replica_costs_one_read(pair: ReplicaPair) -> None:
    """The text so far is in memory. The journal's writer works in the background meanwhile."""
    background = (journal.APPEND, journal.TRUNCATE_OLDEST_SLOT)
    chat = await pair.here.create()
    recorder = pair.here.record(chat)
    recorder.add("assistant", [text("so far")])
    pair.sent_here.clear()
    await StreamClient(chat.id).see(pair.here.feeds, shows("so far"))
    assert [sent for sent in pair.sent_here if sent not in background] == [
        sent for sent in pair.sent_here if "WHERE c.id = $1" in sent
    ]


@pytest.mark.covers("T35")
@pytest.mark.promise("P8")
async def test_another_attempt_starts_the_preview_over(live_pair: ReplicaPair) -> None:
    """Connected viewers see a reset; no part is doubled or dropped."""
    pair = live_pair
    chat = await pair.here.create()
    async with pair.two_viewers(chat) as viewers:
        first = pair.here.record(chat)
        first.add("assistant", [text("half an ans")])
        await viewers.watch(shows("half an ans"))
        chat = await pair.here.do(chat, retries())
        second = pair.here.record(chat)
        first.add("assistant", [text("wer, too late")])
        second.add("assistant", [text("a whole answer")])
        await viewers.watch(shows("a whole answer"))
        reset = PreviewReset(chat_id=chat.id, history_version=1, attempt=2)
        for client in (viewers.near, viewers.far):
            assert client.events.count(reset) == 1
            assert client.state.retry is not None


@pytest.mark.promise("P8")
async def test_a_chat_that_moves_to_another_replica_is_followed_there(
    live_pair: ReplicaPair,
) -> None:
    pair = live_pair
    chat = await pair.here.create()
    async with pair.two_viewers(chat) as viewers:
        pair.here.record(chat).add("assistant", [text("begun here")])
        await viewers.watch(shows("begun here"))
        chat = await pair.here.do(chat, releases())
        chat = await pair.there.do(chat, acquires(B))
        pair.there.record(chat).add("assistant", [text("done there")])
        await viewers.watch(shows("done there"))


async def test_unsent_parts_are_sent_before_their_message_and_not_after_it(
    pair: ReplicaPair,
) -> None:
    chat = await pair.here.create()
    client = StreamClient(chat.id)
    async with client.connected(pair.here.feeds) as viewer:
        await client.watch(viewer, at(1))
        recorder = pair.here.record(chat)
        recorder.add("assistant", [text("first a preview")])
        chat = await pair.here.do(chat, says("first a preview"))
        pair.here.record(chat).add("assistant", [text("next")])
        await client.watch(viewer, shows("next"))
    assert parts_in(client) == [(1, 1, 1), (2, 1, 1)]
    kinds = [
        type(event) for event in client.events if isinstance(event, MessagePart | MessageEvent)
    ]
    assert kinds == [MessageEvent, MessagePart, MessageEvent, MessagePart]


@pytest.mark.covers("T34")
@pytest.mark.promise("P8")
async def test_a_preview_elsewhere_is_never_shorter_than_the_message_that_replaces_it(
    pair: ReplicaPair, clock: FakeClock
) -> None:
    """The commit overtakes the journal, which is written a few dozen times a second."""
    chat = await pair.here.create()
    far = StreamClient(chat.id)
    async with far.connected(pair.there.feeds) as viewer:
        recorder = pair.here.record(chat)
        recorder.add("assistant", [text("Once")])
        async with advancing(clock):
            await far.watch(viewer, shows("Once"))
        recorder.add("assistant", [text(" upon")])
        recorder.close()
        await pair.here.do(chat, finishes("Once upon"))
        await far.watch(viewer, lambda client: len(parts_in(client)) > 1)
        assert (far.preview, far.state.version) == ("Once upon", 1)
        await far.watch(viewer, at(2))
    assert parts_in(far) == [(1, 1, 1), (1, 1, 2)]
    assert far.state == await read_state(pair.pool, chat.id)


@pytest.mark.promise("P4")
async def test_a_viewer_on_the_replica_that_takes_over_an_interrupt_sees_all_that_is_kept(
    live_pair: ReplicaPair,
) -> None:
    """The parts that the dead worker wrote last reach it after the takeover."""
    pair = live_pair
    chat = await pair.here.create()
    far = StreamClient(chat.id)
    async with far.connected(pair.there.feeds) as viewer:
        recorder = pair.here.record(chat)
        recorder.add("assistant", [text("Once")])
        await far.watch(viewer, shows("Once"))
        await pair.there.do(chat, interrupts())
        await pair.there.do(chat, releases())
        chat = await pair.there.do(chat, acquires(B))
        recorder.add("assistant", [text(" upon")])
        await far.watch(viewer, shows("Once upon"))


@pytest.mark.covers("T35")
async def test_late_parts_of_a_failed_step_are_not_shown(pair: ReplicaPair) -> None:
    """Its episode has no successor yet, but the chat no longer runs."""
    chat = await pair.here.create()
    client, late = StreamClient(chat.id), StreamClient(chat.id)
    async with client.connected(pair.here.feeds) as viewer:
        recorder = pair.here.record(chat)
        recorder.add("assistant", [text("half an answ")])
        await client.watch(viewer, shows("half an answ"))
        chat = await pair.here.do(chat, fails())
        recorder.add("assistant", [text("er, too late")])
        recorder.close()
        await client.watch(viewer, at(2))
        # The viewers wait for more while the database writes the next message.
        async with asyncio.TaskGroup() as group:
            group.create_task(client.watch(viewer, at(3)))
            group.create_task(late.see(pair.here.feeds, at(3)))
            while late.state.version < 2:
                await chats.get(pair.pool, HARNESS, chat.id)
            await pair.here.do(chat, sends("again", free=A))
    assert (parts_in(client), parts_in(late)) == ([(1, 1, 1)], [])


async def test_parts_wait_for_the_group_that_announces_them(pair: ReplicaPair) -> None:
    """The group must be read, because the queue has changed; the parts arrive before it."""
    chat = await pair.here.create()
    chat = await pair.here.do(chat, sends("one"))
    chat = await pair.here.do(chat, sends("two"))
    client = StreamClient(chat.id)
    async with client.connected(pair.here.feeds) as viewer:
        await client.watch(viewer, at(3))
        chat = await pair.here.do(chat, finishes("done"))
        pair.here.record(chat).add("assistant", [text("next")])
        await client.watch(viewer, shows("next"))
    assert client.state.settled() == await read_state(pair.pool, chat.id)


async def test_an_interrupt_keeps_the_live_parts_until_the_partial_answer_is_saved(
    live_pair: ReplicaPair,
) -> None:
    pair = live_pair
    chat = await pair.here.create()
    far = StreamClient(chat.id)
    async with far.connected(pair.there.feeds) as viewer:
        recorder = pair.here.record(chat)
        recorder.add("assistant", [text("Once")])
        await far.watch(viewer, shows("Once"))
        await pair.there.do(chat, interrupts())
        recorder.add("assistant", [text(" upon")])
        recorder.close()
        await far.watch(viewer, shows("Once upon"))
    assert far.state.status == "interrupting"


@pytest.mark.covers("F43")
async def test_live_parts_that_are_too_long_end_with_a_mark_on_every_replica(
    live_pair: ReplicaPair,
) -> None:
    pair = live_pair
    chat = await pair.here.create()
    recorder = pair.here.record(chat)
    for _ in range(12):
        recorder.add("assistant", [text("x" * 100_000)])
    recorder.close()
    near, far = StreamClient(chat.id), StreamClient(chat.id)
    seen_mark = shows("x" * 1_000_000 + PREVIEW_TRUNCATED_PART.text)
    await near.see(pair.here.feeds, seen_mark)
    await far.see(pair.there.feeds, seen_mark)


async def test_after_a_gap_the_live_parts_stop_until_the_message_arrives(
    live_pair: ReplicaPair,
) -> None:
    pair = live_pair
    chat = await pair.here.create()
    recorder = pair.here.record(chat)
    far = StreamClient(chat.id)
    async with far.connected(pair.there.feeds) as viewer:
        recorder.add("assistant", [text("seen")])
        await far.watch(viewer, shows("seen"))
        lost = journal.JournalEntry(episode=Episode.of(chat), first_seq=3, last_seq=3, parts=b"{}")
        await journal.append(pair.pool, [lost])
        async with asyncio.timeout(30):
            while (followed := pair.there.tail.find(chat.id)) and not followed.broken:
                await pair.pool.fetchval("SELECT pg_sleep(0.005)")
        recorder.add("assistant", [text(" unseen")])
        chat = await pair.here.do(chat, finishes("seen unseen"))
        await far.watch(viewer, at(2))
    assert parts_in(far) == [(1, 1, 1), (1, 1, 2)]
    assert far.state == await read_state(pair.pool, chat.id)


async def test_parts_written_twice_are_shown_once(live_pair: ReplicaPair) -> None:
    """The reply to a statement was lost, and it was sent again."""
    pair = live_pair
    chat = await pair.here.create()
    recorder = pair.here.record(chat)
    far = StreamClient(chat.id)
    async with far.connected(pair.there.feeds) as viewer:
        recorder.add("assistant", [text("one")])
        await far.watch(viewer, shows("one"))
        await pair.pool.execute("INSERT INTO chat_journal SELECT * FROM chat_journal")
        recorder.add("assistant", [text(" two")])
        await far.watch(viewer, shows("one two"))
    late = StreamClient(chat.id)
    await late.see(pair.there.feeds, shows("one two"))


@pytest.mark.covers("T03")
@pytest.mark.promise("P8")
async def test_a_viewer_on_another_replica_that_reconnects_a_hundred_times_misses_nothing(
    live_pair: ReplicaPair,
) -> None:
    """No part missing, none twice, none stale (the client checks the numbers): each time it
    sees the text so far, and more of it than the time before."""
    pair = live_pair
    chat = await pair.here.create()
    client = StreamClient(chat.id)
    said = ""
    recorder = pair.here.record(chat)
    for number in range(100):
        word = f"{number} "
        said += word
        recorder.add("assistant", [text(word)])
        await client.see(pair.there.feeds, lambda it, so_far=said: it.preview == so_far)
        if number % 20 == 19:
            recorder.close()
            chat = await pair.here.do(chat, says(said))
            recorder, said = pair.here.record(chat), ""
    assert client.connections == 100
    await client.see(pair.there.feeds, at(chat.snapshot_version))
    assert client.state.settled() == await read_state(pair.pool, chat.id)


async def test_a_chat_that_runs_on_this_replica_is_not_read_from_the_journal(
    pair: ReplicaPair,
) -> None:
    chat = await pair.here.create()
    async with StreamClient(chat.id).connected(pair.here.feeds):
        assert pair.here.tail.find(chat.id) is None
        async with StreamClient(chat.id).connected(pair.there.feeds):
            assert pair.there.tail.find(chat.id) is not None
    assert journal.TAIL not in pair.sent_here


async def test_an_idle_chat_is_not_read_from_the_journal(
    pair: ReplicaPair, clock: FakeClock
) -> None:
    chat = await pair.here.create()
    client = StreamClient(chat.id)
    async with client.connected(pair.there.feeds) as viewer:
        await clock.wait_for_sleeper("tail")
        chat = await pair.here.do(chat, finishes("done"))
        await client.watch(viewer, at(2))
        assert pair.there.tail.find(chat.id) is None
        pair.sent_there.clear()
        await clock.advance_past("tail")
        await clock.advance_past("feeds_poll")
        await pair.here.do(chat, sends("again"))  # comes after
        await client.watch(viewer, at(3))
        assert pair.sent_there[0] != journal.TAIL
