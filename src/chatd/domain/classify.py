"""What a provider's failure means: its kind, whether to try again, what to tell people.

A pure function of the facts. A vendor's structured error type counts most,
then the status, then words in the error text or body; the order of the rules
is the order in which they were learnt the hard way.
"""

import re
from collections.abc import Callable
from typing import Final, Literal

import msgspec
from msgspec import Struct

from chatd.domain.chat import ChatError
from chatd.domain.model import ProviderFault

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

RETRYABLE: Final[frozenset[Kind]] = frozenset(
    {"overloaded", "rate_limit", "timeout", "stream_silence_timeout"}
)
MAX_DETAIL: Final = 500


class Classified(Struct, frozen=True, kw_only=True):
    error: ChatError
    retry_after_s: float | None = None

    @property
    def kind(self) -> str:
        return self.error.kind

    @property
    def retryable(self) -> bool:
        return self.error.retryable


# The vendor's own word for the error, where it has one.
_BY_TYPE: Final[dict[str, tuple[Kind, bool]]] = {
    "overloaded_error": ("overloaded", True),
    "rate_limit_error": ("rate_limit", True),
    "rate_limit_exceeded": ("rate_limit", True),
    "resource_exhausted": ("rate_limit", True),
    "api_error": ("generic", True),
    "server_error": ("generic", True),
    "internal_error": ("generic", True),
    "internal": ("generic", True),
    "unavailable": ("timeout", True),
    "deadline_exceeded": ("timeout", True),
    "timeout_error": ("timeout", True),
    "authentication_error": ("auth", False),
    "permission_error": ("auth", False),
    "permission_denied": ("auth", False),
    "unauthenticated": ("auth", False),
    "invalid_api_key": ("auth", False),
    "insufficient_quota": ("usage_limit", False),
    "billing_error": ("usage_limit", False),
    "context_length_exceeded": ("context_overflow", False),
    "model_not_found": ("config", False),
    "provider_disabled": ("provider_disabled", False),
}

_OVERFLOW: Final = re.compile(
    r"prompt is too long|context[ _]length[ _]exceeded|maximum context length|context_exceeded"
    r"|exceeds? the (?:model'?s )?(?:maximum )?context|input token count .* exceeds"
    r"|input (?:is|length) .{0,40}exceed.{0,40}context|request too large for model"
)
_CONFIG: Final = re.compile(
    r"invalid model|model not found|model_not_found|unsupported model|malformed config"
    r"|resolve aws credentials"
)
_BUDGET: Final = re.compile(r"insufficient_quota|budget (?:has been )?exceeded|ai budget")
_QUOTA: Final = re.compile(r"quota|billing|payment required|credit balance")
_AUTH: Final = re.compile(r"authentication|unauthorized|invalid api key|invalid_api_key")
_RATE: Final = re.compile(r"rate[ _-]?limit|too many requests")
_TIMEOUT: Final = re.compile(
    r"timeout|timed out|unavailable|connection reset|connection refused|\beof\b|broken pipe"
    r"|bad gateway|client conn|goaway|http2: stream closed|use of closed network connection"
    r"|internal_error; received from peer|refused_stream|enhance_your_calm"
)
_INTERRUPTED: Final = re.compile(r"(?:chat|request|operation) interrupted")
_CONTINUITY: Final = re.compile(
    r"no tool output found for function call|web_search_call.{0,80}reasoning"
    r"|reasoning.{0,80}required following item"
)
_SERVER: Final = re.compile(r"(?:internal )?server error")


class _Facts(Struct, frozen=True, kw_only=True):
    status: int | None
    text: str

    def says(self, pattern: re.Pattern[str]) -> bool:
        return pattern.search(self.text) is not None

    @property
    def misconfigured(self) -> bool:
        return self.says(_CONFIG) or self.says(_OVERFLOW)


_Rule = tuple[Callable[[_Facts], bool], Kind, bool]

# First match wins.
_RULES: Final[tuple[_Rule, ...]] = (
    (lambda f: f.status == 529 or "overloaded" in f.text, "overloaded", True),
    (lambda f: f.says(_OVERFLOW), "context_overflow", False),
    (lambda f: f.says(_BUDGET), "usage_limit", False),
    (lambda f: f.status == 402 or (f.status != 429 and f.says(_QUOTA)), "usage_limit", False),
    (lambda f: f.status == 401 or f.says(_AUTH), "auth", False),
    (
        lambda f: (f.status == 403 or "forbidden" in f.text) and not f.misconfigured,
        "auth",
        False,
    ),
    (
        lambda f: (f.status == 429 or f.says(_RATE)) and not f.misconfigured,
        "rate_limit",
        True,
    ),
    (lambda f: "provider_disabled" in f.text, "provider_disabled", False),
    (lambda f: "deadline exceeded" in f.text, "timeout", False),
    (
        lambda f: (f.status in (408, 502, 503, 504) or f.says(_TIMEOUT)) and not f.misconfigured,
        "timeout",
        True,
    ),
    (lambda f: f.says(_CONFIG), "config", False),
    (lambda f: f.status == 500 or f.says(_SERVER), "generic", True),
)


def classify(fault: ProviderFault) -> Classified:
    kind, retryable = _kind(fault)
    return Classified(
        error=ChatError(
            message=_message(kind, fault),
            detail=detail(fault) if kind != "auth" else body_detail(fault.body),
            kind=kind,
            provider=fault.provider or None,
            retryable=retryable,
            status_code=_status(fault),
        ),
        retry_after_s=fault.retry_after_s,
    )


def _kind(fault: ProviderFault) -> tuple[Kind, bool]:
    facts = _Facts(status=_status(fault), text=_text(fault))
    if facts.says(_INTERRUPTED) or facts.says(_CONTINUITY):
        return "generic", False
    if facts.says(_OVERFLOW):
        return "context_overflow", False
    if fault.type is not None and (known := _BY_TYPE.get(fault.type.lower())):
        return known
    if fault.transport is not None:
        # A certificate or a name that cannot be resolved does not heal in seconds.
        settled = fault.transport in ("tls", "dns")
        return ("config", False) if settled else ("timeout", True)
    if fault.incomplete:
        return "timeout", True
    for matches, kind, retryable in _RULES:
        if matches(facts):
            return kind, retryable
    return "generic", False


def _text(fault: ProviderFault) -> str:
    return f"{fault.message} {fault.type or ''} {fault.body or ''}".lower()


_NAMED_STATUS: Final = re.compile(r"\b(?:status(?: code)?[:= ]+|http )(\d{3})\b")
# Not after a colon, which would make it a port, and not the number of an HTTP/2 stream.
_BARE_STATUS: Final = re.compile(
    r"(?<![\d:.])(?<!stream id )(?<!stream )\b(401|403|408|429|500|502|503|504|529)\b(?![\d.])"
)


def _status(fault: ProviderFault) -> int | None:
    if fault.status_code is not None:
        return fault.status_code
    text = fault.message.lower()
    match = _NAMED_STATUS.search(text) or _BARE_STATUS.search(text)
    return int(match[1]) if match else None


_NAMES: Final[dict[str, str]] = {
    "anthropic": "Anthropic",
    "azure": "Azure OpenAI",
    "bedrock": "AWS Bedrock",
    "google": "Google",
    "openai": "OpenAI",
    "openai-compat": "The OpenAI-compatible provider",
    "openrouter": "OpenRouter",
    "vercel": "Vercel AI Gateway",
}

_MESSAGES: Final[dict[Kind, str]] = {
    "generic": "{who} returned an unexpected error.",
    "overloaded": "{who} is overloaded.",
    "rate_limit": "{who} is limiting the rate of requests.",
    "timeout": "{who} could not be reached in time.",
    "stream_silence_timeout": "{who} stopped sending in the middle of an answer.",
    "auth": "{who} refused the API key. Check the key and what it may do.",
    "config": "{who} does not accept this configuration. Check the model and its settings.",
    "context_overflow": "The conversation is longer than the model's context.",
    "usage_limit": "The account at {who} has reached its limit. Check its billing and quota.",
    "missing_key": "No API key is set for {who}.",
    "provider_disabled": "{who} is switched off for this deployment.",
    "content_filter": "{who} declined to answer.",
}


def _message(kind: Kind, fault: ProviderFault) -> str:
    who = _NAMES.get(fault.provider, fault.provider or "The provider")
    text = _MESSAGES[kind].format(who=who)
    return text[0].upper() + text[1:]


# Detail: what the vendor said, short and without secrets.


def detail(fault: ProviderFault) -> str | None:
    return body_detail(fault.body) or _bounded(redact_urls(fault.message))


def body_detail(body: str | None) -> str | None:
    """`error.message`, else `message`, else the first line of plain text; never HTML."""
    if body is None or not body.strip():
        return None
    text = body.strip()
    start = text.find("{")
    if start >= 0 and (found := _json_message(text[start:])) is not None:
        return _bounded(found)
    if start >= 0 or text.startswith("<"):
        return None
    return _bounded(redact_urls(text.splitlines()[0]))


def _json_message(text: str) -> str | None:
    try:
        parsed: object = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return None
    for holder in (_field(parsed, "error"), parsed):
        message = holder if isinstance(holder, str) else _field(holder, "message")
        if isinstance(message, str) and message.strip():
            return redact_urls(message.strip())
    return None


def _field(value: object, name: str) -> object:
    return msgspec.convert(value, dict[str, object]).get(name) if isinstance(value, dict) else None


_URL: Final = re.compile(r"(https?://)(?:[^/\s@\"']*@)?([^\s?#\"']*)(?:[?#][^\s\"']*)?")
_KEY: Final = re.compile(
    r"\b(?:sk|pk|rk|key|AIza)[-_][A-Za-z0-9_\-*]{6,}|\bAIza[A-Za-z0-9_\-]{10,}"
)


def redact_urls(text: str) -> str:
    """Credentials hide in user info, queries and fragments; vendors echo keys in messages."""
    return _KEY.sub("[key]", _URL.sub(r"\1\2", text))


def _bounded(text: str) -> str | None:
    text = text.strip()
    return f"{text[: MAX_DETAIL - 1]}…" if len(text) > MAX_DETAIL else text or None
