"""Classifies a provider fault: its kind, whether to retry, and the error to show.

A vendor's precise error type comes first, then the rules below in order. A vague type such as
`api_error` is used only if no rule matches. The words of an error never make a refusal temporary:
under a final status they only select its kind.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct

from chatd.domain.chat.row import ChatError
from chatd.domain.model.config import read_stated_limit
from chatd.domain.model.failures import (
    ClassifiedFailure,
    FailureKind,
    clip_detail,
    error_detail,
    failure_message,
    quotable_text,
    read_provider,
    read_status,
)
from chatd.domain.model.protocol import ProviderFault

_Outcome = tuple[FailureKind, bool]

_PRECISE_TYPES: Final[Mapping[str, _Outcome]] = {
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
    "answer_too_large": ("answer_too_large", False),
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
# Gateways use these types for every error, so a status below 500 takes precedence.
_VAGUE_TYPES: Final = frozenset(
    {"api_error", "server_error", "internal_server_error", "internal_error", "internal"}
)

_TRANSIENT_CLIENT_STATUSES: Final = frozenset({408, 409, 425, 429, 499})
"""The statuses from 400 to 499 under which the words of an error may say that it is temporary."""

_OVERFLOW: Final = re.compile(
    r"prompt is too long|input is too long|context[ _]length[ _]exceeded|context_exceeded"
    r"|maximum (?:context|prompt) length|exceeds? the (?:\w+(?:'s)? ){0,2}context"
    r"|input token count .{0,40}exceeds|input length .{0,40}exceeds?.{0,40}context"
    r"|request too large for|reduce the length of the messages"
    r"|maximum model length|exceeded model token limit|longer than the model's context length"
    r"|prompt token count of [\d,]+ exceeds|tokens \+ `?max_new_tokens`? must be <= \d"
    r"|loaded with context length of only"
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
# Under a final status the text may name a tool or a field, such as `get_billing`.
_STATED_QUOTA: Final = re.compile(
    r"payment required|credit balance|usage limit|exceeded (?:\w+ ){0,3}quota"
    r"|billing (?:hard )?limit"
)
_STATED_AUTH: Final = re.compile(r"(?:invalid|incorrect) api[ _]key|api key not valid")
_RATE: Final = re.compile(r"rate[ _-]limit|too many requests")
_TIMEOUT: Final = re.compile(
    r"timeout|timed out|unavailable|connection (?:reset|refused|closed|lost|aborted)|\beof\b"
    r"|broken pipe|bad gateway|server disconnected|payload is not completed"
    r"|client conn|goaway|http2: stream closed|use of closed network connection"
    r"|closed before (?:\w+ ){0,2}terminal event"
)
_RESET: Final = re.compile(r"stream id \d+; (\w+)(; received from peer)?")
_TRANSIENT_RESETS: Final = frozenset(
    {"internal_error", "refused_stream", "cancel", "enhance_your_calm", "no_error"}
)
_INTERRUPTED: Final = re.compile(r"(?:chat|request|operation) interrupted")
_CONTINUITY: Final = re.compile(
    r"no tool output found for function call"
    r"|web_search_call.{0,120}without its required.{0,40}reasoning"
    r"|reasoning.{0,120}without its required following item"
)
_CONTINUITY_DETAIL: Final = (
    "The provider found a tool call without its output, or a search without the reasoning before"
    " it, in the chat's history."
)
_SERVER: Final = re.compile(r"server error")
# The key of an echoed request, also as JSON within JSON. "Invalid 'input': ..." is not an echo.
_ECHO: Final = re.compile(r"""(?:[{,]\s*\\?['"]input\\?['"]\s*:|\binput_value=).*""", re.DOTALL)


class _Facts(Struct, frozen=True, kw_only=True):
    status: int | None
    text: str
    has_status: bool = False

    def matches(self, pattern: re.Pattern[str]) -> bool:
        return pattern.search(self.text) is not None

    @property
    def is_final(self) -> bool:
        """The response's status says that the same request fails again."""
        status = self.status
        if not self.has_status or status is None or not 400 <= status < 500:
            return False
        return status not in _TRANSIENT_CLIENT_STATUSES

    @property
    def is_misconfigured(self) -> bool:
        return self.matches(_CONFIG) or self.matches(_OVERFLOW)

    @property
    def is_cut_off(self) -> bool:
        """For an HTTP/2 stream reset only its code and its sender decide whether it is transient;
        other text is ignored."""
        reset = _RESET.search(self.text)
        if reset is None:
            return self.matches(_TIMEOUT)
        return not self.has_status and reset[1] in _TRANSIENT_RESETS and reset[2] is not None


_Rule = tuple[Callable[[_Facts], bool], FailureKind, bool]

# First match wins.
_RULES: Final[tuple[_Rule, ...]] = (
    (lambda f: f.status == 529 or "overloaded" in f.text, "overloaded", True),
    (lambda f: f.matches(_BUDGET), "usage_limit", False),
    (lambda f: f.status == 402 or (f.status != 429 and f.matches(_QUOTA)), "usage_limit", False),
    (lambda f: f.status == 401 or f.matches(_AUTH), "auth", False),
    (lambda f: f.status == 413 or f.matches(_OVERFLOW), "context_overflow", False),
    (lambda f: f.status in (400, 403, None) and f.matches(_FILTERED), "content_filter", False),
    (
        lambda f: (f.status == 403 or "forbidden" in f.text) and not f.is_misconfigured,
        "auth",
        False,
    ),
    (
        lambda f: (f.status == 429 or f.matches(_RATE)) and not f.is_misconfigured,
        "rate_limit",
        True,
    ),
    (lambda f: "provider_disabled" in f.text, "provider_disabled", False),
    (lambda f: "deadline exceeded" in f.text and not f.is_misconfigured, "timeout", False),
    (
        # A proxy answers 520 to 530 if it cannot reach the origin.
        lambda f: (
            (f.status in (408, 502, 503, 504, *range(520, 531)) or f.is_cut_off)
            and not f.is_misconfigured
        ),
        "timeout",
        True,
    ),
    # The model, the deployment or the path of the base URL does not exist.
    (lambda f: f.status == 404 or f.matches(_CONFIG), "config", False),
    (lambda f: f.status == 500 or f.matches(_SERVER), "generic", True),
)

# Under a final status. First match wins; none of them is retryable.
_FINAL_RULES: Final[tuple[_Rule, ...]] = (
    (
        lambda f: (
            f.status == 402
            or f.matches(_BUDGET)
            or f.matches(_QUOTA if f.status in (401, 403) else _STATED_QUOTA)
        ),
        "usage_limit",
        False,
    ),
    (lambda f: f.status == 401 or f.matches(_STATED_AUTH), "auth", False),
    (lambda f: f.status == 413 or f.matches(_OVERFLOW), "context_overflow", False),
    (lambda f: f.status in (400, 403) and f.matches(_FILTERED), "content_filter", False),
    (lambda f: "provider_disabled" in f.text, "provider_disabled", False),
    (lambda f: f.status == 404 or f.matches(_CONFIG), "config", False),
    (lambda f: f.status == 403, "auth", False),
)


def classify_fault(fault: ProviderFault) -> ClassifiedFailure:
    kind, retryable = _classify_kind(fault)
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
        never_reached=fault.transport if fault.never_answered else None,
        context_limit=read_stated_limit(_text(fault)) if kind == "context_overflow" else None,
    )


def _classify_kind(fault: ProviderFault) -> _Outcome:
    facts = _Facts(
        status=read_status(fault), text=_text(fault), has_status=fault.status_code is not None
    )
    if facts.matches(_INTERRUPTED) or facts.matches(_CONTINUITY):
        return "generic", False
    error_type = (fault.type or "").lower()
    if facts.status != 401 and facts.matches(_OVERFLOW) and not facts.matches(_AUTH):
        return "context_overflow", False
    if error_type in _PRECISE_TYPES:
        return _PRECISE_TYPES[error_type]
    if fault.transport is not None:
        # A certificate error persists; a failed name lookup may be transient.
        return ("config", False) if fault.transport == "tls" else ("timeout", True)
    if fault.incomplete:
        return "timeout", True
    for applies, kind, retryable in _FINAL_RULES if facts.is_final else _RULES:
        if applies(facts):
            return kind, retryable
    is_client_error = facts.status is not None and 400 <= facts.status < 500
    return "generic", error_type in _VAGUE_TYPES and not is_client_error


def _text(fault: ProviderFault) -> str:
    """Servers quote the request in validation errors, and a chat may itself mention time-outs."""
    texts = (_ECHO.sub("", text or "") for text in (fault.message, fault.type, fault.body))
    return " ".join(texts).lower()


def _detail(fault: ProviderFault, kind: FailureKind) -> str | None:
    if _CONTINUITY.search(_text(fault)):
        return _CONTINUITY_DETAIL
    # The raw text of an authentication error may contain the key.
    detail = quotable_text(fault) if kind == "auth" else error_detail(fault)
    return detail if fault.hint is None else clip_detail(f"{detail or ''} {fault.hint}")
