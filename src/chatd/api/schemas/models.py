"""Queries and replies about models and providers.

Docstrings and descriptions here are part of the OpenAPI document.
"""

from datetime import datetime
from typing import Literal
from uuid import UUID

from msgspec import Struct

from chatd.api.schemas.lists import ListPage, ListQuery
from chatd.domain.ids import ModelConfigId
from chatd.domain.model.protocol import EffortRange


class ModelsQuery(ListQuery, frozen=True, kw_only=True):
    """`include_disabled` also lists models that are no longer configured."""

    include_disabled: bool = False


class PriceList(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """USD per million tokens or per thousand web searches, as decimal text."""

    input_price_per_million_tokens: str | None = None
    output_price_per_million_tokens: str | None = None
    cache_read_price_per_million_tokens: str | None = None
    cache_write_price_per_million_tokens: str | None = None
    web_search_price_per_thousand: str | None = None


class ModelParameters(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Parameters of a model call. Without a `cost` the public price list applies."""

    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    cost: PriceList | None = None


Source = Literal["settings", "database"]


class ModelReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`provider` is the provider's name. A model that is not `enabled` was configured earlier:
    old chats refer to it, but it cannot be used. No price is known of an `unpriced` model: its
    calls count as nothing towards the spend limit."""

    id: ModelConfigId
    name: str
    provider: str
    model: str
    display_name: str
    enabled: bool
    is_default: bool
    source: Source
    created_at: datetime
    updated_at: datetime
    context_limit: int | None = None
    compression_threshold: int | None = None
    reasoning_effort: EffortRange | None = None
    unpriced: bool = False
    model_config: ModelParameters


class ProviderReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`provider` is the kind of API. The key is never returned."""

    id: UUID
    name: str
    provider: str
    display_name: str
    enabled: bool
    has_api_key: bool
    source: Source
    created_at: datetime
    updated_at: datetime
    base_url: str | None = None


class ModelPage(ListPage[ModelReply], frozen=True, kw_only=True):
    """A page of models."""


class ProviderPage(ListPage[ProviderReply], frozen=True, kw_only=True):
    """A page of providers."""


class ListedModel(Struct, frozen=True, kw_only=True):
    id: str
    provider: str
    model: str
    display_name: str


class ProviderModels(Struct, frozen=True, kw_only=True, omit_defaults=True):
    provider: str
    available: bool
    models: tuple[ListedModel, ...]
    unavailable_reason: Literal["missing_api_key"] | None = None


class ModelsReply(Struct, frozen=True, kw_only=True):
    providers: tuple[ProviderModels, ...]
