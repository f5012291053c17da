"""The rules by which the Responses API refuses a request, with its messages."""

import msgspec
from msgspec import Raw, Struct

from tests.support.providers.openai_schema import REASONING, OpenAiRefusal, check_name, check_schema


class Tool(Struct, forbid_unknown_fields=True):
    type: str
    name: str = ""
    description: str | None = None
    parameters: object = None
    strict: bool | None = True
    search_context_size: str | None = None
    filters: object = None
    display_width: int | None = None
    display_height: int | None = None
    environment: str | None = None


class Choice(Struct, forbid_unknown_fields=True):
    type: str
    name: str | None = None


class Reasoning(Struct, forbid_unknown_fields=True):
    effort: str | None = None
    summary: str | None = None


class Format(Struct):
    type: str
    name: str = ""
    schema: object = None
    strict: bool = False


class TextConfig(Struct, forbid_unknown_fields=True):
    format: Format | None = None
    verbosity: str | None = None


class Body(Struct, forbid_unknown_fields=True):
    model: str
    input: list[Raw]
    stream: bool = False
    store: bool = True
    include: list[str] = []
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str] | None = None
    parallel_tool_calls: bool | None = None
    prompt_cache_key: str | None = None
    reasoning: Reasoning | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    temperature: float | None = None
    text: TextConfig | None = None
    tool_choice: str | Choice = "auto"
    tools: list[Tool] = []
    top_logprobs: int | None = None
    top_p: float | None = None
    truncation: str | None = None
    user: str | None = None


class Check(Struct):
    id: str


class Item(Struct):
    type: str = "message"
    role: str | None = None
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    content: str | list[Raw] | None = None
    output: object = None
    encrypted_content: str | None = None
    pending_safety_checks: list[Check] = []
    acknowledged_safety_checks: list[Check] = []


# Prefixes of item ids.
PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "reasoning": "rs",
    "web_search_call": "ws",
    "computer_call": "cu",
}
ANSWERS = {"function_call_output": "function_call", "computer_call_output": "computer_call"}
CONTENT = {
    "user": {"input_text", "input_image", "input_file"},
    "assistant": {"output_text", "refusal"},
}


class Kind(Struct):
    type: str = ""


def check(data: bytes, needs: dict[str, str]) -> Body:
    """`needs`: the reasoning before each item, as far as this server has sent it."""
    try:
        body = msgspec.json.decode(data, type=Body)
        items = [msgspec.json.decode(raw, type=Item) for raw in body.input]
    except msgspec.ValidationError as error:
        raise OpenAiRefusal(
            f"Unknown parameter or invalid type: {error}", None, "unknown_parameter"
        ) from None
    if not body.stream:
        raise OpenAiRefusal("this server answers with a stream, which was not asked for")
    _check_params(body)
    _check_tools(body)
    for number, item in enumerate(items):
        _check_item(item, f"input[{number}]")
    _check_pairs(items)
    _check_reasoning(items, needs)
    return body


def _check_params(body: Body) -> None:
    reasons = REASONING.match(body.model) is not None
    for name in ("temperature", "top_p", "top_logprobs"):
        if reasons and getattr(body, name) is not None:
            raise OpenAiRefusal(
                f"Unsupported parameter: '{name}' is not supported with this model.", name
            )
    if not reasons and body.reasoning is not None:
        raise OpenAiRefusal(
            "Unsupported parameter: 'reasoning.effort' is not supported with this model.",
            "reasoning.effort",
            "unsupported_parameter",
        )
    if not reasons and "reasoning.encrypted_content" in body.include:
        raise OpenAiRefusal("Encrypted content is not supported with this model.", "include")
    if body.max_output_tokens is not None and body.max_output_tokens < 16:
        raise OpenAiRefusal(
            "Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16, but"
            f" got {body.max_output_tokens} instead.",
            "max_output_tokens",
            "integer_below_min_value",
        )
    if body.text and body.text.format and body.text.format.type == "json_schema":
        asked = body.text.format
        check_name(asked.name, "text.format.name")
        check_schema(asked.name, asked.schema, strict=asked.strict)


def _check_tools(body: Body) -> None:
    names: list[str] = []
    for number, tool in enumerate(body.tools):
        match tool.type:
            case "function":
                check_name(tool.name, f"tools[{number}].name")
                # The default is true.
                check_schema(tool.name, tool.parameters, strict=tool.strict is not False)
                names.append(tool.name)
            case "web_search" | "computer":
                pass
            case "computer_use_preview":
                if tool.display_width is None or tool.environment is None:
                    raise OpenAiRefusal(
                        "Missing required parameter: 'tools[0].display_width'.", "tools"
                    )
                if body.truncation != "auto":
                    raise OpenAiRefusal("computer_use_preview requires truncation to be 'auto'.")
            case _:
                raise OpenAiRefusal(f"Invalid value: '{tool.type}'.", f"tools[{number}].type")
    if len(set(names)) != len(names):
        raise OpenAiRefusal("Tool names must be unique.", "tools")
    choice = body.tool_choice
    if isinstance(choice, Choice) and choice.type == "function" and choice.name not in names:
        raise OpenAiRefusal(
            f"Tool choice '{choice.name}' not found in 'tools' parameter.", "tool_choice"
        )


def _check_item(item: Item, at: str) -> None:
    known = {*PREFIXES, *ANSWERS, "mcp_list_tools", "thing_of_the_future"}
    if item.type not in known:
        raise OpenAiRefusal(f"Invalid value: '{item.type}'.", f"{at}.type", "invalid_value")
    prefix = PREFIXES.get(item.type)
    if prefix and item.id is not None and not item.id.startswith(prefix):
        raise OpenAiRefusal(
            f"Invalid '{at}.id': '{item.id}'. Expected an ID that begins with '{prefix}'.",
            f"{at}.id",
            "invalid_value",
        )
    if item.type == "web_search_call" and item.id is None:
        raise OpenAiRefusal(f"Missing required parameter: '{at}.id'.", f"{at}.id")
    if item.call_id is not None and len(item.call_id) > 64:
        raise OpenAiRefusal(f"Invalid '{at}.call_id': string too long.", f"{at}.call_id")
    if item.type == "message":
        _check_message(item, at)


def _check_message(item: Item, at: str) -> None:
    if item.role not in ("user", "assistant", "system", "developer"):
        raise OpenAiRefusal(f"Invalid value: '{item.role}'.", f"{at}.role", "invalid_value")
    if not item.content:
        raise OpenAiRefusal(f"Missing required parameter: '{at}.content'.", f"{at}.content")
    if isinstance(item.content, str):
        return
    allowed = CONTENT["assistant" if item.role == "assistant" else "user"]
    for raw in item.content:
        kind = msgspec.json.decode(raw, type=Kind).type
        if kind not in allowed:
            raise OpenAiRefusal(
                f"Invalid value: '{kind}'. Supported values are: {sorted(allowed)}.",
                f"{at}.content",
                "invalid_value",
            )


def _check_pairs(items: list[Item]) -> None:
    open_calls: dict[str, Item] = {}
    ids: set[str] = set()
    for item in items:
        if item.id is not None and item.id in ids:
            raise OpenAiRefusal(f"Duplicate item found with id {item.id}.", "input")
        ids |= {item.id} if item.id else set()
        if item.type in ANSWERS:
            call = open_calls.pop(item.call_id or "", None)
            if call is None or call.type != ANSWERS[item.type]:
                what = ANSWERS[item.type].replace("_", " ")
                raise OpenAiRefusal(
                    f"No tool call found for {what} output with call_id {item.call_id}."
                )
            _check_acknowledged(call, item)
        elif item.type in ANSWERS.values():
            open_calls[item.call_id or ""] = item
    for call_id, call in open_calls.items():
        what = call.type.replace("_", " ")
        raise OpenAiRefusal(f"No tool output found for {what} {call_id}.", "input")


def _check_acknowledged(call: Item, output: Item) -> None:
    pending = {check.id for check in call.pending_safety_checks}
    if pending - {check.id for check in output.acknowledged_safety_checks}:
        raise OpenAiRefusal("Computer call has pending safety checks that were not acknowledged.")


def _check_reasoning(items: list[Item], needs: dict[str, str]) -> None:
    seen: set[str] = set()
    for number, item in enumerate(items):
        if item.type == "reasoning":
            if not item.encrypted_content and not item.content:
                raise OpenAiRefusal(
                    f"Item with id '{item.id}' not found. Items are not persisted when `store` is"
                    " set to false."
                )
            following = items[number + 1] if number + 1 < len(items) else None
            said_by_model = following is not None and (
                following.role == "assistant" or following.type not in ("message", *ANSWERS)
            )
            if not said_by_model:
                raise OpenAiRefusal(
                    f"Item '{item.id}' of type 'reasoning' was provided without its required"
                    " following item."
                )
            seen.add(item.id or "")
        needed = needs.get(item.id or "")
        if needed is not None and needed not in seen:
            raise OpenAiRefusal(
                f"Item '{item.id}' of type '{item.type}' was provided without its required"
                f" 'reasoning' item: '{needed}'."
            )
