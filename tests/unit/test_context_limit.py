"""The context limit that a provider reports in its metadata."""

import msgspec
import pytest
from msgspec import UNSET, Raw

from chatd.domain.model.config import (
    MAX_CONTEXT_LIMIT_TOKENS,
    effective_context_limit,
    read_context_limit,
)


def found(value: object) -> int | None:
    return read_context_limit(Raw(msgspec.json.encode(value)))


@pytest.mark.covers("limit-1")
@pytest.mark.parametrize(
    "key",
    [
        "contextlimit",
        "context_limit",
        "Context-Limit",
        "contextWindow",
        "context_length",
        "max_context",
        "maxContextTokens",
        "max_input_tokens",
        "maxInputToken",
        "input_token_limit",
        "INPUT TOKEN LIMIT",
        "max_context_limit",
        "modelContextLimit",
        "context_window_size",
        "maxContextWindow",
        "max_model_context_length",
        "context_token_limit",
        "maximum-is-not-max-context-tokens",
        "contextTokensMax",
    ],
)
def test_a_name_of_a_context_limit_is_recognized(key: str) -> None:
    assert found({key: 200_000}) == 200_000


@pytest.mark.covers("limit-5")
@pytest.mark.parametrize(
    "key",
    [
        "context",
        "limit",
        "max_tokens",
        "max_output_tokens",
        "max_context_version",
        "context_tokens_used",
        "context_window_used",
        "context_limit_used",
        "contextLimitExceeded",
        "context_tokens",
        "rate_limit",
        "window",
        "contextual_limits",
    ],
)
def test_a_name_with_another_meaning_is_ignored(key: str) -> None:
    assert found({key: 200_000}) is None


@pytest.mark.covers("limit-3")
@pytest.mark.parametrize(
    ("value", "limit"),
    [
        (200_000, 200_000),
        (200_000.0, 200_000),
        ("200000", 200_000),
        (" 200000 ", 200_000),
        (1, 1),
        (MAX_CONTEXT_LIMIT_TOKENS, MAX_CONTEXT_LIMIT_TOKENS),
        (MAX_CONTEXT_LIMIT_TOKENS + 1, None),
        (0, None),
        (-5, None),
        (1.5, None),
        ("1.5", None),
        ("200k", None),
        ("", None),
        ("-5", None),
        (True, None),
        (None, None),
        ([200_000], None),
        ({"x": 1}, None),
        (1e300, None),
    ],
)
def test_only_a_positive_whole_number_is_a_limit(value: object, limit: int | None) -> None:
    assert found({"context_limit": value}) == limit


@pytest.mark.covers("limit-2")
def test_the_largest_of_several_limits_is_used() -> None:
    nested = {
        "openrouter": {"models": [{"context_length": 8000}, {"context_length": 128_000}]},
        "context_limit": 32_000,
    }
    assert found(nested) == 128_000


@pytest.mark.covers("limit-2")
def test_a_top_level_list_is_searched() -> None:
    assert found([[{"contextWindow": 7}]]) == 7


@pytest.mark.covers("limit-4")
@pytest.mark.parametrize("raw", [b"", b"null", b"{}", b"3", b"not json", b"[" * 100_000])
def test_metadata_without_a_limit_gives_none(raw: bytes) -> None:
    assert read_context_limit(Raw(raw)) is None
    assert read_context_limit(UNSET) is None


@pytest.mark.parametrize(
    ("reported", "configured", "limit"),
    [(9, 5, 9), (None, 5, 5), (None, None, None), (None, 0, None), (None, -1, None), (9, None, 9)],
)
def test_a_reported_limit_takes_precedence_over_the_configured_one(
    reported: int | None, configured: int | None, limit: int | None
) -> None:
    metadata = Raw(msgspec.json.encode({"context_limit": reported}))
    assert effective_context_limit(metadata, configured) == limit
