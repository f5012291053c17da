"""Builds the messages of a model request from history, and shrinks a prompt that is too long.

Owns the order of the steps (convert, pair calls, apply strict rules, prepend instructions), not
tools, options or the wire. Inputs are never modified.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from chatd.domain.answer.tool_output import clip_middle
from chatd.domain.chat.messages import Message
from chatd.domain.chat.parts import (
    CONTENT_VERSION,
    ContextFilePart,
    FilePart,
    FileReferencePart,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from chatd.domain.errors import InvariantBroken
from chatd.domain.model.protocol import (
    PromptCall,
    PromptFile,
    PromptMessage,
    PromptPart,
    PromptReasoning,
    PromptResult,
    PromptText,
)
from chatd.domain.prompt.compaction import rows_for_prompt
from chatd.domain.prompt.instructions import Instructions, context_block, reference_text
from chatd.domain.prompt.parts import (
    AcceptsMediaType,
    ResolvedFile,
    convert_call,
    convert_file,
    convert_reasoning,
    convert_result,
    convert_text,
)
from chatd.domain.prompt.provider_content import (
    Origins,
    drop_unpaired,
    is_from_other_provider,
    strip_provider_content,
)
from chatd.domain.prompt.repair import (
    is_signed,
    join_consecutive,
    pair_calls_with_results,
    rename_call_ids,
)


class PromptTarget(Struct, frozen=True, kw_only=True):
    """The provider that will read the prompt, and what building it needs.

    `strict_tools`: the provider rejects a prompt in which a provider-executed call and its result
    are not properly paired. `accepts` tells which media types it takes as files; None: unknown.
    """

    provider: str
    origins: Origins | None = None
    files: Mapping[str, ResolvedFile] = {}
    accepts: AcceptsMediaType | None = None
    strict_tools: bool = False
    instructions: Instructions = Instructions()


def list_file_ids(history: Sequence[Message]) -> list[str]:
    """Ids of all files that the prompt needs, so that one read can load them."""
    rows = [row for row in rows_for_prompt(history) if row.role == "user"]
    ids = (p.file_id for row in rows for p in row.content if isinstance(p, FilePart))
    return list(dict.fromkeys(file_id for file_id in ids if file_id is not None))


def build_prompt(history: Sequence[Message], target: PromptTarget) -> tuple[PromptMessage, ...]:
    """System messages, then messages that start with the user's and end with the user's or with
    tool results."""
    rows = rows_for_prompt(history)
    system = [text for row in rows if row.role == "system" for text in _system_texts(row)]
    system += _instructions(history, rows, target).texts()
    messages = [_message(row, target) for row in rows if row.role != "system"]
    ordered = pair_calls_with_results([message for message in messages if message.parts])
    if target.strict_tools:
        ordered = drop_unpaired(ordered)
    front = [PromptMessage(role="system", parts=(PromptText(text=text),)) for text in system]
    return (*front, *rename_call_ids(join_consecutive(ordered)))


def _system_texts(row: Message) -> list[str]:
    _check_version(row)
    parts = [convert_text(part) for part in row.content if isinstance(part, TextPart)]
    return ["\n\n".join(part.text for part in parts if part is not None)] if any(parts) else []


def _instructions(
    history: Sequence[Message], rows: Sequence[Message], target: PromptTarget
) -> Instructions:
    blocks = (target.instructions.workspace, _hidden_context(history, rows))
    workspace = "\n\n".join(block for block in blocks if block) or None
    return msgspec.structs.replace(target.instructions, workspace=workspace)


def _hidden_context(history: Sequence[Message], rows: Sequence[Message]) -> str | None:
    """The newest workspace context, if a summary hides its message: it still applies."""
    if any(isinstance(part, ContextFilePart) for row in rows for part in row.content):
        return None
    files = [
        part
        for row in history
        if not row.deleted
        for part in row.content
        if isinstance(part, ContextFilePart)
    ]
    if not files:
        return None
    agent = files[-1].context_file_agent_id
    newest = {f.context_file_path: f for f in files if f.context_file_agent_id == agent}
    return context_block(newest.values())


def _check_version(row: Message) -> None:
    if row.content_version != CONTENT_VERSION:
        raise InvariantBroken(
            f"Message {row.id} has content version {row.content_version},"
            " which this version of chatd cannot read."
        )


def _message(row: Message, target: PromptTarget) -> PromptMessage:
    _check_version(row)
    match row.role:
        case "user":
            parts = _user_parts(row.content, target)
        case "assistant":
            content = row.content
            if is_from_other_provider(row, target.provider, target.origins):
                content = strip_provider_content(content)
            parts = _assistant_parts(content)
        case _:
            parts = [
                convert_result(part) for part in row.content if isinstance(part, ToolResultPart)
            ]
    return PromptMessage(role=row.role, parts=tuple(parts))


def _user_parts(content: Sequence[Part], target: PromptTarget) -> list[PromptPart]:
    files = [part for part in content if isinstance(part, ContextFilePart)]
    parts: list[PromptPart | None] = []
    for part in content:
        match part:
            case TextPart():
                parts.append(convert_text(part))
            case FilePart():
                parts.append(convert_file(part, target.files, target.accepts))
            case FileReferencePart():
                parts.append(PromptText(text=reference_text(part)))
            case ContextFilePart() if part is files[0]:
                block = context_block(files)
                parts.append(None if block is None else PromptText(text=block))
            case ToolResultPart():
                parts.append(convert_result(part))
            case _:
                pass
    return [part for part in parts if part is not None]


def _assistant_parts(content: Sequence[Part]) -> list[PromptPart]:
    """Files in an answer are for viewers only and are not sent back to the model."""
    parts: list[PromptPart | None] = []
    for part in content:
        match part:
            case TextPart():
                parts.append(convert_text(part))
            case ReasoningPart():
                parts.append(convert_reasoning(part))
            case ToolCallPart():
                parts.append(convert_call(part))
            case ToolResultPart():
                parts.append(convert_result(part))
            case _:
                pass
    return [part for part in parts if part is not None]


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
