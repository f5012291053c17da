"""Queries, bodies and replies about models.

Docstrings and descriptions here are part of the OpenAPI document.
"""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from chatd.domain.description import CREATED_AT, MODEL_ID, PROVIDER_ID, UPDATED_AT, describe
from chatd.domain.ids import ModelConfigId
from chatd.domain.list_page import ListPage, ListQuery
from chatd.domain.model.protocol import (
    Effort,
    EffortRange,
    Fallback,
    ModelCapabilities,
    Prices,
    TokenCount,
)

Name = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^\S(.*\S)?$")]
VendorName = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^\S+$")]
DisplayName = Annotated[str, Meta(min_length=1, max_length=200)]
Price = Annotated[str, Meta(pattern=r"^\d{1,6}(\.\d{1,9})?$")]
Percent = Annotated[int, Meta(ge=0, le=100)]
Temperature = Annotated[float, Meta(ge=0, le=2)]
TopP = Annotated[float, Meta(ge=0, le=1)]
TopK = Annotated[int, Meta(ge=1, le=10_000)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Source = Literal["settings", "environment", "database"]

_NAME = describe("Its name in requests. Unique.", "sonnet")
_PROVIDER = describe("The name of its provider.", "anthropic")
_MODEL = describe("Its name at the provider.", "claude-sonnet-4-5")
_DISPLAY_NAME = describe("Its name for people.", "Sonnet")
_ENABLED = describe("Whether chats can use it. Old chats may refer to one that is not.")
_IS_DEFAULT = describe("Whether chats use it that name no model.")
_CONTEXT = describe("How many tokens its context can hold, if it is set here.", 200_000)
_THRESHOLD = describe(
    "The share of the context, in percent, at which history is summarized. 100: never.", 70
)
_MAX_OUTPUT = describe("The longest answer, in tokens.", 32_000)
_TEMPERATURE = describe("How varied the answers are.", 0.7)
_TOP_P = describe("How unlikely the words may be.", 0.9)
_TOP_K = describe("Among how many words the next one is chosen.", 40)
_PRESENCE = describe("Against repeated subjects.", 0.5)
_FREQUENCY = describe("Against repeated words.", 0.5)
_EFFORT = describe("Its range of reasoning effort, if it has one.")
_EFFORT_GIVEN = describe(
    "The effort if a message gives none, as a word; or an object with `default` and `max`.",
    {"default": "medium", "max": "high"},
)
_PRICES = describe("The prices set here; without them the public price list applies.")
_OPTIONS = describe(
    "Options of the provider's kind, as `GET /model-options/schema` describes them.",
    {"web_search_enabled": True},
)
_FALLBACKS = describe(
    "The models that answer if this one cannot, in their order; a notice in the chat says so.",
    [{"model": "gpt", "on": ["outage", "overload"]}],
)
_CAPABILITIES = describe("What the model can do, where chatd does not know it better.")


class ModelsQuery(ListQuery, frozen=True, kw_only=True):
    """`include_disabled` also lists what is disabled, deleted or no longer configured."""

    include_disabled: Annotated[bool, describe("Also list what cannot be used.")] = False


class ModelPrices(
    Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Prices in US dollars, as decimal text: per million tokens, or per thousand web searches. 0 is
    free; a missing price is unknown."""

    input: Annotated[Price | None, describe("For input.", "3")] = None
    output: Annotated[Price | None, describe("For output.", "15")] = None
    cache_read: Annotated[
        Price | None, describe("For input that the provider has cached.", "0.3")
    ] = None
    cache_write: Annotated[
        Price | None, describe("For writing to the provider's cache.", "3.75")
    ] = None
    web_search: Annotated[Price | None, describe("For web searches.", "10")] = None


def convert_prices(prices: Prices) -> ModelPrices:
    names = ModelPrices.__struct_fields__
    return ModelPrices(**{name: getattr(prices, name) for name in names})


class CreateModelBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new model. What is left out follows from the model's name, where it is known."""

    name: Annotated[Name, _NAME]
    provider: Annotated[str, _PROVIDER]
    model: Annotated[VendorName, _MODEL]
    display_name: Annotated[DisplayName | None, _DISPLAY_NAME] = None
    enabled: Annotated[bool, _ENABLED] = True
    is_default: Annotated[
        bool | None,
        describe(
            "Use it for chats that name no model. Without it: if no other model but the demo is"
            " the default."
        ),
    ] = None
    context_limit: Annotated[TokenCount | None, _CONTEXT] = None
    compaction_threshold: Annotated[Percent | None, _THRESHOLD] = None
    max_output_tokens: Annotated[TokenCount | None, _MAX_OUTPUT] = None
    temperature: Annotated[Temperature | None, _TEMPERATURE] = None
    top_p: Annotated[TopP | None, _TOP_P] = None
    top_k: Annotated[TopK | None, _TOP_K] = None
    presence_penalty: Annotated[Penalty | None, _PRESENCE] = None
    frequency_penalty: Annotated[Penalty | None, _FREQUENCY] = None
    reasoning_effort: Annotated[Effort | EffortRange | None, _EFFORT_GIVEN] = None
    prices: Annotated[ModelPrices | None, _PRICES] = None
    options: Annotated[Raw | UnsetType, _OPTIONS] = UNSET
    capabilities: Annotated[ModelCapabilities | None, _CAPABILITIES] = None
    fallbacks: Annotated[tuple[Fallback, ...], _FALLBACKS] = ()


class UpdateModelBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is left out stays; null removes a value. `options` are replaced as a whole."""

    name: Annotated[Name | UnsetType, _NAME] = UNSET
    provider: Annotated[str | UnsetType, _PROVIDER] = UNSET
    model: Annotated[VendorName | UnsetType, _MODEL] = UNSET
    display_name: Annotated[DisplayName | UnsetType | None, _DISPLAY_NAME] = UNSET
    enabled: Annotated[bool | UnsetType, _ENABLED] = UNSET
    is_default: Annotated[bool | UnsetType, _IS_DEFAULT] = UNSET
    context_limit: Annotated[TokenCount | UnsetType | None, _CONTEXT] = UNSET
    compaction_threshold: Annotated[Percent | UnsetType | None, _THRESHOLD] = UNSET
    max_output_tokens: Annotated[TokenCount | UnsetType | None, _MAX_OUTPUT] = UNSET
    temperature: Annotated[Temperature | UnsetType | None, _TEMPERATURE] = UNSET
    top_p: Annotated[TopP | UnsetType | None, _TOP_P] = UNSET
    top_k: Annotated[TopK | UnsetType | None, _TOP_K] = UNSET
    presence_penalty: Annotated[Penalty | UnsetType | None, _PRESENCE] = UNSET
    frequency_penalty: Annotated[Penalty | UnsetType | None, _FREQUENCY] = UNSET
    reasoning_effort: Annotated[Effort | EffortRange | UnsetType | None, _EFFORT_GIVEN] = UNSET
    prices: Annotated[ModelPrices | UnsetType | None, _PRICES] = UNSET
    options: Annotated[Raw | UnsetType, _OPTIONS] = UNSET
    capabilities: Annotated[ModelCapabilities | UnsetType | None, _CAPABILITIES] = UNSET
    fallbacks: Annotated[tuple[Fallback, ...] | UnsetType, _FALLBACKS] = UNSET


class LearnedContext(Struct, frozen=True, kw_only=True):
    """What the provider's refusals of long prompts have taught of a model's context window."""

    tokens: Annotated[int, describe("The size that the provider named, in tokens.", 8_192)]
    is_bound: Annotated[
        bool,
        describe(
            "The provider named none: the window is smaller than `tokens`, the estimated size of"
            " the shortest prompt that it refused.",
        ),
    ]


class ModelReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model as it is configured."""

    id: Annotated[ModelConfigId, describe("The model's id.", MODEL_ID)]
    name: Annotated[str, _NAME]
    provider: Annotated[str, _PROVIDER]
    provider_id: Annotated[UUID, describe("The id of its provider.", PROVIDER_ID)]
    model: Annotated[str, _MODEL]
    display_name: Annotated[str, _DISPLAY_NAME]
    enabled: Annotated[bool, _ENABLED]
    is_default: Annotated[bool, _IS_DEFAULT]
    source: Annotated[
        Source,
        describe("Where it is configured. Only `database` is changed over the API.", "database"),
    ]
    created_at: Annotated[datetime, describe("When it was first configured.", CREATED_AT)]
    updated_at: Annotated[datetime, describe("When it last changed.", UPDATED_AT)]
    capabilities: Annotated[
        ModelCapabilities, describe("What it can do: set here, told by the provider, or known.")
    ]
    learned_context: Annotated[
        LearnedContext | None,
        describe(
            "What its provider has taught of its context window by refusing prompts, if no limit"
            " is set here. `capabilities` has the number that the provider named."
        ),
    ] = None
    context_limit: Annotated[int | None, _CONTEXT] = None
    compaction_threshold: Annotated[int | None, _THRESHOLD] = None
    max_output_tokens: Annotated[int | None, _MAX_OUTPUT] = None
    temperature: Annotated[float | None, _TEMPERATURE] = None
    top_p: Annotated[float | None, _TOP_P] = None
    top_k: Annotated[int | None, _TOP_K] = None
    presence_penalty: Annotated[float | None, _PRESENCE] = None
    frequency_penalty: Annotated[float | None, _FREQUENCY] = None
    reasoning_effort: Annotated[EffortRange | None, _EFFORT] = None
    prices: Annotated[ModelPrices | None, _PRICES] = None
    options: Annotated[Raw | UnsetType, _OPTIONS] = UNSET
    fallbacks: Annotated[tuple[Fallback, ...], _FALLBACKS] = ()
    unpriced: Annotated[
        bool,
        describe("No price is known: its calls count as nothing towards a spend limit."),
    ] = False
    price_source: Annotated[
        str | None,
        describe(
            "The price list that its prices come from, if none are set here. It ends with `list"
            " price, by the model's name` if the address is not the vendor's.",
            "genai-prices 0.2.1: deepseek/deepseek-chat, list price, by the model's name",
        ),
    ] = None
    deleted: Annotated[bool, describe("It was deleted; old chats refer to it.")] = False


class ModelPage(ListPage[ModelReply], frozen=True, kw_only=True):
    """A page of models."""


_TITLE = describe("The model that writes titles, by name.", "haiku")
_COMPACTION = describe("The model that writes summaries of long chats, by name.", "haiku")

_GENERAL = describe("The model of subagents of type `general`, by name.", "sonnet")
_EXPLORE = describe("The model of subagents of type `explore`, by name.", "haiku")
_COMPUTER_USE = describe("The model of subagents of type `computer_use`, by name.", "opus")


class OverridesBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The models that do a task for all chats. What is left out stays; null: the chat's own model,
    and for titles a small model of its provider."""

    title: Annotated[str | UnsetType | None, _TITLE] = UNSET
    compaction: Annotated[str | UnsetType | None, _COMPACTION] = UNSET
    general: Annotated[str | UnsetType | None, _GENERAL] = UNSET
    explore: Annotated[str | UnsetType | None, _EXPLORE] = UNSET
    computer_use: Annotated[str | UnsetType | None, _COMPUTER_USE] = UNSET


class OverridesReply(Struct, frozen=True, kw_only=True):
    """The models that do a task for all chats, by name."""

    title: Annotated[str | None, _TITLE]
    compaction: Annotated[str | None, _COMPACTION]
    general: Annotated[str | None, _GENERAL]
    explore: Annotated[str | None, _EXPLORE]
    computer_use: Annotated[str | None, _COMPUTER_USE]


class OptionsSchemaReply(Struct, frozen=True, kw_only=True):
    """A JSON Schema of the options of models, with one property per kind of provider."""

    dialect: Annotated[
        str,
        describe("The version of JSON Schema.", "https://json-schema.org/draft/2020-12/schema"),
    ] = field(name="$schema", default="https://json-schema.org/draft/2020-12/schema")
    type: Annotated[str, describe("A JSON object.", "object")] = "object"
    properties: Annotated[
        dict[str, dict[str, Any]],
        describe(
            "The schema of the options of each kind.",
            {"anthropic": {"type": "object"}},
        ),
    ]
    definitions: Annotated[
        dict[str, dict[str, Any]],
        describe("The schemas that others refer to.", {"AnthropicOptions": {"type": "object"}}),
    ] = field(name="$defs")
