"""Messages on their way: each runs once, in order, however the server and the network fail."""

import asyncio
from collections.abc import Callable

import msgspec
import pytest
from msgspec.structs import replace

from chatd.client.drafts import Draft
from chatd.client.errors import ApiError
from chatd.client.followed_chat import FollowedChat
from chatd.client.outbox import MAX_UNSENT, OutboxFull, SendDismissed
from chatd.domain.ids import ChatId, ModelConfigId
from tests.support.api.server import ME, ApiServer, Json
from tests.support.client_rig import ClientRig, draft, run_client, texts_of
from tests.support.clock import FakeClock
from tests.support.factories import CHAT
from tests.support.mcp.servers import FrontDoor
from tests.support.outcomes import raised
from tests.support.providers.server import FakeServer


def without_model(words: str) -> Draft:
    """A message to a model that does not exist."""
    return replace(draft(words), model_config_id=ModelConfigId(CHAT))


async def prompts(server: ApiServer, chat_id: ChatId) -> list[str]:
    """History and queue, as the server has them."""
    reply = await server.ask("GET", f"/chats/{chat_id}/messages")
    rows = [*reversed(reply.items), *reply.at("queued_messages")]
    return [str(msgspec.convert(row["content"], list[Json])[0]["text"]) for row in rows]


async def until(client: ClientRig, there: Callable[[], bool]) -> None:
    """Waits for a change of the outbox after which it is so."""
    reached = asyncio.Event()
    client.outbox.on_change(lambda: reached.set() if there() else None)
    async with asyncio.timeout(30):
        await reached.wait()


def words_of(chat: FollowedChat) -> list[str]:
    """What the chat has: history, queue and pending messages."""
    queued = [str(getattr(part, "text", "")) for one in chat.shown.queue for part in one.content]
    pending = [str(getattr(part, "text", "")) for one in chat.pending for part in one.draft.content]
    return [*texts_of(chat), *queued, *pending]


def is_settled(chat: FollowedChat) -> bool:
    return chat.shown.is_loaded and not chat.pending


@pytest.mark.promise("P1", "P9")
async def test_messages_of_an_outage_arrive_once_and_in_order(
    server: ApiServer, door: FrontDoor, client: ClientRig
) -> None:
    chat_id = await server.create("0")
    told = client.follow(chat_id)
    await told.until(is_settled)
    door.lead_to(None)
    door.cut()
    words = [str(number) for number in range(1, 6)]
    keys = [client.outbox.send(chat_id, draft(one)).key for one in words]
    waits = await told.until(lambda chat: any(one.failures > 0 for one in chat.pending))
    assert [one.key for one in waits.pending] == keys
    assert waits.pending[0].problem is not None
    assert "No server answers" in waits.pending[0].problem.message
    door.lead_to(server.url)
    client.connection.retry_now()
    await told.until(is_settled, after=len(told.all))
    assert await prompts(server, chat_id) == ["0", *words]
    assert client.outbox.unsent == ()


@pytest.mark.promise("P1")
async def test_a_message_whose_reply_was_lost_runs_once(server: ApiServer, door: FrontDoor) -> None:
    chat_id = await server.create("0")
    async with run_client(door.url, ME) as client:
        await client.until("open")
        door.lost_replies = 1
        item = client.outbox.send(chat_id, draft("1"))
        await until(client, lambda: not client.outbox.unsent)
        assert door.lost_replies == 0
        assert item.failures == 0
    assert await prompts(server, chat_id) == ["0", "1"]


async def test_a_message_is_shown_from_the_key_press_to_its_event_without_a_gap(
    server: ApiServer, client: ClientRig
) -> None:
    chat_id = await server.create("0")
    told = client.follow(chat_id)
    await told.until(is_settled)
    seen = len(told.all)
    client.outbox.send(chat_id, draft("1"))
    await told.until(lambda chat: is_settled(chat) and len(words_of(chat)) == 2, after=seen)
    assert {tuple(words_of(chat)) for chat in told.all[seen:]} == {("0", "1")}


async def test_a_new_chat_is_created_once_and_shows_its_first_message(
    server: ApiServer, door: FrontDoor, client: ClientRig
) -> None:
    await client.until("open")
    door.lost_replies = 1
    item = client.outbox.send(None, draft("hello"))
    assert client.outbox.new_chats == (item,)
    chat_id = await client.outbox.created(item.key)
    assert door.lost_replies == 0
    assert await client.outbox.created(item.key) == chat_id
    seen = client.follow(chat_id)
    assert words_of(seen.all[0]) == ["hello"]
    assert words_of(await seen.until(is_settled)) == ["hello"]
    assert len((await server.ask("GET", "/chats")).items) == 1
    assert client.outbox.new_chats == ()


async def test_a_refused_message_waits_for_the_user_and_holds_up_those_behind_it(
    server: ApiServer, client: ClientRig
) -> None:
    chat_id = await server.create("0")
    told = client.follow(chat_id)
    wrong = client.outbox.send(chat_id, without_model("wrong"))
    client.outbox.send(chat_id, draft("behind"))
    seen = await told.until(lambda chat: any(one.state == "refused" for one in chat.pending))
    refused, behind = seen.pending
    assert (refused.key, behind.state) == (wrong.key, "waiting")
    assert refused.problem is not None
    assert refused.problem.code == "invalid_input"
    again = client.outbox.retry(wrong.key)
    assert again is not None
    assert again.key != wrong.key
    await told.until(
        lambda chat: any(one.key == again.key and one.state == "refused" for one in chat.pending)
    )
    assert client.outbox.dismiss(again.key) == wrong.draft
    assert client.outbox.dismiss(again.key) is None
    await told.until(lambda chat: words_of(chat) == ["0", "behind"] and is_settled(chat))
    assert await prompts(server, chat_id) == ["0", "behind"]


async def test_who_waits_for_a_new_chat_hears_that_it_was_refused_or_discarded(
    client: ClientRig, door: FrontDoor
) -> None:
    wrong = client.outbox.send(None, without_model("wrong"))
    assert (await raised(ApiError, client.outbox.created(wrong.key))).code == "invalid_input"
    client.outbox.dismiss(wrong.key)
    await raised(SendDismissed, client.outbox.created(wrong.key))
    door.lead_to(None)
    door.cut()
    waiting = client.outbox.send(None, draft("later"))
    async with asyncio.TaskGroup() as group:
        hearing = group.create_task(raised(SendDismissed, client.outbox.created(waiting.key)))
        await until(client, lambda: any(one.failures for one in client.outbox.unsent))
        client.outbox.dismiss(waiting.key)
    assert hearing.result().code == "send_dismissed"


async def test_after_a_day_it_is_not_known_whether_a_message_arrived(server: ApiServer) -> None:
    clock = FakeClock()
    async with run_client("http://127.0.0.1:1", ME, clock) as client:
        client.outbox.send(CHAT, draft("old"))
        await clock.wait_for_sleeper("client_outbox")
        clock.advance(24 * 3600)
        seen = await client.fetch(CHAT, lambda chat: chat.pending[0].state == "refused")
        assert seen.pending[0].problem is not None
        assert seen.pending[0].problem.code == "too_old"


async def test_a_message_that_was_accepted_unreadably_is_tried_again_with_its_key() -> None:
    async with FakeServer.running() as fake, run_client(fake.url, ME, FakeClock()) as client:
        fake.reply(200, {"version": "not a number"})
        fake.reply(200, {"version": "not a number"})
        sent = client.outbox.send(CHAT, draft("once"))
        await client.fetch(CHAT, lambda chat: chat.pending[0].state == "refused")
        again = client.outbox.retry(sent.key)
        assert again is not None
        assert again.key == sent.key


async def test_the_number_of_unsent_messages_is_bounded(client: ClientRig, door: FrontDoor) -> None:
    door.lead_to(None)
    door.cut()
    for number in range(MAX_UNSENT):
        client.outbox.send(CHAT, draft(str(number)))
    with pytest.raises(OutboxFull):
        client.outbox.send(CHAT, draft("one too many"))
