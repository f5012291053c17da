"""Encodes a request as the body of `POST /chat/completions`.

Decides which parameters a model takes, and in which form a server expects them.
"""

from typing import Final

import msgspec
from msgspec import UNSET, Raw

from chatd.domain.model.config import EFFORT_LEVELS
from chatd.domain.model.protocol import Effort, ForcedTool, ModelRequest, WireForm
from chatd.providers.gemini.gemini_models import gemini_profile
from chatd.providers.http import encode_list
from chatd.providers.openai.chat_dialect import ChatDialect
from chatd.providers.openai.chat_messages import ChatMessageBuilder, Message, is_sent
from chatd.providers.openai.openai_models import (
    CompatOptions,
    OpenAIOptions,
    OpenRouterOptions,
    ReasoningOptions,
    VercelOptions,
    find_model,
    fit_effort,
    is_claude,
    known_model,
    supports_reasoning,
)
from chatd.providers.openai.openai_tools import OUTPUT_SCHEMA_NAME, build_functions, is_strict
from chatd.providers.options import add_extra_fields, lower_effort
from chatd.providers.tool_schema import ToolNames, normalize_schema

Body = dict[str, object]
ChatOptions = OpenAIOptions | CompatOptions | OpenRouterOptions | VercelOptions

_GATEWAY_EFFORTS: Final = EFFORT_LEVELS[: EFFORT_LEVELS.index("max")]


def option_params(request: ModelRequest, options: ChatOptions, dialect: ChatDialect) -> Body:
    match options:
        case OpenAIOptions():
            found = _openai(request, options)
        case CompatOptions():
            found = _compatible_body(request, options, dialect)
        case OpenRouterOptions():
            found = _openrouter(request, options)
        case VercelOptions():
            found = _vercel(request, options)
    return {name: value for name, value in found.items() if value is not None}


def parallel_tool_calls(options: ChatOptions) -> bool | None:
    return None if isinstance(options, CompatOptions) else options.parallel_tool_calls


def _openai(request: ModelRequest, options: OpenAIOptions) -> Body:
    model = known_model(request.model, options)
    found = find_model(model)
    is_reasoning = None if found is None else found.reasons
    effort = request.reasoning_effort or options.reasoning_effort
    searches = options.web_search_enabled and found is not None and found.searches
    return {
        "reasoning_effort": None
        if effort is None or is_reasoning is False
        else fit_effort(effort, model),
        "verbosity": options.text_verbosity,
        "store": options.store,
        "prompt_cache_key": options.prompt_cache_key or request.cache_key,
        "service_tier": options.service_tier,
        "safety_identifier": options.safety_identifier,
        "metadata": options.metadata,
        "user": options.user,
        "prediction": None if options.prediction is UNSET else options.prediction,
        "web_search_options": _search(options) if searches else None,
        **({} if is_reasoning else _likelihoods(options)),
    }


def _likelihoods(options: OpenAIOptions) -> Body:
    """The API returns the likeliest tokens only together with probabilities."""
    return {
        "logit_bias": options.logit_bias,
        "logprobs": True if options.top_log_probs is not None else options.log_probs,
        "top_logprobs": options.top_log_probs,
    }


def _search(options: OpenAIOptions) -> Body:
    size = options.search_context_size
    return {} if size is None else {"search_context_size": size}


def _compatible_body(request: ModelRequest, options: CompatOptions, dialect: ChatDialect) -> Body:
    model = known_model(request.model, options)
    effort = request.reasoning_effort or options.reasoning_effort
    found: Body = {"user": options.user}
    if dialect.has_cache_key:
        found["prompt_cache_key"] = request.cache_key
    if dialect.is_gemini and gemini_profile(request.model).thinking != "none":
        config = _thinking_config(request.model, effort)
        found["extra_body"] = {"google": {"thinking_config": config}}
    elif effort is not None and supports_reasoning(model) is not False:
        found["reasoning_effort"] = fit_effort(effort, model)
    return found


def _thinking_config(model: str, effort: Effort | None) -> Body:
    """Google returns thoughts only if its own field asks for them."""
    known = gemini_profile(model)
    config: Body = {"include_thoughts": effort != "none"}
    if effort is not None and known.thinking == "level":
        config["thinking_level"] = known.fit_level(effort)
    elif effort is not None:
        config["thinking_budget"] = known.fit_budget(effort)
    return config


def _reasoning(request: ModelRequest, configured: ReasoningOptions | None) -> Body | None:
    """A configured number of tokens wins over an effort."""
    found: Body = {} if configured is None else msgspec.to_builtins(configured)
    effort = request.reasoning_effort
    if effort is not None and "max_tokens" not in found:
        found["effort"] = effort
    word = found.get("effort")
    if word is not None:
        found["effort"] = lower_effort(msgspec.convert(word, Effort), _GATEWAY_EFFORTS)
    return found or None


def _openrouter(request: ModelRequest, options: OpenRouterOptions) -> Body:
    return {
        "reasoning": _reasoning(request, options.reasoning),
        "provider": options.provider,
        "usage": {"include": True} if options.include_usage else None,
        "logit_bias": options.logit_bias,
        "logprobs": options.log_probs,
        "user": options.user,
    }


def _vercel(request: ModelRequest, options: VercelOptions) -> Body:
    gateway = options.provider_options
    return {
        "reasoning": _reasoning(request, options.reasoning),
        "providerOptions": {"gateway": gateway} if gateway else None,
        "logit_bias": options.logit_bias,
        "logprobs": options.logprobs,
        "top_logprobs": options.top_logprobs,
        "user": options.user,
    }


_REQUIRED: Final = frozenset({"model", "messages", "stream", "stream_options", "tools"})


def encode_request(
    request: ModelRequest, options: ChatOptions, names: ToolNames, dialect: ChatDialect, origin: str
) -> bytes:
    """`origin` identifies the account: metadata is sent back only to the account that made it."""
    is_reasoning = supports_reasoning(known_model(request.model, options)) is True
    body: Body = {
        "model": request.model,
        "messages": _messages(request, names, dialect, origin, is_reasoning=is_reasoning),
        "stream": True,
        "stream_options": {"include_usage": True},
        **_continue_fields(request, dialect),
        **_limit(request, options, is_reasoning=is_reasoning),
        **({} if is_reasoning else _sampling(request, dialect)),
        "response_format": _format(request, options),
        **_tools(request, options, names, dialect),
    }
    sent = {name: value for name, value in body.items() if value is not None}
    sent = {**option_params(request, options, dialect), **sent}
    required = set(_REQUIRED)
    if request.tool_choice != "auto":
        required.add("tool_choice")
    if request.output_schema is not UNSET:
        required.add("response_format")
    return msgspec.json.encode(add_extra_fields(sent, options.extra_body, required))


def _messages(
    request: ModelRequest,
    names: ToolNames,
    dialect: ChatDialect,
    origin: str,
    *,
    is_reasoning: bool,
) -> Raw:
    """The beginning that an earlier request had too is not encoded again. It ends before an answer
    that is sent, with which nothing before is joined. With signatures or marks it depends on what
    follows."""
    messages, kept = request.messages, request.kept_wire
    role = "developer" if is_reasoning and dialect.has_developer_role else "system"
    signed = dialect.is_gemini and gemini_profile(request.model).strict_signatures
    marks_cache = dialect.marks_cache and is_claude(request.model)
    last = next((n for n in reversed(range(len(messages))) if messages[n].role == "user"), -1)

    def build(first: int, end: int, *, is_tool_turn: bool) -> ChatMessageBuilder:
        builder = ChatMessageBuilder(
            origin, names, dialect, system_role=role, signed=signed, marks_cache=marks_cache
        )
        builder.is_tool_turn = is_tool_turn
        for number in range(first, end):
            builder.add(messages[number], current=number > last)
        return builder

    form = WireForm()
    is_kept = kept is not None and 0 < kept.count < len(messages) and not signed
    if kept is not None and is_kept and not marks_cache and is_sent(messages[kept.count]):
        key = ("chat", origin, names.wire_names, dialect, role)
        form = kept.forms.get(key, form)
        if form.count > kept.count:  # of a later request
            form = WireForm()
        elif form.count < kept.count:
            more = build(form.count, kept.count, is_tool_turn=form.state)
            pieces = [form.body, *map(_ENCODER.encode, more.build())]
            body = b",".join(piece for piece in pieces if piece)
            form = WireForm(count=kept.count, body=body, state=more.is_tool_turn)
            kept.keep(key, form)
    built = build(form.count, len(messages), is_tool_turn=form.state).build()
    if request.continues is not None:
        prefix = True if dialect.continues == "prefix" else UNSET
        built = [*built, Message(role="assistant", content=request.continues, prefix=prefix)]
    rest = encode_list(built)
    if not form.body:
        return rest
    return Raw(b"".join((b"[", form.body, b"," if built else b"", memoryview(rest)[1:])))


_ENCODER: Final = msgspec.json.Encoder()


def _continue_fields(request: ModelRequest, dialect: ChatDialect) -> Body:
    if request.continues is None or dialect.continues != "continue_final_message":
        return {}
    return {"continue_final_message": True, "add_generation_prompt": False}


def _limit(request: ModelRequest, options: ChatOptions, *, is_reasoning: bool) -> Body:
    """Reasoning models have another name for the limit, which includes their reasoning."""
    limit = request.max_output_tokens
    if isinstance(options, OpenAIOptions) and options.max_completion_tokens is not None:
        return {"max_completion_tokens": options.max_completion_tokens}
    if limit is None:
        return {}
    return {"max_completion_tokens" if is_reasoning else "max_tokens": limit}


def _sampling(request: ModelRequest, dialect: ChatDialect) -> Body:
    return {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k if dialect.has_top_k else None,
        "presence_penalty": request.presence_penalty,
        "frequency_penalty": request.frequency_penalty,
    }


def _format(request: ModelRequest, options: ChatOptions) -> Body | None:
    if request.output_schema is UNSET:
        return None
    strict = False
    if isinstance(options, OpenAIOptions):
        if not options.structured_outputs:
            return {"type": "json_object"}
        strict = options.strict_json_schema
    schema = normalize_schema(request.output_schema)
    json_schema = {
        "name": OUTPUT_SCHEMA_NAME,
        "schema": schema,
        "strict": strict and is_strict(schema),
    }
    return {"type": "json_schema", "json_schema": json_schema}


def _tools(
    request: ModelRequest, options: ChatOptions, names: ToolNames, dialect: ChatDialect
) -> Body:
    strict = options.strict_json_schema if isinstance(options, OpenAIOptions) else None
    found = build_functions(request, names, strict=strict)
    choice: object = request.tool_choice
    if isinstance(choice, ForcedTool):
        name = names.to_wire(choice.name)
        if dialect.has_named_choice:
            choice = {"type": "function", "function": {"name": name}}
        else:
            # Requiring any of one tool has the same effect on every server.
            found = [function for function in found if function.name == name]
            choice = "required"
    if not found:
        return {}
    return {
        "tools": [{"type": "function", "function": function} for function in found],
        "tool_choice": choice,
        "parallel_tool_calls": parallel_tool_calls(options),
    }
