"""The way out of a workspace without a network of its own: a port of its loopback, forwarded to the
proxy behind a Unix socket.

Part of the agent; also a program, `python3 -c <this text> SOCKET PORT COMMAND...`, which runs
COMMAND while it forwards. Standard library only, any Python 3.9.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

CHUNK_BYTES = 65_536
MAX_FORWARDED = 256
"""Limit for connections at once; the proxy accepts fewer from one workspace."""
DIAL_ATTEMPTS = 40
DIAL_PAUSE_S = 0.25
"""Pause between dials: while the server or the runner restarts, the socket leads nowhere."""
NO_PROXY_REPLY = (
    b"HTTP/1.1 503 chatd's proxy does not answer: try again later\r\n"
    b"Content-Length: 0\r\nConnection: close\r\n\r\n"
)


async def forward_port(socket_path: str, port: int) -> asyncio.AbstractServer:
    """Listen on the loopback. Raises OSError if a command of the workspace has the port."""
    opened: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.add(writer)
        try:
            if len(opened) <= MAX_FORWARDED:
                await _forward(socket_path, reader, writer)
        finally:
            opened.discard(writer)
            writer.close()

    return await asyncio.start_server(serve, "127.0.0.1", port)


async def _forward(
    socket_path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    proxy = await _dial(socket_path)
    if proxy is None:
        writer.write(NO_PROXY_REPLY)
        return
    far_reader, far_writer = proxy
    try:
        ways = (_copy(reader, far_writer), _copy(far_reader, writer))
        await asyncio.wait([asyncio.ensure_future(way) for way in ways])
    finally:
        far_writer.close()


async def _dial(
    socket_path: str,
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
    for attempt in range(DIAL_ATTEMPTS):
        if attempt:
            await asyncio.sleep(DIAL_PAUSE_S)
        with contextlib.suppress(OSError):
            return await asyncio.open_unix_connection(socket_path)
    return None


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """End of file in one direction leaves the other open; an error ends both."""
    try:
        while True:
            data = await source.read(CHUNK_BYTES)
            if not data:
                break
            target.write(data)
            await target.drain()
        target.write_eof()
    except OSError:
        target.close()


async def _main() -> int:
    server = await forward_port(sys.argv[1], int(sys.argv[2]))
    command = await asyncio.create_subprocess_exec(*sys.argv[3:])
    code = await command.wait()
    server.close()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(asyncio.run(_main()))
