"""A request as the body of `POST /chat/completions`.

Owns the parameters: which of them a model takes, and in which form a server
wants them. The conversation itself is the business of `messages`.
"""

import msgspec
from msgspec import UNSET

from chatd.domain.model.protocol import ForcedTool, ModelRequest
from chatd.providers.gemini.models import profile
from chatd.providers.openai_chat.dialect import Dialect
from chatd.providers.openai_chat.messages import Conversation, Message
from chatd.providers.openai_chat.params import Body, ChatOptions, own_params, parallel_tool_calls
from chatd.providers.openai_models import reasons
from chatd.providers.openai_tools import SCHEMA_NAME, functions, is_strict
from chatd.providers.options_openai import OpenAIOptions
from chatd.providers.schema import ToolNames, normalised


def encode(
    request: ModelRequest, options: ChatOptions, names: ToolNames, dialect: Dialect, origin: str
) -> bytes:
    """`origin` is the provider's name: what it alone understands goes back to it alone."""
    body: Body = {
        "model": request.model,
        "messages": _messages(request, names, dialect, origin),
        "stream": True,
        "stream_options": {"include_usage": True},
        **_limit(request, options),
        **_sampling(request, dialect),
        "response_format": _format(request, options),
        **_tools(request, options, names, dialect),
    }
    # What an administrator adds comes first: it cannot take the place of what we depend on.
    own = own_params(request, options, dialect)
    ours = {name: value for name, value in body.items() if value is not None}
    return msgspec.json.encode({**own, **ours})


def _messages(
    request: ModelRequest, names: ToolNames, dialect: Dialect, origin: str
) -> list[Message]:
    thinks = reasons(request.model)
    conversation = Conversation(
        origin,
        names,
        dialect,
        system_role="developer" if thinks and dialect.developer_role else "system",
        signed=dialect.gemini and profile(request.model).strict_signatures,
    )
    last = max((n for n, m in enumerate(request.messages) if m.role == "user"), default=-1)
    for number, message in enumerate(request.messages):
        conversation.add(message, current=number > last)
    return conversation.end()


def _limit(request: ModelRequest, options: ChatOptions) -> Body:
    """Models that reason count their thoughts, and want to hear it by another name."""
    wanted = request.max_output_tokens
    if isinstance(options, OpenAIOptions) and options.max_completion_tokens is not None:
        return {"max_completion_tokens": options.max_completion_tokens}
    if wanted is None:
        return {}
    return {"max_completion_tokens" if reasons(request.model) else "max_tokens": wanted}


def _sampling(request: ModelRequest, dialect: Dialect) -> Body:
    if reasons(request.model):
        return {}
    return {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k if dialect.top_k else None,
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
    schema = normalised(request.output_schema)
    asked = {"name": SCHEMA_NAME, "schema": schema, "strict": strict and is_strict(schema)}
    return {"type": "json_schema", "json_schema": asked}


def _tools(request: ModelRequest, options: ChatOptions, names: ToolNames, dialect: Dialect) -> Body:
    strict = options.strict_json_schema if isinstance(options, OpenAIOptions) else None
    found = functions(request, names, strict=strict)
    choice: object = request.tool_choice
    if isinstance(choice, ForcedTool):
        name = names.wire(choice.name)
        if dialect.named_choice:
            choice = {"type": "function", "function": {"name": name}}
        else:
            # Demanding any of one tool means the same, and every server understands it.
            found = [function for function in found if function.name == name]
            choice = "required"
    if not found:
        return {}
    return {
        "tools": [{"type": "function", "function": function} for function in found],
        "tool_choice": choice,
        "parallel_tool_calls": parallel_tool_calls(options),
    }
