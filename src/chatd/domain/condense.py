"""A prompt that is too long for its model, made shorter by force.

Only for the request that asks for a summary after the model has refused the whole: the longest
things go first, then the oldest, and what is left is still a conversation.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from chatd.domain.model import (
    PromptCall,
    PromptFile,
    PromptMessage,
    PromptPart,
    PromptReasoning,
    PromptResult,
    PromptText,
)
from chatd.domain.prompt_repair import is_signed, joined
from chatd.domain.tool_output import cut

SHORT: Final = 1024
_FILE_LEFT_OUT: Final = "[A file is left out here.]"
_FILE_COST: Final = 8 * 1024


def prompt_bytes(messages: Sequence[PromptMessage]) -> int:
    """About how much there is to read. A picture costs the same whatever its bytes."""
    return sum(_bytes(part) for message in messages for part in message.parts)


def _bytes(part: PromptPart) -> int:
    match part:
        case PromptText() | PromptReasoning():
            return len(part.text.encode("utf-8", "replace"))
        case PromptFile():
            return _FILE_COST
        case PromptCall():
            return len(bytes(part.input))
        case PromptResult():
            media = 0 if part.media is None else _FILE_COST
            return len(part.text.encode("utf-8", "replace")) + media


def condensed(messages: Sequence[PromptMessage], halvings: int) -> tuple[PromptMessage, ...]:
    """`messages` at half their size, or at a quarter, and so on. System messages stay whole."""
    front = [message for message in messages if message.role == "system"]
    talk = [message for message in messages if message.role != "system"]
    budget = prompt_bytes(talk) >> halvings
    talk = _shortened(talk, budget)
    return (*front, *joined(_newest(talk, budget)))


def _shortened(talk: list[PromptMessage], budget: int) -> list[PromptMessage]:
    """Long texts of the oldest messages are cut first, until the rest fits."""
    out = talk.copy()
    size = prompt_bytes(out)
    for index, message in enumerate(out):
        if size <= budget:
            break
        out[index] = _short(message)
        size -= prompt_bytes([message]) - prompt_bytes([out[index]])
    return out


def _short(message: PromptMessage) -> PromptMessage:
    if is_signed(message):
        return message
    parts = tuple(_short_part(part) for part in message.parts)
    return PromptMessage(role=message.role, parts=parts)


def _short_part(part: PromptPart) -> PromptPart:
    match part:
        case PromptText():
            return msgspec.structs.replace(part, text=cut(part.text, SHORT))
        case PromptResult() if not part.provider_executed:
            text = cut(part.text, SHORT) or _FILE_LEFT_OUT
            return msgspec.structs.replace(part, text=text, media=None)
        case PromptFile():
            return PromptText(text=_FILE_LEFT_OUT)
        case _:
            return part


def _newest(talk: Sequence[PromptMessage], budget: int) -> list[PromptMessage]:
    """As many of the newest messages as fit, at least one; calls stay with their results."""
    kept: list[list[PromptMessage]] = []
    size = 0
    for group in reversed(_groups(talk)):
        size += prompt_bytes(group)
        if kept and size > budget:
            break
        kept.append(group)
    return [message for group in reversed(kept) for message in group]


def _groups(talk: Sequence[PromptMessage]) -> list[list[PromptMessage]]:
    groups: list[list[PromptMessage]] = []
    for message in talk:
        if message.role == "tool" and groups:
            groups[-1].append(message)
        else:
            groups.append([message])
    return groups
