"""A conversation, as the messages of the Messages API.

Owns the API's rules of order: the system prompt apart, users and assistants in
turn, results before anything else a user says, nothing empty; and what of it the
provider is asked to keep for the next time.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import structs

from chatd.domain.model.protocol import PromptMessage, PromptText
from chatd.providers.anthropic.blocks import (
    Wording,
    assistant_blocks,
    toolset_calls,
    user_blocks,
)
from chatd.providers.anthropic.request import (
    CacheControl,
    Content,
    Message,
    RedactedThinking,
    Text,
    Thinking,
    ToolResult,
)

_CACHE: Final = CacheControl()


def system_blocks(messages: Sequence[PromptMessage]) -> tuple[Text, ...]:
    """Those that lead. A later one has no place in this API."""
    blocks: list[Text] = []
    for message in messages:
        if message.role != "system":
            break
        texts = (part for part in message.parts if isinstance(part, PromptText))
        blocks.extend(Text(text=part.text) for part in texts if part.text.strip())
    return tuple(blocks)


def wire_messages(messages: Sequence[PromptMessage], wording: Wording) -> list[Message]:
    members = toolset_calls(messages) if wording.toolset else frozenset[str]()
    merged: list[Message] = []
    for message in messages:
        if message.role == "system":
            continue
        role = "assistant" if message.role == "assistant" else "user"
        blocks = (
            assistant_blocks(message.parts, wording)
            if role == "assistant"
            else user_blocks(message.parts, members)
        )
        if not any(_is_visible(block) for block in blocks):
            continue
        if merged and merged[-1].role == role:
            blocks = [*merged.pop().content, *blocks]
        merged.append(Message(role=role, content=tuple(_results_first(blocks))))
    return merged


def _is_visible(block: Content) -> bool:
    return not isinstance(block, Thinking | RedactedThinking)


def _results_first(blocks: list[Content]) -> list[Content]:
    return sorted(blocks, key=lambda block: not isinstance(block, ToolResult))


def has_thoughts(messages: Iterable[Message]) -> bool:
    return any(
        isinstance(block, Thinking | RedactedThinking)
        for message in messages
        for block in message.content
    )


def breaks_thinking(messages: Sequence[Message]) -> bool:
    """The model is in the midst of using tools and has not thought before: it cannot begin now.

    True of models that think by a budget.
    """
    if not messages or not any(isinstance(block, ToolResult) for block in messages[-1].content):
        return False
    asked = next((m for m in reversed(messages) if m.role == "assistant"), None)
    return asked is not None and not isinstance(asked.content[0], Thinking | RedactedThinking)


# Caching


def cached_system(blocks: tuple[Text, ...]) -> tuple[Text, ...]:
    return (*blocks[:-1], structs.replace(blocks[-1], cache_control=_CACHE)) if blocks else blocks


def cached_messages(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The last two are marked: what was the last the time before is found again."""
    marked = [Message(role=m.role, content=_marked(m.content)) for m in messages[-2:]]
    return (*messages[:-2], *marked)


def _marked(content: tuple[Content, ...]) -> tuple[Content, ...]:
    """On the last block that can be marked; thoughts cannot."""
    for index in range(len(content) - 1, -1, -1):
        block = content[index]
        if not isinstance(block, Thinking | RedactedThinking):
            marked = structs.replace(block, cache_control=_CACHE)
            return (*content[:index], marked, *content[index + 1 :])
    return content
