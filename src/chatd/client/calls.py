"""Calls of a server's operations: each is sent when it is awaited.

While the server does not answer, reads are repeated, and so are changes under one Idempotency-Key.
Replies are bounded. Redirects are not followed, so the token goes nowhere else.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from types import NoneType
from typing import Any, BinaryIO, Final, Generic, TypeVar, cast
from urllib.parse import urlencode

import aiohttp
import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from chatd.aio import Backoff
from chatd.client.errors import ApiError
from chatd.client.exchange import (
    MAX_REPLY_BYTES,
    REQUEST_TIMEOUT_S,
    Exchange,
    NoAnswer,
    Outgoing,
    ServerAddress,
)
from chatd.client.resources import Page
from chatd.domain.files import content_disposition
from chatd.domain.ports import Clock

T = TypeVar("T")
QueryValue = str | int | bool | Sequence[str] | None

MAX_DOWNLOAD_BYTES: Final = 1024 * 1024 * 1024
MAX_PAGE_ITEMS: Final = 200
"""The server's own limit of one page."""
UPLOAD_TIMEOUT_S: Final = 660.0
_CHUNK_BYTES: Final = 256 * 1024
_BACKOFF: Final = Backoff(first_delay_s=0.25, max_delay_s=4.0)
_REPEATABLE: Final = frozenset({"GET", "PUT", "DELETE"})


class Operation(Struct, frozen=True, kw_only=True):
    """What is asked for. `path` is below `/api/v1`; with `key` the server runs it once."""

    method: str
    path: str
    query: tuple[tuple[str, QueryValue], ...] = ()
    body: bytes | None = None
    key: str | None = None
    file: "UploadedFile | UploadedStream | None" = None

    def with_query(self, **query: QueryValue) -> "Operation":
        kept = tuple(one for one in self.query if one[0] not in query)
        return replace(self, query=(*kept, *query.items()))

    def outgoing(self) -> Outgoing:
        pairs = [(name, text) for name, value in self.query for text in _texts(value)]
        file = self.file
        headers = {} if self.key is None else {"Idempotency-Key": self.key}
        return Outgoing(
            method=self.method,
            path=f"{self.path}?{urlencode(pairs)}" if pairs else self.path,
            body=self.body,
            chunks=None if file is None else file.chunks,
            headers=headers if file is None else headers | file.headers,
            timeout_s=REQUEST_TIMEOUT_S if file is None else file.timeout_s,
            is_once=isinstance(file, UploadedStream) and file.is_once,
        )


class UploadedFile(Struct, frozen=True, kw_only=True):
    """The rest of `file`, from `start` on."""

    name: str
    media_type: str
    file: BinaryIO
    start: int
    timeout_s: float = UPLOAD_TIMEOUT_S

    @property
    def headers(self) -> dict[str, str]:
        disposition = content_disposition("attachment", self.name)
        return {"Content-Type": self.media_type, "Content-Disposition": disposition}

    async def chunks(self) -> AsyncIterator[bytes]:
        await asyncio.to_thread(self.file.seek, self.start)
        while chunk := await asyncio.to_thread(self.file.read, _CHUNK_BYTES):
            yield chunk


class UploadedStream(Struct, frozen=True, kw_only=True):
    """A body of unknown length. `chunks` is called for each try, unless there can be only one."""

    media_type: str
    chunks: Callable[[], AsyncIterator[bytes]]
    is_once: bool = False
    timeout_s: float | None = None

    @property
    def headers(self) -> dict[str, str]:
        return {"Content-Type": self.media_type}


class Requests:
    """Requests to one server. Each is repeated for up to `patience_s` while it does not answer."""

    def __init__(
        self, server: ServerAddress, http: aiohttp.ClientSession, clock: Clock, patience_s: float
    ) -> None:
        self.url = server.url
        self._clock = clock
        self._patience_s = patience_s
        self._exchange = Exchange(server, http)

    async def send(self, sent: Outgoing) -> bytes:
        """The body of the reply. Raises ApiError and ServerUnreachable."""
        give_up_at = self._clock.monotonic() + self._patience_s
        is_repeatable = not sent.is_once and (
            sent.method in _REPEATABLE or "Idempotency-Key" in sent.headers
        )
        failures = 0
        while True:
            try:
                return await self._exchange.send(sent, is_repeat=failures > 0)
            except NoAnswer as lost:
                failures += 1
                delay_s = max(_BACKOFF.delay(failures, random.random), lost.wait_s)
                may_repeat = lost.is_temporary and (is_repeatable or lost.was_not_sent)
                if not may_repeat or self._clock.monotonic() + delay_s > give_up_at:
                    raise lost.as_error(self.url) from lost
            await self._clock.sleep(delay_s, "client_retry")

    async def stream(
        self,
        sent: Outgoing,
        write: Callable[[bytes], object],
        on_headers: Callable[[Mapping[str, str]], object] | None = None,
    ) -> int:
        """Pass the bytes to `write` as they arrive; returns their number. Not repeated."""
        try:
            return await self._exchange.stream(sent, write, on_headers=on_headers)
        except NoAnswer as lost:
            raise lost.as_error(self.url) from lost


class Call(Generic[T]):
    """`await call` sends it and reads the reply. Raises ApiError and ServerUnreachable."""

    def __init__(self, requests: Requests, operation: Operation, reply: type[T]) -> None:
        self.operation = operation
        self.reply = reply
        self.requests = requests

    def __await__(self) -> Generator[Any, None, T]:
        return self._read().__await__()

    async def raw(self) -> Raw:
        """The JSON as the server sent it, including what this client does not know."""
        return Raw(await self.requests.send(self.operation.outgoing()))

    async def _read(self) -> T:
        body = await self.requests.send(self.operation.outgoing())
        return self._decode(body, self.reply)

    def _decode(self, body: bytes, reply: type[Any]) -> Any:
        if reply is NoneType:
            return None
        try:
            return msgspec.json.decode(body, type=reply)
        except (msgspec.MsgspecError, RecursionError) as error:
            text = (
                f"This client does not understand the reply of {self.requests.url} to"
                f" {self.operation.method} {self.operation.path} ({error}). Are both of the same"
                " version?"
            )
            raise ApiError(200, "unexpected_reply", text) from None


class ListCall(Call[Page[T]]):
    """`await call` reads one page; `items` continues over the following pages."""

    async def items(self, most: int) -> list[T]:
        """The first ones, up to `most`."""
        return await self._collect(most, self.reply)

    async def raw_items(self, most: int) -> list[Raw]:
        return await self._collect(most, Page[Raw])

    async def _collect(self, most: int, page_type: type[Page[Any]]) -> list[Any]:
        found: list[Any] = []
        cursor: str | None = None
        while len(found) < most:
            size = min(most - len(found), MAX_PAGE_ITEMS)
            asked = self.operation.with_query(limit=size, cursor=cursor)
            body = await self.requests.send(asked.outgoing())
            page = cast("Page[Any]", self._decode(body, page_type))
            found += page.items
            if (cursor := page.next_cursor) is None:
                break
        return found


class Download:
    """A file of the server. Raises ApiError and ServerUnreachable."""

    def __init__(self, requests: Requests, operation: Operation) -> None:
        self.operation = operation
        self._requests = requests

    async def read(self, *, max_bytes: int = MAX_REPLY_BYTES) -> bytes:
        sent = replace(self.operation.outgoing(), accept="*/*", max_bytes=max_bytes)
        return await self._requests.send(sent)

    async def write_to(
        self,
        write: Callable[[bytes], object],
        *,
        max_bytes: int = MAX_DOWNLOAD_BYTES,
        on_headers: Callable[[Mapping[str, str]], object] | None = None,
    ) -> int:
        """Pass the bytes to `write` as they arrive; returns their number. Not repeated."""
        sent = self.operation.outgoing()
        sent = replace(sent, accept="*/*", timeout_s=None, max_bytes=max_bytes)
        return await self._requests.stream(sent, write, on_headers)


def _texts(value: QueryValue) -> Sequence[str]:
    if value is None:
        return ()
    if isinstance(value, bool):
        return ("true" if value else "false",)
    return (str(value),) if isinstance(value, str | int) else value
