"""The proxy of one workspace: HTTP requests and CONNECT on a Unix socket that the workspace sees.

It admits the hosts that the rules name, resolves each name once and connects to the address that it
has checked. Bytes of a tunnel pass untouched, and of TLS only the server name at its beginning is
read; but for a host with a credential, TLS ends here and `credential_relay` passes the requests on.
A bad or slow client affects its own connection only.
"""

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Final

import h11
from msgspec import Struct

from chatd.domain.ports import Clock
from chatd.domain.workspace.host_credentials import HostCredential, is_bound
from chatd.domain.workspace.network import (
    HostRule,
    NetworkTarget,
    Refusal,
    explain_refusal,
    find_rule,
    is_allowed_address,
    merge_refusals,
    normal_host,
    parse_target,
)
from chatd.guarded_dial import (
    AddressRefused,
    Connect,
    Connection,
    DialFailed,
    Resolve,
    open_guarded_connection,
    resolve_host,
)
from chatd.workspaces.local.workspace_dirs import chown_to_workspace
from chatd.workspaces.network.credential_relay import CredentialRelay
from chatd.workspaces.network.http_relay import (
    RELAY_CHUNK_BYTES,
    BadRequest,
    HostRefused,
    HttpStream,
    check_framing,
    kept_headers,
    relay_exchange,
)
from chatd.workspaces.network.inside import PROXY_SOCKET, write_trust
from chatd.workspaces.network.tls_endpoint import (
    TlsStream,
    WorkspaceAuthority,
    upstream_context,
)
from chatd.workspaces.network.tls_names import read_server_name

MAX_PROXY_CONNECTIONS: Final = 128
"""Limit for one workspace at once."""
PROXY_HEAD_TIMEOUT_S: Final = 30.0
"""Limit for the head of the first request, and for a TLS handshake."""
PROXY_IDLE_TIMEOUT_S: Final = 300.0
"""A connection ends if no byte has moved in either direction for this long."""
MAX_PROXY_CONNECTION_S: Final = 6 * 3600.0
LISTEN_BACKLOG: Final = 128
TUNNEL_OPEN: Final = b"HTTP/1.1 200 Connection established\r\n\r\n"
UNRECOGNIZED_NAME_ALERT: Final = bytes((21, 3, 3, 0, 2, 2, 112))
TLS_HANDSHAKE: Final = b"\x16"


class Dialer(Struct, frozen=True, kw_only=True):
    """How the proxy reaches hosts. `tls` checks the certificates of those with a credential."""

    resolve: Resolve = resolve_host
    connect: Connect = asyncio.open_connection
    tls: Callable[[], ssl.SSLContext] = upstream_context


class ProxyRules(Struct, frozen=True, kw_only=True):
    """`allow` is what the template says, for the text of a refusal."""

    rules: tuple[HostRule, ...]
    allow: tuple[str, ...] = ()


def _no_credentials() -> Sequence[HostCredential]:
    return ()


class NetworkProxy:
    """`rules` is asked for every connection, so that a change counts at once, and `credentials` for
    every request; they count only with the `authority` that the workspace trusts. `refusals` are
    those since they were last taken. `failures` are the texts of hosts that were refused or not
    reached, for the log of a build."""

    def __init__(
        self,
        rules: Callable[[], ProxyRules],
        dialer: Dialer,
        clock: Clock,
        *,
        authority: WorkspaceAuthority | None = None,
        credentials: Callable[[], Sequence[HostCredential]] = _no_credentials,
    ) -> None:
        self.failures: list[str] = []
        self.refusals: tuple[Refusal, ...] = ()
        self.authority = authority
        self._credentials = credentials
        self._tls: ssl.SSLContext | None = None
        self._rules = rules
        self._dialer = dialer
        self._clock = clock
        self._clients: set[asyncio.StreamWriter] = set()
        self._servers: set[asyncio.StreamWriter] = set()

    def take_refusals(self) -> tuple[Refusal, ...]:
        taken, self.refusals = self.refusals, ()
        return taken

    @contextlib.asynccontextmanager
    async def listening(
        self, directory: Path, uid: int | None, *, any_account: bool = False
    ) -> AsyncGenerator[None]:
        """On a socket in the directory, which only the workspace's account can use; or any account
        that can reach the directory, which a private parent then protects."""
        listener = await asyncio.to_thread(_listen, directory, uid, any_account=any_account)
        if self.authority is not None:
            await asyncio.to_thread(write_trust, directory, self.authority)
        server = await asyncio.start_unix_server(self._serve, sock=listener, backlog=LISTEN_BACKLOG)
        try:
            yield
        finally:
            server.close()
            for writer in (*self._clients, *self._servers):
                writer.transport.abort()
            # The directory stays: a running workspace sees it.
            with contextlib.suppress(OSError):
                await asyncio.to_thread((directory / PROXY_SOCKET).unlink, missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients.add(writer)
        try:
            async with asyncio.timeout(MAX_PROXY_CONNECTION_S):
                if len(self._clients) > MAX_PROXY_CONNECTIONS:
                    client = HttpStream(h11.SERVER, reader, writer, lambda: None)
                    text = f"More than {MAX_PROXY_CONNECTIONS} connections at once: close some."
                    await client.refuse(503, "Too many connections", text)
                    return
                await self._serve_client(reader, writer)
        except (OSError, EOFError, TimeoutError, h11.ProtocolError, ValueError):
            pass
        finally:
            self._clients.discard(writer)
            writer.close()

    async def _serve_client(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        async with asyncio.timeout(PROXY_HEAD_TIMEOUT_S) as limit:
            clock = _IdleClock(limit)
            client = HttpStream(h11.SERVER, reader, writer, clock.touch)
            try:
                request = await client.next_event()
                if not isinstance(request, h11.Request):
                    return
                clock.start()
                check_framing(request)
                if request.method == b"CONNECT":
                    await self._tunnel(client, (reader, writer), request, clock)
                else:
                    await self._pass_request(client, request, clock)
            except h11.RemoteProtocolError as error:
                await client.refuse(error.error_status_hint, "Bad request", str(error))
            except BadRequest as error:
                await client.refuse(400, "Bad request", str(error))
            except HostRefused as refused:
                await self._refuse(client, refused)
            except DialFailed as error:
                self.failures = [*self.failures[-9:], error.message]
                await client.refuse(502, "The host cannot be reached", error.message)

    async def _refuse(self, client: HttpStream, refused: HostRefused) -> None:
        """The reason phrase names the host: many programs print it and nothing of the body."""
        text = self._note_refusal(refused)
        await client.refuse(403, f"This workspace may not reach {refused.target}", text)

    def _note_refusal(self, refused: HostRefused) -> str:
        """The reply to the client."""
        target, reason = refused.target, refused.reason
        seen = Refusal(
            host=target.host, port=target.port, reason=reason, count=1, last_at=self._clock.now()
        )
        self.refusals = merge_refusals(self.refusals, [seen])
        text = explain_refusal(target, reason, self._rules().allow)
        self.failures = [*self.failures[-9:], text]
        return text

    async def _dial(self, target: NetworkTarget) -> Connection:
        """Raises HostRefused and DialFailed."""
        dialer = self._dialer
        rule = find_rule(self._rules().rules, target)
        if rule is None:
            raise HostRefused(target, "not_allowed")
        try:
            return await open_guarded_connection(
                target.host,
                target.port,
                is_allowed=lambda address: is_allowed_address(rule, address),
                allow_own_host=rule.names_own_host,
                resolve=dialer.resolve,
                connect=dialer.connect,
            )
        except AddressRefused:
            raise HostRefused(target, "private_address") from None

    async def _tunnel(
        self, client: HttpStream, near: Connection, request: h11.Request, clock: "_IdleClock"
    ) -> None:
        target = _read_target(request.target.decode("ascii"))
        if is_bound(self._credentials(), target):
            if self.authority is not None:
                await self._relay_requests(client, near, target, self.authority, clock)
                return
            # Its programs run on since before there were authorities: they would refuse one.
            self._note_refusal(HostRefused(target, "no_authority"))
        far_reader, far_writer = await self._dial(target)
        self._servers.add(far_writer)
        try:
            client.writer.write(TUNNEL_OPEN)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._relay_client(client, near[0], target, far_writer, clock))
                tasks.create_task(_relay(far_reader, near[1], clock.touch))
        finally:
            self._servers.discard(far_writer)
            far_writer.close()

    async def _relay_requests(
        self,
        client: HttpStream,
        near: Connection,
        target: NetworkTarget,
        authority: WorkspaceAuthority,
        clock: "_IdleClock",
    ) -> None:
        """A tunnel to a host with a credential: the requests in it are passed on one by one."""

        async def dial() -> Connection:
            found = await self._dial(target)
            self._servers.add(found[1])
            opened.append(found[1])
            return found

        opened: list[asyncio.StreamWriter] = []
        self._tls = self._tls or await asyncio.to_thread(self._dialer.tls)
        relay = CredentialRelay(target, dial, self._tls, self._credentials, clock.touch)
        try:
            await relay.connect()
            client.writer.write(TUNNEL_OPEN)
            first, _ = client.wire.trailing_data
            inner = await self._accept_tls(near, bytes(first), target, authority, clock)
            if inner is not None:
                await self._serve_requests(inner, relay)
        finally:
            relay.close()
            for writer in opened:
                self._servers.discard(writer)
                writer.close()

    async def _accept_tls(
        self,
        near: Connection,
        first: bytes,
        target: NetworkTarget,
        authority: WorkspaceAuthority,
        clock: "_IdleClock",
    ) -> HttpStream | None:
        """The client's requests inside of its TLS. None if it speaks something else."""
        reader, writer = near
        try:
            first = await _read_start(reader, first, target, clock.touch)
            if not first.startswith(TLS_HANDSHAKE):
                return None
            context = await asyncio.to_thread(authority.host_context, target.host)
            inner = TlsStream(reader, writer, context, first=first)
            await inner.handshake()
        except HostRefused as refused:
            self._note_refusal(refused)
            writer.write(UNRECOGNIZED_NAME_ALERT)
            return None
        except ssl.SSLError:
            self._note_refusal(HostRefused(target, "untrusted_certificate"))
            return None
        return HttpStream(h11.SERVER, inner, inner, clock.touch)

    async def _serve_requests(self, client: HttpStream, relay: CredentialRelay) -> None:
        try:
            await relay.serve(client)
        except h11.RemoteProtocolError as error:
            await client.refuse(error.error_status_hint, "Bad request", str(error))
        except BadRequest as error:
            await client.refuse(400, "Bad request", str(error))
        except HostRefused as refused:
            await self._refuse(client, refused)
        except DialFailed as error:
            self.failures = [*self.failures[-9:], error.message]
            await client.refuse(502, "The host cannot be reached", error.message)
        finally:
            client.writer.close()

    async def _relay_client(
        self,
        client: HttpStream,
        reader: asyncio.StreamReader,
        target: NetworkTarget,
        far_writer: asyncio.StreamWriter,
        clock: "_IdleClock",
    ) -> None:
        """If the client begins with TLS, the name in it must be that of the tunnel."""
        first, _ = client.wire.trailing_data
        try:
            first = await _read_start(reader, bytes(first), target, clock.touch)
        except HostRefused as refused:
            self._note_refusal(refused)
            client.writer.write(UNRECOGNIZED_NAME_ALERT)
            far_writer.transport.abort()
            return
        far_writer.write(first)
        await _relay(reader, far_writer, clock.touch)

    async def _pass_request(
        self, client: HttpStream, request: h11.Request, clock: "_IdleClock"
    ) -> None:
        """One request for `http://host/path`. The connection ends after it."""
        target, path = _read_url(request.target.decode("ascii"))
        far_reader, far_writer = await self._dial(target)
        self._servers.add(far_writer)
        try:
            server = HttpStream(h11.CLIENT, far_reader, far_writer, clock.touch)
            host = str(target).removesuffix(":80").encode()
            headers = [
                (b"Host", host),
                *kept_headers(request, b"host"),
                (b"Connection", b"close"),
            ]
            passed = h11.Request(method=request.method, target=path.encode(), headers=headers)
            await relay_exchange(client, server, passed)
        finally:
            self._servers.discard(far_writer)
            far_writer.close()


class _IdleClock:
    """Ends a connection on which nothing moves, once `start` was called. Before that the whole head
    of a request has one time limit, however slowly it comes."""

    def __init__(self, limit: asyncio.Timeout) -> None:
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._is_started = False

    def start(self) -> None:
        self._is_started = True
        self.touch()

    def touch(self) -> None:
        """Called when bytes have moved."""
        if self._is_started:
            self._limit.reschedule(self._loop.time() + PROXY_IDLE_TIMEOUT_S)


def _read_target(authority: str) -> NetworkTarget:
    """Raises BadRequest."""
    try:
        return parse_target(authority)
    except ValueError as error:
        raise BadRequest(f"The host of the request {error}.") from None


def _read_url(url: str) -> tuple[NetworkTarget, str]:
    """The host of an absolute URL, and the path with its query. Raises BadRequest."""
    if not url.lower().startswith("http://"):
        raise BadRequest("This is a proxy: it takes CONNECT, and requests for http:// addresses.")
    rest = url[len("http://") :]
    cut = min((at for mark in "/?#" if (at := rest.find(mark)) >= 0), default=len(rest))
    authority, path = rest[:cut], rest[cut:].partition("#")[0]
    if "@" in authority:
        raise BadRequest("The address must not have a user and a password before the host.")
    try:
        target = parse_target(authority, default_port=80)
    except ValueError as error:
        raise BadRequest(f"The host of the request {error}.") from None
    return target, path if path.startswith("/") else f"/{path}"


async def _read_start(
    reader: asyncio.StreamReader, data: bytes, target: NetworkTarget, touch: Callable[[], None]
) -> bytes:
    """The first bytes of a client, or none. Raises HostRefused for TLS to another host."""
    while True:
        if data and not data.startswith(TLS_HANDSHAKE):
            return data
        if data:
            try:
                name = read_server_name(data)
                if name is not None and name and normal_host(name) != target.host:
                    raise HostRefused(target, "wrong_name")
            except ValueError:
                raise HostRefused(target, "wrong_name") from None
            if name is not None:
                return data
        more = await reader.read(RELAY_CHUNK_BYTES)
        touch()
        if not more:
            return data
        data += more


async def _relay(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, touch: Callable[[], None]
) -> None:
    """Copy until the end of this direction; the other one may continue. A broken one ends both."""
    try:
        while data := await reader.read(RELAY_CHUNK_BYTES):
            touch()
            writer.write(data)
            await writer.drain()
            touch()
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:
        writer.transport.abort()


def _listen(directory: Path, uid: int | None, *, any_account: bool) -> socket.socket:
    """Bind through the directory's descriptor: the path may be too long for a socket address."""
    directory.mkdir(mode=0o700, exist_ok=True)
    chown_to_workspace(directory, uid)
    if any_account:
        directory.chmod(0o755)
    path = directory / PROXY_SOCKET
    path.unlink(missing_ok=True)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(f"/proc/self/fd/{descriptor}/{PROXY_SOCKET}")
    except OSError:
        listener.close()
        raise
    finally:
        os.close(descriptor)
    path.chmod(0o666 if any_account else 0o600)
    chown_to_workspace(path, uid)
    return listener
