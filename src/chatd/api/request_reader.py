"""Read request bodies, queries and path parameters into types, within limits of size and time."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar, cast, get_origin
from urllib.parse import parse_qsl
from uuid import UUID

import msgspec
from msgspec import Struct

from chatd.api.errors import ClientDisconnected, RequestTimeout, TooLarge
from chatd.api.schemas.chats import MAX_INT64
from chatd.domain.decode_errors import describe_decode_error, describe_invalid_json
from chatd.domain.errors import InvalidInput

T = TypeVar("T")
S = TypeVar("S", bound=Struct)

Receive = Callable[[], Awaitable[Mapping[str, Any]]]

BODY_TIMEOUT_S: Final = 30.0
MAX_QUERY_PARAMETERS: Final = 100


async def read_body(receive: Receive, content_length: str | None, max_bytes: int) -> bytes:
    """Raises TooLarge as early as possible, RequestTimeout, ClientDisconnected."""
    length = content_length or ""
    if length.isdecimal() and int(length[:19]) > max_bytes:
        raise TooLarge(max_bytes)
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            while True:
                event = await receive()
                if event["type"] == "http.disconnect":
                    raise ClientDisconnected("The client disconnected.")
                body += event.get("body", b"")
                if len(body) > max_bytes:
                    raise TooLarge(max_bytes)
                if not event.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        text = f"The body did not arrive within {BODY_TIMEOUT_S:.0f} seconds."
        raise RequestTimeout(text) from None


def read_json(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _invalid_input(error, "body", decoder.type) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        text = describe_invalid_json(error, body)
        raise InvalidInput("body", text, code="invalid_json") from None
    except RecursionError:
        raise InvalidInput("body", "is nested too deeply", code="invalid_json") from None


def read_query(kind: type[S], query: bytes) -> S:
    """Ignores unknown parameters."""
    known = {field.name: field.type for field in msgspec.structs.fields(kind)}
    values: dict[str, object] = {}
    for name, text in _parse_query(query):
        if name not in known:
            continue
        if get_origin(getattr(known[name], "__origin__", known[name])) is tuple:
            cast("list[str]", values.setdefault(name, [])).append(text)
        elif name in values:
            raise InvalidInput(name, "was given twice")
        else:
            values[name] = text
    return _convert(values, kind, "query")


def read_uuid(name: str, text: str) -> UUID:
    return _convert(text, UUID, name)


def read_number(name: str, text: str) -> int:
    digits = text.isascii() and text.isdecimal() and len(text) <= 19
    if not digits or not 0 < (number := int(text)) <= MAX_INT64:
        raise InvalidInput(name, "must be a positive whole number")
    return number


def _parse_query(query: bytes) -> list[tuple[str, str]]:
    text = query.decode("latin-1")
    try:
        return parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_QUERY_PARAMETERS)
    except ValueError:
        raise InvalidInput("query", f"at most {MAX_QUERY_PARAMETERS} parameters") from None


def _convert(value: object, kind: type[T], field: str) -> T:
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _invalid_input(error, field, kind) from None


def _invalid_input(error: msgspec.ValidationError, field: str, kind: object) -> InvalidInput:
    inner, text = describe_decode_error(error, kind)
    return InvalidInput(inner or field, text)
