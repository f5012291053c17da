"""The bus over a real nats-server that is down, dies, freezes, refuses or is slow."""

import asyncio
import datetime
import ipaddress
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from uuid import UUID

import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from msgspec.structs import replace

from chatd.aio import Backoff
from chatd.clock import SystemClock
from chatd.domain.chat.row import Hint, encode_hint
from chatd.domain.errors import Unavailable
from chatd.domain.ids import ChatId
from chatd.domain.ports import Clock, Env
from chatd.store.database.nats import NatsBus, NatsFault, measure_nats, parse_nats_url
from chatd.store.database.notifications import HintPublisher, PublishConfig
from tests.support.clock import FakeClock
from tests.support.engine_rig import Events, change_id
from tests.support.factories import chat
from tests.support.nats import NatsProcess, nats_server

SOON = Backoff(first_delay_s=0.01, max_delay_s=0.05)
PASSWORD = "hunter2"
WITH_USER = f'authorization {{ users = [ {{ user: ada, password: "{PASSWORD}" }} ] }}'
MUTE = """authorization { users = [
    { user: ada, password: "hunter2", permissions: { subscribe: "chatd", publish: "other" } } ] }"""


class BusRig:
    """A bus with its publisher, as a replica has them, and what they have reported."""

    def __init__(self, url: str, clock: Clock) -> None:
        self.hints: asyncio.Queue[Hint] = asyncio.Queue()
        self.dirty: asyncio.Queue[None] = asyncio.Queue()
        self.events = Events()
        env = Env(
            clock=clock, emit=self.events, new_id=lambda: UUID(int=1), new_change_id=change_id
        )
        self.bus = NatsBus(
            replace(parse_nats_url(url), backoff=SOON, pong_timeout_s=0.3),
            env,
            on_hint=self.hints.put_nowait,
            on_connected=lambda: self.dirty.put_nowait(None),
        )
        self.publisher = HintPublisher(self.bus, PublishConfig(backoff=SOON), clock)

    def publish(self, version: int) -> None:
        self.publisher.publish(hint(version))

    async def hears_of(self, version: int) -> None:
        """Wait for this version; older ones may come first."""
        async with asyncio.timeout(30):
            while (await self.hints.get()).snapshot_version < version:
                pass

    async def is_told_that_all_is_dirty(self) -> None:
        async with asyncio.timeout(30):
            await self.dirty.get()

    async def loses(self) -> str:
        return str((await self.events.wait("notifications_lost"))["reason"])


def hint(version: int) -> Hint:
    return Hint.of(chat(id=ChatId(UUID(int=7)), snapshot_version=version))


def encoded(version: int) -> str:
    return encode_hint(hint(version))


@asynccontextmanager
async def bus_on(
    url: str, clock: Clock | None = None, *, is_reachable: bool = True
) -> AsyncGenerator[BusRig]:
    rig = BusRig(url, clock or SystemClock())
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(rig.bus.run()), group.create_task(rig.publisher.run())]
        try:
            if is_reachable:
                await rig.is_told_that_all_is_dirty()
            yield rig
        finally:
            for task in tasks:
                task.cancel()


@pytest.fixture
async def nats(tmp_path: Path) -> AsyncGenerator[NatsProcess]:
    async with nats_server(tmp_path) as server:
        yield server


async def test_hints_arrive_at_the_other_replicas_in_order_and_not_at_their_sender(
    nats: NatsProcess,
) -> None:
    url = f"nats://{nats.address}"
    async with bus_on(url) as one, bus_on(url) as two, bus_on(f"{url}/other") as stranger:
        for version in (1, 2, 3):
            await one.bus.send([encoded(version)])
        async with asyncio.timeout(30):
            heard = [(await two.hints.get()).snapshot_version for _ in range(3)]
        assert heard == [1, 2, 3]
        two.publish(9)
        await one.hears_of(9)
        assert one.hints.empty()
        assert two.hints.empty()
        assert stranger.hints.empty()
        assert one.publisher.dropped_hints == two.publisher.dropped_hints == 0


@pytest.mark.promise("P2")
async def test_a_server_that_is_down_at_the_start_is_used_when_it_comes(tmp_path: Path) -> None:
    async with nats_server(tmp_path, starts=False) as nats:
        url = f"nats://{nats.address}"
        async with bus_on(url, is_reachable=False) as one, bus_on(url, is_reachable=False) as two:
            assert "onnect" in await one.loses()
            assert not one.bus.connected.is_set()
            one.publish(1)
            await nats.start()
            await two.is_told_that_all_is_dirty()
            one.publish(2)
            await two.hears_of(2)


async def test_a_server_that_dies_and_comes_back_makes_all_dirty_and_gets_what_waited(
    nats: NatsProcess,
) -> None:
    url = f"nats://{nats.address}"
    async with bus_on(url) as one, bus_on(url) as two:
        await nats.kill()
        await one.loses()
        await two.loses()
        assert not one.bus.connected.is_set()
        await nats.start()
        await two.is_told_that_all_is_dirty()
        one.publish(5)
        await two.hears_of(5)
        assert one.publisher.dropped_hints == 0


async def test_without_a_connection_a_hint_is_kept_by_its_publisher(tmp_path: Path) -> None:
    async with nats_server(tmp_path, starts=False) as nats:
        rig = BusRig(f"nats://{nats.address}", SystemClock())
        with pytest.raises(Unavailable, match="not connected"):
            await rig.bus.send([encoded(1)])


async def test_a_server_that_answers_no_ping_is_left(nats: NatsProcess, clock: FakeClock) -> None:
    async with bus_on(f"nats://{nats.address}", clock) as one:
        await clock.advance_past("nats_ping")
        await clock.wait_for_sleeper("nats_ping")
        assert one.bus.connected.is_set()
        await nats.freeze()
        await clock.advance_past("nats_ping")
        assert await one.loses() == "The NATS server did not answer a ping."


async def test_a_server_that_takes_no_hints_is_left_and_they_are_sent_again(
    nats: NatsProcess, clock: FakeClock
) -> None:
    async with bus_on(f"nats://{nats.address}", clock) as one:
        await nats.freeze()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await one.bus.send([encoded(1)])
        one.bus.disconnect()
        assert await one.loses() == "The NATS server did not answer in time."


async def test_a_replica_that_reads_too_slowly_is_disconnected_and_reads_everything_again(
    tmp_path: Path,
) -> None:
    """nats-server drops a consumer when more than max_pending waits for it."""
    config = 'max_pending: 40000\nmax_payload: 20000\nwrite_deadline: "1s"'
    async with nats_server(tmp_path, config) as nats, relay(nats) as held:
        url = f"nats://{nats.address}"
        async with bus_on(f"nats://127.0.0.1:{held.port}") as slow, bus_on(url) as one:
            held.reads.clear()
            # More than max_pending and the buffers of the sockets in between.
            for _ in range(20):
                await one.bus.send(["x" * 1000] * 1000)
            held.reads.set()
            await slow.loses()
            await slow.is_told_that_all_is_dirty()
            one.publish(3)
            await slow.hears_of(3)


async def test_what_is_no_hint_is_ignored(nats: NatsProcess) -> None:
    url = f"nats://{nats.address}"
    async with bus_on(url) as one:
        reader, writer = await asyncio.open_connection("127.0.0.1", nats.port)
        writer.write(b"CONNECT {}\r\n")
        for payload in (b"", b"{", b"\xff\xfe", b'{"c":1}', b"x" * 900_000):
            writer.write(b"PUB chatd %d\r\n%b\r\n" % (len(payload), payload))
        writer.write(b"PUB chatd %d\r\n%b\r\n" % (len(encoded(4)), encoded(4).encode()))
        await writer.drain()
        await one.hears_of(4)
        assert one.hints.empty()
        writer.close()
        del reader


async def test_a_hint_that_is_too_long_is_refused_and_the_next_one_sent(nats: NatsProcess) -> None:
    url = f"nats://{nats.address}"
    async with bus_on(url) as one, bus_on(url) as two:
        with pytest.raises(NatsFault):
            await one.bus.send(["x" * 2000])
        one.publish(2)
        await two.hears_of(2)
        assert one.bus.connected.is_set()


@pytest.mark.promise("P13")
@pytest.mark.parametrize(
    ("config", "login", "reason"),
    [
        (WITH_USER, "ada:wrong-hunter2@", "Authorization Violation"),
        (WITH_USER, "", "Authorization Violation"),
        (WITH_USER, "hunter2@", "Authorization Violation"),
        (MUTE, "ada:hunter2@", "Permissions Violation for Publish"),
        ("max_payload: 500", "", "its max_payload is 500, and 1024 are needed"),
    ],
    ids=["a wrong password", "no user", "a token", "may not publish", "short messages"],
)
async def test_a_refusal_is_reported_without_the_password(
    tmp_path: Path, config: str, login: str, reason: str
) -> None:
    async with nats_server(tmp_path, config) as nats:
        url = f"nats://{login}{nats.address}"
        async with bus_on(url, is_reachable=False) as one:
            assert reason in await one.loses()
            assert not one.bus.connected.is_set()
            assert one.dirty.empty()
            assert "hunter2" not in repr(one.events.seen)
        (found,) = (await measure_nats(parse_nats_url(url))).values()
        assert isinstance(found, str)
        assert reason in found


@pytest.mark.parametrize(
    ("config", "login"),
    [(WITH_USER, f"ada:{PASSWORD}@"), ('authorization { token: "s%cret" }', "s%25cret@")],
    ids=["a password", "a token"],
)
async def test_a_user_with_a_password_or_a_token_connects(
    tmp_path: Path, config: str, login: str
) -> None:
    async with nats_server(tmp_path, config) as nats, bus_on(f"nats://{login}{nats.address}"):
        pass


async def test_the_next_server_of_the_list_is_used(tmp_path: Path, nats: NatsProcess) -> None:
    (tmp_path / "dead").mkdir()
    async with nats_server(tmp_path / "dead", starts=False) as dead:
        url = f"nats://{dead.address},{nats.address}"
        async with bus_on(url) as one:
            shown = await one.events.wait("notifications_connected")
            assert shown["server"] == f"nats://{nats.address}"
        measured = await measure_nats(parse_nats_url(url))
        assert isinstance(measured[f"nats://{dead.address}"], str)
        assert isinstance(measured[f"nats://{nats.address}"], float)


async def test_a_server_of_another_protocol_is_named_as_such() -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example.com ESMTP\r\n")
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as other:
        port = other.sockets[0].getsockname()[1]
        async with bus_on(f"nats://127.0.0.1:{port}", is_reachable=False) as one:
            assert await one.loses() == "This is not a NATS server."


# TLS


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, str]:
    """A file with a certificate for 127.0.0.1, and the server's configuration with it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "nats in a test")])
    now = SystemClock().now()
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    public, private = tmp_path / "nats.pem", tmp_path / "nats.key"
    public.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return public, f'tls {{ cert_file: "{public}", key_file: "{private}" }}'


@pytest.mark.parametrize("scheme", ["tls", "nats"])
async def test_hints_travel_over_tls(
    tmp_path: Path, certificate: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    """nats:// too, if the server demands TLS."""
    authority, config = certificate
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    async with nats_server(tmp_path, config) as nats:
        url = f"{scheme}://{nats.address}"
        async with bus_on(url) as one, bus_on(url) as two:
            one.publish(1)
            await two.hears_of(1)


@pytest.mark.parametrize("scheme", ["tls", "nats"])
async def test_hints_travel_on_the_event_loop_of_the_server(
    tmp_path: Path, certificate: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    """`chatd serve` runs on uvloop, whose transports are others."""
    authority, config = certificate
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))

    async def exchange(url: str) -> None:
        async with bus_on(url) as one, bus_on(url) as two:
            one.publish(1)
            await two.hears_of(1)

    def run(url: str) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(exchange(url))

    async with nats_server(tmp_path, config if scheme == "tls" else "") as nats:
        await asyncio.to_thread(run, f"{scheme}://{nats.address}")


@pytest.mark.promise("P13")
async def test_no_password_is_sent_to_a_server_without_a_trusted_certificate(
    tmp_path: Path, certificate: tuple[Path, str]
) -> None:
    _, config = certificate
    async with (
        nats_server(tmp_path, config) as nats,
        bus_on(f"tls://ada:hunter2@{nats.address}", is_reachable=False) as one,
    ):
        assert "certificate verify failed" in await one.loses()


async def test_a_server_without_tls_is_refused_where_tls_is_demanded(nats: NatsProcess) -> None:
    async with bus_on(f"tls://{nats.address}", is_reachable=False) as one:
        assert await one.loses() == "The NATS server offers no TLS, which tls:// demands."


class HeldRelay:
    """Passes bytes to the server, and back while `reads` is set."""

    def __init__(self, nats: NatsProcess) -> None:
        self.reads = asyncio.Event()
        self.reads.set()
        self.port = 0
        self._nats = nats
        self._writers: list[asyncio.StreamWriter] = []

    async def link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._nats.port)
        self._writers += writer, up_writer
        always = asyncio.Event()
        always.set()
        with suppress(ConnectionError, asyncio.CancelledError):
            await asyncio.gather(
                _pump(reader, up_writer, always), _pump(up_reader, writer, self.reads)
            )

    def close(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passes: asyncio.Event
) -> None:
    """The end of one direction ends both."""
    while True:
        await passes.wait()
        if not (data := await reader.read(65536)):
            raise ConnectionError
        writer.write(data)
        await writer.drain()


@asynccontextmanager
async def relay(nats: NatsProcess) -> AsyncGenerator[HeldRelay]:
    held = HeldRelay(nats)

    async def link(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await held.link(reader, writer)
        finally:
            held.close()

    async with await asyncio.start_server(link, "127.0.0.1", 0) as server:
        held.port = server.sockets[0].getsockname()[1]
        try:
            yield held
        finally:
            held.close()
