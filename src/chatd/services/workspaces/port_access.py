"""HTTP and WebSockets to the ports of workspaces, over byte streams that their agents open.

Every exchange has a stream of its own. Until the stream is open nothing was sent to the port, so an
agent that was lost is looked up once more. What answers at a port is not trusted: heads are
bounded, redirects are not followed, nothing is decompressed.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

import aiohttp
from msgspec import Struct
from multidict import CIMultiDict
from yarl import URL

from chatd.domain.ids import WorkspaceId
from chatd.domain.ports import Clock
from chatd.domain.workspace.agent_api import AgentUnreachable
from chatd.domain.workspace.previews import (
    HeaderList,
    ListeningPort,
    PortFailed,
    PortRequest,
    PreviewTarget,
)
from chatd.workspaces.agents.agent_client import (
    API_PREFIX,
    ConnectedAgent,
    decode_reply,
    explain_outdated,
)
from chatd.workspaces.agents.agent_session import AgentRequest
from chatd.workspaces.tunnels.byte_streams import ByteStream, http_over

AGENT_CACHE_S: Final = 5.0
"""A page loads many files at once: its agent is looked up once for all of them."""
MAX_CACHED_AGENTS: Final = 500
PORT_OPEN_TIMEOUT_S: Final = 15.0
RESPONSE_HEAD_TIMEOUT_S: Final = 120.0
"""A development server may compile before it answers."""
RESPONSE_IDLE_TIMEOUT_S: Final = 600.0
"""Between two pieces of a response, such as two events of a stream."""
MAX_RESPONSE_HEADER_BYTES: Final = 16 * 1024
MAX_RESPONSE_HEADERS: Final = 128
RESPONSE_PIECE_BYTES: Final = 64 * 1024
MAX_PORT_MESSAGE_BYTES: Final = 4 << 20
"""Of a WebSocket message from a port."""
SOCKET_CLOSE_TIMEOUT_S: Final = 2.0
_AUTOMATIC: Final = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
_SOCKET_TIMEOUT: Final = aiohttp.ClientWSTimeout(ws_close=SOCKET_CLOSE_TIMEOUT_S)  # pyright: ignore[reportCallIssue]
_WRONG: Final = (aiohttp.ClientError, OSError, ValueError)


class _Ports(Struct, frozen=True, kw_only=True):
    ports: tuple[ListeningPort, ...] = ()


class PortReply:
    """The response of a port: its head, and its body in pieces."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers = response.raw_headers

    async def next_piece(self) -> bytes:
        """Empty at the end. Raises PortFailed."""
        try:
            async with asyncio.timeout(RESPONSE_IDLE_TIMEOUT_S):
                return await self._response.content.read(RESPONSE_PIECE_BYTES)
        except (TimeoutError, *_WRONG) as error:
            raise PortFailed(f"The response broke off ({type(error).__name__}).") from None


class PortSocket:
    """A WebSocket to a port."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self.subprotocol = socket.protocol

    async def receive(self) -> str | bytes | None:
        """None when it is closed."""
        message = await self._socket.receive()
        is_data = message.type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY)
        return message.data if is_data else None

    async def send(self, message: str | bytes) -> None:
        try:
            await (
                self._socket.send_str(message)
                if isinstance(message, str)
                else self._socket.send_bytes(message)
            )
        except _WRONG as error:
            raise PortFailed(f"The WebSocket broke off ({type(error).__name__}).") from None

    @property
    def close_code(self) -> int:
        return self._socket.close_code or 1000


class AgentPorts:
    """The ports of running workspaces. Raises Conflict, AgentRefused, AgentUnreachable.
    `on_use` is called for every exchange."""

    def __init__(
        self,
        connect: Callable[[WorkspaceId], Awaitable[ConnectedAgent]],
        clock: Clock,
        on_use: Callable[[WorkspaceId], None],
    ) -> None:
        self._connect = connect
        self._clock = clock
        self._on_use = on_use
        self._agents: dict[WorkspaceId, tuple[float, ConnectedAgent]] = {}

    async def list_ports(self, workspace_id: WorkspaceId) -> Sequence[ListeningPort]:
        agent = await self._connect(workspace_id)
        with explain_outdated():
            raw = await agent.send(AgentRequest(method="GET", target=f"{API_PREFIX}/ports/list"))
        return decode_reply(raw, _Ports).ports

    @asynccontextmanager
    async def exchange(
        self,
        target: PreviewTarget,
        request: PortRequest,
        next_piece: Callable[[], Awaitable[bytes]] | None,
    ) -> AsyncGenerator[PortReply]:
        """`next_piece` returns the next bytes of the request's body, none at its end; None: the
        request has no body. Raises PortFailed too."""
        async with self._session(target) as session:
            data = None if next_piece is None else _pieces(next_piece)
            try:
                async with asyncio.timeout(RESPONSE_HEAD_TIMEOUT_S):
                    response = await session.request(
                        request.method,
                        _url(target, request),
                        data=data,
                        headers=_headers(request.headers),
                        allow_redirects=False,
                        skip_auto_headers=_AUTOMATIC,
                    )
            except TimeoutError:
                text = f"Port {target.port} did not answer within {RESPONSE_HEAD_TIMEOUT_S:.0f} s."
                raise PortFailed(text) from None
            except _WRONG as error:
                text = f"What answers on port {target.port} is not HTTP ({type(error).__name__})."
                raise PortFailed(text) from None
            try:
                yield PortReply(response)
            finally:
                response.close()

    @asynccontextmanager
    async def socket(
        self, target: PreviewTarget, request: PortRequest, subprotocols: Sequence[str]
    ) -> AsyncGenerator[PortSocket]:
        """Raises PortFailed too."""
        async with self._session(target) as session:
            try:
                async with asyncio.timeout(RESPONSE_HEAD_TIMEOUT_S):
                    socket = await session.ws_connect(
                        _url(target, request),
                        headers=_headers(request.headers),
                        protocols=subprotocols,
                        max_msg_size=MAX_PORT_MESSAGE_BYTES,
                        timeout=_SOCKET_TIMEOUT,
                    )
            except (TimeoutError, *_WRONG) as error:
                text = f"Port {target.port} takes no WebSocket here ({type(error).__name__})."
                raise PortFailed(text) from None
            try:
                yield PortSocket(socket)
            finally:
                await socket.close()

    @asynccontextmanager
    async def _session(self, target: PreviewTarget) -> AsyncGenerator[aiohttp.ClientSession]:
        stream = await self._open(target)
        async with (
            http_over(stream) as connector,
            aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),
                auto_decompress=False,
                max_line_size=MAX_RESPONSE_HEADER_BYTES,
                max_field_size=MAX_RESPONSE_HEADER_BYTES,
                max_headers=MAX_RESPONSE_HEADERS,
                trust_env=False,
            ) as session,
        ):
            yield session

    async def _open(self, target: PreviewTarget) -> ByteStream:
        stream = await self._open_by_agent(target)
        self._on_use(target.workspace_id)
        return stream

    async def _open_by_agent(self, target: PreviewTarget) -> ByteStream:
        workspace_id = target.workspace_id
        request = AgentRequest(
            method="GET",
            target=f"{API_PREFIX}/ports/{target.port}/connect",
            timeout_s=PORT_OPEN_TIMEOUT_S,
        )
        now = self._clock.monotonic()
        until, agent = self._agents.get(workspace_id, (now, None))
        with explain_outdated():
            if agent is not None and until > now:
                try:
                    return await agent.open_bytes(request)
                except AgentUnreachable:
                    self._agents.pop(workspace_id, None)
            agent = await self._connect(workspace_id)
            if len(self._agents) >= MAX_CACHED_AGENTS:
                self._agents.clear()
            self._agents[workspace_id] = (self._clock.monotonic() + AGENT_CACHE_S, agent)
            return await agent.open_bytes(request)


def _url(target: PreviewTarget, request: PortRequest) -> URL:
    return URL(f"http://localhost:{target.port}{request.target}", encoded=True)


def _headers(given: HeaderList) -> CIMultiDict[str]:
    return CIMultiDict((name.decode("latin-1"), value.decode("latin-1")) for name, value in given)


async def _pieces(next_piece: Callable[[], Awaitable[bytes]]) -> AsyncGenerator[bytes]:
    while piece := await next_piece():
        yield piece
