"""A database that returns without its last changes: clients drop what was lost.

A standby that takes over may lack the last changes. The chat continues with the same versions
for other changes.
"""

import pytest

from chatd.domain.chat.row import RECENT_CHANGES_KEPT, Chat
from chatd.domain.chat_views.events import START, HistoryReset, MessageEvent
from chatd.store.chat import chats
from chatd.stream.fanout import Frame
from tests.stream.conftest import ReplicaPair
from tests.support.client_state import read_state
from tests.support.clock import FakeClock
from tests.support.domain.turn_decisions import finishes, says, sends
from tests.support.factories import HARNESS
from tests.support.outcomes import present
from tests.support.stand_by import stand_by
from tests.support.stream_replica import StreamClient, at

pytestmark = pytest.mark.promise("P8")


def resets(client: StreamClient) -> int:
    return sum(isinstance(event, HistoryReset) for event in client.events)


async def current(pair: ReplicaPair, chat: Chat) -> Chat:
    return present(await chats.get(pair.pool, HARNESS, chat.id))


@pytest.mark.covers("F11")
async def test_a_version_that_goes_back_resets_connected_viewers(
    pair: ReplicaPair, dsn: str
) -> None:
    chat = await pair.here.create()
    async with stand_by(dsn) as standing:
        client = StreamClient(chat.id)
        async with client.connected(pair.there.feeds) as viewer:
            chat = await pair.here.do(chat, says("never was"))
            await client.watch(viewer, at(2))
            await standing.take_over()
            pair.there.without_hints()
            await client.watch(viewer, lambda it: resets(it) == 1 and it.state.version == 1)
            assert client.state == await read_state(pair.pool, chat.id)
            chat = await pair.here.do(await current(pair, chat), finishes("is now"))
            await client.watch(viewer, at(2))
    assert client.state == await read_state(pair.pool, chat.id)


@pytest.mark.parametrize("further", [1, 2, 5, 9, 20])
async def test_another_history_under_the_same_versions_is_noticed(
    pair: ReplicaPair, dsn: str, further: int
) -> None:
    """By the change ids stored in the row."""
    chat = await pair.here.create()
    async with stand_by(dsn) as standing:
        client = StreamClient(chat.id)
        async with client.connected(pair.there.feeds) as viewer:
            await pair.here.do(chat, says("never was"))
            await client.watch(viewer, at(2))
            pair.network.hold()
            await standing.take_over()
            for number in range(further):
                await pair.here.do(chat, says(f"is now {number}"))
            pair.there.without_hints()
            await client.watch(viewer, lambda it: resets(it) == 1 and it.state.version > 0)
    assert client.state == await read_state(pair.pool, chat.id)
    assert client.state.version == 1 + further


async def test_an_own_commit_on_another_history_is_not_taken_for_the_next(
    pair: ReplicaPair, dsn: str
) -> None:
    chat = await pair.here.create()
    async with stand_by(dsn) as standing:
        client = StreamClient(chat.id)
        async with client.connected(pair.here.feeds) as viewer:
            await pair.here.do(chat, says("never was"))
            await client.watch(viewer, at(2))
            pair.network.hold()
            await standing.take_over()
            chat = await pair.there.do(chat, says("is now"))
            chat = await pair.here.do(chat, finishes("done"))
            await client.watch(viewer, lambda it: it.state.version == 3)
    assert client.state == await read_state(pair.pool, chat.id)


@pytest.mark.covers("F11")
async def test_a_viewer_that_resumes_with_a_version_ahead_starts_over(pair: ReplicaPair) -> None:
    chat = await pair.here.create()
    client = StreamClient(chat.id)
    await client.see(pair.here.feeds, at(1))
    client.last_id = "99"
    await client.see(pair.here.feeds, lambda it: resets(it) == 1 and it.state.version == 1)
    assert client.state == await read_state(pair.pool, chat.id)


@pytest.mark.covers("F11")
@pytest.mark.parametrize("further", [1, 2, 5, 9, 20])
async def test_a_client_resumes_from_a_lost_version_and_drops_what_was_lost(
    pair: ReplicaPair, dsn: str, further: int
) -> None:
    """Its version exists again, for another change. The feed it joins never saw the lost past."""
    chat = await pair.here.create()
    client = StreamClient(chat.id)
    async with stand_by(dsn) as standing:
        await pair.here.do(chat, says("never was"))
        await client.see(pair.here.feeds, at(2))
        await standing.take_over()
        for number in range(further):
            await pair.there.do(chat, says(f"is now {number}"))
        await client.see(
            pair.there.feeds, lambda it: resets(it) == 1 and it.state.version == 1 + further
        )
    assert client.state == await read_state(pair.pool, chat.id)


async def test_a_client_resumes_by_its_cursor_without_a_reset(pair: ReplicaPair) -> None:
    chat = await pair.here.create()
    client = StreamClient(chat.id)
    await client.see(pair.here.feeds, at(1))
    for number in range(12):
        await pair.here.do(chat, says(f"more {number}"))
        if number in (0, 2):
            await client.see(pair.there.feeds, at(2 + number))
    await client.see(pair.there.feeds, at(13))
    assert resets(client) == 0
    assert client.state == await read_state(pair.pool, chat.id)


async def test_a_client_whose_cursor_cannot_be_verified_starts_over(pair: ReplicaPair) -> None:
    """Its last change queued a message: the row has forgotten that change, and no message has
    it."""
    chat = await pair.here.create()
    await pair.here.do(chat, sends("later"))
    client, bare = StreamClient(chat.id), StreamClient(chat.id)
    await client.see(pair.here.feeds, at(2))
    await bare.see(pair.here.feeds, at(2))
    bare.last_id = "2"
    for number in range(RECENT_CHANGES_KEPT):
        await pair.here.do(chat, says(f"more {number}"))
    for stranger, expected in ((client, 1), (bare, 0)):
        await stranger.see(pair.there.feeds, at(2 + RECENT_CHANGES_KEPT))
        assert resets(stranger) == expected
        assert stranger.state == await read_state(pair.pool, chat.id)


async def test_a_hint_of_another_past_resets_viewers_although_its_version_is_lower(
    pair: ReplicaPair, dsn: str
) -> None:
    """Without waiting for the poll, on both replicas."""
    chat = await pair.here.create()
    async with stand_by(dsn) as standing:
        one, other = StreamClient(chat.id), StreamClient(chat.id)
        async with one.connected(pair.here.feeds) as here, other.connected(pair.there.feeds) as far:
            await pair.here.do(chat, says("never was"))
            await pair.here.do(chat, says("nor this"))
            await one.watch(here, at(3))
            await other.watch(far, at(3))
            await standing.take_over()
            await pair.here.do(chat, says("is now"))
            for client, viewer in ((one, here), (other, far)):
                await client.watch(viewer, lambda it: resets(it) == 1 and it.state.version == 2)
    assert one.state == other.state == await read_state(pair.pool, chat.id)


async def test_a_viewer_that_starts_over_resets_no_other(
    pair: ReplicaPair, clock: FakeClock
) -> None:
    chat = await pair.here.create()
    calm, lost = StreamClient(chat.id), StreamClient(chat.id)
    lost.last_id = "99"
    async with calm.connected(pair.here.feeds) as viewer:
        await lost.see(pair.here.feeds, at(1))
        await clock.advance_past("feeds_poll")
        await pair.here.do(chat, says("on it goes"))
        await calm.watch(viewer, at(2))
    assert resets(calm) == 0


async def test_a_viewer_disconnected_while_it_starts_over_starts_over_again(
    pair: ReplicaPair,
) -> None:
    """It has dropped everything, so its version is useless."""
    chat = await pair.here.create()
    chat = await pair.here.do(chat, says("a"))
    chat = await pair.here.do(chat, says("b"))
    client = StreamClient(chat.id)
    client.last_id = "99"
    async with client.connected(pair.here.feeds) as viewer:
        frame = await viewer.next()
        assert frame == Frame(events=frame.events[:1], cursor=START)
        client.take(frame)
    assert client.last_id == "0"
    await client.see(pair.here.feeds, at(3))
    assert client.state == await read_state(pair.pool, chat.id)


async def test_a_viewer_that_missed_too_much_gets_everything_newest_first(
    pair: ReplicaPair, dsn: str
) -> None:
    """More than a thousand messages changed: what it has is dropped, and it pages for the
    older ones."""
    chat = await pair.here.create()
    client = StreamClient(chat.id)
    await client.see(pair.here.feeds, at(1))
    await pair.pool.execute(
        """INSERT INTO chat_messages (chat_id, id, root_chat_id, revision, role, visibility,
               content, content_version)
           SELECT $1, n, $1, 2, 'assistant', 'both', '[{"type":"text","text":"x"}]', 1
           FROM generate_series(2, 1500) n""",
        chat.id,
    )
    await pair.pool.execute(
        "UPDATE chats SET snapshot_version = 2, history_version = 2, next_message_id = 1501"
    )
    async with client.connected(pair.here.feeds) as viewer:
        await client.watch(viewer, lambda it: it.state.version == 2)
    told = [event.message.id for event in client.events if isinstance(event, MessageEvent)]
    assert (resets(client), told[-1000:]) == (1, list(range(501, 1501)))
    assert client.state == await read_state(pair.pool, chat.id)
    assert client.state.has_older
