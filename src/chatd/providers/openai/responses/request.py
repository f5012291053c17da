"""Encode a request as the body of `POST /responses`.

Owns the parameters: which a model takes, and in which form.
"""

from typing import Final

import msgspec
from msgspec import UNSET

from chatd.domain.model.protocol import ComputerTool, ForcedTool, ModelRequest
from chatd.providers.openai.model_table import fit_effort, model_family, supports_reasoning
from chatd.providers.openai.models import OpenAIOptions, known_model
from chatd.providers.openai.responses.input import InputBuilder
from chatd.providers.openai.responses.tools import COMPUTER, WEB_SEARCH
from chatd.providers.openai.tools import (
    OUTPUT_SCHEMA_NAME,
    build_functions,
    build_tool_names,
    is_strict,
)
from chatd.providers.options import add_extra_fields
from chatd.providers.request_body import encode_list
from chatd.providers.tool_schema import ToolNames, normalize_schema

MIN_OUTPUT_TOKENS: Final = 16
"""The API rejects a smaller output limit."""

Body = dict[str, object]


def responses_tool_names(request: ModelRequest, options: OpenAIOptions) -> ToolNames:
    """A function cannot have the name of a provider-executed tool."""
    reserved = [COMPUTER] if request.computer else []
    if options.web_search_enabled:
        reserved.append(WEB_SEARCH)
    return build_tool_names(request, reserved)


def encode_request(
    request: ModelRequest, options: OpenAIOptions, names: ToolNames, origin: str
) -> bytes:
    """`origin` identifies the account: metadata is sent back only to the account that made it."""
    is_reasoning = _is_reasoning(request, options)
    builder = InputBuilder(origin, names, "developer" if is_reasoning else "system")
    for message in request.messages:
        builder.add(message)
    body: Body = {
        "model": request.model,
        "input": encode_list(builder.items),
        "stream": True,
        "store": options.store is True,
        "include": _include(options, is_reasoning=is_reasoning),
        "instructions": options.instructions,
        "max_output_tokens": _max_output_tokens(request, options),
        "max_tool_calls": options.max_tool_calls,
        "metadata": options.metadata,
        "prompt_cache_key": options.prompt_cache_key or request.cache_key,
        "safety_identifier": options.safety_identifier,
        "service_tier": options.service_tier,
        "user": options.user,
        "text": _text(request, options) or None,
        **(_reasoning(request, options) if is_reasoning else _sampling(request, options)),
        **_tools(request, options, names),
    }
    sent = {name: value for name, value in body.items() if value is not None}
    required = {"model", "input", "stream", "include", "tools"}
    if request.tool_choice != "auto":
        required.add("tool_choice")
    return msgspec.json.encode(add_extra_fields(sent, options.extra_body, required))


def _is_reasoning(request: ModelRequest, options: OpenAIOptions) -> bool:
    """With an unknown name, a configured or requested effort decides."""
    known = supports_reasoning(known_model(request.model, options))
    if known is not None:
        return known
    return request.reasoning_effort is not None or options.reasoning_effort is not None


def _reasoning(request: ModelRequest, options: OpenAIOptions) -> Body:
    effort = request.reasoning_effort or options.reasoning_effort
    reasoning: Body = {}
    if effort is not None:
        reasoning["effort"] = fit_effort(effort, known_model(request.model, options))
    if options.reasoning_summary is not None:
        reasoning["summary"] = options.reasoning_summary
    return {"reasoning": reasoning} if reasoning else {}


def _sampling(request: ModelRequest, options: OpenAIOptions) -> Body:
    return {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_logprobs": options.top_log_probs,
    }


def _include(options: OpenAIOptions, *, is_reasoning: bool) -> list[str] | None:
    """Always encrypted reasoning, because reasoning is lost between turns without it. A model that
    does not reason rejects the field."""
    fields = list(options.include)
    if is_reasoning:
        fields.append("reasoning.encrypted_content")
    elif options.log_probs or options.top_log_probs is not None:
        fields.append("message.output_text.logprobs")
    if options.web_search_enabled:
        fields.append("web_search_call.action.sources")
    return list(dict.fromkeys(fields)) or None


def _max_output_tokens(request: ModelRequest, options: OpenAIOptions) -> int | None:
    limit = options.max_completion_tokens or request.max_output_tokens
    return None if limit is None else max(MIN_OUTPUT_TOKENS, limit)


def _text(request: ModelRequest, options: OpenAIOptions) -> Body:
    text: Body = {}
    if options.text_verbosity is not None:
        text["verbosity"] = options.text_verbosity
    if request.output_schema is not UNSET:
        schema = normalize_schema(request.output_schema)
        strict = options.strict_json_schema and is_strict(schema)
        text["format"] = (
            {"type": "json_schema", "name": OUTPUT_SCHEMA_NAME, "schema": schema, "strict": strict}
            if options.structured_outputs
            else {"type": "json_object"}
        )
    return text


def _tools(request: ModelRequest, options: OpenAIOptions, names: ToolNames) -> Body:
    tools: list[Body] = [
        {"type": "function", **msgspec.structs.asdict(function)}
        for function in build_functions(request, names, strict=options.strict_json_schema)
    ]
    if options.web_search_enabled:
        tools.append(_web_search(options))
    found: Body = {}
    if request.computer is not None:
        tools.append(_computer(request.computer, request.model))
        if _is_preview(request.model):
            found["truncation"] = "auto"
    if not tools:
        return found
    found["tools"] = tools
    found["tool_choice"] = _tool_choice(request, names)
    found["parallel_tool_calls"] = options.parallel_tool_calls
    return found


def _tool_choice(request: ModelRequest, names: ToolNames) -> object:
    choice = request.tool_choice
    if not isinstance(choice, ForcedTool):
        return choice
    if request.computer is not None and choice.name == COMPUTER:
        return {"type": _computer(request.computer, request.model)["type"]}
    return {"type": "function", "name": names.to_wire(choice.name)}


def _web_search(options: OpenAIOptions) -> Body:
    tool: Body = {"type": WEB_SEARCH}
    if options.search_context_size is not None:
        tool["search_context_size"] = options.search_context_size
    if options.allowed_domains:
        tool["filters"] = {"allowed_domains": options.allowed_domains}
    return tool


def _is_preview(model: str) -> bool:
    return model_family(model).startswith("computer-use-preview")


def _computer(tool: ComputerTool, model: str) -> Body:
    """Newer models take the size from the screenshots."""
    if not _is_preview(model):
        return {"type": "computer"}
    return {
        "type": "computer_use_preview",
        "display_width": tool.width_px,
        "display_height": tool.height_px,
        "environment": "linux",
    }
