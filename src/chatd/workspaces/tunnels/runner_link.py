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
from chatd.domain.workspace.entities import AgentId, Endpoint
from chatd.domain.workspace.runners import Runner, RunnerId
from chatd.workspaces.build_backend import BuildInterrupted, LogSink
from chatd.workspaces.tunnels.byte_streams import MessageStream
from chatd.workspaces.tunnels.wire import (
    AGENT_OPENED,
    RUNNER_MESSAGES,
    BackendCall,
    CallCancel,
    CallLog,
    CallReply,
    MessageSocket,
    MoreExchanges,
    OpenAgent,
    RunnerState,
    encode,
)

IDLE_EXCHANGES: Final = 4
"""Exchange sockets that a runner keeps open in advance."""
MAX_IDLE_EXCHANGES: Final = 32
MAX_WAITING_EXCHANGES: Final = 256
EXCHANGE_TIMEOUT_S: Final = 10.0
"""To get an exchange socket, and for the runner to reach the agent on it."""
STATE_TIMEOUT_S: Final = 30.0
"""A runner reports its state every few seconds; after this silence its connection is lost."""
MAX_CALLS: Final = 64
SEND_TIMEOUT_S: Final = 10.0


class RunnerMisbehaved(ChatdError):
    """The runner sent what no runner sends."""

    code = "runner_misbehaved"


class _Exchange:
    """A socket that waits for its agent. The only text that the runner sends on it is read in
    advance, so that a closed socket is noticed."""

    def __init__(self, messages: MessageSocket) -> None:
        self._messages = messages
        self._first = asyncio.get_running_loop().create_task(messages.receive())
        self.ended = asyncio.Event()
        self.is_taken = False

    @property
    def is_usable(self) -> bool:
        return not self.is_taken and not self._first.done()

    async def wait_ended(self) -> None:
        """Until the exchange is over, or the runner has closed the socket while it was idle."""
        await asyncio.wait({self._first})
        if not self.is_taken:
            return
        await self.ended.wait()

    async def open(self, request: OpenAgent) -> "_ExchangeStream":
        """Raises ConnectFailed, or ConnectionError if the runner does not answer: nothing was sent
        to the agent."""
        self.is_taken = True
        try:
            async with asyncio.timeout(EXCHANGE_TIMEOUT_S):
                await self._messages.send(encode(request))
                text = await asyncio.shield(self._first)
            if not isinstance(text, str):
                raise ConnectionError("closed")
            opened = AGENT_OPENED.decode(text)
        except (OSError, TimeoutError, msgspec.DecodeError):
            await self.close()
            raise ConnectionError("no answer") from None
        except BaseException:
            await self.close()
            raise
        if opened.error:
            await self.close()
            raise ConnectFailed(f"The workspace agent cannot be reached: {opened.error[:500]}.")
        return _ExchangeStream(self._messages, self.ended)

    async def close(self) -> None:
        self.is_taken = True
        self._first.cancel()
        self.ended.set()
        await self._messages.close()


class _ExchangeStream(MessageStream):
    def __init__(self, messages: MessageSocket, ended: asyncio.Event) -> None:
        super().__init__(messages)
        self._ended = ended

    async def close(self) -> None:
        await super().close()
        self._ended.set()


class _Call:
    def __init__(self, log: LogSink | None) -> None:
        self.reply: asyncio.Future[CallReply] = asyncio.get_running_loop().create_future()
        self.log = log


class RunnerLink:
    """`run` serves the control socket until it is closed, by either side. `runner` is the row as it
    was written when the runner connected, with its state since then."""

    def __init__(self, messages: MessageSocket, runner: Runner) -> None:
        self.runner = runner
        self._messages = messages
        self._numbers = count(1)
        self._calls: dict[int, _Call] = {}
        self._idle: deque[_Exchange] = deque()
        self._busy: set[_Exchange] = set()
        self._waiting: deque[asyncio.Future[_Exchange]] = deque()
        self._closed = asyncio.Event()
        self._sending = asyncio.Lock()
        self._close_with = (1000, "")
        self.is_draining = False
        """It was asked on its own machine to take no more workspaces."""

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
            exchanges = [*self._idle, *self._busy]
            await asyncio.gather(*(exchange.close() for exchange in exchanges))
            await self._messages.close(*self._close_with)

    def count_started(self) -> None:
        """Until the runner reports its state again."""
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
        """Until the exchange on this socket is over."""
        if not self.is_open or len(self._idle) >= MAX_IDLE_EXCHANGES:
            await messages.close(1013, "enough")
            return
        exchange = _Exchange(messages)
        try:
            self._offer(exchange)
            await exchange.wait_ended()
        finally:
            with suppress(ValueError):
                self._idle.remove(exchange)
            self._busy.discard(exchange)
            await exchange.close()

    def _offer(self, exchange: _Exchange) -> None:
        """To the request that waits longest, or to the next one."""
        waiter = next(self._open_waiters(), None)
        if waiter is None:
            self._idle.append(exchange)
        else:
            waiter.set_result(exchange)

    def _open_waiters(self) -> Iterator[asyncio.Future[_Exchange]]:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                yield waiter

    async def open(self, agent_id: AgentId, endpoint: Endpoint) -> MessageStream:
        """A byte stream to an agent of this runner. Raises RunnerDisconnected if the runner does
        not answer, ConnectFailed if it does not reach the agent."""
        exchange = await self._take_exchange()
        self._busy.add(exchange)
        try:
            return await exchange.open(OpenAgent(agent_id=str(agent_id), endpoint=endpoint))
        except OSError:
            self._busy.discard(exchange)
            raise self._away() from None
        except BaseException:
            self._busy.discard(exchange)
            raise

    async def _take_exchange(self) -> _Exchange:
        while self._idle:
            if (exchange := self._idle.popleft()).is_usable:
                exchange.is_taken = True
                return exchange
        if not self.is_open or len(self._waiting) >= MAX_WAITING_EXCHANGES:
            raise self._away()
        waiter: asyncio.Future[_Exchange] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout(EXCHANGE_TIMEOUT_S):
                await self._send(MoreExchanges(count=len(self._waiting)))
                exchange = await waiter
                exchange.is_taken = True
                return exchange
        except (TimeoutError, BuildInterrupted):
            self._give_up(waiter)
            raise self._away() from None
        except asyncio.CancelledError:
            self._give_up(waiter)
            raise

    def _give_up(self, waiter: asyncio.Future[_Exchange]) -> None:
        """A socket that came at the same moment serves the next exchange."""
        with suppress(ValueError):
            self._waiting.remove(waiter)
        if not waiter.done():
            waiter.cancel()
        elif not waiter.cancelled() and waiter.exception() is None:
            self._offer(waiter.result())

    def _away(self) -> RunnerDisconnected:
        return RunnerDisconnected(
            f"The workspace is on the machine {self.runner.name}, which does not answer."
        )

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


class RunnerLinks:
    """The links of this replica, by runner."""

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
        return [link for link in self._links.values() if link.is_open]
