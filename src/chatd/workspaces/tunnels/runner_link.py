"""Runners that are connected to this replica.

A link owns the control socket of one runner under one epoch: calls to its backends, and the
exchange sockets that wait for an agent to be named. What a runner sends is not trusted: messages
are small, counted and typed, and a runner that breaks the rules loses its connection.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from typing import Final

import msgspec
from msgspec.structs import replace

from chatd.domain.errors import ChatdError
from chatd.domain.workspace.agent_api import ConnectFailed, RunnerDisconnected
from chatd.domain.workspace.entities import AgentId, BuildId, Endpoint
from chatd.domain.workspace.runners import Runner, RunnerId
from chatd.workspaces.build_backend import BuildInterrupted, LogSink
from chatd.workspaces.tunnels import exchanges
from chatd.workspaces.tunnels.byte_streams import ByteStream
from chatd.workspaces.tunnels.exchanges import ExchangeSocket, OpenRefused
from chatd.workspaces.tunnels.wire import (
    CLOSE_REFUSED,
    CLOSE_TRY_AGAIN,
    REUSE_PROTOCOL,
    RUNNER_MESSAGES,
    BackendCall,
    CallCancel,
    CallLog,
    CallReply,
    MessageSocket,
    MoreExchanges,
    OpenAgent,
    Refused,
    RunnerState,
    encode,
)

IDLE_EXCHANGES: Final = 4
"""Exchange sockets that a runner keeps open in advance."""
MAX_IDLE_EXCHANGES: Final = 32
MAX_WAITING_EXCHANGES: Final = 256
MAX_CLOSED_EXCHANGES: Final = 3
"""How many sockets that the runner closes at the moment of use one request tries."""
STATE_TIMEOUT_S: Final = 30.0
"""A runner reports its state every few seconds; after this silence its connection is lost."""
MAX_CALLS: Final = 64
SEND_TIMEOUT_S: Final = 10.0


class RunnerMisbehaved(ChatdError):
    """The runner broke the protocol."""

    code = "runner_misbehaved"


class _Call:
    def __init__(self, log: LogSink | None) -> None:
        self.reply: asyncio.Future[CallReply] = asyncio.get_running_loop().create_future()
        self.log = log


class RunnerLink:
    """`run` serves the control socket until it is closed, by either side. `runner` is the row as it
    was written when the runner connected, with its state since then. `pod_of` is the build of a pod
    that holds its own connections."""

    def __init__(
        self,
        messages: MessageSocket,
        runner: Runner,
        protocol: int,
        *,
        pod_of: BuildId | None = None,
    ) -> None:
        self.runner = runner
        self.pod_of = pod_of
        self._protocol = protocol
        self._messages = messages
        self._numbers = count(1)
        self._calls: dict[int, _Call] = {}
        self._exchanges: set[ExchangeSocket] = set()
        self._idle: deque[ExchangeSocket] = deque()
        self._waiting: deque[asyncio.Future[ExchangeSocket]] = deque()
        self._closed = asyncio.Event()
        self._sending = asyncio.Lock()
        self._close_with = (1000, "")
        self.takes_grants = True
        """False once the runner has answered that it does not know them."""
        self.is_draining = False
        """Whether it was told on its own machine to take no more workspaces."""

    @property
    def id(self) -> RunnerId:
        return self.runner.id

    @property
    def is_open(self) -> bool:
        return not self._closed.is_set()

    async def run(self) -> None:
        """Never raises but CancelledError."""
        loop = asyncio.get_running_loop()
        reading = loop.create_task(self._read(), name=f"runner {self.id}")
        closed = loop.create_task(self._closed.wait())
        try:
            await asyncio.wait({reading, closed}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._closed.set()
            for task in (reading, closed):
                task.cancel()
            for call in self._calls.values():
                if not call.reply.done():
                    call.reply.set_exception(_lost())
                    call.reply.exception()  # a caller that was cancelled does not retrieve it
            for waiter in self._open_waiters():
                waiter.set_exception(self._away())
                waiter.exception()  # a caller that was cancelled does not retrieve it
            await asyncio.gather(*(exchange.close() for exchange in tuple(self._exchanges)))
            await self._messages.close(*self._close_with)

    def count_started(self) -> None:
        """Wait until the runner reports its state again."""
        self.runner = replace(self.runner, running=self.runner.running + 1)

    def close(self, code: int, reason: str) -> None:
        if self.is_open:
            self._close_with = (code, reason)
            self._closed.set()

    async def call(
        self,
        request: BackendCall,
        *,
        timeout_s: float,
        log: LogSink | None = None,
        cancelled: asyncio.Event | None = None,
    ) -> CallReply:
        """Call a backend; `request.call` is set here. When `cancelled` is set, the runner is asked
        to stop, and still replies. Raises BuildInterrupted if the connection breaks, TimeoutError
        after `timeout_s`. The runner is also asked to stop what this task no longer waits for."""
        if not self.is_open or len(self._calls) >= MAX_CALLS:
            raise _lost()
        number = next(self._numbers)
        call = self._calls[number] = _Call(log)
        asking = asyncio.get_running_loop().create_task(self._cancel_when(cancelled, number))
        try:
            async with asyncio.timeout(timeout_s):
                await self._send(replace(request, call=number))
                return await call.reply
        except (asyncio.CancelledError, TimeoutError):
            await self._cancel(number)
            raise
        finally:
            asking.cancel()
            del self._calls[number]

    async def _cancel_when(self, cancelled: asyncio.Event | None, number: int) -> None:
        if cancelled is not None:
            await cancelled.wait()
            await self._cancel(number)

    async def _cancel(self, number: int) -> None:
        if self.is_open:
            with suppress(BuildInterrupted):
                await self._send(CallCancel(call=number))

    # Exchanges

    async def serve_exchange(self, messages: MessageSocket) -> None:
        """Use the socket for exchanges until it ends."""
        if not self.is_open:
            await messages.close(1013, "the runner is not connected")
            return
        exchange = ExchangeSocket(messages, is_reused=self._protocol >= REUSE_PROTOCOL)
        self._exchanges.add(exchange)
        try:
            await exchange.run(self._offer)
        finally:
            self._exchanges.discard(exchange)
            with suppress(ValueError):
                self._idle.remove(exchange)

    def _offer(self, exchange: ExchangeSocket) -> bool:
        """False if too many are idle."""
        if not self.is_open or (len(self._idle) >= MAX_IDLE_EXCHANGES and not self._waiting):
            return False
        self._hand_out(exchange)
        return True

    def _hand_out(self, exchange: ExchangeSocket) -> None:
        """Give it to the request that waits longest, or to the next one."""
        waiter = next(self._open_waiters(), None)
        if waiter is None:
            self._idle.append(exchange)
        else:
            exchange.take()
            waiter.set_result(exchange)

    def _open_waiters(self) -> Iterator[asyncio.Future[ExchangeSocket]]:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                yield waiter

    async def open(self, agent_id: AgentId, endpoint: Endpoint) -> ByteStream:
        """A byte stream to an agent of this runner. Raises RunnerDisconnected if the runner does
        not answer, ConnectFailed if it does not reach the agent."""
        request = OpenAgent(agent_id=str(agent_id), endpoint=endpoint)
        for _ in range(MAX_CLOSED_EXCHANGES):
            exchange = await self._take_exchange()
            try:
                return await exchange.open(request)
            except OpenRefused as refused:
                text = f"The workspace agent cannot be reached: {refused.message[:500]}."
                raise ConnectFailed(text) from None
            except TimeoutError:
                break
            except OSError:
                continue  # It was closed at this moment: nothing was sent to the agent.
        raise self._away()

    async def _take_exchange(self) -> ExchangeSocket:
        while self._idle:
            if (exchange := self._idle.popleft()).take():
                return exchange
        if not self.is_open or len(self._waiting) >= MAX_WAITING_EXCHANGES:
            raise self._away()
        waiter: asyncio.Future[ExchangeSocket] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout(exchanges.EXCHANGE_TIMEOUT_S):
                await self._send(MoreExchanges(count=len(self._waiting)))
                return await waiter
        except (TimeoutError, BuildInterrupted):
            self._give_up(waiter)
            raise self._away() from None
        except asyncio.CancelledError:
            self._give_up(waiter)
            raise

    def _give_up(self, waiter: asyncio.Future[ExchangeSocket]) -> None:
        """Stop waiting. A socket that came at the same moment serves the next exchange."""
        with suppress(ValueError):
            self._waiting.remove(waiter)
        if not waiter.done():
            waiter.cancel()
        elif not waiter.cancelled() and waiter.exception() is None:
            exchange = waiter.result()
            if exchange.give_back():
                self._hand_out(exchange)

    def _away(self) -> RunnerDisconnected:
        where = "in a pod" if self.pod_of else f"on the machine {self.runner.name}"
        return RunnerDisconnected(f"The workspace is {where}, which does not answer.")

    # The control socket

    async def _send(self, message: msgspec.Struct) -> None:
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S), self._sending:
                await self._messages.send(encode(message))
        except (OSError, TimeoutError):
            self._closed.set()
            raise _lost() from None

    async def _read(self) -> None:
        while True:
            try:
                async with asyncio.timeout(STATE_TIMEOUT_S):
                    text = await self._messages.receive()
                if text is None:
                    return
                self._on_message(text)
            except (TimeoutError, OSError):
                return
            except RunnerMisbehaved as error:
                self._close_with = (1008, error.message[:100])
                return

    def _on_message(self, text: str | bytes) -> None:
        try:
            message = RUNNER_MESSAGES.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise RunnerMisbehaved("a message that cannot be read") from None
        match message:
            case RunnerState():
                running = min(max(message.running, 0), 1_000_000)
                self.runner = replace(self.runner, running=running)
                self.is_draining = message.draining
            case CallReply():
                call = self._calls.get(message.call)
                if call is not None and not call.reply.done():
                    call.reply.set_result(message)
            case CallLog():
                call = self._calls.get(message.call)
                if call is not None and call.log is not None:
                    call.log(message.stage, message.level, message.text)
            case _:
                raise RunnerMisbehaved("a second hello")


def _lost() -> BuildInterrupted:
    return BuildInterrupted("The connection to the workspace's runner broke.")


async def refuse(messages: MessageSocket, code: str, message: str, *, final: bool = True) -> None:
    """`final`: trying again does not help."""
    with suppress(OSError):
        await messages.send(encode(Refused(code=code, message=message, final=final)))
    await messages.close(CLOSE_REFUSED if final else CLOSE_TRY_AGAIN, code)


class RunnerLinks:
    """The links of this replica, by runner or pod."""

    def __init__(self) -> None:
        self._links: dict[RunnerId, RunnerLink] = {}

    def add(self, link: RunnerLink) -> RunnerLink | None:
        """The link of the same runner that this one replaces."""
        before = self._links.get(link.id)
        self._links[link.id] = link
        return before

    def remove(self, link: RunnerLink) -> None:
        if self._links.get(link.id) is link:
            del self._links[link.id]

    def get(self, runner_id: str) -> RunnerLink | None:
        link = self._links.get(RunnerId(runner_id))
        return link if link is not None and link.is_open else None

    def all(self) -> list[RunnerLink]:
        """The links of runners."""
        return [link for link in self._links.values() if link.is_open and link.pod_of is None]

    def pods(self) -> list[RunnerLink]:
        return [link for link in self._links.values() if link.is_open and link.pod_of is not None]
