"""Facts of failures: network errors, and the errors that providers report.

OpenAI's APIs and their imitations describe an error as an object or as plain text, with a status
or a name as its code, and any field may be missing. No such difference may hide the message.
"""

import os
import re
import socket
import ssl
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

import aiohttp
import msgspec
from msgspec import Struct

from chatd.domain.model.protocol import ProviderFault


class _Error(Struct):
    type: object = None
    code: object = None
    status: object = None
    message: object = None


class _Reply(Struct):
    error: _Error | str | None = None
    type: object = None
    code: object = None


_REPLY: Final = msgspec.json.Decoder(_Reply)


def vendor_error_type(body: bytes, headers: Mapping[str, str]) -> str | None:
    """The provider's type of an error, most specific field first. Header names are lower case."""
    if named := headers.get("x-amzn-errortype"):
        return named.partition(":")[0]
    try:
        reply = _REPLY.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if isinstance(reply.error, _Error):
        types = (reply.error.code, reply.error.status, reply.error.type)
    else:
        types = (reply.code, reply.type)
    return next((word for word in types if isinstance(word, str) and word), None)


def read_error_status(body: bytes) -> int | None:
    """The status inside an error body, which may differ from the reply's status."""
    try:
        reply = _REPLY.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    error = reply.error if isinstance(reply.error, _Error) else _Error()
    codes = (error.code, error.status, reply.code)
    return next((status for code in codes if (status := parse_status(code)) is not None), None)


def parse_status(code: object) -> int | None:
    """The HTTP error status that `code` is, as a number or as text."""
    if isinstance(code, str) and len(code) == 3 and code.isdecimal():
        code = int(code)
    if isinstance(code, bool) or not isinstance(code, int):
        return None
    return code if 400 <= code < 600 else None


def address_of(url: str) -> str:
    """Host and port of a URL, which is all of it that an error may show."""
    try:
        parsed = urlsplit(url)
        host, port = parsed.hostname, parsed.port or (443 if parsed.scheme == "https" else 80)
    except ValueError:
        return "the host"
    if not host:
        return "the host"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class NotHttp(aiohttp.ClientError):
    """The bytes of a reply are not HTTP."""


CHECK_SERVER_HINT: Final = "Check that the server runs and that base_url has its address and port."
CHECK_NAME_HINT: Final = "Check the host name in base_url and the DNS of this machine."
CHECK_NETWORK_HINT: Final = "Check base_url, the firewall and the proxy of this machine."


def transport_fault(error: Exception, url: str, proxy: str | None = None) -> ProviderFault:
    """Describe a network error. Names hosts and ports only, because URLs and errors can contain
    keys."""
    server = address_of(url)
    match error:
        case aiohttp.ClientSSLError() | ssl.SSLError():
            return ProviderFault(
                message=f"no secure connection to {server}: {_certificate(error)}", transport="tls"
            )
        case aiohttp.ClientConnectorDNSError():
            name = address_of(proxy or url).rpartition(":")[0]
            return ProviderFault(
                message=f"the name {name} cannot be resolved: {_cause(error)}.",
                transport="dns",
                hint=CHECK_NAME_HINT,
            )
        case aiohttp.ConnectionTimeoutError():
            return ProviderFault(
                message=f"no connection to {address_of(proxy or url)} in time.",
                transport="unreachable",
                hint=CHECK_NETWORK_HINT,
            )
        case aiohttp.ServerTimeoutError() | TimeoutError():
            return ProviderFault(message=f"{server} did not answer in time", transport="timeout")
        case aiohttp.ClientProxyConnectionError():
            return ProviderFault(
                message=f"no connection to the proxy {address_of(proxy or '')}: {_cause(error)}.",
                transport="refused",
                hint="Check the address of the proxy.",
            )
        case aiohttp.ClientHttpProxyError():
            return _proxy_fault(error.status, server)
        case aiohttp.ClientConnectorError() | ConnectionRefusedError():
            return ProviderFault(
                message=f"no connection to {server}: {_cause(error)}.",
                transport="refused",
                hint=CHECK_SERVER_HINT,
            )
        case aiohttp.InvalidURL() | aiohttp.NonHttpUrlClientError():
            return ProviderFault(message="the base URL is not a web address", type="config")
        case aiohttp.ClientResponseError() | NotHttp():
            return ProviderFault(message=f"{server} does not speak HTTP", type="config")
        case aiohttp.ClientError() | OSError():
            return ProviderFault(message=f"the connection to {server} was cut", transport="reset")
        case _:
            return ProviderFault(message="the request cannot be sent", type="config")


_FINAL_PROXY_STATUSES: Final = frozenset({400, 401, 403, 404, 405, 407})
"""A proxy with one of these refuses every request like this one. Any other may pass."""


def _proxy_fault(status: int, server: str) -> ProviderFault:
    if status in _FINAL_PROXY_STATUSES:
        message = f"the proxy refuses to connect to {server} (status {status})"
        return ProviderFault(message=message, type="config")
    return ProviderFault(
        message=f"the proxy cannot connect to {server} (status {status}).",
        transport="unreachable",
        hint=CHECK_NETWORK_HINT,
    )


_ERRNO: Final = re.compile(r"\[Errno (\d+)\]")


def _cause(error: Exception) -> str:
    """The system's words for the error, such as `connection refused`."""
    inner = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(inner, socket.gaierror):
        return (inner.strerror or "the name is unknown").lower()
    number = inner.errno if isinstance(inner, OSError) else None
    if number is None and (match := _ERRNO.search(str(inner))) is not None:
        # One error for all addresses of the host, with their own errors in its text.
        number = int(match[1])
    return "the connection failed" if number is None else os.strerror(number).lower()


def _certificate(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        inner: Exception = error.certificate_error
    else:
        inner = error
    if isinstance(inner, ssl.SSLCertVerificationError):
        return f"its certificate is refused ({inner.verify_message})"
    return "the TLS handshake failed"


def incomplete_fault(message: str = "the stream ended before the answer did") -> ProviderFault:
    return ProviderFault(message=message, incomplete=True)


def too_large_fault(message: str) -> ProviderFault:
    """More than one answer may have. Not retried: the next answer would most likely be as large."""
    return ProviderFault(message=message, type="answer_too_large")


def unreadable_fault(data: bytes) -> ProviderFault:
    """An event that does not match the API. Retryable, because damage is often transient."""
    return ProviderFault(
        message="an event of the stream cannot be read",
        incomplete=True,
        body=data[:200].decode("utf-8", "replace"),
    )


_MAX_BODY_BYTES: Final = 2000
_MAX_MESSAGE_CHARS: Final = 500


class OpenAIError(Struct, frozen=True, kw_only=True):
    """Any field may have an unexpected type."""

    message: object = None
    type: object = None
    code: object = None


def read_error(value: object) -> OpenAIError:
    """Read the value of an `error` field: an object, or anything else as its message."""
    if isinstance(value, dict):
        return msgspec.convert(value, OpenAIError)
    return OpenAIError(message=value)


def openai_fault(
    error: OpenAIError, data: bytes | None = None, *, default_message: str
) -> ProviderFault:
    """`default_message` describes an error without a message."""
    status = parse_status(error.code)
    types = (None if status is not None else error.code, error.type)
    return ProviderFault(
        message=_message_text(error.message) or default_message,
        status_code=status,
        type=next((word for word in types if isinstance(word, str) and word), None),
        body=None if data is None else data[:_MAX_BODY_BYTES].decode("utf-8", "replace"),
    )


def _message_text(message: object) -> str:
    if isinstance(message, str):
        return message
    if message is None or isinstance(message, bool):
        return ""
    return msgspec.json.encode(message).decode()[:_MAX_MESSAGE_CHARS]
