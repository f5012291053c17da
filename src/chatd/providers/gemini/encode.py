"""From a request to the body that `streamGenerateContent` takes."""

from typing import Final

import msgspec
from msgspec import UNSET, Raw

from chatd.domain.model.protocol import Effort, ForcedTool, ModelRequest, ToolSpec
from chatd.providers.gemini.contents import Contents, encode_contents
from chatd.providers.gemini.models import Profile, profile
from chatd.providers.options_google import Category, GoogleOptions, SafetySetting, ThinkingConfig
from chatd.providers.schema import Schema, ToolNames, by_name, normalised

Object = dict[str, object]

_ENCODER: Final = msgspec.json.Encoder()
_CATEGORIES: Final[tuple[Category, ...]] = (
    "HARM_CATEGORY_HARASSMENT",
    "HARM_CATEGORY_HATE_SPEECH",
    "HARM_CATEGORY_SEXUALLY_EXPLICIT",
    "HARM_CATEGORY_DANGEROUS_CONTENT",
)


def tool_names(request: ModelRequest) -> ToolNames:
    return ToolNames((tool.name for tool in request.tools), letter_first=True)


def encode(request: ModelRequest, options: GoogleOptions, names: ToolNames) -> bytes:
    kind = profile(request.model)
    sent = encode_contents(request, kind, names)
    body: Object = {"contents": sent.contents}
    if options.cached_content is not None:
        # What the cache holds must not be sent again; the API refuses that.
        body["cachedContent"] = options.cached_content
    else:
        body.update(_instructions(sent))
        body.update(_tools(request, options, kind, names))
    if safety := _safety(options):
        body["safetySettings"] = safety
    if config := _generation(request, options, kind):
        body["generationConfig"] = config
    return _ENCODER.encode(body)


def _instructions(sent: Contents) -> Object:
    if not sent.system:
        return {}
    return {"systemInstruction": {"parts": [{"text": sent.system}]}}


# Tools


def _tools(
    request: ModelRequest, options: GoogleOptions, kind: Profile, names: ToolNames
) -> Object:
    tools: list[Object] = []
    config: Object = {}
    if request.tools:
        declared = [_declaration(tool, names) for tool in by_name(request.tools)]
        tools.append({"functionDeclarations": declared})
        if calling := _calling(request, names):
            config["functionCallingConfig"] = calling
    # Models before Gemini 3 refuse functions and a search in one request; functions matter more.
    if options.web_search_enabled and (kind.mixes_tools or not tools):
        if tools:
            config["includeServerSideToolInvocations"] = True
        tools.insert(0, {"googleSearch": {}})
    found: Object = {"tools": tools} if tools else {}
    if config:
        found["toolConfig"] = config
    return found


def _declaration(tool: ToolSpec, names: ToolNames) -> Object:
    declared: Object = {"name": names.wire(tool.name), "description": tool.description}
    schema = normalised(tool.input_schema)
    schema.pop("$schema", None)
    if _asks_for_something(schema):
        declared["parametersJsonSchema"] = schema
    return declared


def _asks_for_something(schema: Schema) -> bool:
    """A function without parameters must not have a schema of none."""
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
            return {"mode": "ANY", "allowedFunctionNames": [names.wire(name)]}


# Generation


def _generation(request: ModelRequest, options: GoogleOptions, kind: Profile) -> Object:
    config: Object = {
        "maxOutputTokens": request.max_output_tokens,
        "temperature": request.temperature,
        "topP": request.top_p,
        "topK": request.top_k,
        "presencePenalty": request.presence_penalty,
        "frequencyPenalty": request.frequency_penalty,
        "thinkingConfig": _thinking(request.reasoning_effort, options.thinking_config, kind),
    }
    if request.output_schema is not UNSET:
        config["responseMimeType"] = "application/json"
        config["responseJsonSchema"] = _answer_schema(request.output_schema)
    return {name: value for name, value in config.items() if value is not None}


def _answer_schema(schema: Raw) -> Schema:
    clean = normalised(schema)
    clean.pop("$schema", None)
    return clean


def _thinking(
    effort: Effort | None, configured: ThinkingConfig | None, kind: Profile
) -> Object | None:
    """What is configured in so many words wins over an effort. Only models that are known to
    think are asked to, unless somebody says so."""
    chosen = configured or ThinkingConfig()
    found: Object = {}
    if chosen.thinking_budget is not None:
        found["thinkingBudget"] = chosen.thinking_budget
    elif chosen.thinking_level is not None:
        level = kind.level(chosen.thinking_level) if kind.levels else chosen.thinking_level
        found["thinkingLevel"] = level.upper()
    elif effort is not None and kind.thinking == "level":
        found["thinkingLevel"] = kind.level(effort).upper()
    elif effort is not None and kind.thinking == "budget":
        found["thinkingBudget"] = kind.budget(effort)
    if chosen.include_thoughts is not None:
        found["includeThoughts"] = chosen.include_thoughts
    elif kind.thinking != "none" and found.get("thinkingBudget") != 0:
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
