"""The side of the server to which pods dial in, without a database: for tests of a backend.

Its parts are those of the server: the links of runners, their exchanges, and the connections
between replicas, by which every process of a test reaches the agents.
"""

import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import count
from typing import ClassVar

import aiohttp
import aiohttp.web

from chatd.clock import SystemClock
from chatd.domain.access.secret_text import pod_token_build, pod_token_text
from chatd.domain.workspace.agent_api import ConnectFailed
from chatd.domain.workspace.entities import AgentId, BuildId, Endpoint
from chatd.domain.workspace.runners import Runner, pod_holder
from chatd.workspaces.agents.agent_session import derive_agent_key
from chatd.workspaces.build_backend import agent_id_of
from chatd.workspaces.tunnels.byte_streams import ByteStream
from chatd.workspaces.tunnels.peers import PeerDialler, PeerServer, RunnerSocket
from chatd.workspaces.tunnels.runner_link import RunnerLink, RunnerLinks
from chatd.workspaces.tunnels.wire import (
    CLOSE_SUPERSEDED,
    CONTROL_PATH,
    EXCHANGE_PATH,
    PROTOCOL,
    MessageSocket,
    Welcome,
    encode,
)


class _Messages:
    """Satisfies `MessageSocket`."""

    def __init__(self, connected: aiohttp.web.WebSocketResponse) -> None:
        self._connected = connected

    async def receive(self) -> str | bytes | None:
        message = await self._connected.receive()
        is_data = message.type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY)
        return message.data if is_data else None

    async def send(self, message: str | bytes) -> None:
        if self._connected.closed:
            raise ConnectionError("closed")
        if isinstance(message, str):
            await self._connected.send_str(message)
        else:
            await self._connected.send_bytes(message)

    async def close(self, code: int = 1000, reason: str = "") -> None:
        await self._connected.close(code=code, message=reason.encode())


class PodHub:
    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._epochs = count(1)
        self.links = RunnerLinks()
        self.url = ""
        self.peer_address = ""
        self.connections = 0

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator["PodHub"]:
        app = aiohttp.web.Application()
        app.router.add_get(CONTROL_PATH, self._control)
        app.router.add_get(EXCHANGE_PATH, self._exchange)
        runner = aiohttp.web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = aiohttp.web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        listening = socket.create_server(("127.0.0.1", 0))
        self.peer_address = f"127.0.0.1:{listening.getsockname()[1]}"
        peers = PeerServer(self._open, self._refuse_socket)
        try:
            async with peers.listening(listening, self._secret):
                yield self
                for reach in HubReach.opened.pop(self.peer_address, ()):
                    await reach.close()
        finally:
            listening.close()
            for link in self.links.pods():
                link.close(1001, "the test ends")
            await runner.cleanup()

    async def _open(self, agent_id: AgentId, endpoint: Endpoint) -> ByteStream:
        link = self.links.get(endpoint.host_id)
        if link is None:
            raise ConnectFailed("The pod is not connected.")
        return await link.open(agent_id, endpoint)

    async def _refuse_socket(self, messages: MessageSocket, request: RunnerSocket) -> None:
        del request
        await messages.close()

    def _build_of(self, request: aiohttp.web.Request) -> BuildId:
        token = request.headers["Authorization"].removeprefix("Bearer ")
        named = pod_token_build(token)
        if named is not None:
            build_id = BuildId(named)
            key = derive_agent_key(self._secret, agent_id_of(build_id))
            if pod_token_text(build_id, key) == token:
                return build_id
        raise aiohttp.web.HTTPUnauthorized

    async def _control(self, request: aiohttp.web.Request) -> aiohttp.web.StreamResponse:
        build_id = self._build_of(request)
        connected = aiohttp.web.WebSocketResponse(timeout=0.2)
        await connected.prepare(request)
        messages = _Messages(connected)
        await messages.receive()
        now = SystemClock().now()
        pod = Runner(
            id=pod_holder(build_id),
            name="pod",
            epoch=next(self._epochs),
            created_at=datetime.now(UTC),
            seen_at=now,
        )
        link = RunnerLink(messages, pod, PROTOCOL, pod_of=build_id)
        if (before := self.links.add(link)) is not None:
            before.close(CLOSE_SUPERSEDED, "another process of this pod has connected")
        self.connections += 1
        welcome = Welcome(epoch=pod.epoch, version="test", idle_exchanges=2, protocol=PROTOCOL)
        try:
            await messages.send(encode(welcome))
            await link.run()
        finally:
            self.links.remove(link)
        return connected

    async def _exchange(self, request: aiohttp.web.Request) -> aiohttp.web.StreamResponse:
        link = self.links.get(pod_holder(self._build_of(request)))
        connected = aiohttp.web.WebSocketResponse(timeout=0.2)
        await connected.prepare(request)
        if link is not None:
            await link.serve_exchange(_Messages(connected))
        return connected


class HubReach:
    """Opens streams to agents of a hub, which may be in another process. `opened` are those of this
    process that are not closed, by address."""

    opened: ClassVar[dict[str, "list[HubReach]"]] = {}

    def __init__(self, secret: bytes, address: str) -> None:
        self._dialler = PeerDialler(secret)
        self._address = address
        self.opened.setdefault(address, []).append(self)

    async def open(self, agent_id: AgentId, endpoint: Endpoint) -> ByteStream:
        return await self._dialler.open(self._address, agent_id, endpoint)

    async def close(self) -> None:
        await self._dialler.close()
