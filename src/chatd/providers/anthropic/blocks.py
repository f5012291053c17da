"""The parts of a message, as the blocks of the Messages API.

Owns what becomes of each part: which go back as they came, which take another form, which stay
here. How messages follow each other is the business of `prompt`.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct

from chatd.domain.model.protocol import (
    PromptCall,
    PromptFile,
    PromptMessage,
    PromptPart,
    PromptReasoning,
    PromptResult,
    PromptText,
)
from chatd.providers.anthropic.metadata import kept
from chatd.providers.anthropic.request import (
    Base64,
    Content,
    Document,
    Image,
    PlainText,
    RedactedThinking,
    ServerToolResult,
    ServerToolUse,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
)
from chatd.providers.files import ANTHROPIC, Media, Note, TextFile, fit
from chatd.providers.files import Document as FileDocument
from chatd.providers.files import Image as FileImage
from chatd.providers.schema import ToolNames

COMPUTER: Final = "computer"

_EMPTY: Final = Raw(b"{}")
_MAX_TITLE: Final = 200


class Wording(Struct, frozen=True, kw_only=True):
    """How this request puts things: the names of tools, whether earlier thoughts go along,
    whether the screen is one tool with actions, as in history, or a set of tools."""

    names: ToolNames
    thoughts: bool = True
    toolset: bool = False


def user_blocks(parts: Iterable[PromptPart], members: frozenset[str]) -> list[Content]:
    blocks: list[Content] = []
    for part in parts:
        match part:
            case PromptText() if part.text.strip():
                blocks.append(Text(text=part.text))
            case PromptFile():
                blocks.append(_file(part))
            case PromptResult(provider_executed=False):
                blocks.append(_result(part, COMPUTER if part.id in members else None))
            case _:
                # Calls, thoughts and the provider's own results are the assistant's.
                pass
    return blocks


def _file(file: PromptFile) -> Text | Image | Document:
    match fit(file, ANTHROPIC):
        case FileImage(media_type=kind, data=data):
            return Image(source=Base64(media_type=kind, data=data))
        case FileDocument(media_type=kind, data=data, name=name):
            return Document(source=Base64(media_type=kind, data=data), title=_title(name))
        case TextFile(text=text, name=name) if text.strip():
            return Document(source=PlainText(data=text), title=_title(name))
        case TextFile(name=name):
            return Text(text=f"[The file {name or ''} holds nothing but blanks.]")
        case Note(text=text):
            return Text(text=text)
        case Media(media_type=kind):
            return Text(text=f"[A file of type {kind} is not shown.]")


def _title(name: str | None) -> str | None:
    """Only the characters that a title may have."""
    plain = re.sub(r"[^A-Za-z0-9\-()\[\]]+", " ", name or "").strip()
    return plain[:_MAX_TITLE].strip() or None


def _result(result: PromptResult, toolset: str | None) -> ToolResult:
    content: list[Text | Image | Document] = []
    if result.text.strip():
        content.append(Text(text=result.text))
    if result.media is not None and not result.is_error:
        content.append(_file(result.media))
    if result.is_error and not content:
        # An error must say something, and in words.
        content.append(Text(text="The tool failed without saying why."))
    return ToolResult(
        tool_use_id=_call_id(result.id),
        content=tuple(content),
        is_error=result.is_error,
        toolset_name=toolset,
    )


def _call_id(call_id: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", call_id)


def assistant_blocks(parts: Sequence[PromptPart], wording: Wording) -> list[Content]:
    paired = _paired(parts)
    blocks: list[Content] = []
    for part in parts:
        match part:
            case PromptText() if part.text.strip():
                blocks.append(
                    Text(text=part.text, citations=kept(part.provider_metadata).citations)
                )
            case PromptReasoning() if wording.thoughts:
                blocks.extend(_thought(part))
            case PromptCall(provider_executed=True) if part.id in paired:
                blocks.append(_server_call(part))
            case PromptCall(provider_executed=False):
                blocks.append(_call(part, wording))
            case PromptResult(provider_executed=True) if part.id in paired:
                blocks.append(_server_result(part))
            case _:
                pass
    return blocks


def _thought(part: PromptReasoning) -> list[Content]:
    """Unsigned thoughts are refused, so they stay here."""
    own = kept(part.provider_metadata)
    if own.redacted_thinking is not None:
        return [RedactedThinking(data=own.redacted_thinking)]
    if own.signature:
        return [Thinking(thinking=part.text, signature=own.signature)]
    return []


def _call(part: PromptCall, wording: Wording) -> ToolUse:
    fields = _fields(part.input)
    action = _action(part) if wording.toolset else None
    if action is None or fields is None:
        return ToolUse(
            id=_call_id(part.id),
            name=wording.names.wire(part.name),
            input=_EMPTY if fields is None else part.input,
        )
    del fields["action"]
    rest = Raw(msgspec.json.encode(fields))
    return ToolUse(id=_call_id(part.id), name=action, input=rest, toolset_name=COMPUTER)


def _action(part: PromptCall) -> str | None:
    """What is done to the screen, if this call is about it."""
    fields = _fields(part.input) if part.name == COMPUTER else None
    action = msgspec.json.decode(fields["action"]) if fields and "action" in fields else None
    return action if isinstance(action, str) else None


def toolset_calls(messages: Iterable[PromptMessage]) -> frozenset[str]:
    return frozenset(
        part.id
        for message in messages
        for part in message.parts
        if isinstance(part, PromptCall) and _action(part) is not None
    )


def _fields(raw: Raw) -> dict[str, Raw] | None:
    """The input's fields, if it is an object at all."""
    try:
        return msgspec.json.decode(raw, type=dict[str, Raw])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


# What the provider has run itself


def _paired(parts: Sequence[PromptPart]) -> frozenset[str]:
    """Calls that have their result behind them, both as this API made them. Half of a pair
    would be refused, and so would another vendor's."""
    calls: set[str] = set()
    paired: set[str] = set()
    for part in parts:
        if isinstance(part, PromptCall) and part.provider_executed:
            if kept(part.provider_metadata).block == "server_tool_use":
                calls.add(part.id)
        elif isinstance(part, PromptResult) and part.provider_executed and part.id in calls:
            is_ours = kept(part.provider_metadata).block is not None and part.raw is not UNSET
            (paired.add if is_ours else paired.discard)(part.id)
            calls.discard(part.id)
    return frozenset(paired)


def _server_call(part: PromptCall) -> ServerToolUse:
    fields = _fields(part.input)
    return ServerToolUse(
        id=part.id,
        name=part.name,
        input=_EMPTY if fields is None else part.input,
        caller=kept(part.provider_metadata).caller,
    )


def _server_result(part: PromptResult) -> ServerToolResult:
    own = kept(part.provider_metadata)
    return ServerToolResult(
        type=own.block or "",
        tool_use_id=part.id,
        content=part.raw if part.raw is not UNSET else _EMPTY,
        caller=own.caller,
    )
