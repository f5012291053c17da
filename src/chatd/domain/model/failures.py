"""Failures of model calls: their kinds and messages, and what can be read from a provider's error.

Does not decide which kind a fault is: that is `classify`.
"""

import json
import re
from collections.abc import Mapping
from typing import Final, Literal

import msgspec
from msgspec import Struct

from chatd.domain.chat.row import ChatError
from chatd.domain.errors import ChatdError
from chatd.domain.ids import ModelConfigId
from chatd.domain.model.protocol import ProviderFault, TransportFault
from chatd.domain.text import clip, replace_surrogates

FailureKind = Literal[
    "generic",
    "overloaded",
    "rate_limit",
    "timeout",
    "stream_silence_timeout",
    "stream_content_timeout",
    "auth",
    "config",
    "context_overflow",
    "usage_limit",
    "missing_key",
    "provider_disabled",
    "model_removed",
    "content_filter",
    "refusal",
    "output_limit",
    "answer_too_large",
]


class ClassifiedFailure(Struct, frozen=True, kw_only=True):
    """`error` is what viewers see; it has the same kind. `never_reached` is how the connection
    failed, if the provider has not answered since the process started. `context_limit` is the
    window that the provider names when it refuses a prompt as too long."""

    kind: FailureKind
    error: ChatError
    retry_after_s: float | None = None
    never_reached: TransportFault | None = None
    context_limit: int | None = None

    @property
    def retryable(self) -> bool:
        return self.error.retryable


class ModelError(ChatdError):
    """A failure that is classified where it is raised, such as a missing key."""

    code = "model_failed"

    def __init__(self, classified: ClassifiedFailure) -> None:
        super().__init__(classified.error.message)
        self.classified = classified


class RemovedModel(Struct, frozen=True, kw_only=True):
    """A model that was deleted, or that no server declares any more."""

    id: ModelConfigId
    name: str


class ModelRemoved(ModelError):
    """The model was removed. The default model may answer instead."""

    def __init__(self, removed: RemovedModel, message: str) -> None:
        error = ChatError(message=message, kind="model_removed")
        super().__init__(ClassifiedFailure(kind="model_removed", error=error))
        self.removed = removed


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

_MESSAGES: Final[Mapping[FailureKind, str]] = {
    "generic": "{who} returned an unexpected error.",
    "overloaded": "{who} is overloaded.",
    "rate_limit": "{who} is limiting the rate of requests.",
    "timeout": "{who} could not be reached in time.",
    "stream_silence_timeout": "{who} has sent nothing for too long.",
    "stream_content_timeout": "{who} has kept the connection open for too long without an answer."
    " What had arrived is kept. Send a message to try again.",
    "auth": "{who} refused the API key. Check the key and what it may do.",
    "config": "{who} does not accept this configuration. Check the model and its settings.",
    "context_overflow": "The chat is longer than the context of the model at {who}.",
    "usage_limit": "The account at {who} has reached its limit. Check its billing and quota.",
    "missing_key": "No API key is set for {who}.",
    "provider_disabled": "{who} is switched off for this deployment.",
    "model_removed": "The chat's model was removed. Choose another one.",
    "content_filter": "The content filter of {who} stopped the answer.",
    "refusal": "The model at {who} refused to answer.",
    "output_limit": "The model at {who} used its whole output limit before it wrote an answer."
    " Raise the model's max_output_tokens or lower its reasoning effort.",
    "answer_too_large": "{who} sent more than one answer may have, so chatd ended it. What had"
    " arrived is kept. Send a message to go on, or use another model.",
}


def failure_message(kind: FailureKind, provider: str) -> str:
    text = _MESSAGES[kind].format(who=_NAMES.get(provider, provider or "the provider"))
    return text[0].upper() + text[1:]


def with_provider(classified: ClassifiedFailure, provider: str) -> ClassifiedFailure:
    """Name the configured provider, which the transport may not know."""
    if not provider or classified.error.provider == provider:
        return classified
    message = failure_message(classified.kind, provider)
    named = msgspec.structs.replace(classified.error, provider=provider, message=message)
    return msgspec.structs.replace(classified, error=named)


def known_failure(
    kind: FailureKind, provider: str, *, detail: str | None = None
) -> ClassifiedFailure:
    """A failure that chatd detects itself. Only an idle timeout is retryable."""
    error = ChatError(
        message=failure_message(kind, provider),
        detail=detail,
        kind=kind,
        provider=provider or None,
        retryable=kind == "stream_silence_timeout",
    )
    return ClassifiedFailure(kind=kind, error=error)


MAX_DETAIL_CHARS: Final = 500
_MAX_BRACES: Final = 16

_NAMED_STATUS: Final = re.compile(
    r"\b(?:status(?: code)?\s*[:= ]\s*|http(?:/\d(?:\.\d)?)? )(\d{3})\b"
)
# After a colon the number is a port.
_BARE_STATUS: Final = re.compile(r"(?<![\d:.])\b(401|403|408|429|500|502|503|504|529)\b(?!\.?\d)")
_STREAM_ID: Final = re.compile(r"stream(?: id)?[ =:#]+\d+")

_PROVIDERS: Final[tuple[tuple[re.Pattern[str], str], ...]] = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"openai[-_ ]compat", "openai-compat"),
        (r"\bazure", "azure"),
        (r"openrouter", "openrouter"),
        (r"bedrock", "bedrock"),
        (r"vercel", "vercel"),
        (r"anthropic|claude", "anthropic"),
        (r"google|gemini|vertex", "google"),
        (r"openai", "openai"),
    )
)


def read_status(fault: ProviderFault) -> int | None:
    """The response's status, else a number in the text that can only be a status."""
    if fault.status_code is not None:
        return fault.status_code
    text = _STREAM_ID.sub("", fault.message.lower())
    match = _NAMED_STATUS.search(text) or _BARE_STATUS.search(text)
    return int(match[1]) if match else None


def read_provider(fault: ProviderFault) -> str:
    """The configured provider, else the first that the text names, most specific first."""
    if fault.provider:
        return fault.provider
    text = fault.message.lower()
    return next((name for pattern, name in _PROVIDERS if pattern.search(text)), "")


def error_detail(fault: ProviderFault) -> str | None:
    """The vendor's text, clipped and without secrets."""
    return quotable_text(fault) or _raw(fault.message)


def quotable_text(fault: ProviderFault) -> str | None:
    """The vendor's message, from the body or from JSON inside the error's text."""
    return body_detail(fault.body) or _json_message(fault.message)


def body_detail(body: str | None) -> str | None:
    """`error.message`, else `message` or `detail`, else the first line of plain text; no HTML."""
    if body is None or not (text := _without_chunk_sizes(body).strip()):
        return None
    if (found := _json_message(text)) is not None:
        return found
    return None if text[0] in "<{[" else clip_detail(redact_urls(text.splitlines()[0]))


def _without_chunk_sizes(body: str) -> str:
    """A chunked body has the size of each chunk, in hex, on a line of its own."""
    lines = body.splitlines()
    if len(lines) < 2 or not re.fullmatch(r"[0-9a-fA-F]{1,8}", lines[0].strip()):
        return body
    return "\n".join(line for line in lines if not re.fullmatch(r"[0-9a-fA-F]{1,8}", line.strip()))


def _raw(text: str) -> str | None:
    return None if text.lstrip().startswith("<") else clip_detail(redact_urls(text))


def _json_message(text: str) -> str | None:
    """SDKs and proxies put text before the body, and a URL in it may contain braces."""
    decoder = json.JSONDecoder()
    start = -1
    for _ in range(_MAX_BRACES):
        start = text.find("{", start + 1)
        if start < 0:
            return None
        try:
            parsed: object = decoder.raw_decode(text, start)[0]
        except (ValueError, RecursionError):
            continue
        if (found := _message_in(parsed)) is not None:
            return clip_detail(redact_urls(found))
    return None


def _message_in(parsed: object) -> str | None:
    error = _field(parsed, "error")
    # AWS uses either case; FastAPI servers use `detail`.
    others = (_field(parsed, name) for name in ("message", "Message", "detail"))
    texts = (error, _field(error, "message"), *others)
    return next((text for text in texts if isinstance(text, str) and text.strip()), None)


def _field(value: object, name: str) -> object:
    return msgspec.convert(value, dict[str, object]).get(name) if isinstance(value, dict) else None


_URL: Final = re.compile(r"(https?://)(?:[^/\s@\"']*@)?([^\s?#\"']*)(?:[?#][^\s\"']*)?")
_KEY: Final = re.compile(
    r"\b(?:sk|pk|rk|key|gsk|xai|AIza)[-_][A-Za-z0-9_\-*.]{6,}|\bAIza[A-Za-z0-9_\-]{10,}"
    r"|\bAKIA[A-Z0-9]{12,}|\b[Bb]earer +[A-Za-z0-9_\-.~+/=]{6,}"
    # chatd's own tokens, of users and of runners; `access.secret_text` has their form.
    r"|\bchatd_(?:runner_)?[0-9a-f]{12}_[A-Za-z0-9_\-]{43}"
    # AWS repeats the headers of a request with a wrong signature.
    r"|(?<=x-amz-security-token:)[^\s\\\"']+"
)


def redact_urls(text: str) -> str:
    """Remove credentials: user info, query and fragment of URLs, and keys that vendors echo."""
    return _KEY.sub("[key]", _URL.sub(r"\1\2", text))


def clip_detail(text: str) -> str | None:
    """A text that may be stored and shown as a detail; None if it is blank."""
    text = replace_surrogates(text).strip()
    return clip(text, MAX_DETAIL_CHARS) or None
