"""Messages of JSON-RPC as MCP uses it: reads bodies, writes results, errors and notifications."""

from typing import Any, Final, TypeAlias, cast

import msgspec
from msgspec import UNSET, Struct, UnsetType

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
