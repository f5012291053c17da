"""The debug record of a model call: its request and its answer as JSON, without secrets, bounded.

The request is recorded before a provider encodes it, so it has no key of a provider. Secrets that
users or tools have put into texts are removed as far as they can be recognized.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, cast
from uuid import UUID

import msgspec
from msgspec import UNSET, Struct

from chatd.domain.answer.answer import Answer
from chatd.domain.chat.messages import TokenUsage, encode_parts
from chatd.domain.ids import ChatId, MessageId, ModelConfigId
from chatd.domain.model.failures import redact_urls
from chatd.domain.model.protocol import (
    ModelRequest,
    PromptCall,
    PromptFile,
    PromptMessage,
    PromptPart,
    PromptReasoning,
    PromptResult,
    PromptText,
)
from chatd.domain.text import Json, clip, model_text

DebugKind = Literal["turn", "title", "compaction"]

MAX_DEBUG_BYTES: Final = 256 * 1024
"""Of a recorded request, and of a recorded answer."""
MAX_DEBUG_TEXT_CHARS: Final = 16 * 1024
"""Of one text in a record."""
MAX_DEBUG_DEPTH: Final = 40

REDACTED: Final = "[redacted]"
OMITTED: Final = "[omitted]"
_SECRET_NAMES: Final = (
    "password",
    "passwd",
    "secret",
    "token",
    "api_key",
    "apikey",
    "api-key",
    "authorization",
    "private_key",
    "credential",
    "cookie",
    "signature",
)
_NO_SECRETS: Final = frozenset({"max_tokens", "max_output_tokens", "token_count", "budget_tokens"})
_OPAQUE_NAMES: Final = frozenset({"provider_metadata"})

JsonValue = Any  # what a JSON decoder returns


class DebugCall(Struct, frozen=True, kw_only=True):
    """One finished model call. `attempt` and `history_version` name the episode it belongs to."""

    id: UUID
    chat_id: ChatId
    kind: DebugKind
    model_config_id: ModelConfigId | None
    provider: str
    model: str
    attempt: int
    history_version: int
    turn_message_id: MessageId | None
    started_at: datetime
    duration_ms: int
    first_part_ms: int | None
    error: str | None
    error_kind: str | None
    status_code: int | None
    request: ModelRequest
    answer: Answer


class DebugDocument(Struct, frozen=True, kw_only=True):
    """JSON texts. `is_cut`: something was left out to stay within the limits."""

    request: str
    response: str
    is_cut: bool


def build_document(call: DebugCall) -> DebugDocument:
    """Takes long for a long history: call it outside the event loop."""
    request, request_cut = _fit_request(describe_request(call.request))
    response, response_cut = _fit_response(describe_answer(call.answer))
    return DebugDocument(request=request, response=response, is_cut=request_cut or response_cut)


def describe_request(request: ModelRequest) -> dict[str, JsonValue]:
    settings = {
        "max_output_tokens": request.max_output_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "presence_penalty": request.presence_penalty,
        "frequency_penalty": request.frequency_penalty,
        "reasoning_effort": request.reasoning_effort,
    }
    tools = [
        {
            "name": tool.name,
            "description": tool.description,
            "input_schema": _decoded(tool.input_schema),
        }
        for tool in request.tools
    ]
    choice = request.tool_choice
    described = {
        "model": request.model,
        **{name: value for name, value in settings.items() if value is not None},
        "tool_choice": choice if isinstance(choice, str) else {"name": choice.name},
        "options": _decoded(request.options),
        "output_schema": _decoded(request.output_schema),
        "tools": tools,
        "messages": [_describe_message(message) for message in request.messages],
    }
    return redact({name: value for name, value in described.items() if value not in (None, {}, [])})


def describe_answer(answer: Answer) -> dict[str, JsonValue]:
    finished = answer.finished
    return redact(
        {
            "finish_reason": None if finished is None else finished.reason,
            "response_id": None if finished is None else finished.response_id,
            "explanation": None if finished is None else finished.explanation,
            "usage": msgspec.to_builtins(answer.usage or TokenUsage()),
            "parts": msgspec.json.decode(encode_parts(answer.content)),
        }
    )


def redact(value: JsonValue, depth: int = 0) -> JsonValue:
    """Without values under names of secrets, keys in texts, and credentials and queries of URLs.
    Vendors' own data is left out, and long texts are clipped."""
    if depth > MAX_DEBUG_DEPTH:
        return OMITTED
    match value:
        case str():
            return redact_urls(clip(model_text(value), MAX_DEBUG_TEXT_CHARS))
        case Mapping():
            pairs = cast("Mapping[str, JsonValue]", value).items()
            return {model_text(name): _redact_named(name, item, depth + 1) for name, item in pairs}
        case list():
            return [redact(item, depth + 1) for item in cast("list[JsonValue]", value)]
        case _:
            return value


def _redact_named(name: str, value: JsonValue, depth: int) -> JsonValue:
    lowered = name.lower()
    if lowered in _OPAQUE_NAMES:
        return OMITTED
    is_secret = any(part in lowered for part in _SECRET_NAMES) and not lowered.endswith("_tokens")
    if is_secret and lowered not in _NO_SECRETS and isinstance(value, str):
        return REDACTED
    return redact(value, depth)


def _describe_message(message: PromptMessage) -> dict[str, JsonValue]:
    return {"role": message.role, "parts": [_describe_part(part) for part in message.parts]}


def _describe_part(part: PromptPart) -> dict[str, JsonValue]:
    match part:
        case PromptText():
            return {"type": "text", "text": part.text}
        case PromptReasoning():
            return {"type": "reasoning", "text": part.text}
        case PromptFile():
            return _describe_file(part)
        case PromptCall():
            return {
                "type": "tool_call",
                "id": part.id,
                "name": part.name,
                "input": _decoded(part.input),
            }
        case PromptResult():
            described = {
                "type": "tool_result",
                "id": part.id,
                "name": part.name,
                "text": part.text,
                "is_error": part.is_error,
            }
            return (
                described
                if part.media is None
                else {
                    **described,
                    "media": _describe_file(part.media),
                }
            )


def _describe_file(file: PromptFile) -> dict[str, JsonValue]:
    """Its size, not its content."""
    return {
        "type": "file",
        "media_type": file.media_type,
        "name": file.name,
        "size_bytes": len(file.data),
    }


def _decoded(raw: Json) -> JsonValue:
    if raw is UNSET:
        return None
    try:
        return msgspec.json.decode(bytes(raw))
    except (msgspec.DecodeError, RecursionError):
        return bytes(raw).decode("utf-8", "replace")


def _fit_request(request: dict[str, JsonValue]) -> tuple[str, bool]:
    """Leave out schemas of tools, then messages: the first and the newest stay."""
    text = _encoded(request)
    if len(text.encode()) <= MAX_DEBUG_BYTES:
        return text, False
    tools = [{"name": tool["name"]} for tool in request.get("tools", [])]
    messages = cast("list[JsonValue]", request.get("messages", []))
    kept = _newest_within(messages, MAX_DEBUG_BYTES // 2)
    text = _encoded({**request, "tools": tools, "messages": kept})
    if len(text.encode()) <= MAX_DEBUG_BYTES:
        return text, True
    return _encoded({"model": request["model"], "messages": kept}), True


def _newest_within(messages: Sequence[JsonValue], max_bytes: int) -> list[JsonValue]:
    kept, used = list[JsonValue](), 0
    for message in reversed(messages):
        used += len(_encoded(message).encode())
        if used > max_bytes:
            break
        kept.insert(0, message)
    if not (left_out := len(messages) - len(kept)):
        return kept
    return [{"role": "omitted", "messages": left_out}, *kept]


def _fit_response(response: dict[str, JsonValue]) -> tuple[str, bool]:
    text = _encoded(response)
    if len(text.encode()) <= MAX_DEBUG_BYTES:
        return text, False
    parts = cast("list[JsonValue]", response["parts"])
    kept, used = list[JsonValue](), 0
    for part in parts:
        used += len(_encoded(part).encode())
        if used > MAX_DEBUG_BYTES // 2:
            break
        kept.append(part)
    kept.append({"type": "omitted", "parts": len(parts) - len(kept)})
    return _encoded({**response, "parts": kept}), True


def _encoded(value: JsonValue) -> str:
    return msgspec.json.encode(value).decode()
