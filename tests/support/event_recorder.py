"""A viewer over the WebSocket that keeps every event, for logs that clients replay.

It follows one chat through several connections, each resumed by the last cursor, and waits for
states that the client library's reducer makes of the events.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Final

import aiohttp
import msgspec
from msgspec import Raw, Struct

from chatd.client.frames import read_event
from chatd.client.state import ReceivedChat, ShownChat, drop_partial_group, reduce, start
from chatd.domain.ids import ChatId

WAIT_S: Final = 60.0
Json = dict[str, object]


class RecordedChat(Struct, frozen=True, kw_only=True):
    """A log of a chat. `connections` are the events of each connection. `resumes` are those that a
    client gets which resumes at a cursor when all is over; "" is a client that has nothing."""

    scene: str
    chat_id: str
    connections: list[list[Raw]]
    resumes: dict[str, list[Raw]]
    chat: Json
    messages: list[Json]
    queued_messages: list[Json]


class Recorder:
    def __init__(self, client: aiohttp.ClientSession, chat_id: str) -> None:
        self.client = client
        self.chat_id = chat_id
        self.connections: list[list[Raw]] = []
        self.received: ReceivedChat = start(ChatId(msgspec.convert(chat_id, ChatId)))
        self._changed = asyncio.Event()

    @property
    def shown(self) -> ShownChat:
        return self.received.shown

    @asynccontextmanager
    async def following(self) -> AsyncGenerator[None]:
        """One connection, from the last cursor on."""
        self.received = drop_partial_group(self.received)
        events: list[Raw] = []
        self.connections.append(events)
        async with self._subscribed(self.shown.cursor) as socket, asyncio.TaskGroup() as group:
            task = group.create_task(self._read(socket, events))
            try:
                yield
            finally:
                task.cancel()

    async def until(self, is_reached: Callable[[ShownChat], bool]) -> ShownChat:
        async with asyncio.timeout(WAIT_S):
            while not is_reached(self.shown):
                self._changed.clear()
                await self._changed.wait()
        return self.shown

    async def finished(self, scene: str) -> RecordedChat:
        path = f"/api/v1/chats/{self.chat_id}"
        messages = await self._get(f"{path}/messages?limit=200")
        cursors = [""] + [cursor for log in self.connections for cursor in cursors_of(log)]
        return RecordedChat(
            scene=scene,
            chat_id=self.chat_id,
            connections=self.connections,
            resumes={cursor: await self._resume(cursor) for cursor in cursors},
            chat=await self._get(path),
            messages=msgspec.convert(messages["items"], list[Json])[::-1],
            queued_messages=msgspec.convert(messages["queued_messages"], list[Json]),
        )

    async def post(self, path: str, body: Json | None = None) -> Json:
        return await self._call("POST", path, body)

    async def patch(self, path: str, body: Json) -> Json:
        return await self._call("PATCH", path, body)

    async def delete(self, path: str) -> Json:
        return await self._call("DELETE", path, None)

    async def _call(self, method: str, path: str, body: Json | None) -> Json:
        url = f"/api/v1/chats/{self.chat_id}{path}"
        async with self.client.request(method, url, json=body) as reply:
            data = await reply.read()
            assert reply.status < 300, data
            return msgspec.json.decode(data, type=Json) if data else {}

    async def _get(self, path: str) -> Json:
        async with self.client.get(path) as reply:
            assert reply.status == 200
            return msgspec.json.decode(await reply.read(), type=Json)

    @asynccontextmanager
    async def _subscribed(self, cursor: str) -> AsyncGenerator[aiohttp.ClientWebSocketResponse]:
        async with self.client.ws_connect("/api/v1/ws", max_msg_size=0) as socket:
            after = {"after": cursor} if cursor else {}
            await socket.send_json({"type": "subscribe", "topic": f"chat:{self.chat_id}", **after})
            yield socket

    async def _read(self, socket: aiohttp.ClientWebSocketResponse, events: list[Raw]) -> None:
        async for message in socket:
            for raw in msgspec.json.decode(message.data, type=list[Raw]):
                if (event := read_event(bytes(raw))) is not None:
                    events.append(raw)
                    self.received = reduce(self.received, event)
            self._changed.set()

    async def _resume(self, cursor: str) -> list[Raw]:
        """The first group that a client gets which has this cursor."""
        events: list[Raw] = []
        async with asyncio.timeout(WAIT_S), self._subscribed(cursor) as socket:
            async for message in socket:
                raw = msgspec.json.decode(message.data, type=list[Raw])
                events += [one for one in raw if read_event(bytes(one)) is not None]
                if cursors_of(events):
                    break
        return events


def cursors_of(events: list[Raw]) -> list[str]:
    """The cursors of the versions that these events reach."""
    found = [msgspec.json.decode(raw, type=Json) for raw in events]
    return [str(event["cursor"]) for event in found if event["type"] == "version"]
