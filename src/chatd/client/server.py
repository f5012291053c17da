"""`ServerApi`: requests to the API of one server.

A request that may be repeated is, while the server does not answer: reads, and changes under one
Idempotency-Key. Replies are bounded, redirects are not followed: the token goes to no other place.
"""

import asyncio
import random
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import NoneType
from typing import BinaryIO, Final, TypeVar, cast
from urllib.parse import urlencode

import aiohttp
import msgspec
from msgspec import Struct

from chatd.aio import Backoff
from chatd.client.errors import ApiError, ServerUnreachable, Validation
from chatd.client.exchange import Exchange, NoAnswer, Outgoing
from chatd.client.server_address import ServerAddress
from chatd.clock import SystemClock
from chatd.domain.file.names import content_disposition
from chatd.domain.ports import Clock

__all__ = ["ApiError", "ServerAddress", "ServerApi", "ServerUnreachable", "Validation", "new_key"]

T = TypeVar("T")
QueryValue = str | int | bool | Sequence[str] | None

PATIENCE_S: Final = 15.0
MAX_REPLY_BYTES: Final = 64 * 1024 * 1024
MAX_DOWNLOAD_BYTES: Final = 1024 * 1024 * 1024
UPLOAD_TIMEOUT_S: Final = 660.0
_CHUNK_BYTES: Final = 256 * 1024
_BACKOFF: Final = Backoff(first_delay_s=0.25, max_delay_s=4.0)
_REPEATABLE: Final = frozenset({"GET", "PUT", "DELETE"})
_CLOCK: Final = SystemClock()


def new_key() -> str:
    """An Idempotency-Key."""
    return secrets.token_urlsafe(18)


class ServerApi:
    """Paths are those below `/api/v1`. Everything raises ApiError and ServerUnreachable."""

    def __init__(
        self,
        server: ServerAddress,
        http: aiohttp.ClientSession,
        *,
        clock: Clock = _CLOCK,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """A request is repeated for up to `patience_s` while the server does not answer."""
        self.server = server
        self.http = http
        self.clock = clock
        self._patience_s = patience_s
        self._exchange = Exchange(server, http)

    def without_patience(self) -> "ServerApi":
        """For a caller that repeats requests by itself."""
        return ServerApi(self.server, self.http, clock=self.clock, patience_s=0.0)

    async def get(self, path: str, reply: type[T], **query: QueryValue) -> T:
        return await self._ask(Outgoing(method="GET", path=_with_query(path, query)), reply)

    async def post(self, path: str, body: object, reply: type[T], *, key: str | None = None) -> T:
        """With a key the request is sent again until it is answered: the server runs it once. A
        body of None is no body; `NoneType` expects none."""
        sent = Outgoing(method="POST", path=path, body=_encode(body), headers=_key_header(key))
        return await self._ask(sent, reply)

    async def put(self, path: str, body: object, reply: type[T]) -> T:
        return await self._ask(Outgoing(method="PUT", path=path, body=_encode(body)), reply)

    async def patch(self, path: str, body: object, reply: type[T], *, key: str | None = None) -> T:
        """With a key the request is sent again until it is answered, as by `post`."""
        sent = Outgoing(method="PATCH", path=path, body=_encode(body), headers=_key_header(key))
        return await self._ask(sent, reply)

    async def delete(self, path: str, **query: QueryValue) -> None:
        await self.delete_for(path, NoneType, **query)

    async def delete_for(self, path: str, reply: type[T], **query: QueryValue) -> T:
        """For the few that reply something."""
        return await self._ask(Outgoing(method="DELETE", path=_with_query(path, query)), reply)

    async def upload(
        self, path: str, name: str, media_type: str, file: BinaryIO, reply: type[T]
    ) -> T:
        """Sends the rest of the file from its current place."""
        headers = {
            "Content-Type": media_type,
            "Content-Disposition": content_disposition("attachment", name),
            **_key_header(new_key()),
        }
        start = file.tell()

        def chunks() -> AsyncIterator[bytes]:
            return _read_chunks(file, start)

        sent = Outgoing(
            method="POST", path=path, chunks=chunks, headers=headers, timeout_s=UPLOAD_TIMEOUT_S
        )
        return await self._ask(sent, reply)

    async def download(self, path: str, *, max_bytes: int = MAX_REPLY_BYTES) -> bytes:
        found = await self._repeat(
            Outgoing(method="GET", path=path, accept="*/*", max_bytes=max_bytes)
        )
        return found.body

    async def download_to(
        self, path: str, write: Callable[[bytes], object], *, max_bytes: int = MAX_DOWNLOAD_BYTES
    ) -> int:
        """Hands over the bytes as they come, and returns their number. Not repeated."""
        sent = Outgoing(method="GET", path=path, accept="*/*", timeout_s=None, max_bytes=max_bytes)
        try:
            return await self._exchange.stream(sent, write)
        except NoAnswer as lost:
            raise lost.as_error(self.server.url) from lost

    async def _ask(self, sent: Outgoing, reply: type[T]) -> T:
        found = await self._repeat(sent)
        return found.decode(reply)

    async def _repeat(self, sent: Outgoing) -> "Reply":
        give_up_at = self.clock.monotonic() + self._patience_s
        is_repeatable = sent.method in _REPEATABLE or "Idempotency-Key" in sent.headers
        failures = 0
        while True:
            try:
                body = await self._exchange.send(sent, is_repeat=failures > 0)
                return Reply(sent, self.server.url, body)
            except NoAnswer as lost:
                failures += 1
                delay_s = max(_BACKOFF.delay(failures, random.random), lost.wait_s)
                may_repeat = lost.is_temporary and (is_repeatable or lost.was_not_sent)
                if not may_repeat or self.clock.monotonic() + delay_s > give_up_at:
                    raise lost.as_error(self.server.url) from lost
            await self.clock.sleep(delay_s, "client_retry")


class Reply(Struct, frozen=True):
    sent: Outgoing
    url: str
    body: bytes

    def decode(self, reply: type[T]) -> T:
        if reply is NoneType:
            return cast("T", None)
        try:
            return msgspec.json.decode(self.body, type=reply)
        except (msgspec.MsgspecError, RecursionError) as error:
            text = (
                f"This client does not understand the reply of {self.url} to {self.sent.method}"
                f" {self.sent.path.partition('?')[0]} ({error}). Are both of the same version?"
            )
            raise ApiError(200, "unexpected_reply", text) from None


def _with_query(path: str, query: Mapping[str, QueryValue]) -> str:
    pairs = [(name, text) for name, value in query.items() for text in _texts(value)]
    return f"{path}?{urlencode(pairs)}" if pairs else path


def _texts(value: QueryValue) -> Sequence[str]:
    if value is None:
        return ()
    if isinstance(value, bool):
        return ("true" if value else "false",)
    return (str(value),) if isinstance(value, str | int) else value


def _encode(body: object) -> bytes | None:
    return None if body is None else msgspec.json.encode(body)


def _key_header(key: str | None) -> Mapping[str, str]:
    return {} if key is None else {"Idempotency-Key": key}


async def _read_chunks(file: BinaryIO, start: int) -> AsyncIterator[bytes]:
    await asyncio.to_thread(file.seek, start)
    while chunk := await asyncio.to_thread(file.read, _CHUNK_BYTES):
        yield chunk
