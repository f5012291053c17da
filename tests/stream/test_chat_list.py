"""All chats of a user: each change is sent once to subscribers of that user and to no others."""

import asyncio
from uuid import UUID

import msgspec
import pytest
from msgspec.structs import replace

from chatd.domain.chat.row import RECENT_CHANGES_KEPT, Chat, Hint
from chatd.domain.chat.user_transitions import archive
from chatd.domain.chat_views.public_chat import (
    ChatListEvent,
    ChatListReady,
    PublicChat,
    ReaderView,
    public_chat,
)
from chatd.domain.ids import MessageId, UserId
from chatd.store.chat import chats, updates
from chatd.stream.chat_list import READ_HINT_KIND, ChatListSubscription
from chatd.stream.fanout import Lagged
from tests.stream.conftest import ReplicaPair
from tests.support.clock import FakeClock
from tests.support.domain.turn_decisions import finishes, says, sends
from tests.support.eventually import eventually
from tests.support.factories import HARNESS, OWNER, member
from tests.support.store import write

SOMEBODY_ELSE = UserId(UUID(int=77))
USERNAME, OTHER_USERNAME = "test-user-2", "test-user-77"
UNREAD = ReaderView(is_owner=True, owner_username=USERNAME)

_EVENT = msgspec.json.Decoder(ChatListEvent | ChatListReady)


async def told(watcher: ChatListSubscription) -> ChatListEvent | ChatListReady:
    async with asyncio.timeout(30):
        (event,) = (await watcher.next()).events
    return _EVENT.decode(event)


async def change(watcher: ChatListSubscription) -> tuple[str, PublicChat]:
    event = await told(watcher)
    assert isinstance(event, ChatListEvent)
    return event.kind, event.chat


async def test_a_chat_list_begins_with_a_ready_event(pair: ReplicaPair) -> None:
    with pair.here.watches.watch(OWNER, USERNAME) as watcher:
        assert await told(watcher) == ChatListReady()


async def test_own_writes_are_sent_without_a_query(pair: ReplicaPair) -> None:
    with pair.here.watches.watch(OWNER, USERNAME) as watcher:
        await told(watcher)
        chat = await pair.here.create()
        assert await change(watcher) == ("created", public_chat(chat, UNREAD))
        chat = await pair.here.do(chat, finishes("done"))
        assert await change(watcher) == ("changed", public_chat(chat, UNREAD))
        chat = await pair.here.do(chat, archive)
        assert await change(watcher) == ("archived", public_chat(chat, UNREAD))
        assert public_chat(chat, UNREAD).status == "archived"
        assert chats.GET_MANY not in pair.sent_here


async def test_writes_of_other_replicas_are_read_in_batches(
    pair: ReplicaPair, clock: FakeClock
) -> None:
    with pair.there.watches.watch(OWNER, USERNAME) as watcher:
        await told(watcher)
        first = await pair.here.create(1)
        assert await change(watcher) == ("created", public_chat(first, UNREAD))
        second, third = await pair.here.create(2), await pair.here.create(3)
        first = await pair.here.do(first, says("one"))
        await clock.advance_past("chat_list_read")
        seen = {chat.id: chat for _, chat in [await change(watcher) for _ in range(3)]}
        assert seen == {chat.id: public_chat(chat, UNREAD) for chat in (first, second, third)}
        assert pair.sent_there.count(chats.GET_MANY) == 2


async def test_a_new_title_is_sent_although_no_version_changes(pair: ReplicaPair) -> None:
    chat = await pair.here.create()
    with (
        pair.here.watches.watch(OWNER, USERNAME) as near,
        pair.there.watches.watch(OWNER, USERNAME) as far,
    ):
        await told(near)
        await told(far)
        retitled = await chats.set_title(
            pair.pool, HARNESS, chat.id, expected=chat.title, title="A better one"
        )
        assert retitled is not None
        pair.here.watches.on_metadata_changed(retitled, "title")
        pair.network.publish(Hint.of(retitled, "title"))
        assert await change(near) == ("title", public_chat(retitled, UNREAD))
        assert await change(far) == ("title", public_chat(retitled, UNREAD))


async def test_unversioned_changes_are_sent_on_every_replica(pair: ReplicaPair) -> None:
    chat = await pair.here.create()
    with (
        pair.here.watches.watch(OWNER, USERNAME) as near,
        pair.there.watches.watch(OWNER, USERNAME) as far,
    ):
        for watcher, watches in ((near, pair.here.watches), (far, pair.there.watches)):
            await told(watcher)
            watches.on_metadata_changed(chat)
            await change(watcher)
        pair.here.watches.on_metadata_changed(chat)
        pair.here.watches.on_metadata_changed(chat, "workspace")
        pair.network.publish(Hint.of(chat, "workspace"))
        assert await change(near) == ("changed", public_chat(chat, UNREAD))
        assert await change(far) == ("changed", public_chat(chat, UNREAD))


async def test_the_same_row_is_not_sent_twice(pair: ReplicaPair, clock: FakeClock) -> None:
    """The replica's own hint, late hints and the poll bring rows that were already sent."""
    with pair.here.watches.watch(OWNER, USERNAME) as watcher:
        await told(watcher)
        first = await pair.here.create(1)
        first = await pair.here.do(first, says("more"))
        pair.network.deliver(pair.network.said[0])
        await clock.advance_past("chat_list_poll")
        await clock.wait_for_sleeper("chat_list_poll")
        second = await pair.here.create(2)
        seen = [await change(watcher) for _ in range(3)]
        assert [(chat.id, chat.version) for _, chat in seen] == [
            (first.id, 1),
            (first.id, 2),
            (second.id, 1),
        ]


async def test_a_row_far_behind_the_last_one_leads_to_a_read(pair: ReplicaPair) -> None:
    """It may be late, or all that the database has left after a failover."""
    with pair.here.watches.watch(OWNER, USERNAME) as watcher:
        await told(watcher)
        first = chat = await pair.here.create()
        for number in range(RECENT_CHANGES_KEPT):
            chat = await pair.here.do(chat, says(f"more {number}"))
        for _ in range(1 + RECENT_CHANGES_KEPT):
            await change(watcher)
        pair.here.watches.on_metadata_changed(first)
        assert await change(watcher) == ("changed", public_chat(chat, UNREAD))


async def test_no_user_sees_the_chats_of_others(pair: ReplicaPair) -> None:
    with pair.here.watches.watch(SOMEBODY_ELSE, OTHER_USERNAME) as watcher:
        await told(watcher)
        await pair.here.create(1)
        theirs = await pair.here.create(2, owner_id=SOMEBODY_ELSE)
        assert await change(watcher) == (
            "created",
            public_chat(theirs, replace(UNREAD, owner_username=OTHER_USERNAME)),
        )


async def test_the_poll_finds_a_change_without_a_hint(pair: ReplicaPair, clock: FakeClock) -> None:
    chat = await pair.here.create()
    chat = await pair.here.do(chat, finishes("done"))
    pair.network.hold()
    with pair.there.watches.watch(OWNER, USERNAME) as watcher:
        await told(watcher)
        chat = (await write(pair.pool, sends("unheard")(chat), 9)).chat
        await clock.advance_past("chat_list_poll")
        assert await change(watcher) == ("changed", public_chat(chat, UNREAD))


async def test_after_lost_hints_the_client_is_asked_to_list_again(pair: ReplicaPair) -> None:
    with pair.here.watches.watch(OWNER, USERNAME) as watcher:
        await told(watcher)
        pair.here.without_hints()
        assert await told(watcher) == ChatListReady()


async def test_nothing_is_polled_without_subscribers(pair: ReplicaPair, clock: FakeClock) -> None:
    with pair.there.watches.watch(OWNER, USERNAME) as watcher:
        await told(watcher)
        await clock.wait_for_sleeper("chat_list_poll")
    await pair.here.create()
    await clock.advance_past("chat_list_poll")
    with pair.there.watches.watch(OWNER, USERNAME) as watcher:
        await told(watcher)
        await clock.wait_for_sleeper("chat_list_poll")
    assert chats.GET_MANY not in pair.sent_there


async def test_a_subscriber_that_does_not_keep_up_is_disconnected(
    pair: ReplicaPair, clock: FakeClock
) -> None:
    chat = await pair.here.create()
    with (
        pair.here.watches.watch(OWNER, USERNAME) as stuck,
        pair.here.watches.watch(OWNER, USERNAME) as quick,
    ):
        await told(stuck)
        await told(quick)
        await pair.here.do(chat, says("one"))
        assert (await change(quick))[0] == "changed"
        clock.advance(11)
        await pair.here.do(chat, says("two"))
        assert (await change(quick))[0] == "changed"
        with pytest.raises(Lagged):
            await told(stuck)


async def test_an_unreadable_row_stops_no_subscriber(pair: ReplicaPair, clock: FakeClock) -> None:
    bad = await pair.here.create(1)
    with pair.there.watches.watch(OWNER, USERNAME) as watcher:
        await told(watcher)
        await pair.pool.execute("UPDATE chats SET retry_state = '[]' WHERE id = $1", bad.id)
        pair.there.watches.on_hint(Hint.of(msgspec.structs.replace(bad, snapshot_version=2)))
        await clock.advance_past("chat_list_poll")

        async def complained() -> bool:
            return pair.there.emitted.counts["chat_list_unreadable"] > 0

        await eventually(complained, within_s=30)
        await pair.pool.execute("UPDATE chats SET retry_state = NULL")
        good = await pair.here.create(2)
        # The other row may be sent as well, now that it can be read.
        while (found := await change(watcher))[1].id == bad.id:
            pass
        assert found == ("created", public_chat(good, UNREAD))


# Read marks


async def read(pair: ReplicaPair, chat: Chat, up_to: int) -> None:
    """Move the mark on the other replica, as its API does."""
    found = await updates.move_read_mark(pair.there.pool, member(OWNER), chat.id, MessageId(up_to))
    assert found is not None
    row, has_moved = found
    assert has_moved
    pair.there.watches.on_metadata_changed(row, READ_HINT_KIND)
    pair.network.publish(Hint.of(row, READ_HINT_KIND))


async def test_a_moved_read_mark_is_sent_on_every_replica(
    pair: ReplicaPair, clock: FakeClock
) -> None:
    async def let_replicas_read() -> None:
        while True:
            await clock.advance_past("chat_list_read")

    with (
        pair.here.watches.watch(OWNER, USERNAME) as near,
        pair.there.watches.watch(OWNER, USERNAME) as far,
    ):
        await told(near)
        await told(far)
        async with asyncio.TaskGroup() as group:
            pump = group.create_task(let_replicas_read())
            chat = await pair.here.create()
            chat = await pair.here.do(chat, finishes("done"))
            for watcher in (near, far):
                while (event := await change(watcher))[1].version < chat.snapshot_version:
                    pass
                assert (event[1].has_unread, event[1].last_read_message_id) == (True, None)
            await read(pair, chat, 2)
            for watcher in (near, far):
                assert await change(watcher) == (
                    "changed",
                    public_chat(chat, replace(UNREAD, read_up_to=MessageId(2))),
                )
            pump.cancel()
