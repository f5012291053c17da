"""Prices and context windows of models, for model configs that leave them open.

Looks them up in the table of the package `genai-prices`; fetches nothing. Configured prices of
tokens are used as a whole and never combined with the table's.
"""

from datetime import datetime
from decimal import Decimal
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import UNSET, Struct, structs

from chatd.domain.model.protocol import ModelConfig, Prices, PriceTier
from chatd.providers.provider_config import ProviderKind

if TYPE_CHECKING:
    from genai_prices.data_snapshot import DataSnapshot
    from genai_prices.types import ModelInfo, ModelPrice, Provider, TieredPrices

# The table's name for a kind. For a gateway it is in the model's name, for a compatible server the
# table finds it by the address.
_MAKERS: Final[dict[ProviderKind, str]] = {
    "anthropic": "anthropic",
    "azure": "azure",
    "bedrock": "aws",
    "google": "google",
    "openai": "openai",
    "openrouter": "openrouter",
}
_SEARCH_COUNTING_KINDS: Final = frozenset({"anthropic"})
"""Kinds whose usage reports the number of web searches."""
_DEMO: Final = Prices(input="0", output="0", cache_read="0", cache_write="0", source="demo")
_DEMO_CONTEXT: Final = 128_000


_MAKERS_BY_NAME: Final[tuple[tuple[str, str], ...]] = (
    ("deepseek-chat", "deepseek"),
    ("deepseek-reasoner", "deepseek"),
    ("claude-", "anthropic"),
    ("gemini-", "google"),
    ("gpt-", "openai"),
    ("grok-", "x-ai"),
)
"""Whose list price a model has behind an address that the table does not know, by the start of a
name that only the vendor's own API uses. Models with open weights, such as gpt-oss, deepseek-r1 or
kimi-k2, have none: the operator may run them on machines of its own."""
LIST_PRICE: Final = "list price, by the model's name"


class ModelFacts(Struct, frozen=True, kw_only=True):
    """None means unknown."""

    prices: Prices | None = None
    context_limit: int | None = None


class PriceTable:
    """Loads the table at first use, which takes half a second and 90 MB: call it in a thread."""

    def __init__(self) -> None:
        self._table: DataSnapshot | None = None

    def load(self) -> "DataSnapshot":
        if self._table is None:
            from genai_prices.data_snapshot import get_snapshot  # noqa: PLC0415

            self._table = get_snapshot()
        return self._table

    def look_up(
        self, kind: ProviderKind, model: str, at: datetime, base_url: str | None = None
    ) -> ModelFacts:
        """`at` selects among prices that change on a known date."""
        if kind == "demo":
            return ModelFacts(prices=_DEMO, context_limit=_DEMO_CONTEXT)
        found = self._find(kind, model, base_url)
        if found is None:
            return ModelFacts(prices=self._list_price(kind, model, at))
        maker, info = found
        source = f"genai-prices {version('genai-prices')}: {maker.id}/{info.id}"
        return ModelFacts(
            prices=_prices(info.get_prices(at), source), context_limit=info.context_window
        )

    def fill_missing(
        self, config: ModelConfig, kind: ProviderKind, at: datetime, base_url: str | None = None
    ) -> ModelConfig:
        """Look up what the model config leaves open. Only a vendor that reports the number of web
        searches charges for them; its fee is looked up also if the prices are configured."""
        configured = config.prices
        needs_fee = kind in _SEARCH_COUNTING_KINDS and not (configured and configured.web_search)
        if configured is not None and config.context_limit is not None and not needs_fee:
            return config
        facts = self.look_up(kind, listed_name(config), at, base_url)
        prices = facts.prices if configured is None else configured
        if needs_fee and prices is not None and facts.prices is not None:
            prices = structs.replace(prices, web_search=facts.prices.web_search)
        return structs.replace(
            config, prices=prices, context_limit=config.context_limit or facts.context_limit
        )

    def _list_price(self, kind: ProviderKind, model: str, at: datetime) -> Prices | None:
        """What the vendor asks for a model of this name. Only for a server that speaks a vendor's
        names: a tag or a repository in the name means a model that the server runs itself."""
        name = model.lower()
        if kind != "openai-compat" or name.startswith("gpt-oss") or "/" in name or ":" in name:
            return None
        maker = next((maker for start, maker in _MAKERS_BY_NAME if name.startswith(start)), None)
        if maker is None:
            return None
        try:
            _, info = self.load().find_provider_model(model, None, maker, None)
        except LookupError:
            return None
        source = f"genai-prices {version('genai-prices')}: {maker}/{info.id}, {LIST_PRICE}"
        return _prices(info.get_prices(at), source)

    def _find(
        self, kind: ProviderKind, model: str, base_url: str | None
    ) -> "tuple[Provider, ModelInfo] | None":
        maker, url, name = _MAKERS.get(kind), None, model
        if kind == "vercel":
            maker, _, name = model.rpartition("/")
        elif maker is None:
            url = base_url
        if not maker and not url:
            return None
        try:
            return self.load().find_provider_model(name, None, maker, url)
        except LookupError:
            return None


class _NamedOptions(Struct, frozen=True):
    base_model: str | None = None


_NAMED_OPTIONS: Final = msgspec.json.Decoder(_NamedOptions)


def listed_name(config: ModelConfig) -> str:
    """A deployment has the prices of the model behind it. Invalid options are reported later."""
    if config.options is UNSET:
        return config.model
    try:
        return _NAMED_OPTIONS.decode(config.options).base_model or config.model
    except msgspec.DecodeError:
        return config.model


_Steps = dict[int, Decimal]
"""Prices of one kind of token, by the prompt size from which they apply."""


def _prices(listed: "ModelPrice", source: str) -> Prices | None:
    """None without token prices. Cached tokens without a price cost as much as input."""
    read, wrote = _steps(listed, "input_mtok"), _steps(listed, "output_mtok")
    if not read and not wrote:
        return None
    cache_read = _steps(listed, "cache_read_mtok") or read
    cache_write = _steps(listed, "cache_write_mtok") or read
    hour = _steps(listed, "cache_write_1h_mtok")
    return Prices(
        input=_at(read, 0),
        output=_at(wrote, 0),
        cache_read=_at(cache_read, 0),
        cache_write=_at(cache_write, 0),
        cache_write_1h=_at(hour, 0),
        web_search=_at(_steps(listed, "web_searches_kcount"), 0),
        tiers=tuple(
            PriceTier(
                above=start,
                input=_at(read, start),
                output=_at(wrote, start),
                cache_read=_at(cache_read, start),
                cache_write=_at(cache_write, start),
                cache_write_1h=_at(hour, start),
            )
            for start in sorted({*read, *wrote, *cache_read, *cache_write} - {0})
        ),
        source=source,
    )


def _steps(listed: "ModelPrice", name: str) -> _Steps:
    price: Decimal | TieredPrices | None = getattr(listed, name, None)
    if price is None:
        return {}
    if isinstance(price, Decimal):
        return {0: price}
    return {0: price.base, **{tier.start: tier.price for tier in price.tiers}}


def _at(steps: _Steps, size: int) -> str | None:
    reached = [start for start in steps if start <= size]
    return format(steps[max(reached)].normalize(), "f") if reached else None
