"""Connections between replicas: mutual TLS, and messages in frames.

Both sides show the same certificate, whose key derives from the deployment's secret: replicas know
each other without any set-up, and everything between them is encrypted. A frame is its kind, its
length and a text or bytes, so that what passes over a runner's WebSocket also passes here.
"""

import asyncio
import datetime
import hashlib
import hmac
import os
import socket
import ssl
import struct
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from chatd.domain.errors import ChatdError
from chatd.workspaces.tunnels.byte_streams import CLOSE_TIMEOUT_S

MAX_PEER_FRAME_BYTES: Final = 256 * 1024
"""Larger than any message of a runner or to an agent."""
SILENT_PEER_S: Final = 30
"""A replica whose host is gone or cut off for this long has lost its connections."""
_HEAD: Final = struct.Struct("!cI")
_READ_BYTES: Final = 64 * 1024
_TEXT: Final = b"t"
_BYTES: Final = b"b"


class PeerSocket:
    """Satisfies `wire.MessageSocket`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._unread = bytearray()
        """What was received and not yet returned: often more than one message."""
        _notice_lost_hosts(writer.get_extra_info("socket"))

    async def receive(self) -> str | bytes | None:
        unread = self._unread
        try:
            while True:
                if len(unread) >= _HEAD.size:
                    kind, size = _HEAD.unpack_from(unread)
                    if size > MAX_PEER_FRAME_BYTES or kind not in (_TEXT, _BYTES):
                        return None
                    end = _HEAD.size + size
                    if len(unread) >= end:
                        data = bytes(unread[_HEAD.size : end])
                        del unread[:end]
                        return data if kind == _BYTES else data.decode()
                # A reader that is cancelled here has taken nothing.
                if not (more := await self._reader.read(_READ_BYTES)):
                    return None
                unread += more
        except (OSError, UnicodeDecodeError):
            return None

    async def send(self, message: str | bytes) -> None:
        if self._writer.is_closing():
            raise ConnectionError("closed")
        kind, data = (_TEXT, message.encode()) if isinstance(message, str) else (_BYTES, message)
        self._writer.write(_HEAD.pack(kind, len(data)) + data)
        await self._writer.drain()

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Close the connection; the other replica is not sent code and reason."""
        del code, reason
        self._writer.close()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._writer.wait_closed()
        except (OSError, TimeoutError):
            self._writer.transport.abort()


def _notice_lost_hosts(connected: socket.socket) -> None:
    """Keep-alive: without it an idle connection to a host that lost its power stays for hours."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in (
        ("TCP_KEEPIDLE", SILENT_PEER_S // 3),
        ("TCP_KEEPINTVL", SILENT_PEER_S // 6),
        ("TCP_KEEPCNT", 4),
        ("TCP_USER_TIMEOUT", SILENT_PEER_S * 1000),
    ):
        if hasattr(socket, name):  # not on every system
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


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


def peer_tls(secret: bytes, *, server: bool) -> ssl.SSLContext:
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
