"""One HTTP request of an MCP client: what its headers and the parameters of its call say."""

from collections.abc import Mapping
from hashlib import sha256
from typing import Final, cast

from msgspec import Struct

from chatd.api.auth import ApiCaller
from chatd.api.mcp.messages import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    Json,
    ProtocolError,
    RequestId,
    RpcMessage,
)
from chatd.api.mcp.versions import (
    HANDSHAKE_VERSIONS,
    METHOD_HEADER,
    NAME_HEADER,
    VERSION_HEADER,
)
from chatd.api.request import Receive, Scope, Send, header

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
