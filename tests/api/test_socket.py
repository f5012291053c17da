"""The WebSocket: topics that come and go, and how it ends."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

import aiohttp
import msgspec
import pytest

from chatd.api.call import Message, Scope
from chatd.api.doors import Limits
from chatd.domain.chat.states import State
from chatd.domain.chat.worker_transitions import acquire
from chatd.domain.ids import ChatId
from tests.support.client_state import ClientState
from tests.support.factories import CHAT, WORKER
from tests.support.front import ME, STRANGER, Door, Front, Json, authorized, front_door, saying
from tests.support.listening import EVENT, WITHIN_S, narrow_socket, write_large
from tests.support.seeds import Seed
from tests.support.store import plant_in
from tests.support.viewer import fresh

SOCKET: Final = "/api/v1/ws"


class Page:
    """A page with a socket. It reads only when it is told to."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self._unread: list[Json] = []

    async def say(self, **message: object) -> None:
        await self.socket.send_bytes(msgspec.json.encode(message))

    async def tell(self, **message: object) -> None:
        await self.socket.send_str(msgspec.json.encode(message).decode())

    async def subscribe(self, topic: str, **fields: object) -> None:
        await self.tell(type="subscribe", topic=topic, **fields)
        assert await self.next() == {"type": "subscribed", "topic": topic}

    async def next(self) -> Json:
        while not self._unread:
            async with asyncio.timeout(WITHIN_S):
                message = await self.socket.receive()
            assert message.type is aiohttp.WSMsgType.TEXT, message
            self._unread = msgspec.json.decode(message.data, type=list[Json])
        return self._unread.pop(0)

    async def until(self, kind: str) -> Json:
        while (event := await self.next())["type"] != kind:
            pass
        return event

    async def closing(self) -> tuple[object, object]:
        """Read to the end: the code and the reason."""
        async with asyncio.timeout(WITHIN_S):
            while (message := await self.socket.receive()).type is aiohttp.WSMsgType.TEXT:
                pass
        return message.data, message.extra


@asynccontextmanager
async def page(front: Front, token: str = ME) -> AsyncGenerator[Page]:
    async with front.http.ws_connect(SOCKET, headers=authorized(token)) as socket:
        yield Page(socket)


def topic(chat_id: ChatId) -> str:
    return f"chat:{chat_id}"


# Topics


@pytest.mark.promise("P8")
async def test_a_page_sees_several_chats_on_one_socket(front: Front) -> None:
    ids = [await front.create("one"), await front.create("two")]
    states = {str(chat_id): ClientState() for chat_id in ids}
    async with page(front) as mine:
        await asyncio.gather(*(mine.tell(type="subscribe", topic=topic(one)) for one in ids))
        for chat_id in ids:
            await front.act(chat_id, lambda chat: acquire(chat, WORKER))
        while any(state.version < 2 for state in states.values()):
            event = await mine.next()
            if event["type"] != "subscribed":
                name = str(event["chat_id"])
                states[name] = states[name].apply([EVENT.decode(msgspec.json.encode(event))])
    for chat_id in ids:
        seen = states[str(chat_id)]
        assert seen.settled() == await fresh(front.replica.pool, chat_id)
        assert seen.status == "running"


async def test_a_topic_goes_on_from_the_version_the_page_has(front: Front) -> None:
    chat_id = await front.create("one")
    await front.act(chat_id, lambda chat: acquire(chat, WORKER))
    async with page(front) as mine:
        await mine.subscribe(topic(chat_id), after=1)
        first = await mine.next()
        assert first["type"] != "message"
        assert (await mine.until("version"))["version"] == 2


async def test_after_unsubscribing_nothing_of_the_topic_comes(front: Front) -> None:
    chat_id = await front.create("one")
    async with page(front) as mine:
        await mine.subscribe(topic(chat_id))
        await mine.until("version")
        await mine.tell(type="unsubscribe", topic=topic(chat_id))
        assert await mine.next() == {"type": "unsubscribed", "topic": topic(chat_id)}
        await front.act(chat_id, lambda chat: acquire(chat, WORKER))
        await mine.tell(type="ping")
        assert await mine.next() == {"type": "pong"}
        await mine.subscribe(topic(chat_id), after=1)
        assert (await mine.until("version"))["version"] == 2


async def test_a_topic_that_is_let_go_before_it_has_begun_can_be_had_again(front: Front) -> None:
    """All of it comes in one piece, so that nothing happens between two of the wishes."""
    wishes = ("subscribe", "unsubscribe", "subscribe", "unsubscribe")
    said: asyncio.Queue[Message] = asyncio.Queue()
    said.put_nowait({"type": "websocket.connect"})
    for wish in wishes:
        text = msgspec.json.encode({"type": wish, "topic": "chats"}).decode()
        said.put_nowait({"type": "websocket.receive", "text": text})
    said.put_nowait({"type": "websocket.disconnect", "code": 1000})
    heard: list[Json] = []

    async def send(message: Message) -> None:
        if message["type"] == "websocket.send":
            heard.extend(msgspec.json.decode(message["text"], type=list[Json]))

    token = (b"authorization", f"Bearer {ME}".encode())
    scope: Scope = {"type": "websocket", "path": SOCKET, "headers": [token]}
    async with asyncio.timeout(30):
        await front.api(scope, said.get, send)
    assert [event for event in heard if event["type"] != "subscribed"] == [
        {"type": "unsubscribed", "topic": "chats"}
    ] * 2


async def test_all_my_chats_are_a_topic_too(front: Front) -> None:
    async with page(front) as mine:
        await mine.subscribe("chats")
        assert await mine.next() == {"type": "ready"}
        chat_id = await front.create("hello")
        told = await mine.next()
        assert told["chat"] == (await front.ask("GET", f"/chats/{chat_id}")).json
        await mine.tell(type="unsubscribe", topic="chats")
        assert (await mine.next())["type"] == "unsubscribed"


# Refusals


@pytest.mark.promise("P12")
async def test_a_chat_of_somebody_else_is_no_topic(front: Front) -> None:
    chat_id = await front.create("mine")
    async with page(front, STRANGER) as theirs:
        for one in (topic(chat_id), "chat:00000000-0000-0000-0000-000000000404"):
            await theirs.tell(type="subscribe", topic=one)
            refused = await theirs.next()
            assert (refused["type"], refused["code"]) == ("refused", "not_found")
            assert refused["message"] == "There is no such chat."


async def test_what_makes_no_sense_is_refused_and_the_socket_stays(front: Front) -> None:
    chat_id = await front.create("one")
    wrong = {
        "{": "invalid_json",
        "[]": "invalid_input",
        '{"type": "shout"}': "invalid_input",
        '{"type": "subscribe"}': "invalid_input",
        '{"type": "subscribe", "topic": "weather"}': "invalid_input",
        '{"type": "subscribe", "topic": "chat:x"}': "invalid_input",
        '{"type": "subscribe", "topic": "chats", "after": -1}': "invalid_input",
        '{"type": "unsubscribe", "topic": "chats"}': "not_subscribed",
        "[" * 20_000: "invalid_input",
    }
    async with page(front) as mine:
        for said, code in wrong.items():
            await mine.socket.send_str(said)
            refused = await mine.next()
            assert (refused["type"], refused["code"]) == ("refused", code), said
        await mine.say(type="ping")
        assert (await mine.next())["code"] == "invalid_input"
        await mine.subscribe(topic(chat_id))
        await mine.until("version")
        await mine.tell(type="subscribe", topic=topic(chat_id))
        assert (await mine.next())["code"] == "already_subscribed"


async def test_a_socket_has_room_for_so_many_topics(dsn: str) -> None:
    door = Door(limits=Limits(topics_per_socket=1))
    async with front_door(dsn, door) as front, page(front) as mine:
        await mine.subscribe("chats")
        await mine.until("ready")
        await mine.tell(type="subscribe", topic=topic(CHAT))
        assert (await mine.next())["code"] == "too_many_topics"


async def test_without_a_token_there_is_no_socket(front: Front) -> None:
    for path, status in ((SOCKET, 401), ("/api/v1/other", 404)):
        token = None if status == 401 else ME
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await front.http.ws_connect(path, headers=authorized(token))
        assert refused.value.status == status
    plain = await front.ask("GET", "/ws")
    assert plain.code == (404, "not_found")


# Ends


async def test_frames_are_not_compressed(front: Front) -> None:
    headers = authorized(ME)
    async with front.http.ws_connect(SOCKET, headers=headers, compress=15) as socket:
        assert socket.compress == 0


async def test_a_page_that_falls_too_far_behind_is_sent_away_with_a_code(front: Front) -> None:
    """While it does not read, more is said than is kept for it."""
    await plant_in(front.replica.pool, Seed(state=State.W))
    for _ in range(8):
        await write_large(front, CHAT)
    connector = aiohttp.TCPConnector(socket_factory=narrow_socket)
    async with (
        aiohttp.ClientSession(f"http://127.0.0.1:{front.port}", connector=connector) as http,
        http.ws_connect(SOCKET, headers=authorized(ME)) as socket,
    ):
        mine = Page(socket)
        await mine.subscribe(topic(CHAT))
        for _ in range(3):
            await write_large(front, CHAT)
        assert await mine.closing() == (1013, "lagged")


async def test_a_page_is_told_when_the_server_stops(front: Front) -> None:
    chat_id = await front.create("one")
    async with page(front) as mine:
        await mine.subscribe(topic(chat_id))
        await front.api.close()
        assert await mine.closing() == (1012, "going_away")


async def test_a_message_that_is_too_large_ends_the_socket(front: Front) -> None:
    async with page(front) as mine:
        await mine.socket.send_str('"' + "x" * 100_000 + '"')
        assert (await mine.closing())[0] == 1009


async def test_a_page_that_goes_leaves_nothing_behind(front: Front) -> None:
    chat_id = await front.create("one")
    async with page(front) as mine:
        await mine.subscribe(topic(chat_id))
        assert front.replica.feeds.watched == 1
    async with page(front) as mine, asyncio.timeout(30):
        while front.replica.feeds.watched:
            await mine.tell(type="ping")
            await mine.next()


async def test_a_chat_that_is_gone_ends_its_topic_and_no_other(front: Front) -> None:
    chat_id = await front.create("one")
    async with page(front) as mine:
        await mine.subscribe(topic(chat_id))
        await mine.until("version")
        await front.replica.pool.execute("DELETE FROM chats")
        front.replica.feeds.mark_all_dirty()
        ended = await mine.next()
        assert (ended["type"], ended["code"]) == ("unsubscribed", "not_found")
        await mine.subscribe("chats")
        await mine.until("ready")
        await front.ask("POST", "/chats", saying("another"))
        assert (await mine.next())["type"] == "chat"
