"""What models cost and how much they hold, for models that nobody has priced here.

Owns the look-up in the table that comes with `genai-prices`; never fetches anything. What is
configured always wins, as a whole: a price list made of two is nobody's.
"""

from datetime import datetime
from decimal import Decimal
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from msgspec import Struct, structs

from chatd.domain.model.protocol import ModelConfig, Prices, PriceTier
from chatd.providers.settings import Kind

if TYPE_CHECKING:
    from genai_prices.data_snapshot import DataSnapshot
    from genai_prices.types import ModelInfo, ModelPrice, Provider, TieredPrices

# Kinds that the table knows under a name of their own. A gateway names the maker in the model's
# name, and who hides behind a compatible API is told by its address.
_MAKERS: Final[dict[Kind, str]] = {
    "anthropic": "anthropic",
    "azure": "azure",
    "bedrock": "aws",
    "google": "google",
    "openai": "openai",
    "openrouter": "openrouter",
}
_DEMO: Final = Prices(input="0", output="0", cache_read="0", cache_write="0", source="demo")
_DEMO_CONTEXT: Final = 128_000


class ModelFacts(Struct, frozen=True, kw_only=True):
    """None is unknown: unpriced, and of unknown size."""

    prices: Prices | None = None
    context_limit: int | None = None


class PriceBook:
    """The table is loaded when it is first needed. That takes half a second of work and 90 MB:
    whoever serves calls `load` beforehand, in a thread."""

    def __init__(self) -> None:
        self._table: DataSnapshot | None = None

    def load(self) -> "DataSnapshot":
        if self._table is None:
            from genai_prices.data_snapshot import get_snapshot  # noqa: PLC0415

            self._table = get_snapshot()
        return self._table

    def facts(
        self, kind: Kind, model: str, at: datetime, base_url: str | None = None
    ) -> ModelFacts:
        """Prices may change on a date that is known beforehand, hence `at`."""
        if kind == "demo":
            return ModelFacts(prices=_DEMO, context_limit=_DEMO_CONTEXT)
        found = self._find(kind, model, base_url)
        if found is None:
            return ModelFacts()
        maker, info = found
        source = f"genai-prices {version('genai-prices')}: {maker.id}/{info.id}"
        return ModelFacts(
            prices=_prices(info.get_prices(at), source), context_limit=info.context_window
        )

    def filled(
        self, config: ModelConfig, kind: Kind, at: datetime, base_url: str | None = None
    ) -> ModelConfig:
        """The configuration, with what it leaves open looked up."""
        if config.prices is not None and config.context_limit is not None:
            return config
        facts = self.facts(kind, config.model, at, base_url)
        return structs.replace(
            config,
            prices=facts.prices if config.prices is None else config.prices,
            context_limit=config.context_limit or facts.context_limit,
        )

    def _find(
        self, kind: Kind, model: str, base_url: str | None
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


_Steps = dict[int, Decimal]
"""Prices of one kind of token, by the size of a prompt from which they hold."""


def _prices(listed: "ModelPrice", source: str) -> Prices | None:
    """None if tokens have no price there. Cached tokens without a price of their own cost what
    others do."""
    read, wrote = _steps(listed, "input_mtok"), _steps(listed, "output_mtok")
    if not read and not wrote:
        return None
    cache_read = _steps(listed, "cache_read_mtok") or read
    cache_write = _steps(listed, "cache_write_mtok") or read
    return Prices(
        input=_at(read, 0),
        output=_at(wrote, 0),
        cache_read=_at(cache_read, 0),
        cache_write=_at(cache_write, 0),
        tiers=tuple(
            PriceTier(
                above=start,
                input=_at(read, start),
                output=_at(wrote, start),
                cache_read=_at(cache_read, start),
                cache_write=_at(cache_write, start),
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
