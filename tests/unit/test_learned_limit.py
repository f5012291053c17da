"""What a provider's refusal of a long prompt says about the model's context window."""

import pytest

from chatd.domain.chat.messages import TokenUsage
from chatd.domain.model.classify import classify_fault
from chatd.domain.model.config import LearnedLimit, is_refuted, learn_limit
from chatd.domain.model.protocol import ProviderFault
from chatd.domain.prompt.kept_rows import CompactionLimits, below_bound

STATED = [
    ("This model's maximum context length is 8192 tokens. However, you requested 9000.", 8192),
    ("This model's maximum context length is 16,385 tokens.", 16385),
    ("prompt is too long: 210000 tokens > 200000 maximum", 200000),
    ("input length and `max_tokens` exceed context limit: 195000 + 21333 > 200000", 200000),
    (
        "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
        1048576,
    ),
    ("The input token count exceeds the maximum number of tokens allowed 32768.", 32768),
    (
        "This endpoint's maximum context length is 131072 tokens. You requested about 140000.",
        131072,
    ),
    ("Prompt contains 40000 tokens, too large for model with 32768 maximum context length", 32768),
    (
        "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
        131072,
    ),
    ("The prompt is too long: 140000, model maximum context length: 131071", 131071),
    ("The decoder prompt (length 5000) is longer than the maximum model length of 4096.", 4096),
    ("The input (5000 tokens) is longer than the model's context length (4096 tokens).", 4096),
    ("prompt token count of 130000 exceeds the limit of 128000", 128000),
    ("Your request exceeded model token limit: 131072", 131072),
    ("Please reduce the length of the messages. Current length is 9000 while limit is 8192", 8192),
    ("`inputs` tokens + `max_new_tokens` must be <= 4097. Given: 5000 and 20", 4097),
    ("However, the model is loaded with context length of only 4096 tokens", 4096),
    # No number, or one that is no window.
    ("Your input exceeds the context window of this model.", None),
    ("Input is too long for requested model.", None),
    ("context window exceeds the context limit (2013)", None),
    ("This model's maximum context length is 12 tokens.", None),
    ("This model's maximum context length is 99999999999 tokens.", None),
    ("Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 40000.", None),
]


@pytest.mark.parametrize(("message", "tokens"), STATED)
def test_the_text_of_a_refusal_names_the_window(message: str, tokens: int | None) -> None:
    failed = classify_fault(ProviderFault(message=message, status_code=400))
    assert (failed.kind, failed.context_limit) == ("context_overflow", tokens)


LLAMA_CPP = (
    '{"error":{"code":400,"message":"the request exceeds the available context size, try increasing'
    ' it","type":"exceed_context_size_error","n_prompt_tokens":5000,"n_ctx":4096}}'
)


def test_a_field_of_the_refusal_names_the_window() -> None:
    fault = ProviderFault(message="HTTP 400", status_code=400, body=LLAMA_CPP)
    assert classify_fault(fault).context_limit == 4096


def test_other_failures_and_quoted_requests_teach_nothing() -> None:
    busy = ProviderFault(
        message="overloaded; maximum number of tokens allowed (5000)", status_code=529
    )
    assert classify_fault(busy).context_limit is None
    echo = 'Your input exceeds the context window. {"input": "maximum context length is 5000"}'
    assert classify_fault(ProviderFault(message=echo, status_code=400)).context_limit is None


@pytest.mark.parametrize(
    ("message", "status", "known", "size", "learned"),
    [
        ("maximum context length is 8192 tokens", 400, None, 9000, LearnedLimit(tokens=8192)),
        ("maximum context length is 8192 tokens", 400, 128_000, 9000, LearnedLimit(tokens=8192)),
        ("prompt is too long", 400, None, 9000, LearnedLimit(tokens=9000, is_bound=True)),
        ("prompt is too long", 400, 128_000, 9000, None),
        ("prompt is too long", 400, None, None, None),
        ("prompt is too long", 400, None, 20, None),
        ("Request exceeds the maximum size", 413, None, 9000, None),
        ("Request too large for m on tokens per min", 429, None, 9000, None),
        ("overloaded", 529, None, 9000, None),
    ],
)
def test_a_refused_size_counts_only_if_nothing_better_is_known(
    message: str, status: int, known: int | None, size: int | None, learned: LearnedLimit | None
) -> None:
    failed = classify_fault(ProviderFault(message=message, status_code=status))
    assert learn_limit(failed, known=known, request_tokens=size) == learned


def test_a_users_own_key_teaches_only_what_nobody_knows() -> None:
    fault = ProviderFault(message="prompt is too long: 210000 tokens > 200000", status_code=400)
    failed = classify_fault(fault)
    for known, learned in ((None, LearnedLimit(tokens=200_000)), (1_000_000, None)):
        found = learn_limit(failed, known=known, request_tokens=210_000, by_user_key=True)
        assert found == learned


def test_a_limit_on_the_answer_is_no_window() -> None:
    text = "`max_new_tokens` must be <= 2048. Given: 4096"
    failed = classify_fault(ProviderFault(message=text, status_code=422))
    assert (failed.kind == "context_overflow", failed.context_limit) == (False, None)


def limit(tokens: int, *, bound: bool = False) -> LearnedLimit:
    return LearnedLimit(tokens=tokens, is_bound=bound)


@pytest.mark.parametrize(
    ("new", "known", "expected"),
    [
        (limit(8192), None, True),
        (limit(8192), limit(8192), False),
        (limit(16384), limit(8192), True),
        (limit(8192), limit(5000, bound=True), True),
        (limit(5000, bound=True), limit(8192), False),
        (limit(5000, bound=True), limit(6000, bound=True), True),
        (limit(7000, bound=True), limit(6000, bound=True), False),
        (limit(7000, bound=True), None, True),
    ],
)
def test_the_newest_named_number_counts_and_of_estimates_the_smallest(
    new: LearnedLimit, known: LearnedLimit | None, *, expected: bool
) -> None:
    assert new.supersedes(known) is expected


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (None, False),
        (TokenUsage(input_tokens=5000), False),
        (TokenUsage(input_tokens=2000, cache_read_tokens=3001), True),
        (TokenUsage(input_tokens=9000, estimated=True), False),
        (TokenUsage(input_tokens=9000, context_tokens=3000), False),
    ],
)
def test_an_answer_to_a_longer_prompt_refutes_a_limit(
    told: TokenUsage | None, *, expected: bool
) -> None:
    assert is_refuted(limit(5000), told) is expected


@pytest.mark.parametrize(
    ("learned", "threshold", "ceiling", "expected"),
    [
        (None, 70, 200_000, 200_000),
        (limit(10_000), 70, 200_000, 200_000),
        (limit(10_000, bound=True), 70, 200_000, 7_000),
        (limit(10_000, bound=True), 70, 0, 7_000),
        (limit(900_000, bound=True), 70, 200_000, 200_000),
        (limit(10_000, bound=True), 100, 200_000, 200_000),
    ],
)
def test_an_estimated_window_lowers_the_ceiling_only(
    learned: LearnedLimit | None, threshold: int, ceiling: int, expected: int
) -> None:
    limits = CompactionLimits(ceiling_tokens=ceiling)
    assert below_bound(limits, learned, threshold).ceiling_tokens == expected
