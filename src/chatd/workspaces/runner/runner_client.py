"""The connections of a runner: it dials the server, keeps sockets for exchanges open, and comes
back after every loss.

The runner needs no inbound port. A lost connection ends nothing in its workspaces. It stops for
good only if the server says so: the token was revoked, another process has its id, or the versions
differ too much.
"""

import asyncio
import logging
import os
import platform
import random
from collections.abc import Coroutine
from contextlib import suppress
from importlib import metadata
from typing import Final

import aiohttp
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from chatd.domain.errors import ChatdError
from chatd.domain.ports import Clock
from chatd.domain.workspace.runners import BackendOffer
from chatd.log_event import LogEvent
from chatd.workspaces.runner.backend_calls import BackendCalls
from chatd.workspaces.tunnels.byte_streams import ByteStream, open_socket
from chatd.workspaces.tunnels.exchanges import OpenRefused, serve_exchange
from chatd.workspaces.tunnels.wire import (
    CLOSE_REFUSED,
    CLOSE_SUPERSEDED,
    CONTROL_PATH,
    EPOCH_HEADER,
    EXCHANGE_PATH,
    MAX_RUNNER_MESSAGE_BYTES,
    MAX_SERVER_MESSAGE_BYTES,
    PROTOCOL,
    REUSE_PROTOCOL,
    RUNNER_HEADER,
    SERVER_MESSAGES,
    AgentOpened,
    BackendCall,
    CallCancel,
    CallError,
    CallLog,
    CallReply,
    Hello,
    MoreExchanges,
    OpenAgent,
    Refused,
    RunnerState,
    Welcome,
    encode,
)

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S: Final = 15.0
HEARTBEAT_S: Final = 10.0
STATE_INTERVAL_S: Final = 5.0
MIN_BACKOFF_S: Final = 0.25
MAX_BACKOFF_S: Final = 15.0
STEADY_AFTER_S: Final = 30.0
"""A connection that lasted this long ends the back-off."""
MAX_EXCHANGES: Final = 256
MAX_CALLS: Final = 64
FINAL_STATUSES: Final = frozenset({401, 403})
FIRST_STATUSES: Final = frozenset({404, 409})
"""Final only before the first connection, where they mean a wrong address. Later a proxy may answer
so while servers restart."""
MIN_EXCHANGE_PAUSE_S: Final = 0.05
MAX_EXCHANGE_PAUSE_S: Final = 1.0


class RunnerRefused(ChatdError):
    """The server refuses this runner, now and later."""

    code = "runner_refused"


class RunnerConfig(Struct, frozen=True, kw_only=True):
    server_url: str
    token: str
    runner_id: str
    name: str
    labels: tuple[str, ...] = ()
    backends: tuple[BackendOffer, ...] = ()
    capacity: int = 0

    def __repr__(self) -> str:
        """Leaves out the token: it must not end up in logs."""
        return f"RunnerConfig(server_url={self.server_url!r}, name={self.name!r})"


class _ClientMessages:
    """Satisfies `wire.MessageSocket`."""

    def __init__(self, connected: aiohttp.ClientWebSocketResponse) -> None:
        self._connected = connected

    @property
    def close_code(self) -> int | None:
        return self._connected.close_code

    async def receive(self) -> str | bytes | None:
        message = await self._connected.receive()
        if message.type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
            return message.data
        return None

    async def send(self, message: str | bytes) -> None:
        if self._connected.closed:
            raise ConnectionError("closed")
        if isinstance(message, str):
            await self._connected.send_str(message)
        else:
            await self._connected.send_bytes(message)

    async def close(self, code: int = 1000, reason: str = "") -> None:
        with suppress(OSError, TimeoutError, aiohttp.ClientError):
            async with asyncio.timeout(2):
                await self._connected.close(code=code, message=reason.encode()[:100])


class RunnerClient:
    """`run` serves until `stop` is set. `is_connected` is for the status file and tests."""

    def __init__(self, config: RunnerConfig, calls: BackendCalls, clock: Clock) -> None:
        self._config = config
        self._calls = calls
        self._clock = clock
        self.draining = False
        self.connected = asyncio.Event()
        self.last_error = ""
        self._was_connected = False

    async def run(self, stop: asyncio.Event) -> None:
        """Raises RunnerRefused if the server will never take this runner."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S)
        stopping = asyncio.get_running_loop().create_task(stop.wait())
        backoff_s = MIN_BACKOFF_S
        try:
            async with aiohttp.ClientSession(timeout=timeout, trust_env=True) as http:
                while not stop.is_set():
                    began = self._clock.monotonic()
                    serving = asyncio.get_running_loop().create_task(self._serve(http))
                    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
                    serving.cancel()
                    await asyncio.wait({serving})
                    self.connected.clear()
                    if stop.is_set():
                        return
                    self._explain_end(serving)
                    if self._clock.monotonic() - began >= STEADY_AFTER_S:
                        backoff_s = MIN_BACKOFF_S
                    # After a server's restart all its runners come back: not at the same moment.
                    pause_s = backoff_s * (0.5 + random.random())
                    backoff_s = min(backoff_s * 2, MAX_BACKOFF_S)
                    await asyncio.wait({stopping}, timeout=pause_s)
        finally:
            stopping.cancel()
            await self._calls.close()

    def move(self, server_url: str) -> None:
        """Connect to this address from the next connection on."""
        self._config = replace(self._config, server_url=server_url)

    def _explain_end(self, serving: asyncio.Task[None]) -> None:
        """Raises RunnerRefused."""
        error = None if serving.cancelled() else serving.exception()
        while inner := _inner_errors(error):
            error = inner[0]
        if error is not None and not isinstance(error, aiohttp.ClientError | OSError):
            raise error
        self._note_end("the connection was closed" if error is None else _loss_text(error))

    def _note_end(self, reason: str) -> None:
        """Log each reason once until the server is connected again."""
        if reason != self.last_error:
            fields = {"server": self._config.server_url}
            text = f"{reason}; the runner tries again until it is connected"
            log.warning(LogEvent(event="server_lost", fields=fields, explanation=text))
        self.last_error = reason

    async def _serve(self, http: aiohttp.ClientSession) -> None:
        """One connection to the server, until it ends."""
        messages = await self._dial(http, CONTROL_PATH, {})
        try:
            await messages.send(encode(self._hello()))
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                welcome = _decode(await messages.receive())
            if isinstance(welcome, Refused):
                if welcome.final:
                    raise RunnerRefused(welcome.message, code=welcome.code)
                raise ConnectionError(welcome.message)
            if not isinstance(welcome, Welcome):
                raise ConnectionError("the server does not answer as a chatd server does")
            self.last_error = ""
            self._was_connected = True
            self.connected.set()
            fields = {"server": self._config.server_url, "version": welcome.version}
            log.info(LogEvent(event="server_connected", fields=fields, explanation=""))
            connection = _ServerConnection(self, http, messages, welcome)
            try:
                await connection.run()
            except* OSError as lost:
                self._note_end(str(lost.exceptions[0]))
            if messages.close_code == CLOSE_SUPERSEDED:
                text = "Another process with this runner's id has connected."
                raise RunnerRefused(f"{text} Each runner needs a data directory of its own.")
            if messages.close_code == CLOSE_REFUSED:
                raise RunnerRefused("The runner's token was revoked, or the runner was removed.")
        finally:
            await messages.close()

    def _hello(self) -> Hello:
        config = self._config
        return Hello(
            protocol=PROTOCOL,
            version=metadata.version("chatd"),
            runner_id=config.runner_id,
            name=config.name,
            labels=config.labels,
            backends=config.backends,
            capacity=config.capacity,
            os=platform.system().lower(),
            arch=platform.machine(),
        )

    async def _dial(
        self, http: aiohttp.ClientSession, path: str, headers: dict[str, str]
    ) -> _ClientMessages:
        config = self._config
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                connected = await http.ws_connect(
                    config.server_url.rstrip("/") + path,
                    headers={"Authorization": f"Bearer {config.token}", **headers},
                    heartbeat=HEARTBEAT_S,
                    max_msg_size=MAX_SERVER_MESSAGE_BYTES,
                    compress=0,
                )
        except aiohttp.WSServerHandshakeError as error:
            is_first = error.status in FIRST_STATUSES and not self._was_connected
            if error.status in FINAL_STATUSES or is_first:
                raise RunnerRefused(_status_text(error.status)) from None
            # The error holds the request with its token: it is not chained.
            raise ConnectionError(f"the server answers with status {error.status}") from None
        except TimeoutError:
            raise ConnectionError("the server does not answer") from None
        return _ClientMessages(connected)

    async def open_exchange(self, http: aiohttp.ClientSession, epoch: int) -> _ClientMessages:
        headers = {RUNNER_HEADER: self._config.runner_id, EPOCH_HEADER: str(epoch)}
        return await self._dial(http, EXCHANGE_PATH, headers)

    @property
    def calls(self) -> BackendCalls:
        return self._calls

    @property
    def clock(self) -> Clock:
        return self._clock


class _ServerConnection:
    """One control socket and its exchange sockets."""

    def __init__(
        self,
        client: RunnerClient,
        http: aiohttp.ClientSession,
        messages: _ClientMessages,
        welcome: Welcome,
    ) -> None:
        self._client = client
        self._http = http
        self._messages = messages
        self._welcome = welcome
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: dict[int, asyncio.Event] = {}
        self._idle = 0
        self._exchanges = 0
        self._wanted = asyncio.Event()
        self._more = 0
        self._unused = 0
        """Exchange sockets in a row that ended before the server named an agent."""

    async def run(self) -> None:
        """Serve until the server closes the control socket."""
        async with asyncio.TaskGroup() as group:
            self._spawn(group, self._report_state())
            self._spawn(group, self._keep_exchanges(group))
            await self._read(group)
            for task in self._tasks:
                task.cancel()

    def _spawn(self, group: asyncio.TaskGroup, work: Coroutine[object, object, None]) -> None:
        task = group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _read(self, group: asyncio.TaskGroup) -> None:
        while (text := await self._messages.receive()) is not None:
            message = _decode(text)
            match message:
                case UnreadableCall() if message.call not in self._running:
                    await self._send(CallReply(call=message.call, error=_UNREADABLE))
                case BackendCall():
                    if len(self._running) < MAX_CALLS and message.call not in self._running:
                        cancelled = self._running[message.call] = asyncio.Event()
                        self._spawn(group, self._answer(message, cancelled))
                case CallCancel():
                    if (cancelled := self._running.get(message.call)) is not None:
                        cancelled.set()
                case MoreExchanges():
                    self._more = min(message.count, MAX_EXCHANGES)
                    self._wanted.set()
                case Refused():
                    raise RunnerRefused(message.message, code=message.code)
                case _:
                    continue

    async def _answer(self, call: BackendCall, cancelled: asyncio.Event) -> None:
        try:
            with suppress(OSError):
                await self._client.calls.answer(call, self._send, cancelled)
        finally:
            del self._running[call.call]

    async def _send(self, message: CallReply | CallLog) -> None:
        text = encode(message)
        # The server would close the connection, and ask again: lines of a log are cut before.
        if isinstance(message, CallReply) and len(text.encode()) > MAX_RUNNER_MESSAGE_BYTES:
            text = encode(CallReply(call=message.call, error=_TOO_LONG))
        await self._messages.send(text)

    async def _report_state(self) -> None:
        while True:
            running = await self._client.calls.running()
            state = RunnerState(running=running, draining=self._client.draining)
            await self._messages.send(encode(state))
            await self._client.clock.sleep(STATE_INTERVAL_S, "runner_state")

    async def _keep_exchanges(self, group: asyncio.TaskGroup) -> None:
        """Open sockets until as many wait as the server asked for."""
        while True:
            target = max(self._welcome.idle_exchanges, self._more)
            self._more = 0
            while self._idle < target and self._exchanges < MAX_EXCHANGES:
                self._idle += 1
                self._exchanges += 1
                self._spawn(group, self._exchange())
            await self._wanted.wait()
            self._wanted.clear()

    async def _exchange(self) -> None:
        """Serve one socket, until the server closes it."""
        is_idle, was_used = True, False
        is_reused = self._welcome.protocol >= REUSE_PROTOCOL
        try:
            with suppress(aiohttp.ClientError, OSError):
                messages = await self._client.open_exchange(self._http, self._welcome.epoch)
                try:
                    while isinstance(text := await messages.receive(), str):
                        is_idle, was_used = False, True
                        self._unused = 0
                        self._idle -= 1
                        self._wanted.set()
                        if not await serve_exchange(
                            messages, text, self._open_agent, is_reused=is_reused
                        ):
                            break
                        is_idle = True
                        self._idle += 1
                finally:
                    await messages.close()
            if not was_used:
                # The control socket tells whether the server is there; a pause avoids a storm.
                self._unused += 1
                pause_s = min(self._unused * MIN_EXCHANGE_PAUSE_S, MAX_EXCHANGE_PAUSE_S)
                await self._client.clock.sleep(pause_s, "exchange_retry")
        finally:
            self._exchanges -= 1
            if is_idle:
                self._idle -= 1
            self._wanted.set()

    async def _open_agent(self, request: OpenAgent) -> ByteStream:
        """Raises OpenRefused."""
        path = self._client.calls.agent_socket(request.endpoint.path)
        if path is None:
            raise OpenRefused(AgentOpened(error="it is not an agent of this runner"))
        try:
            return await open_socket(path)
        except OSError as error:
            reason = (error.strerror or type(error).__name__).lower()
            raise OpenRefused(AgentOpened(error=reason)) from None


def _inner_errors(error: BaseException | None) -> tuple[BaseException, ...]:
    """The errors in a group; empty for any other error."""
    return getattr(error, "exceptions", ())


class UnreadableCall(Struct, frozen=True, kw_only=True, tag="call", tag_field="type"):
    """The readable part of a call with values that this runner does not know."""

    call: int


_UNREADABLE_CALLS: Final = msgspec.json.Decoder(UnreadableCall)
_UNREADABLE: Final = CallError(
    code="runner_outdated",
    message="The workspace's runner is older than the server and cannot read what it is asked for."
    " Upgrade the runner.",
)
_TOO_LONG: Final = CallError(
    code="reply_too_long", message="What the runner has to say of the workspace is too long."
)


def _decode(text: str | bytes | None) -> Struct | None:
    """None for a message that this runner does not know: a newer server may send such."""
    if text is None:
        return None
    with suppress(msgspec.DecodeError):
        return SERVER_MESSAGES.decode(text)
    with suppress(msgspec.DecodeError):
        return _UNREADABLE_CALLS.decode(text)
    return None


def _loss_text(error: BaseException) -> str:
    match error:
        case aiohttp.ClientConnectorCertificateError():
            return f"the server's certificate is not trusted: {error.certificate_error}"
        case aiohttp.ClientSSLError():
            return "no TLS connection: is the server's address http:// instead of https://?"
        case aiohttp.ClientConnectorError(os_error=OSError(errno=int(number))) if number > 0:
            return f"cannot connect: {os.strerror(number).lower()}"
        case aiohttp.ClientConnectorError():
            return f"cannot connect: {(error.strerror or 'no reason given').lower()}"
        case _:
            return str(error) or repr(error)


def _status_text(status: int) -> str:
    match status:
        case 401:
            return "The server does not accept the token: it was revoked, has expired, or is wrong."
        case 403:
            return "The token may not run workspaces."
        case 404:
            return "The server has no address for runners. Is the URL that of a chatd server?"
        case _:
            return "Workspaces are disabled on the server."
