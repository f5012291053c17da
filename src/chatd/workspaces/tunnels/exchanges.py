"""Exchanges with agents on a socket that is used for one after another.

One side opens exchanges: a replica, on a socket of a runner or on its connection to another
replica. The other side serves them: it connects to the agent and copies bytes. Each side ends an
exchange with a text and drops bytes until the other's came, so bytes of one exchange never reach
the next.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import msgspec

from chatd.domain.errors import ChatdError
from chatd.workspaces.tunnels.byte_streams import (
    CLOSE_TIMEOUT_S,
    ByteStream,
    MessageStream,
    pipe,
)
from chatd.workspaces.tunnels.wire import (
    AGENT_OPENED,
    EXCHANGE_END,
    MAX_BYTES_FRAME,
    OPEN_AGENT,
    AgentOpened,
    ExchangeEnd,
    MessageSocket,
    OpenAgent,
    encode,
)

EXCHANGE_TIMEOUT_S: Final = 10.0
"""Limit for getting an exchange socket, and for the other side to reach the agent on it."""
END_TIMEOUT_S: Final = 10.0
"""Limit for the other side to end its half; then the socket is closed."""
AGENT_WRITE_TIMEOUT_S: Final = 60.0
"""An agent that does not read for this long loses its exchange."""
END: Final = encode(ExchangeEnd(end=True))


class OpenRefused(ChatdError):
    """The other side did not reach the agent: nothing was sent to it."""

    code = "agent_unreachable"

    def __init__(self, reply: AgentOpened) -> None:
        super().__init__(reply.error)
        self.reply = reply


class ExchangeSocket:
    """The side that opens exchanges. While the socket is idle, its next message is read in
    advance, so that a closed socket is noticed."""

    def __init__(self, messages: MessageSocket, *, is_reused: bool) -> None:
        self._messages = messages
        self._is_reused = is_reused
        self._next: asyncio.Task[str | bytes | None] | None = None
        self._stream: _ExchangeStream | None = None
        self._ended = asyncio.Event()
        self._is_taken = False

    async def run(
        self, offer: "Callable[[ExchangeSocket], bool]", *, idle_s: float | None = None
    ) -> None:
        """Call `offer` whenever the socket is idle, until it is closed, `offer` returns False or
        nobody takes it for `idle_s`."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                self._next = loop.create_task(self._messages.receive())
                self._stream = None
                self._is_taken = False
                self._ended.clear()
                if not offer(self):
                    return
                await asyncio.wait({self._next}, timeout=idle_s)
                if not self._is_taken:
                    return
                await self._ended.wait()
                if not await self._is_idle_again():
                    return
        finally:
            await self.close()

    def take(self) -> bool:
        """False if it has been closed or taken."""
        is_usable = not self._is_taken and self._next is not None and not self._next.done()
        self._is_taken = self._is_taken or is_usable
        return is_usable

    def give_back(self) -> bool:
        """Give back a socket that was taken and is not needed. False if it has been closed."""
        if self._next is None or self._next.done():
            self._ended.set()
            return False
        self._is_taken = False
        return True

    async def open(self, request: OpenAgent, *, timeout_s: float | None = None) -> ByteStream:
        """On a socket that was taken. Raises OpenRefused, TimeoutError, or ConnectionError if the
        socket is closed: nothing was sent to the agent."""
        assert self._next is not None
        try:
            async with asyncio.timeout(timeout_s or EXCHANGE_TIMEOUT_S):
                await self._messages.send(encode(request))
                # `close` cancels the task that reads, and must not cancel this caller.
                await asyncio.wait({self._next})
            text = None if self._next.cancelled() else self._next.result()
            if not isinstance(text, str):
                raise ConnectionError("closed")
            opened = AGENT_OPENED.decode(text)
            if opened.error:
                raise OpenRefused(opened)
        except msgspec.DecodeError:
            await self.close()
            raise ConnectionError("an answer that cannot be read") from None
        except BaseException:
            await self.close()
            raise
        self._stream = _ExchangeStream(self._messages, self._ended, is_reused=self._is_reused)
        return self._stream

    async def close(self) -> None:
        self._is_taken = True
        if self._next is not None:
            self._next.cancel()
        self._ended.set()
        await self._messages.close()

    async def _is_idle_again(self) -> bool:
        """Wait for the other side's end."""
        if self._stream is None or not self._stream.is_ended:
            return False
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(END_TIMEOUT_S):
                while not self._stream.is_at_end:
                    await self._stream.read()
                return True
        return False


class _ExchangeStream:
    """Satisfies `ByteStream`."""

    def __init__(self, messages: MessageSocket, ended: asyncio.Event, *, is_reused: bool) -> None:
        self._messages = messages
        self._ended = ended
        self._is_reused = is_reused
        self._is_closed = False
        self._is_broken = False
        self.is_ended = False
        """Whether the other side was told that the exchange is over."""
        self.is_at_end = False
        """Whether the other side has ended its half."""

    async def read(self) -> bytes:
        while not self.is_at_end:
            match await self._messages.receive():
                case bytes(data) if data:
                    return data
                case bytes():
                    continue
                case str(text) if self._is_reused and is_end(text):
                    self.is_at_end = True
                case None if not self._is_reused:
                    return b""
                case _:
                    self._is_broken = True
                    raise ConnectionError("the exchange broke")
        return b""

    async def write(self, data: bytes) -> None:
        if self._is_closed:
            raise ConnectionError("closed")
        for start in range(0, len(data), MAX_BYTES_FRAME):
            await self._messages.send(data[start : start + MAX_BYTES_FRAME])

    async def close(self) -> None:
        """Nothing may be reading."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._is_reused and not self._is_broken:
                # A side that reads nothing would delay it without end.
                with suppress(OSError, TimeoutError):
                    async with asyncio.timeout(CLOSE_TIMEOUT_S):
                        await self._messages.send(END)
                        self.is_ended = True
        finally:
            self._ended.set()


def is_end(text: str) -> bool:
    try:
        return EXCHANGE_END.decode(text).end
    except msgspec.DecodeError:
        return False


OpenServed = Callable[[OpenAgent], Awaitable[ByteStream]]
"""Connects to an agent. Raises OpenRefused."""


async def serve_exchange(
    messages: MessageSocket, text: str, open_agent: OpenServed, *, is_reused: bool
) -> bool:
    """Serve the exchange that `text` asks for. Whether the socket is idle again; else the caller
    closes it. Raises ConnectionError if the socket broke before the exchange began."""
    try:
        stream = await open_agent(OPEN_AGENT.decode(text))
    except msgspec.DecodeError:
        await messages.send(encode(AgentOpened(error="the request cannot be read")))
        return False
    except OpenRefused as refused:
        await messages.send(encode(refused.reply))
        return False
    try:
        await messages.send(encode(AgentOpened()))
        if is_reused:
            return await _ServedExchange(messages, stream).run()
        await pipe(stream, MessageStream(messages))
        return False
    finally:
        await stream.close()


class _ServedExchange:
    """Copies bytes both ways until both sides have ended the exchange."""

    def __init__(self, messages: MessageSocket, agent: ByteStream) -> None:
        self._messages = messages
        self._agent = agent
        self._is_ending = False
        """Whether the end of this side is being sent, or was sent."""

    async def run(self) -> bool:
        """Whether the exchange ended well on both sides."""
        loop = asyncio.get_running_loop()
        limit = asyncio.timeout(None)
        copying = loop.create_task(self._copy_replies(limit))
        try:
            async with limit:
                if not await self._copy_requests():
                    return False
                if not self._is_ending:
                    copying.cancel()
                    await asyncio.wait({copying})
                    await self._messages.send(END)
                else:
                    await copying
                return True
        except (OSError, TimeoutError):
            return False
        finally:
            copying.cancel()
            await asyncio.wait({copying})

    async def _copy_requests(self) -> bool:
        """Wait for the other side's end. False if the socket was closed instead."""
        is_agent_open = True
        while isinstance(message := await self._messages.receive(), bytes):
            if self._is_ending or not is_agent_open:
                continue
            try:
                async with asyncio.timeout(AGENT_WRITE_TIMEOUT_S):
                    await self._agent.write(message)
            except OSError:  # TimeoutError is one too
                # What the agent has said before it closed is still being copied.
                is_agent_open = False
        return message is not None and is_end(message)

    async def _copy_replies(self, limit: asyncio.Timeout) -> None:
        with suppress(OSError):
            while data := await self._agent.read():
                await self._messages.send(data)
        self._is_ending = True
        with suppress(OSError):
            await self._messages.send(END)
        limit.reschedule(asyncio.get_running_loop().time() + END_TIMEOUT_S)
