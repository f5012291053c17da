"""One signed request to an agent and its verified reply, over an HTTP connection of its own.

Every request has a time limit, every reply a size limit, redirects are not followed, and only
replies signed by the agent are accepted. A cancelled request closes its connection. Connections are
not reused: if the agent had closed a kept connection, nobody could say whether it received the
request.
"""

import asyncio
import hashlib
import hmac
import io
import os
import secrets
import stat
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final, TypeVar

import aiohttp
import msgspec
from msgspec import Raw, Struct
from yarl import URL

from chatd.agent.server.auth import (
    NO_BOOT,
    RequestClaim,
    digest,
    line_mac,
    reply_mac,
    signed_headers,
)
from chatd.domain.errors import ChatdError
from chatd.domain.workspace.agent_api import AgentUnreachable, ConnectFailed
from chatd.domain.workspace.entities import AgentId, Endpoint
from chatd.sealed_secrets import load_or_create
from chatd.workspaces.tunnels.byte_streams import (
    ByteStream,
    SocketStream,
    http_over,
    open_socket,
)

# Keys and signatures.
#
# `chatd.agent.server.auth` defines what is signed; the agent uses the same module. The host id and
# the server's secret are files in the data directory, created once even if several servers start at
# the same time.

HOST_ID_FILE: Final = "host-id"
SECRET_FILE: Final = "secret"
_MIN_SECRET_CHARS: Final = 16


class UntrustedReply(ChatdError):
    """The reply was not signed by the agent that was asked."""

    code = "agent_untrusted"


def host_id(data_dir: Path) -> str:
    """Servers that share a data directory share its workspaces, and so its host id."""
    return _read_or_create(data_dir / HOST_ID_FILE)


def server_secret(given: str | None, data_dir: Path) -> bytes:
    """The secret from `CHATD_SECRET`, which several hosts must share, else that of the file."""
    text = _read_or_create(data_dir / SECRET_FILE) if given is None else given.strip()
    if len(text) < _MIN_SECRET_CHARS:
        name = data_dir / SECRET_FILE if given is None else "CHATD_SECRET"
        raise ChatdError(
            f"{name} is too short: at least {_MIN_SECRET_CHARS} characters", code="settings"
        )
    return text.encode()


def derive_agent_key(secret: bytes, agent_id: AgentId) -> bytes:
    """The key is derived whenever it is needed, so it is stored nowhere."""
    return hmac.new(secret, f"dial:{agent_id}".encode(), hashlib.sha256).digest()


MAX_UNIX_TIME: Final = 10**11


class _ClockRefusal(Struct, frozen=True, kw_only=True):
    code: str = ""
    now: int = 0


class SignedRequest(Struct, frozen=True, kw_only=True):
    """The headers to send, and the nonce that the reply's signature must cover."""

    headers: Mapping[str, str]
    nonce: str


class AgentSigner:
    """Signs requests to one agent and verifies its replies.

    `now` returns wall time in seconds; the agent compares it with its own clock. The clock of its
    machine may be wrong: then the agent refuses the request and tells its time, which is followed.
    """

    def __init__(self, agent_id: AgentId, key: bytes, now: Callable[[], float]) -> None:
        self._agent_id = str(agent_id)
        self._key = key
        self._now = now
        self._ahead_s = 0.0

    def sign(
        self,
        method: str,
        target: str,
        *,
        boot: str = NO_BOOT,
        headers: Mapping[str, str],
        body: bytes,
    ) -> SignedRequest:
        nonce = secrets.token_hex(16)
        claim = RequestClaim(
            method=method,
            target=target,
            agent=self._agent_id,
            boot=boot,
            at=int(self._now() + self._ahead_s),
            nonce=nonce,
            body=digest(body),
            headers=signed_headers({name.lower(): value for name, value in headers.items()}),
        )
        return SignedRequest(
            headers={**headers, "Authorization": claim.authorization(self._key)}, nonce=nonce
        )

    def follow_clock(self, response: "AgentResponse") -> bool:
        """Whether the agent refused the request because of its time, and nothing else."""
        if response.status != 401:
            return False
        try:
            refusal = msgspec.json.decode(response.body, type=_ClockRefusal)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        if refusal.code != "clock_skew" or not 0 < refusal.now < MAX_UNIX_TIME:
            return False
        self._ahead_s = refusal.now - self._now()
        return True

    def verify(self, nonce: str, status: int, headers: Mapping[str, str], body: bytes) -> str:
        """Return the boot id of the run that replied. Raises UntrustedReply."""
        boot = headers.get("Chatd-Boot", "")
        expected = reply_mac(self._key, nonce=nonce, status=status, boot=boot, body=body)
        given = headers.get("Chatd-Mac", "")
        if not hmac.compare_digest(expected.encode(), given.encode("utf-8", "surrogateescape")):
            raise UntrustedReply("the reply is not signed with the agent's key")
        return boot

    def verify_line(self, nonce: str, number: int, *, boot: str, text: bytes, mac: str) -> None:
        """Verify one line of a streamed reply; the first has number 1. Raises UntrustedReply."""
        expected = line_mac(self._key, nonce=nonce, number=number, boot=boot, text=text)
        if not hmac.compare_digest(expected.encode(), mac.encode("utf-8", "surrogateescape")):
            raise UntrustedReply("a line of the reply is not signed with the agent's key")


def _read_or_create(path: Path) -> str:
    try:
        return load_or_create(path, lambda: secrets.token_hex(32))
    except OSError as error:
        raise ChatdError(f"cannot create or read {path}: {error.strerror}") from error


# Requests and replies

MAX_JSON_BYTES: Final = 4 << 20
AGENT_REPLY_TIMEOUT_S: Final = 30.0
KEY_HEADER: Final = "Idempotency-Key"
_MAX_HEADER_BYTES: Final = 8 * 1024
_MAX_UNSTREAMED_BODY_BYTES: Final = 512 * 1024
"""aiohttp sends a larger body in pieces, so that the event loop runs other tasks in between."""


Bytes = TypeVar("Bytes", bytes, bytearray)


class AgentRequest(Struct, frozen=True, kw_only=True):
    """`target` is path and query as sent. The agent may take `wait_s` before it replies, because
    it was asked to; `timeout_s` bounds everything else."""

    method: str
    target: str
    headers: Mapping[str, str] = {}
    body: bytes = b""
    wait_s: float = 0
    timeout_s: float = AGENT_REPLY_TIMEOUT_S
    max_body_bytes: int = MAX_JSON_BYTES

    @property
    def has_effect(self) -> bool:
        return self.method != "GET"

    @property
    def is_repeatable(self) -> bool:
        """Whether sending it twice is the same as once: the agent answers a known key from its
        journal."""
        return not self.has_effect or KEY_HEADER in self.headers


class AgentResponse(Struct, frozen=True, kw_only=True):
    status: int
    boot: str
    body: bytes


class AgentTimeout(AgentUnreachable):
    """The agent did not answer in time."""


class _SignedLine(Struct, frozen=True):
    mac: str
    event: Raw


OpenStream = Callable[[AgentId, Endpoint], Awaitable[ByteStream]]
"""Opens a byte stream to an agent of another host. Raises ConnectFailed."""


class AgentSession:
    """Sends requests to one agent at one endpoint: directly if it is on this host, else by
    `open_stream`."""

    def __init__(
        self,
        agent_id: AgentId,
        endpoint: Endpoint,
        signer: AgentSigner,
        open_stream: OpenStream | None = None,
    ) -> None:
        self._agent_id = agent_id
        self._endpoint = endpoint
        self._signer = signer
        self._open_stream = open_stream

    async def send(self, request: AgentRequest, *, boot: str = NO_BOOT) -> AgentResponse:
        """Return the reply with any status. Raises AgentUnreachable."""
        # aiohttp's errors hold the request with its headers. They are not chained, so that no
        # signature is logged.
        try:
            async with asyncio.timeout(request.timeout_s + request.wait_s):
                response = await self._send_once(request, boot)
                if self._signer.follow_clock(response):
                    response = await self._send_once(request, boot)
                return response
        except _FAULTS as error:
            lost = _lost(error)
        raise lost

    async def _send_once(self, request: AgentRequest, boot: str) -> AgentResponse:
        signed = self._sign(request, boot)
        async with self._open() as (session, base):
            response = await _start(session, base, request, signed)
            return await self._read(response, request, signed)

    async def stream_lines(
        self,
        request: AgentRequest,
        *,
        boot: str,
        idle_timeout_s: float,
        refuse: Callable[[AgentResponse], object],
    ) -> AsyncGenerator[bytes]:
        """Yield the lines of a streamed reply.

        `timeout_s` bounds the time to the reply's head, `max_body_bytes` each line and
        `idle_timeout_s` the silence between two lines. A reply with another status than 200 is
        passed to `refuse`, which raises. Raises AgentUnreachable.
        """
        signed = self._sign(request, boot)
        try:
            async with self._open() as (session, base):
                async with asyncio.timeout(request.timeout_s):
                    response = await _start(session, base, request, signed)
                try:
                    async with asyncio.timeout(request.timeout_s):
                        if response.status != 200:
                            refuse(await self._read(response, request, signed))
                    boot = self._signer.verify(signed.nonce, 200, response.headers, b"")
                    lines = _split_lines(response, request.max_body_bytes, idle_timeout_s)
                    async with aclosing(lines):
                        number = 0
                        async for line in lines:
                            number += 1
                            yield self._verify_line(line, signed.nonce, number, boot)
                finally:
                    response.close()
                return
        except _FAULTS as error:
            lost = _lost(error)
        raise lost

    async def open_bytes(
        self, request: AgentRequest, *, boot: str
    ) -> "tuple[AgentResponse, ByteStream | None]":
        """Ask the agent to turn the connection into a stream of bytes: status 101, which the agent
        signs. The bytes are not signed. With any other status there is no stream. Raises
        AgentUnreachable."""
        signed = self._sign(request, boot)
        stream: ByteStream | None = None
        is_open = False
        try:
            async with asyncio.timeout(request.timeout_s):
                stream = await self._dial()
                reader = _HeadReader(stream)
                await stream.write(_encode_head(request, signed))
                status, headers = await reader.read_head()
                body = b"" if status == 101 else await reader.read_body(headers)
            replied_by = self._signer.verify(signed.nonce, status, headers, body)
            response = AgentResponse(status=status, boot=replied_by, body=body)
            is_open = status == 101
            return response, StreamAfterHead(stream, reader.rest) if is_open else None
        except _FAULTS as error:
            lost = _lost(error)
        finally:
            if stream is not None and not is_open:
                await stream.close()
        raise lost

    async def _dial(self) -> ByteStream:
        if self._open_stream is not None:
            return await self._open_stream(self._agent_id, self._endpoint)
        endpoint = self._endpoint
        if endpoint.kind == "tcp":
            return SocketStream(*await asyncio.open_connection(endpoint.host, endpoint.port))
        return await open_socket(endpoint.path)

    def _sign(self, request: AgentRequest, boot: str) -> SignedRequest:
        return self._signer.sign(
            request.method, request.target, boot=boot, headers=request.headers, body=request.body
        )

    @asynccontextmanager
    async def _open(self) -> AsyncGenerator[tuple[aiohttp.ClientSession, str]]:
        if self._open_stream is not None:
            stream = await self._open_stream(self._agent_id, self._endpoint)
            async with http_over(stream) as connector, _client(connector) as session:
                yield session, "http://agent"
            return
        with _connector(self._endpoint) as (connector, base):
            async with _client(connector) as session:
                yield session, base

    async def _read(
        self, response: aiohttp.ClientResponse, request: AgentRequest, signed: SignedRequest
    ) -> AgentResponse:
        try:
            body = await _read_body(response, request.max_body_bytes)
        finally:
            response.close()
        boot = self._signer.verify(signed.nonce, response.status, response.headers, body)
        return AgentResponse(status=response.status, boot=boot, body=body)

    def _verify_line(self, line: bytes, nonce: str, number: int, boot: str) -> bytes:
        try:
            signed = msgspec.json.decode(line, type=_SignedLine)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise UntrustedReply("a line of the reply is not signed") from None
        text = bytes(signed.event)
        self._signer.verify_line(nonce, number, boot=boot, text=text, mac=signed.mac)
        return text


def _encode_head(request: AgentRequest, signed: SignedRequest) -> bytes:
    lines = [
        f"{request.method} {request.target} HTTP/1.1",
        "Host: agent",
        *(f"{name}: {value}" for name, value in signed.headers.items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


class _HeadReader:
    """Reads the head of a reply from a stream. `rest` is what came after it."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self.rest = b""

    async def read_head(self) -> tuple[int, Mapping[str, str]]:
        while b"\r\n\r\n" not in self.rest:
            if len(self.rest) > _MAX_HEADER_BYTES:
                raise UntrustedReply("the head of the reply is too long")
            await self._read_more()
        head, _, self.rest = self.rest.partition(b"\r\n\r\n")
        first, *fields = head.decode("latin-1").split("\r\n")
        words = first.split(" ", 2)
        if len(words) < 2 or not (words[1].isascii() and words[1].isdigit()):
            raise UntrustedReply("the reply is not HTTP")
        parts = (field.partition(":") for field in fields)
        return int(words[1]), {name.strip().title(): value.strip() for name, _, value in parts}

    async def read_body(self, headers: Mapping[str, str]) -> bytes:
        length = headers.get("Content-Length", "0")
        if not (length.isascii() and length.isdigit()) or int(length[:9]) > MAX_JSON_BYTES:
            raise UntrustedReply("the reply has no usable length")
        while len(self.rest) < int(length):
            await self._read_more()
        return self.rest[: int(length)]

    async def _read_more(self) -> None:
        if not (data := await self._stream.read()):
            raise ConnectionError("closed")
        self.rest += data


class StreamAfterHead:
    """Satisfies `ByteStream`: first the bytes that came together with the head."""

    def __init__(self, stream: ByteStream, first: bytes) -> None:
        self._stream = stream
        self._first = first

    async def read(self) -> bytes:
        if first := self._first:
            self._first = b""
            return first
        return await self._stream.read()

    async def write(self, data: bytes) -> None:
        await self._stream.write(data)

    async def close(self) -> None:
        await self._stream.close()


def _client(connector: aiohttp.BaseConnector) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None),
        auto_decompress=False,
        max_line_size=_MAX_HEADER_BYTES,
        max_field_size=_MAX_HEADER_BYTES,
        trust_env=False,
    )


async def _start(
    session: aiohttp.ClientSession, base: str, request: AgentRequest, signed: SignedRequest
) -> aiohttp.ClientResponse:
    body = request.body
    return await session.request(
        request.method,
        URL(base + request.target, encoded=True),
        data=io.BytesIO(body) if len(body) > _MAX_UNSTREAMED_BODY_BYTES else body or None,
        headers={"Accept-Encoding": "identity", **signed.headers},
        allow_redirects=False,
    )


@contextmanager
def _connector(endpoint: Endpoint) -> Generator[tuple[aiohttp.BaseConnector, str]]:
    """A process in the workspace can replace the agent's socket by a link to another socket of
    this host. So the file is opened without following links, and that file is connected to."""
    if endpoint.kind == "tcp":
        host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
        yield aiohttp.TCPConnector(force_close=True), f"http://{host}:{endpoint.port}"
        return
    try:
        pinned = os.open(endpoint.path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise ConnectFailed(_unreachable_text(error)) from None
    try:
        if not stat.S_ISSOCK(os.fstat(pinned).st_mode):
            text = "The workspace agent cannot be reached: its endpoint is not a socket."
            raise ConnectFailed(text, code=UntrustedReply.code)
        path = f"/proc/self/fd/{pinned}"
        yield aiohttp.UnixConnector(path, force_close=True), "http://agent"
    finally:
        os.close(pinned)


async def _read_body(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > max_bytes:
            raise UntrustedReply(f"the reply is longer than {max_bytes} bytes")
    return bytes(body)


async def _split_lines(
    response: aiohttp.ClientResponse, max_bytes: int, idle_timeout_s: float
) -> AsyncGenerator[bytes]:
    unfinished = bytearray()
    while True:
        async with asyncio.timeout(idle_timeout_s):
            chunk = await response.content.readany()
        if not chunk:
            return
        unfinished += chunk
        if b"\n" in chunk:
            *whole, rest = bytes(unfinished).split(b"\n")
            unfinished = bytearray(rest)
            for line in whole:
                yield _check_length(line, max_bytes)
        _check_length(unfinished, max_bytes)


def _check_length(line: Bytes, max_bytes: int) -> Bytes:
    if len(line) > max_bytes:
        raise UntrustedReply(f"a line is longer than {max_bytes} bytes")
    return line


_FAULTS: Final = (aiohttp.ClientError, OSError, ValueError, RuntimeError, UntrustedReply)


def _lost(error: Exception) -> AgentUnreachable:
    match error:
        case TimeoutError():
            return AgentTimeout("The workspace agent did not answer in time.")
        case UntrustedReply():
            return AgentUnreachable(
                f"What answers is not the agent: {error.message}.", code=error.code
            )
        case aiohttp.ClientConnectorError():
            return ConnectFailed(_unreachable_text(error))
        case _:
            return AgentUnreachable(_unreachable_text(error))


def _unreachable_text(error: Exception) -> str:
    """Describe the error without the request, which aiohttp's own messages may quote."""
    text = error.strerror if isinstance(error, OSError) else None
    reason = text.lower() if text else type(error).__name__
    return f"The workspace agent cannot be reached: {reason}."
