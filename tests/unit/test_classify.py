"""Classification of provider faults: every rule, and which of two rules wins."""

import msgspec
import pytest

from chatd.domain.chat.row import ChatError
from chatd.domain.model.classify import classify_fault
from chatd.domain.model.failures import (
    ClassifiedFailure,
    FailureKind,
    ModelError,
    failure_message,
    known_failure,
    with_provider,
)
from chatd.domain.model.protocol import ProviderFault


def fault(message: str = "", **facts: object) -> ProviderFault:
    return msgspec.structs.replace(ProviderFault(message=message), **facts)


def classified(message: str = "", **facts: object) -> tuple[str, bool]:
    found = classify_fault(fault(message, **facts))
    return found.kind, found.retryable


@pytest.mark.covers("errors-1")
@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("status code: 529", ("overloaded", True)),
        ("the model is currently Overloaded", ("overloaded", True)),
        ("insufficient_quota", ("usage_limit", False)),
        ("you exceeded your quota", ("usage_limit", False)),
        ("check your billing details", ("usage_limit", False)),
        ("402 Payment Required", ("usage_limit", False)),
        ("your AI budget for this month is spent", ("usage_limit", False)),
        ("Budget has been exceeded! Current cost: 3.1", ("usage_limit", False)),
        ("status 401", ("auth", False)),
        ("authentication failed", ("auth", False)),
        ("Unauthorized", ("auth", False)),
        ("Invalid API key", ("auth", False)),
        ("invalid_api_key", ("auth", False)),
        ("status 403", ("auth", False)),
        ("Forbidden", ("auth", False)),
        ("status 429", ("rate_limit", True)),
        ("rate limit reached", ("rate_limit", True)),
        ("rate_limit", ("rate_limit", True)),
        ("you are rate limited", ("rate_limit", True)),
        ("rate-limited", ("rate_limit", True)),
        ("Too Many Requests", ("rate_limit", True)),
        ("provider_disabled", ("provider_disabled", False)),
        ("status 408", ("timeout", True)),
        ("status 502", ("timeout", True)),
        ("status 503", ("timeout", True)),
        ("status 504", ("timeout", True)),
        ("status 522", ("timeout", True)),
        ("i/o timeout", ("timeout", True)),
        ("the request timed out", ("timeout", True)),
        ("service unavailable", ("timeout", True)),
        ("model unavailable", ("timeout", True)),
        ("connection reset by peer", ("timeout", True)),
        ("connection refused", ("timeout", True)),
        ("unexpected EOF", ("timeout", True)),
        ("write: broken pipe", ("timeout", True)),
        ("bad gateway", ("timeout", True)),
        ("gateway timeout", ("timeout", True)),
        ("Server disconnected", ("timeout", True)),
        ("deadline exceeded", ("timeout", False)),
        ("invalid model", ("config", False)),
        ("model not found", ("config", False)),
        ("model_not_found", ("config", False)),
        ("unsupported model", ("config", False)),
        ("malformed configuration", ("config", False)),
        ("malformed config", ("config", False)),
        ("cannot resolve AWS credentials", ("config", False)),
        ("status 404", ("config", False)),
        ("The model `llama9` does not exist.", ("config", False)),
        ('model "llama9" not found, try pulling it first', ("config", False)),
        ("foo/bar is not a valid model ID", ("config", False)),
        ("The provided model identifier is invalid.", ("config", False)),
        ("Invocation of this model with on-demand throughput is not possible", ("config", False)),
        ("gemma:2b does not support tools", ("config", False)),
        ("API version not supported", ("config", False)),
        ("Output blocked by content filtering policy", ("content_filter", False)),
        ('Your input was flagged for "violence".', ("content_filter", False)),
        ("the prompt triggered the content management policy", ("content_filter", False)),
        ("You have reached your specified API usage limits.", ("usage_limit", False)),
        ("status 530", ("timeout", True)),
        ("status 500", ("generic", True)),
        ("internal server error", ("generic", True)),
        ("server error", ("generic", True)),
        ("status 400", ("generic", False)),
        ("geoff is off", ("generic", False)),
        ("", ("generic", False)),
    ],
)
def test_the_text_of_a_fault_decides_its_kind(message: str, expected: tuple[str, bool]) -> None:
    assert classified(message) == expected


@pytest.mark.covers("errors-1")
@pytest.mark.parametrize(
    "message",
    [
        "prompt is too long: 210000 tokens > 200000 maximum",
        "Input is too long for requested model.",
        "This model's maximum context length is 128000 tokens.",
        "context length exceeded",
        "context_length_exceeded",
        "context_exceeded",
        "Your input exceeds the context window of this model.",
        "the request exceeds the available context size",
        "The input token count (1048577) exceeds the maximum number of tokens allowed",
        "input length and `max_tokens` exceed context limit: 190000 + 32000 > 200000",
        "This model's maximum prompt length is 131072 but the request contains 140000 tokens.",
        "Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 40000.",
        "Please reduce the length of the messages.",
    ],
)
@pytest.mark.parametrize("status", [None, 400, 403, 413, 429, 500])
def test_a_prompt_that_is_too_long_is_a_context_overflow(message: str, status: int | None) -> None:
    assert classified(message, status_code=status) == ("context_overflow", False)


@pytest.mark.covers("errors-1")
def test_status_413_is_a_context_overflow() -> None:
    assert classified("status 413", status_code=413) == ("context_overflow", False)


@pytest.mark.covers("errors-2")
@pytest.mark.parametrize(
    ("message", "status", "kind"),
    [
        ("invalid model", 401, "auth"),
        ("maximum context length", 401, "auth"),
        ("invalid api key for this model: model not found", None, "auth"),
        ("invalid model", 403, "config"),
        ("invalid model", 429, "config"),
        ("invalid model", 503, "config"),
        ("invalid model", 500, "config"),
        ("invalid model: connection reset", None, "config"),
        ("model not found: deadline exceeded", None, "config"),
        ("quota exceeded: unauthorized", None, "usage_limit"),
        ("billing problem", 401, "usage_limit"),
        ("insufficient_quota", 429, "usage_limit"),
        ("you exceeded your current quota, see billing", 429, "rate_limit"),
        ("AI budget used up", 403, "usage_limit"),
        ("provider_disabled", 503, "provider_disabled"),
        ("overloaded", 401, "auth"),
        ("Your input was flagged for moderation", 403, "content_filter"),
        ("Your input was flagged for moderation", 401, "auth"),
        ("model x not found", 429, "config"),
        ("API usage limits reached", 429, "rate_limit"),
    ],
)
def test_of_two_matching_rules_the_more_specific_wins(
    message: str, status: int | None, kind: str
) -> None:
    assert classify_fault(fault(message, status_code=status)).kind == kind


TEMPORARY_WORDS = (
    "Invalid schema for function 'wait': 'timeout' is not of type 'string'.",
    "unknown field: rate_limit",
    "tool 'server error' is overloaded twice",
    "connection refused is not a valid enum value",
    "deadline exceeded",
)


@pytest.mark.parametrize("message", TEMPORARY_WORDS)
@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "generic"),
        (401, "auth"),
        (403, "auth"),
        (404, "config"),
        (413, "context_overflow"),
        (422, "generic"),
    ],
)
def test_the_words_of_a_refusal_never_make_it_temporary(
    message: str, status: int, kind: str
) -> None:
    body = msgspec.json.encode({"error": {"message": message}}).decode()
    assert classified(f"status {status}", status_code=status, body=body) == (kind, False)


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("Invalid schema for function 'get_billing'", "generic"),
        ("Invalid schema for function 'check_authentication'", "generic"),
        ("Your credit balance is too low to access the API.", "usage_limit"),
        ("API key not valid. Please pass a valid API key.", "auth"),
        ("You exceeded your current quota", "usage_limit"),
    ],
)
def test_a_refused_request_is_about_money_or_keys_only_if_it_says_so(
    message: str, kind: str
) -> None:
    assert classified(message, status_code=400) == (kind, False)


@pytest.mark.parametrize("status", [None, 408, 409, 429, 500])
def test_elsewhere_the_words_decide(status: int | None) -> None:
    assert classified("the model is overloaded", status_code=status) == ("overloaded", True)


def test_a_hint_follows_the_detail() -> None:
    found = classify_fault(fault("no connection to x:1.", transport="refused", hint="Check it."))
    assert found.error.detail == "no connection to x:1. Check it."


def test_only_a_provider_that_never_answered_is_marked_so() -> None:
    assert classify_fault(fault(transport="dns")).never_reached is None
    assert classify_fault(fault(transport="dns", never_answered=True)).never_reached == "dns"


@pytest.mark.covers("errors-4")
@pytest.mark.parametrize(
    ("message", "status"),
    [
        ("status 503", 503),
        ("status: 503", 503),
        ("status=503", 503),
        ("status code 503", 503),
        ("Status Code: 503", 503),
        ("HTTP 418 from upstream", 418),
        ("HTTP/1.1 503 Service Unavailable", 503),
        ("failed with 429", 429),
        ("upstream said 529.", 529),
        ("error: 500 oh no", 500),
        ("dial tcp 10.0.0.1:503: refused", None),
        ("localhost:429", None),
        ("stream ID 401; CANCEL", None),
        ("stream id=503 was reset", None),
        ("took 5030 ms, 1.503 s", None),
        ("model gpt-5 said no", None),
        ("404 in prose is no status", None),
    ],
)
def test_a_status_is_read_from_text_only_if_it_can_be_nothing_else(
    message: str, status: int | None
) -> None:
    assert classify_fault(fault(message)).error.status_code == status


@pytest.mark.covers("errors-4")
def test_the_response_status_takes_precedence_over_one_in_the_text() -> None:
    found = classify_fault(fault("status 503", status_code=401))
    assert (found.error.status_code, found.kind) == (401, "auth")


@pytest.mark.covers("errors-5")
@pytest.mark.parametrize(
    ("text", "provider"),
    [
        ("openai-compat at azure failed", "openai-compat"),
        ("openai compat", "openai-compat"),
        ("azure openai failed", "azure"),
        ("openrouter: anthropic failed", "openrouter"),
        ("bedrock: claude failed", "bedrock"),
        ("vercel gateway: claude", "vercel"),
        ("claude failed", "anthropic"),
        ("anthropic via openai wire", "anthropic"),
        ("gemini failed", "google"),
        ("vertex failed", "google"),
        ("google failed", "google"),
        ("openai failed", "openai"),
        ("somebody failed", None),
    ],
)
def test_the_most_specific_provider_in_the_text_is_used(text: str, provider: str | None) -> None:
    assert classify_fault(fault(text)).error.provider == provider


@pytest.mark.covers("loop-10")
def test_the_configured_provider_takes_precedence_over_the_text() -> None:
    found = classify_fault(fault("anthropic: overloaded", provider="bedrock"))
    assert (found.error.provider, found.error.message) == ("bedrock", "AWS Bedrock is overloaded.")


@pytest.mark.covers("loop-10", "errors-3")
def test_naming_the_provider_later_changes_the_message_and_keeps_kind_and_delay() -> None:
    found = classify_fault(fault("claude is overloaded", retry_after_s=7.0))
    named = with_provider(found, "bedrock")
    assert named.error.message == "AWS Bedrock is overloaded."
    assert (named.error.provider, named.retry_after_s) == ("bedrock", 7.0)
    assert (named.kind, named.retryable) == (found.kind, found.retryable) == ("overloaded", True)
    assert ModelError(named).classified is named
    assert with_provider(found, "") is found
    assert with_provider(found, "anthropic") is found


# Vendor error types


@pytest.mark.covers("errors-11")
@pytest.mark.parametrize(
    ("word", "status", "expected"),
    [
        ("overloaded_error", None, ("overloaded", True)),
        ("rate_limit_error", None, ("rate_limit", True)),
        ("RESOURCE_EXHAUSTED", 429, ("rate_limit", True)),
        ("api_error", None, ("generic", True)),
        ("api_error", 500, ("generic", True)),
        ("api_error", 200, ("generic", True)),
        ("server_error", None, ("generic", True)),
        ("internal_error", None, ("generic", True)),
        ("INTERNAL", None, ("generic", True)),
        ("api_error", 400, ("generic", False)),
        ("api_error", 401, ("auth", False)),
        ("server_error", 429, ("rate_limit", True)),
        ("invalid_request_error", 400, ("generic", False)),
        ("authentication_error", None, ("auth", False)),
        ("insufficient_quota", 429, ("usage_limit", False)),
        ("context_length_exceeded", 400, ("context_overflow", False)),
        ("model_not_found", 404, ("config", False)),
        ("provider_disabled", 503, ("provider_disabled", False)),
        ("ThrottlingException", 400, ("rate_limit", True)),
        ("Throttling", None, ("rate_limit", True)),
        ("InternalFailure", None, ("generic", True)),
        ("ServiceUnavailable", None, ("timeout", True)),
        ("ServiceUnavailableException", 503, ("timeout", True)),
        ("ModelNotReadyException", 429, ("overloaded", True)),
        ("UnrecognizedClientException", 403, ("auth", False)),
        ("ServiceQuotaExceededException", 400, ("usage_limit", False)),
        ("request_too_large", 413, ("context_overflow", False)),
        ("not_found_error", 404, ("config", False)),
        ("config", 200, ("config", False)),
        ("DEADLINE_EXCEEDED", 504, ("timeout", True)),
        ("UNAVAILABLE", 503, ("timeout", True)),
        ("UNAVAILABLE", None, ("timeout", True)),
        ("CANCELLED", 499, ("timeout", True)),
        ("DeploymentNotFound", 404, ("config", False)),
        ("content_filter", 400, ("content_filter", False)),
        ("content_policy_violation", 400, ("content_filter", False)),
        ("invalid_prompt", None, ("content_filter", False)),
        ("bio_policy", None, ("content_filter", False)),
        ("misalignment_policy_violation", None, ("content_filter", False)),
        ("image_content_policy_violation", None, ("content_filter", False)),
        ("vector_store_timeout", None, ("timeout", True)),
        ("tool_use_failed", 400, ("generic", True)),
        ("malformed_function_call", None, ("generic", True)),
        ("malformed_response", None, ("generic", True)),
        ("unexpected_tool_call", None, ("generic", True)),
        ("too_many_tool_calls", None, ("generic", False)),
        ("ModelErrorException", 424, ("generic", True)),
    ],
)
def test_a_precise_error_type_comes_before_the_rules_and_a_vague_one_after(
    word: str, status: int | None, expected: tuple[str, bool]
) -> None:
    assert classified("something happened", type=word, status_code=status) == expected


@pytest.mark.covers("errors-2")
def test_an_overflow_takes_precedence_over_a_rate_limit_type() -> None:
    found = classified("Request too large for gpt-4o", type="rate_limit_exceeded", status_code=429)
    assert found == ("context_overflow", False)


def test_an_overloaded_model_is_not_classified_as_a_timeout() -> None:
    found = classified("The model is overloaded.", type="UNAVAILABLE", status_code=503)
    assert found == ("overloaded", True)


@pytest.mark.covers("errors-12")
@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ('{"error":{"type":"x","message":"Overloaded"}}', "overloaded"),
        ('{"error":{"message":"authentication problem"}}', "auth"),
        ('{"error":{"message":"invalid model"}}', "config"),
        ("upstream request timeout", "timeout"),
        ('{"message":"could not resolve AWS credentials"}', "config"),
        ('{"error":{"code":"budget","message":"AI budget exceeded"}}', "usage_limit"),
        ("You have exceeded your budget.", "usage_limit"),
        ('{"code":"provider_disabled"}', "provider_disabled"),
    ],
)
def test_the_body_is_searched_too(body: str, kind: str) -> None:
    status = 403 if kind == "usage_limit" else None
    assert classify_fault(fault("request failed", body=body, status_code=status)).kind == kind


@pytest.mark.parametrize(
    "body",
    [
        '{"detail":[{"type":"missing","msg":"Field required","input":{"content":"%s"}}]}',
        "{\"error\":{\"message\":\"[{'msg': 'not a string', 'input': '%s'}]\",\"code\":400}}",
        '{"error":{"message":"1 validation error [type=x, input_value=%s, input_type=str]"}}',
        r'{"error":{"message":"[{\"msg\": \"no\", \"input\": \"%s\"}]"}}',
    ],
)
def test_text_of_the_chat_quoted_by_a_server_is_ignored(body: str) -> None:
    chat = "why is it overloaded? a timeout, or the rate limit, or unauthorized?"
    assert classified("status 400", status_code=400, body=body % chat) == ("generic", False)
    assert classified("status 429", status_code=429, body=body % chat) == ("rate_limit", True)
    named = '{"error":{"message":"too many requests","param":"input","code":"x"}}'
    assert classified("", body=named) == ("rate_limit", True)
    own = "Invalid 'input': maximum context length is 8192 tokens."
    assert classified(own, status_code=400) == ("context_overflow", False)


# Streams and transports


@pytest.mark.covers("errors-8")
def test_an_incomplete_stream_is_retryable() -> None:
    assert classified("the stream ended early", incomplete=True) == ("timeout", True)
    assert classified("stream closed before the terminal event") == ("timeout", True)
    assert classified("anthropic stream closed before terminal event") == ("timeout", True)


@pytest.mark.parametrize(
    ("transport", "expected"),
    [
        ("refused", ("timeout", True)),
        ("reset", ("timeout", True)),
        ("timeout", ("timeout", True)),
        ("dns", ("timeout", True)),
        ("unreachable", ("timeout", True)),
        ("tls", ("config", False)),
    ],
)
def test_a_transport_error_decides_the_kind(transport: str, expected: tuple[str, bool]) -> None:
    assert classified("no luck", transport=transport) == expected


@pytest.mark.covers("loop-11", "errors-10")
@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("stream error: stream ID 5; INTERNAL_ERROR; received from peer", ("timeout", True)),
        ("stream error: stream ID 5; REFUSED_STREAM; received from peer", ("timeout", True)),
        ("stream error: stream ID 401; CANCEL; received from peer", ("timeout", True)),
        ("stream error: stream ID 5; ENHANCE_YOUR_CALM; received from peer", ("timeout", True)),
        ("stream error: stream ID 5; NO_ERROR; received from peer", ("timeout", True)),
        ("stream error: stream ID 5; PROTOCOL_ERROR; received from peer", ("generic", False)),
        ("stream ID 5; PROTOCOL_ERROR; received from peer: timeout", ("generic", False)),
        ("stream error: stream ID 5; CANCEL; connection reset", ("generic", False)),
        ("http2: client conn could not be established", ("timeout", True)),
        ("http2: server sent GOAWAY and closed the connection", ("timeout", True)),
        ("http2: stream closed", ("timeout", True)),
        ("use of closed network connection", ("timeout", True)),
    ],
)
def test_a_reset_is_retryable_if_the_peer_sent_a_transient_code(
    message: str, expected: tuple[str, bool]
) -> None:
    assert classified(message) == expected


@pytest.mark.covers("errors-10")
def test_a_status_takes_precedence_over_a_stream_reset() -> None:
    reset = "stream error: stream ID 5; INTERNAL_ERROR; received from peer"
    assert classified(reset, status_code=400) == ("generic", False)
    assert classified(reset, status_code=401) == ("auth", False)


@pytest.mark.parametrize("what", ["chat", "request", "operation"])
def test_an_interruption_is_not_retryable(what: str) -> None:
    assert classified(f"{what} interrupted", status_code=503) == ("generic", False)


@pytest.mark.covers("retry-6")
def test_a_cancellation_matters_only_without_other_facts() -> None:
    assert classified("context canceled") == ("generic", False)
    assert classified("context canceled", status_code=500) == ("generic", True)
    assert classified("context canceled: status 401") == ("auth", False)
    assert classified("context canceled: quota exceeded") == ("usage_limit", False)


@pytest.mark.covers("errors-9")
@pytest.mark.parametrize(
    "message",
    [
        "No tool output found for function call call_abc123.",
        "'ws_abc123' of type 'web_search_call' was provided without its required 'reasoning' item",
        "Item 'rs_abc123' of type 'reasoning' was provided without its required following item.",
    ],
)
def test_the_detail_of_a_pairing_error_has_no_ids(message: str) -> None:
    found = classify_fault(fault("status 400", status_code=400, body=message))
    assert (found.kind, found.retryable) == ("generic", False)
    assert found.error.detail is not None
    assert "abc123" not in found.error.detail


# What viewers see


@pytest.mark.covers("errors-7")
def test_an_error_has_all_fields_that_clients_show() -> None:
    found = classify_fault(
        fault(
            "status 429",
            provider="openai",
            status_code=429,
            body='{"error":{"message":"Slow down."}}',
            retry_after_s=3.0,
        )
    )
    assert found == ClassifiedFailure(
        kind="rate_limit",
        error=ChatError(
            message="OpenAI is limiting the rate of requests.",
            kind="rate_limit",
            detail="Slow down.",
            provider="openai",
            retryable=True,
            status_code=429,
        ),
        retry_after_s=3.0,
    )


KINDS: tuple[FailureKind, ...] = (
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
)


@pytest.mark.covers("errors-15")
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_message_that_names_the_provider(kind: FailureKind) -> None:
    assert "my gateway" in failure_message(kind, "my gateway").lower()
    assert "the provider" in failure_message(kind, "").lower()
    assert failure_message(kind, "")[0].isupper()


@pytest.mark.covers("errors-15")
@pytest.mark.parametrize(
    "kind", ["overloaded", "rate_limit", "timeout", "stream_silence_timeout", "generic"]
)
def test_the_message_of_a_retryable_failure_has_no_status_and_no_advice(
    kind: FailureKind,
) -> None:
    text = failure_message(kind, "openai")
    assert not any(character.isdigit() for character in text)
    assert "check" not in text.lower()


def test_a_known_failure_is_final_except_an_idle_timeout() -> None:
    assert not known_failure("missing_key", "openai").retryable
    assert known_failure("stream_silence_timeout", "openai").retryable
    assert known_failure("config", "", detail="d").error.detail == "d"
