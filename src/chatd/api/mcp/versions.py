"""Versions of the protocol, and what a request must say about its version.

Up to 2025-11-25 a client negotiates one version by `initialize`, and repeats it in a header. From
2026-07-28 on every request names its version in `_meta`, and repeats method and name in headers.
"""

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Final, cast

from chatd.api.mcp.messages import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    UNSUPPORTED_PROTOCOL_VERSION,
    ProtocolError,
    RpcMessage,
)

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
