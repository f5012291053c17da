"""TLS that ends in the proxy: streams over connections that are open already, and the certificates
that a workspace trusts for the hosts with a credential.

Each workspace has an authority of its own. Its key stays outside of the workspace, in a file that
only the process of the proxy reads; the workspace sees the certificate, alone and together with the
roots of this host.
"""

import asyncio
import datetime
import ipaddress
import os
import ssl
import tempfile
from base64 import b64encode
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from chatd.domain.ports import Clock

TLS_CHUNK_BYTES: Final = 64 * 1024
MAX_HOST_CONTEXTS: Final = 64
HOST_CERTIFICATE_S: Final = 24 * 3600.0
"""A certificate for a host is used this long, and valid for a week."""
SYSTEM_ROOTS: Final = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
MAX_ROOTS_BYTES: Final = 4 * 1024 * 1024
_PROTOCOLS: Final = ["http/1.1"]
_YEARS: Final = 20


class TlsStream:
    """TLS over an open connection, as the server or, with `host`, as the client. `first` are bytes
    of the other side that were read already. Reads and writes like a pair of asyncio's streams."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        context: ssl.SSLContext,
        *,
        host: str | None = None,
        first: bytes = b"",
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._incoming.write(first)
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=host is None, server_hostname=host
        )

    @property
    def transport(self) -> asyncio.WriteTransport:
        return self._writer.transport

    async def handshake(self) -> None:
        """Raises ssl.SSLError, OSError."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self.drain()
                await self._receive()
            except ssl.SSLError:
                with suppress(OSError):
                    await self.drain()  # the alert
                raise
            else:
                await self.drain()
                return

    async def read(self, size: int = TLS_CHUNK_BYTES) -> bytes:
        """Empty at the end. Raises OSError, even if the connection ends without TLS saying so."""
        while True:
            try:
                return self._tls.read(size)
            except ssl.SSLWantReadError:
                await self.drain()
                await self._receive()
            except ssl.SSLZeroReturnError:
                return b""

    def write(self, data: bytes) -> None:
        self._tls.write(data)
        self._writer.write(self._outgoing.read())

    async def drain(self) -> None:
        if self._outgoing.pending:
            self._writer.write(self._outgoing.read())
        await self._writer.drain()

    def write_eof(self) -> None:
        with suppress(ssl.SSLError):
            self._tls.unwrap()
        self._writer.write(self._outgoing.read())
        if self._writer.can_write_eof():
            self._writer.write_eof()

    def close(self) -> None:
        """Ends TLS properly as far as that needs no reply."""
        with suppress(ssl.SSLError, OSError):
            self._tls.unwrap()
        if not self._writer.is_closing() and self._outgoing.pending:
            self._writer.write(self._outgoing.read())
        self._writer.close()

    async def _receive(self) -> None:
        data = await self._reader.read(TLS_CHUNK_BYTES)
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()


def upstream_context() -> ssl.SSLContext:
    """TLS to the hosts: their certificates are checked against the roots of this machine."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(_PROTOCOLS)
    return context


class WorkspaceAuthority:
    """Certificates for hosts, by the authority in `pem` (its key and certificate)."""

    def __init__(self, pem: str, clock: Clock) -> None:
        """Raises ValueError."""
        key = load_pem_private_key(pem.encode(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError("the key of an authority is of another kind")
        self._key = key
        self._certificate = x509.load_pem_x509_certificate(pem.encode())
        self._clock = clock
        self._contexts: dict[str, tuple[float, ssl.SSLContext]] = {}
        self.certificate: Final = self._certificate.public_bytes(Encoding.PEM)
        public = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        self.key_hash: Final = b64encode(sha256(public).digest())

    def host_context(self, host: str) -> ssl.SSLContext:
        """TLS for the side of the workspace. Made once a day for each host."""
        now = self._clock.monotonic()
        made_at, context = self._contexts.get(host, (0.0, None))
        if context is None or now > made_at + HOST_CERTIFICATE_S:
            context = self._new_context(host)
            self._contexts.pop(host, None)
            self._contexts[host] = (now, context)
            while len(self._contexts) > MAX_HOST_CONTEXTS:
                del self._contexts[next(iter(self._contexts))]
        return context

    def _new_context(self, host: str) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.set_alpn_protocols(_PROTOCOLS)
        # `ssl` reads keys from files only.
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory, "host.pem")
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(self._host_pem(host))
            context.load_cert_chain(path)
        return context

    def _host_pem(self, host: str) -> bytes:
        key = ec.generate_private_key(ec.SECP256R1())
        now = self._clock.now()
        try:
            name: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            name = x509.DNSName(host)
        usages = [ExtendedKeyUsageOID.SERVER_AUTH]
        builder = (
            _certificate(host[:64], self._certificate.subject, key.public_key())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=7))
            .add_extension(x509.SubjectAlternativeName([name]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )
        certificate = builder.sign(self._key, SHA256())
        # Chromium knows the authority by its key, so that has to be in the chain.
        chain = certificate.public_bytes(Encoding.PEM) + self.certificate
        return chain + _private_pem(key)


def new_authority(workspace: str, now: datetime.datetime) -> str:
    """The key and the certificate of a new authority, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = f"chatd workspace {workspace}"
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    builder = (
        _certificate(name[:64], subject, key.public_key())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=365 * _YEARS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
    )
    certificate = builder.sign(key, SHA256())
    return (_private_pem(key) + certificate.public_bytes(Encoding.PEM)).decode()


def read_system_roots() -> bytes | None:
    """The roots that this machine trusts. None if they are not in one of the usual files."""
    for path in SYSTEM_ROOTS:
        with suppress(OSError), open(path, "rb") as file:
            found = file.read(MAX_ROOTS_BYTES + 1)
            if b"BEGIN CERTIFICATE" in found and len(found) <= MAX_ROOTS_BYTES:
                return found
    return None


def _certificate(
    name: str, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
