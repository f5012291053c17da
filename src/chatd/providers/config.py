"""The configuration of one provider, checked before a request is sent.

Providers have names, so that there can be several of a kind. A missing or invalid setting raises
`ProviderError` of type `config` or `missing_key` that names the setting.
"""

import platform
import re
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from typing import Final, Literal, get_args
from urllib.parse import urlsplit, urlunsplit

from msgspec import Struct

from chatd.domain.model.protocol import ModelRequest, ProviderError, ProviderFault
from chatd.domain.model.retry import STREAM_IDLE_TIMEOUT_S
from chatd.providers.http import HttpConfig
from chatd.providers.secret import Secret

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


def request_headers(
    config: ProviderConfig,
    request: ModelRequest,
    auth: Mapping[str, str],
    accept: str = "text/event-stream",
) -> dict[str, str]:
    """The headers of a model call. Configured headers replace all others."""
    own = {
        "content-type": "application/json",
        "accept": accept,
        "user-agent": user_agent(),
        **auth,
    }
    return merge_headers(request.headers, own, configured_headers(config))


def list_headers(config: ProviderConfig, auth: Mapping[str, str]) -> dict[str, str]:
    """The headers of a request for the provider's models."""
    own = {"accept": "application/json", "user-agent": user_agent(), **auth}
    return merge_headers(own, configured_headers(config))


def configured_headers(config: ProviderConfig) -> dict[str, str]:
    return {name: value.reveal() for name, value in config.headers.items()}


@cache
def user_agent() -> str:
    return f"chatd/{version('chatd')} ({platform.system().lower()}/{platform.machine().lower()})"
