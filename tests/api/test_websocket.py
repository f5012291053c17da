"""The WebSocket: subscriptions, refusals and its end."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

import aiohttp
import msgspec
import pytest

from chatd.api.deps import StreamLimits
from chatd.api.request import Message, Scope
from chatd.domain.chat.parts import TextPart
from chatd.domain.chat.states import State
from chatd.domain.chat.worker_transitions import acquire
from chatd.domain.ids import ChatId
from tests.support.api.server import (
    ME,
    OTHER_USER,
    ApiOptions,
    ApiServer,
    Json,
    authorized,
    message_body,
    serve_api,
)
from tests.support.api.sse_viewer import EVENT, READ_TIMEOUT_S, narrow_socket, write_large
from tests.support.client_state import ClientState, read_state
from tests.support.factories import CHAT, WORKER
from tests.support.seeds import Seed
from tests.support.store import insert_seed
from tests.support.stream_replica import part_text

SOCKET: Final = "/api/v1/ws"


class Page:
    """A WebSocket client that reads only on request."""

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
            async with asyncio.timeout(READ_TIMEOUT_S):
                message = await self.socket.receive()
            assert message.type is aiohttp.WSMsgType.TEXT, message
            self._unread = msgspec.json.decode(message.data, type=list[Json])
        return self._unread.pop(0)

    async def until(self, kind: str) -> Json:
        while (event := await self.next())["type"] != kind:
            pass
        return event

    async def closing(self) -> tuple[object, object]:
        """Read to the end. Returns the close code and the reason."""
        async with asyncio.timeout(READ_TIMEOUT_S):
            while (message := await self.socket.receive()).type is aiohttp.WSMsgType.TEXT:
                pass
        return message.data, message.extra


@asynccontextmanager
async def page(server: ApiServer, token: str = ME) -> AsyncGenerator[Page]:
    async with server.http.ws_connect(SOCKET, headers=authorized(token)) as socket:
        yield Page(socket)


def topic(chat_id: ChatId) -> str:
    return f"chat:{chat_id}"


# Topics


@pytest.mark.promise("P8")
async def test_one_socket_follows_several_chats(server: ApiServer) -> None:
    ids = [await server.create("one"), await server.create("two")]
    states = {str(chat_id): ClientState() for chat_id in ids}
    async with page(server) as mine:
        await asyncio.gather(*(mine.tell(type="subscribe", topic=topic(one)) for one in ids))
        for chat_id in ids:
            await server.act(chat_id, lambda chat: acquire(chat, WORKER))
        while any(state.version < 2 for state in states.values()):
            event = await mine.next()
            if event["type"] != "subscribed":
                name = str(event["chat_id"])
                states[name] = states[name].apply([EVENT.decode(msgspec.json.encode(event))])
    for chat_id in ids:
        seen = states[str(chat_id)]
        assert seen.settled() == await read_state(server.replica.pool, chat_id)
        assert seen.status == "running"


async def test_live_parts_come_in_order_also_to_a_socket_that_reads_late(
    server: ApiServer,
) -> None:
    """They are written to the socket until it is full; then they wait for the topic's task."""
    chat_id = await server.create("tell me")
    chat = await server.act(chat_id, lambda chat: acquire(chat, WORKER))
    words = [f"{number} " * 400 for number in range(400)]
    connector = aiohttp.TCPConnector(socket_factory=narrow_socket)
    url, state = f"http://127.0.0.1:{server.port}", ClientState()
    async with (
        aiohttp.ClientSession(url, connector=connector, read_bufsize=4096) as http,
        http.ws_connect(SOCKET, headers=authorized(ME)) as socket,
    ):
        mine = Page(socket)
        await mine.subscribe(topic(chat_id))
        while state.version < chat.snapshot_version:
            state = state.apply([EVENT.decode(msgspec.json.encode(await mine.next()))])
        recorder = server.replica.record(chat)
        for word in words:
            recorder.add("assistant", [TextPart(text=word)])
            server.replica.episodes.flush_all()
        while "".join(part_text(part.part) for part in state.preview) != "".join(words):
            state = state.apply([EVENT.decode(msgspec.json.encode(await mine.next()))])


async def test_a_topic_continues_from_the_clients_version(server: ApiServer) -> None:
    chat_id = await server.create("one")
    await server.act(chat_id, lambda chat: acquire(chat, WORKER))
    async with page(server) as mine:
        await mine.subscribe(topic(chat_id), after=1)
        first = await mine.next()
        assert first["type"] != "message"
        assert (await mine.until("version"))["version"] == 2


async def test_no_event_follows_an_unsubscribe(server: ApiServer) -> None:
    chat_id = await server.create("one")
    async with page(server) as mine:
        await mine.subscribe(topic(chat_id))
        await mine.until("version")
        await mine.tell(type="unsubscribe", topic=topic(chat_id))
        assert await mine.next() == {"type": "unsubscribed", "topic": topic(chat_id)}
        await server.act(chat_id, lambda chat: acquire(chat, WORKER))
        await mine.tell(type="ping")
        assert await mine.next() == {"type": "pong"}
        await mine.subscribe(topic(chat_id), after=1)
        assert (await mine.until("version"))["version"] == 2


async def test_a_topic_unsubscribed_before_it_started_can_be_subscribed_again(
    server: ApiServer,
) -> None:
    """All frames arrive together, so that no task runs between two of them."""
    frames = ("subscribe", "unsubscribe", "subscribe", "unsubscribe")
    said: asyncio.Queue[Message] = asyncio.Queue()
    said.put_nowait({"type": "websocket.connect"})
    for wish in frames:
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
        await server.api(scope, said.get, send)
    assert [event for event in heard if event["type"] != "subscribed"] == [
        {"type": "unsubscribed", "topic": "chats"}
    ] * 2


async def test_the_chat_list_is_a_topic(server: ApiServer) -> None:
    async with page(server) as mine:
        await mine.subscribe("chats")
        assert await mine.next() == {"type": "ready"}
        chat_id = await server.create("hello")
        event = await mine.next()
        assert event["chat"] == (await server.ask("GET", f"/chats/{chat_id}")).json
        await mine.tell(type="unsubscribe", topic="chats")
        assert (await mine.next())["type"] == "unsubscribed"


# Refusals


@pytest.mark.promise("P12")
async def test_another_users_chat_is_refused_as_a_topic(server: ApiServer) -> None:
    chat_id = await server.create("mine")
    async with page(server, OTHER_USER) as theirs:
        for one in (topic(chat_id), "chat:00000000-0000-0000-0000-000000000404"):
            await theirs.tell(type="subscribe", topic=one)
            refused = await theirs.next()
            assert (refused["type"], refused["code"]) == ("refused", "not_found")
            assert refused["message"] == "There is no such chat."


async def test_an_invalid_frame_is_refused_and_the_socket_stays_open(server: ApiServer) -> None:
    chat_id = await server.create("one")
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
    async with page(server) as mine:
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


async def test_a_socket_has_a_limited_number_of_topics(dsn: str) -> None:
    door = ApiOptions(limits=StreamLimits(topics_per_socket=1))
    async with serve_api(dsn, door) as server, page(server) as mine:
        await mine.subscribe("chats")
        await mine.until("ready")
        await mine.tell(type="subscribe", topic=topic(CHAT))
        assert (await mine.next())["code"] == "too_many_topics"


async def test_a_socket_needs_a_token(server: ApiServer) -> None:
    for path, status in ((SOCKET, 401), ("/api/v1/other", 404)):
        token = None if status == 401 else ME
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await server.http.ws_connect(path, headers=authorized(token))
        assert refused.value.status == status
    plain = await server.ask("GET", "/ws")
    assert plain.code == (404, "not_found")


# Ends


async def test_frames_are_not_compressed(server: ApiServer) -> None:
    headers = authorized(ME)
    async with server.http.ws_connect(SOCKET, headers=headers, compress=15) as socket:
        assert socket.compress == 0


async def test_a_client_that_lags_is_disconnected_with_a_code(server: ApiServer) -> None:
    """While it does not read, more events are published than are kept for it."""
    await insert_seed(server.replica.pool, Seed(state=State.W))
    for _ in range(8):
        await write_large(server, CHAT)
    connector = aiohttp.TCPConnector(socket_factory=narrow_socket)
    async with (
        aiohttp.ClientSession(f"http://127.0.0.1:{server.port}", connector=connector) as http,
        http.ws_connect(SOCKET, headers=authorized(ME)) as socket,
    ):
        mine = Page(socket)
        await mine.subscribe(topic(CHAT))
        for _ in range(3):
            await write_large(server, CHAT)
        assert await mine.closing() == (1013, "lagged")


async def test_a_stopping_server_closes_sockets_with_a_code(server: ApiServer) -> None:
    chat_id = await server.create("one")
    async with page(server) as mine:
        await mine.subscribe(topic(chat_id))
        await server.api.close()
        assert await mine.closing() == (1012, "going_away")


async def test_an_oversized_frame_closes_the_socket(server: ApiServer) -> None:
    async with page(server) as mine:
        await mine.socket.send_str('"' + "x" * 100_000 + '"')
        assert (await mine.closing())[0] == 1009


async def test_a_disconnected_client_leaves_no_viewer(server: ApiServer) -> None:
    chat_id = await server.create("one")
    async with page(server) as mine:
        await mine.subscribe(topic(chat_id))
        assert server.replica.feeds.watched == 1
    async with page(server) as mine, asyncio.timeout(30):
        while server.replica.feeds.watched:
            await mine.tell(type="ping")
            await mine.next()


async def test_a_deleted_chat_ends_only_its_own_topic(server: ApiServer) -> None:
    chat_id = await server.create("one")
    async with page(server) as mine:
        await mine.subscribe(topic(chat_id))
        await mine.until("version")
        await server.replica.pool.execute("DELETE FROM chats")
        server.replica.feeds.mark_all_dirty()
        ended = await mine.next()
        assert (ended["type"], ended["code"]) == ("unsubscribed", "not_found")
        await mine.subscribe("chats")
        await mine.until("ready")
        await server.ask("POST", "/chats", message_body("another"))
        assert (await mine.next())["type"] == "chat"
