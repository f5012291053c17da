"""Exchanges with agents that another replica reaches, and sockets of runners that reach another
replica than their control socket did.

A replica connects to the one that holds the runner. It then either opens exchanges there, one after
another, or hands over one exchange socket of the runner, whose messages it passes on both ways.
Nothing is sent to an agent before the reply, so what was refused is always safe to open elsewhere.
"""

import asyncio
import logging
import socket
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final
from uuid import UUID

import msgspec
from msgspec import Struct

from chatd.domain.ids import UserId
from chatd.domain.workspace.agent_api import (
    AgentUnreachable,
    ConnectFailed,
    RunnerDisconnected,
)
from chatd.domain.workspace.entities import AgentId, Endpoint
from chatd.log_event import LogEvent
from chatd.workspaces.tunnels.byte_streams import ByteStream
from chatd.workspaces.tunnels.exchanges import ExchangeSocket, OpenRefused, serve_exchange
from chatd.workspaces.tunnels.peer_sockets import PeerSocket, peer_tls
from chatd.workspaces.tunnels.wire import (
    AGENT_OPENED,
    AgentOpened,
    MessageSocket,
    OpenAgent,
    encode,
)

log = logging.getLogger(__name__)

PEER_CONNECT_TIMEOUT_S: Final = 3.0
PEER_OPEN_TIMEOUT_S: Final = 12.0
"""Limit for the holder to reach the agent. The holder waits less for the runner."""
PEER_REPLY_TIMEOUT_S: Final = 15.0
IDLE_PEER_SOCKETS: Final = 8
"""How many are kept for each recently used replica: a TLS handshake takes longer than an
exchange."""
IDLE_PEER_S: Final = 20.0
FIRST_MESSAGE_TIMEOUT_S: Final = 30.0
"""Limit that also applies to the next exchange: longer than a replica keeps idle connections."""
MAX_PEER_SOCKETS: Final = 4096


class RunnerSocket(Struct, frozen=True, kw_only=True, tag="runner_socket", tag_field="type"):
    """The first message on a connection that carries an exchange socket of this runner. The sender
    has checked the runner's token, and the holder compares what the token allows."""

    runner_id: str
    epoch: int
    pool: str = ""
    owner_id: UserId | None = None


_RUNNER_SOCKET: Final = msgspec.json.Decoder(RunnerSocket)


class PeerUnknown(ConnectFailed):
    """The replica does not reach the runner, or cannot be reached itself: ask another one."""


class PeerDialler:
    """Connects to other replicas, and uses a connection for one exchange after another."""

    def __init__(self, secret: bytes) -> None:
        self._tls = peer_tls(secret, server=False)
        self._idle: dict[str, deque[ExchangeSocket]] = {}
        self._running: set[asyncio.Task[None]] = set()

    async def open(self, address: str, agent_id: AgentId, endpoint: Endpoint) -> ByteStream:
        """Raises PeerUnknown, RunnerDisconnected if that replica waits for the runner in vain, or
        ConnectFailed if it reaches the runner and not the agent."""
        request = OpenAgent(agent_id=str(agent_id), endpoint=endpoint)
        idle = self._idle.get(address)
        while idle:
            if (exchange := idle.pop()).take():
                with suppress(ConnectionError):  # It was closed at this moment.
                    return await _ask(exchange, address, request)
        try:
            return await _ask(await self._new_exchange(address), address, request)
        except ConnectionError:
            raise PeerUnknown(f"The server at {address} does not answer.") from None

    async def hand_over(self, address: str, request: RunnerSocket) -> MessageSocket:
        """A connection that the other replica uses as an exchange socket of the runner. Raises
        PeerUnknown if it does not hold the runner."""
        messages = await self._connect(address)
        try:
            async with asyncio.timeout(PEER_REPLY_TIMEOUT_S):
                await messages.send(encode(request))
                reply = AGENT_OPENED.decode(await messages.receive() or b"")
            if reply.error:
                raise PeerUnknown(reply.error)
        except (OSError, msgspec.DecodeError):
            await messages.close()
            raise PeerUnknown(f"The server at {address} does not answer.") from None
        except BaseException:
            await messages.close()
            raise
        return messages

    async def close(self) -> None:
        for running in tuple(self._running):
            running.cancel()
        if self._running:
            await asyncio.wait(tuple(self._running))

    async def _new_exchange(self, address: str) -> ExchangeSocket:
        """Taken already."""
        exchange = ExchangeSocket(await self._connect(address), is_reused=True)
        loop = asyncio.get_running_loop()
        first: asyncio.Future[None] = loop.create_future()

        def offer(offered: ExchangeSocket) -> bool:
            if not first.done():
                offered.take()
                first.set_result(None)
                return True
            idle = self._idle.setdefault(address, deque())
            if len(idle) >= IDLE_PEER_SOCKETS:
                return False
            idle.append(offered)
            return True

        running = loop.create_task(self._run(exchange, address, offer))
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        await first
        return exchange

    async def _run(
        self, exchange: ExchangeSocket, address: str, offer: Callable[[ExchangeSocket], bool]
    ) -> None:
        try:
            await exchange.run(offer, idle_s=IDLE_PEER_S)
        finally:
            idle = self._idle.get(address, deque[ExchangeSocket]())
            with suppress(ValueError):
                idle.remove(exchange)
            if not idle:
                self._idle.pop(address, None)

    async def _connect(self, address: str) -> PeerSocket:
        host, _, port = address.rpartition(":")
        try:
            async with asyncio.timeout(PEER_CONNECT_TIMEOUT_S):
                pair = await asyncio.open_connection(
                    host.strip("[]"), int(port), ssl=self._tls, server_hostname="chatd"
                )
        except (OSError, ValueError, TimeoutError) as error:
            text = f"The server at {address} cannot be reached ({type(error).__name__})."
            raise PeerUnknown(text) from None
        return PeerSocket(*pair)


async def _ask(exchange: ExchangeSocket, address: str, request: OpenAgent) -> ByteStream:
    """Raises ConnectionError if the connection was closed, and as `PeerDialler.open`."""
    try:
        return await exchange.open(request, timeout_s=PEER_REPLY_TIMEOUT_S)
    except OpenRefused as refused:
        if refused.reply.away:
            raise RunnerDisconnected(refused.message) from None
        raise (PeerUnknown if refused.reply.unknown else ConnectFailed)(refused.message) from None
    except TimeoutError:
        raise PeerUnknown(f"The server at {address} does not answer.") from None


async def pass_messages(one: MessageSocket, other: MessageSocket) -> None:
    """Copy both ways until either side ends, then close both. Never raises but CancelledError."""
    loop = asyncio.get_running_loop()
    ways = {loop.create_task(_pass(one, other)), loop.create_task(_pass(other, one))}
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.wait(ways)
        await asyncio.gather(one.close(), other.close())


async def _pass(source: MessageSocket, target: MessageSocket) -> None:
    with suppress(OSError):
        while (message := await source.receive()) is not None:
            await target.send(message)


OpenHere = Callable[[AgentId, Endpoint], Awaitable[ByteStream]]
"""Open a stream to an agent without another replica. Raises PeerUnknown and AgentUnreachable."""
ServeRunnerSocket = Callable[[MessageSocket, RunnerSocket], Awaitable[None]]
"""Reply with `AgentOpened`, and use the socket for exchanges until it ends."""


class PeerServer:
    """Serves other replicas on their connections."""

    def __init__(self, open_here: OpenHere, serve_runner_socket: ServeRunnerSocket) -> None:
        self._open_here = open_here
        self._serve_runner_socket = serve_runner_socket

    @asynccontextmanager
    async def listening(self, listening: socket.socket, secret: bytes) -> AsyncGenerator[None]:
        """At the end exchanges in progress are aborted."""
        serving: set[asyncio.Task[None]] = set()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            serving.add(task)
            try:
                if len(serving) <= MAX_PEER_SOCKETS:
                    await self._serve(PeerSocket(reader, writer))
            except asyncio.CancelledError:
                # At the end of `listening`. asyncio would log it as an error.
                return
            finally:
                serving.discard(task)
                writer.close()

        server = await asyncio.start_server(
            serve,
            sock=listening,
            ssl=peer_tls(secret, server=True),
            ssl_handshake_timeout=PEER_CONNECT_TIMEOUT_S,
        )
        try:
            yield
        finally:
            server.close()
            for task in tuple(serving):
                task.cancel()
            if serving:
                await asyncio.wait(tuple(serving))

    async def _serve(self, messages: PeerSocket) -> None:
        with suppress(OSError):  # TimeoutError is one too
            text = await _next_text(messages)
            if text is not None and (forwarded := _runner_socket(text)) is not None:
                await self._serve_runner_socket(messages, forwarded)
                return
            while text is not None:
                if not await serve_exchange(messages, text, self._open, is_reused=True):
                    return
                text = await _next_text(messages)

    async def _open(self, request: OpenAgent) -> ByteStream:
        """Raises OpenRefused."""
        try:
            async with asyncio.timeout(PEER_OPEN_TIMEOUT_S):
                return await self._open_here(AgentId(UUID(request.agent_id)), request.endpoint)
        except AgentUnreachable as error:
            reply = AgentOpened(
                error=error.message,
                unknown=isinstance(error, PeerUnknown),
                away=isinstance(error, RunnerDisconnected),
            )
        except TimeoutError:
            reply = AgentOpened(error="The workspace's machine does not answer.", away=True)
        except ValueError:
            reply = AgentOpened(error="The request cannot be read.")
        raise OpenRefused(reply)


async def _next_text(messages: MessageSocket) -> str | None:
    """Raises TimeoutError."""
    async with asyncio.timeout(FIRST_MESSAGE_TIMEOUT_S):
        message = await messages.receive()
    return message if isinstance(message, str) else None


def _runner_socket(text: str) -> RunnerSocket | None:
    try:
        return _RUNNER_SOCKET.decode(text)
    except msgspec.DecodeError:
        return None


def log_peer_refused(address: str, reason: str) -> None:
    fields = {"address": address}
    log.warning(LogEvent(event="peer_unreachable", fields=fields, explanation=reason))
