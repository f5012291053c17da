"""Parameters that come from a provider's own options."""

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import UNSET, Raw

from chatd.domain.model.protocol import Effort, ModelRequest
from chatd.providers.effort import SCALE, lowered
from chatd.providers.gemini.models import profile
from chatd.providers.openai_chat.dialect import Dialect
from chatd.providers.openai_models import family, fitted_effort, reasons
from chatd.providers.options_openai import (
    CompatOptions,
    OpenAIOptions,
    OpenRouterOptions,
    Reasoning,
    VercelOptions,
)

Body = dict[str, object]
ChatOptions = OpenAIOptions | CompatOptions | OpenRouterOptions | VercelOptions

_GATEWAY_EFFORTS: Final = SCALE[: SCALE.index("max")]


def own_params(request: ModelRequest, options: ChatOptions, dialect: Dialect) -> Body:
    match options:
        case OpenAIOptions():
            found = _openai(request, options)
        case CompatOptions():
            found = _compatible(request, options, dialect)
        case OpenRouterOptions():
            found = _openrouter(request, options)
        case VercelOptions():
            found = _vercel(request, options)
    return {name: value for name, value in found.items() if value is not None}


def parallel_tool_calls(options: ChatOptions) -> bool | None:
    return None if isinstance(options, CompatOptions) else options.parallel_tool_calls


def _openai(request: ModelRequest, options: OpenAIOptions) -> Body:
    thinks = reasons(request.model)
    effort = request.reasoning_effort or options.reasoning_effort
    searches = options.web_search_enabled and "-search-" in family(request.model)
    return {
        "reasoning_effort": None
        if effort is None or thinks is False
        else fitted_effort(effort, request.model),
        "verbosity": options.text_verbosity,
        "store": options.store,
        "prompt_cache_key": options.prompt_cache_key,
        "service_tier": options.service_tier,
        "safety_identifier": options.safety_identifier,
        "metadata": options.metadata,
        "user": options.user,
        "prediction": None if options.prediction is UNSET else options.prediction,
        "web_search_options": _search(options) if searches else None,
        **({} if thinks else _likelihoods(options)),
    }


def _likelihoods(options: OpenAIOptions) -> Body:
    """The likeliest tokens are told only with their probabilities."""
    return {
        "logit_bias": options.logit_bias,
        "logprobs": True if options.top_log_probs is not None else options.log_probs,
        "top_logprobs": options.top_log_probs,
    }


def _search(options: OpenAIOptions) -> Body:
    size = options.search_context_size
    return {} if size is None else {"search_context_size": size}


def _compatible(request: ModelRequest, options: CompatOptions, dialect: Dialect) -> Body:
    effort = request.reasoning_effort or options.reasoning_effort
    found: Body = {"user": options.user}
    if dialect.gemini and profile(request.model).thinking != "none":
        config = _thinking_config(request.model, effort)
        found["extra_body"] = {"google": {"thinking_config": config}}
    elif effort is not None and reasons(request.model) is not False:
        found["reasoning_effort"] = fitted_effort(effort, request.model)
    return found


def _thinking_config(model: str, effort: Effort | None) -> Body:
    """Google's own words, because its thoughts are shown only to those who ask in them."""
    known = profile(model)
    config: Body = {"include_thoughts": effort != "none"}
    if effort is not None and known.thinking == "level":
        config["thinking_level"] = known.level(effort)
    elif effort is not None:
        config["thinking_budget"] = known.budget(effort)
    return config


def _reasoning(request: ModelRequest, configured: Reasoning | None) -> Body | None:
    """A number of tokens, where one is configured, counts more than a word."""
    found: Body = {} if configured is None else msgspec.to_builtins(configured)
    effort = request.reasoning_effort
    if effort is not None and "max_tokens" not in found:
        found["effort"] = effort
    word = found.get("effort")
    if word is not None:
        found["effort"] = lowered(msgspec.convert(word, Effort), _GATEWAY_EFFORTS)
    return found or None


def _openrouter(request: ModelRequest, options: OpenRouterOptions) -> Body:
    return {
        **_extra(options.extra_body),
        "reasoning": _reasoning(request, options.reasoning),
        "provider": options.provider,
        "usage": {"include": True} if options.include_usage else None,
        "logit_bias": options.logit_bias,
        "logprobs": options.log_probs,
        "user": options.user,
    }


def _vercel(request: ModelRequest, options: VercelOptions) -> Body:
    routing = options.provider_options
    return {
        **_extra(options.extra_body),
        "reasoning": _reasoning(request, options.reasoning),
        "providerOptions": None if routing is None else {"gateway": routing},
        "logit_bias": options.logit_bias,
        "logprobs": options.logprobs,
        "top_logprobs": options.top_logprobs,
        "user": options.user,
    }


def _extra(fields: Mapping[str, Raw] | None) -> Body:
    return dict(fields or {})
