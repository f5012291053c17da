"""The client against an impostor: every attack ends with an error."""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from chatd.agent.server.auth import reply_mac
from chatd.clock import SystemClock
from chatd.domain.ports import Clock
from chatd.domain.workspace.agent_api import AgentRefused, AgentUnreachable
from chatd.domain.workspace.entities import Endpoint
from chatd.workspaces.agents.agent_client import (
    MAX_ERROR_CHARS,
    MAX_HELLO_BYTES,
    MIN_POLL_INTERVAL_S,
    AgentClient,
    AgentHello,
    ConnectedAgent,
    handshake,
)
from chatd.workspaces.agents.agent_session import AgentSession, AgentSigner, derive_agent_key
from tests.support.clock import FakeClock
from tests.support.outcomes import present, raised
from tests.workspaces.agent_process import AGENT, SECRET, connector

KEY = derive_agent_key(SECRET, AGENT)
SOON_S = 0.2
WAIT_S = 30.0


class Impostor:
    """One connection: the request that was read, and what to send back."""

    def __init__(self, head: str, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        nonce = present(re.search("nonce=([0-9a-f]+)", head))
        self.nonce = nonce[1]

    def reply(
        self, body: bytes, *, status: int = 200, key: bytes = KEY, nonce: str = "", boot: str = "b"
    ) -> bytes:
        mac = reply_mac(key, nonce=nonce or self.nonce, status=status, boot=boot, body=body)
        head = f"HTTP/1.1 {status} X\r\nChatd-Boot: {boot}\r\nChatd-Mac: {mac}\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()


Trick = Callable[[Impostor], Awaitable[None]]


@asynccontextmanager
async def pretending(place: Path, trick: Trick) -> AsyncGenerator[AgentSession]:
    """A session with an impostor. At the end every connection has been closed."""
    connections: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = present(asyncio.current_task())
        connections.add(task)
        with suppress(OSError, EOFError):
            head = await reader.readuntil(b"\r\n\r\n")
            await trick(Impostor(head.decode(), writer))
            # The impostor sends nothing more; the client must act.
            while await reader.read(1024):
                pass
        writer.transport.abort()

    path = str(place / "socket")
    server = await asyncio.start_unix_server(connected, path)
    signer = AgentSigner(AGENT, KEY, SystemClock().now().timestamp)
    try:
        yield AgentSession(AGENT, Endpoint(kind="unix", path=path), signer)
    finally:
        server.close()
        async with asyncio.timeout(WAIT_S):
            await asyncio.gather(*connections)


def client_of(session: AgentSession, clock: Clock | None = None, *, boot: str = "b") -> AgentClient:
    hello = AgentHello(agent_id=str(AGENT), boot_id=boot)
    return AgentClient(ConnectedAgent(session, AGENT, hello), clock or SystemClock())


async def lost_to(place: Path, trick: Trick, *, within_s: float = WAIT_S) -> AgentUnreachable:
    async with pretending(place, trick) as session:
        with pytest.raises(AgentUnreachable) as lost:
            async with asyncio.timeout(WAIT_S):
                await handshake(session, AGENT, timeout_s=within_s)
        return lost.value


HELLO = msgspec.json.encode({"agent_id": str(AGENT), "boot_id": "b"})
BOAST = msgspec.json.encode(
    {"agent_id": str(AGENT), "boot_id": "b", "directory": "x" * MAX_HELLO_BYTES}
)
"""Too long for a row that is written every ten seconds."""


def sending(reply: Callable[[Impostor], bytes]) -> Trick:
    async def send(client: Impostor) -> None:
        await client.send(reply(client))

    return send


def sending_and_closing(data: bytes) -> Trick:
    async def send(client: Impostor) -> None:
        await client.send(data)
        client.writer.close()

    return send


def flooding(head: bytes, piece: bytes) -> Trick:
    async def flood(client: Impostor) -> None:
        await client.send(head)
        while True:
            await client.send(piece)

    return flood


honest = sending(lambda it: it.reply(HELLO))


async def hang(client: Impostor) -> None:
    del client


async def drip(client: Impostor) -> None:
    await client.send(b"HTTP/1.1 200 X\r\nContent-Length: 1000000\r\n\r\n")
    while True:
        await client.send(b".")
        await SystemClock().sleep(0.001, "drip")


async def test_a_correct_handshake_is_accepted(tmp_path: Path) -> None:
    async with pretending(tmp_path, honest) as session:
        assert (await handshake(session, AGENT)).boot_id == "b"


UNTRUSTED: dict[str, Trick] = {
    "a redirect, which is not followed": sending(
        lambda _: (
            b"HTTP/1.1 307 X\r\nLocation: http://127.0.0.1:1/healthz\r\nContent-Length: 0\r\n\r\n"
        )
    ),
    "another agent with the same key": sending(lambda it: it.reply(HELLO.replace(b"0a1", b"0a2"))),
    "a hello that is too long": sending(lambda it: it.reply(BOAST)),
    "a wrong key": sending(lambda it: it.reply(HELLO, key=b"of another workspace")),
    "a wrong nonce": sending(lambda it: it.reply(HELLO, nonce="0" * 32)),
    "a changed status": sending(lambda it: it.reply(HELLO).replace(b" 200 ", b" 409 ")),
    "a changed boot": sending(lambda it: it.reply(HELLO).replace(b"Boot: b", b"Boot: c")),
    "a changed body": sending(lambda it: it.reply(HELLO).replace(b"{", b"[")),
    "no mac": sending(lambda it: it.reply(HELLO).replace(b"Chatd-Mac", b"X-Mac")),
    "an odd mac": sending(
        lambda it: it.reply(HELLO).replace(b"Chatd-Mac: ", b"Chatd-Mac: \xff\xe9")
    ),
}
LOST: dict[str, Trick] = {
    "endless headers, which are cut off": flooding(
        b"HTTP/1.1 200 X\r\n", b"X-More: and more\r\n" * 512
    ),
    "one endless header, which is cut off": flooding(
        b"HTTP/1.1 200 X\r\nX-More: ", b"and more" * 1024
    ),
    "no reply": sending_and_closing(b""),
    "zeros": sending_and_closing(b"\x00" * 100),
    "another protocol": sending_and_closing(b"SSH-2.0-OpenSSH\r\n"),
    "half a status line": sending_and_closing(b"HTTP/1.1 20"),
}


@pytest.mark.covers("hostile-5", "hostile-7")
@pytest.mark.parametrize("trick", UNTRUSTED.values(), ids=UNTRUSTED)
async def test_an_agent_with_such_a_reply_is_untrusted(tmp_path: Path, trick: Trick) -> None:
    assert (await lost_to(tmp_path, trick)).code == "agent_untrusted"


@pytest.mark.covers("hostile-6")
@pytest.mark.parametrize("trick", LOST.values(), ids=LOST)
async def test_an_agent_with_such_a_reply_counts_as_lost(tmp_path: Path, trick: Trick) -> None:
    assert (await lost_to(tmp_path, trick)).code == "agent_lost"


@pytest.mark.covers("hostile-6")
@pytest.mark.parametrize("framing", [b"Connection: close", b"Content-Length: 99999999999"])
async def test_an_endless_body_is_cut_off(tmp_path: Path, framing: bytes) -> None:
    endless = flooding(b"HTTP/1.1 200 X\r\n" + framing + b"\r\n\r\n", bytes(1 << 20))
    lost = await lost_to(tmp_path, endless)
    assert lost.code == "agent_untrusted"
    assert "longer" in lost.message


@pytest.mark.covers("hostile-6")
@pytest.mark.parametrize("trick", [hang, drip], ids=["silence", "a body that drips"])
async def test_an_agent_that_does_not_finish_its_reply_times_out(
    tmp_path: Path, trick: Trick
) -> None:
    assert "in time" in (await lost_to(tmp_path, trick, within_s=SOON_S)).message


@pytest.mark.covers("hostile-5")
async def test_a_signed_redirect_is_a_refusal(tmp_path: Path) -> None:
    redirect = sending(lambda it: it.reply(b"", status=302))
    async with pretending(tmp_path, redirect) as session:
        assert (await raised(AgentRefused, handshake(session, AGENT))).status == 302


@pytest.mark.parametrize("body", [b"", b"[]", b"\xff", b"{", b'{"agent_id":1}', b'{"x":' * 99_999])
async def test_a_signed_reply_that_cannot_be_decoded_is_an_error(
    tmp_path: Path, body: bytes
) -> None:
    async with pretending(tmp_path, sending(lambda it: it.reply(body))) as session:
        with pytest.raises(AgentUnreachable):
            await handshake(session, AGENT)


@pytest.mark.parametrize("body", [b"", b"no JSON", b"[]", b'{"message":null}', b"\xff"])
async def test_a_refusal_without_a_message_names_its_status(tmp_path: Path, body: bytes) -> None:
    refusal = sending(lambda it: it.reply(body, status=500))
    async with pretending(tmp_path, refusal) as session:
        conn = client_of(session)
        with pytest.raises(AgentRefused) as refused:
            await conn.processes()
    assert refused.value.status == 500
    assert "500" in refused.value.message


async def test_a_refusal_is_clipped_and_an_unknown_code_replaced(tmp_path: Path) -> None:
    """Its code becomes the label of a counter, and a model reads its message."""
    words = iter([("x" * 100_000, "made-up-" * 1000), ("no", "busy"), ("no", None)])

    async def refuse(client: Impostor) -> None:
        message, code = next(words)
        body = msgspec.json.encode({"message": message, "code": code})
        await client.send(client.reply(body, status=400))

    async with pretending(tmp_path, refuse) as session:
        conn = client_of(session)
        told: list[tuple[int, str]] = []
        for _ in range(3):
            with pytest.raises(AgentRefused) as refused:
                await conn.processes()
            told.append((len(refused.value.message), refused.value.code))
    assert told == [
        (MAX_ERROR_CHARS + len(" [cut]"), "agent_refused"),
        (2, "busy"),
        (2, "agent_refused"),
    ]


async def test_a_request_is_repeated_once_for_an_agent_that_keeps_rebooting(tmp_path: Path) -> None:
    asked = 0

    async def reboots(client: Impostor) -> None:
        nonlocal asked
        asked += 1
        hello = HELLO.replace(b'"b"', f'"b{asked}"'.encode())
        await client.send(client.reply(hello, boot=f"b{asked}"))

    async with pretending(tmp_path, reboots) as session:
        conn = client_of(session, boot="b0")
        with pytest.raises(AgentUnreachable):
            await conn.processes()
    assert asked == 3


async def test_an_agent_that_does_not_wait_is_polled_at_an_interval(
    tmp_path: Path, clock: FakeClock
) -> None:
    """Asked to wait for the end of a command, it replies at once, each time, that the command
    still runs."""
    asked = 0

    async def hasty(client: Impostor) -> None:
        nonlocal asked
        asked += 1
        body = {"output": "", "running": True, "exit_code": None, "cursor": 0}
        await client.send(client.reply(msgspec.json.encode(body)))

    async with pretending(tmp_path, hasty) as session, asyncio.timeout(WAIT_S):
        client = client_of(session, clock)
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(client.output("p", wait_s=3 * MIN_POLL_INTERVAL_S))
            for times in (1, 2, 3):
                assert await clock.advance_past("output_poll") == MIN_POLL_INTERVAL_S
                assert asked == times
        assert waiting.result().running
    assert asked == 4


async def test_a_cancelled_call_closes_its_connection_at_once(tmp_path: Path) -> None:
    asked = asyncio.Event()

    async def hang(client: Impostor) -> None:
        asked.set()

    async with (
        pretending(tmp_path, hang) as session,
        asyncio.timeout(WAIT_S),
        asyncio.TaskGroup() as group,
    ):
        task = group.create_task(long_wait(session))
        await asked.wait()
        task.cancel()
    # Leaving the block waits for the fake to see that its connection is closed.


async def long_wait(session: AgentSession) -> None:
    await client_of(session).output("p", wait_s=300)


async def test_an_endpoint_without_a_listener_is_unreachable(tmp_path: Path) -> None:
    missing = Endpoint(kind="unix", path=str(tmp_path / "missing"))
    elsewhere = Endpoint(kind="unix", path=str(tmp_path / "missing"), host_id="there")
    lost = await raised(AgentUnreachable, connector().connect(AGENT, [elsewhere, missing]))
    assert "not connected" in lost.message
    with pytest.raises(AgentUnreachable, match="no such file"):
        await connector().connect(AGENT, [missing])


@pytest.mark.covers("hostile-4")
async def test_a_link_to_another_socket_is_not_followed(tmp_path: Path) -> None:
    async with pretending(tmp_path, honest):
        (tmp_path / "link").symlink_to(tmp_path / "socket")
        (tmp_path / "file").touch()
        for name in ("link", "file"):
            with pytest.raises(AgentUnreachable) as lost:
                await connector().connect(AGENT, [Endpoint(kind="unix", path=str(tmp_path / name))])
            assert lost.value.code == "agent_untrusted"


async def test_a_socket_path_may_be_longer_than_the_system_limit(tmp_path: Path) -> None:
    deep = tmp_path / ("a" * 100) / ("b" * 100)
    deep.mkdir(parents=True)
    async with pretending(tmp_path, honest):
        (tmp_path / "socket").rename(deep / "socket")
        deep_endpoint = Endpoint(kind="unix", path=str(deep / "socket"))
        assert (await connector().connect(AGENT, [deep_endpoint])).hello.boot_id == "b"


async def test_the_next_endpoint_is_tried_after_one_of_another_agent(tmp_path: Path) -> None:
    stranger = UNTRUSTED["a wrong key"]
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    ways = [
        Endpoint(kind="unix", path=str(tmp_path / way / "socket")) for way in ("first", "second")
    ]
    async with pretending(tmp_path / "first", stranger), pretending(tmp_path / "second", honest):
        assert (await connector().connect(AGENT, ways)).hello.boot_id == "b"
