"""Clients of the workspace's MCP servers: JSON-RPC over HTTP and over the standard streams of a
child process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar, cast
from urllib.parse import urlsplit

# Messages: requests, notifications and replies in JSON-RPC

PROTOCOL_VERSION = "2025-06-18"
MAX_MESSAGE_BYTES = 16 << 20
METHOD_NOT_FOUND = -32601

Object = Mapping[str, object]
T = TypeVar("T")


class McpServerError(Exception):
    """The server replied with an error, or with something that is not a reply."""


class McpConnectionLost(Exception):
    """The connection ended. `may_have_run`: a request was sent and not answered."""

    def __init__(self, message: str, *, may_have_run: bool = True) -> None:
        super().__init__(message)
        self.may_have_run = may_have_run


class McpTimeout(McpConnectionLost):
    """The server did not answer in time."""


async def within(work: Awaitable[T], timeout_s: float) -> T:
    """Raises McpTimeout, and what the work raises."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=timeout_s)
        if not task.done():
            raise McpTimeout(f"the server did not answer within {timeout_s:g} s")
        return task.result()
    finally:
        task.cancel()


def request(number: int, method: str, params: Object) -> bytes:
    return _encode({"jsonrpc": "2.0", "id": number, "method": method, "params": params})


def notification(method: str, params: Object | None = None) -> bytes:
    return _encode(
        {"jsonrpc": "2.0", "method": method, **({} if params is None else {"params": params})}
    )


def reply_to(message: Object) -> bytes:
    """The reply to a request of the server: a ping is answered, all else is not supported."""
    reply: dict[str, object] = {"jsonrpc": "2.0", "id": message.get("id")}
    if message.get("method") == "ping":
        reply["result"] = {}
    else:
        reply["error"] = {"code": METHOD_NOT_FOUND, "message": "not supported by this client"}
    return _encode(reply)


def initialize_params() -> Object:
    return {
        "protocolVersion": PROTOCOL_VERSION,
        "capabilities": {},
        "clientInfo": {"name": "chatd", "version": "1"},
    }


def decode(data: bytes | str) -> Object | None:
    """Decode one message; None if it is not a message."""
    try:
        value: object = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return cast("Object", value) if isinstance(value, dict) else None


def result_of(message: Object) -> Object:
    """Raises McpServerError."""
    error = message.get("error")
    if isinstance(error, dict):
        raise McpServerError(str(cast("Object", error).get("message"))[:1000])
    result = message.get("result")
    if not isinstance(result, dict):
        raise McpServerError("the reply has no result")
    return cast("Object", result)


def _encode(value: Object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii")


# A server at a URL: streamable HTTP, one connection per request, with bounded replies.

NOTICE_TIMEOUT_S = 10.0
_MAX_LINE_BYTES = 64 << 10


class HttpClient:
    """`is_open` is False after the server has forgotten the session."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise McpServerError("the url must begin with http:// or https://")
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._host = parts.hostname
        self._port = parts.port or (443 if self._tls else 80)
        self._authority = parts.netloc.rpartition("@")[2]
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._headers = dict(headers)
        self._session = ""
        self._last_id = 0
        self.is_open = True

    async def ask(self, method: str, params: Object, timeout_s: float) -> Object:
        """Raises McpServerError and McpConnectionLost."""
        self._last_id += 1
        number = self._last_id
        return await within(self._ask(number, method, request(number, method, params)), timeout_s)

    async def tell(self, method: str) -> None:
        await within(self._post(notification(method), None), NOTICE_TIMEOUT_S)

    async def close(self) -> None:
        self.is_open = False

    async def _ask(self, number: int, method: str, body: bytes) -> Object:
        reply = await self._post(body, number, learn_session=method == "initialize")
        if reply is None:
            raise McpServerError("the server sent no reply")
        return result_of(reply)

    async def _post(
        self, body: bytes, number: int | None, *, learn_session: bool = False
    ) -> Object | None:
        try:
            reader, writer = await asyncio.open_connection(
                self._host, self._port, ssl=self._tls, limit=MAX_MESSAGE_BYTES
            )
        except (OSError, UnicodeError) as error:
            raise McpConnectionLost(f"cannot connect: {error}", may_have_run=False) from None
        try:
            writer.write(self._head(len(body)) + body)
            await writer.drain()
            status, headers = await _read_head(reader)
            self._check_status(status)
            if learn_session:
                self._session = headers.get("mcp-session-id", "")
            if number is None:
                return None
            chunks = _read_body(reader, headers)
            if headers.get("content-type", "").startswith("text/event-stream"):
                return await _find_event(chunks, number)
            return _matching(decode(b"".join([chunk async for chunk in chunks])), number)
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            text = f"the connection broke: {error or type(error).__name__}"
            raise McpConnectionLost(text) from None
        finally:
            writer.close()
            with suppress(OSError, ssl.SSLError):
                await writer.wait_closed()

    def _check_status(self, status: int) -> None:
        if status == 404 and self._session:
            self.is_open = False
            raise McpConnectionLost("the server has forgotten the session", may_have_run=False)
        if not 200 <= status < 300:
            raise McpServerError(f"the server replied with status {status}")

    def _head(self, length: int) -> bytes:
        headers = {
            **self._headers,
            "Host": self._authority,
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "Accept-Encoding": "identity",
            "MCP-Protocol-Version": PROTOCOL_VERSION,
            "Content-Length": str(length),
            "Connection": "close",
        }
        if self._session:
            headers["Mcp-Session-Id"] = self._session
        lines = [f"POST {self._target} HTTP/1.1"]
        for name, value in headers.items():
            if any(char in name + value for char in "\r\n\0"):
                raise McpServerError(f"the header {name!r} has a line break")
            lines.append(f"{name}: {value}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("utf-8")


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    while True:
        status = int((await _read_line(reader)).split(" ", 2)[1])
        headers: dict[str, str] = {}
        while line := await _read_line(reader):
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
            if len(headers) > 200:
                raise ValueError("too many headers")
        if status >= 200:
            return status, headers


async def _read_line(reader: asyncio.StreamReader) -> str:
    line = await reader.readuntil(b"\n")
    if len(line) > _MAX_LINE_BYTES:
        raise ValueError("a line is too long")
    return line.decode("latin-1").rstrip("\r\n")


async def _read_body(
    reader: asyncio.StreamReader, headers: Mapping[str, str]
) -> AsyncGenerator[bytes, None]:
    left = MAX_MESSAGE_BYTES
    if headers.get("content-encoding", "identity") != "identity":
        raise ValueError("the reply is compressed")
    if headers.get("transfer-encoding", "").lower() == "chunked":
        while size := int((await _read_line(reader)).split(";")[0], 16):
            left -= size
            if size < 0 or left < 0:
                raise ValueError(f"the reply has more than {MAX_MESSAGE_BYTES} bytes")
            yield await reader.readexactly(size)
            await reader.readline()
        return
    length = headers.get("content-length")
    wanted = None if length is None else int(length)
    while wanted is None or wanted > 0:
        chunk = await reader.read(64 << 10 if wanted is None else min(wanted, 64 << 10))
        if not chunk:
            if wanted:
                raise ValueError("the reply is incomplete")
            return
        left -= len(chunk)
        if left < 0:
            raise ValueError(f"the reply has more than {MAX_MESSAGE_BYTES} bytes")
        wanted = None if wanted is None else wanted - len(chunk)
        yield chunk


async def _find_event(chunks: AsyncGenerator[bytes, None], number: int) -> Object | None:
    """The reply among the events of a stream; the others are notifications."""
    pending = b""
    data: list[bytes] = []
    async for chunk in chunks:
        *lines, pending = (pending + chunk).split(b"\n")
        for line in (each.rstrip(b"\r") for each in lines):
            if line.startswith(b"data:"):
                data.append(line[5:].strip())
            elif not line and data:
                found = _matching(decode(b"\n".join(data)), number)
                data = []
                if found is not None:
                    return found
    return None


def _matching(message: Object | None, number: int) -> Object | None:
    return message if message is not None and message.get("id") == number else None


# A server as a child process that speaks JSON lines.

CLOSE_GRACE_S = 2.0
LAST_ERROR_WAIT_S = 0.5
MAX_LAST_ERROR_BYTES = 500
# When memory is short, the kernel kills servers before the agent.
_DIE_FIRST = '{ echo 1000 >>/proc/self/oom_score_adj; } 2>/dev/null; exec "$@"'


class StdioClient:
    """Open it with `start`. Its replies are read by a task until the process ends."""

    def __init__(self, process: asyncio.subprocess.Process, on_change: Callable[[], None]) -> None:
        self._process = process
        self._on_change = on_change
        self._waiting: dict[int, asyncio.Future[Object]] = {}
        self._last_id = 0
        self._end = ""
        self._last_error = b""
        self._error_reader = asyncio.ensure_future(self._read_errors())
        self._reader = asyncio.ensure_future(self._read())

    @staticmethod
    async def start(
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        workdir: str,
        on_change: Callable[[], None],
    ) -> StdioClient:
        """Raises OSError. The process has a session of its own, so that it ends with its
        children."""
        process = await asyncio.create_subprocess_exec(
            *("/bin/sh", "-c", _DIE_FIRST, "sh", *argv),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(env),
            cwd=workdir,
            start_new_session=True,
            limit=MAX_MESSAGE_BYTES,
        )
        return StdioClient(process, on_change)

    @property
    def is_open(self) -> bool:
        return not self._end

    async def ask(self, method: str, params: Object, timeout_s: float) -> Object:
        """Raises McpServerError and McpConnectionLost. A request that is given up is cancelled on
        the server."""
        if self._end:
            raise McpConnectionLost(self._end, may_have_run=False)
        self._last_id += 1
        number = self._last_id
        reply: asyncio.Future[Object] = asyncio.get_running_loop().create_future()
        self._waiting[number] = reply
        try:
            await self._write(request(number, method, params))
            return result_of(await within(reply, timeout_s))
        except (McpTimeout, asyncio.CancelledError):
            self._send(notification("notifications/cancelled", {"requestId": number}))
            raise
        finally:
            self._waiting.pop(number, None)

    async def tell(self, method: str) -> None:
        await self._write(notification(method))

    async def close(self) -> None:
        """Close its input first: well-behaved servers then exit. After that the group is killed."""
        self._stop("the server was closed")
        if self._process.stdin is not None:
            self._process.stdin.close()
        with suppress(McpTimeout):
            await within(self._process.wait(), CLOSE_GRACE_S)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        self._reader.cancel()
        self._error_reader.cancel()

    async def _write(self, data: bytes) -> None:
        """Writes nothing to a server that has just ended: the reader fails all waits."""
        self._send(data)
        assert self._process.stdin is not None
        with suppress(ConnectionError, RuntimeError):
            await self._process.stdin.drain()

    def _send(self, data: bytes) -> None:
        stdin = self._process.stdin
        if stdin is not None and not stdin.is_closing():
            stdin.write(data + b"\n")

    async def _read(self) -> None:
        assert self._process.stdout is not None
        reason = ""
        try:
            while line := await self._process.stdout.readline():
                self._take(line)
        except ValueError:
            reason = f"the server sent a line of more than {MAX_MESSAGE_BYTES} bytes"
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        except OSError:
            pass
        # A child of the server may hold the stream open.
        await asyncio.wait({self._error_reader}, timeout=LAST_ERROR_WAIT_S)
        self._stop(reason or self._explain_end())
        self._on_change()

    async def _read_errors(self) -> None:
        """Read the server's log. Only the end is kept, because it may say why the server ended."""
        assert self._process.stderr is not None
        with suppress(OSError):
            while chunk := await self._process.stderr.read(64 << 10):
                self._last_error = (self._last_error + chunk)[-MAX_LAST_ERROR_BYTES:]

    def _explain_end(self) -> str:
        lines = self._last_error.decode("utf-8", "replace").strip().splitlines()
        return f"the server has ended: {lines[-1]}" if lines else "the server has ended"

    def _take(self, line: bytes) -> None:
        message = decode(line)
        if message is None:
            return  # some servers print other lines
        number, method = message.get("id"), message.get("method")
        if isinstance(method, str):
            if "id" in message:
                self._send(reply_to(message))
            elif method == "notifications/tools/list_changed":
                self._on_change()
            return
        reply = self._waiting.get(number) if isinstance(number, int) else None
        if reply is not None and not reply.done():
            reply.set_result(message)

    def _stop(self, reason: str) -> None:
        self._end = self._end or reason
        for reply in self._waiting.values():
            if not reply.done():
                reply.set_exception(McpConnectionLost(self._end))
