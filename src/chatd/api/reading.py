"""Reading what a client sent: bodies, queries and ids, each into a type, or refused.

Owns the limits on size and time, and which field a decoder's complaint is about.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar, cast, get_origin
from urllib.parse import parse_qsl
from uuid import UUID

import msgspec
from msgspec import Struct

from chatd.api.errors import Disconnected, TooLarge, TooSlow
from chatd.api.wire import MAX_INT64
from chatd.api.wording import in_words, not_json
from chatd.domain.errors import InvalidInput

T = TypeVar("T")
S = TypeVar("S", bound=Struct)

Receive = Callable[[], Awaitable[Mapping[str, Any]]]

BODY_WITHIN_S: Final = 30.0
MAX_PARAMETERS: Final = 100

_AT: Final = re.compile(r" - at `(?:key in )?\$\.?(?P<path>.*)`$")
_NAMED: Final = re.compile(r"(?:missing required|contains unknown) field `(?P<name>[^`]*)`")


async def read_body(receive: Receive, announced: str | None, most: int) -> bytes:
    """All of it. Raises TooLarge as soon as that is known, TooSlow, Disconnected."""
    if announced is not None and announced.isdecimal() and int(announced[:19]) > most:
        raise TooLarge(most)
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_WITHIN_S):
            while True:
                event = await receive()
                if event["type"] == "http.disconnect":
                    raise Disconnected("The client has hung up.")
                body += event.get("body", b"")
                if len(body) > most:
                    raise TooLarge(most)
                if not event.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        raise TooSlow("The body did not arrive in time.") from None


def read_json(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _invalid(str(error), "body", decoder.type) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput("body", not_json(str(error), body), code="invalid_json") from None
    except RecursionError:
        raise InvalidInput("body", "is nested too deeply", code="invalid_json") from None


def read_query(kind: type[S], query: bytes) -> S:
    """Parameters that are unknown are passed over."""
    known = {field.name: field.type for field in msgspec.structs.fields(kind)}
    values: dict[str, object] = {}
    for name, text in _pairs(query):
        if name not in known:
            continue
        if _takes_several(known[name]):
            several = cast("list[str]", values.setdefault(name, []))
            several.append(text)
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


def _pairs(query: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(
            query.decode("latin-1"), keep_blank_values=True, max_num_fields=MAX_PARAMETERS
        )
    except ValueError:
        raise InvalidInput("query", f"at most {MAX_PARAMETERS} parameters") from None


def _takes_several(kind: object) -> bool:
    return get_origin(getattr(kind, "__origin__", kind)) is tuple


def _convert(value: object, kind: type[T], where: str) -> T:
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _invalid(str(error), where, kind) from None


def _invalid(said: str, otherwise: str, kind: object) -> InvalidInput:
    """`Expected ... - at $.a.b` becomes the field a.b, and words for the rest."""
    path = ""
    if (at := _AT.search(said)) is not None:
        path, said = at["path"], said[: at.start()]
    words = in_words(said, kind, path)
    if (named := _NAMED.search(said)) is not None:
        path = f"{path}.{named['name']}" if path else named["name"]
    return InvalidInput(path or otherwise, words)
