"""The options of providers with OpenAI's APIs.

Azure has OpenAI's options. An option that only one API knows is ignored by the other.
"""

from collections.abc import Mapping
from typing import Annotated, Literal
from urllib.parse import urlsplit

from msgspec import UNSET, Meta, Raw, structs

from chatd.domain.model.protocol import Effort
from chatd.domain.text import Json
from chatd.providers.options import PREFILL_TEXT, Domains, OptionBlock

DetailLevel = Literal["low", "medium", "high"]
LogitBias = Mapping[str, Annotated[int, Meta(ge=-100, le=100)]]
NameList = Annotated[tuple[Annotated[str, Meta(min_length=1)], ...], Meta(max_length=50)]
PositiveInt = Annotated[int, Meta(ge=1)]
MetadataLabels = Annotated[Mapping[str, str], Meta(max_length=16)]
Identifier = Annotated[str, Meta(max_length=128)]
TopLogProbs = Annotated[int, Meta(ge=0, le=20)]


class OpenAIOptions(OptionBlock, frozen=True, kw_only=True):
    base_model: Annotated[
        str | None, Meta(description="The model behind a deployment's name, such as gpt-5.2")
    ] = None
    use_responses_api: Annotated[
        bool | None, Meta(description="Responses or Chat Completions; unset: by the model's name")
    ] = None
    reasoning_effort: Annotated[Effort | None, Meta(description="Reasoning effort")] = None
    reasoning_summary: Annotated[
        Literal["auto", "concise", "detailed"] | None,
        Meta(description="Form of the reasoning summary"),
    ] = None
    max_completion_tokens: Annotated[
        PositiveInt | None, Meta(description="Limit of the answer, reasoning included")
    ] = None
    text_verbosity: Annotated[DetailLevel | None, Meta(description="Length of answers")] = None
    parallel_tool_calls: Annotated[bool | None, Meta(description="Allow parallel tool calls")] = (
        None
    )
    max_tool_calls: Annotated[
        PositiveInt | None, Meta(description="Limit of calls of provider-executed tools")
    ] = None
    store: Annotated[bool | None, Meta(description="Let the provider store answers; unset: no")] = (
        None
    )
    prompt_cache_key: Annotated[
        str | None,
        Meta(description="Shared by requests that begin alike; unset: the chat's id"),
    ] = None
    service_tier: Annotated[
        Literal["auto", "default", "flex", "scale", "priority"] | None,
        Meta(description="Service tier"),
    ] = None
    web_search_enabled: Annotated[
        bool, Meta(description="Let the provider search the web for the model")
    ] = False
    search_context_size: Annotated[
        DetailLevel | None, Meta(description="How much of the search results the model reads")
    ] = None
    allowed_domains: Annotated[Domains, Meta(description="Search only these")] = ()
    include: Annotated[NameList, Meta(description="Additional fields of responses")] = ()
    instructions: Annotated[str | None, Meta(description="Sent before all messages")] = None
    logit_bias: Annotated[LogitBias | None, Meta(description="Bias of token likelihoods")] = None
    log_probs: Annotated[bool | None, Meta(description="Return token probabilities")] = None
    top_log_probs: Annotated[
        TopLogProbs | None, Meta(description="Return the likeliest tokens")
    ] = None
    user: Annotated[str | None, Meta(description="Identifier of the end user")] = None
    prediction: Annotated[Json, Meta(description="Predicted content of the answer")] = UNSET
    metadata: Annotated[MetadataLabels | None, Meta(description="Stored with the response")] = None
    safety_identifier: Annotated[
        Identifier | None, Meta(description="Hashed identifier of the end user")
    ] = None
    structured_outputs: Annotated[
        bool, Meta(description="Send the schema of structured answers")
    ] = True
    strict_json_schema: Annotated[bool, Meta(description="Enforce schemas that are strict")] = False
    extra_body: Annotated[
        Mapping[str, Raw] | None, Meta(description="Additional fields of the request")
    ] = None


class CompatOptions(OptionBlock, frozen=True, kw_only=True):
    base_model: Annotated[
        str | None, Meta(description="The model behind a deployment's name, such as gpt-5.2")
    ] = None
    reasoning_effort: Annotated[Effort | None, Meta(description="Reasoning effort")] = None
    reasoning_replay: Annotated[
        Literal["tool_turns", "all", "none"] | None,
        Meta(description="Earlier reasoning that is sent back; unset: by server and model"),
    ] = None
    think_tags: Annotated[
        bool, Meta(description="Take <think> at the start of an answer as reasoning")
    ] = True
    prefill: Annotated[
        Literal["off", "trailing", "prefix", "continue_final_message"] | None,
        Meta(
            description="How the server continues an answer that a crash has cut off: trailing for"
            " llama.cpp, continue_final_message for vLLM; unset: by the server's address"
        ),
    ] = None
    user: Annotated[str | None, Meta(description="Identifier of the end user")] = None
    extra_body: Annotated[
        Mapping[str, Raw] | None, Meta(description="Additional fields of the request")
    ] = None


class ReasoningOptions(OptionBlock, frozen=True, kw_only=True):
    """Reasoning settings of a gateway."""

    enabled: bool | None = None
    exclude: bool | None = None
    max_tokens: PositiveInt | None = None
    effort: Effort | None = None

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.effort is not None:
            raise ValueError("max_tokens and effort exclude each other")


class OpenRouterRouting(OptionBlock, frozen=True, kw_only=True):
    """Providers that OpenRouter may use."""

    order: NameList = ()
    allow_fallbacks: bool | None = None
    require_parameters: bool | None = None
    data_collection: Literal["allow", "deny"] | None = None
    only: NameList = ()
    ignore: NameList = ()
    quantizations: NameList = ()
    sort: Literal["price", "throughput", "latency"] | None = None


class OpenRouterOptions(OptionBlock, frozen=True, kw_only=True):
    reasoning: Annotated[ReasoningOptions | None, Meta(description="Reasoning settings")] = None
    parallel_tool_calls: Annotated[bool | None, Meta(description="Allow parallel tool calls")] = (
        None
    )
    provider: Annotated[OpenRouterRouting | None, Meta(description="Choice of providers")] = None
    extra_body: Annotated[
        Mapping[str, Raw] | None, Meta(description="Additional fields of the request")
    ] = None
    include_usage: Annotated[bool, Meta(description="Return the cost of a request")] = True
    logit_bias: Annotated[LogitBias | None, Meta(description="Bias of token likelihoods")] = None
    log_probs: Annotated[bool | None, Meta(description="Return token probabilities")] = None
    prefill: Annotated[bool | None, Meta(description=PREFILL_TEXT)] = None
    user: Annotated[str | None, Meta(description="Identifier of the end user")] = None


class VercelRouting(OptionBlock, frozen=True, kw_only=True):
    order: NameList = ()
    models: NameList = ()


class VercelOptions(
    OptionBlock, frozen=True, kw_only=True, rename={"provider_options": "providerOptions"}
):
    reasoning: Annotated[ReasoningOptions | None, Meta(description="Reasoning settings")] = None
    parallel_tool_calls: Annotated[bool | None, Meta(description="Allow parallel tool calls")] = (
        None
    )
    provider_options: Annotated[
        VercelRouting | None, Meta(description="Choice of providers and models")
    ] = None
    prefill: Annotated[bool | None, Meta(description=PREFILL_TEXT)] = None
    user: Annotated[str | None, Meta(description="Identifier of the end user")] = None
    logit_bias: Annotated[LogitBias | None, Meta(description="Bias of token likelihoods")] = None
    logprobs: Annotated[bool | None, Meta(description="Return token probabilities")] = None
    top_logprobs: Annotated[TopLogProbs | None, Meta(description="Return the likeliest tokens")] = (
        None
    )
    extra_body: Annotated[
        Mapping[str, Raw] | None, Meta(description="Additional fields of the request")
    ] = None


def forbid_storage(options: OpenAIOptions, base: str) -> OpenAIOptions:
    """OpenAI and Azure store the chats of newer accounts unless a request forbids it. Another
    server may not know the field, and OpenAI takes metadata only with a stored chat."""
    host = urlsplit(base).hostname or ""
    is_vendor = host.endswith((".openai.com", ".azure.com"))
    if options.store is not None or options.metadata is not None or not is_vendor:
        return options
    return structs.replace(options, store=False)


def known_model(model: str, options: OptionBlock) -> str:
    """The name by which the model's facts are known."""
    named = options.base_model if isinstance(options, OpenAIOptions | CompatOptions) else None
    return named or model
