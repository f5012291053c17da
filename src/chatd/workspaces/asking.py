"""One signed question to an agent and its verified answer, over a connection of its own.

Owns what may go wrong on the way: every question has an end in time, every answer in size, no
redirect is followed, and nothing is believed that the agent has not signed. Each question has its
own connection, so that leaving off closes it and an old connection is never a reason to ask twice.
"""

import asyncio
import errno
import io
import os
import stat
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Final, TypeVar

import aiohttp
import msgspec
from msgspec import Raw, Struct
from yarl import URL

from chatd.agent.server.auth import NO_BOOT
from chatd.domain.workspace.agent_api import AgentUnreachable
from chatd.domain.workspace.entities import Endpoint
from chatd.workspaces.signing import Signed, Signer, Untrusted

MAX_JSON: Final = 4 << 20
_HEADER_LIMIT: Final = 8 * 1024
# What is larger goes out piece by piece, so that the loop is free in between.
_WHOLE_BODY: Final = 512 * 1024


Bytes = TypeVar("Bytes", bytes, bytearray)


class Ask(Struct, frozen=True, kw_only=True):
    """`target` is the path and query as they go over the wire. `answer_s` bounds all of it."""

    method: str
    target: str
    headers: Mapping[str, str] = {}
    body: bytes = b""
    answer_s: float = 30
    max_answer: int = MAX_JSON


class Answer(Struct, frozen=True, kw_only=True):
    status: int
    boot: str
    body: bytes


class _Sealed(Struct, frozen=True):
    """A line of an answer that goes on."""

    mac: str
    event: Raw


class Line:
    """A way to one agent. Closing cuts off whoever still asks, and nobody can ask any more.

    `lost`: the last question that came to an end had no answer.
    """

    def __init__(self, endpoint: Endpoint, signer: Signer) -> None:
        self.lost = False
        self._endpoint = endpoint
        self._signer = signer
        self._asking: set[aiohttp.ClientSession] = set()
        self._closed = False

    @property
    def asking(self) -> bool:
        """Somebody waits for an answer."""
        return bool(self._asking)

    async def close(self) -> None:
        self._closed = True
        for session in list(self._asking):
            await session.close()

    async def ask(self, ask: Ask, *, boot: str = NO_BOOT) -> Answer:
        """Raises AgentLost; a refusal is an answer like any other."""
        signed = self._signer.sign(
            ask.method, ask.target, boot=boot, headers=ask.headers, body=ask.body
        )
        # aiohttp's errors carry the request with its headers; ours must not hang on to them.
        try:
            async with asyncio.timeout(ask.answer_s), self._session() as (session, base):
                answer = await self._exchange(session, base, ask, signed)
            self.lost = False
            return answer
        except _TROUBLE as error:
            lost = _lost(error)
        self.lost = True
        raise lost

    async def lines(
        self, ask: Ask, *, boot: str, idle_s: float, refuse: Callable[[Answer], object]
    ) -> AsyncGenerator[bytes]:
        """An answer that goes on, line by line. `answer_s` bounds its beginning, `max_answer` each
        line, `idle_s` the silence between two. Any other answer is for `refuse`, which raises.
        Raises AgentLost."""
        signed = self._signer.sign(
            ask.method, ask.target, boot=boot, headers=ask.headers, body=ask.body
        )
        try:
            async with self._session() as (session, base):
                async with asyncio.timeout(ask.answer_s):
                    response = await self._begin(session, base, ask, signed)
                try:
                    async with asyncio.timeout(ask.answer_s):
                        if response.status != 200:
                            refuse(await self._whole(response, ask, signed))
                    boot = self._signer.verify(signed.nonce, 200, response.headers, b"")
                    async with aclosing(_lines(response, ask.max_answer, idle_s)) as lines:
                        number = 0
                        async for line in lines:
                            number += 1
                            yield self._line(line, signed.nonce, number, boot)
                finally:
                    response.close()
                return
        except _TROUBLE as error:
            lost = _lost(error)
        raise lost

    @asynccontextmanager
    async def _session(self) -> AsyncGenerator[tuple[aiohttp.ClientSession, str]]:
        if self._closed:
            raise OSError(errno.ECONNABORTED, "the connection has been closed")
        with _way(self._endpoint) as (connector, base):
            session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),
                auto_decompress=False,
                max_line_size=_HEADER_LIMIT,
                max_field_size=_HEADER_LIMIT,
                trust_env=False,
            )
            self._asking.add(session)
            try:
                yield session, base
            finally:
                self._asking.discard(session)
                await session.close()

    async def _exchange(
        self, session: aiohttp.ClientSession, base: str, ask: Ask, signed: Signed
    ) -> Answer:
        response = await self._begin(session, base, ask, signed)
        return await self._whole(response, ask, signed)

    def _line(self, line: bytes, nonce: str, number: int, boot: str) -> bytes:
        try:
            sealed = msgspec.json.decode(line, type=_Sealed)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise Untrusted("a line of the reply is not signed") from None
        text = bytes(sealed.event)
        self._signer.verify_line(nonce, number, boot=boot, text=text, mac=sealed.mac)
        return text

    async def _begin(
        self, session: aiohttp.ClientSession, base: str, ask: Ask, signed: Signed
    ) -> aiohttp.ClientResponse:
        return await session.request(
            ask.method,
            URL(base + ask.target, encoded=True),
            data=io.BytesIO(ask.body) if len(ask.body) > _WHOLE_BODY else ask.body or None,
            headers={"Accept-Encoding": "identity", **signed.headers},
            allow_redirects=False,
        )

    async def _whole(self, response: aiohttp.ClientResponse, ask: Ask, signed: Signed) -> Answer:
        try:
            body = await _read(response, ask.max_answer)
        finally:
            response.close()
        boot = self._signer.verify(signed.nonce, response.status, response.headers, body)
        return Answer(status=response.status, boot=boot, body=body)


@contextmanager
def _way(endpoint: Endpoint) -> Generator[tuple[aiohttp.BaseConnector, str]]:
    """Whoever is in the workspace can put something else where its socket was. A link to another
    socket of this host is not followed: what is opened here is what is connected to."""
    if endpoint.kind == "tcp":
        host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
        yield aiohttp.TCPConnector(force_close=True), f"http://{host}:{endpoint.port}"
        return
    pinned = os.open(endpoint.path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISSOCK(os.fstat(pinned).st_mode):
            raise Untrusted("there is something else where its socket should be")
        path = f"/proc/self/fd/{pinned}"
        yield aiohttp.UnixConnector(path, force_close=True), "http://agent"
    finally:
        os.close(pinned)


async def _read(response: aiohttp.ClientResponse, most: int) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > most:
            raise Untrusted(f"the reply is longer than {most} bytes")
    return bytes(body)


async def _lines(
    response: aiohttp.ClientResponse, most: int, idle_s: float
) -> AsyncGenerator[bytes]:
    kept = bytearray()
    while True:
        async with asyncio.timeout(idle_s):
            chunk = await response.content.readany()
        if not chunk:
            return
        kept += chunk
        if b"\n" in chunk:
            *whole, rest = bytes(kept).split(b"\n")
            kept = bytearray(rest)
            for line in whole:
                yield _bounded(line, most)
        _bounded(kept, most)


def _bounded(line: Bytes, most: int) -> Bytes:
    if len(line) > most:
        raise Untrusted(f"a line is longer than {most} bytes")
    return line


_TROUBLE: Final = (aiohttp.ClientError, OSError, ValueError, RuntimeError, Untrusted)


def _lost(error: Exception) -> AgentUnreachable:
    match error:
        case TimeoutError():
            return AgentUnreachable("The workspace agent did not answer in time.")
        case Untrusted():
            return AgentUnreachable(
                f"What answers is not the agent: {error.message}.", code=error.code
            )
        case _:
            return AgentUnreachable(f"The workspace agent cannot be reached: {_reason(error)}.")


def _reason(error: Exception) -> str:
    """A word or two, without the request that aiohttp's texts may quote."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return type(error).__name__
