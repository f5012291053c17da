"""Shrinks a prompt that is too long for the model's context window."""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from chatd.domain.answer.tool_output import clip_middle
from chatd.domain.model.protocol import (
    PromptCall,
    PromptFile,
    PromptMessage,
    PromptPart,
    PromptReasoning,
    PromptResult,
    PromptText,
)
from chatd.domain.prompt.repair import (
    is_signed,
    join_consecutive,
)

MIN_SHRUNK_TEXT_CHARS: Final = 1024
_FILE_OMITTED_TEXT: Final = "[A file is left out here.]"
_FILE_BYTES: Final = 8 * 1024


def prompt_bytes(messages: Sequence[PromptMessage]) -> int:
    """The approximate size. Every file counts as a fixed number of bytes."""
    return sum(_bytes(part) for message in messages for part in message.parts)


def _bytes(part: PromptPart) -> int:
    match part:
        case PromptText() | PromptReasoning():
            return len(part.text.encode("utf-8", "replace"))
        case PromptFile():
            return _FILE_BYTES
        case PromptCall():
            return len(bytes(part.input))
        case PromptResult():
            media = 0 if part.media is None else _FILE_BYTES
            return len(part.text.encode("utf-8", "replace")) + media


def is_prompt_larger(messages: Iterable[PromptMessage], chars: int) -> bool:
    """Stops to count at `chars`. Files count in full."""
    for message in messages:
        for part in message.parts:
            chars -= _chars(part)
            if chars < 0:
                return True
    return False


def _chars(part: PromptPart) -> int:
    match part:
        case PromptText() | PromptReasoning():
            return len(part.text)
        case PromptFile():
            return len(part.data)
        case PromptCall():
            return len(bytes(part.input))
        case PromptResult():
            return len(part.text) + (0 if part.media is None else len(part.media.data))


def shrink_prompt(messages: Sequence[PromptMessage], halvings: int) -> tuple[PromptMessage, ...]:
    """Cut `messages` to 1/2**halvings of their size, for a summary request after an overflow.

    Long texts go first, then the oldest messages. System messages stay whole.
    """
    front = [message for message in messages if message.role == "system"]
    rest = [message for message in messages if message.role != "system"]
    budget = prompt_bytes(rest) >> halvings
    return (*front, *join_consecutive(_newest(_clip_oldest(rest, budget), budget)))


def _clip_oldest(messages: list[PromptMessage], budget: int) -> list[PromptMessage]:
    """Clip long texts, oldest message first, until the total fits."""
    out = messages.copy()
    size = prompt_bytes(out)
    for index, message in enumerate(out):
        if size <= budget:
            break
        out[index] = _clip_message(message)
        size -= prompt_bytes([message]) - prompt_bytes([out[index]])
    return out


def _clip_message(message: PromptMessage) -> PromptMessage:
    if is_signed(message):
        return message
    parts = tuple(_clip_part(part) for part in message.parts)
    return PromptMessage(role=message.role, parts=parts)


def _clip_part(part: PromptPart) -> PromptPart:
    match part:
        case PromptText():
            return msgspec.structs.replace(part, text=clip_middle(part.text, MIN_SHRUNK_TEXT_CHARS))
        case PromptResult() if not part.provider_executed:
            text = clip_middle(part.text, MIN_SHRUNK_TEXT_CHARS) or _FILE_OMITTED_TEXT
            return msgspec.structs.replace(part, text=text, media=None)
        case PromptFile():
            return PromptText(text=_FILE_OMITTED_TEXT)
        case _:
            return part


def _newest(messages: Sequence[PromptMessage], budget: int) -> list[PromptMessage]:
    """As many of the newest messages as fit, at least one; calls stay with their results."""
    fitting: list[list[PromptMessage]] = []
    size = 0
    for group in reversed(_groups(messages)):
        size += prompt_bytes(group)
        if fitting and size > budget:
            break
        fitting.append(group)
    return [message for group in reversed(fitting) for message in group]


def _groups(messages: Sequence[PromptMessage]) -> list[list[PromptMessage]]:
    groups: list[list[PromptMessage]] = []
    for message in messages:
        if message.role == "tool" and groups:
            groups[-1].append(message)
        else:
            groups.append([message])
    return groups
