"""A client of a server, as a program has it: requests, the connection and the outbox."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, Generic, TypeVar

from aiohttp import ClientSession, WSMsgType, web

from chatd.client.connection import Connection, ConnectionState
from chatd.client.drafts import Draft, TextInput
from chatd.client.exchange import ServerAddress
from chatd.client.followed_chat import FollowedChat
from chatd.client.frames import ListEvent
from chatd.client.outbox import Outbox
from chatd.client.server import PATIENCE_S, ServerApi
from chatd.clock import SystemClock
from chatd.domain.ids import ChatId
from chatd.domain.ports import Clock

WAIT_S: Final = 60.0
T = TypeVar("T")


class Told(Generic[T]):
    """A listener: everything that it was told."""

    def __init__(self) -> None:
        self.all: list[T] = []
        self._changed = asyncio.Event()

    def __call__(self, value: T) -> None:
        self.all.append(value)
        self._changed.set()

    async def until(self, there: Callable[[T], bool], *, after: int = 0) -> T:
        """The first value that fits, of those after the first `after`."""
        async with asyncio.timeout(WAIT_S):
            while True:
                for value in self.all[after:]:
                    if there(value):
                        return value
                self._changed.clear()
                await self._changed.wait()


class ClientRig:
    def __init__(self, api: ServerApi) -> None:
        self.api = api
        self.connection = Connection(api)
        self.outbox = Outbox(api, self.connection)
        self.states: Told[ConnectionState] = Told()
        self.connection.on_state(lambda: self.states(self.connection.state))

    def follow(self, chat_id: ChatId) -> Told[FollowedChat]:
        told: Told[FollowedChat] = Told()
        self.connection.follow_chat(chat_id, told)
        return told

    def follow_list(self) -> Told[ListEvent]:
        told: Told[ListEvent] = Told()
        self.connection.follow_list(told)
        return told

    async def until(self, state: ConnectionState, *, after: int = 0) -> None:
        await self.states.until(lambda one: one == state, after=after)

    async def fetch(self, chat_id: ChatId, there: Callable[[FollowedChat], bool]) -> FollowedChat:
        return await self.follow(chat_id).until(there)


@asynccontextmanager
async def run_client(
    url: str, token: str, clock: Clock | None = None, *, patience_s: float = PATIENCE_S
) -> AsyncGenerator[ClientRig]:
    async with ClientSession() as http:
        address, clock = ServerAddress(url=url, token=token), clock or SystemClock()
        rig = ClientRig(ServerApi(address, http, clock=clock, patience_s=patience_s))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one.run()) for one in (rig.connection, rig.outbox)]
            try:
                yield rig
            finally:
                for task in tasks:
                    task.cancel()


def draft(words: str) -> Draft:
    return Draft(content=(TextInput(words),))


def texts_of(chat: FollowedChat) -> list[str]:
    """Of the messages that are shown, one after the other."""
    parts = [part for message in chat.shown.messages for part in message.content]
    return [str(getattr(part, "text", "")) for part in parts]


class ScriptedSockets:
    """A server whose WebSockets say what the test wants. `heard` is what clients sent."""

    def __init__(self, frames: Sequence[str]) -> None:
        self.heard: Told[str] = Told()
        self.replies: Sequence[str] = ()
        """To everything that a client sends."""
        self.opened: list[web.WebSocketResponse] = []
        self._frames = frames
        self.url = ""

    async def serve(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        self.opened.append(socket)
        for frame in self._frames:
            await socket.send_str(frame)
        async for message in socket:
            if message.type is WSMsgType.TEXT:
                self.heard(str(message.data))
                for reply in self.replies:
                    await socket.send_str(reply)
        return socket


@asynccontextmanager
async def scripted_sockets(*frames: str) -> AsyncGenerator[ScriptedSockets]:
    """Every connection gets these frames, and then nothing."""
    sockets = ScriptedSockets(frames)
    app = web.Application()
    app.router.add_get("/api/v1/ws", sockets.serve)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    sockets.url = f"http://{host}:{port}"
    try:
        yield sockets
    finally:
        await runner.cleanup()
