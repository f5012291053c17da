"""The way out of a sandbox without a network while git clones: a SOCKS proxy on a Unix socket.

The proxy connects through the address guard, so every address that git names is checked: the
repository's, those of redirects, those of alternates. `clone_forward` is the other end, inside.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from chatd.domain.errors import ChatdError
from chatd.guarded_dial import AddressRefused, Connection
from chatd.workspaces.local.layout import chown_to_workspace

PROXY_SOCKET: Final = "proxy.sock"
MAX_PROXY_CONNECTIONS: Final = 16
PROXY_IDLE_TIMEOUT_S: Final = 120.0
PROXY_CHUNK_BYTES: Final = 65_536

VERSION: Final = 5
CONNECT: Final = 1
ADDRESS_BYTES: Final = {1: 4, 4: 16}
NAME: Final = 3
DONE, REFUSED, UNREACHABLE, UNSUPPORTED = 0, 2, 4, 7


class CloneProxy:
    """`dial` connects to a host and port. `refusals` says which hosts it refused or did not reach,
    and why."""

    def __init__(self, dial: Callable[[str, int], Awaitable[Connection]]) -> None:
        self.refusals: list[str] = []
        self._dial = dial
        self._open: set[asyncio.StreamWriter] = set()

    @contextlib.asynccontextmanager
    async def listening(self, directory: Path, uid: int | None) -> AsyncGenerator[None]:
        """On a socket in the directory, which only the workspace's account can use."""
        listener = await asyncio.to_thread(_listen, directory, uid)
        server = await asyncio.start_unix_server(self._serve, sock=listener)
        try:
            yield
        finally:
            server.close()
            for writer in tuple(self._open):
                writer.transport.abort()
            await asyncio.to_thread(_remove, directory)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A bad or slow client affects only its own connection."""
        self._open.add(writer)
        try:
            if len(self._open) <= MAX_PROXY_CONNECTIONS:
                async with asyncio.timeout(PROXY_IDLE_TIMEOUT_S):
                    host, port = await _read_request(reader, writer)
                await self._forward(host, port, reader, writer)
        except (OSError, EOFError, ValueError, TimeoutError):
            pass
        finally:
            self._open.discard(writer)
            writer.close()

    async def _forward(
        self, host: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            far_reader, far_writer = await self._dial(host, port)
        except ChatdError as error:
            self.refusals.append(error.message)
            refused = isinstance(error, AddressRefused)
            writer.write(_reply(REFUSED if refused else UNREACHABLE))
            return
        self._open.add(far_writer)
        try:
            writer.write(_reply(DONE))
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_copy(reader, far_writer))
                tasks.create_task(_copy(far_reader, writer))
        finally:
            self._open.discard(far_writer)
            far_writer.close()


def _listen(directory: Path, uid: int | None) -> socket.socket:
    """Bind through the directory's descriptor: the path may be too long for a socket address."""
    directory.mkdir(mode=0o700, exist_ok=True)
    chown_to_workspace(directory, uid)
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
    path.chmod(0o600)
    chown_to_workspace(path, uid)
    return listener


def _remove(directory: Path) -> None:
    """What stays is removed with the workspace."""
    with contextlib.suppress(OSError):
        (directory / PROXY_SOCKET).unlink(missing_ok=True)
        directory.rmdir()


async def _read_request(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> tuple[str, int]:
    """The host and port that the client asks for."""
    version, methods = await reader.readexactly(2)
    await reader.readexactly(methods)
    if version != VERSION:
        raise ValueError("not a SOCKS 5 client")
    writer.write(bytes((VERSION, 0)))  # No authentication: the socket has an owner.
    version, command, _, kind = await reader.readexactly(4)
    if kind == NAME:
        (length,) = await reader.readexactly(1)
        host = (await reader.readexactly(length)).decode("ascii")
    elif kind in ADDRESS_BYTES:
        host = str(ip_address(await reader.readexactly(ADDRESS_BYTES[kind])))
    else:
        raise ValueError("an unknown kind of address")
    port = int.from_bytes(await reader.readexactly(2), "big")
    if command != CONNECT:
        writer.write(_reply(UNSUPPORTED))
        raise ValueError("not a request to connect")
    return host, port


def _reply(code: int) -> bytes:
    return bytes((VERSION, code, 0, 1, 0, 0, 0, 0, 0, 0))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, TimeoutError):
        while True:
            async with asyncio.timeout(PROXY_IDLE_TIMEOUT_S):
                data = await reader.read(PROXY_CHUNK_BYTES)
                if not data:
                    break
                writer.write(data)
                await writer.drain()
        writer.write_eof()
