"""A loopback HTTP server that plays a model's API from a script, one reply per request.

Owns the transport: gates before any chunk, cuts, silence, resets, kept connections, and notice of
disconnected clients. A subclass overrides `refuse` with the vendor's rules and errors.
"""

import asyncio
import ssl
import struct
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from socket import SO_LINGER, SOL_SOCKET, socket
from typing import Self

import msgspec

WAIT_S = 30


class Gate:
    """The server waits here until the test opens the gate. `reached`: the server has come here."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self._opened = asyncio.Event()

    def open(self) -> None:
        self._opened.set()

    async def pass_through(self) -> None:
        self.reached.set()
        await self._opened.wait()


class Silence:
    """Send nothing more and keep the connection until the client disconnects."""


class Cut:
    """Close the connection in order, before the reply is complete."""


class Reset:
    """Reset the connection."""


class Hangup:
    """Complete the reply, then close the connection."""


class NoReply:
    """Close the connection without any reply. As the first step only."""


Step = bytes | str | Gate | Silence | Cut | Reset | Hangup | NoReply


@dataclass(kw_only=True)
class Reply:
    """With `held` the reply begins when that gate opens."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    steps: tuple[Step, ...] = ()
    held: Gate | None = None


@dataclass(kw_only=True)
class RecordedRequest:
    """A request, and whether it was answered or its client disconnected."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int
    disconnected: asyncio.Event = field(default_factory=asyncio.Event)
    answered: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def json(self) -> dict[str, object]:
        return msgspec.json.decode(self.body, type=dict[str, object])


class FakeServer:
    """Gives the scripted replies in order; without one, the request fails with a 500."""

    content_type = "text/event-stream"

    def __init__(self) -> None:
        self.requests: list[RecordedRequest] = []
        self.disconnected = asyncio.Event()
        self.received = asyncio.Event()
        self.faults: list[BaseException] = []
        self.scripted: deque[Reply] = deque()
        self._connections = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._port = 0
        self._scheme = "http"
        self._server: asyncio.Server | None = None

    @classmethod
    @asynccontextmanager
    async def running(cls, tls: ssl.SSLContext | None = None) -> AsyncGenerator[Self]:
        fake = cls()
        server = await asyncio.start_server(fake._accept, "127.0.0.1", 0, ssl=tls)
        fake._server = server
        fake._port = server.sockets[0].getsockname()[1]
        fake._scheme = "https" if tls else "http"
        try:
            yield fake
        finally:
            server.close()
            for task in list(fake._tasks):
                task.cancel()
            await asyncio.gather(*fake._tasks, return_exceptions=True)
            await server.wait_closed()
        if fake.faults:
            raise fake.faults[0]

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._port}"

    @property
    def connections(self) -> int:
        return self._connections

    async def stop_listening(self) -> None:
        """Refuse new connections from now on."""
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    def script(self, *steps: Step) -> None:
        """Add a successful reply, streamed step by step."""
        self.scripted.append(Reply(steps=steps))

    def reply(
        self, status: int, body: object = b"", headers: Mapping[str, str] | None = None
    ) -> None:
        """Add a reply in one piece; a body that is not bytes is sent as JSON."""
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        kind = "text/html" if data[:1] == b"<" else "application/json"
        self.scripted.append(
            Reply(status=status, headers={"content-type": kind, **(headers or {})}, steps=(data,))
        )

    def answer_with(self, reply: Reply) -> None:
        self.scripted.append(reply)

    def refuse_with(self, status: int, *steps: Step) -> None:
        """Add an error reply, streamed step by step."""
        self.scripted.append(Reply(status=status, steps=steps))

    def refuse(self, request: RecordedRequest) -> Reply | None:
        """The real API's refusal of this request, if it refuses it. For subclasses."""
        del request
        return None

    def answer(self, request: RecordedRequest) -> Reply:
        if (refusal := self.refuse(request)) is not None:
            return refusal
        if self.scripted:
            return self.scripted.popleft()
        return Reply(status=500, steps=(b'{"error":{"message":"nothing is scripted"}}',))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._connections += 1
        number = self._connections
        try:
            while (request := await _read_request(reader, number)) is not None:
                self.requests.append(request)
                self.received.set()
                if not await self._serve(request, reader, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            self.disconnected.set()
        except asyncio.CancelledError:
            pass  # the server is being stopped
        except Exception as error:
            self.faults.append(error)
            raise
        finally:
            writer.close()
            # Even if cancelled: asyncio complains of a connection's task that fails.
            with suppress(ConnectionError, TimeoutError, ssl.SSLError, asyncio.CancelledError):
                await writer.wait_closed()
            self._tasks.discard(task)

    async def _serve(
        self, request: RecordedRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Whether the connection can be used again."""
        sending = asyncio.create_task(self._send(self.answer(request), writer))
        leaving = asyncio.create_task(_wait_disconnected(reader))
        try:
            done, _ = await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if sending in done:
                request.answered.set()
                return sending.result()
            request.disconnected.set()
            self.disconnected.set()
            return False
        finally:
            for task in (sending, leaving):
                task.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)

    async def _send(self, reply: Reply, writer: asyncio.StreamWriter) -> bool:
        if reply.steps and isinstance(reply.steps[0], NoReply):
            return False
        if reply.held is not None:
            await reply.held.pass_through()
        headers = {"content-type": self.content_type, **reply.headers}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"HTTP/1.1 {reply.status} Scripted\r\n{lines}transfer-encoding: chunked\r\n\r\n"
        writer.write(head.encode())
        for step in reply.steps:
            match step:
                case Gate():
                    await writer.drain()
                    await step.pass_through()
                case Silence():
                    await writer.drain()
                    await asyncio.Event().wait()
                case Cut():
                    await writer.drain()
                    return False
                case Reset():
                    await writer.drain()
                    _tear_down(writer)
                    return False
                case Hangup():
                    writer.write(b"0\r\n\r\n")
                    await writer.drain()
                    return False
                case NoReply():
                    raise AssertionError("too late for no reply at all")
                case _:
                    data = step.encode() if isinstance(step, str) else step
                    writer.write(b"%x\r\n%b\r\n" % (len(data), data) if data else b"")
                    await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


async def _read_request(reader: asyncio.StreamReader, connection: int) -> RecordedRequest | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None  # disconnected between two requests
    start, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = start.split(" ", 2)
    headers = {
        name.strip().lower(): value.strip()
        for name, _, value in (line.partition(":") for line in lines if line)
    }
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return RecordedRequest(
        method=method, path=path, headers=headers, body=body, connection=connection
    )


async def _wait_disconnected(reader: asyncio.StreamReader) -> None:
    """Returns when the client disconnects. It must not send while it gets its reply."""
    with suppress(ConnectionError):
        if await reader.read(1):
            raise AssertionError("the client spoke while it was being answered")


def _tear_down(writer: asyncio.StreamWriter) -> None:
    raw = writer.get_extra_info("socket")
    assert isinstance(raw, socket) or hasattr(raw, "setsockopt")
    raw.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
