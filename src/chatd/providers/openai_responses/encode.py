"""A request as the body of `POST /responses`.

Owns the parameters: which of them a model takes, and in which form. The
conversation itself is the business of `input`.
"""

from typing import Final

import msgspec
from msgspec import UNSET

from chatd.domain.model.protocol import ComputerTool, ForcedTool, ModelRequest
from chatd.providers.openai_models import family, fitted_effort, reasons
from chatd.providers.openai_responses.input import InputBuilder
from chatd.providers.openai_responses.tools import COMPUTER, WEB_SEARCH
from chatd.providers.openai_tools import SCHEMA_NAME, functions, is_strict, names_of
from chatd.providers.options_openai import OpenAIOptions
from chatd.providers.schema import ToolNames, normalised

MIN_OUTPUT_TOKENS: Final = 16
"""The API refuses to be asked for less."""

Body = dict[str, object]


def tool_names(request: ModelRequest, options: OpenAIOptions) -> ToolNames:
    """A function cannot have the name of one of the vendor's own tools."""
    reserved = [COMPUTER] if request.computer else []
    if options.web_search_enabled:
        reserved.append(WEB_SEARCH)
    return names_of(request, reserved)


def encode(request: ModelRequest, options: OpenAIOptions, names: ToolNames, origin: str) -> bytes:
    """`origin` is the provider's name: what it alone understands goes back to it alone."""
    thinks = _thinks(request, options)
    builder = InputBuilder(origin, names, "developer" if thinks else "system")
    for message in request.messages:
        builder.add(message)
    body: Body = {
        "model": request.model,
        "input": builder.items,
        "stream": True,
        "store": options.store is not False,
        "include": _include(options, thinks=thinks),
        "instructions": options.instructions,
        "max_output_tokens": _max_output_tokens(request, options),
        "max_tool_calls": options.max_tool_calls,
        "metadata": options.metadata,
        "prompt_cache_key": options.prompt_cache_key,
        "safety_identifier": options.safety_identifier,
        "service_tier": options.service_tier,
        "user": options.user,
        "text": _text(request, options) or None,
        **(_thinking(request, options) if thinks else _sampling(request, options)),
        **_tools(request, options, names),
    }
    return msgspec.json.encode({name: value for name, value in body.items() if value is not None})


def _thinks(request: ModelRequest, options: OpenAIOptions) -> bool:
    """A name that does not tell is taken at the administrator's word."""
    known = reasons(request.model)
    if known is not None:
        return known
    return request.reasoning_effort is not None or options.reasoning_effort is not None


def _thinking(request: ModelRequest, options: OpenAIOptions) -> Body:
    effort = request.reasoning_effort or options.reasoning_effort
    reasoning: Body = {}
    if effort is not None:
        reasoning["effort"] = fitted_effort(effort, request.model)
    if options.reasoning_summary is not None:
        reasoning["summary"] = options.reasoning_summary
    return {"reasoning": reasoning} if reasoning else {}


def _sampling(request: ModelRequest, options: OpenAIOptions) -> Body:
    return {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_logprobs": options.top_log_probs,
    }


def _include(options: OpenAIOptions, *, thinks: bool) -> list[str] | None:
    """Sealed reasoning always, for it is how reasoning survives a turn. A model that does not
    reason refuses to be asked for it."""
    wanted = list(options.include)
    if thinks:
        wanted.append("reasoning.encrypted_content")
    elif options.log_probs or options.top_log_probs is not None:
        wanted.append("message.output_text.logprobs")
    if options.web_search_enabled:
        wanted.append("web_search_call.action.sources")
    return list(dict.fromkeys(wanted)) or None


def _max_output_tokens(request: ModelRequest, options: OpenAIOptions) -> int | None:
    wanted = options.max_completion_tokens or request.max_output_tokens
    return None if wanted is None else max(MIN_OUTPUT_TOKENS, wanted)


def _text(request: ModelRequest, options: OpenAIOptions) -> Body:
    text: Body = {}
    if options.text_verbosity is not None:
        text["verbosity"] = options.text_verbosity
    if request.output_schema is not UNSET:
        schema = normalised(request.output_schema)
        strict = options.strict_json_schema and is_strict(schema)
        text["format"] = (
            {"type": "json_schema", "name": SCHEMA_NAME, "schema": schema, "strict": strict}
            if options.structured_outputs
            else {"type": "json_object"}
        )
    return text


def _tools(request: ModelRequest, options: OpenAIOptions, names: ToolNames) -> Body:
    tools: list[Body] = [
        {"type": "function", **msgspec.structs.asdict(function)}
        for function in functions(request, names, strict=options.strict_json_schema)
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
    return {"type": "function", "name": names.wire(choice.name)}


def _web_search(options: OpenAIOptions) -> Body:
    tool: Body = {"type": WEB_SEARCH}
    if options.search_context_size is not None:
        tool["search_context_size"] = options.search_context_size
    if options.allowed_domains:
        tool["filters"] = {"allowed_domains": options.allowed_domains}
    return tool


def _is_preview(model: str) -> bool:
    return family(model).startswith("computer-use-preview")


def _computer(tool: ComputerTool, model: str) -> Body:
    """Newer models look at the pictures for their size."""
    if not _is_preview(model):
        return {"type": "computer"}
    return {
        "type": "computer_use_preview",
        "display_width": tool.width_px,
        "display_height": tool.height_px,
        "environment": "linux",
    }
