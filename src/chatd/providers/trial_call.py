"""One small call to a provider, and an explanation of its failure for an administrator."""

import asyncio
from typing import Final

from msgspec import Struct

from chatd.domain.model.classify import classify_fault
from chatd.domain.model.failures import ClassifiedFailure
from chatd.domain.model.protocol import (
    Finished,
    ModelRequest,
    PromptMessage,
    PromptText,
    ProviderError,
    ProviderFault,
    StreamFailed,
)
from chatd.domain.ports import Clock, Provider

TRIAL_TIMEOUT_S: Final = 30.0
TRIAL_MAX_OUTPUT_TOKENS: Final = 64
"""Some APIs refuse smaller limits, and a reasoning model needs a few tokens before its answer."""

_CAUSES: Final[dict[str, str]] = {
    "auth": "The provider refuses the key. Check the key, and that its account may use the model.",
    "missing_key": "There is no key. Add one.",
    "usage_limit": "The key works, but its account has no credit or quota left.",
    "rate_limit": "The key works, but the provider limits its rate at the moment.",
    "overloaded": "The provider is reachable, but overloaded at the moment.",
    "timeout": "The provider did not answer in time. Check base_url and the network.",
    "stream_silence_timeout": "The provider did not answer in time.",
}
_TRANSPORT_CAUSES: Final[dict[str, str]] = {
    "dns": "The host name of base_url cannot be resolved.",
    "refused": "Nothing answers at this address and port. Check base_url and that the server runs.",
    "unreachable": "The address cannot be reached. Check base_url, the firewall and the proxy.",
    "tls": "No secure connection. If the server has a certificate of its own, set ca_file to the"
    " authority that signed it; if it speaks http only, begin base_url with http://.",
    "timeout": "The provider took the connection and did not answer in time.",
    "reset": "The connection was cut. Check that base_url has the right scheme, http or https.",
}


class TrialResult(Struct, frozen=True, kw_only=True):
    """`explanation` says what to do; `detail` has the provider's own words, without secrets."""

    ok: bool
    duration_ms: int
    error_kind: str | None = None
    explanation: str | None = None
    detail: str | None = None


def trial_request(model: str) -> ModelRequest:
    prompt = PromptMessage(role="user", parts=(PromptText(text="Say ok."),))
    return ModelRequest(model=model, messages=(prompt,), max_output_tokens=TRIAL_MAX_OUTPUT_TOKENS)


async def try_provider(provider: Provider, model: str, clock: Clock) -> TrialResult:
    began = clock.monotonic()

    def result(fault: ProviderFault | None) -> TrialResult:
        took = int((clock.monotonic() - began) * 1000)
        if fault is None:
            return TrialResult(ok=True, duration_ms=took)
        failure = classify_fault(fault)
        return TrialResult(
            ok=False,
            duration_ms=took,
            error_kind=failure.kind,
            explanation=explain_failure(fault, failure, model),
            detail=failure.error.detail or fault.message,
        )

    try:
        async with (
            asyncio.timeout(TRIAL_TIMEOUT_S),
            provider.stream(trial_request(model)) as events,
        ):
            async for event in events:
                if isinstance(event, StreamFailed):
                    return result(event.fault)
                if isinstance(event, Finished):
                    break
        return result(None)
    except ProviderError as failed:
        return result(failed.fault)
    except TimeoutError:
        return result(ProviderFault(message="no answer in time", transport="timeout"))


def explain_failure(fault: ProviderFault, failure: ClassifiedFailure, model: str) -> str:
    """In words, the most likely cause first."""
    if "proxy" in fault.message:
        cause = fault.message.rstrip(".")
        return f"The proxy is the cause: {cause}. Check proxy, or set it to none."
    if fault.hint is not None and fault.transport is None:
        return fault.hint  # a missing /v1
    if fault.transport is not None:
        return _TRANSPORT_CAUSES[fault.transport]
    if is_unknown_model(fault, failure):
        return f"The provider is reachable and does not have the model {model}."
    if fault.status_code in {200, 301, 302, 307, 308, 404, 405}:
        return "base_url is not the address of this kind of API. Check its path and the kind."
    if failure.kind in _CAUSES:
        return _CAUSES[failure.kind]
    return failure.error.message


def is_unknown_model(fault: ProviderFault, failure: ClassifiedFailure) -> bool:
    if failure.kind != "config":
        return False
    known_types = {"model_not_found", "not_found_error", "deploymentnotfound", "not_found"}
    text = f"{fault.message} {fault.body or ''}".lower()
    return (fault.type or "").lower() in known_types or (
        "model" in text and fault.status_code in {400, 403, 404} and "<html" not in text
    )
