"""Prices of models without configured prices. Loading the table takes most of the time."""

from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

import msgspec
import pytest

from chatd.domain.chat.messages import TokenUsage
from chatd.domain.ids import ModelConfigId
from chatd.domain.model.config import cost_micros
from chatd.domain.model.protocol import ModelConfig, Prices, PriceTier
from chatd.providers.prices import LIST_PRICE, ModelFacts, PriceTable
from chatd.providers.provider_config import ProviderKind

NOW = datetime(2026, 11, 15, tzinfo=UTC)
CONFIG = ModelConfig(
    id=ModelConfigId(UUID(int=1)), name="Sonnet", provider="anthropic", model="claude-sonnet-4-5"
)


@pytest.fixture(scope="module")
def book() -> PriceTable:
    book = PriceTable()
    book.load()
    return book


def prices(book: PriceTable, kind: ProviderKind, model: str, base_url: str | None = None) -> Prices:
    found = book.look_up(kind, model, NOW, base_url).prices
    assert found is not None
    return found


def test_a_model_has_all_token_prices_and_a_context_window(book: PriceTable) -> None:
    facts = book.look_up("anthropic", "claude-opus-5", NOW)
    assert facts.context_limit == 1_000_000
    assert facts.prices is not None
    assert msgspec.structs.replace(facts.prices, source=None) == Prices(
        input="5",
        output="25",
        cache_read="0.5",
        cache_write="6.25",
        cache_write_1h="10",
        web_search="10",
    )
    assert (facts.prices.source or "").endswith(": anthropic/claude-opus-5")


def test_long_prompts_have_their_own_prices(book: PriceTable) -> None:
    assert prices(book, "google", "gemini-2.5-pro").tiers == (
        PriceTier(above=200_000, input="2.5", output="15", cache_read="0.25", cache_write="2.5"),
    )


def test_a_price_changes_on_its_date(book: PriceTable) -> None:
    before = book.look_up("google", "gemini-4-argon", datetime(2026, 11, 30, tzinfo=UTC)).prices
    after = book.look_up("google", "gemini-4-argon", datetime(2026, 12, 1, tzinfo=UTC)).prices
    assert before is not None
    assert after is not None
    assert (before.input, after.input) == ("2", "4")


def test_cached_tokens_without_a_price_cost_as_much_as_input(book: PriceTable) -> None:
    found = prices(book, "openai", "gpt-5")
    assert (found.input, found.cache_read, found.cache_write) == ("1.25", "0.125", "1.25")


@pytest.mark.parametrize(
    ("kind", "model", "base_url", "source"),
    [
        ("bedrock", "anthropic.claude-sonnet-4-5-20250929-v1:0", None, ": aws/"),
        ("azure", "gpt-5", None, ": azure/gpt-5"),
        ("openrouter", "anthropic/claude-sonnet-4.5", None, ": openrouter/"),
        ("vercel", "anthropic/claude-sonnet-4.5", None, ": anthropic/claude-sonnet-4-5"),
        ("openai-compat", "deepseek-chat", "https://api.deepseek.com/v1", ": deepseek/"),
    ],
)
def test_every_provider_kind_finds_its_prices(
    book: PriceTable, kind: ProviderKind, model: str, base_url: str | None, source: str
) -> None:
    assert source in (prices(book, kind, model, base_url).source or "")


@pytest.mark.parametrize(
    ("kind", "model", "base_url"),
    [
        ("openai", "my-own-model", None),
        ("openai-compat", "qwen3", None),
        ("openai-compat", "qwen3", "http://localhost:8000/v1"),
        ("vercel", "nobody/knows", None),
        ("vercel", "gpt-5", None),
        ("anthropic", "", None),
    ],
)
def test_an_unknown_model_has_no_price(
    book: PriceTable, kind: ProviderKind, model: str, base_url: str | None
) -> None:
    assert book.look_up(kind, model, NOW, base_url) == ModelFacts()


def test_configured_prices_are_used_as_a_whole(book: PriceTable) -> None:
    own = Prices(input="1")
    config = msgspec.structs.replace(CONFIG, prices=own)
    filled = book.fill_missing(config, "anthropic", NOW)
    assert filled.prices == msgspec.structs.replace(own, web_search="10")
    free = msgspec.structs.replace(CONFIG, prices=msgspec.structs.replace(own, web_search="0"))
    assert book.fill_missing(free, "anthropic", NOW).prices == free.prices
    assert filled.context_limit == 200_000
    sized = msgspec.structs.replace(CONFIG, context_limit=50_000)
    filled = book.fill_missing(sized, "anthropic", NOW)
    assert filled.context_limit == 50_000
    assert filled.prices is not None
    assert filled.prices.input == "3"


def test_the_demo_model_is_free_and_needs_no_table() -> None:
    facts = PriceTable().look_up("demo", "demo", NOW)
    assert cost_micros(TokenUsage(input_tokens=10, output_tokens=10), facts.prices) == 0


def test_a_complete_config_is_not_looked_up() -> None:
    own = Prices(input="1", web_search="2")
    whole = msgspec.structs.replace(CONFIG, prices=own, context_limit=1)
    assert PriceTable().fill_missing(whole, "anthropic", NOW) is whole


def test_a_call_above_a_tier_costs_the_tier_for_all_of_its_tokens(book: PriceTable) -> None:
    found = prices(book, "google", "gemini-2.5-pro")
    short = TokenUsage(input_tokens=150_000, cache_read_tokens=50_000, output_tokens=1000)
    long = TokenUsage(input_tokens=150_001, cache_read_tokens=50_000, output_tokens=1000)
    assert cost_micros(short, found) == 150_000 * 1.25 + 50_000 * 0.125 + 10_000
    assert cost_micros(long, found) == -(-(150_001 * 25 + 50_000 * 2.5 + 150_000) // 10)


@pytest.mark.parametrize("kind", ["anthropic", "google"])
def test_prices_are_plain_decimal_numbers(book: PriceTable, kind: ProviderKind) -> None:
    [maker] = [maker for maker in book.load().providers if maker.id == kind]
    for model in maker.models:
        found = book.look_up(kind, model.id, NOW).prices
        for text in (found.input, found.output) if found is not None else ():
            assert text is None or (Decimal(text) >= 0 and "E" not in text)


def test_a_deployment_has_the_prices_of_its_base_model(book: PriceTable) -> None:
    options = msgspec.Raw(b'{"base_model":"gpt-5"}')
    deployed = msgspec.structs.replace(CONFIG, model="prod-eu-1", options=options)
    filled = book.fill_missing(deployed, "azure", NOW)
    expected = book.look_up("azure", "gpt-5", NOW)
    assert expected.prices is not None
    assert (filled.prices, filled.context_limit) == (expected.prices, expected.context_limit)
    broken = msgspec.structs.replace(deployed, options=msgspec.Raw(b'{"base_model":7}'))
    assert book.fill_missing(broken, "azure", NOW).prices is None


def test_writes_for_an_hour_have_their_own_price(book: PriceTable) -> None:
    prices = book.look_up("anthropic", "claude-sonnet-4-5", NOW).prices
    assert prices is not None
    assert (prices.cache_write, prices.cache_write_1h) == ("3.75", "6")


@pytest.mark.parametrize(
    ("model", "is_listed"),
    [
        ("deepseek-chat", True),
        ("claude-sonnet-4-5", True),
        ("deepseek-r1:8b", False),
        ("deepseek-r1", False),
        ("kimi-k2", False),
        ("mistral-7b", False),
        ("deepseek-ai/DeepSeek-R1", False),
        ("gpt-oss-20b", False),
        ("qwen3", False),
    ],
)
def test_a_vendors_model_at_another_address_has_its_list_price(
    book: PriceTable,
    model: str,
    is_listed: bool,  # noqa: FBT001
) -> None:
    found = book.look_up("openai-compat", model, NOW, "http://127.0.0.1:9/v1")
    assert (found.prices is not None) == is_listed
    assert found.context_limit is None
    assert found.prices is None or str(found.prices.source).endswith(LIST_PRICE)
