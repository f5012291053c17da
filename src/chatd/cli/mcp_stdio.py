"""`chatd mcp`: an MCP server on standard input and output that talks to a running chatd.

Standard output carries messages of the protocol only; everything else goes to standard error.
"""

import asyncio
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import Final
from uuid import uuid4

import aiohttp
import msgspec

from chatd.cli.mcp_relay import (
    CONNECT_TIMEOUT_S,
    MAX_EVENT_BYTES,
    READ_TIMEOUT_S,
    Json,
    Relay,
    Unreachable,
    as_object,
    error_answer,
)
from chatd.client.exchange import ServerAddress

MAX_LINE_BYTES: Final = 4 * 1024 * 1024
READ_BYTES: Final = 64 * 1024
MAX_REQUESTS_AT_ONCE: Final = 64
END_WITHIN_S: Final = 5.0
"""After the end of the input: requests that are answered quickly still are."""

STDIN: Final = 0


async def run_bridge(server: ServerAddress) -> None:
    """Until the input ends, or nobody reads the output."""
    timeout = aiohttp.ClientTimeout(
        total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=READ_TIMEOUT_S
    )
    async with aiohttp.ClientSession(timeout=timeout, read_bufsize=MAX_EVENT_BYTES) as http:
        bridge = StdioBridge(Relay(server, http, uuid4().hex), server)
        try:
            await bridge.run(InputLines().start())
        except* BrokenPipeError:
            # Python would report it once more when it flushes the output at the end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class InputLines:
    """Lines of standard input. A thread reads them, so that any kind of input works. It reads the
    descriptor itself: a lock of `sys.stdin` would keep the program from ending."""

    def __init__(self) -> None:
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._room = threading.Semaphore(MAX_REQUESTS_AT_ONCE)

    def start(self) -> "InputLines":
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._read, args=(loop,), daemon=True).start()
        return self

    async def next(self) -> bytes | None:
        """None at the end."""
        line = await self._lines.get()
        self._room.release()
        return line

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            for line in split_lines(iter(lambda: os.read(STDIN, READ_BYTES), b"")):
                self._put(loop, line)
            self._put(loop, None)
        except RuntimeError:
            return  # the loop has ended

    def _put(self, loop: asyncio.AbstractEventLoop, line: bytes | None) -> None:
        self._room.acquire()
        loop.call_soon_threadsafe(self._lines.put_nowait, line)


def split_lines(chunks: Iterable[bytes], longest: int = MAX_LINE_BYTES) -> Iterator[bytes]:
    """Of a line that is too long only the beginning, which is no message."""
    rest, is_skipping = b"", False
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if not is_skipping:
                yield line[: longest + 1]
            is_skipping = False
        if len(rest) > longest:
            if not is_skipping:
                yield rest[: longest + 1]
            rest, is_skipping = b"", True
    if rest and not is_skipping:
        yield rest


class StdioBridge:
    def __init__(self, relay: Relay, server: ServerAddress) -> None:
        self._relay = relay
        self._server = server
        self._open: dict[object, asyncio.Task[None]] = {}
        self._writing = asyncio.Lock()

    async def run(self, lines: InputLines) -> None:
        async with asyncio.TaskGroup() as group:
            while (line := await lines.next()) is not None:
                message = await self._read(line)
                if message is not None and "id" not in message:
                    await self._notify(message)
                elif message is not None and len(self._open) < MAX_REQUESTS_AT_ONCE:
                    self._start(group, message)
                elif message is not None:
                    text = f"There are {MAX_REQUESTS_AT_ONCE} open requests. Wait for one."
                    await self._write(error_answer(message["id"], text))
            if self._open:
                await asyncio.wait(self._open.values(), timeout=END_WITHIN_S)
            for task in self._open.values():
                task.cancel()

    async def _read(self, line: bytes) -> Json | None:
        if not line.strip():
            return None
        try:
            message = msgspec.json.decode(line, type=Json)
        except (msgspec.MsgspecError, RecursionError):
            text = "Parse error: a line must be one JSON-RPC message of at most 4 MiB."
            error = {"code": -32700, "message": text}
            await self._write({"jsonrpc": "2.0", "id": None, "error": error})
            return None
        # What has no method answers a request of the server, which sends none.
        return message if isinstance(message.get("method"), str) else None

    def _start(self, group: asyncio.TaskGroup, message: Json) -> None:
        key = _key(message["id"])
        task = group.create_task(self._serve(message))
        self._open[key] = task

        def done(ended: asyncio.Task[None]) -> None:
            if self._open.get(key) is ended:
                del self._open[key]

        task.add_done_callback(done)

    async def _serve(self, message: Json) -> None:
        try:
            async for answer in self._relay.request(message):
                await self._write(answer)
        except Unreachable as error:
            text = (
                f"chatd at {self._server.url} cannot be reached: {error}. Start it with chatd"
                " serve, or name another with --url. Nothing is lost: call again."
            )
            await self._write(error_answer(message["id"], text))

    async def _notify(self, message: Json) -> None:
        """A cancelled request ends here: the server only waited for its chat."""
        if message["method"] == "notifications/cancelled":
            found = as_object(message.get("params")).get("requestId")
            if (task := self._open.get(_key(found))) is not None:
                task.cancel()
            return
        try:
            await self._relay.notify(message)
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            print(f"chatd mcp: {message['method']} was not delivered: {error}", file=sys.stderr)

    async def _write(self, message: Json) -> None:
        line = msgspec.json.encode(message) + b"\n"
        async with self._writing:
            await asyncio.to_thread(_write_line, line)


def _write_line(line: bytes) -> None:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


def _key(request_id: object) -> object:
    """1 and "1" are two ids."""
    return type(request_id).__name__, str(request_id)
