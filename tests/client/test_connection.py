"""The connection: what is followed arrives whole, once and in order, through every loss."""

import asyncio

import msgspec
import pytest

from chatd.client.followed_chat import MAX_IDLE, FollowedChat
from chatd.client.frames import ChatChanged, ListReady
from chatd.client.server import ServerUnreachable
from chatd.domain.chat.change import Change
from chatd.domain.chat.row import Chat
from chatd.domain.chat.worker_transitions import acquire
from chatd.domain.ids import ChatId
from tests.support.api.accounts import listening_changes
from tests.support.api.server import ME, OTHER_USER, ApiOptions, ApiServer, Json, serve_api
from tests.support.client_rig import ClientRig, Told, run_client, scripted_sockets, texts_of
from tests.support.clock import FakeClock
from tests.support.factories import CHAT, WORKER, prompt
from tests.support.mcp.servers import FrontDoor
from tests.support.outcomes import raised
from tests.support.providers.server import FakeServer


async def say(server: ApiServer, chat_id: ChatId, *words: str) -> int:
    """As another user of the chat; returns the version."""

    def decide(chat: Chat) -> Change:
        change = Change.of(chat)
        for text in words:
            change = change.append(prompt(text).draft())
        return change

    return (await server.act(chat_id, decide)).snapshot_version


def is_loaded(chat: FollowedChat) -> bool:
    return chat.shown.is_loaded


# Follow


@pytest.mark.promise("P8")
async def test_a_followed_chat_is_shown_and_kept_current(
    server: ApiServer, client: ClientRig
) -> None:
    chat_id = await server.create("one")
    told = client.follow(chat_id)
    assert not told.all[0].shown.is_loaded, "what is known, at once"
    await told.until(is_loaded)
    version = await say(server, chat_id, "two")
    await server.act(chat_id, lambda chat: acquire(chat, WORKER))
    seen = await told.until(lambda chat: chat.shown.status == "running")
    assert texts_of(seen) == ["one", "two"]
    assert seen.shown.version == version + 1
    assert all(before is not after for before, after in zip(told.all, told.all[1:], strict=False))


async def test_many_events_of_one_frame_are_told_once(server: ApiServer, client: ClientRig) -> None:
    chat_id = await server.create("one")
    await say(server, chat_id, *map(str, range(50)))
    told = client.follow(chat_id)
    await told.until(lambda chat: len(chat.shown.messages) == 51)
    assert len(told.all) == 2


async def test_a_listener_that_fails_takes_nothing_from_the_others(
    server: ApiServer, client: ClientRig
) -> None:
    chat_id = await server.create("one")

    def fail(chat: FollowedChat) -> None:
        raise ValueError(chat.chat_id)

    client.connection.follow_chat(chat_id, fail)
    assert texts_of(await client.fetch(chat_id, is_loaded)) == ["one"]


async def test_after_the_last_follower_left_a_chat_is_kept_and_continues_from_there(
    server: ApiServer, client: ClientRig
) -> None:
    chat_id = await server.create("one")
    told: Told[FollowedChat] = Told()
    stop = client.connection.follow_chat(chat_id, told)
    await told.until(is_loaded)
    stop()
    stop()
    await say(server, chat_id, "two")
    again = client.follow(chat_id)
    assert texts_of(again.all[0]) == ["one"]
    assert texts_of(await again.until(lambda chat: len(texts_of(chat)) == 2)) == ["one", "two"]
    assert len(told.all) == 2


async def test_only_some_chats_that_nobody_follows_are_kept(
    server: ApiServer, client: ClientRig
) -> None:
    ids = [await server.create(str(number)) for number in range(MAX_IDLE + 3)]
    for chat_id in ids:
        told: Told[FollowedChat] = Told()
        stop = client.connection.follow_chat(chat_id, told)
        await told.until(is_loaded)
        stop()
    kept = [client.connection.chat(chat_id).shown.is_loaded for chat_id in reversed(ids)]
    assert kept[:5] == [True] * 5
    assert kept[-2:] == [False] * 2


# The list


async def test_the_list_says_when_to_read_it_and_what_changed(
    server: ApiServer, client: ClientRig
) -> None:
    told = client.follow_list()
    await told.until(lambda event: isinstance(event, ListReady))
    chat_id = await server.create("one")
    event = await told.until(lambda event: isinstance(event, ChatChanged))
    assert isinstance(event, ChatChanged)
    assert (event.chat.id, event.chat.is_owner) == (chat_id, True)
    late = client.follow_list()
    assert isinstance(late.all[0], ListReady), "it need not wait for the next reconnect"


# Losses


@pytest.mark.promise("P1", "P8")
async def test_what_happened_during_an_outage_arrives_once_and_in_order(
    server: ApiServer, door: FrontDoor, client: ClientRig
) -> None:
    chat_id = await server.create("one")
    told, listed = client.follow(chat_id), client.follow_list()
    await told.until(is_loaded)
    await listed.until(lambda event: isinstance(event, ListReady))
    for words in ("two", "three"):
        seen, heard, states = len(told.all), len(listed.all), len(client.states.all)
        door.lead_to(None)
        door.cut()
        await client.until("waiting", after=states)
        assert client.connection.retry_at is not None
        await say(server, chat_id, words)
        assert len(told.all) == seen
        door.lead_to(server.url)
        client.connection.retry_now()
        await told.until(lambda chat, words=words: texts_of(chat)[-1:] == [words], after=seen)
        await listed.until(lambda event: isinstance(event, ListReady), after=heard)
    assert texts_of(told.all[-1]) == ["one", "two", "three"]
    versions = [chat.shown.version for chat in told.all]
    assert versions == sorted(versions)
    assert not any(chat.shown.is_loaded and not chat.shown.messages for chat in told.all)


@pytest.mark.promise("P8")
async def test_a_reconnect_continues_from_the_cursor_and_forgets_half_a_group() -> None:
    chat: Json = {"chat_id": str(CHAT)}
    row: Json = {"role": "user", "created_at": "2026-01-01T00:00:00Z", **chat}
    messages: list[Json] = [
        {"type": "message", "message": {"id": number, "content": [], **row}, **chat}
        for number in (1, 2)
    ]
    version: Json = {"type": "version", "version": 1, "cursor": "1-abc", **chat}
    whole, half = ([messages[0], version], [messages[1]])
    frames = [msgspec.json.encode(events).decode() for events in (whole, half)]
    async with scripted_sockets() as sockets, run_client(sockets.url, ME) as client:
        sockets.replies = frames
        told = client.follow(CHAT)
        await told.until(is_loaded)
        sockets.replies = [msgspec.json.encode([{**version, "version": 2}]).decode()]
        await sockets.opened[0].close()
        await client.until("waiting")
        client.connection.retry_now()
        seen = await told.until(lambda chat: chat.shown.version == 2)
        asked = [msgspec.json.decode(one) for one in sockets.heard.all]
        topic = {"type": "subscribe", "topic": f"chat:{CHAT}"}
        assert asked == [topic, topic | {"after": "1-abc"}]
        assert [message.id for message in seen.shown.messages] == [1], "the half was never shown"


async def test_a_server_that_is_not_there_is_tried_again_with_growing_pauses() -> None:
    clock = FakeClock()
    async with run_client("http://127.0.0.1:1", ME, clock) as client:
        pauses = [await clock.advance_past("client_reconnect") for _ in range(9)]
        assert client.connection.problem == "connection refused"
    assert all(0.25 <= pause <= 30 for pause in pauses)
    assert pauses[0] <= 0.5
    assert pauses[5] >= 7.5
    assert max(pauses) >= 15


async def test_a_silent_connection_is_asked_and_then_given_up() -> None:
    clock = FakeClock()
    async with scripted_sockets() as sockets, run_client(sockets.url, ME, clock) as client:
        await client.until("open")
        for _ in range(6):
            assert client.connection.state == "open"
            await clock.advance_past("client_watch")
        assert msgspec.json.decode(await sockets.heard.until(bool)) == {"type": "ping"}
        await client.until("waiting")
        assert "silent for 60 seconds" in client.connection.problem


@pytest.mark.parametrize("frame", ["nonsense", '{"type":"pong"}', "[7]", '[{"type":7}]'])
async def test_frames_of_something_else_end_the_connection(frame: str) -> None:
    clock = FakeClock()
    async with scripted_sockets(frame) as sockets, run_client(sockets.url, ME, clock) as client:
        await client.until("waiting")
        assert "does not understand" in client.connection.problem


async def test_events_of_a_later_version_are_left_out(server: ApiServer) -> None:
    later = '[{"type":"of_later"},{"type":"chat","kind":7},{"type":"ready"}]'
    async with scripted_sockets(later) as sockets, run_client(sockets.url, ME) as client:
        told = client.follow_list()
        await told.until(lambda event: isinstance(event, ListReady))
        assert client.connection.state == "open"


async def test_a_subscription_that_is_refused_for_now_is_asked_for_again() -> None:
    clock, topic = FakeClock(), f"chat:{CHAT}"
    refusal = {"type": "refused", "code": "unavailable", "message": "Later.", "topic": topic}
    frames = [msgspec.json.encode([refusal]).decode()]
    async with scripted_sockets() as sockets, run_client(sockets.url, ME, clock) as client:
        sockets.replies = frames
        told = client.follow(CHAT)
        await sockets.heard.until(bool)
        assert 0 < await clock.advance_past("client_topics") <= 1
        await sockets.heard.until(bool, after=1)
        asked = [msgspec.json.decode(one) for one in sockets.heard.all]
        assert asked == [{"type": "subscribe", "topic": topic}] * 2
        assert not told.all[-1].gone


# Ends


async def test_a_chat_that_does_not_exist_or_is_anothers_is_gone(
    server: ApiServer, client: ClientRig
) -> None:
    mine = await server.create("one")
    async with run_client(server.url, OTHER_USER) as other:
        for rig, chat_id in ((client, CHAT), (other, mine)):
            seen = await rig.fetch(chat_id, lambda chat: chat.gone)
            assert not seen.shown.is_loaded


async def test_a_chat_that_is_deleted_is_gone_and_keeps_what_was_shown(
    server: ApiServer, client: ClientRig
) -> None:
    chat_id = await server.create("one")
    told = client.follow(chat_id)
    await told.until(is_loaded)
    assert (await server.ask("DELETE", f"/chats/{chat_id}")).status == 204
    assert texts_of(await told.until(lambda chat: chat.gone)) == ["one"]


async def test_a_token_that_is_not_accepted_stops_the_connection(server: ApiServer) -> None:
    clock = FakeClock()
    async with run_client(server.url, "chatd_no_token_of_this_server", clock) as client:
        await client.until("signed_out")
        assert "chatd login" in client.connection.problem
        assert clock.sleeping("client_reconnect") == []
        client.connection.retry_now()
        await client.until("signed_out", after=2)


async def test_a_token_that_may_not_read_chats_stops_the_connection(server: ApiServer) -> None:
    wanted = {"name": "ci", "scopes": ["chat:write"]}
    made = (await server.ask("POST", "/auth/tokens", wanted)).json
    clock = FakeClock()
    async with run_client(server.url, str(made["token"]), clock) as client:
        await client.until("signed_out")
        assert "chat:read" in client.connection.problem
        assert clock.sleeping("client_reconnect") == []


async def test_a_token_that_is_revoked_ends_the_connection(dsn: str) -> None:
    async with (
        listening_changes(dsn) as changes,
        serve_api(dsn, ApiOptions(changes=changes)) as server,
    ):
        made = (await server.ask("POST", "/auth/tokens", {"name": "mine"})).json
        chat_id = await server.create("one")
        async with run_client(server.url, str(made["token"])) as client:
            told = client.follow(chat_id)
            await told.until(is_loaded)
            assert (await server.ask("DELETE", f"/auth/tokens/{made['id']}")).status == 204
            await client.until("signed_out")
            assert texts_of(told.all[-1]) == ["one"], "what was shown stays"


async def test_the_token_is_not_sent_to_where_a_server_redirects(server: ApiServer) -> None:
    async with FakeServer.running() as first, FakeServer.running() as other:
        first.reply(307, b"", {"location": f"{other.url}/api/v1/ws"})
        async with run_client(first.url, "a-secret-token") as client:
            await client.until("waiting")
        assert all("a-secret-token" not in str(one.headers) for one in other.requests)


# Older pages


async def test_older_pages_come_before_what_is_shown(server: ApiServer, client: ClientRig) -> None:
    chat_id = await server.create("0")
    await say(server, chat_id, *map(str, range(1, 1150)))
    told = client.follow(chat_id)
    first = await told.until(is_loaded)
    assert first.shown.has_older
    while (shown := client.connection.chat(chat_id).shown).has_older:
        before = len(shown.messages)
        await asyncio.gather(*(client.connection.load_older(chat_id) for _ in range(3)))
        assert 0 < len(told.all[-1].shown.messages) - before <= 100, "one page for three calls"
    assert texts_of(told.all[-1]) == [str(number) for number in range(1150)]
    assert any(chat.loading_older for chat in told.all)
    assert not told.all[-1].loading_older


async def test_a_page_that_cannot_be_read_is_an_error_and_can_be_tried_again(
    server: ApiServer, door: FrontDoor
) -> None:
    chat_id = await server.create("0")
    await say(server, chat_id, *map(str, range(1, 1050)))
    async with run_client(door.url, ME, patience_s=0) as client:
        await client.fetch(chat_id, is_loaded)
        door.lead_to(None)
        door.cut()
        await raised(ServerUnreachable, client.connection.load_older(chat_id))
        assert not client.connection.chat(chat_id).loading_older
        door.lead_to(server.url)
        await client.connection.load_older(chat_id)
        assert len(client.connection.chat(chat_id).shown.messages) == 1050
