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
from chatd.workspaces.agents.client import (
    MAX_HELLO_BYTES,
    MIN_POLL_INTERVAL_S,
    ConnectedAgent,
    HttpAgentClient,
    handshake,
)
from chatd.workspaces.agents.identity import AgentSigner, derive_agent_key
from chatd.workspaces.agents.session import AgentSession
from chatd.workspaces.agents.wire import MAX_ERROR_CHARS, AgentHello
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
        yield AgentSession(Endpoint(kind="unix", path=path), signer)
    finally:
        server.close()
        async with asyncio.timeout(WAIT_S):
            await asyncio.gather(*connections)


def client_of(
    session: AgentSession, clock: Clock | None = None, *, boot: str = "b"
) -> HttpAgentClient:
    hello = AgentHello(agent_id=str(AGENT), boot_id=boot)
    return HttpAgentClient(ConnectedAgent(session, AGENT, hello), clock or SystemClock())


async def lost_to(place: Path, trick: Trick, *, within_s: float = WAIT_S) -> AgentUnreachable:
    async with pretending(place, trick) as session:
        with pytest.raises(AgentUnreachable) as lost:
            async with asyncio.timeout(WAIT_S):
                await handshake(session, AGENT, timeout_s=within_s)
        return lost.value


HELLO = msgspec.json.encode({"agent_id": str(AGENT), "boot_id": "b"})


async def test_a_correct_handshake_is_accepted(tmp_path: Path) -> None:
    async def honest(client: Impostor) -> None:
        await client.send(client.reply(HELLO))

    async with pretending(tmp_path, honest) as session:
        assert (await handshake(session, AGENT)).boot_id == "b"


@pytest.mark.covers("hostile-5")
async def test_a_redirect_is_not_followed(tmp_path: Path) -> None:
    async def redirect(client: Impostor) -> None:
        head = b"HTTP/1.1 307 X\r\nLocation: http://127.0.0.1:1/healthz\r\n"
        await client.send(head + b"Content-Length: 0\r\n\r\n")

    assert (await lost_to(tmp_path, redirect)).code == "agent_untrusted"


@pytest.mark.covers("hostile-5")
async def test_a_signed_redirect_is_a_refusal(tmp_path: Path) -> None:
    async def redirect(client: Impostor) -> None:
        await client.send(client.reply(b"", status=302))

    async with pretending(tmp_path, redirect) as session:
        with pytest.raises(AgentRefused) as refused:
            await handshake(session, AGENT)
    assert refused.value.status == 302


@pytest.mark.covers("hostile-6")
@pytest.mark.parametrize("framing", [b"Connection: close", b"Content-Length: 99999999999"])
async def test_an_endless_body_is_cut_off(tmp_path: Path, framing: bytes) -> None:
    async def endless(client: Impostor) -> None:
        await client.send(b"HTTP/1.1 200 X\r\n" + framing + b"\r\n\r\n")
        while True:
            await client.send(bytes(1 << 20))

    lost = await lost_to(tmp_path, endless)
    assert lost.code == "agent_untrusted"
    assert "longer" in lost.message


@pytest.mark.covers("hostile-6")
async def test_endless_headers_are_cut_off(tmp_path: Path) -> None:
    async def endless(client: Impostor) -> None:
        await client.send(b"HTTP/1.1 200 X\r\n")
        while True:
            await client.send(b"X-More: and more\r\n" * 512)

    assert (await lost_to(tmp_path, endless)).code == "agent_lost"


async def test_one_endless_header_is_cut_off(tmp_path: Path) -> None:
    async def endless(client: Impostor) -> None:
        await client.send(b"HTTP/1.1 200 X\r\nX-More: ")
        while True:
            await client.send(b"and more" * 1024)

    assert (await lost_to(tmp_path, endless)).code == "agent_lost"


@pytest.mark.covers("hostile-6")
async def test_a_silent_agent_times_out(tmp_path: Path) -> None:
    async def hang(client: Impostor) -> None:
        del client

    lost = await lost_to(tmp_path, hang, within_s=SOON_S)
    assert "in time" in lost.message


@pytest.mark.covers("hostile-6")
async def test_a_body_that_drips_times_out(tmp_path: Path) -> None:
    async def drip(client: Impostor) -> None:
        await client.send(b"HTTP/1.1 200 X\r\nContent-Length: 1000000\r\n\r\n")
        while True:
            await client.send(b".")
            await SystemClock().sleep(0.001, "drip")

    lost = await lost_to(tmp_path, drip, within_s=SOON_S)
    assert "in time" in lost.message


FORGERIES: dict[str, Callable[[Impostor], bytes]] = {
    "key": lambda fake: fake.reply(HELLO, key=b"of another workspace"),
    "nonce": lambda fake: fake.reply(HELLO, nonce="0" * 32),
    "status": lambda fake: fake.reply(HELLO).replace(b" 200 ", b" 409 "),
    "boot": lambda fake: fake.reply(HELLO).replace(b"Boot: b", b"Boot: c"),
    "body": lambda fake: fake.reply(HELLO).replace(b"{", b"["),
    "no mac": lambda fake: fake.reply(HELLO).replace(b"Chatd-Mac", b"X-Mac"),
    "odd mac": lambda fake: fake.reply(HELLO).replace(b"Chatd-Mac: ", b"Chatd-Mac: \xff\xe9"),
}


@pytest.mark.covers("hostile-7")
@pytest.mark.parametrize("forged", FORGERIES)
async def test_a_reply_with_a_wrong_mac_is_untrusted(tmp_path: Path, forged: str) -> None:
    async def send_forged(client: Impostor) -> None:
        await client.send(FORGERIES[forged](client))

    assert (await lost_to(tmp_path, send_forged)).code == "agent_untrusted"


@pytest.mark.covers("hostile-7")
async def test_another_agent_with_the_same_key_is_untrusted(
    tmp_path: Path,
) -> None:
    async def another(client: Impostor) -> None:
        await client.send(client.reply(HELLO.replace(b"0a1", b"0a2")))

    async with pretending(tmp_path, another) as session:
        with pytest.raises(AgentUnreachable) as lost:
            await handshake(session, AGENT)
    assert lost.value.code == "agent_untrusted"


@pytest.mark.parametrize("garbage", [b"", b"\x00" * 100, b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 20"])
async def test_a_reply_that_is_not_http_counts_as_a_lost_agent(
    tmp_path: Path, garbage: bytes
) -> None:
    async def babble(client: Impostor) -> None:
        await client.send(garbage)
        client.writer.close()

    assert (await lost_to(tmp_path, babble)).code == "agent_lost"


@pytest.mark.parametrize("body", [b"", b"[]", b"\xff", b"{", b'{"agent_id":1}', b'{"x":' * 99_999])
async def test_a_signed_reply_that_cannot_be_decoded_is_an_error(
    tmp_path: Path, body: bytes
) -> None:
    async def nonsense(client: Impostor) -> None:
        await client.send(client.reply(body))

    async with pretending(tmp_path, nonsense) as session:
        with pytest.raises(AgentUnreachable):
            await handshake(session, AGENT)


@pytest.mark.parametrize("body", [b"", b"no JSON", b"[]", b'{"message":null}', b"\xff"])
async def test_a_refusal_without_a_message_names_its_status(tmp_path: Path, body: bytes) -> None:
    async def refuse(client: Impostor) -> None:
        await client.send(client.reply(body, status=500))

    async with pretending(tmp_path, refuse) as session:
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


async def test_a_hello_that_is_too_long_is_untrusted(tmp_path: Path) -> None:
    """It is written into a row every ten seconds."""

    async def boast(client: Impostor) -> None:
        hello = {"agent_id": str(AGENT), "boot_id": "b", "directory": "x" * MAX_HELLO_BYTES}
        await client.send(client.reply(msgspec.json.encode(hello)))

    assert (await lost_to(tmp_path, boast)).code == "agent_untrusted"


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
    assert "no such file" in lost.message
    with pytest.raises(AgentUnreachable) as nowhere:
        await connector().connect(AGENT, [elsewhere])
    assert nowhere.value.code == "agent_elsewhere"


@pytest.mark.covers("hostile-4")
async def test_a_link_to_another_socket_is_not_followed(tmp_path: Path) -> None:
    async def honest(client: Impostor) -> None:
        await client.send(client.reply(HELLO))

    async with pretending(tmp_path, honest):
        (tmp_path / "link").symlink_to(tmp_path / "socket")
        (tmp_path / "file").touch()
        for name in ("link", "file"):
            with pytest.raises(AgentUnreachable) as lost:
                await connector().connect(AGENT, [Endpoint(kind="unix", path=str(tmp_path / name))])
            assert lost.value.code == "agent_untrusted"


async def test_a_socket_path_may_be_longer_than_the_system_limit(tmp_path: Path) -> None:
    async def honest(client: Impostor) -> None:
        await client.send(client.reply(HELLO))

    deep = tmp_path / ("a" * 100) / ("b" * 100)
    deep.mkdir(parents=True)
    async with pretending(tmp_path, honest):
        (tmp_path / "socket").rename(deep / "socket")
        deep_endpoint = Endpoint(kind="unix", path=str(deep / "socket"))
        assert (await connector().connect(AGENT, [deep_endpoint])).hello.boot_id == "b"


async def test_the_next_endpoint_is_tried_after_one_of_another_agent(tmp_path: Path) -> None:
    async def stranger(client: Impostor) -> None:
        await client.send(client.reply(HELLO, key=b"of another workspace"))

    async def honest(client: Impostor) -> None:
        await client.send(client.reply(HELLO))

    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    ways = [
        Endpoint(kind="unix", path=str(tmp_path / way / "socket")) for way in ("first", "second")
    ]
    async with pretending(tmp_path / "first", stranger), pretending(tmp_path / "second", honest):
        assert (await connector().connect(AGENT, ways)).hello.boot_id == "b"
