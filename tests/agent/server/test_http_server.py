"""The agent's HTTP server with clients that are slow, invalid, too many or disconnected."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from chatd.agent.errors import AgentError
from chatd.agent.server.agent_server import AgentHttpServer, ConnectionLimits, RequestExchange
from chatd.agent.server.http_messages import AgentHttpReply, RequestHead, error_reply, json_reply
from tests.support.eventually import eventually

TIMEOUT_S = 30.0
SHORT_LIMITS = ConnectionLimits(
    max_head_bytes=2048,
    head_timeout_s=0.2,
    body_timeout_s=0.2,
    write_timeout_s=0.2,
    close_timeout_s=0.1,
)
DEFAULT_LIMITS = ConnectionLimits(max_head_bytes=2048, max_connections=4, close_timeout_s=0.1)


class FakeExchange:
    """Implements `RequestExchange`."""

    def __init__(self, head: RequestHead, office: "FakeDispatcher") -> None:
        self.max_body = 100
        self.is_long_poll = head.path == "/wait"
        self._head = head
        self._office = office

    async def run(self, body: bytes) -> AgentHttpReply:
        if self._head.path in ("/wait", "/act"):
            return await self._office.hold()
        if self._head.path == "/large":
            return AgentHttpReply(200, bytes(16 << 20))
        return json_reply({"path": self._head.path, "body": body.decode()})

    def refuse(self, error: AgentError) -> AgentHttpReply:
        return error_reply(error)


class FakeDispatcher:
    """Implements `RequestDispatcher`."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.released = asyncio.Event()
        self.outcomes: list[str] = []
        self.has_ended = asyncio.Event()

    def begin(self, head: RequestHead) -> RequestExchange:
        if head.path == "/never":
            raise AgentError(401, "no")
        return FakeExchange(head, self)

    async def hold(self) -> AgentHttpReply:
        self.begun.set()
        try:
            await self.released.wait()
        except asyncio.CancelledError:
            self.outcomes.append("cancelled")
            raise
        else:
            self.outcomes.append("done")
        finally:
            self.has_ended.set()
        return json_reply({})


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def ask(self, text: str) -> str:
        self.writer.write(text.encode())
        return await self.reply()

    async def reply(self) -> str:
        """The status and the body of one reply."""
        async with asyncio.timeout(TIMEOUT_S):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
            length = int(head.lower().split("content-length: ")[1].split("\r\n")[0])
            body = await self.reader.readexactly(length)
        return f"{head.split(' ')[1]} {body.decode()}"

    async def ended(self) -> bytes:
        """The bytes received before the server closed the connection."""
        async with asyncio.timeout(TIMEOUT_S):
            with contextlib.suppress(ConnectionError):
                return await self.reader.read()
        return b""


class ServerFixture:
    def __init__(self, path: str, limits: ConnectionLimits) -> None:
        self.path = path
        self.dispatcher = FakeDispatcher()
        self.server = AgentHttpServer(self.dispatcher, limits)
        self._writers: list[asyncio.StreamWriter] = []

    async def connect(self) -> Client:
        reader, writer = await asyncio.open_unix_connection(self.path)
        self._writers.append(writer)
        return Client(reader, writer)

    async def only_one_left(self) -> bool | None:
        return self.server.connection_count == 1 or None

    async def all_there(self) -> bool | None:
        return self.server.connection_count == 4 or None

    async def all_busy(self) -> bool | None:
        return (self.server.connection_count == 4 and not self.server.idle_count) or None

    def abort_clients(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


@pytest.fixture
def limits() -> ConnectionLimits:
    """Overridden by tests with `parametrize`."""
    return DEFAULT_LIMITS


@pytest.fixture
async def fixture(tmp_path: Path, limits: ConnectionLimits) -> AsyncGenerator[ServerFixture]:
    fixture = ServerFixture(str(tmp_path / "socket"), limits)
    await fixture.server.listen_unix(fixture.path)
    try:
        yield fixture
    finally:
        fixture.abort_clients()
        fixture.dispatcher.released.set()
        async with asyncio.timeout(TIMEOUT_S):
            await fixture.server.close()


GET = "GET /{} HTTP/1.1\r\nHost: x\r\n\r\n"


async def test_the_socket_appears_only_when_it_accepts_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor takes the socket's appearance for a ready agent."""
    loop, path = asyncio.get_running_loop(), tmp_path / "socket"
    create = loop.create_unix_server

    async def create_and_look(*args: Any, **options: Any) -> asyncio.AbstractServer:
        server = await create(*args, **options, start_serving=False)  # bound, not listening
        assert not path.exists()
        await server.start_serving()
        return server

    monkeypatch.setattr(loop, "create_unix_server", create_and_look)
    fixture = ServerFixture(str(path), DEFAULT_LIMITS)
    await fixture.server.listen_unix(fixture.path)
    client = await fixture.connect()
    assert await client.ask(GET.format("a")) == '200 {"path":"/a","body":""}'
    fixture.abort_clients()
    await fixture.server.close()


async def test_one_connection_serves_many_requests(fixture: ServerFixture) -> None:
    client = await fixture.connect()
    assert await client.ask(GET.format("a")) == '200 {"path":"/a","body":""}'
    post = "POST /b HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi"
    assert await client.ask(post) == '200 {"path":"/b","body":"hi"}'
    close = "GET /c HTTP/1.1\r\nConnection: close\r\n\r\n"
    assert await client.ask(close) == '200 {"path":"/c","body":""}'
    assert await client.ended() == b""


async def test_pipelined_requests_are_answered_in_order(fixture: ServerFixture) -> None:
    client = await fixture.connect()
    post = "POST /b HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi"
    assert await client.ask(GET.format("a") + post + GET.format("c")) == (
        '200 {"path":"/a","body":""}'
    )
    assert await client.reply() == '200 {"path":"/b","body":"hi"}'
    assert await client.reply() == '200 {"path":"/c","body":""}'


async def test_expect_continue_is_answered(fixture: ServerFixture) -> None:
    client = await fixture.connect()
    client.writer.write(b"POST /b HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
    async with asyncio.timeout(TIMEOUT_S):
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert await client.ask("hi") == '200 {"path":"/b","body":"hi"}'


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        ("nonsense\r\n\r\n", 400),
        ("GET / HTTP/2.0\r\n\r\n", 505),
        ("GET http://elsewhere/ HTTP/1.1\r\n\r\n", 400),
        ("GET /%ff HTTP/1.1\r\n\r\n", 400),
        ("GET /a?b HTTP/1.1\r\n\r\n", 400),
        ("GET /a?b=1&b=2 HTTP/1.1\r\n\r\n", 400),
        ("GET /a HTTP/1.1\r\nA : b\r\n\r\n", 400),
        ("GET /a HTTP/1.1\r\nA: b\r\n c\r\n\r\n", 400),
        ("GET /a HTTP/1.1\r\nA: b\x00\r\n\r\n", 400),
        ("GET /a HTTP/1.1\r\nA: b\nB: c\r\n\r\n", 400),
        ("GET /a HTTP/1.1\r\nA: b\r\na: c\r\n\r\n", 400),
        ("POST /a HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        ("POST /a HTTP/1.1\r\nContent-Length: 1, 2\r\n\r\n", 400),
        ("POST /a HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nhi", 400),
        ("POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n", 411),
        ("POST /a HTTP/1.1\r\nContent-Length: 101\r\n\r\n" + 101 * "x", 413),
        ("GET /a HTTP/1.1\r\n" + "".join(f"A{n}: b\r\n" for n in range(65)) + "\r\n", 431),
        ("GET /a HTTP/1.1\r\nA: " + 3000 * "b" + "\r\n\r\n", 431),
        ("GET /" + 3000 * "b", 431),
        ("GET /never HTTP/1.1\r\n\r\n", 401),
    ],
)
async def test_an_invalid_request_closes_the_connection(
    fixture: ServerFixture, request_: str, status: int
) -> None:
    client = await fixture.connect()
    assert (await client.ask(request_)).startswith(str(status))
    assert await client.ended() == b""
    assert (await (await fixture.connect()).ask(GET.format("a"))).startswith("200")


@pytest.mark.parametrize(
    "beginning",
    ["GET /a HT", "GET /a HTTP/1.1\r\nA: b\r\n", "POST /a HTTP/1.1\r\nContent-Length: 9\r\n\r\nx"],
)
@pytest.mark.parametrize("limits", [SHORT_LIMITS])
async def test_an_unfinished_request_times_out(fixture: ServerFixture, beginning: str) -> None:
    slow, quick = await fixture.connect(), await fixture.connect()
    slow.writer.write(beginning.encode())
    assert (await quick.ask(GET.format("a"))).startswith("200")
    assert await slow.ended() == b""


@pytest.mark.parametrize("limits", [ConnectionLimits(idle_timeout_s=0.1)])
async def test_an_idle_client_is_disconnected(fixture: ServerFixture) -> None:
    assert await (await fixture.connect()).ended() == b""


@pytest.mark.parametrize("limits", [SHORT_LIMITS])
async def test_a_client_that_does_not_read_its_reply_is_disconnected(
    fixture: ServerFixture,
) -> None:
    slow, quick = await fixture.connect(), await fixture.connect()
    slow.writer.write(GET.format("large").encode())
    assert (await quick.ask(GET.format("a"))).startswith("200")
    # The client reads nothing until the server has given up on the reply.
    await eventually(fixture.only_one_left, within_s=TIMEOUT_S)
    assert len(await slow.ended()) < 16 << 20


async def test_connections_over_the_limit_are_refused(fixture: ServerFixture) -> None:
    busy = [await fixture.connect() for _ in range(4)]
    for client in busy:
        client.writer.write(b"GET /a HTTP/1.1\r\nContent-Length: 2\r\n\r\nx")
    await eventually(fixture.all_busy, within_s=TIMEOUT_S)
    fifth = await fixture.connect()
    assert (await fifth.reply()).startswith("503")
    assert await fifth.ended() == b""
    for client in busy:
        assert (await client.ask("y")).startswith("200")


async def test_an_idle_connection_is_closed_for_a_new_one(fixture: ServerFixture) -> None:
    first = await fixture.connect()
    assert (await first.ask(GET.format("a"))).startswith("200")
    others = [await fixture.connect() for _ in range(3)]
    for client in others:
        assert (await client.ask(GET.format("a"))).startswith("200")
    assert (await (await fixture.connect()).ask(GET.format("a"))).startswith("200")
    assert await first.ended() == b""
    for client in others:
        assert (await client.ask(GET.format("a"))).startswith("200")


@pytest.mark.parametrize("begun", [b"GET /a HT", GET.format("never").encode()])
@pytest.mark.parametrize(
    "limits",
    [
        ConnectionLimits(
            max_head_bytes=2048,
            max_connections=4,
            head_timeout_s=TIMEOUT_S,
            close_timeout_s=TIMEOUT_S,
        )
    ],
)
async def test_unverified_connections_do_not_block_others(
    fixture: ServerFixture, begun: bytes
) -> None:
    """Half a request, or a refused one after which the client does not disconnect."""
    hostile = [await fixture.connect() for _ in range(4)]
    for client in hostile:
        client.writer.write(begun)
    await eventually(fixture.all_there, within_s=TIMEOUT_S)
    assert (await (await fixture.connect()).ask(GET.format("a"))).startswith("200")


async def test_a_long_poll_is_cancelled_when_the_client_disconnects(fixture: ServerFixture) -> None:
    client = await fixture.connect()
    client.writer.write(GET.format("wait").encode())
    async with asyncio.timeout(TIMEOUT_S):
        await fixture.dispatcher.begun.wait()
        client.writer.write_eof()
        await fixture.dispatcher.has_ended.wait()
    assert fixture.dispatcher.outcomes == ["cancelled"]
    assert await client.ended() == b""


async def test_an_effect_completes_after_the_client_disconnects(fixture: ServerFixture) -> None:
    client = await fixture.connect()
    client.writer.write(GET.format("act").encode())
    async with asyncio.timeout(TIMEOUT_S):
        await fixture.dispatcher.begun.wait()
        client.writer.transport.abort()
        assert (await (await fixture.connect()).ask(GET.format("a"))).startswith("200")
        assert fixture.dispatcher.outcomes == []
        fixture.dispatcher.released.set()
        await fixture.dispatcher.has_ended.wait()
    assert fixture.dispatcher.outcomes == ["done"]


async def test_close_lets_effects_finish_and_cancels_long_polls(fixture: ServerFixture) -> None:
    acting, waiting, idle = [await fixture.connect() for _ in range(3)]
    assert (await idle.ask(GET.format("a"))).startswith("200")
    waiting.writer.write(GET.format("wait").encode())
    async with asyncio.timeout(TIMEOUT_S):
        await fixture.dispatcher.begun.wait()
        fixture.dispatcher.begun.clear()
        acting.writer.write(GET.format("act").encode())
        await fixture.dispatcher.begun.wait()
        async with asyncio.TaskGroup() as group:
            group.create_task(fixture.server.close(grace_s=TIMEOUT_S))
            await fixture.dispatcher.has_ended.wait()
            assert fixture.dispatcher.outcomes == ["cancelled"]
            fixture.dispatcher.released.set()
            assert await acting.reply() == "200 {}"
    assert fixture.dispatcher.outcomes == ["cancelled", "done"]
    assert await waiting.ended() == await idle.ended() == b""
    with pytest.raises(OSError, match=r"."):
        await fixture.connect()
