"""Changes during a read: nothing is missed, sent twice, or taken back.

The proxy delays replies of the database, so that they are outdated when they arrive.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack

import pytest

from chatd.domain.chat.row import Chat, Hint
from chatd.domain.chat_views.events import MessageEvent, StatusEvent
from chatd.store.chat import chats
from chatd.store.chat.operation import AppliedChange
from chatd.store.database.pool import Pool
from tests.support.client_state import read_state
from tests.support.clock import FakeClock
from tests.support.domain.turn_decisions import (
    Decision,
    finishes,
    finishes_interrupt,
    interrupts,
    says,
    sends,
)
from tests.support.eventually import eventually
from tests.support.factories import CHAT, HARNESS
from tests.support.proxy import Proxy
from tests.support.store import open_chat, write
from tests.support.stream_replica import (
    A,
    B,
    HintNetwork,
    StreamClient,
    StreamReplica,
    at,
    replica_on,
)

pytestmark = pytest.mark.promise("P8")


class Slow:
    """A replica behind a proxy that can delay replies, and a chat that other replicas write to."""

    def __init__(self, replica: StreamReplica, sent: list[str], proxy: Proxy, pool: Pool) -> None:
        self.replica = replica
        self.sent = sent
        self.proxy = proxy
        self.pool = pool
        self.chat: Chat | None = None
        self._changes = 0

    async def begin(self) -> None:
        self.chat = await open_chat(self.pool, CHAT.int, free=A)
        # Opens a session with prepared statements, so that only the reply is delayed.
        for version in (0, 1):
            await chats.load_changes_since(self.replica.pool, HARNESS, CHAT, version)
        self.sent.clear()

    async def change(self, decide: Decision) -> AppliedChange:
        """Write as another replica, without a hint."""
        assert self.chat is not None
        self._changes += 1
        applied = await write(self.pool, decide(self.chat), self._changes)
        self.chat = applied.chat
        return applied

    async def hint(self, decide: Decision) -> None:
        """Write as another replica, with a hint."""
        self.replica.feeds.on_hint(Hint.of((await self.change(decide)).chat))

    async def answer_is_held_back(self) -> None:
        async def look() -> bool:
            return self.proxy.withheld > 0

        await eventually(look)

    def hold(self) -> None:
        self.proxy.withheld = 0
        self.proxy.hold_replies()

    @property
    def reads(self) -> int:
        return self.sent.count(chats.LOAD_CHANGES) + self.sent.count(chats.LOAD_NEWEST)


@pytest.fixture
async def slow(dsn: str, proxy: Proxy, clock: FakeClock, pool: Pool) -> AsyncGenerator[Slow]:
    async with replica_on(proxy.dsn, clock, HintNetwork(), B, pool) as (replica, sent):
        rig = Slow(replica, sent, proxy, pool)
        await rig.begin()
        yield rig
        proxy.resume()


def messages_in(client: StreamClient) -> list[int]:
    return [event.message.id for event in client.events if isinstance(event, MessageEvent)]


async def test_a_change_while_the_first_viewer_joins_is_read(slow: Slow) -> None:
    client = StreamClient(CHAT)
    slow.hold()
    async with asyncio.TaskGroup() as group:
        group.create_task(client.see(slow.replica.feeds, at(2)))
        await slow.answer_is_held_back()
        slow.replica.feeds.on_applied(await slow.change(finishes("meanwhile")))
        slow.proxy.resume()
    assert client.state == await read_state(slow.pool, CHAT)


async def test_a_change_while_another_viewer_joins_follows_its_snapshot(slow: Slow) -> None:
    first, second = StreamClient(CHAT), StreamClient(CHAT)
    async with first.connected(slow.replica.feeds) as viewer:
        slow.hold()
        async with asyncio.TaskGroup() as group:
            group.create_task(second.see(slow.replica.feeds, at(3)))
            await slow.answer_is_held_back()
            slow.replica.feeds.on_applied(await slow.change(says("two")))
            slow.replica.feeds.on_applied(await slow.change(finishes("three")))
            slow.proxy.resume()
        await first.watch(viewer, at(3))
    assert slow.reads == 2, "one for each who joined"
    assert messages_in(second) == [1, 2, 3]
    assert first.state == second.state == await read_state(slow.pool, CHAT)


async def test_a_read_overtaken_by_own_commits_publishes_nothing(slow: Slow) -> None:
    client = StreamClient(CHAT)
    async with client.connected(slow.replica.feeds) as viewer:
        await client.watch(viewer, at(1))
        slow.hold()
        two = await slow.change(says("two"))
        slow.replica.feeds.on_hint(Hint.of(two.chat))
        await slow.answer_is_held_back()
        slow.replica.feeds.on_applied(two)
        slow.replica.feeds.on_applied(await slow.change(says("three")))
        await client.watch(viewer, at(3))
        slow.proxy.resume()
        await slow.hint(finishes("four"))
        await client.watch(viewer, at(4))
    assert messages_in(client) == [1, 2, 3, 4]
    assert client.state == await read_state(slow.pool, CHAT)


async def test_a_read_that_began_before_an_own_commit_may_still_bring_more(slow: Slow) -> None:
    client = StreamClient(CHAT)
    async with client.connected(slow.replica.feeds) as viewer:
        await client.watch(viewer, at(1))
        two = await slow.change(says("two"))
        await slow.change(sends("queued"))
        slow.hold()
        slow.replica.feeds.on_hint(Hint.of(two.chat))
        await slow.answer_is_held_back()
        slow.replica.feeds.on_applied(two)
        slow.proxy.resume()
        await client.watch(viewer, at(3))
    assert messages_in(client) == [1, 2]
    assert client.state == await read_state(slow.pool, CHAT)


@pytest.mark.covers("F16")
async def test_a_flood_of_hints_is_one_read_in_flight_and_one_behind_it(slow: Slow) -> None:
    client = StreamClient(CHAT)
    async with client.connected(slow.replica.feeds) as viewer:
        await client.watch(viewer, at(1))
        slow.sent.clear()
        slow.hold()
        await slow.hint(says("first"))
        await slow.answer_is_held_back()
        for number in range(30):
            hint = Hint.of((await slow.change(says(f"{number}"))).chat)
            for _ in range(10):
                slow.replica.feeds.on_hint(hint)
        slow.proxy.resume()
        await client.watch(viewer, at(32))
        assert slow.reads == 2
    assert client.state == await read_state(slow.pool, CHAT)


async def test_a_hint_that_the_read_under_way_has_answered_causes_no_other(slow: Slow) -> None:
    client = StreamClient(CHAT)
    async with client.connected(slow.replica.feeds) as viewer:
        await client.watch(viewer, at(1))
        slow.sent.clear()
        two, three = await slow.change(says("two")), await slow.change(says("three"))
        slow.hold()
        slow.replica.feeds.on_hint(Hint.of(two.chat))
        await slow.answer_is_held_back()
        slow.replica.feeds.on_hint(Hint.of(three.chat))
        slow.proxy.resume()
        await client.watch(viewer, at(3))
        await slow.hint(says("four"))
        await client.watch(viewer, at(4))
        assert slow.reads == 2


async def test_a_viewer_that_joined_between_two_versions_of_a_group_gets_the_right_events(
    slow: Slow,
) -> None:
    """For the other viewers the chat still runs, so their group has no status event; the viewer in
    between has seen the chat stop."""
    first, second = StreamClient(CHAT), StreamClient(CHAT)
    async with first.connected(slow.replica.feeds) as viewer:
        await first.watch(viewer, at(1))
        stopped = await slow.change(interrupts())
        slow.hold()
        async with asyncio.TaskGroup() as group:
            group.create_task(second.see(slow.replica.feeds, at(4)))
            await slow.answer_is_held_back()
            await slow.change(finishes_interrupt("so far"))
            last = await slow.change(sends("go on", free=A))
            slow.replica.feeds.on_hint(Hint.of(last.chat))
            await first.watch(viewer, at(4))
            slow.proxy.resume()
        assert stopped.chat.public_status == "interrupting"
        shown = [e.status.status for e in second.events if isinstance(e, StatusEvent)]
        assert shown == ["interrupting", "running"]
    assert [e.status.status for e in first.events if isinstance(e, StatusEvent)] == ["running"]
    assert first.state == second.state == await read_state(slow.pool, CHAT)


async def test_a_viewer_ahead_of_its_feed_gets_nothing_twice(slow: Slow) -> None:
    first, second = StreamClient(CHAT), StreamClient(CHAT)
    async with (
        first.connected(slow.replica.feeds) as one,
        second.connected(slow.replica.feeds) as two,
    ):
        await first.watch(one, at(1))
        await second.watch(two, at(1))
        await slow.change(says("unheard"))
        third = StreamClient(CHAT)
        async with third.connected(slow.replica.feeds) as ahead:
            await third.watch(ahead, at(2))
            await first.watch(one, at(2))
            slow.replica.feeds.on_applied(await slow.change(finishes("done")))
            await third.watch(ahead, at(3))
        await second.watch(two, at(3))
    assert messages_in(third) == [1, 2, 3]
    assert second.state == third.state == await read_state(slow.pool, CHAT)


async def test_of_two_first_viewers_the_one_with_the_delayed_reply_catches_up(
    slow: Slow,
) -> None:
    """The other viewer has read a version that the feed has not: no group leads there."""
    first, second = StreamClient(CHAT), StreamClient(CHAT)
    second.last_id = "1"
    slow.hold()
    async with asyncio.TaskGroup() as group:
        seeing = group.create_task(first.see(slow.replica.feeds, at(2)))
        await slow.answer_is_held_back()
        await slow.change(finishes("meanwhile"))
        async with second.connected(slow.replica.feeds) as viewer:
            await second.watch(viewer, at(2))
            slow.proxy.resume()
            await seeing
    assert first.state == await read_state(slow.pool, CHAT)


async def test_a_read_under_way_when_the_last_viewer_leaves_follows_nothing(slow: Slow) -> None:
    client, replica = StreamClient(CHAT), slow.replica
    async with client.connected(replica.feeds) as viewer:
        await client.watch(viewer, at(1))
        slow.hold()
        await slow.hint(says("two"))
        await slow.answer_is_held_back()
    assert replica.tail.find(CHAT) is None
    async with AsyncExitStack() as others:
        for _ in range(3):
            await others.enter_async_context(replica.pool.transaction())
        slow.proxy.resume()
        # The pool has four sessions: one is free for this only when that read has ended.
        await chats.get(replica.pool, HARNESS, CHAT)
    assert replica.tail.find(CHAT) is None


async def test_a_feed_waits_for_an_unreachable_database(slow: Slow, clock: FakeClock) -> None:
    client = StreamClient(CHAT)
    async with client.connected(slow.replica.feeds) as viewer:
        await client.watch(viewer, at(1))
        slow.proxy.refuse(new=True)
        slow.proxy.cut()
        await slow.hint(finishes("meanwhile"))
        await clock.wait_for_sleeper("feed_retry")
        slow.proxy.refuse(new=False)
        await clock.advance_past("feed_retry")
        await client.watch(viewer, at(2))
    assert slow.replica.emitted.counts["feed_failed"] >= 1
    assert client.state == await read_state(slow.pool, CHAT)
