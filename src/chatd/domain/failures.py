"""The kinds of failure of a model call, and what people are told about each.

Owns the words. Does not own how a failure is recognized: that is `classify`.
"""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec
from msgspec import Struct

from chatd.domain.chat import ChatError
from chatd.domain.errors import ChatdError

Kind = Literal[
    "generic",
    "overloaded",
    "rate_limit",
    "timeout",
    "stream_silence_timeout",
    "auth",
    "config",
    "context_overflow",
    "usage_limit",
    "missing_key",
    "provider_disabled",
    "content_filter",
]


class Classified(Struct, frozen=True, kw_only=True):
    """`error` is what people are told; its kind is this one."""

    kind: Kind
    error: ChatError
    retry_after_s: float | None = None

    @property
    def retryable(self) -> bool:
        return self.error.retryable


class ModelFailed(ChatdError):
    """A failure whose meaning is known where it arises, such as a key that is not set."""

    code = "model_failed"

    def __init__(self, classified: Classified) -> None:
        super().__init__(classified.error.message)
        self.classified = classified


_NAMES: Final[Mapping[str, str]] = {
    "anthropic": "Anthropic",
    "azure": "Azure OpenAI",
    "bedrock": "AWS Bedrock",
    "demo": "the demo model",
    "google": "Google",
    "openai": "OpenAI",
    "openai-compat": "the OpenAI-compatible provider",
    "openrouter": "OpenRouter",
    "vercel": "Vercel AI Gateway",
}

_MESSAGES: Final[Mapping[Kind, str]] = {
    "generic": "{who} returned an unexpected error.",
    "overloaded": "{who} is overloaded.",
    "rate_limit": "{who} is limiting the rate of requests.",
    "timeout": "{who} could not be reached in time.",
    "stream_silence_timeout": "{who} has sent nothing for too long.",
    "auth": "{who} refused the API key. Check the key and what it may do.",
    "config": "{who} does not accept this configuration. Check the model and its settings.",
    "context_overflow": "The chat is longer than the context of the model at {who}.",
    "usage_limit": "The account at {who} has reached its limit. Check its billing and quota.",
    "missing_key": "No API key is set for {who}.",
    "provider_disabled": "{who} is switched off for this deployment.",
    "content_filter": "{who} declined to answer.",
}


def message_of(kind: Kind, provider: str) -> str:
    text = _MESSAGES[kind].format(who=_NAMES.get(provider, provider or "the provider"))
    return text[0].upper() + text[1:]


def for_provider(classified: Classified, provider: str) -> Classified:
    """Under the name of the provider that is configured, which the transport may not know."""
    if not provider or classified.error.provider == provider:
        return classified
    message = message_of(classified.kind, provider)
    named = msgspec.structs.replace(classified.error, provider=provider, message=message)
    return msgspec.structs.replace(classified, error=named)


def known_failure(kind: Kind, provider: str, *, detail: str | None = None) -> Classified:
    """A failure that we find ourselves. Only silence passes by itself."""
    error = ChatError(
        message=message_of(kind, provider),
        detail=detail,
        kind=kind,
        provider=provider or None,
        retryable=kind == "stream_silence_timeout",
    )
    return Classified(kind=kind, error=error)
