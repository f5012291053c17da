"""The blocks and tools of a Messages API request: their types, and how the parts of a message
become blocks.

Decides which parts are sent back unchanged, which are converted and which are left out.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from chatd.domain.model.protocol import (
    PromptCall,
    PromptFile,
    PromptMessage,
    PromptPart,
    PromptReasoning,
    PromptResult,
    PromptText,
)
from chatd.providers.anthropic.anthropic_wire import unpack_metadata
from chatd.providers.file_inputs import (
    ANTHROPIC_FILES,
    DocumentInput,
    ImageInput,
    MediaInput,
    NoteInput,
    TextFileInput,
    base64_json,
    fit_file,
)
from chatd.providers.tool_schema import Schema, ToolNames


class CacheControl(Struct, frozen=True, kw_only=True, tag_field="type", tag="ephemeral"):
    """The provider caches the request up to this block."""


class Block(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    pass


class Cacheable(Block, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    cache_control: CacheControl | None = None


class Text(Cacheable, frozen=True, kw_only=True, omit_defaults=True, tag="text"):
    text: str
    citations: list[Raw] | None = None


class Thinking(Block, frozen=True, kw_only=True, tag="thinking"):
    thinking: str
    signature: str


class RedactedThinking(Block, frozen=True, kw_only=True, tag="redacted_thinking"):
    data: str


class Base64(Struct, frozen=True, kw_only=True, tag_field="type", tag="base64"):
    media_type: str
    data: Raw


class PlainText(Struct, frozen=True, kw_only=True, tag_field="type", tag="text"):
    data: str
    media_type: str = "text/plain"


class Image(Cacheable, frozen=True, kw_only=True, omit_defaults=True, tag="image"):
    source: Base64


class Document(Cacheable, frozen=True, kw_only=True, omit_defaults=True, tag="document"):
    source: Base64 | PlainText
    title: str | None = None


class ToolUse(Cacheable, frozen=True, kw_only=True, omit_defaults=True, tag="tool_use"):
    id: str
    name: str
    input: Raw
    toolset_name: str | None = None


class ToolResult(Cacheable, frozen=True, kw_only=True, omit_defaults=True, tag="tool_result"):
    tool_use_id: str
    content: tuple[Text | Image | Document, ...] = ()
    is_error: bool = False
    toolset_name: str | None = None


class ServerToolUse(
    Cacheable, frozen=True, kw_only=True, omit_defaults=True, tag="server_tool_use"
):
    id: str
    name: str
    input: Raw
    caller: Raw | UnsetType = UNSET


class ServerToolResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sent back with its original type."""

    type: str
    tool_use_id: str
    content: Raw
    caller: Raw | UnsetType = UNSET
    cache_control: CacheControl | None = None


Content = (
    Text
    | Thinking
    | RedactedThinking
    | Image
    | Document
    | ToolUse
    | ToolResult
    | ServerToolUse
    | ServerToolResult
)


class Message(Struct, frozen=True, kw_only=True):
    role: Literal["user", "assistant"]
    content: tuple[Content, ...]


# Tools


class FunctionTool(Struct, frozen=True, kw_only=True):
    name: str
    description: str
    input_schema: Raw


class ComputerTool(Struct, frozen=True, kw_only=True, omit_defaults=True):
    type: str
    name: str | None = None
    display_width_px: int | None = None
    display_height_px: int | None = None
    enable_zoom: bool | None = None


class WebSearchTool(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="type",
    tag="web_search_20250305",
):
    name: str
    allowed_domains: tuple[str, ...] | None = None
    blocked_domains: tuple[str, ...] | None = None


Tool = FunctionTool | ComputerTool | WebSearchTool


class ToolChoice(Struct, frozen=True, kw_only=True, omit_defaults=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


# Thinking


class BlockBinding(Struct, frozen=True, kw_only=True):
    """Drop thinking if the history before it has changed: by compaction, an edit or other tools.
    Without this setting the API rejects the whole request."""

    prefix_mismatch_behavior: Literal["error", "drop_block"] = "drop_block"


class ThinkingConfig(Struct, frozen=True, kw_only=True, omit_defaults=True):
    type: Literal["enabled", "adaptive", "disabled", "between_tools"]
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted"] | None = None
    block_binding: BlockBinding | None = None


class OutputFormat(Struct, frozen=True, kw_only=True, tag_field="type", tag="json_schema"):
    schema: Schema


class OutputConfig(Struct, frozen=True, kw_only=True, omit_defaults=True):
    effort: str | None = None
    format: OutputFormat | None = None


class Body(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """In the order of the provider's cache: tools, system, messages."""

    max_tokens: int
    tools: tuple[Tool, ...] | UnsetType = UNSET
    system: tuple[Text, ...] | UnsetType = UNSET
    messages: Raw
    model: str | UnsetType = UNSET
    stream: bool | UnsetType = UNSET
    anthropic_version: str | UnsetType = UNSET
    anthropic_beta: tuple[str, ...] | UnsetType = UNSET
    tool_choice: ToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None


# From parts to blocks

COMPUTER: Final = "computer"

_EMPTY: Final = Raw(b"{}")
_MAX_TITLE: Final = 200


class BlockOptions(Struct, frozen=True, kw_only=True):
    """`send_thinking`: include earlier thinking. `as_toolset`: the screen is a set of tools, while
    history has it as one tool with actions."""

    names: ToolNames
    send_thinking: bool = True
    as_toolset: bool = False


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
                pass  # Only the assistant has calls, thinking and provider-executed results.
    return blocks


def _file(file: PromptFile) -> Text | Image | Document:
    match fit_file(file, ANTHROPIC_FILES):
        case ImageInput(media_type=kind, data=data):
            return Image(source=Base64(media_type=kind, data=base64_json(data)))
        case DocumentInput(media_type=kind, data=data, name=name):
            return Document(
                source=Base64(media_type=kind, data=base64_json(data)), title=_title(name)
            )
        case TextFileInput(text=text, name=name) if text.strip():
            return Document(source=PlainText(data=text), title=_title(name))
        case TextFileInput(name=name):
            return Text(text=f"[The file {name or ''} contains only white space.]")
        case NoteInput(text=text):
            return Text(text=text)
        case MediaInput(media_type=kind):
            return Text(text=f"[A file of type {kind} is not shown.]")


def _title(name: str | None) -> str | None:
    """The name with the characters that the API allows in a title."""
    plain = re.sub(r"[^A-Za-z0-9\-()\[\]]+", " ", name or "").strip()
    return plain[:_MAX_TITLE].strip() or None


def _result(result: PromptResult, toolset: str | None) -> ToolResult:
    content: list[Text | Image | Document] = []
    if result.text.strip():
        content.append(Text(text=result.text))
    if result.media is not None and not result.is_error:
        content.append(_file(result.media))
    if result.is_error and not content:
        # The API requires text in an error.
        content.append(Text(text="The tool failed without a message."))
    return ToolResult(
        tool_use_id=_call_id(result.id),
        content=tuple(content),
        is_error=result.is_error,
        toolset_name=toolset,
    )


def _call_id(call_id: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", call_id)


def assistant_blocks(
    parts: Sequence[PromptPart], options: BlockOptions, *, is_paused: bool = False
) -> list[Content]:
    """`is_paused`: the API continues this answer, and runs its calls that have no result."""
    paired = _paired(parts, with_open_calls=is_paused)
    blocks: list[Content] = []
    for part in parts:
        match part:
            case PromptText() if part.text.strip():
                blocks.append(
                    Text(
                        text=part.text, citations=unpack_metadata(part.provider_metadata).citations
                    )
                )
            case PromptReasoning() if options.send_thinking:
                blocks.extend(_thought(part))
            case PromptCall(provider_executed=True) if part.id in paired:
                blocks.append(_server_call(part))
            case PromptCall(provider_executed=False):
                blocks.append(_call(part, options))
            case PromptResult(provider_executed=True) if part.id in paired:
                blocks.append(_server_result(part))
            case _:
                pass
    return blocks


def _thought(part: PromptReasoning) -> list[Content]:
    """The API rejects unsigned thinking, so it is left out."""
    metadata = unpack_metadata(part.provider_metadata)
    if metadata.redacted_thinking is not None:
        return [RedactedThinking(data=metadata.redacted_thinking)]
    if metadata.signature:
        return [Thinking(thinking=part.text, signature=metadata.signature)]
    return []


def _call(part: PromptCall, options: BlockOptions) -> ToolUse:
    fields = _fields(part.input)
    action = _action(part) if options.as_toolset else None
    if action is None or fields is None:
        return ToolUse(
            id=_call_id(part.id),
            name=options.names.to_wire(part.name),
            input=_EMPTY if fields is None else part.input,
        )
    del fields["action"]
    rest = Raw(msgspec.json.encode(fields))
    return ToolUse(id=_call_id(part.id), name=action, input=rest, toolset_name=COMPUTER)


def _action(part: PromptCall) -> str | None:
    """The action of a call of the computer tool; None for other calls."""
    fields = _fields(part.input) if part.name == COMPUTER else None
    action = msgspec.json.decode(fields["action"]) if fields and "action" in fields else None
    return action if isinstance(action, str) else None


def toolset_call_ids(messages: Iterable[PromptMessage]) -> frozenset[str]:
    return frozenset(
        part.id
        for message in messages
        for part in message.parts
        if isinstance(part, PromptCall) and _action(part) is not None
    )


def _fields(raw: Raw) -> dict[str, Raw] | None:
    """The fields of the input; None unless it is an object."""
    try:
        return msgspec.json.decode(raw, type=dict[str, Raw])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


# Provider-executed tools


def _paired(parts: Sequence[PromptPart], *, with_open_calls: bool) -> frozenset[str]:
    """Ids of calls with a result, both made by this API. The API rejects half of a pair and
    pairs of other providers."""
    calls: set[str] = set()
    paired: set[str] = set()
    for part in parts:
        if isinstance(part, PromptCall) and part.provider_executed:
            if unpack_metadata(part.provider_metadata).block == "server_tool_use":
                calls.add(part.id)
        elif isinstance(part, PromptResult) and part.provider_executed and part.id in calls:
            is_ours = (
                unpack_metadata(part.provider_metadata).block is not None and part.raw is not UNSET
            )
            (paired.add if is_ours else paired.discard)(part.id)
            calls.discard(part.id)
    return frozenset(paired | calls if with_open_calls else paired)


def _server_call(part: PromptCall) -> ServerToolUse:
    fields = _fields(part.input)
    return ServerToolUse(
        id=part.id,
        name=part.name,
        input=_EMPTY if fields is None else part.input,
        caller=unpack_metadata(part.provider_metadata).caller,
    )


def _server_result(part: PromptResult) -> ServerToolResult:
    metadata = unpack_metadata(part.provider_metadata)
    return ServerToolResult(
        type=metadata.block or "",
        tool_use_id=part.id,
        content=part.raw if part.raw is not UNSET else _EMPTY,
        caller=metadata.caller,
    )
