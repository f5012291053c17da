"""Parts: the pieces of a message, in one JSON shape for storage and wire."""

from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct

from chatd.domain.ids import ToolCallId
from chatd.domain.text import Json

CONTENT_VERSION = 1

SUMMARY_TOOL_NAME: Final = "chat_summarized"
"""Summaries are shown as a call of this tool. No model may call it."""


class _Part(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    pass


class TextPart(_Part, frozen=True, kw_only=True, tag="text"):
    text: str
    provider_metadata: Json = UNSET


class ReasoningPart(_Part, frozen=True, kw_only=True, tag="reasoning"):
    text: str
    created_at: str | None = None
    completed_at: str | None = None
    provider_metadata: Json = UNSET


class ToolCallPart(_Part, frozen=True, kw_only=True, tag="tool-call"):
    """`args` is absent when the model's arguments were not valid JSON. `cut`: the answer was cut
    off, so the arguments may be incomplete and the call never runs."""

    tool_call_id: ToolCallId
    tool_name: str
    args: Json = UNSET
    args_delta: str | None = None
    provider_executed: bool = False
    cut: bool = False
    mcp_server_config_id: str | None = None
    created_at: str | None = None
    provider_metadata: Json = UNSET


class ToolResultPart(_Part, frozen=True, kw_only=True, tag="tool-result"):
    tool_call_id: ToolCallId
    tool_name: str
    result: Json = UNSET
    result_delta: str | None = None
    is_error: bool = False
    is_media: bool = False
    provider_executed: bool = False
    mcp_server_config_id: str | None = None
    created_at: str | None = None
    provider_metadata: Json = UNSET


class SourcePart(_Part, frozen=True, kw_only=True, tag="source"):
    url: str
    source_id: str | None = None
    title: str | None = None


class FilePart(_Part, frozen=True, kw_only=True, tag="file"):
    media_type: str
    file_id: str | None = None
    name: str | None = None
    data: str | None = None


class FileReferencePart(_Part, frozen=True, kw_only=True, tag="file-reference"):
    file_name: str
    start_line: int
    end_line: int
    content: str


class ContextFilePart(_Part, frozen=True, kw_only=True, tag="context-file"):
    context_file_path: str
    context_file_truncated: bool = False
    context_file_agent_id: str | None = None
    context_file_content: str | None = None
    context_file_os: str | None = None
    context_file_directory: str | None = None


class SkillPart(_Part, frozen=True, kw_only=True, tag="skill"):
    skill_name: str
    skill_description: str | None = None
    skill_dir: str | None = None


class InstructionPart(_Part, frozen=True, kw_only=True, tag="instruction"):
    """What the model was told in a section of its instructions. An empty text withdraws it."""

    section: str
    text: str


class UnknownPart(Struct, frozen=True, kw_only=True):
    raw: Raw


KnownPart = (
    TextPart
    | ReasoningPart
    | ToolCallPart
    | ToolResultPart
    | SourcePart
    | FilePart
    | FileReferencePart
    | ContextFilePart
    | SkillPart
    | InstructionPart
)
Part = KnownPart | UnknownPart


_NESTING_RESERVE: Final = 400


def validate_json(text: str) -> Raw:
    """JSON of a client, unchanged. Raises ValueError: "not JSON: ..." or "nested too deeply"."""
    try:
        msgspec.json.decode(text)
        # Later decodes run deeper in the stack and nested in a message, so require a reserve.
        msgspec.json.decode("[" * _NESTING_RESERVE + text + "]" * _NESTING_RESERVE)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise ValueError(f"not JSON: {error}") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return Raw(text.encode())
