"""Queries and replies about models and providers.

Docstrings and descriptions here are part of the OpenAPI document.
"""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from msgspec import Struct

from chatd.api.schemas.lists import ListPage, ListQuery
from chatd.domain.description import CREATED_AT, MODEL_ID, PROVIDER_ID, UPDATED_AT, describe
from chatd.domain.ids import ModelConfigId
from chatd.domain.model.protocol import EffortRange


class ModelsQuery(ListQuery, frozen=True, kw_only=True):
    """`include_disabled` also lists models that are no longer configured."""

    include_disabled: Annotated[bool, describe("Also list what is no longer configured.")] = False


class PriceList(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Prices in US dollars, as decimal text: per million tokens, or per thousand web searches."""

    input_price_per_million_tokens: Annotated[str | None, describe("For input.", "3")] = None
    output_price_per_million_tokens: Annotated[str | None, describe("For output.", "15")] = None
    cache_read_price_per_million_tokens: Annotated[
        str | None, describe("For input that the provider has cached.", "0.3")
    ] = None
    cache_write_price_per_million_tokens: Annotated[
        str | None, describe("For writing to the provider's cache.", "3.75")
    ] = None
    web_search_price_per_thousand: Annotated[str | None, describe("For web searches.", "10")] = None


class ModelParameters(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Parameters of a model's calls."""

    max_output_tokens: Annotated[int | None, describe("The longest answer.", 32000)] = None
    temperature: Annotated[float | None, describe("How varied the answers are.", 0.7)] = None
    top_p: Annotated[float | None, describe("How unlikely the words may be.", 0.9)] = None
    cost: Annotated[
        PriceList | None,
        describe("The prices set here; without them the public price list applies."),
    ] = None


Source = Literal["settings", "database"]


class ModelReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model as it is configured."""

    id: Annotated[ModelConfigId, describe("The model's id.", MODEL_ID)]
    name: Annotated[str, describe("Its name in requests.", "sonnet")]
    provider: Annotated[str, describe("The name of its provider.", "anthropic")]
    model: Annotated[str, describe("Its name at the provider.", "claude-sonnet-4-5")]
    display_name: Annotated[str, describe("Its name for people.", "Sonnet")]
    enabled: Annotated[
        bool, describe("Whether chats can use it. Old chats may refer to one that is not.")
    ]
    is_default: Annotated[bool, describe("Whether chats use it that name no model.")]
    source: Annotated[Source, describe("Where it is configured.", "settings")]
    created_at: Annotated[datetime, describe("When it was first configured.", CREATED_AT)]
    updated_at: Annotated[datetime, describe("When it last changed.", UPDATED_AT)]
    context_limit: Annotated[
        int | None, describe("How many tokens its context can hold.", 200000)
    ] = None
    compression_threshold: Annotated[
        int | None,
        describe("The share of the context, in percent, at which history is summarized.", 70),
    ] = None
    reasoning_effort: Annotated[
        EffortRange | None, describe("Its range of reasoning effort, if it has one.")
    ] = None
    unpriced: Annotated[
        bool, describe("No price is known: its calls count as nothing towards a spend limit.")
    ] = False
    model_config: Annotated[ModelParameters, describe("Parameters of its calls.")]


class ProviderReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A provider as it is configured."""

    id: Annotated[UUID, describe("The provider's id.", PROVIDER_ID)]
    name: Annotated[str, describe("Its name.", "anthropic")]
    provider: Annotated[str, describe("The kind of API that it speaks.", "anthropic")]
    display_name: Annotated[str, describe("Its name for people.", "Anthropic")]
    enabled: Annotated[bool, describe("Whether its models can be used.")]
    has_api_key: Annotated[
        bool, describe("Whether a key is configured. The key is never returned.")
    ]
    source: Annotated[Source, describe("Where it is configured.", "settings")]
    created_at: Annotated[datetime, describe("When it was first configured.", CREATED_AT)]
    updated_at: Annotated[datetime, describe("When it last changed.", UPDATED_AT)]
    base_url: Annotated[
        str | None,
        describe(
            "The address of its API, if it is not the vendor's.", "https://llm.example.com/v1"
        ),
    ] = None


class ModelPage(ListPage[ModelReply], frozen=True, kw_only=True):
    """A page of models."""


class ProviderPage(ListPage[ProviderReply], frozen=True, kw_only=True):
    """A page of providers."""


class ListedModel(Struct, frozen=True, kw_only=True):
    """A model of a provider."""

    id: Annotated[
        str, describe("Provider and model, as `provider:model`.", "anthropic:claude-sonnet-4-5")
    ]
    provider: Annotated[str, describe("The name of its provider.", "anthropic")]
    model: Annotated[str, describe("Its name at the provider.", "claude-sonnet-4-5")]
    display_name: Annotated[str, describe("Its name for people.", "sonnet")]


class ProviderModels(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A provider with its models."""

    provider: Annotated[str, describe("The name of the provider.", "anthropic")]
    available: Annotated[bool, describe("Whether its models can be used.")]
    models: Annotated[tuple[ListedModel, ...], describe("Its enabled models.")]
    unavailable_reason: Annotated[
        Literal["missing_api_key"] | None, describe("Why not.", "missing_api_key")
    ] = None


class ModelsReply(Struct, frozen=True, kw_only=True):
    """Models by provider."""

    providers: Annotated[tuple[ProviderModels, ...], describe("The providers with enabled models.")]
