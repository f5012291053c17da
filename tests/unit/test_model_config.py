"""Effort, context limit and cost of a model."""

from uuid import UUID

import msgspec
import pytest
from msgspec import UNSET, Raw
from msgspec.structs import replace

from chatd.domain.chat.messages import Message, TokenUsage
from chatd.domain.chat.parts import NoticePart
from chatd.domain.ids import ModelConfigId
from chatd.domain.model.config import (
    MAX_CONTEXT_LIMIT_TOKENS,
    cost_micros,
    effective_context_limit,
    effort_notice,
    effort_objection,
    read_context_limit,
    resolve_effort,
)
from chatd.domain.model.protocol import Effort, EffortRange, ModelConfig, Prices, PriceTier
from tests.support.factories import message


@pytest.mark.covers("providers-14")
@pytest.mark.parametrize(
    ("requested", "default", "most", "resolved"),
    [
        (None, None, None, None),
        (None, "low", None, "low"),
        ("high", "low", None, "high"),
        ("high", "low", "medium", "medium"),
        (None, "max", "high", "high"),
        ("low", "medium", "high", "low"),
        ("enormous", "medium", "high", "medium"),
        ("none", "medium", "high", "none"),
        ("enormous", None, "high", None),
    ],
)
def test_the_requested_effort_is_limited_to_the_configured_range(
    requested: str | None, default: Effort | None, most: Effort | None, resolved: Effort | None
) -> None:
    assert resolve_effort(requested, EffortRange(default=default, max=most)) == resolved


@pytest.mark.covers("providers-14")
@pytest.mark.parametrize(
    ("requested", "configured", "efforts", "resolved"),
    [
        ("high", None, ("low", "high"), "high"),
        ("high", None, None, None),
        ("high", EffortRange(), None, None),
        ("high", EffortRange(max="max"), None, "high"),
        (None, EffortRange(default="low"), None, "low"),
        (None, None, ("low", "high"), None),
        ("high", None, (), None),
        ("high", EffortRange(default="low"), (), None),
        ("high", EffortRange(max="low"), ("low", "high"), "low"),
    ],
)
def test_an_effort_is_sent_to_every_model_that_names_it(
    requested: str | None,
    configured: EffortRange | None,
    efforts: tuple[Effort, ...] | None,
    resolved: Effort | None,
) -> None:
    assert resolve_effort(requested, configured, efforts) == resolved


@pytest.mark.parametrize(
    ("effort", "efforts", "refused"),
    [
        ("high", (), True),
        ("none", (), False),
        (None, (), False),
        ("high", ("low",), False),
        ("high", None, False),
    ],
)
def test_only_a_model_that_takes_no_effort_refuses_one(
    effort: str | None,
    efforts: tuple[Effort, ...] | None,
    refused: bool,  # noqa: FBT001
) -> None:
    assert (effort_objection("gpt-4o", effort, efforts) is not None) == refused


MODEL = ModelConfig(id=ModelConfigId(UUID(int=5)), name="gpt-4o", provider="p", model="gpt-4o")
TOLD = {"model_config_id": str(MODEL.id), "reasoning_effort": "high"}


def notice(*, deleted: bool = False) -> Message:
    part = NoticePart(code="effort_not_sent", text="x", detail=TOLD)
    return replace(message(1, "system", part, visibility="user"), deleted=deleted)


@pytest.mark.parametrize(
    ("requested", "configured", "efforts", "history", "begins"),
    [
        (None, None, (), [], None),
        ("enormous", None, (), [], None),
        ("high", None, ("low",), [], None),
        ("high", EffortRange(default="low"), None, [], None),
        ("none", None, (), [], None),
        ("high", None, (), [], "gpt-4o takes no reasoning effort: the effort high"),
        ("high", None, None, [], "Whether gpt-4o takes a reasoning effort is not known"),
        ("none", None, None, [], "Whether gpt-4o"),
        ("high", None, (), [notice()], None),
        ("high", None, (), [notice(deleted=True)], "gpt-4o takes"),
        ("low", None, (), [notice()], "gpt-4o takes"),
    ],
)
def test_a_chat_is_told_once_that_its_effort_is_not_sent(
    requested: str | None,
    configured: EffortRange | None,
    efforts: tuple[Effort, ...] | None,
    history: list[Message],
    begins: str | None,
) -> None:
    config = replace(MODEL, reasoning_effort=configured)
    draft = effort_notice(history, requested, config, efforts)
    parts = () if draft is None else draft.content
    texts = [part.text for part in parts if isinstance(part, NoticePart)]
    assert len(texts) == (begins is not None)
    assert all(text.startswith(begins or "") for text in texts)


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


ALL = Prices(input="3", output="15", cache_read="0.3", cache_write="3.75")


@pytest.mark.covers("cost-1")
@pytest.mark.parametrize(
    ("usage", "prices", "micros"),
    [
        (TokenUsage(input_tokens=1_000_000), ALL, 3_000_000),
        (TokenUsage(output_tokens=1000), ALL, 15_000),
        (TokenUsage(cache_read_tokens=1000), ALL, 300),
        (TokenUsage(cache_creation_tokens=1000), ALL, 3750),
        (
            TokenUsage(
                input_tokens=100, output_tokens=10, cache_read_tokens=50, cache_creation_tokens=20
            ),
            ALL,
            540,
        ),
        (TokenUsage(), ALL, 0),
        (TokenUsage(input_tokens=5), Prices(input="0"), 0),
        (TokenUsage(input_tokens=5), Prices(), None),
        (TokenUsage(input_tokens=5), None, None),
        (None, ALL, None),
        (TokenUsage(input_tokens=5), Prices(output="1"), None),
        (TokenUsage(input_tokens=5, output_tokens=2), Prices(output="1"), 2),
        (TokenUsage(), Prices(output="1"), 0),
        (TokenUsage(web_searches=3), Prices(output="1", web_search="10"), 30_000),
        (TokenUsage(output_tokens=2, web_searches=1), Prices(output="1"), 2),
        (TokenUsage(web_searches=1), Prices(output="1"), None),
        (TokenUsage(input_tokens=5, provider_cost_micros=7), ALL, 7),
        (TokenUsage(input_tokens=5, provider_cost_micros=0), None, 0),
    ],
)
def test_the_cost_is_tokens_times_prices_in_micros(
    usage: TokenUsage | None, prices: Prices | None, micros: int | None
) -> None:
    assert cost_micros(usage, prices) == micros


@pytest.mark.covers("cost-2")
def test_the_sum_is_rounded_up_once() -> None:
    usage = TokenUsage(input_tokens=1, output_tokens=1, cache_read_tokens=1)
    assert cost_micros(usage, Prices(input="0.4", output="0.4", cache_read="0.1")) == 1
    assert cost_micros(usage, Prices(input="0.4", output="0.4", cache_read="0.3")) == 2


@pytest.mark.covers("cost-2")
def test_prices_are_exact_decimals() -> None:
    prices = Prices(input="0.1", output="0.2")
    assert cost_micros(TokenUsage(input_tokens=10, output_tokens=10), prices) == 3


@pytest.mark.covers("cost-3")
def test_reasoning_tokens_are_not_charged_twice() -> None:
    assert cost_micros(TokenUsage(output_tokens=10, reasoning_tokens=9), ALL) == 150


@pytest.mark.covers("cost-4")
@pytest.mark.parametrize("price", ["", "free", "-1", "NaN", "Infinity"])
def test_an_invalid_price_leaves_the_call_unpriced(price: str) -> None:
    assert cost_micros(TokenUsage(input_tokens=5), Prices(input=price)) is None


def test_above_a_tier_all_tokens_have_its_prices() -> None:
    tiers = (
        PriceTier(above=100, input="2", output="20"),
        PriceTier(above=1000, input="3", output="30"),
    )
    prices = Prices(input="1", output="10", tiers=tiers)
    assert cost_micros(TokenUsage(input_tokens=100, output_tokens=1), prices) == 110
    assert cost_micros(TokenUsage(input_tokens=101, output_tokens=1), prices) == 222
    read = TokenUsage(
        input_tokens=1, cache_read_tokens=900, cache_creation_tokens=100, output_tokens=1
    )
    assert cost_micros(read, prices) == 33


@pytest.mark.parametrize(
    ("prices", "cost"),
    [
        (Prices(input="3", cache_write="3.75", cache_write_1h="6"), 3 * 100 + 375 + 6 * 200),
        (Prices(input="3", cache_write="3.75"), 3 * 100 + 375 + 2 * 3 * 200),
    ],
)
def test_a_write_for_an_hour_costs_its_price_or_twice_the_input(prices: Prices, cost: int) -> None:
    usage = TokenUsage(input_tokens=100, cache_creation_tokens=300, cache_creation_1h_tokens=200)
    assert cost_micros(usage, prices) == cost
