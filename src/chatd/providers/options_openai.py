"""Options of the providers that speak OpenAI's wires: `options` explains the rules.

Azure takes the block of OpenAI. What only one of the two wires knows is used
where it applies.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, Struct

from chatd.domain.chat.parts import Json
from chatd.domain.model.protocol import Effort
from chatd.providers.options import Domains

Level = Literal["low", "medium", "high"]
LogitBias = Mapping[str, Annotated[int, Meta(ge=-100, le=100)]]
Words = Annotated[tuple[Annotated[str, Meta(min_length=1)], ...], Meta(max_length=50)]
Positive = Annotated[int, Meta(ge=1)]
Labels = Annotated[Mapping[str, str], Meta(max_length=16)]
Identifier = Annotated[str, Meta(max_length=128)]
TopLogProbs = Annotated[int, Meta(ge=0, le=20)]


class OpenAIOptions(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    use_responses_api: Annotated[
        bool | None, Meta(description="Responses or Chat Completions; unset: by the model's name")
    ] = None
    reasoning_effort: Annotated[Effort | None, Meta(description="How hard the model thinks")] = None
    reasoning_summary: Annotated[
        Literal["auto", "concise", "detailed"] | None,
        Meta(description="What is shown of the thinking"),
    ] = None
    max_completion_tokens: Annotated[
        Positive | None, Meta(description="Bounds the answer, thinking included")
    ] = None
    text_verbosity: Annotated[Level | None, Meta(description="How long answers are")] = None
    parallel_tool_calls: Annotated[
        bool | None, Meta(description="Several tool calls at a time")
    ] = None
    max_tool_calls: Annotated[
        Positive | None, Meta(description="Bounds the calls of the provider's own tools")
    ] = None
    store: Annotated[
        bool | None, Meta(description="Let the provider keep responses; unset: yes")
    ] = None
    prompt_cache_key: Annotated[
        str | None, Meta(description="Requests that share a beginning share this")
    ] = None
    service_tier: Annotated[
        Literal["auto", "default", "flex", "scale", "priority"] | None,
        Meta(description="The class of service"),
    ] = None
    web_search_enabled: Annotated[
        bool, Meta(description="Let the provider search the web for the model")
    ] = False
    search_context_size: Annotated[
        Level | None, Meta(description="How much of what is found the model reads")
    ] = None
    allowed_domains: Annotated[Domains, Meta(description="Search only these")] = ()
    include: Annotated[Words, Meta(description="More to be included in responses")] = ()
    instructions: Annotated[str | None, Meta(description="Stand before the conversation")] = None
    logit_bias: Annotated[LogitBias | None, Meta(description="Likelihood of tokens")] = None
    log_probs: Annotated[bool | None, Meta(description="Ask for probabilities of tokens")] = None
    top_log_probs: Annotated[
        TopLogProbs | None, Meta(description="Ask for the likeliest tokens")
    ] = None
    user: Annotated[str | None, Meta(description="Whom requests are made for")] = None
    prediction: Annotated[Json, Meta(description="Much of the answer, known beforehand")] = UNSET
    metadata: Annotated[Labels | None, Meta(description="Kept with the response")] = None
    safety_identifier: Annotated[
        Identifier | None, Meta(description="Whom requests are made for, hashed")
    ] = None
    structured_outputs: Annotated[
        bool, Meta(description="Ask for structured answers by their schema")
    ] = True
    strict_json_schema: Annotated[
        bool, Meta(description="Hold the model to schemas that are written strictly")
    ] = False


class CompatOptions(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    reasoning_effort: Annotated[Effort | None, Meta(description="How hard the model thinks")] = None
    user: Annotated[str | None, Meta(description="Whom requests are made for")] = None


class Reasoning(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Of the gateways. An effort and a number of tokens exclude each other."""

    enabled: bool | None = None
    exclude: bool | None = None
    max_tokens: Positive | None = None
    effort: Effort | None = None

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.effort is not None:
            raise ValueError("max_tokens and effort exclude each other")


class Routing(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Which of its providers OpenRouter may use."""

    order: Words = ()
    allow_fallbacks: bool | None = None
    require_parameters: bool | None = None
    data_collection: Literal["allow", "deny"] | None = None
    only: Words = ()
    ignore: Words = ()
    quantizations: Words = ()
    sort: Literal["price", "throughput", "latency"] | None = None


class OpenRouterOptions(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    reasoning: Annotated[Reasoning | None, Meta(description="Whether and how models think")] = None
    parallel_tool_calls: Annotated[
        bool | None, Meta(description="Several tool calls at a time")
    ] = None
    provider: Annotated[Routing | None, Meta(description="Which providers are used")] = None
    extra_body: Annotated[
        Mapping[str, Raw] | None, Meta(description="More fields of the request")
    ] = None
    include_usage: Annotated[bool, Meta(description="Ask for what a request has cost")] = True
    logit_bias: Annotated[LogitBias | None, Meta(description="Likelihood of tokens")] = None
    log_probs: Annotated[bool | None, Meta(description="Ask for probabilities of tokens")] = None
    user: Annotated[str | None, Meta(description="Whom requests are made for")] = None


class GatewayRouting(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    order: Words = ()
    models: Words = ()


class VercelOptions(
    Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    rename={"provider_options": "providerOptions"},
):
    reasoning: Annotated[Reasoning | None, Meta(description="Whether and how models think")] = None
    parallel_tool_calls: Annotated[
        bool | None, Meta(description="Several tool calls at a time")
    ] = None
    provider_options: Annotated[
        GatewayRouting | None, Meta(description="Which providers and models are used")
    ] = None
    user: Annotated[str | None, Meta(description="Whom requests are made for")] = None
    logit_bias: Annotated[LogitBias | None, Meta(description="Likelihood of tokens")] = None
    logprobs: Annotated[bool | None, Meta(description="Ask for probabilities of tokens")] = None
    top_logprobs: Annotated[
        TopLogProbs | None, Meta(description="Ask for the likeliest tokens")
    ] = None
    extra_body: Annotated[
        Mapping[str, Raw] | None, Meta(description="More fields of the request")
    ] = None
