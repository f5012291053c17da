"""HTTP/1.1 requests, parsed strictly (ambiguous input is refused), and replies. No sockets."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import parse_qsl, unquote

from chatd.agent.errors import AgentError

MAX_HEADERS = 64
_TARGET = re.compile(r"/[!-~]*")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LENGTH = re.compile(r"[0-9]{1,12}")
_BARE_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


@dataclass(frozen=True)
class RequestHead:
    """The request before its body. Header names are in lower case."""

    method: str
    target: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    length: int
    keep_alive: bool

    @property
    def expects_continue(self) -> bool:
        return self.headers.get("expect", "").lower() == "100-continue"


def parse_head(raw: bytes) -> RequestHead:
    """`raw` ends with the empty line. Raises AgentError if it is not a valid request head."""
    lines = raw.decode("latin-1").split("\r\n")[:-2]
    method, target, version = _request_line(lines[0])
    headers = _headers(lines[1:])
    path, _, query = target.partition("?")
    connection = headers.get("connection", "").lower()
    keep_alive = version == "HTTP/1.1" and "close" not in connection
    return RequestHead(
        method=method,
        target=target,
        path=_path(path),
        query=_query(query),
        headers=headers,
        length=_length(headers),
        keep_alive=keep_alive,
    )


def _request_line(line: str) -> tuple[str, str, str]:
    words = line.split(" ")
    if len(words) != 3:
        raise AgentError(400, "this is not an HTTP request")
    method, target, version = words
    if version not in {"HTTP/1.1", "HTTP/1.0"}:
        raise AgentError(505, "the agent supports HTTP/1.1 only")
    if not method.isalpha() or not _TARGET.fullmatch(target):
        raise AgentError(400, "the request line is malformed")
    return method, target, version


def _headers(lines: list[str]) -> dict[str, str]:
    if len(lines) > MAX_HEADERS:
        raise AgentError(431, f"more than {MAX_HEADERS} headers")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not _HEADER_NAME.fullmatch(name) or _BARE_CONTROL.search(value):
            raise AgentError(400, "a header is malformed")
        # Request smuggling: two parsers may use different ones of two equal headers.
        if name.lower() in headers:
            raise AgentError(400, f"the header {name.lower()} is given twice")
        headers[name.lower()] = value.strip()
    return headers


def _path(path: str) -> str:
    try:
        return unquote(path, errors="strict")
    except UnicodeDecodeError:
        raise AgentError(400, "the path is not UTF-8") from None


def _query(query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(
            query,
            keep_blank_values=True,
            strict_parsing=bool(query),
            max_num_fields=32,
            errors="strict",
        )
    except ValueError:
        raise AgentError(400, "the query is malformed") from None
    values = dict(pairs)
    if len(values) != len(pairs):
        raise AgentError(400, "a query parameter is given twice")
    return values


def _length(headers: Mapping[str, str]) -> int:
    if "transfer-encoding" in headers:
        raise AgentError(411, "send the body with a Content-Length")
    text = headers.get("content-length", "0")
    if not _LENGTH.fullmatch(text):
        raise AgentError(400, "the Content-Length is malformed")
    return int(text)


class RequestFields:
    """The values of a request, each read once by name and type; `reject_unknown` at the end."""

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = dict(values)

    def text(self, name: str, default: str | None = None) -> str:
        value = self._values.pop(name, default)
        if value is None:
            raise AgentError(400, f"{name} is required")
        if not isinstance(value, str):
            raise AgentError(400, f"{name} must be a string")
        return value

    def count(self, name: str, default: int = 0) -> int:
        """A non-negative integer; in a query it is given as digits."""
        value = self._values.pop(name, default)
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 16:
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise AgentError(400, f"{name} must be a non-negative integer")
        return value

    def seconds(self, name: str) -> float:
        value = self._values.pop(name, "0")
        try:
            seconds = float(str(value))
        except ValueError:
            seconds = -1
        if not 0 <= seconds < float("inf"):
            raise AgentError(400, f"{name} must be a non-negative number of seconds")
        return seconds

    def flag(self, name: str) -> bool:
        value = self._values.pop(name, False)
        if value in {"true", "false"}:
            value = value == "true"
        if not isinstance(value, bool):
            raise AgentError(400, f"{name} must be true or false")
        return value

    def text_map(self, name: str) -> dict[str, str]:
        """A map from strings to strings; empty if it is absent."""
        value = self._values.pop(name, None)
        values = cast("dict[str, object]", value) if isinstance(value, dict) else {}
        texts = {key: text for key, text in values.items() if isinstance(text, str)}
        if not isinstance(value, (dict, type(None))) or len(texts) != len(values):
            raise AgentError(400, f"{name} must be a map of strings")
        return texts

    def items(self, name: str) -> list[object]:
        value: object = self._values.pop(name, None)
        if not isinstance(value, list):
            raise AgentError(400, f"{name} must be a list")
        return cast("list[object]", value)

    def reject_unknown(self) -> None:
        if self._values:
            raise AgentError(400, f"unknown fields: {', '.join(sorted(self._values))}")


def parse_json(body: bytes) -> RequestFields:
    """The JSON object in a request's body."""
    try:
        value: object = json.loads(body)
    except (ValueError, RecursionError):
        raise AgentError(400, "the body is not JSON") from None
    return read_fields(value, "the body")


def read_fields(value: object, what: str) -> RequestFields:
    if not isinstance(value, dict):
        raise AgentError(400, f"{what} must be an object")
    return RequestFields(cast("dict[str, object]", value))


@dataclass(frozen=True)
class AgentHttpReply:
    """`lines` are streamed instead of a body, until they end or the client disconnects. With
    `relay` the status is 101, and the connection carries the bytes of that one from then on.
    `release` is called when the lines end, also if the client left before the first: a generator
    that has not begun runs nothing when it is closed."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    lines: AsyncGenerator[bytes, None] | None = None
    relay: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
    release: Callable[[], None] | None = None


def json_reply(value: object, status: int = 200) -> AgentHttpReply:
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return AgentHttpReply(status, text.encode("utf-8", "replace"))


def error_reply(error: AgentError) -> AgentHttpReply:
    return json_reply(error.body(), error.status)
