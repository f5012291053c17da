"""Options of the providers with OpenAI's APIs, and facts about OpenAI's models.

Azure has OpenAI's options. An option that only one of the two APIs knows is ignored by the other.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from msgspec import UNSET, Meta, Raw, Struct, structs

from chatd.domain.model.config import EFFORT_LEVELS
from chatd.domain.model.protocol import Effort
from chatd.domain.text import Json
from chatd.providers.options import PREFILL_TEXT, Domains, OptionBlock, lower_effort, raise_effort

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


# Facts: the API of a model, whether it reasons, and the efforts that it takes.
#
# A table of names, not of patterns: `gpt-5` is the row of `gpt-5-nano-2026-01-01`, but not of
# `gpt-5.1`. A new model is a new row; until then a model of the GPT family has the cautious facts
# of the row `gpt`. Any other name, such as a deployment's, has no facts.

Transport = Literal["responses", "chat"]


class OpenAIModel(Struct, frozen=True, kw_only=True):
    """`reasons`: takes an effort and no temperature. `needs_responses`: the model, or its tools,
    exist in the Responses API only."""

    transport: Transport = "responses"
    reasons: bool = True
    efforts: tuple[Effort, ...] = ("low", "medium", "high")
    needs_responses: bool = False
    searches: bool = False


_PLAIN: Final = OpenAIModel(reasons=False, efforts=())
_CHAT_ONLY: Final = OpenAIModel(transport="chat", reasons=False, efforts=())
_SEARCH: Final = OpenAIModel(transport="chat", reasons=False, efforts=(), searches=True)
_BASIC: Final = OpenAIModel()
_RESPONSES_ONLY: Final = OpenAIModel(needs_responses=True)
_ONE_EFFORT: Final = OpenAIModel(efforts=("medium",))
_WITH_NONE: Final = OpenAIModel(efforts=("none", "low", "medium", "high"))
_TO_XHIGH: Final = OpenAIModel(efforts=("none", "low", "medium", "high", "xhigh"))
_TO_MAX: Final = OpenAIModel(efforts=("none", "low", "medium", "high", "xhigh", "max"))
_ALWAYS_TO_MAX: Final = OpenAIModel(
    efforts=("low", "medium", "high", "xhigh", "max"), needs_responses=True
)
_PRO: Final = OpenAIModel(efforts=("medium", "high", "xhigh"), needs_responses=True)

OPENAI_MODELS: Final[dict[str, OpenAIModel]] = {
    "gpt": _BASIC,
    "gpt-3.5": _CHAT_ONLY,
    "gpt-35": _CHAT_ONLY,  # Azure's name
    "gpt-4": _PLAIN,
    "gpt-4o": _PLAIN,
    "gpt-4o-search": _SEARCH,
    "gpt-4o-mini-search": _SEARCH,
    "gpt-4.1": _PLAIN,
    "gpt-4.5": _PLAIN,
    "gpt-5": OpenAIModel(efforts=("minimal", "low", "medium", "high")),
    "gpt-5-chat": _PLAIN,
    "gpt-5-codex": _RESPONSES_ONLY,
    "gpt-5-pro": OpenAIModel(efforts=("high",), needs_responses=True),
    "gpt-5-search-api": _SEARCH,
    "gpt-5.1": _WITH_NONE,
    "gpt-5.1-chat": _ONE_EFFORT,
    "gpt-5.1-codex": OpenAIModel(efforts=_WITH_NONE.efforts, needs_responses=True),
    "gpt-5.1-codex-max": OpenAIModel(efforts=_TO_XHIGH.efforts, needs_responses=True),
    "gpt-5.2": _TO_XHIGH,
    "gpt-5.2-chat": _ONE_EFFORT,
    "gpt-5.2-pro": _PRO,
    "gpt-5.3": _TO_XHIGH,
    "gpt-5.3-chat": _ONE_EFFORT,
    "gpt-5.3-codex": OpenAIModel(efforts=_TO_XHIGH.efforts, needs_responses=True),
    "gpt-5.4": _TO_XHIGH,
    "gpt-5.4-pro": _PRO,
    "gpt-5.5": _TO_XHIGH,
    "gpt-5.5-pro": _PRO,
    "gpt-5.6": _TO_MAX,
    "gpt-6": _TO_MAX,
    "gpt-6-astra": _ALWAYS_TO_MAX,
    "gpt-6.1": _TO_MAX,
    "gpt-6.1-sol": _ALWAYS_TO_MAX,
    "gpt-oss": OpenAIModel(transport="chat"),
    "chatgpt": _CHAT_ONLY,
    "codex": _RESPONSES_ONLY,
    "computer-use-preview": _RESPONSES_ONLY,
    "o1": _BASIC,
    "o1-pro": _RESPONSES_ONLY,
    "o3": _BASIC,
    "o3-deep-research": _RESPONSES_ONLY,
    "o3-pro": _RESPONSES_ONLY,
    "o4": _BASIC,
    "o4-mini-deep-research": _RESPONSES_ONLY,
}


def model_family(model: str) -> str:
    """The name without parts of gateways and fine-tuning: `openai/gpt-5`, `ft:gpt-4o:us::1`."""
    return model.lower().rsplit("/", 1)[-1].removeprefix("ft:")


@lru_cache(1024)
def find_model(model: str) -> OpenAIModel | None:
    """The row with the most words of the name. None if the name is of no known family."""
    words = model_family(model).partition(":")[0].split("-")
    names = ("-".join(words[:count]) for count in range(len(words), 0, -1))
    return next((OPENAI_MODELS[name] for name in names if name in OPENAI_MODELS), None)


_COMPUTER_FROM: Final = (5, 4)
_VERSION: Final = re.compile(r"gpt-(\d+)(?:\.(\d+))?(?:-|$)")


def has_computer_tool(model: str) -> bool:
    """Whether the API offers the model its own tool for a screen. Others get a function."""
    family = model_family(model)
    found = _VERSION.match(family)
    if found is None:
        return family.startswith("computer-use-preview")
    is_chat_only = any(word in family for word in ("-chat", "-codex", "-nano", "-search"))
    return (int(found[1]), int(found[2] or 0)) >= _COMPUTER_FROM and not is_chat_only


def choose_transport(model: str, *, use_responses_api: bool | None) -> Transport:
    """As configured, else as the model is known; Chat Completions for an unknown name."""
    if use_responses_api is not None:
        return "responses" if use_responses_api else "chat"
    found = find_model(model)
    return "chat" if found is None else found.transport


def supports_reasoning(model: str) -> bool | None:
    """True if the model takes an effort and no temperature; None if the name is unknown."""
    found = find_model(model)
    return None if found is None else found.reasons


def fit_effort(effort: Effort, model: str) -> Effort:
    """The nearest effort that the model takes. An effort above none never becomes none."""
    found = find_model(model)
    allowed = EFFORT_LEVELS if found is None or not found.efforts else found.efforts
    fitted = lower_effort(effort, allowed)
    return raise_effort(effort, allowed) if fitted == "none" != effort else fitted


def is_claude(model: str) -> bool:
    """Gateways cache a prompt for Claude only if the request asks for it."""
    return model_family(model).startswith("claude")
