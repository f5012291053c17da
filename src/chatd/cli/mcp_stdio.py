"""`chatd mcp`: an MCP server on standard input and output that talks to a running chatd.

Standard output carries messages of the protocol only; everything else goes to standard error. A
request survives restarts of the server: it is sent again under the same idempotency key, or a wait
that was cut continues after its last event.
"""

import asyncio
import base64
import os
import re
import sys
import threading
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from typing import Any, Final, cast
from uuid import uuid4

import aiohttp
import msgspec
from msgspec import Struct

from chatd.aio import Backoff
from chatd.client.exchange import ServerAddress

Json = dict[str, Any]

CONNECT_TIMEOUT_S: Final = 10.0
READ_TIMEOUT_S: Final = 60.0
"""Without a byte: the server sends a ping every 15 seconds while a call takes long."""
MAX_EVENT_BYTES: Final = 4 * 1024 * 1024

_VERSION_KEY: Final = "io.modelcontextprotocol/protocolVersion"
_FIRST: Final = frozenset({"initialize", "server/discover"})
_NAMED_BY: Final[Mapping[str, str]] = {"tools/call": "name", "resources/read": "uri"}
_RETRIED_STATUSES: Final = frozenset({502, 503, 504})
_PLAIN: Final = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")
_BACKOFF: Final = Backoff(first_delay_s=0.25, max_delay_s=2.0)
_LOST: Final = (aiohttp.ClientError, TimeoutError, ConnectionError)


class Unreachable(Exception):
    """The server could not be reached for as long as it was tried."""


class _Cut(Exception):
    """The server did not answer, or its answer was cut. The request may be sent again."""

    def __init__(self, reason: str, answer: Json | None = None) -> None:
        """`answer` is what the client gets if nothing better comes."""
        super().__init__(reason)
        self.answer = answer


class Patience(Struct, frozen=True, kw_only=True):
    """How long a request is tried while the server cannot be reached: a client shows nothing before
    its first message is answered."""

    first_s: float = 20.0
    later_s: float = 180.0


DEFAULT_PATIENCE: Final = Patience()


class Relay:
    """What the messages of one client share: the connection, and what `initialize` agreed on."""

    def __init__(
        self,
        server: ServerAddress,
        http: aiohttp.ClientSession,
        client_id: str,
        patience: Patience = DEFAULT_PATIENCE,
    ) -> None:
        self._patience = patience
        self._server = server
        self._http = http
        self._client_id = client_id
        self._agreed: dict[str, str] = {}

    async def notify(self, message: Json) -> None:
        """Once: a notification that is lost changes nothing."""
        headers = self._headers(message)
        async with self._http.post(
            self._server.mcp_url, data=msgspec.json.encode(message), headers=headers
        ) as reply:
            await reply.read()

    async def request(self, message: Json) -> AsyncGenerator[Json]:
        """Yields notifications of progress, and then the answer. Raises Unreachable."""
        clock, failures, last_id = asyncio.get_running_loop().time, 0, ""
        is_first = message["method"] in _FIRST
        keep_s = self._patience.first_s if is_first else self._patience.later_s
        give_up_at = clock() + keep_s
        while True:
            try:
                async for event_id, answer in self._attempt(message, last_id):
                    last_id = event_id or last_id
                    failures, give_up_at = 0, clock() + keep_s
                    if answer is not None:
                        yield answer
                        if "method" not in answer:
                            return
                raise _Cut("the stream ended before the answer")
            except (_Cut, *_LOST) as error:
                failures += 1
                pause_s = _BACKOFF.delay(failures)
                if clock() + pause_s > give_up_at:
                    if isinstance(error, _Cut) and error.answer is not None:
                        yield error.answer
                        return
                    raise Unreachable(_explain(error)) from error
            await asyncio.sleep(pause_s)

    async def _attempt(
        self, message: Json, last_id: str
    ) -> AsyncGenerator[tuple[str, Json | None]]:
        headers = self._headers(message)
        if last_id:
            headers["Last-Event-ID"] = last_id
            sending = self._http.get(self._server.mcp_url, headers=headers)
        else:
            data = msgspec.json.encode(message)
            sending = self._http.post(self._server.mcp_url, data=data, headers=headers)
        async with sending as reply:
            if reply.content_type == "text/event-stream":
                async for event in read_events(reply.content):
                    yield event
                return
            body = await reply.read()
            answer = _read_answer(body, reply.status, message["id"])
            is_result = reply.status == 200
            if reply.status in _RETRIED_STATUSES or (is_result and "Retry-After" in reply.headers):
                raise _Cut(f"the server replied {reply.status}", answer)
            if message["method"] == "initialize" and "result" in answer:
                self._agree(answer["result"], reply.headers)
            yield "", answer

    def _agree(self, result: Json, headers: Mapping[str, str]) -> None:
        self._agreed = {"Mcp-Protocol-Version": str(result.get("protocolVersion", ""))}
        if (session := headers.get("Mcp-Session-Id")) is not None:
            self._agreed["Mcp-Session-Id"] = session

    def _headers(self, message: Json) -> dict[str, str]:
        headers = {
            **self._server.headers,
            "Accept": "application/json, text/event-stream",
            "Content-Type": "application/json",
        }
        method, named = str(message.get("method", "")), as_object(message.get("params"))
        version = as_object(named.get("_meta")).get(_VERSION_KEY)
        if isinstance(version, str):
            headers |= {"Mcp-Protocol-Version": version, "Mcp-Method": method}
            if (name := named.get(_NAMED_BY.get(method, ""))) is not None:
                headers["Mcp-Name"] = _header_value(str(name))
        elif method != "initialize":
            headers |= self._agreed
        if method == "tools/call":
            headers["Idempotency-Key"] = f"stdio:{self._client_id}:{message.get('id')!r}"
        return headers


async def read_events(content: aiohttp.StreamReader) -> AsyncGenerator[tuple[str, Json | None]]:
    """The id and the message of each event; an event without data only has an id."""
    event_id, data = "", ""
    while line := (await content.readline()).decode():
        name, _, value = line.rstrip("\r\n").partition(":")
        if name == "id":
            event_id = value.strip()
        elif name == "data":
            data += value.strip()
        elif not line.strip() and (event_id or data):
            yield event_id, msgspec.json.decode(data, type=Json) if data else None
            event_id, data = "", ""


def _read_answer(body: bytes, status: int, request_id: object) -> Json:
    """The server may not have known the id of a request that it refused."""
    try:
        answer = msgspec.json.decode(body, type=Json)
    except msgspec.MsgspecError:
        answer = {}
    if "result" in answer or "error" in answer:
        return {**answer, "id": request_id}
    text = f"The server replied {status} and no message of MCP. Does the URL name a chatd server?"
    return error_answer(request_id, text)


def as_object(value: object) -> Json:
    """Empty for what is no object: the server says what is wrong with it."""
    return cast("Json", value) if isinstance(value, dict) else {}


def error_answer(request_id: object, text: str) -> Json:
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": -32603, "message": text}}


def _header_value(text: str) -> str:
    if _PLAIN.fullmatch(text) and not text.startswith("=?base64?"):
        return text
    return f"=?base64?{base64.b64encode(text.encode()).decode()}?="


def _explain(error: Exception) -> str:
    return str(error) or type(error).__name__


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
            await asyncio.to_thread(write_line, line)


def write_line(line: bytes) -> None:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


def _key(request_id: object) -> object:
    """1 and "1" are two ids."""
    return type(request_id).__name__, str(request_id)
