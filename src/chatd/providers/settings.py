"""What an administrator says about one provider, checked before anything is sent.

A provider has a name of its own, so that there can be several of a kind. What
is missing or wrong is a `ProviderError` whose kind is `config` or
`missing_key`, and which says what to set.
"""

import platform
import re
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from typing import Final, Literal
from urllib.parse import urlsplit, urlunsplit

from msgspec import Struct

from chatd.domain.model.protocol import ProviderError, ProviderFault
from chatd.providers.http import HttpConfig
from chatd.providers.secret import Secret

Kind = Literal[
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

# Where a key comes from if it is not configured; read at the roof, named in messages.
KEY_VARIABLES: Final[dict[Kind, str]] = {
    "anthropic": "ANTHROPIC_API_KEY",
    "azure": "AZURE_OPENAI_API_KEY",
    "bedrock": "AWS_BEARER_TOKEN_BEDROCK",
    "google": "GEMINI_API_KEY",
    "openai": "OPENAI_API_KEY",
    "openai-compat": "OPENAI_COMPAT_API_KEY",
    "openrouter": "OPENROUTER_API_KEY",
    "vercel": "AI_GATEWAY_API_KEY",
}


class AwsCredentials(Struct, frozen=True, kw_only=True):
    access_key_id: str
    secret_access_key: Secret
    session_token: Secret | None = None


class ProviderSettings(Struct, frozen=True, kw_only=True):
    """`headers` go out with every request and win over ours; they may hold keys too."""

    kind: Kind
    name: str = ""
    api_key: Secret | None = None
    base_url: str | None = None
    headers: Mapping[str, Secret] = {}
    region: str | None = None
    aws: AwsCredentials | None = None
    use_responses_api: bool | None = None
    http: HttpConfig = HttpConfig()

    @property
    def label(self) -> str:
        return self.name or self.kind

    @property
    def secrets(self) -> tuple[Secret, ...]:
        aws = self.aws
        own = (self.api_key, aws and aws.secret_access_key, aws and aws.session_token)
        return (*(secret for secret in own if secret), *self.headers.values())


def misconfigured(settings: ProviderSettings, message: str, word: str = "config") -> ProviderError:
    return ProviderError(ProviderFault(message=message, provider=settings.label, type=word))


def require_key(settings: ProviderSettings) -> Secret:
    """The key. It must be one line of plain characters, or it would not pass as a header."""
    key = settings.api_key
    if key is None or not key.reveal().strip():
        raise misconfigured(
            settings,
            f"provider {settings.label} has no API key: set its api_key, or"
            f" {KEY_VARIABLES[settings.kind]} in the environment",
            "missing_key",
        )
    text = key.reveal().strip()
    if not re.fullmatch(r"[\x21-\x7e]+", text):
        raise misconfigured(
            settings, f"the API key of provider {settings.label} has characters no key has"
        )
    return Secret(text)


def base_url(settings: ProviderSettings, default: str | None) -> str:
    """Without a slash at the end. Raises if there is none or it is no web address."""
    text = (settings.base_url or default or "").strip()
    if not text:
        raise misconfigured(settings, f"provider {settings.label} needs a base_url")
    try:
        url = urlsplit(text)
        port_is_fine = url.port is None or url.port > 0
    except ValueError:
        raise misconfigured(
            settings, f"the base_url of provider {settings.label} is not a web address"
        ) from None
    if url.scheme not in ("http", "https") or not url.hostname or not port_is_fine:
        raise misconfigured(
            settings,
            f"the base_url of provider {settings.label} must be an absolute http or https address",
        )
    if url.username is not None or url.password is not None:
        raise misconfigured(
            settings,
            f"the base_url of provider {settings.label} must not hold a user or a password:"
            " set api_key or headers",
        )
    return urlunsplit((url.scheme, url.netloc, url.path.rstrip("/"), url.query, ""))


def join_url(base: str, path: str) -> str:
    """`path` at the end of the base's own, before its query."""
    url = urlsplit(base)
    return urlunsplit((url.scheme, url.netloc, f"{url.path.rstrip('/')}{path}", url.query, ""))


def merge_headers(*layers: Mapping[str, str]) -> dict[str, str]:
    """Later layers win, whatever the case of the names. What cannot be a header is left out."""
    merged: dict[str, str] = {}
    for layer in layers:
        for name, value in layer.items():
            if can_be_header(name, value):
                merged[name.lower()] = value
    return merged


def can_be_header(name: str, value: str) -> bool:
    return value.isprintable() and bool(re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name))


def own_headers(settings: ProviderSettings) -> dict[str, str]:
    return {name: value.reveal() for name, value in settings.headers.items()}


@cache
def user_agent() -> str:
    return f"chatd/{version('chatd')} ({platform.system().lower()}/{platform.machine().lower()})"
