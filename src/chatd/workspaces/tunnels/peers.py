"""Byte streams between replicas.

A replica connects to the one that reaches a runner, names the agent in one line of JSON, and gets
one line back; then bytes follow. Both sides show the same certificate, whose key derives from the
deployment's secret: replicas know each other without any set-up, and everything between them is
encrypted. Nothing is sent to an agent before the reply, so a refused stream is always safe to open
elsewhere.
"""

import asyncio
import datetime
import hashlib
import hmac
import logging
import os
import socket
import ssl
import tempfile
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final
from uuid import UUID

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from msgspec import Struct

from chatd.domain.errors import ChatdError
from chatd.domain.ports import Clock
from chatd.domain.workspace.agent_api import (
    AgentUnreachable,
    ConnectFailed,
    RunnerDisconnected,
)
from chatd.domain.workspace.entities import AgentId, Endpoint
from chatd.log_event import LogEvent
from chatd.workspaces.tunnels.byte_streams import ByteStream, SocketStream, pipe

log = logging.getLogger(__name__)

PEER_CONNECT_TIMEOUT_S: Final = 3.0
PEER_REPLY_TIMEOUT_S: Final = 12.0
"""Longer than the other replica waits for the runner."""
READY_PEER_STREAMS: Final = 4
READY_PEER_S: Final = 20.0
"""How long a connection that was made in advance is used. The other replica waits longer."""
FIRST_LINE_TIMEOUT_S: Final = 30.0
MAX_PEER_STREAMS: Final = 512


class PeerRequest(Struct, frozen=True, kw_only=True):
    """The first line: the agent to reach, at an endpoint of this runner."""

    agent_id: UUID
    endpoint: Endpoint


class PeerReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    error: str = ""
    unknown: bool = False
    """The replica does not reach this runner: ask another one."""
    away: bool = False
    """The runner does not answer; it may come back."""


_REQUEST: Final = msgspec.json.Decoder(PeerRequest)
_REPLY: Final = msgspec.json.Decoder(PeerReply)


class PeerUnknown(ConnectFailed):
    """The replica does not reach the runner, or cannot be reached itself: ask another one."""


def peer_certificate(secret: bytes) -> tuple[bytes, bytes]:
    """The certificate and its key, as PEM: the same for the same secret."""
    seed = hmac.digest(secret, b"chatd peers", hashlib.sha256)
    key = Ed25519PrivateKey.from_private_bytes(seed)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "chatd replica")])
    # Clocks of hosts may be wrong, and the secret is what is trusted.
    start = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    serial = int.from_bytes(hashlib.sha256(seed).digest()[:15], "big") | 1
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(start)
        .not_valid_after(start.replace(year=2120))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, None)
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return certificate.public_bytes(Encoding.PEM), private


def _tls(secret: bytes, *, server: bool) -> ssl.SSLContext:
    certificate, key = peer_certificate(secret)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=certificate.decode())
    # `ssl` reads keys from files only.
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "peer.pem")
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(certificate + key)
        context.load_cert_chain(path)
    return context


class PeerDialler:
    """Keeps connections ready for replicas that were used lately, because a TLS handshake takes
    longer than the exchange. One that the other replica has closed meanwhile is not used."""

    def __init__(self, secret: bytes, clock: Clock) -> None:
        self._tls = _tls(secret, server=False)
        self._clock = clock
        self._ready: dict[str, deque[tuple[float, SocketStream]]] = {}
        self._preparing: set[asyncio.Task[None]] = set()

    async def open(self, address: str, agent_id: AgentId, endpoint: Endpoint) -> ByteStream:
        """Raises PeerUnknown, RunnerDisconnected if that replica waits for the runner in vain, or
        ConnectFailed if it reaches the runner and not the agent."""
        ready = await self._take_ready(address)
        stream: ByteStream | None = None
        if ready is not None:
            with suppress(PeerUnknown):  # It was closed in this moment, or the replica restarted.
                stream = await self._ask(ready, address, agent_id, endpoint)
        if stream is None:
            stream = await self._ask(await self._connect(address), address, agent_id, endpoint)
        if len(self._ready.get(address, ())) + len(self._preparing) < READY_PEER_STREAMS:
            preparing = asyncio.get_running_loop().create_task(self._prepare(address))
            self._preparing.add(preparing)
            preparing.add_done_callback(self._preparing.discard)
        return stream

    async def close(self) -> None:
        for preparing in self._preparing:
            preparing.cancel()
        ready, self._ready = self._ready, {}
        streams = [stream for each in ready.values() for _, stream in each]
        await asyncio.gather(*(stream.close() for stream in streams))

    async def _take_ready(self, address: str) -> SocketStream | None:
        waiting = self._ready.get(address, deque[tuple[float, SocketStream]]())
        while waiting:
            until, stream = waiting.popleft()
            if until > self._clock.monotonic() and not stream.is_at_end:
                return stream
            await stream.close()
        self._ready.pop(address, None)
        return None

    async def _prepare(self, address: str) -> None:
        with suppress(PeerUnknown):
            stream = await self._connect(address)
            until = self._clock.monotonic() + READY_PEER_S
            self._ready.setdefault(address, deque()).append((until, stream))

    async def _connect(self, address: str) -> SocketStream:
        host, _, port = address.rpartition(":")
        try:
            async with asyncio.timeout(PEER_CONNECT_TIMEOUT_S):
                pair = await asyncio.open_connection(
                    host.strip("[]"), int(port), ssl=self._tls, server_hostname="chatd"
                )
        except (OSError, ValueError, TimeoutError) as error:
            text = f"The server at {address} cannot be reached ({type(error).__name__})."
            raise PeerUnknown(text) from None
        return SocketStream(*pair)

    async def _ask(
        self, stream: SocketStream, address: str, agent_id: AgentId, endpoint: Endpoint
    ) -> ByteStream:
        try:
            async with asyncio.timeout(PEER_REPLY_TIMEOUT_S):
                request = PeerRequest(agent_id=agent_id, endpoint=endpoint)
                await stream.write(msgspec.json.encode(request) + b"\n")
                reply = _REPLY.decode(await stream.read_line())
        except (OSError, TimeoutError, msgspec.DecodeError):
            await stream.close()
            raise PeerUnknown(f"The server at {address} does not answer.") from None
        except BaseException:
            await stream.close()
            raise
        if reply.error:
            await stream.close()
            if reply.away:
                raise RunnerDisconnected(reply.error)
            raise (PeerUnknown if reply.unknown else ConnectFailed)(reply.error)
        return stream


OpenHere = Callable[[AgentId, Endpoint], Awaitable[ByteStream]]
"""Open a stream to an agent without another replica. Raises PeerUnknown and AgentUnreachable."""


@asynccontextmanager
async def listen_to_peers(
    listening: socket.socket, secret: bytes, open_here: OpenHere
) -> AsyncGenerator[None]:
    """Serve streams to other replicas. At the end streams in progress are aborted."""
    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        try:
            if len(serving) <= MAX_PEER_STREAMS:
                await _serve_peer(SocketStream(reader, writer), open_here)
        finally:
            serving.discard(task)
            writer.close()

    server = await asyncio.start_server(
        serve,
        sock=listening,
        ssl=_tls(secret, server=True),
        ssl_handshake_timeout=PEER_CONNECT_TIMEOUT_S,
    )
    try:
        yield
    finally:
        server.close()
        for task in tuple(serving):
            task.cancel()
        if serving:
            await asyncio.wait(tuple(serving))


async def _serve_peer(peer: SocketStream, open_here: OpenHere) -> None:
    stream: ByteStream | None = None
    try:
        async with asyncio.timeout(FIRST_LINE_TIMEOUT_S):
            request = _REQUEST.decode(await peer.read_line())
        async with asyncio.timeout(PEER_REPLY_TIMEOUT_S):
            try:
                stream = await open_here(AgentId(request.agent_id), request.endpoint)
                reply = PeerReply()
            except AgentUnreachable as error:
                reply = PeerReply(
                    error=error.message,
                    unknown=isinstance(error, PeerUnknown),
                    away=isinstance(error, RunnerDisconnected),
                )
            await peer.write(msgspec.json.encode(reply) + b"\n")
    except (OSError, TimeoutError, msgspec.DecodeError, UnicodeDecodeError):
        if stream is not None:
            await stream.close()
        return
    except BaseException:
        if stream is not None:
            await stream.close()
        raise
    if stream is not None:
        await pipe(peer, stream)


def bind_peer_address(address: str) -> socket.socket:
    """Listen on `host:port`; port 0 takes a free one. A host that is a name is listened for on all
    addresses, because it may be one that only others see. Raises ChatdError."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        number = int(port)
        listening = socket.create_server(
            (host if _is_address(host) else "", number),
            family=socket.AF_INET6 if ":" in host else socket.AF_INET,
            reuse_port=False,
        )
    except (OSError, ValueError, OverflowError) as error:
        raise ChatdError(
            f"server.peer_address: cannot listen on {address!r}: {error}. It is the host and port"
            " at which other replicas reach this one, such as 10.0.0.2:7871.",
            code="settings",
        ) from None
    listening.settimeout(0)
    return listening


def _is_address(host: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError):
            socket.inet_pton(family, host)
            return True
    return False


def log_peer_refused(address: str, reason: str) -> None:
    fields = {"address": address}
    log.warning(LogEvent(event="peer_unreachable", fields=fields, explanation=reason))
