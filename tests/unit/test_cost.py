"""The cost of a model call."""

import pytest

from chatd.domain.chat.messages import TokenUsage
from chatd.domain.model.config import cost_micros
from chatd.domain.model.protocol import Prices, PriceTier

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
