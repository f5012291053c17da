"""Hosts that speak TLS, with certificates of an authority that only the test trusts."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from chatd.clock import SystemClock
from chatd.workspaces.network.tls_endpoint import WorkspaceAuthority, new_authority

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class TlsHosts:
    """`client_context` trusts its authority alone."""

    def __init__(self) -> None:
        pem = new_authority("test hosts", datetime.now(UTC))
        self._authority = WorkspaceAuthority(pem, SystemClock())

    def client_context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cadata=self._authority.certificate.decode())

    @asynccontextmanager
    async def serving(self, host: str, serve: Serve) -> AsyncGenerator[int]:
        """The port of the loopback on which it serves with a certificate for the host."""
        context = self._authority.host_context(host)
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        async with server:
            yield server.sockets[0].getsockname()[1]
