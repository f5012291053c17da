"""Encode a request as the body of `streamGenerateContent`."""

from typing import Final

import msgspec
from msgspec import UNSET, Raw

from chatd.domain.model.protocol import Effort, ForcedTool, ModelRequest, ToolSpec
from chatd.providers.gemini.contents import GeminiContents, encode_contents
from chatd.providers.gemini.models import (
    Category,
    GeminiProfile,
    GeminiThinkingOptions,
    GoogleOptions,
    SafetySetting,
    gemini_profile,
)
from chatd.providers.request_body import encode_list
from chatd.providers.tool_schema import Schema, ToolNames, normalize_schema, sort_by_name

Object = dict[str, object]

_ENCODER: Final = msgspec.json.Encoder()
_CATEGORIES: Final[tuple[Category, ...]] = (
    "HARM_CATEGORY_HARASSMENT",
    "HARM_CATEGORY_HATE_SPEECH",
    "HARM_CATEGORY_SEXUALLY_EXPLICIT",
    "HARM_CATEGORY_DANGEROUS_CONTENT",
)


def gemini_tool_names(request: ModelRequest) -> ToolNames:
    return ToolNames((tool.name for tool in request.tools), starts_with_letter=True)


def encode_request(request: ModelRequest, options: GoogleOptions, names: ToolNames) -> bytes:
    profile = gemini_profile(request.model)
    sent = encode_contents(request, profile, names)
    body: Object = {"contents": encode_list(sent.contents, _ENCODER)}
    if options.cached_content is not None:
        # The API rejects instructions and tools that the cached content already has.
        body["cachedContent"] = options.cached_content
    else:
        body.update(_instructions(sent))
        body.update(_tools(request, options, profile, names))
    if safety := _safety(options):
        body["safetySettings"] = safety
    if config := _generation(request, options, profile):
        body["generationConfig"] = config
    return _ENCODER.encode(body)


def _instructions(sent: GeminiContents) -> Object:
    if not sent.system:
        return {}
    return {"systemInstruction": {"parts": [{"text": sent.system}]}}


# Tools


def _tools(
    request: ModelRequest, options: GoogleOptions, profile: GeminiProfile, names: ToolNames
) -> Object:
    tools: list[Object] = []
    config: Object = {}
    if request.tools:
        declared = [_declaration(tool, names) for tool in sort_by_name(request.tools)]
        tools.append({"functionDeclarations": declared})
        if calling := _calling(request, names):
            config["functionCallingConfig"] = calling
    # Models before Gemini 3 reject functions and search in one request; keep the functions.
    if options.web_search_enabled and (profile.mixes_tools or not tools):
        if tools:
            config["includeServerSideToolInvocations"] = True
        tools.insert(0, {"googleSearch": {}})
    found: Object = {"tools": tools} if tools else {}
    if config:
        found["toolConfig"] = config
    return found


def _declaration(tool: ToolSpec, names: ToolNames) -> Object:
    declared: Object = {"name": names.to_wire(tool.name), "description": tool.description}
    schema = normalize_schema(tool.input_schema)
    schema.pop("$schema", None)
    if _has_parameters(schema):
        declared["parametersJsonSchema"] = schema
    return declared


def _has_parameters(schema: Schema) -> bool:
    """The API rejects an empty schema, so a function without parameters has no schema."""
    return bool(schema["properties"]) or bool(schema.keys() - {"type", "properties", "title"})


def _calling(request: ModelRequest, names: ToolNames) -> Object | None:
    match request.tool_choice:
        case "auto":
            return None
        case "none":
            return {"mode": "NONE"}
        case "required":
            return {"mode": "ANY"}
        case ForcedTool(name=name):
            return {"mode": "ANY", "allowedFunctionNames": [names.to_wire(name)]}


# Generation


def _generation(request: ModelRequest, options: GoogleOptions, profile: GeminiProfile) -> Object:
    config: Object = {
        "maxOutputTokens": request.max_output_tokens,
        "temperature": request.temperature,
        "topP": request.top_p,
        "topK": request.top_k,
        "presencePenalty": request.presence_penalty,
        "frequencyPenalty": request.frequency_penalty,
        "thinkingConfig": _thinking(request.reasoning_effort, options.thinking_config, profile),
    }
    if request.output_schema is not UNSET:
        config["responseMimeType"] = "application/json"
        config["responseJsonSchema"] = _answer_schema(request.output_schema)
    return {name: value for name, value in config.items() if value is not None}


def _answer_schema(schema: Raw) -> Schema:
    clean = normalize_schema(schema)
    clean.pop("$schema", None)
    return clean


def _thinking(
    effort: Effort | None, configured: GeminiThinkingOptions | None, profile: GeminiProfile
) -> Object | None:
    """A configured budget or level wins over an effort. An effort applies only to models that are
    known to think."""
    options = configured or GeminiThinkingOptions()
    found: Object = {}
    if options.thinking_budget is not None:
        found["thinkingBudget"] = options.thinking_budget
    elif options.thinking_level is not None:
        level = (
            profile.fit_level(options.thinking_level) if profile.levels else options.thinking_level
        )
        found["thinkingLevel"] = level.upper()
    elif effort is not None and profile.thinking == "level":
        found["thinkingLevel"] = profile.fit_level(effort).upper()
    elif effort is not None and profile.thinking == "budget":
        found["thinkingBudget"] = profile.fit_budget(effort)
    if options.include_thoughts is not None:
        found["includeThoughts"] = options.include_thoughts
    elif profile.thinking != "none" and found.get("thinkingBudget") != 0:
        found["includeThoughts"] = True
    return found or None


def _safety(options: GoogleOptions) -> list[SafetySetting]:
    settings = list(options.safety_settings)
    if options.threshold is not None:
        named = {setting.category for setting in settings}
        settings += [
            SafetySetting(category=category, threshold=options.threshold)
            for category in _CATEGORIES
            if category not in named
        ]
    return settings
