"""The configuration of one provider: its kind, address, secrets, headers, timeouts, proxy and TLS.

It is checked before a request is sent. Providers have names, so there can be several of one kind. A
missing or invalid setting raises a `ProviderError` of type `config` or `missing_key` that names it.
"""

import errno
import os
import platform
import re
import ssl
import stat
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import version
from ipaddress import ip_address, ip_network
from typing import Final, Literal, get_args
from urllib.parse import urlsplit, urlunsplit

from msgspec import Struct

from chatd.domain.model.failures import redact_urls
from chatd.domain.model.protocol import CALL_ID_NAMES, ModelRequest, ProviderError, ProviderFault
from chatd.domain.model.retry import STREAM_IDLE_TIMEOUT_S

# Secrets stay out of logs, messages and files: only the code that sends one reveals it.

# Shorter values are not keys, and replacing them would damage ordinary text.
_MIN_SECRET_CHARS: Final = 8


class Secret:
    """Hidden in repr, str, format strings and JSON; cannot be pickled."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "Secret(***)"

    def __bool__(self) -> bool:
        return bool(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other.reveal() == self._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __reduce__(self) -> str:
        raise TypeError("a secret cannot be pickled")


def redact_secrets(text: str, secrets: Iterable[Secret]) -> str:
    """Replace the secrets in `text`, and credentials in its URLs."""
    for secret in secrets:
        value = secret.reveal().strip()
        # A header value is "Bearer KEY"; providers repeat the key without the scheme.
        for word in (value, *value.split()):
            if len(word) >= _MIN_SECRET_CHARS:
                text = text.replace(word, "[key]")
    return redact_urls(text)


# Proxies and TLS. `ProxyRules` decides as curl and Go do. The environment is read once, at start.

UNSUPPORTED_PROXY_TEXT: Final = (
    "chatd can use HTTP proxies only, and the environment (HTTPS_PROXY, HTTP_PROXY, ALL_PROXY)"
    ' names another kind: set proxy of this provider, to "none" for no proxy'
)
NO_PROXY_WORD: Final = "none"
"""The `proxy` of a provider that uses none, even if the environment has one."""


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
    """PEM files. `ca_file` is trusted like the authorities of this machine. `client_key` may be in
    the file of the certificate."""

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
    """Opening a pipe or a terminal could block for ever. Raises OSError."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "not a regular file")


def _refuse_password() -> str:
    """Without this, OpenSSL would ask on the terminal and the server would wait for an answer."""
    raise OSError(errno.EACCES, "its key has a password, which chatd cannot ask for")


def _unusable(setting: str, path: str, error: OSError) -> ProviderError:
    cause = "not a PEM file of the expected kind" if isinstance(error, ssl.SSLError) else None
    text = f"{setting} {path} cannot be used: {cause or (error.strerror or 'unreadable').lower()}"
    return ProviderError(ProviderFault(message=text, type="config"))


class HttpConfig(Struct, frozen=True, kw_only=True):
    """`read_timeout_s` is a last resort: the worker's silence guard fires earlier. `silence_s` and
    `answer_s` are limits of the worker; None: the default of the provider and its model."""

    connect_timeout_s: float = 10.0
    read_timeout_s: float = 900.0
    silence_s: float | None = None
    answer_s: float | None = None
    error_body_timeout_s: float = 5.0
    proxies: ProxyRules = ProxyRules()
    tls: TlsFiles = TlsFiles()


# The configuration, and the checks and headers that follow from it.

ProviderKind = Literal[
    "anthropic",
    "azure",
    "bedrock",
    "demo",
    "google",
    "openai",
    "openai-compat",
    "openrouter",
    "vercel",
]

# The environment variable of the key, if none is configured. Error messages name it.
KEY_VARIABLES: Final[dict[ProviderKind, str]] = {
    "anthropic": "ANTHROPIC_API_KEY",
    "azure": "AZURE_OPENAI_API_KEY",
    "bedrock": "AWS_BEARER_TOKEN_BEDROCK",
    "google": "GEMINI_API_KEY",
    "openai": "OPENAI_API_KEY",
    "openai-compat": "OPENAI_COMPAT_API_KEY",
    "openrouter": "OPENROUTER_API_KEY",
    "vercel": "AI_GATEWAY_API_KEY",
}


SILENCE_LIMITS_S: Final[dict[ProviderKind, float]] = {
    **dict.fromkeys(get_args(ProviderKind), STREAM_IDLE_TIMEOUT_S),
    # A local model may read a long prompt for half an hour before its first token.
    "openai-compat": 2400.0,
}


class AwsCredentials(Struct, frozen=True, kw_only=True):
    access_key_id: str
    secret_access_key: Secret
    session_token: Secret | None = None


class ProviderConfig(Struct, frozen=True, kw_only=True):
    """`headers` are sent with every request and replace chatd's own. They may contain keys.
    `default_region` is the machine's, for a provider that names none. `is_preset`: it is not in the
    settings; the environment has its key."""

    kind: ProviderKind
    name: str = ""
    api_key: Secret | None = None
    base_url: str | None = None
    headers: Mapping[str, Secret] = {}
    region: str | None = None
    default_region: str | None = None
    aws: AwsCredentials | None = None
    use_responses_api: bool | None = None
    http: HttpConfig = HttpConfig()
    is_preset: bool = False

    @property
    def label(self) -> str:
        return self.name or self.kind

    @property
    def secrets(self) -> tuple[Secret, ...]:
        aws = self.aws
        own = (self.api_key, aws and aws.secret_access_key, aws and aws.session_token)
        return (*(secret for secret in own if secret), *self.headers.values())


def config_fault(config: ProviderConfig, message: str, error_type: str = "config") -> ProviderError:
    return ProviderError(ProviderFault(message=message, provider=config.label, type=error_type))


def require_key(config: ProviderConfig) -> Secret:
    """The API key. Raises unless it consists of characters that an HTTP header can carry."""
    key = config.api_key
    if key is None or not key.reveal().strip():
        raise config_fault(
            config,
            f"provider {config.label} has no API key: set its api_key, or"
            f" {KEY_VARIABLES[config.kind]} in the environment",
            "missing_key",
        )
    text = key.reveal().strip()
    if not re.fullmatch(r"[\x21-\x7e]+", text):
        raise config_fault(
            config,
            f"the API key of provider {config.label} has characters that a header cannot carry",
        )
    return Secret(text)


def base_url(config: ProviderConfig, default: str | None) -> str:
    """The configured address without a trailing slash. Raises if it is missing or invalid."""
    text = (config.base_url or default or "").strip()
    if not text:
        raise config_fault(config, f"provider {config.label} needs a base_url")
    try:
        url = urlsplit(text)
        port_is_fine = url.port is None or url.port > 0
    except ValueError:
        raise config_fault(
            config, f"the base_url of provider {config.label} is not a web address"
        ) from None
    if url.scheme not in ("http", "https") or not url.hostname or not port_is_fine:
        raise config_fault(
            config,
            f"the base_url of provider {config.label} must be an absolute http or https address",
        )
    if url.username is not None or url.password is not None:
        raise config_fault(
            config,
            f"the base_url of provider {config.label} must not contain a user or a password:"
            " set api_key or headers",
        )
    return urlunsplit((url.scheme, url.netloc, url.path.rstrip("/"), url.query, ""))


def join_url(base: str, path: str) -> str:
    """Append `path` to the path of `base`, before its query."""
    url = urlsplit(base)
    return urlunsplit((url.scheme, url.netloc, f"{url.path.rstrip('/')}{path}", url.query, ""))


def merge_headers(*layers: Mapping[str, str]) -> dict[str, str]:
    """Later layers win; names are compared without case. Drops invalid headers."""
    merged: dict[str, str] = {}
    for layer in layers:
        for name, value in layer.items():
            if is_valid_header(name, value):
                merged[name.lower()] = value
    return merged


def is_valid_header(name: str, value: str) -> bool:
    return value.isprintable() and bool(re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name))


_ID_NAME: Final = re.compile(r"\{(" + "|".join(CALL_ID_NAMES) + r")\}")


def request_headers(
    config: ProviderConfig,
    request: ModelRequest,
    auth: Mapping[str, str],
    accept: str = "text/event-stream",
) -> dict[str, str]:
    """The headers of a model call. Configured headers replace all others. `{chat_id}` and the other
    names of `CALL_ID_NAMES` in their values are replaced; a header without its id is not sent."""
    own = {
        "content-type": "application/json",
        "accept": accept,
        "user-agent": user_agent(),
        **auth,
    }
    named = {
        name: _ID_NAME.sub(lambda match: request.ids[match[1]], value)
        for name, value in configured_headers(config).items()
        if all(match[1] in request.ids for match in _ID_NAME.finditer(value))
    }
    return merge_headers(own, named)


def list_headers(config: ProviderConfig, auth: Mapping[str, str]) -> dict[str, str]:
    """The headers of a request for the provider's models."""
    own = {"accept": "application/json", "user-agent": user_agent(), **auth}
    return merge_headers(own, configured_headers(config))


def configured_headers(config: ProviderConfig) -> dict[str, str]:
    return {name: value.reveal() for name, value in config.headers.items()}


@cache
def user_agent() -> str:
    return f"chatd/{version('chatd')} ({platform.system().lower()}/{platform.machine().lower()})"
