"""Encodes a request as the body of `streamGenerateContent`.

The history becomes contents: turns of user and model, with each call answered in the next turn.
Parts of the model's answers are sent back unchanged with their signatures while the chat keeps its
model. Reasoning of other models is left out.
"""

from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from chatd.domain.chat.parts import validate_json
from chatd.domain.model.protocol import (
    Effort,
    ForcedTool,
    ModelRequest,
    PromptCall,
    PromptFile,
    PromptMessage,
    PromptPart,
    PromptReasoning,
    PromptResult,
    PromptText,
    ToolSpec,
)
from chatd.providers.file_inputs import (
    GEMINI_FILES,
    DocumentInput,
    ImageInput,
    MediaInput,
    NoteInput,
    TextFileInput,
    base64_json,
    file_text,
    fit_file,
)
from chatd.providers.gemini.gemini_models import (
    Category,
    GeminiProfile,
    GeminiThinkingOptions,
    GoogleOptions,
    SafetySetting,
    gemini_profile,
)
from chatd.providers.gemini.gemini_wire import GeminiMetadata, unpack_metadata
from chatd.providers.http import encode_list
from chatd.providers.tool_schema import Schema, ToolNames, normalize_schema, sort_by_name

# Contents

Object = dict[str, object]

# Google's documented signature for calls that another model has made.
SKIP_SIGNATURE: Final = "skip_thought_signature_validator"

_RESULT_MEDIA: Final = frozenset({"image/png", "image/jpeg", "image/webp", "application/pdf"})


class GeminiContents(Struct, frozen=True, kw_only=True):
    system: str
    contents: list[Object]


def encode_contents(
    request: ModelRequest, profile: GeminiProfile, names: ToolNames
) -> GeminiContents:
    leading = 0
    while leading < len(request.messages) and request.messages[leading].role == "system":
        leading += 1
    texts = [_plain_text(message) for message in request.messages[:leading]]
    writer = _Writer(request.model, profile, names)
    for message in request.messages[leading:]:
        writer.add(message)
    return GeminiContents(
        system="\n\n".join(text for text in texts if text), contents=writer.finished()
    )


class _Writer:
    """Collects the tool results of a turn and sends them in the order of its calls."""

    def __init__(self, model: str, profile: GeminiProfile, names: ToolNames) -> None:
        self._model = model
        self._profile = profile
        self._names = names
        self._contents: list[Object] = []
        self._calls: dict[str, tuple[int, GeminiMetadata | None]] = {}
        self._results: list[tuple[int, Object]] = []
        self._media_parts: list[Object] = []

    def add(self, message: PromptMessage) -> None:
        match message.role:
            case "tool":
                for part in message.parts:
                    if isinstance(part, PromptResult) and not part.provider_executed:
                        self._result(part)
            case "assistant":
                self._flush()
                self._calls.clear()
                parts = self._model_parts(message)
                if parts:
                    self._append("model", parts)
            case "user" | "system":
                self._flush()
                parts = [encoded for part in message.parts for encoded in _user_part(part)]
                if parts:
                    self._contents.append({"role": "user", "parts": parts})

    def finished(self) -> list[Object]:
        self._flush()
        return self._contents

    def _append(self, role: str, parts: list[Object]) -> None:
        """Merges two turns of the model: the API requires a call to follow a turn of the user."""
        last = self._contents[-1] if self._contents else None
        if last is not None and last["role"] == role:
            before = last["parts"]
            assert isinstance(before, list)
            last["parts"] = [*before, *parts]
        else:
            self._contents.append({"role": role, "parts": parts})

    def _flush(self) -> None:
        if self._results:
            ordered = [part for _, part in sorted(self._results, key=lambda pair: pair[0])]
            self._contents.append({"role": "user", "parts": ordered})
        if self._media_parts:
            self._contents.append({"role": "user", "parts": self._media_parts})
        self._results, self._media_parts = [], []

    # The model's turn

    def _model_parts(self, message: PromptMessage) -> list[Object]:
        parts: list[Object] = []
        answered = {part.id for part in message.parts if isinstance(part, PromptResult)}
        for part in message.parts:
            match part:
                case PromptText():
                    parts += _signed(part.text, self._own_metadata(part.provider_metadata))
                case PromptReasoning():
                    # Unsigned reasoning is a summary for users; only signed reasoning is sent.
                    metadata = self._own_metadata(part.provider_metadata)
                    if metadata is not None and metadata.spans:
                        parts += [
                            {**piece, "thought": True} for piece in _signed(part.text, metadata)
                        ]
                case PromptCall() if part.provider_executed:
                    if part.id in answered:
                        parts += self._server_part(part.provider_metadata)
                case PromptCall():
                    parts.append(self._call(part))
                case PromptResult():
                    parts += self._server_part(part.provider_metadata)
                case PromptFile():
                    pass
        if self._profile.strict_signatures:
            _sign_first_call(parts)
        return parts

    def _own_metadata(self, raw: Raw | UnsetType) -> GeminiMetadata | None:
        metadata = unpack_metadata(raw)
        return metadata if metadata is not None and metadata.model == self._model else None

    def _call(self, call: PromptCall) -> Object:
        metadata = self._own_metadata(call.provider_metadata)
        self._calls[call.id] = (len(self._calls), metadata)
        function: Object = {"name": self._names.to_wire(call.name), "args": call.input}
        if metadata is not None and metadata.call_id is not None:
            function["id"] = metadata.call_id
        part: Object = {"functionCall": function}
        if metadata is not None and metadata.signature is not None:
            part["thoughtSignature"] = metadata.signature
        return part

    def _server_part(self, raw: Raw | UnsetType) -> list[Object]:
        metadata = self._own_metadata(raw)
        if metadata is None or (metadata.tool_call is UNSET and metadata.tool_response is UNSET):
            return []
        part: Object = {}
        if metadata.tool_call is not UNSET:
            part["toolCall"] = metadata.tool_call
        if metadata.tool_response is not UNSET:
            part["toolResponse"] = metadata.tool_response
        if metadata.signature is not None:
            part["thoughtSignature"] = metadata.signature
        return [part]

    # Results

    def _result(self, result: PromptResult) -> None:
        order, metadata = self._calls.get(result.id, (len(self._calls), None))
        response: Object = {
            "name": self._names.to_wire(result.name),
            "response": _response(result),
        }
        if metadata is not None and metadata.call_id is not None:
            response["id"] = metadata.call_id
        if result.media is not None:
            self._media(result.media, response)
        self._results.append((order, {"functionResponse": response}))

    def _media(self, media: PromptFile, response: Object) -> None:
        [part] = _user_part(media)
        inline = part.get("inlineData")
        if (
            self._profile.media_results
            and isinstance(inline, dict)
            and media.media_type in _RESULT_MEDIA
        ):
            response["parts"] = [part]
        else:
            self._media_parts.append(part)


def _response(result: PromptResult) -> Object | Raw:
    """A JSON object is sent unchanged; an error or other text in the API's field for it."""
    if result.is_error:
        return {"error": result.text}
    if result.text.lstrip().startswith("{"):
        try:
            return validate_json(result.text)
        except ValueError:
            pass
    return {"output": result.text}


def _sign_first_call(parts: list[Object]) -> None:
    first = next((part for part in parts if "functionCall" in part), None)
    if first is not None:
        first.setdefault("thoughtSignature", SKIP_SIGNATURE)


def _signed(text: str, metadata: GeminiMetadata | None) -> list[Object]:
    """Split the text into the parts in which it was signed."""
    parts: list[Object] = []
    at = 0
    for span in metadata.spans if metadata is not None else ():
        if span.start > at:
            parts.append({"text": text[at : span.start]})
        parts.append({"text": text[span.start : span.end], "thoughtSignature": span.signature})
        at = span.end
    if rest := text[at:]:
        parts.append({"text": rest})
    return parts


def _user_part(part: PromptPart) -> list[Object]:
    match part:
        case PromptText():
            return [{"text": part.text}] if part.text else []
        case PromptFile():
            return [_file(part)]
        case _:
            return []


def _file(file: PromptFile) -> Object:
    match fit_file(file, GEMINI_FILES):
        case ImageInput() | DocumentInput() | MediaInput() as media:
            data = base64_json(media.data)
            return {"inlineData": {"mimeType": media.media_type, "data": data}}
        case TextFileInput() as text:
            return {"text": file_text(text)}
        case NoteInput() as note:
            return {"text": note.text}


def _plain_text(message: PromptMessage) -> str:
    return "\n\n".join(part.text for part in message.parts if isinstance(part, PromptText))


# The body

_ENCODER: Final = msgspec.json.Encoder()
_CATEGORIES: Final[tuple[Category, ...]] = (
    "HARM_CATEGORY_HARASSMENT",
    "HARM_CATEGORY_HATE_SPEECH",
    "HARM_CATEGORY_SEXUALLY_EXPLICIT",
    "HARM_CATEGORY_DANGEROUS_CONTENT",
)


def gemini_tool_names(request: ModelRequest) -> ToolNames:
    return ToolNames.of(tuple(tool.name for tool in request.tools), starts_with_letter=True)


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
