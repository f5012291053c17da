"""What one provider has said, for another to read.

Searches a provider has made itself, thoughts it has signed and all else it has attached mean
nothing elsewhere, and are often refused. By instance, not by kind: two accounts at one vendor
cannot read each other's seals.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import UNSET

from chatd.domain.heal import for_model
from chatd.domain.ids import ModelConfigId
from chatd.domain.messages import Message
from chatd.domain.model import (
    PromptCall,
    PromptFile,
    PromptMessage,
    PromptPart,
    PromptReasoning,
    PromptResult,
    PromptText,
)
from chatd.domain.parts import Part, Reasoning, Text, ToolCall, ToolResult
from chatd.domain.prompt_files import bare_type
from chatd.domain.prompt_repair import joined
from chatd.domain.provider_tools import readable

Origins = Mapping[ModelConfigId, str]
"""Which provider serves or has served each configured model."""

_MEDIA_LEFT_OUT: Final = "[A picture or file that the tool made is left out here.]"


def is_foreign(row: Message, provider: str, origins: Origins | None) -> bool:
    """Nobody knows who wrote an answer without a model: then it was not this provider.
    Without `origins`, all answers are this provider's."""
    if origins is None or row.role != "assistant":
        return False
    return row.model_config_id is None or origins.get(row.model_config_id) != provider


def stripped(content: Sequence[Part]) -> tuple[Part, ...]:
    """The content of a foreign answer, as far as it means anything here."""
    return tuple(kept for part in content if (kept := _stripped(part)) is not None)


def _stripped(part: Part) -> Part | None:
    match part:
        case Reasoning() | ToolCall(provider_executed=True) | ToolResult(provider_executed=True):
            return None
        case Text() | ToolCall() | ToolResult():
            return msgspec.structs.replace(part, provider_metadata=UNSET)
        case _:
            return part


def flattened(
    messages: Sequence[PromptMessage], takes: Callable[[str], bool] | None = None
) -> tuple[PromptMessage, ...]:
    """A whole prompt for a model elsewhere: searches in words, thoughts left out, and a
    sentence in place of each file that it would not be shown. The given prompt stays as it is."""
    flat = (
        PromptMessage(
            role=message.role,
            parts=tuple(
                part
                for given in message.parts
                if (part := _flat(given, message, takes)) is not None
            ),
        )
        for message in messages
    )
    left = [message for message in flat if message.parts]
    front = [message for message in left if message.role == "system"]
    return (*front, *joined(message for message in left if message.role != "system"))


def _flat(
    part: PromptPart, message: PromptMessage, takes: Callable[[str], bool] | None
) -> PromptPart | None:
    match part:
        case PromptReasoning():
            return None
        case PromptText():
            return PromptText(text=part.text)
        case PromptFile():
            return _file(part, takes)
        case PromptCall(provider_executed=True):
            words = f"[Called {part.name} with {bytes(part.input).decode('utf-8', 'replace')}]"
            return PromptText(text=for_model(words)) if message.role == "assistant" else None
        case PromptResult(provider_executed=True):
            words = f"[Result of {part.name}]\n{readable(part.raw)}".strip()
            return PromptText(text=for_model(words)) if message.role == "assistant" else None
        case PromptCall():
            return msgspec.structs.replace(part, provider_metadata=UNSET)
        case PromptResult():
            return _result(part)


def _file(part: PromptFile, takes: Callable[[str], bool] | None) -> PromptPart:
    kind = bare_type(part.media_type)
    if takes is None or takes(kind):
        return part
    name = f" {for_model(part.name)}" if part.name else ""
    return PromptText(text=f"[The file{name} of type {for_model(kind)} is left out here.]")


def _result(part: PromptResult) -> PromptResult:
    plain = msgspec.structs.replace(part, provider_metadata=UNSET)
    if part.media is None:
        return plain
    text = f"{part.text}\n{_MEDIA_LEFT_OUT}" if part.text.strip() else _MEDIA_LEFT_OUT
    return msgspec.structs.replace(plain, text=text, media=None)
