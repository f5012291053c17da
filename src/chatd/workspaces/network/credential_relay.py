"""Requests of a workspace to a host with a credential: TLS of the client ends here, and a verified
TLS connection leads to the host.

The proxy reads each request strictly, adds the credential that fits its path, and writes it anew.
What the host answers passes through a mask, so that a host that repeats its request does not give
the credential to the workspace.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import h11

from chatd.domain.workspace.host_credentials import HTTPS_PORT, HostCredential, find_credential
from chatd.domain.workspace.network import NetworkTarget, parse_target
from chatd.guarded_dial import Connection, DialFailed
from chatd.workspaces.network.http_relay import (
    BadRequest,
    HostRefused,
    HttpStream,
    ResponseMask,
    check_framing,
    kept_headers,
    relay_exchange,
)
from chatd.workspaces.network.tls_endpoint import TlsStream

CLOSED_METHODS: Final = frozenset((b"TRACE", b"TRACK", b"CONNECT"))
"""TRACE asks the host to send the request back."""
REPLACED_HEADERS: Final = (b"accept-encoding", b"range", b"if-range")
"""Replaced if there is a credential: the mask must be able to read the whole response."""

UPSTREAM_REUSE_S: Final = 2.0
"""How long an idle connection to the host is reused: hosts close theirs after a while, and a
request that meets that moment would fail."""

Dial = Callable[[], Awaitable[Connection]]
"""Opens a connection to the host of the tunnel. Raises HostRefused, DialFailed."""


class CredentialRelay:
    """The requests of one tunnel, one after the other. `credentials` is asked for each of them, so
    that a revoked one counts at once."""

    def __init__(
        self,
        target: NetworkTarget,
        dial: Dial,
        context: ssl.SSLContext,
        credentials: Callable[[], Sequence[HostCredential]],
        touch: Callable[[], None],
    ) -> None:
        self._target = target
        self._dial = dial
        self._context = context
        self._credentials = credentials
        self._touch = touch
        self._server: HttpStream | None = None
        self._upstream: TlsStream | None = None
        self._loop = asyncio.get_running_loop()
        self._used_at = 0.0

    async def connect(self) -> HttpStream:
        """The connection to the host, which the next request uses. Raises HostRefused,
        DialFailed."""
        is_fresh = self._loop.time() < self._used_at + UPSTREAM_REUSE_S
        if self._server is not None and is_fresh:
            return self._server
        self.close()
        reader, writer = await self._dial()
        upstream = TlsStream(reader, writer, self._context, host=self._target.host)
        try:
            await upstream.handshake()
        except ssl.SSLCertVerificationError as error:
            writer.transport.abort()
            text = f"{self._target} shows a certificate that cannot be trusted"
            raise DialFailed(f"{text}: {error.verify_message.rstrip('.')}.") from None
        except OSError as error:
            writer.transport.abort()
            raise DialFailed(f"{self._target} does not speak TLS: {error}.") from None
        except BaseException:
            writer.transport.abort()
            raise
        self._upstream = upstream
        self._server = HttpStream(h11.CLIENT, upstream, upstream, self._touch)
        self._used_at = self._loop.time()
        return self._server

    def close(self) -> None:
        if self._upstream is not None:
            self._upstream.close()
        self._server = self._upstream = None

    async def serve(self, client: HttpStream) -> None:
        """Relay until either side ends the connection. Raises BadRequest, HostRefused, DialFailed,
        h11.ProtocolError, OSError, EOFError."""
        while isinstance(request := await client.next_event(), h11.Request):
            passed, mask = self._passed(request)
            server = await self.connect()
            await relay_exchange(client, server, passed, mask)
            if (client.wire.our_state, client.wire.their_state) != (h11.DONE, h11.DONE):
                return
            client.wire.start_next_cycle()
            if (server.wire.our_state, server.wire.their_state) == (h11.DONE, h11.DONE):
                server.wire.start_next_cycle()
                self._used_at = self._loop.time()
            else:
                self.close()

    def _passed(self, request: h11.Request) -> tuple[h11.Request, ResponseMask | None]:
        """The request as the host gets it. Raises BadRequest, HostRefused."""
        check_framing(request)
        if request.method in CLOSED_METHODS:
            raise BadRequest(f"{request.method.decode()} is not passed on to this host.")
        path = request.target.decode("ascii")
        if not path.startswith("/"):
            raise BadRequest("Inside a tunnel a request names a path, not an address.")
        for name, value in request.headers:
            if name == b"host" and not self._is_own_host(value):
                raise HostRefused(self._target, "wrong_name")
        host = (b"Host", str(self._target).removesuffix(f":{HTTPS_PORT}").encode())
        credential = find_credential(self._credentials(), self._target, path)
        if credential is None:
            headers = [host, *kept_headers(request, b"host")]
            mask = None
        else:
            own = credential.header.encode("ascii")
            headers = [
                host,
                *kept_headers(request, b"host", own.lower(), *REPLACED_HEADERS),
                (b"Accept-Encoding", b"identity"),
                (own, credential.value.encode("ascii")),
            ]
            mask = ResponseMask(credential.hidden)
        return h11.Request(method=request.method, target=request.target, headers=headers), mask

    def _is_own_host(self, value: bytes) -> bool:
        try:
            return parse_target(value.decode("ascii"), default_port=HTTPS_PORT) == self._target
        except ValueError:
            return False
