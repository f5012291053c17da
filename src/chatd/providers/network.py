"""The way to a provider: its proxy, the authorities that its certificate is checked against, and
chatd's own certificate.

`ProxyRules` decides as curl and Go do. Variables of the environment are read once, at start.
"""

import errno
import os
import ssl
import stat
from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct

from chatd.domain.model.protocol import ProviderError, ProviderFault
from chatd.providers.secret import Secret

UNSUPPORTED_PROXY_TEXT: Final = (
    "chatd can use HTTP proxies only, and the environment (HTTPS_PROXY, HTTP_PROXY, ALL_PROXY)"
    ' names another kind: set proxy of this provider, to "none" for no proxy'
)
NO_PROXY_WORD: Final = "none"
"""As the `proxy` of a provider: no proxy, although the environment has one."""


class ProxyRules(Struct, frozen=True, kw_only=True):
    """`http` and `https` are the proxies of URLs with that scheme. `direct` lists the hosts that
    are reached without one. Proxy URLs may contain a password."""

    http: Secret | None = None
    https: Secret | None = None
    direct: tuple[str, ...] = ()

    def choose(self, url: str) -> Secret | None:
        try:
            parsed = urlsplit(url)
            host, port = (parsed.hostname or "").lower(), parsed.port
        except ValueError:
            return None
        is_tls = parsed.scheme == "https"
        proxy = self.https if is_tls else self.http
        if proxy is None or self._is_direct(host, port or (443 if is_tls else 80)):
            return None
        return proxy

    def _is_direct(self, host: str, port: int) -> bool:
        return any(entry and _matches(entry, host, port) for entry in self.direct)


def is_http_proxy(url: str) -> bool:
    return url.lower().startswith(("http://", "https://"))


LOOPBACK_HOSTS: Final = ("localhost", "127.0.0.0/8", "::1/128")
"""A proxy of the environment is never asked for a server of this machine."""


def environment_proxies(env: Mapping[str, str]) -> ProxyRules:
    def read(name: str) -> str:
        return (env.get(name) or env.get(name.upper()) or "").strip()

    direct = (entry.strip().lower() for entry in read("no_proxy").split(","))
    return ProxyRules(
        http=_proxy_url(read("http_proxy") or read("all_proxy")),
        https=_proxy_url(read("https_proxy") or read("all_proxy")),
        direct=(*direct, *LOOPBACK_HOSTS),
    )


def provider_proxies(proxy: str) -> ProxyRules:
    """The proxy of one provider, for all hosts."""
    found = None if proxy.strip().lower() == NO_PROXY_WORD else _proxy_url(proxy)
    return ProxyRules(http=found, https=found)


def _proxy_url(text: str) -> Secret | None:
    """`proxy:3128` means `http://proxy:3128`."""
    text = text.strip()
    if not text:
        return None
    return Secret(text if "://" in text else f"http://{text}")


def _matches(entry: str, host: str, port: int) -> bool:
    if entry == "*":
        return True
    name, separator, wanted_port = entry.rpartition(":")
    if separator and wanted_port.isdecimal() and ":" not in name:
        if int(wanted_port) != port:
            return False
        entry = name
    try:
        return ip_address(host) in ip_network(entry.strip("[]"), strict=False)
    except ValueError:
        domain = entry.removeprefix("*").removeprefix(".")
        return host == domain or host.endswith(f".{domain}")


class TlsFiles(Struct, frozen=True, kw_only=True):
    """PEM files. `ca_file` is trusted beside the authorities of this machine. `client_key` may be
    in the file of the certificate."""

    ca_file: str | None = None
    client_cert: str | None = None
    client_key: str | None = None


def build_tls_context(files: TlsFiles) -> ssl.SSLContext | None:
    """None without files: the defaults of the machine apply. Raises `ProviderError` that names the
    setting and the file."""
    if files == TlsFiles():
        return None
    context = ssl.create_default_context()
    if files.ca_file is not None:
        try:
            _require_regular_file(files.ca_file)
            context.load_verify_locations(files.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise _unusable("ca_file", files.ca_file, error) from None
    if files.client_cert is not None:
        try:
            _require_regular_file(files.client_cert)
            _require_regular_file(files.client_key or files.client_cert)
            context.load_cert_chain(files.client_cert, files.client_key, _refuse_password)
        except (OSError, ssl.SSLError) as error:
            raise _unusable("client_cert", files.client_cert, error) from None
    return context


def _require_regular_file(path: str) -> None:
    """To open a pipe or a terminal could wait for ever. Raises OSError."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "not a regular file")


def _refuse_password() -> str:
    """Without this OpenSSL would ask on the terminal, and the server would wait for the answer."""
    raise OSError(errno.EACCES, "its key has a password, which chatd cannot ask for")


def _unusable(setting: str, path: str, error: OSError) -> ProviderError:
    cause = "not a PEM file of the expected kind" if isinstance(error, ssl.SSLError) else None
    text = f"{setting} {path} cannot be used: {cause or (error.strerror or 'unreadable').lower()}"
    return ProviderError(ProviderFault(message=text, type="config"))
