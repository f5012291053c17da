"""An MCP server at a URL: streamable HTTP, one connection per request, with bounded replies."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from urllib.parse import urlsplit

from chatd.agent.mcp.json_rpc import (
    MAX_MESSAGE_BYTES,
    PROTOCOL_VERSION,
    McpConnectionLost,
    McpServerError,
    Object,
    decode,
    notification,
    request,
    result_of,
    within,
)

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
