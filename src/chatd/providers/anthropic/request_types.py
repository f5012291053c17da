"""Types of a Messages API request: the body and its blocks."""

from typing import Literal

from msgspec import UNSET, Raw, Struct, UnsetType

from chatd.providers.tool_schema import Schema


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
    input_schema: Schema


class ComputerTool(Struct, frozen=True, kw_only=True, omit_defaults=True):
    type: str
    name: str | None = None
    display_width_px: int | None = None
    display_height_px: int | None = None


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
