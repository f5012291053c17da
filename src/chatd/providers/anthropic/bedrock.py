"""Claude on Amazon Bedrock: the Messages API with AWS's signature and framing.

Credentials of the machine (a profile, a role, a container's identity) come from botocore, an
optional dependency that only this module loads.
"""

import asyncio
import hashlib
import hmac
import re
import struct
import zlib
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from importlib import import_module
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlsplit

import msgspec
from msgspec import Struct

from chatd.domain.errors import InvalidInput
from chatd.domain.model.protocol import ModelEvent, ModelRequest, ProviderError
from chatd.domain.ports import Clock
from chatd.providers.anthropic.anthropic_client import (
    ModelEventStream,
    stream_without_refused_thinking,
)
from chatd.providers.anthropic.anthropic_decoder import AnthropicDecoder
from chatd.providers.anthropic.anthropic_models import bedrock_objection
from chatd.providers.anthropic.anthropic_request import can_continue, encode_request
from chatd.providers.http import ProviderSession, digest_off_loop, encode_off_loop
from chatd.providers.provider_config import (
    AwsCredentials,
    ProviderConfig,
    Secret,
    base_url,
    config_fault,
    join_url,
    request_headers,
    require_key,
)
from chatd.providers.sse import EventTooLong, FramedEvent, FramingError

# Event streams: binary messages with checksums, from bytes cut anywhere.
#
# `EventStream` returns the events of the Messages API as if they were server-sent events. An AWS
# exception becomes the API's error event, with the AWS name as its type.

MAX_MESSAGE_BYTES: Final = 24 * 1024 * 1024

_PRELUDE: Final = struct.Struct(">III")
_CRC: Final = struct.Struct(">I")
_STRING: Final = 7
# The length of a header's value by its type; None if the length precedes the value.
_LENGTHS: Final[Mapping[int, int | None]] = {
    0: 0,
    1: 0,
    2: 1,
    3: 2,
    4: 4,
    5: 8,
    6: None,
    7: None,
    8: 8,
    9: 16,
}


class _Chunk(Struct):
    bytes: str = ""


class _Exception(Struct):
    message: str = ""


_CHUNK: Final = msgspec.json.Decoder(_Chunk)
_EXCEPTION: Final = msgspec.json.Decoder(_Exception)


class EventStream:
    """`feed` takes a chunk and returns the events that it completes."""

    def __init__(self, limit: int = MAX_MESSAGE_BYTES) -> None:
        self._limit = limit
        self._buffer = bytearray()

    def feed(self, chunk: bytes) -> list[FramedEvent]:
        self._buffer += chunk
        events: list[FramedEvent] = []
        start = 0
        while (total := self._complete(start)) is not None:
            event = _event(bytes(self._buffer[start : start + total]))
            start += total
            if event is not None:
                events.append(event)
        del self._buffer[:start]
        return events

    def end(self) -> list[FramedEvent]:
        """A message states its length, so the end completes none."""
        return []

    def _complete(self, start: int) -> int | None:
        """The length of the message at `start` if it has arrived as a whole."""
        if len(self._buffer) - start < _PRELUDE.size:
            return None
        total, headers, crc = _PRELUDE.unpack_from(self._buffer, start)
        if zlib.crc32(self._buffer[start : start + 8]) != crc:
            raise FramingError("the beginning of a message is damaged")
        if total > self._limit:
            raise EventTooLong(f"a message of {total} bytes")
        if total < _PRELUDE.size + headers + _CRC.size:
            raise FramingError("a message is shorter than its headers")
        return total if len(self._buffer) - start >= total else None


def _event(message: bytes) -> FramedEvent | None:
    (crc,) = _CRC.unpack_from(message, len(message) - _CRC.size)
    if zlib.crc32(message[: -_CRC.size]) != crc:
        raise FramingError("a message is damaged")
    _, headers_size, _ = _PRELUDE.unpack_from(message)
    end = _PRELUDE.size + headers_size
    headers = _headers(message[_PRELUDE.size : end])
    payload = message[end : -_CRC.size]
    try:
        return _meaning(headers, payload)
    except (msgspec.DecodeError, UnicodeError, RecursionError, Base64Error, ValueError) as error:
        raise FramingError("a message cannot be read") from error


def _meaning(headers: Mapping[str, str], payload: bytes) -> FramedEvent | None:
    match headers.get(":message-type"):
        case "event" if headers.get(":event-type") == "chunk":
            return b"", b64decode(_CHUNK.decode(payload).bytes, validate=True)
        case "exception":
            name = headers.get(":exception-type", "exception")
            return _error(name, _EXCEPTION.decode(payload or b"{}").message)
        case "error":
            return _error(headers.get(":error-code", "error"), headers.get(":error-message", ""))
        case _:
            return None


def _error(name: str, message: str) -> FramedEvent:
    event = {"type": "error", "error": {"type": name, "message": message or name}}
    return b"error", msgspec.json.encode(event)


def _headers(data: bytes) -> dict[str, str]:
    """The headers of type string."""
    headers: dict[str, str] = {}
    at = 0
    try:
        while at < len(data):
            name_end = at + 1 + data[at]
            name, kind = data[at + 1 : name_end], data[name_end]
            at = name_end + 1
            size = _LENGTHS[kind]
            if size is None:
                (size,) = struct.unpack_from(">H", data, at)
                at += 2
            if at + size > len(data):
                raise FramingError("a header is cut off")
            if kind == _STRING:
                headers[name.decode()] = data[at : at + size].decode()
            at += size
    except (IndexError, KeyError, struct.error, UnicodeDecodeError) as error:
        raise FramingError("a header cannot be read") from error
    return headers


# Signature Version 4. Pure.

_ALGORITHM: Final = "AWS4-HMAC-SHA256"
_UNRESERVED: Final = "-_.~"
_SIGNED: Final = ("content-type", "host")


class SigningScope(Struct, frozen=True, kw_only=True):
    """The region, service and time of a signature. `at` is in UTC."""

    region: str
    service: str
    at: datetime

    @property
    def time(self) -> str:
        return self.at.strftime("%Y%m%dT%H%M%SZ")

    @property
    def date(self) -> str:
        return self.at.strftime("%Y%m%d")

    @property
    def text(self) -> str:
        return f"{self.date}/{self.region}/{self.service}/aws4_request"


def signature_headers(
    *,
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    credentials: AwsCredentials,
    scope: SigningScope,
    method: str = "POST",
) -> dict[str, str]:
    """The headers to add. `url` is encoded as sent; header names are lower case."""
    added = {"x-amz-date": scope.time}
    if credentials.session_token is not None:
        added["x-amz-security-token"] = credentials.session_token.reveal()
    signed = {
        name: " ".join(value.split())
        for name, value in sorted({"host": urlsplit(url).netloc, **headers, **added}.items())
        if name in _SIGNED or name.startswith("x-amz-")
    }
    names = ";".join(signed)
    lines = "".join(f"{name}:{value}\n" for name, value in signed.items())
    content = hashlib.sha256(body).hexdigest()
    canonical = f"{method}\n{_address(url)}\n{lines}\n{names}\n{content}"
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    to_sign = f"{_ALGORITHM}\n{scope.time}\n{scope.text}\n{digest}"
    signature = hmac.new(_key(credentials, scope), to_sign.encode(), hashlib.sha256).hexdigest()
    authorization = (
        f"{_ALGORITHM} Credential={credentials.access_key_id}/{scope.text},"
        f" SignedHeaders={names}, Signature={signature}"
    )
    return {**added, "authorization": authorization}


def _address(address: str) -> str:
    """Canonical path and query, one line each."""
    url = urlsplit(address)
    # All services except S3 sign the path encoded a second time.
    path = quote(url.path or "/", safe="/" + _UNRESERVED)
    pairs = sorted(
        (quote(name, safe=_UNRESERVED), quote(value, safe=_UNRESERVED))
        for name, value in parse_qsl(url.query, keep_blank_values=True)
    )
    return path + "\n" + "&".join(f"{name}={value}" for name, value in pairs)


def _key(credentials: AwsCredentials, scope: SigningScope) -> bytes:
    key = b"AWS4" + credentials.secret_access_key.reveal().encode()
    for part in (scope.date, scope.region, scope.service, "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key


# Credentials and the provider


class AmbientCredentials:
    """Reads botocore's credentials, which it caches and renews. Slow: call it in a thread."""

    def __init__(self, config: ProviderConfig) -> None:
        self._config = config
        try:
            get_session: Callable[[], Any] = import_module("botocore.session").get_session
            self._error: type[Exception] = import_module("botocore.exceptions").BotoCoreError
        except ImportError:
            raise config_fault(
                config,
                f"provider {config.label} has neither an api_key nor AWS keys, and"
                " reading the machine's credentials needs the extra: install chatd[bedrock]",
                "missing_key",
            ) from None
        self._session = get_session()
        self._found: Any = None

    def get(self) -> AwsCredentials:
        try:
            self._found = self._found or self._session.get_credentials()
            now = None if self._found is None else self._found.get_frozen_credentials()
        except self._error as error:
            what = type(error).__name__
            raise self._missing(f"cannot resolve AWS credentials ({what})", "config") from None
        if now is None:
            raise self._missing("this machine has no AWS credentials", "missing_key")
        return AwsCredentials(
            access_key_id=now.access_key,
            secret_access_key=Secret(now.secret_key),
            session_token=Secret(now.token) if now.token else None,
        )

    def _missing(self, what: str, word: str) -> ProviderError:
        label = self._config.label
        return config_fault(
            self._config, f"provider {label}: {what}: set its api_key or AWS keys", word
        )


_SERVICE: Final = "bedrock"
_HOST: Final = re.compile(r"\bbedrock-runtime(?:-fips)?\.([a-z0-9-]+)\.(?:vpce\.)?amazonaws\.com")


class BedrockProvider:
    """Satisfies `domain.ports.Provider`. Signatures contain the time."""

    def __init__(self, config: ProviderConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._region = find_region(config)
        self._base = base_url(config, default_url(self._region))
        self._bearer = require_key(config) if config.api_key is not None else None
        self._ambient = None
        if self._bearer is None and config.aws is None:
            self._ambient = AmbientCredentials(config)
        self._session = ProviderSession(config.label, config.secrets, config.http)

    @property
    def name(self) -> str:
        return self._config.label

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        def attempt(*, sends_thinking: bool) -> ModelEventStream:
            return self._stream(request, sends_thinking=sends_thinking)

        async with stream_without_refused_thinking(attempt) as events:
            yield events

    def can_continue(self, request: ModelRequest) -> bool:
        return can_continue(request)

    @asynccontextmanager
    async def _stream(
        self, request: ModelRequest, *, sends_thinking: bool
    ) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        if (objection := bedrock_objection(request.model)) is not None:
            raise config_fault(self._config, objection)
        try:
            encoded = await encode_off_loop(
                request, lambda: encode_request(request, "bedrock", sends_thinking=sends_thinking)
            )
        except InvalidInput as error:
            raise config_fault(self._config, error.message) from None
        path = f"/model/{quote(request.model, safe=':')}/invoke-with-response-stream"
        url = join_url(self._base, path)
        async with self._session.stream(
            url=url,
            headers=await self._headers(request, url, encoded.body),
            body=encoded.body,
            decoder=AnthropicDecoder(encoded.names, EventStream()),
        ) as events:
            yield events

    async def close(self) -> None:
        await self._session.close()

    async def _headers(self, request: ModelRequest, url: str, body: bytes) -> dict[str, str]:
        accept = "application/vnd.amazon.eventstream"
        headers = request_headers(self._config, request, {}, accept)
        if self._bearer is not None:
            return {**headers, "authorization": f"Bearer {self._bearer.reveal()}"}
        credentials = await self._credentials()
        scope = SigningScope(region=self._region, service=_SERVICE, at=self._clock.now())
        signature = await digest_off_loop(
            body,
            lambda body: signature_headers(
                url=url, headers=headers, body=body, credentials=credentials, scope=scope
            ),
        )
        return {**headers, **signature}

    async def _credentials(self) -> AwsCredentials:
        if self._ambient is not None:
            return await asyncio.to_thread(self._ambient.get)
        assert self._config.aws is not None
        return self._config.aws


def find_region(config: ProviderConfig) -> str:
    """The configured region, else the one in an AWS address, else the machine's."""
    named = _HOST.search(urlsplit(config.base_url or "").hostname or "")
    regions = ((config.region or "").strip(), named[1] if named else "", config.default_region)
    region = next((region for region in regions if region), "")
    if not re.fullmatch(r"[a-z0-9-]+", region):
        raise config_fault(
            config,
            f"provider {config.label} needs an AWS region: set its region, such as"
            " us-east-1, or AWS_REGION, or a base_url that names one",
        )
    return region


def default_url(region: str) -> str:
    suffix = ".cn" if region.startswith("cn-") else ""
    return f"https://bedrock-runtime.{region}.amazonaws.com{suffix}"
