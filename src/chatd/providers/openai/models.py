"""Facts about OpenAI's models by name, and the options of providers with OpenAI's APIs.

The name only selects the form of a request. A name that matches no family, such as a deployment's,
changes nothing. Azure has OpenAI's options. An option that only one API knows is ignored by the
other.
"""

import re
from collections.abc import Collection, Mapping
from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, Raw

from chatd.domain.model.config import EFFORT_LEVELS
from chatd.domain.model.protocol import Effort
from chatd.domain.text import Json
from chatd.providers.options import Domains, OptionBlock, lower_effort, raise_effort

Transport = Literal["responses", "chat"]

_GPT: Final = re.compile(r"gpt-(\d+)(?:\.(\d+))?(?=$|[^0-9.])(.*)")
_O_SERIES: Final = re.compile(r"o\d")
_OTHER_REASONING: Final = ("gpt-oss", "codex-", "computer-use-preview")

_BASIC_EFFORTS: Final[Collection[Effort]] = ("low", "medium", "high")


def choose_transport(model: str, *, use_responses_api: bool | None) -> Transport:
    """As configured, else Responses for models that are known to support it."""
    if use_responses_api is not None:
        return "responses" if use_responses_api else "chat"
    name = model_family(model)
    version = _version(name)
    known = (
        (version is not None and version >= (4, 0))
        or _O_SERIES.match(name) is not None
        or name.startswith(("codex-", "computer-use-preview"))
    )
    # Search models exist only in Chat Completions.
    return "responses" if known and "-search-" not in name else "chat"


def model_family(model: str) -> str:
    """The name without prefixes of gateways and fine-tuning: `openai/gpt-5`, `ft:gpt-4o:us::1`."""
    return model.lower().rsplit("/", 1)[-1].removeprefix("ft:")


def is_claude(model: str) -> bool:
    """Gateways cache a prompt for Claude only if the request asks for it."""
    return model_family(model).startswith("claude")


def supports_reasoning(model: str) -> bool | None:
    """True if the model takes an effort and no temperature; None if the name is unknown."""
    name = model_family(model)
    if _O_SERIES.match(name) or name.startswith(_OTHER_REASONING):
        return True
    if name.startswith(("chatgpt-", "gpt-5-chat")):
        return False
    version = _version(name)
    return None if version is None else version >= (5, 0)


def fit_effort(effort: Effort, model: str) -> Effort:
    """The nearest effort that the model takes. An effort above none never becomes none."""
    allowed = _efforts(model_family(model))
    fitted = lower_effort(effort, allowed)
    return raise_effort(effort, allowed) if fitted == "none" != effort else fitted


def _version(name: str) -> tuple[int, int] | None:
    match = _GPT.match(name)
    return (int(match[1]), int(match[2] or 0)) if match else None


def _efforts(name: str) -> Collection[Effort]:
    if _O_SERIES.match(name) or name.startswith(_OTHER_REASONING):
        return _BASIC_EFFORTS
    version = _version(name)
    if version is None or version < (5, 0):
        return EFFORT_LEVELS
    if "-chat" in name:
        return ("medium",)
    if name.startswith("gpt-5-pro"):
        return ("high",)
    if version == (5, 0):
        return _BASIC_EFFORTS if "codex" in name else ("minimal", *_BASIC_EFFORTS)
    if version == (5, 1) and "codex-max" not in name:
        return ("none", *_BASIC_EFFORTS)
    if version < (5, 6):
        return ("none", *_BASIC_EFFORTS, "xhigh")
    return ("none", *_BASIC_EFFORTS, "xhigh", "max")


DetailLevel = Literal["low", "medium", "high"]
LogitBias = Mapping[str, Annotated[int, Meta(ge=-100, le=100)]]
NameList = Annotated[tuple[Annotated[str, Meta(min_length=1)], ...], Meta(max_length=50)]
PositiveInt = Annotated[int, Meta(ge=1)]
MetadataLabels = Annotated[Mapping[str, str], Meta(max_length=16)]
Identifier = Annotated[str, Meta(max_length=128)]
TopLogProbs = Annotated[int, Meta(ge=0, le=20)]


class OpenAIOptions(OptionBlock, frozen=True, kw_only=True):
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
    store: Annotated[
        bool | None, Meta(description="Let the provider store responses; unset: yes")
    ] = None
    prompt_cache_key: Annotated[
        str | None, Meta(description="Shared by requests with a common prefix")
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
    reasoning_effort: Annotated[Effort | None, Meta(description="Reasoning effort")] = None
    reasoning_replay: Annotated[
        Literal["tool_turns", "all", "none"] | None,
        Meta(description="Earlier reasoning that is sent back; unset: by server and model"),
    ] = None
    think_tags: Annotated[
        bool, Meta(description="Take <think> at the start of an answer as reasoning")
    ] = True
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
    user: Annotated[str | None, Meta(description="Identifier of the end user")] = None
    logit_bias: Annotated[LogitBias | None, Meta(description="Bias of token likelihoods")] = None
    logprobs: Annotated[bool | None, Meta(description="Return token probabilities")] = None
    top_logprobs: Annotated[TopLogProbs | None, Meta(description="Return the likeliest tokens")] = (
        None
    )
    extra_body: Annotated[
        Mapping[str, Raw] | None, Meta(description="Additional fields of the request")
    ] = None
