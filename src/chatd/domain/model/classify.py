"""What a provider's failure means: its kind, whether to try again, what to tell people.

A pure function of the facts. A vendor's own precise word for the error counts most, then the
rules below, in the order in which they were learnt the hard way; a vague word such as
`api_error` counts only when no rule knows better.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct

from chatd.domain.chat.row import ChatError
from chatd.domain.model.failures import (
    ClassifiedFailure,
    FailureKind,
    ModelError,
    error_detail,
    failure_message,
    quotable_text,
    read_provider,
    read_status,
    redact_urls,
)
from chatd.domain.model.protocol import ProviderError, ProviderFault

_Outcome = tuple[FailureKind, bool]

_PRECISE: Final[Mapping[str, _Outcome]] = {
    "overloaded_error": ("overloaded", True),
    "rate_limit_error": ("rate_limit", True),
    "rate_limit_exceeded": ("rate_limit", True),
    "resource_exhausted": ("rate_limit", True),
    "cancelled": ("timeout", True),
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
    "exceed_context_size_error": ("context_overflow", False),
    "request_too_large": ("context_overflow", False),
    "model_not_found": ("config", False),
    "deploymentnotfound": ("config", False),
    "not_found_error": ("config", False),
    "not_found": ("config", False),
    "config": ("config", False),
    "missing_key": ("missing_key", False),
    "provider_disabled": ("provider_disabled", False),
    "content_filter": ("content_filter", False),
    "content_policy_violation": ("content_filter", False),
    "invalid_prompt": ("content_filter", False),
    "bio_policy": ("content_filter", False),
    "misalignment_policy_violation": ("content_filter", False),
    "image_content_policy_violation": ("content_filter", False),
    "api_key_invalid": ("auth", False),
    "api_key_service_blocked": ("auth", False),
    "malformed_function_call": ("generic", True),
    "malformed_response": ("generic", True),
    "unexpected_tool_call": ("generic", True),
    "tool_use_failed": ("generic", True),
    "throttlingexception": ("rate_limit", True),
    "throttling": ("rate_limit", True),
    "internalfailure": ("generic", True),
    "modelnotreadyexception": ("overloaded", True),
    "modeltimeoutexception": ("timeout", True),
    "serviceunavailableexception": ("timeout", True),
    "internalserverexception": ("generic", True),
    "modelstreamerrorexception": ("generic", True),
    "modelerrorexception": ("generic", True),
    "accessdeniedexception": ("auth", False),
    "unrecognizedclientexception": ("auth", False),
    "expiredtokenexception": ("auth", False),
    "resourcenotfoundexception": ("config", False),
    "servicequotaexceededexception": ("usage_limit", False),
}
# Gateways say these of everything; a status below 500 knows better.
_VAGUE: Final = frozenset(
    {"api_error", "server_error", "internal_server_error", "internal_error", "internal"}
)

_OVERFLOW: Final = re.compile(
    r"prompt is too long|input is too long|context[ _]length[ _]exceeded|context_exceeded"
    r"|maximum (?:context|prompt) length|exceeds? the (?:\w+(?:'s)? ){0,2}context"
    r"|input token count .{0,40}exceeds|input length .{0,40}exceeds?.{0,40}context"
    r"|request too large for|reduce the length of the messages"
)
_CONFIG: Final = re.compile(
    r"invalid model|model not found|model_not_found|unsupported model|malformed config"
    r"|resolve aws credentials|not a valid model|model identifier is invalid"
    r"|\bmodel \S{1,200} (?:does not exist|not found)|on-demand throughput"
    r"|does not support tools|api version not supported"
)
_FILTERED: Final = re.compile(
    r"blocked by content filter|(?:input|prompt) was flagged|content management policy"
)
_BUDGET: Final = re.compile(
    r"insufficient_quota|budget (?:has been |was |is )?exceeded|exceeded (?:\w+ ){0,3}budget"
    r"|\bai budget"
)
_QUOTA: Final = re.compile(r"quota|billing|payment required|credit balance|usage limit")
_AUTH: Final = re.compile(r"authentication|unauthorized|invalid api key|invalid_api_key")
_RATE: Final = re.compile(r"rate[ _-]limit|too many requests")
_TIMEOUT: Final = re.compile(
    r"timeout|timed out|unavailable|connection (?:reset|refused|closed|lost|aborted)|\beof\b"
    r"|broken pipe|bad gateway|server disconnected|payload is not completed"
    r"|client conn|goaway|http2: stream closed|use of closed network connection"
    r"|closed before (?:\w+ ){0,2}terminal event"
)
_RESET: Final = re.compile(r"stream id \d+; (\w+)(; received from peer)?")
_PASSING_RESETS: Final = frozenset(
    {"internal_error", "refused_stream", "cancel", "enhance_your_calm", "no_error"}
)
_INTERRUPTED: Final = re.compile(r"(?:chat|request|operation) interrupted")
_CONTINUITY: Final = re.compile(
    r"no tool output found for function call"
    r"|web_search_call.{0,120}without its required.{0,40}reasoning"
    r"|reasoning.{0,120}without its required following item"
)
_CONTINUITY_DETAIL: Final = (
    "The provider found that a tool call and its output, or a search and the reasoning before"
    " it, no longer stand together in the conversation."
)
_SERVER: Final = re.compile(r"server error")
# As a key of what is quoted, also as JSON within JSON. "Invalid 'input': ..." is the server's own.
_ECHO: Final = re.compile(r"""(?:[{,]\s*\\?['"]input\\?['"]\s*:|\binput_value=).*""", re.DOTALL)


class _Facts(Struct, frozen=True, kw_only=True):
    status: int | None
    text: str
    said_status: bool = False

    def says(self, pattern: re.Pattern[str]) -> bool:
        return pattern.search(self.text) is not None

    @property
    def misconfigured(self) -> bool:
        return self.says(_CONFIG) or self.says(_OVERFLOW)

    @property
    def cut_off(self) -> bool:
        """A reset of an HTTP/2 stream says by its code, and by who sent it, whether it passes;
        other words beside it say nothing then."""
        reset = _RESET.search(self.text)
        if reset is None:
            return self.says(_TIMEOUT)
        return not self.said_status and reset[1] in _PASSING_RESETS and reset[2] is not None


_Rule = tuple[Callable[[_Facts], bool], FailureKind, bool]

# First match wins.
_RULES: Final[tuple[_Rule, ...]] = (
    (lambda f: f.status == 529 or "overloaded" in f.text, "overloaded", True),
    (lambda f: f.says(_BUDGET), "usage_limit", False),
    (lambda f: f.status == 402 or (f.status != 429 and f.says(_QUOTA)), "usage_limit", False),
    (lambda f: f.status == 401 or f.says(_AUTH), "auth", False),
    (lambda f: f.status == 413 or f.says(_OVERFLOW), "context_overflow", False),
    (lambda f: f.status in (400, 403, None) and f.says(_FILTERED), "content_filter", False),
    (lambda f: (f.status == 403 or "forbidden" in f.text) and not f.misconfigured, "auth", False),
    (
        lambda f: (f.status == 429 or f.says(_RATE)) and not f.misconfigured,
        "rate_limit",
        True,
    ),
    (lambda f: "provider_disabled" in f.text, "provider_disabled", False),
    (lambda f: "deadline exceeded" in f.text and not f.misconfigured, "timeout", False),
    (
        # 520 to 530 are what a proxy in between says of an origin it cannot reach.
        lambda f: (
            (f.status in (408, 502, 503, 504, *range(520, 531)) or f.cut_off)
            and not f.misconfigured
        ),
        "timeout",
        True,
    ),
    # What is asked is not there: a model, a deployment, or the path of the base URL.
    (lambda f: f.status == 404 or f.says(_CONFIG), "config", False),
    (lambda f: f.status == 500 or f.says(_SERVER), "generic", True),
)


def classify_fault(fault: ProviderFault) -> ClassifiedFailure:
    kind, retryable = _kind(fault)
    provider = read_provider(fault)
    return ClassifiedFailure(
        kind=kind,
        error=ChatError(
            message=failure_message(kind, provider),
            detail=_detail(fault, kind),
            kind=kind,
            provider=provider or None,
            retryable=retryable,
            status_code=read_status(fault),
        ),
        retry_after_s=fault.retry_after_s,
    )


def classify_error(error: BaseException, provider: str = "") -> ClassifiedFailure:
    """The same for an exception. One that was classified where it arose stays as it is,
    however it was wrapped since."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        if isinstance(cause, ModelError):
            return cause.classified
        if isinstance(cause, ProviderError):
            return classify_fault(cause.fault)
        seen.add(id(cause))
        cause = cause.__cause__ or cause.__context__
    return classify_fault(ProviderFault(message=redact_urls(str(error)), provider=provider))


def _kind(fault: ProviderFault) -> _Outcome:
    facts = _Facts(
        status=read_status(fault), text=_text(fault), said_status=fault.status_code is not None
    )
    if facts.says(_INTERRUPTED) or facts.says(_CONTINUITY):
        return "generic", False
    word = (fault.type or "").lower()
    if facts.status != 401 and facts.says(_OVERFLOW) and not facts.says(_AUTH):
        return "context_overflow", False
    if word in _PRECISE:
        return _PRECISE[word]
    if fault.transport is not None:
        # A certificate does not heal in seconds. A name that cannot be looked up may well.
        return ("config", False) if fault.transport == "tls" else ("timeout", True)
    if fault.incomplete:
        return "timeout", True
    for matches, kind, retryable in _RULES:
        if matches(facts):
            return kind, retryable
    return "generic", word in _VAGUE and (facts.status is None or not 400 <= facts.status < 500)


def _text(fault: ProviderFault) -> str:
    """Servers that validate quote what they were sent, and a chat may well speak of time-outs."""
    said = (_ECHO.sub("", text or "") for text in (fault.message, fault.type, fault.body))
    return " ".join(said).lower()


def _detail(fault: ProviderFault, kind: FailureKind) -> str | None:
    if _CONTINUITY.search(_text(fault)):
        return _CONTINUITY_DETAIL
    # The raw text of a refused key may hold the key.
    return quotable_text(fault) if kind == "auth" else error_detail(fault)
