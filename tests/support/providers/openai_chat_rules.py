"""The rules by which Chat Completions refuses a request: OpenAI's, and those of stricter
servers."""

import msgspec
from msgspec import Raw, Struct

from tests.support.providers.openai_schema import REASONING, OpenAiRefusal, check_name, check_schema


class FunctionCall(Struct, forbid_unknown_fields=True):
    name: str
    arguments: str


class Call(Struct, forbid_unknown_fields=True):
    id: str
    type: str
    function: FunctionCall
    extra_content: Raw = Raw(b"null")


class Part(Struct):
    type: str


class Message(Struct, forbid_unknown_fields=True):
    role: str
    content: str | list[Part] | None = None
    tool_calls: list[Call] = []
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: list[Raw] = []
    prefix: bool = False


class Function(Struct, forbid_unknown_fields=True):
    name: str
    description: str = ""
    parameters: object = None
    strict: bool = False


class Tool(Struct, forbid_unknown_fields=True):
    type: str
    function: Function


class Named(Struct):
    name: str


class Choice(Struct, forbid_unknown_fields=True):
    type: str
    function: Named


class StreamOptions(Struct, forbid_unknown_fields=True):
    include_usage: bool = False


class Body(Struct):
    """The fields that every server knows. `messages` are checked; `rest` holds all others."""

    model: str
    messages: list[Message]
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    tools: list[Tool] | None = None
    tool_choice: str | Choice | None = None
    parallel_tool_calls: bool | None = None
    response_format: object = None
    reasoning_effort: str | None = None


# Arguments of OpenAI itself; any other is refused.
KNOWN = {
    *("logit_bias", "logprobs", "top_logprobs", "verbosity", "store", "prompt_cache_key"),
    *("service_tier", "safety_identifier", "metadata", "user", "prediction", "web_search_options"),
    *(name for name in Body.__struct_fields__ if name != "top_k"),
}


def check(data: bytes, *, openai: bool) -> Body:
    """`openai`: OpenAI itself, which refuses unknown arguments. Otherwise a server with a model
    template that is strict about roles."""
    try:
        body = msgspec.json.decode(data, type=Body)
        fields = msgspec.json.decode(data, type=dict[str, object])
    except msgspec.ValidationError as error:
        raise OpenAiRefusal(f"Invalid type: {error}", None, "invalid_type") from None
    if not body.stream:
        raise OpenAiRefusal("this server answers with a stream, which was not asked for")
    if openai:
        for name in fields:
            if name not in KNOWN:
                raise OpenAiRefusal(f"Unrecognized request argument supplied: {name}")
        _check_vendor(body)
        if any(message.prefix for message in body.messages):
            raise OpenAiRefusal("Additional properties are not allowed ('prefix' was unexpected)")
    else:
        _check_template(body.messages)
        _check_continuation(body.messages, fields)
    _check_tools(body)
    _check_messages(body.messages)
    return body


def _check_vendor(body: Body) -> None:
    if not REASONING.match(body.model):
        if body.reasoning_effort is not None:
            raise OpenAiRefusal("Unrecognized request argument supplied: reasoning_effort")
        return
    if body.max_tokens is not None:
        raise OpenAiRefusal(
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use"
            " 'max_completion_tokens' instead.",
            "max_tokens",
            "unsupported_parameter",
        )
    for name in ("temperature", "top_p", "presence_penalty", "frequency_penalty"):
        if getattr(body, name) is not None:
            raise OpenAiRefusal(
                f"Unsupported value: '{name}' does not support this value with this model.",
                name,
                "unsupported_value",
            )


def _check_template(messages: list[Message]) -> None:
    last = ""
    for number, message in enumerate(messages):
        if message.role == "developer" or (message.role == "system" and number):
            raise OpenAiRefusal("System message must be at the beginning.")
        if message.role == last == "user":
            raise OpenAiRefusal(
                "Conversation roles must alternate user/assistant/user/assistant/..."
            )
        last = message.role


def _check_continuation(messages: list[Message], fields: dict[str, object]) -> None:
    """As Mistral and DeepSeek refuse a prefix, and vLLM a final message to continue."""
    if any(message.prefix for message in messages[:-1]) or (
        messages[-1].prefix and messages[-1].role != "assistant"
    ):
        raise OpenAiRefusal("Only the last message, of the assistant, can be a prefix.")
    if fields.get("continue_final_message") is not True:
        return
    if fields.get("add_generation_prompt", True) is True:
        raise OpenAiRefusal(
            "Cannot set both `continue_final_message` and `add_generation_prompt` to True."
        )
    if messages[-1].role != "assistant":
        raise OpenAiRefusal("continue_final_message is set but the final message is not ours")


def _check_tools(body: Body) -> None:
    if not body.tools:
        if body.tools is not None:
            raise OpenAiRefusal("[] is too short - 'tools'", "tools")
        if body.tool_choice is not None:
            raise OpenAiRefusal("'tool_choice' is only allowed when 'tools' are specified.")
        if body.parallel_tool_calls is not None:
            raise OpenAiRefusal("'parallel_tool_calls' is only allowed when 'tools' are specified.")
        return
    for number, tool in enumerate(body.tools):
        check_name(tool.function.name, f"tools[{number}].function.name")
        check_schema(tool.function.name, tool.function.parameters, strict=tool.function.strict)
    names = [tool.function.name for tool in body.tools]
    choice = body.tool_choice
    if isinstance(choice, Choice) and choice.function.name not in names:
        raise OpenAiRefusal(
            f"Tool choice: function '{choice.function.name}' not found.", "tool_choice"
        )


def _check_messages(messages: list[Message]) -> None:
    waiting: list[str] = []
    for message in messages:
        if message.role == "tool":
            if message.tool_call_id not in waiting:
                raise OpenAiRefusal(
                    "Invalid parameter: messages with role 'tool' must be a response to a"
                    " preceeding message with 'tool_calls'.",
                )
            waiting.remove(message.tool_call_id)
            if not isinstance(message.content, str):
                raise OpenAiRefusal(
                    "Invalid content type. image_url is only supported by user messages."
                )
            continue
        _all_answered(waiting)
        waiting = [call.id for call in message.tool_calls]
        _check_message(message)
    _all_answered(waiting)


def check_reasoning(messages: list[Message], *, may_be_empty: bool) -> None:
    """DeepSeek and Kimi in thinking mode: all answers of a turn with calls have reasoning."""
    has_called = False
    for number, message in enumerate(messages):
        if message.role == "user":
            has_called = False
        if message.role != "assistant":
            continue
        has_called = has_called or bool(message.tool_calls)
        found = message.reasoning_content
        if has_called and (found is None or (not found and not may_be_empty)):
            raise OpenAiRefusal(
                "The `reasoning_content` in the thinking mode must be passed back to the API:"
                f" messages[{number}]"
            )


def _all_answered(waiting: list[str]) -> None:
    if waiting:
        raise OpenAiRefusal(
            "An assistant message with 'tool_calls' must be followed by tool messages responding"
            " to each 'tool_call_id'. The following tool_call_ids did not have response messages:"
            f" {', '.join(waiting)}",
            "messages",
        )


def _check_message(message: Message) -> None:
    if message.role not in ("system", "developer", "user", "assistant"):
        raise OpenAiRefusal(f"Invalid value: '{message.role}'.", "messages")
    if not message.content and not message.tool_calls:
        raise OpenAiRefusal("Invalid value for 'content': expected a string, got null.", "messages")
    ids = [call.id for call in message.tool_calls]
    if len(set(ids)) != len(ids) or any(len(one) > 40 or not one for one in ids):
        raise OpenAiRefusal(
            "Invalid 'messages[1].tool_calls[0].id': string too long or not unique."
        )
    if message.role == "assistant" and isinstance(message.content, list):
        raise OpenAiRefusal("Invalid content type for an assistant's message.")
