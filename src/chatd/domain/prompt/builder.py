"""From history to the messages of a request.

Owns which rows a model sees and in what order things are done to them: conversion, order of
calls and results, the strict provider's rules, instructions in front. Each of these has a module
of its own. Does not own tools, options or the wire. Nothing that is passed in is changed.

A prompt that is too long for its model, made shorter by force.

Only for the request that asks for a summary after the model has refused the whole: the longest
things go first, then the oldest, and what is left is still a conversation.
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
    """Who will read the prompt, and what is needed to write it.

    `strict_tools`: the provider refuses a conversation in which its own calls are not in
    perfect order. `takes` says which files it shows its models; None: that is not known here.
    """

    provider: str
    origins: Origins | None = None
    files: Mapping[str, ResolvedFile] = {}
    takes: AcceptsMediaType | None = None
    strict_tools: bool = False
    instructions: Instructions = Instructions()


def list_file_ids(history: Sequence[Message]) -> list[str]:
    """Ids of all files the prompt will need, to be read in one go."""
    rows = [row for row in rows_for_prompt(history) if row.role == "user"]
    ids = (p.file_id for row in rows for p in row.content if isinstance(p, FilePart))
    return list(dict.fromkeys(file_id for file_id in ids if file_id is not None))


def build_prompt(history: Sequence[Message], reader: PromptTarget) -> tuple[PromptMessage, ...]:
    """System messages first, then a conversation that begins with the user and ends with the
    user or with results."""
    rows = rows_for_prompt(history)
    system = [text for row in rows if row.role == "system" for text in _system_texts(row)]
    system += _instructions(history, rows, reader).texts()
    messages = [_message(row, reader) for row in rows if row.role != "system"]
    ordered = pair_calls_with_results([message for message in messages if message.parts])
    if reader.strict_tools:
        ordered = drop_unpaired(ordered)
    front = [PromptMessage(role="system", parts=(PromptText(text=text),)) for text in system]
    return (*front, *rename_call_ids(join_consecutive(ordered)))


def _system_texts(row: Message) -> list[str]:
    _check_version(row)
    parts = [convert_text(part) for part in row.content if isinstance(part, TextPart)]
    return ["\n\n".join(part.text for part in parts if part is not None)] if any(parts) else []


def _instructions(
    history: Sequence[Message], rows: Sequence[Message], reader: PromptTarget
) -> Instructions:
    blocks = (reader.instructions.workspace, _lost_context(history, rows))
    workspace = "\n\n".join(block for block in blocks if block) or None
    return msgspec.structs.replace(reader.instructions, workspace=workspace)


def _lost_context(history: Sequence[Message], rows: Sequence[Message]) -> str | None:
    """A summary hides the message with the workspace's instruction files, but they hold on."""
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
            f"Message {row.id} has content of version {row.content_version},"
            " which this version of chatd cannot read."
        )


def _message(row: Message, reader: PromptTarget) -> PromptMessage:
    _check_version(row)
    match row.role:
        case "user":
            parts = _user_parts(row.content, reader)
        case "assistant":
            foreign = is_from_other_provider(row, reader.provider, reader.origins)
            parts = _assistant_parts(
                strip_provider_content(row.content) if foreign else row.content
            )
        case _:
            parts = [
                convert_result(part) for part in row.content if isinstance(part, ToolResultPart)
            ]
    return PromptMessage(role=row.role, parts=tuple(parts))


def _user_parts(content: Sequence[Part], reader: PromptTarget) -> list[PromptPart]:
    files = [part for part in content if isinstance(part, ContextFilePart)]
    parts: list[PromptPart | None] = []
    for part in content:
        match part:
            case TextPart():
                parts.append(convert_text(part))
            case FilePart():
                parts.append(convert_file(part, reader.files, reader.takes))
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
    """Files of an answer are for people; the model knows that it made them."""
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


def shrink_prompt(messages: Sequence[PromptMessage], halvings: int) -> tuple[PromptMessage, ...]:
    """`messages` at half their size, or at a quarter, and so on. System messages stay whole."""
    front = [message for message in messages if message.role == "system"]
    talk = [message for message in messages if message.role != "system"]
    budget = prompt_bytes(talk) >> halvings
    talk = _shortened(talk, budget)
    return (*front, *join_consecutive(_newest(talk, budget)))


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
            return msgspec.structs.replace(part, text=clip_middle(part.text, MIN_SHRUNK_TEXT_CHARS))
        case PromptResult() if not part.provider_executed:
            text = clip_middle(part.text, MIN_SHRUNK_TEXT_CHARS) or _FILE_LEFT_OUT
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
