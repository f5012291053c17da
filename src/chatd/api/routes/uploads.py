"""Receive a file: read the body in chunks, judge and store each, and remove all of it if anything
goes wrong.

The memory of an upload is bounded by the size of one chunk, however large the file is.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from hashlib import sha256
from typing import Final

from msgspec import Struct

from chatd.aio import retry_unavailable
from chatd.api.deps import ApiDeps
from chatd.api.errors import ClientDisconnected, RequestTimeout, TooLarge
from chatd.api.request import ApiRequest, Message, Receive
from chatd.domain.errors import InvalidInput, RequestReused, Unavailable, UnsupportedFile
from chatd.domain.files import NewFile, StoredFile, read_file_name
from chatd.domain.ids import FileId
from chatd.domain.media_types import FileInspection
from chatd.domain.ports import FileStore
from chatd.store import file_stores, files
from chatd.store.database.conn import DuplicateRow
from chatd.store.file_stores import DeadUpload

UPLOAD_IDLE_TIMEOUT_S: Final = 30.0
UPLOAD_TIMEOUT_S: Final = 600.0
"""Of the whole upload. Far below `UPLOAD_DEAD_AFTER`."""


class UploadedFile(Struct, frozen=True, kw_only=True):
    """`is_replay`: an earlier request with the same key has stored it."""

    file: StoredFile
    is_replay: bool = False


class FileUpload:
    """One request that sends a file."""

    def __init__(self, deps: ApiDeps, request: ApiRequest) -> None:
        """Raises InvalidInput, UnsupportedFile, TooLarge before anything is read."""
        self._pool = deps.pool
        self._env = deps.env
        self._stores = deps.files
        self._limits = deps.file_limits
        self._request = request
        self._actor = request.caller.actor
        self._key = request.request_key("file")
        self._name = read_file_name(request.header("content-disposition"))
        self._inspection = FileInspection(request.header("content-type"), self._name)
        self._digest = sha256()
        self._announced = _announced_bytes(request, self._limits.max_bytes)
        self._id = FileId(self._env.new_id())

    async def run(self, before_store: Callable[[], None] = lambda: None) -> UploadedFile:
        """Raises what the body, the quota or the database gives reason for. The file is stored
        whole or not at all. `before_store` is not called for one that was stored before."""
        try:
            async with asyncio.timeout(UPLOAD_TIMEOUT_S):
                earlier = await self._find_earlier()
                if earlier is not None:
                    return await self._compare(earlier)
                before_store()
                return await self._store()
        except TimeoutError:
            text = f"The file did not arrive within {UPLOAD_TIMEOUT_S:.0f} seconds."
            raise RequestTimeout(text) from None

    async def _find_earlier(self) -> StoredFile | None:
        key = self._key
        if key is None:
            return None
        return await retry_unavailable(
            self._env.clock, lambda: files.get_by_request(self._pool, key, self._actor)
        )

    async def _compare(self, earlier: StoredFile) -> UploadedFile:
        """Read the body without storing it: the key must not hide another file."""
        async with aclosing(self._chunks(earlier.chunk_bytes)) as chunks:
            async for chunk in chunks:
                self._inspection.feed(chunk)
                self._digest.update(chunk)
        self._inspection.finish()
        if (earlier.sha256, earlier.name) != (self._digest.hexdigest(), self._name):
            raise RequestReused("This idempotency key was used for another file.")
        return UploadedFile(file=earlier, is_replay=True)

    async def _store(self) -> UploadedFile:
        clock, store = self._env.clock, self._stores.current
        await retry_unavailable(
            clock,
            lambda: file_stores.check_quota(self._pool, self._actor, self._announced, self._limits),
        )
        await retry_unavailable(
            clock,
            lambda: file_stores.begin_upload(
                self._pool,
                self._id,
                self._actor,
                store=store.name,
                chunk_bytes=store.chunk_bytes,
            ),
        )
        try:
            await self._write_chunks(store)
            file = await self._finish()
        except DuplicateRow:
            await self._remove()
            earlier = await self._find_earlier()
            if earlier is None:
                raise Unavailable(
                    "The first upload with this key was removed; try again."
                ) from None
            if (earlier.sha256, earlier.name) != (self._digest.hexdigest(), self._name):
                raise RequestReused("This idempotency key was used for another file.") from None
            return UploadedFile(file=earlier, is_replay=True)
        except Exception:
            # A cancelled task writes nothing more; maintenance removes what it left.
            await self._remove()
            raise
        return UploadedFile(file=file)

    async def _write_chunks(self, store: FileStore) -> None:
        number = 0
        async with aclosing(self._chunks(store.chunk_bytes)) as chunks:
            async for chunk in chunks:
                self._inspection.feed(chunk)
                self._digest.update(chunk)
                await self._write(store, number, chunk)
                number += 1

    async def _write(self, store: FileStore, number: int, chunk: bytes) -> None:
        await retry_unavailable(self._env.clock, lambda: store.write(self._id, number, chunk))

    async def _finish(self) -> StoredFile:
        new = NewFile(
            name=self._name,
            media_type=self._inspection.finish(),
            size_bytes=self._inspection.size,
            sha256=self._digest.hexdigest(),
            request_key=self._key,
        )
        return await retry_unavailable(
            self._env.clock,
            lambda: file_stores.finish_upload(self._pool, self._id, new, self._limits),
        )

    async def _remove(self) -> None:
        """Best effort: maintenance repeats it."""
        with suppress(Unavailable):
            store = self._stores.current
            await file_stores.abandon_upload(self._pool, self._id)
            left = DeadUpload(id=self._id, store=store.name, chunk_bytes=store.chunk_bytes)
            await self._stores.remove_bytes(self._pool, left)

    def _chunks(self, chunk_bytes: int) -> AsyncGenerator[bytes]:
        return read_chunks(
            self._request.receive, max_bytes=self._limits.max_bytes, chunk_bytes=chunk_bytes
        )


def _announced_bytes(request: ApiRequest, max_bytes: int) -> int:
    """The size in the head of the request; 0 if it has none."""
    if request.header("content-encoding") not in (None, "identity"):
        raise UnsupportedFile("Send the file without a Content-Encoding.")
    if request.header("content-range") is not None:
        raise InvalidInput("Content-Range", "is not supported; send the whole file")
    length = request.header("content-length") or ""
    announced = int(length[:19]) if length.isdecimal() else 0
    if announced > max_bytes:
        raise TooLarge(max_bytes)
    return announced


async def read_chunks(
    receive: Receive, *, max_bytes: int, chunk_bytes: int
) -> AsyncGenerator[bytes]:
    """The body in pieces of exactly `chunk_bytes`, only the last one may be shorter. Raises
    TooLarge, RequestTimeout, ClientDisconnected."""
    buffer, total, has_more = bytearray(), 0, True
    while has_more:
        event = await _next_event(receive)
        body: bytes = event.get("body", b"")
        has_more = event.get("more_body", False)
        total += len(body)
        if total > max_bytes:
            raise TooLarge(max_bytes)
        buffer += body
        while len(buffer) >= chunk_bytes:
            yield bytes(buffer[:chunk_bytes])
            del buffer[:chunk_bytes]
    if buffer:
        yield bytes(buffer)


async def _next_event(receive: Receive) -> Message:
    try:
        async with asyncio.timeout(UPLOAD_IDLE_TIMEOUT_S):
            event = await receive()
    except TimeoutError:
        text = f"No part of the file arrived for {UPLOAD_IDLE_TIMEOUT_S:.0f} seconds."
        raise RequestTimeout(text) from None
    if event["type"] == "http.disconnect":
        raise ClientDisconnected("The client disconnected.")
    return event
