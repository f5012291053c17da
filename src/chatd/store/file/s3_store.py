"""The bytes of files in a bucket of an S3-compatible server, one object for each chunk.

Chunks and not multipart uploads: a chunk is written again after a lost reply, an upload that broke
off leaves plain objects under a known name, and a part of a file is read without the rest.
"""

from collections.abc import AsyncGenerator
from io import BytesIO
from typing import Final
from urllib.parse import quote

import aiohttp
from msgspec import Struct
from yarl import URL

from chatd.domain.errors import Unavailable
from chatd.domain.files import MAX_FILE_BYTES, ByteRange, StoredFile
from chatd.domain.ids import FileId
from chatd.domain.ports import Clock
from chatd.store.file.s3_signature import S3Credentials, s3_signature_headers

S3_CHUNK_BYTES: Final = 4 * 1024 * 1024
S3_TIMEOUT_S: Final = 60.0
S3_CONNECT_TIMEOUT_S: Final = 5.0
_MISSING: Final = 404


class S3Config(Struct, frozen=True, kw_only=True):
    """`prefix` comes before the names of all objects, for a bucket with other uses."""

    endpoint: str
    bucket: str
    credentials: S3Credentials
    prefix: str = ""


class S3FileStore:
    """Satisfies `ports.FileStore`."""

    name = "s3"

    def __init__(
        self, config: S3Config, clock: Clock, *, chunk_bytes: int = S3_CHUNK_BYTES
    ) -> None:
        self._config = config
        self._clock = clock
        self.chunk_bytes = chunk_bytes
        self._session: aiohttp.ClientSession | None = None

    async def write(self, file_id: FileId, number: int, chunk: bytes) -> None:
        await self._request("PUT", file_id, number, body=chunk)

    async def read(self, file: StoredFile, part: ByteRange) -> AsyncGenerator[bytes]:
        """Yields at most one chunk at a time. Raises Unavailable."""
        size = file.chunk_bytes
        for number in range(part.start // size, -(-part.end // size)):
            begin = number * size
            first = max(0, part.start - begin)
            last = min(size, part.end - begin, file.size_bytes - begin) - 1
            piece = await self._request(
                "GET", file.id, number, headers={"range": f"bytes={first}-{last}"}
            )
            if len(piece) != last - first + 1:
                raise _lost(file.id)
            yield piece

    async def remove(self, file_id: FileId, chunk_bytes: int) -> None:
        """How many chunks there are is not known, so that all that there can be are removed."""
        for number in range(-(-MAX_FILE_BYTES // chunk_bytes)):
            await self._request("DELETE", file_id, number)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _url(self, file_id: FileId, number: int) -> str:
        config = self._config
        path = f"{config.bucket}/{config.prefix}{file_id}/{number:05d}"
        return f"{config.endpoint.rstrip('/')}/{quote(path, safe='/-_.~')}"

    async def _request(
        self,
        method: str,
        file_id: FileId,
        number: int,
        *,
        headers: dict[str, str] | None = None,
        body: bytes = b"",
    ) -> bytes:
        """Raises Unavailable."""
        url, headers = self._url(file_id, number), headers or {}
        signed = s3_signature_headers(
            method,
            url,
            headers=headers,
            body=body,
            credentials=self._config.credentials,
            at=self._clock.now(),
        )
        try:
            async with self._open_session().request(
                method, _as_signed(url), headers={**headers, **signed}, data=BytesIO(body)
            ) as response:
                if response.status == _MISSING and method != "PUT":
                    return _missing(method, file_id)
                if response.status >= 300:
                    raise _refused(response.status)
                return await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            text = f"The file store cannot be reached: {type(error).__name__}"
            raise Unavailable(text, code="file_store_down") from error

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=S3_TIMEOUT_S, sock_connect=S3_CONNECT_TIMEOUT_S)
            self._session = aiohttp.ClientSession(
                timeout=timeout, trust_env=True, auto_decompress=False
            )
        return self._session


def _missing(method: str, file_id: FileId) -> bytes:
    """An object that is not there is as good as deleted."""
    if method == "DELETE":
        return b""
    raise _lost(file_id)


def _lost(file_id: FileId) -> Unavailable:
    return Unavailable(f"The file {file_id} has lost its bytes.", code="file_lost")


def _refused(status: int) -> Unavailable:
    """The body of the error is not repeated: it may contain the request."""
    text = f"The file store refused a request with status {status}."
    return Unavailable(text, code="file_store_down" if status >= 500 else "file_store_refused")


def _as_signed(url: str) -> URL:
    """The client must not encode the address in another way than it was signed."""
    return URL(url, encoded=True)
