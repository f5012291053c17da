"""All chats of a user: each change is sent once to subscribers of that user and to no others."""

import asyncio
from uuid import UUID

import msgspec
import pytest

from chatd.domain.chat.public_chat import ChatListEvent, ChatListReady, PublicChat, public_chat
from chatd.domain.chat.row import Hint
from chatd.domain.chat.user_transitions import archive
from chatd.domain.ids import UserId
from chatd.store.chat import chats
from chatd.stream.chat_list import ChatListSubscription
from chatd.stream.fanout import Lagged
from tests.stream.conftest import House
from tests.support.clock import FakeClock
from tests.support.eventually import eventually
from tests.support.factories import OWNER
from tests.support.store import write
from tests.support.turn_decisions import finishes, says, sends

SOMEBODY_ELSE = UserId(UUID(int=77))

_EVENT = msgspec.json.Decoder(ChatListEvent | ChatListReady)


async def told(watcher: ChatListSubscription) -> ChatListEvent | ChatListReady:
    async with asyncio.timeout(30):
        (event,) = (await watcher.next()).events
    return _EVENT.decode(event)


async def change(watcher: ChatListSubscription) -> tuple[str, PublicChat]:
    event = await told(watcher)
    assert isinstance(event, ChatListEvent)
    return event.kind, event.chat


async def test_a_chat_list_begins_with_a_ready_event(house: House) -> None:
    with house.here.watches.watch(OWNER) as watcher:
        assert await told(watcher) == ChatListReady()


async def test_own_writes_are_sent_without_a_query(house: House) -> None:
    with house.here.watches.watch(OWNER) as watcher:
        await told(watcher)
        chat = await house.here.create()
        assert await change(watcher) == ("created", public_chat(chat))
        chat = await house.here.do(chat, finishes("done"))
        assert await change(watcher) == ("changed", public_chat(chat))
        chat = await house.here.do(chat, archive)
        assert await change(watcher) == ("archived", public_chat(chat))
        assert public_chat(chat).status == "archived"
        assert chats.GET_MANY not in house.sent_here


async def test_writes_of_other_replicas_are_read_in_batches(house: House, clock: FakeClock) -> None:
    with house.there.watches.watch(OWNER) as watcher:
        await told(watcher)
        first = await house.here.create(1)
        assert await change(watcher) == ("created", public_chat(first))
        second, third = await house.here.create(2), await house.here.create(3)
        first = await house.here.do(first, says("one"))
        await clock.advance_past("chat_list_read")
        seen = {chat.id: chat for _, chat in [await change(watcher) for _ in range(3)]}
        assert seen == {chat.id: public_chat(chat) for chat in (first, second, third)}
        assert house.sent_there.count(chats.GET_MANY) == 2


async def test_a_new_title_is_sent_although_no_version_changes(house: House) -> None:
    chat = await house.here.create()
    with house.here.watches.watch(OWNER) as near, house.there.watches.watch(OWNER) as far:
        await told(near)
        await told(far)
        retitled = await chats.set_title(
            house.pool, chat.id, expected=chat.title, title="A better one"
        )
        assert retitled is not None
        house.here.watches.on_metadata_changed(retitled, "title")
        house.network.publish(Hint.of(retitled, "title"))
        assert await change(near) == ("title", public_chat(retitled))
        assert await change(far) == ("title", public_chat(retitled))


async def test_unversioned_changes_are_sent_on_every_replica(house: House) -> None:
    chat = await house.here.create()
    with house.here.watches.watch(OWNER) as near, house.there.watches.watch(OWNER) as far:
        for watcher, watches in ((near, house.here.watches), (far, house.there.watches)):
            await told(watcher)
            watches.on_metadata_changed(chat)
            await change(watcher)
        house.here.watches.on_metadata_changed(chat)
        house.here.watches.on_metadata_changed(chat, "workspace")
        house.network.publish(Hint.of(chat, "workspace"))
        assert await change(near) == ("changed", public_chat(chat))
        assert await change(far) == ("changed", public_chat(chat))


async def test_the_same_row_is_not_sent_twice(house: House, clock: FakeClock) -> None:
    """One's own hint comes back, late hints come, the poll finds what was told already."""
    with house.here.watches.watch(OWNER) as watcher:
        await told(watcher)
        first = await house.here.create(1)
        first = await house.here.do(first, says("more"))
        house.network.deliver(house.network.said[0])
        await clock.advance_past("chat_list_poll")
        await clock.wait_for_sleeper("chat_list_poll")
        second = await house.here.create(2)
        seen = [await change(watcher) for _ in range(3)]
        assert [(chat.id, chat.version) for _, chat in seen] == [
            (first.id, 1),
            (first.id, 2),
            (second.id, 1),
        ]


async def test_no_user_sees_the_chats_of_others(house: House) -> None:
    with house.here.watches.watch(SOMEBODY_ELSE) as watcher:
        await told(watcher)
        await house.here.create(1)
        theirs = await house.here.create(2, owner_id=SOMEBODY_ELSE)
        assert await change(watcher) == ("created", public_chat(theirs))


async def test_the_poll_finds_a_change_without_a_hint(house: House, clock: FakeClock) -> None:
    chat = await house.here.create()
    chat = await house.here.do(chat, finishes("done"))
    house.network.hold()
    with house.there.watches.watch(OWNER) as watcher:
        await told(watcher)
        chat = (await write(house.pool, sends("unheard")(chat), 9)).chat
        await clock.advance_past("chat_list_poll")
        assert await change(watcher) == ("changed", public_chat(chat))


async def test_after_lost_hints_the_client_is_asked_to_list_again(house: House) -> None:
    with house.here.watches.watch(OWNER) as watcher:
        await told(watcher)
        house.here.without_hints()
        assert await told(watcher) == ChatListReady()


async def test_nothing_is_polled_without_subscribers(house: House, clock: FakeClock) -> None:
    with house.there.watches.watch(OWNER) as watcher:
        await told(watcher)
        await clock.wait_for_sleeper("chat_list_poll")
    await house.here.create()
    await clock.advance_past("chat_list_poll")
    with house.there.watches.watch(OWNER) as watcher:
        await told(watcher)
        await clock.wait_for_sleeper("chat_list_poll")
    assert chats.GET_MANY not in house.sent_there


async def test_a_subscriber_that_does_not_keep_up_is_disconnected(
    house: House, clock: FakeClock
) -> None:
    chat = await house.here.create()
    with house.here.watches.watch(OWNER) as stuck, house.here.watches.watch(OWNER) as quick:
        await told(stuck)
        await told(quick)
        await house.here.do(chat, says("one"))
        assert (await change(quick))[0] == "changed"
        clock.advance(11)
        await house.here.do(chat, says("two"))
        assert (await change(quick))[0] == "changed"
        with pytest.raises(Lagged):
            await told(stuck)


async def test_an_unreadable_row_stops_no_subscriber(house: House, clock: FakeClock) -> None:
    bad = await house.here.create(1)
    with house.there.watches.watch(OWNER) as watcher:
        await told(watcher)
        await house.pool.execute("UPDATE chats SET retry_state = '[]' WHERE id = $1", bad.id)
        house.there.watches.on_hint(Hint.of(msgspec.structs.replace(bad, snapshot_version=2)))
        await clock.advance_past("chat_list_poll")

        async def complained() -> bool:
            return house.there.emitted.counts["chat_list_unreadable"] > 0

        await eventually(complained, within_s=30)
        await house.pool.execute("UPDATE chats SET retry_state = NULL")
        good = await house.here.create(2)
        # The other one may be told of as well, now that it can be read.
        while (found := await change(watcher))[1].id == bad.id:
            pass
        assert found == ("created", public_chat(good))
