"""The Model Context Protocol as its bytes and headers have it: JSON-RPC messages, versions, and
what one HTTP request of a client says.

Up to 2025-11-25 a client negotiates one version by `initialize`, and repeats it in a header. From
2026-07-28 on every request names its version in `_meta`, and repeats method and name in headers.
"""

import base64
import binascii
import re
from collections.abc import Mapping
from hashlib import sha256
from importlib import metadata
from typing import Any, Final, TypeAlias, cast

import msgspec
from msgspec import UNSET, Struct, UnsetType

from chatd.api.request import ApiCaller, Receive, Scope, Send, header

RequestId: TypeAlias = int | str
Json: TypeAlias = dict[str, Any]

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
HEADER_MISMATCH: Final = -32020
UNSUPPORTED_PROTOCOL_VERSION: Final = -32022

_BATCH_TEXT: Final = "The body must be one message: there are no batches. Send them one by one."
_ENVELOPE_TEXT: Final = (
    "The body must be a JSON-RPC 2.0 request or notification: an object with jsonrpc, method, and"
    " an id that is a string or a whole number."
)


class ProtocolError(Exception):
    """A request that gets a JSON-RPC error instead of a result."""

    def __init__(
        self, code: int, message: str, *, data: object = UNSET, request_id: RequestId | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data
        self.request_id = request_id


class RpcMessage(Struct, frozen=True, kw_only=True):
    """A request, or a notification if it has no `id`."""

    method: str
    params: Json
    id: RequestId | None = None


class _Envelope(Struct, frozen=True, kw_only=True):
    jsonrpc: str
    method: str | UnsetType = UNSET
    id: RequestId | UnsetType = UNSET
    params: dict[str, Any] | UnsetType = UNSET
    result: object = UNSET
    error: object = UNSET


class RpcError(Struct, frozen=True, kw_only=True, omit_defaults=True):
    code: int
    message: str
    data: object = UNSET


class _ErrorMessage(Struct, frozen=True, kw_only=True):
    id: RequestId | None
    error: RpcError
    jsonrpc: str = "2.0"


class _ResultMessage(Struct, frozen=True, kw_only=True):
    id: RequestId
    result: object
    jsonrpc: str = "2.0"


class _Notification(Struct, frozen=True, kw_only=True):
    method: str
    params: object
    jsonrpc: str = "2.0"


def read_message(body: bytes) -> RpcMessage | None:
    """None for a response, which no request of this server awaits. Raises ProtocolError."""
    try:
        decoded: object = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ProtocolError(PARSE_ERROR, "The body is not valid JSON.") from None
    if isinstance(decoded, list):
        raise ProtocolError(INVALID_REQUEST, _BATCH_TEXT)
    try:
        found = msgspec.convert(decoded, _Envelope)
    except (msgspec.ValidationError, RecursionError):
        raise ProtocolError(INVALID_REQUEST, _ENVELOPE_TEXT, request_id=_id(decoded)) from None
    if found.jsonrpc != "2.0" or (isinstance(found.method, UnsetType) and not _is_reply(found)):
        raise ProtocolError(INVALID_REQUEST, _ENVELOPE_TEXT, request_id=_id(decoded))
    if isinstance(found.method, UnsetType):
        return None
    params = {} if isinstance(found.params, UnsetType) else found.params
    request_id = None if isinstance(found.id, UnsetType) else found.id
    return RpcMessage(method=found.method, params=params, id=request_id)


def _is_reply(found: _Envelope) -> bool:
    return found.result is not UNSET or found.error is not UNSET


def _id(decoded: object) -> RequestId | None:
    """The id of a malformed request, if it has one, so that its sender can match the error."""
    value = cast("Json", decoded).get("id") if isinstance(decoded, dict) else None
    return value if isinstance(value, str | int) and not isinstance(value, bool) else None


def encode_result(request_id: RequestId, result: object) -> bytes:
    return msgspec.json.encode(_ResultMessage(id=request_id, result=result))


def encode_error(error: ProtocolError, request_id: RequestId | None = None) -> bytes:
    body = RpcError(code=error.code, message=error.message, data=error.data)
    found = error.request_id if request_id is None else request_id
    return msgspec.json.encode(_ErrorMessage(id=found, error=body))


def encode_notification(method: str, params: object) -> bytes:
    return msgspec.json.encode(_Notification(method=method, params=params))


HANDSHAKE_VERSIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""Negotiated by `initialize`."""
STATELESS_VERSIONS: Final = ("2026-07-28",)
"""Named by every request."""
VERSIONS: Final = (*HANDSHAKE_VERSIONS, *STATELESS_VERSIONS)
DEFAULT_VERSION: Final = "2025-03-26"
"""Of a request without the header: clients of this version send none."""

VERSION_HEADER: Final = "mcp-protocol-version"
METHOD_HEADER: Final = "mcp-method"
NAME_HEADER: Final = "mcp-name"
VERSION_KEY: Final = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES_KEY: Final = "io.modelcontextprotocol/clientCapabilities"
SERVER_INFO_KEY: Final = "io.modelcontextprotocol/serverInfo"
SERVER_INFO: Final[Json] = {
    "name": "chatd",
    "title": "chatd",
    "version": metadata.version("chatd"),
}

_NAMED_BY: Final[Mapping[str, str]] = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
}
"""Methods with a parameter that the header `Mcp-Name` repeats."""
_ENCODED: Final = re.compile(r"=\?base64\?(.*)\?=")


def negotiate_version(wanted: object) -> str:
    """The version of a handshake: the one that the client wants, else the newest of them."""
    return wanted if wanted in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[-1]


def request_version(message: RpcMessage, headers: Mapping[str, str]) -> str:
    """Raises ProtocolError for a version that this server does not speak, and for headers that
    contradict the message: a proxy would have judged by them."""
    named = headers.get(VERSION_HEADER)
    if message.method == "initialize" and named not in STATELESS_VERSIONS:
        return negotiate_version(message.params.get("protocolVersion"))
    version = DEFAULT_VERSION if named is None else named
    if version in HANDSHAKE_VERSIONS:
        return version
    if message.id is not None:
        _check_envelope(message, headers)
    if version not in STATELESS_VERSIONS:
        raise unsupported_version(version)
    return version


def complete_result(result: Json, version: str) -> Json:
    """The result of a method, with what the version demands of every result."""
    if version not in STATELESS_VERSIONS:
        return result
    return {**result, "resultType": "complete", "_meta": {SERVER_INFO_KEY: SERVER_INFO}}


def unsupported_version(requested: str) -> ProtocolError:
    supported = ", ".join(VERSIONS)
    return ProtocolError(
        UNSUPPORTED_PROTOCOL_VERSION,
        f"This server does not speak that version of the protocol. It speaks {supported}.",
        data={"supported": list(VERSIONS), "requested": requested},
    )


def _check_envelope(message: RpcMessage, headers: Mapping[str, str]) -> None:
    meta = message.params.get("_meta")
    found = cast("dict[str, object]", meta) if isinstance(meta, dict) else {}
    if missing := [key for key in (VERSION_KEY, CAPABILITIES_KEY) if key not in found]:
        listed = ", ".join(missing)
        raise ProtocolError(INVALID_PARAMS, f"params._meta must have {listed}.")
    if headers.get(VERSION_HEADER) != found[VERSION_KEY]:
        raise _mismatch("Mcp-Protocol-Version", "params._meta")
    if headers.get(METHOD_HEADER) != message.method:
        raise _mismatch("Mcp-Method", "method")
    parameter = _NAMED_BY.get(message.method)
    value = None if parameter is None else message.params.get(parameter)
    if value is not None and _decoded(headers.get(NAME_HEADER)) != value:
        raise _mismatch("Mcp-Name", f"params.{parameter}")


def _mismatch(header: str, field: str) -> ProtocolError:
    return ProtocolError(HEADER_MISMATCH, f"The header {header} must equal {field} of the body.")


def _decoded(value: str | None) -> str | None:
    """Header values that are not plain ASCII come in base64."""
    match = None if value is None else _ENCODED.fullmatch(value)
    if match is None:
        return value
    try:
        return base64.b64decode(match[1], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


SESSION_HEADER: Final = "mcp-session-id"

_ROUTING_HEADERS: Final = frozenset({VERSION_HEADER, METHOD_HEADER, NAME_HEADER})


class Exchange(Struct, frozen=True, kw_only=True):
    """One HTTP request of a caller, and how to answer it."""

    caller: ApiCaller
    scope: Scope
    receive: Receive
    send: Send

    @property
    def session(self) -> str | None:
        return header(self.scope, SESSION_HEADER.encode())


def routing_headers(scope: Scope) -> Mapping[str, str]:
    """Raises ProtocolError for one that comes twice: a proxy may have judged by the other."""
    found: dict[str, str] = {}
    for key, value in scope["headers"]:
        name = bytes(key).decode("latin-1")
        if name in _ROUTING_HEADERS:
            if name in found:
                raise ProtocolError(HEADER_MISMATCH, f"The header {name} comes twice.")
            found[name] = bytes(value).decode("latin-1")
    return found


def read_call(message: RpcMessage) -> tuple[str, Json]:
    name, arguments = message.params.get("name"), message.params.get("arguments")
    if not isinstance(name, str) or not isinstance(arguments, dict | None):
        raise ProtocolError(
            INVALID_PARAMS, "params must have the name of a tool, and arguments as an object."
        )
    return name, cast("Json", arguments or {})


def progress_token(message: RpcMessage) -> RequestId | None:
    meta = message.params.get("_meta")
    token = cast("Json", meta).get("progressToken") if isinstance(meta, dict) else None
    return token if isinstance(token, str | int) else None


def accepts_events(scope: Scope) -> bool:
    return "text/event-stream" in (header(scope, b"accept") or "")


def session_version(session: str | None) -> str | None:
    """The version that the session's `initialize` agreed on: some clients name another later."""
    version = (session or "").partition(".")[0]
    return version if version in HANDSHAKE_VERSIONS else None


def request_key(scope: Scope, session: str | None, request_id: RequestId) -> str | None:
    """A request that is repeated after a lost reply has the same key: the header, or the id of the
    request within its session, which a client uses once."""
    if (given := header(scope, b"idempotency-key")) is not None:
        return given
    if session is None:
        return None
    return "mcp:" + sha256(f"{session} {request_id!r}".encode()).hexdigest()
