"""Foreign failures, as facts: what the network did, what a vendor calls its error."""

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


def error_word(body: bytes, headers: Mapping[str, str]) -> str | None:
    """The vendor's own word for an error, the most telling first. Header names in lower case."""
    if named := headers.get("x-amzn-errortype"):
        return named.partition(":")[0]
    try:
        reply = _REPLY.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if isinstance(reply.error, _Error):
        words = (reply.error.code, reply.error.status, reply.error.type)
    else:
        words = (reply.code, reply.type)
    return next((word for word in words if isinstance(word, str) and word), None)


def told_status(body: bytes) -> int | None:
    """The status that an error tells of itself, whatever the reply's own is."""
    try:
        reply = _REPLY.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    error = reply.error if isinstance(reply.error, _Error) else _Error()
    codes = (error.code, error.status, reply.code)
    return next((status for code in codes if (status := as_status(code)) is not None), None)


def as_status(code: object) -> int | None:
    """A code that is the status of an error, also as text."""
    if isinstance(code, str) and len(code) == 3 and code.isdecimal():
        code = int(code)
    if isinstance(code, bool) or not isinstance(code, int):
        return None
    return code if 400 <= code < 600 else None


def host_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or "the host"
    except ValueError:
        return "the host"


def transport_fault(error: Exception, host: str) -> ProviderFault:
    """What the network did. Only the host is named: addresses and errors can hold keys."""
    match error:
        case aiohttp.ClientSSLError() | ssl.SSLError():
            return ProviderFault(
                message=f"no secure connection to {host}: {_certificate(error)}", transport="tls"
            )
        case aiohttp.ClientConnectorDNSError():
            return ProviderFault(message=f"the name {host} cannot be resolved", transport="dns")
        case aiohttp.ServerTimeoutError() | TimeoutError():
            return ProviderFault(message=f"{host} did not answer in time", transport="timeout")
        case aiohttp.ClientProxyConnectionError():
            return ProviderFault(message="no connection to the proxy", transport="refused")
        case aiohttp.ClientHttpProxyError():
            said = f"the proxy refuses to connect to {host} (status {error.status})"
            return ProviderFault(message=said, type="config")
        case aiohttp.ClientConnectorError() | ConnectionRefusedError():
            return ProviderFault(message=f"no connection to {host}", transport="refused")
        case aiohttp.InvalidURL() | aiohttp.NonHttpUrlClientError():
            return ProviderFault(message="the base URL is not a web address", type="config")
        case aiohttp.ClientResponseError():
            return ProviderFault(message=f"{host} does not speak HTTP", type="config")
        case aiohttp.ClientError() | OSError():
            return ProviderFault(message=f"the connection to {host} was cut", transport="reset")
        case _:
            return ProviderFault(message="the request cannot be sent", type="config")


def _certificate(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        inner: Exception = error.certificate_error
    else:
        inner = error
    if isinstance(inner, ssl.SSLCertVerificationError):
        return f"its certificate is refused ({inner.verify_message})"
    return "the TLS handshake failed"


def incomplete(message: str = "the stream ended before the answer did") -> ProviderFault:
    return ProviderFault(message=message, incomplete=True)


def garbled(data: bytes) -> ProviderFault:
    """An event that is not what the wire promises. Trying again may well help."""
    return ProviderFault(
        message="an event of the stream cannot be read",
        incomplete=True,
        body=data[:200].decode("utf-8", "replace"),
    )
