"""Builders of model requests."""

import msgspec
from msgspec import UNSET, Raw

from chatd.domain.answer.assembler import Answer
from chatd.domain.chat.messages import Role
from chatd.domain.chat.parts import Part, ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from chatd.domain.ids import ToolCallId
from chatd.domain.model.protocol import (
    ModelRequest,
    PromptCall,
    PromptMessage,
    PromptPart,
    PromptReasoning,
    PromptResult,
    PromptText,
)
from chatd.domain.text import Json


def message(role: Role, *parts: PromptPart | str) -> PromptMessage:
    return PromptMessage(
        role=role,
        parts=tuple(PromptText(text=part) if isinstance(part, str) else part for part in parts),
    )


def request(*messages: PromptMessage, model: str, **more: object) -> ModelRequest:
    asked = messages or (message("user", "Hi"),)
    return msgspec.structs.replace(ModelRequest(model=model, messages=asked), **more)


def call(
    call_id: str, name: str = "now", args: bytes = b"{}", metadata: Json = UNSET
) -> PromptCall:
    return PromptCall(
        id=ToolCallId(call_id), name=name, input=Raw(args), provider_metadata=metadata
    )


def result(call_id: str, text: str = "ok", name: str = "now", **more: object) -> PromptResult:
    plain = PromptResult(id=ToolCallId(call_id), name=name, text=text)
    return msgspec.structs.replace(plain, **more)


def replayed(answer: Answer) -> list[PromptMessage]:
    """An answer as the next request carries it, with a result for each of our calls, in the
    wrong order."""
    parts = [part for part in (_prompt_part(p) for p in answer.content) if part is not None]
    results = [
        message("tool", result(part.id, name=part.name))
        for part in parts
        if isinstance(part, PromptCall) and not part.provider_executed
    ]
    return [message("assistant", *parts), *reversed(results)]


def _prompt_part(part: Part) -> PromptPart | None:
    match part:
        case TextPart():
            return PromptText(text=part.text, provider_metadata=part.provider_metadata)
        case ReasoningPart():
            return PromptReasoning(text=part.text, provider_metadata=part.provider_metadata)
        case ToolCallPart(args=Raw() as args):
            return PromptCall(
                id=part.tool_call_id,
                name=part.tool_name,
                input=args,
                provider_executed=part.provider_executed,
                provider_metadata=part.provider_metadata,
            )
        case ToolResultPart():
            return PromptResult(
                id=part.tool_call_id,
                name=part.tool_name,
                text="",
                provider_executed=part.provider_executed,
                raw=part.result,
                provider_metadata=part.provider_metadata,
            )
        case _:
            return None
