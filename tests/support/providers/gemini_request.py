"""What the Gemini API accepts, and the messages of its refusals.

It refuses unknown fields, as the real API does.
"""

import base64
import binascii
import re
from collections.abc import Iterator

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,127}")
_INLINE = re.compile(
    r"image/(png|jpeg|webp|heic|heif)|application/pdf|(audio|video)/[a-z0-9.+-]+|text/[a-z0-9.+-]+"
)

Object = dict[str, object]


class GeminiRefusal(Exception):
    pass


class _Strict(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    pass


class Blob(_Strict, frozen=True, kw_only=True):
    mime_type: str
    data: str


class ResponsePart(_Strict, frozen=True, kw_only=True):
    inline_data: Blob


class FunctionCall(_Strict, frozen=True, kw_only=True):
    name: str
    args: Object
    id: str | None = None


class FunctionResponse(_Strict, frozen=True, kw_only=True):
    name: str
    response: Object
    id: str | None = None
    parts: tuple[ResponsePart, ...] = ()


class Part(_Strict, frozen=True, kw_only=True):
    text: str | UnsetType = UNSET
    inline_data: Blob | UnsetType = UNSET
    function_call: FunctionCall | UnsetType = UNSET
    function_response: FunctionResponse | UnsetType = UNSET
    tool_call: Raw | UnsetType = UNSET
    tool_response: Raw | UnsetType = UNSET
    thought: bool = False
    thought_signature: str | None = None

    @property
    def kinds(self) -> int:
        data = (
            self.text,
            self.inline_data,
            self.function_call,
            self.function_response,
            self.tool_call,
            self.tool_response,
        )
        return sum(value is not UNSET for value in data)


class Content(_Strict, frozen=True, kw_only=True):
    role: str
    parts: tuple[Part, ...]

    @property
    def calls(self) -> list[FunctionCall]:
        return [p.function_call for p in self.parts if p.function_call is not UNSET]

    @property
    def responses(self) -> list[FunctionResponse]:
        return [p.function_response for p in self.parts if p.function_response is not UNSET]


class SystemInstruction(_Strict, frozen=True, kw_only=True):
    parts: tuple[Part, ...]


class Declaration(_Strict, frozen=True, kw_only=True):
    name: str
    description: str
    parameters_json_schema: Object | None = None


class Tool(_Strict, frozen=True, kw_only=True):
    function_declarations: tuple[Declaration, ...] | None = None
    google_search: Object | None = None


class Calling(_Strict, frozen=True, kw_only=True):
    mode: str
    allowed_function_names: tuple[str, ...] = ()


class ToolConfig(_Strict, frozen=True, kw_only=True):
    function_calling_config: Calling | None = None
    include_server_side_tool_invocations: bool = False


class Thinking(_Strict, frozen=True, kw_only=True):
    thinking_budget: int | None = None
    thinking_level: str | None = None
    include_thoughts: bool = False


class GenerationConfig(_Strict, frozen=True, kw_only=True):
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    thinking_config: Thinking | None = None
    response_mime_type: str = "text/plain"
    response_json_schema: Object | None = None


class Safety(_Strict, frozen=True, kw_only=True):
    category: str
    threshold: str


class Request(_Strict, frozen=True, kw_only=True):
    contents: tuple[Content, ...] = ()
    system_instruction: SystemInstruction | None = None
    tools: tuple[Tool, ...] = ()
    tool_config: ToolConfig | None = None
    safety_settings: tuple[Safety, ...] = ()
    generation_config: GenerationConfig = GenerationConfig()
    cached_content: str | None = None

    @property
    def declared(self) -> list[Declaration]:
        return [d for tool in self.tools for d in tool.function_declarations or ()]


_DECODER = msgspec.json.Decoder(Request)


def check(model: str, body: bytes) -> Request:
    """The request, or `GeminiRefusal` with the API's message."""
    try:
        request = _DECODER.decode(body)
    except msgspec.DecodeError as error:
        raise GeminiRefusal(f"Invalid JSON payload received. {error}") from error
    generation = _generation(model)
    _check_contents(request)
    _check_turns(request)
    _check_tools(request, generation)
    _check_thinking(request.generation_config.thinking_config, model, generation)
    _check_rest(request)
    if generation >= (3, 0):
        _check_signatures(request)
    return request


def _generation(model: str) -> tuple[int, int]:
    match = re.match(r"gemini-(\d+)(?:\.(\d+))?", model)
    return (int(match[1]), int(match[2] or 0)) if match else (0, 0)


def _check_contents(request: Request) -> None:
    if not request.contents:
        raise GeminiRefusal("* GenerateContentRequest.contents: contents is not specified\n")
    for at, content in enumerate(request.contents):
        if content.role not in ("user", "model"):
            raise GeminiRefusal("Please use a valid role: user, model.")
        if not content.parts:
            raise GeminiRefusal(
                f"* GenerateContentRequest.contents[{at}].parts: parts must not be empty.\n"
            )
        for part in content.parts:
            _check_part(part)


def _check_part(part: Part) -> None:
    if part.kinds != 1:
        raise GeminiRefusal("required oneof field 'data' must have one initialized field")
    if part.inline_data is not UNSET:
        _check_blob(part.inline_data)
    if part.thought_signature is not None:
        _check_base64(part.thought_signature, "Invalid thought signature.")
    if part.function_response is not UNSET:
        for media in part.function_response.parts:
            _check_blob(media.inline_data)


def _check_blob(blob: Blob) -> None:
    if not _INLINE.fullmatch(blob.mime_type):
        raise GeminiRefusal(f"Unsupported MIME type: {blob.mime_type}")
    _check_base64(blob.data, "Base64 decoding failed")


def _check_base64(text: str, refusal: str) -> None:
    try:
        base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)
    except binascii.Error as error:
        raise GeminiRefusal(refusal) from error


def _check_turns(request: Request) -> None:
    calls: list[FunctionCall] = []
    before = ""
    for content in request.contents:
        if content.responses:
            _check_answers(calls, content)
            calls = []
        elif calls:
            raise GeminiRefusal(
                "Please ensure that the number of function response parts is equal to the number"
                " of function call parts of the function call turn."
            )
        if content.calls:
            if content.role != "model" or before != "user":
                raise GeminiRefusal(
                    "Please ensure that function call turn comes immediately after a user turn or"
                    " after a function response turn."
                )
            calls = content.calls
        before = content.role
    if calls:
        raise GeminiRefusal(
            "Please ensure that the number of function response parts is equal to the number"
            " of function call parts of the function call turn."
        )


def _check_answers(calls: list[FunctionCall], content: Content) -> None:
    responses = content.responses
    if content.role != "user" or not calls:
        raise GeminiRefusal(
            "Please ensure that function response turn comes immediately after a function call"
            " turn."
        )
    names = [(call.name, call.id) for call in calls]
    if names != [(response.name, response.id) for response in responses]:
        raise GeminiRefusal(
            "Please ensure that the number of function response parts is equal to the number"
            " of function call parts of the function call turn."
        )


def _check_tools(request: Request, generation: tuple[int, int]) -> None:
    seen: set[str] = set()
    for tool in request.declared:
        if not _NAME.fullmatch(tool.name):
            raise GeminiRefusal(
                f"Invalid function name: {tool.name}. Must start with a letter or an underscore."
            )
        if tool.name in seen:
            raise GeminiRefusal(f"Duplicate function declaration found: {tool.name}")
        seen.add(tool.name)
        schema = tool.parameters_json_schema
        if schema is not None and schema.get("type") != "object":
            raise GeminiRefusal("functionDeclaration parameters schema should be of type OBJECT")
    searches = any(tool.google_search is not None for tool in request.tools)
    config = request.tool_config or ToolConfig()
    if searches and seen:
        if generation < (3, 0):
            raise GeminiRefusal("Tool use with function calling is unsupported")
        if not config.include_server_side_tool_invocations:
            raise GeminiRefusal(
                "Please enable tool_config.include_server_side_tool_invocations to use Built-in"
                " tools with Function calling."
            )
    calling = config.function_calling_config
    if calling is not None and set(calling.allowed_function_names) - seen:
        raise GeminiRefusal("allowed_function_names has names that are not declared")


def _check_thinking(thinking: Thinking | None, model: str, generation: tuple[int, int]) -> None:
    if thinking is None:
        return
    if generation < (2, 5):
        raise GeminiRefusal("Thinking is not enabled for this model")
    if thinking.thinking_budget is not None and thinking.thinking_level is not None:
        raise GeminiRefusal("You can only set only one of thinking budget and thinking level.")
    if thinking.thinking_level is not None:
        if generation < (3, 0):
            raise GeminiRefusal("Thinking level is not supported for this model.")
        if thinking.thinking_level not in ("MINIMAL", "LOW", "MEDIUM", "HIGH"):
            raise GeminiRefusal(
                "Invalid value at 'generation_config.thinking_config.thinking_level'"
            )
        if thinking.thinking_level in ("MINIMAL", "MEDIUM") and model.startswith("gemini-3-pro"):
            raise GeminiRefusal(
                f"Thinking level {thinking.thinking_level} is not supported for this model."
            )
    if thinking.thinking_budget == 0 and "pro" in model:
        raise GeminiRefusal("Budget 0 is invalid. This model only works in thinking mode.")
    if (thinking.thinking_budget or 0) > 32_768:
        raise GeminiRefusal("The thinking budget is out of range")


def _check_rest(request: Request) -> None:
    if request.cached_content is not None and (
        request.tools or request.tool_config or request.system_instruction
    ):
        raise GeminiRefusal(
            "CachedContent can not be used with GenerateContent request setting"
            " system_instruction, tools or tool_config."
        )
    config = request.generation_config
    if config.response_json_schema is not None and config.response_mime_type != "application/json":
        raise GeminiRefusal("response_json_schema needs response_mime_type application/json")


def _check_signatures(request: Request) -> None:
    """Only in the current turn: after the last user message."""
    for at, content in _current_turn(request):
        first = next((p for p in content.parts if p.function_call is not UNSET), None)
        if first is None or first.thought_signature or first.function_call is UNSET:
            continue
        raise GeminiRefusal(
            f"Function call `{first.function_call.name}` in the {at}. content block is missing a"
            " `thought_signature`."
        )


def _current_turn(request: Request) -> Iterator[tuple[int, Content]]:
    start = 0
    for at, content in enumerate(request.contents):
        if content.role == "user" and any(p.text is not UNSET for p in content.parts):
            start = at
    yield from list(enumerate(request.contents))[start:]
