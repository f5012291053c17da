"""From history to the messages of a request.

Owns which rows a model sees and in what order things are done to them: conversion, order of
calls and results, the strict provider's rules, instructions in front. Each of these has a module
of its own. Does not own tools, options or the wire. Nothing that is passed in is changed.
"""

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from chatd.domain.compaction import prompt_rows
from chatd.domain.errors import InvariantBroken
from chatd.domain.foreign import Origins, is_foreign, stripped
from chatd.domain.messages import Message
from chatd.domain.model import PromptMessage, PromptPart, PromptText
from chatd.domain.parts import (
    CONTENT_VERSION,
    ContextFile,
    File,
    FileReference,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
)
from chatd.domain.prompt_files import ResolvedFile, Takes, file_part
from chatd.domain.prompt_parts import call_part, reasoning_part, result_part, text_part
from chatd.domain.prompt_repair import joined, paired, renamed
from chatd.domain.prompt_text import Instructions, context_block, reference_text
from chatd.domain.provider_tools import guarded


class Reader(Struct, frozen=True, kw_only=True):
    """Who will read the prompt, and what is needed to write it.

    `strict_tools`: the provider refuses a conversation in which its own calls are not in
    perfect order. `takes` says which files it shows its models; None: that is not known here.
    """

    provider: str
    origins: Origins | None = None
    files: Mapping[str, ResolvedFile] = {}
    takes: Takes | None = None
    strict_tools: bool = False
    instructions: Instructions = Instructions()


def wanted_files(history: Sequence[Message]) -> list[str]:
    """Ids of all files the prompt will need, to be read in one go."""
    rows = [row for row in prompt_rows(history) if row.role == "user"]
    ids = (p.file_id for row in rows for p in row.content if isinstance(p, File))
    return list(dict.fromkeys(file_id for file_id in ids if file_id is not None))


def build_prompt(history: Sequence[Message], reader: Reader) -> tuple[PromptMessage, ...]:
    """System messages first, then a conversation that begins with the user and ends with the
    user or with results."""
    rows = prompt_rows(history)
    system = [text for row in rows if row.role == "system" for text in _system_texts(row)]
    system += _instructions(history, rows, reader).texts()
    messages = [_message(row, reader) for row in rows if row.role != "system"]
    ordered = paired([message for message in messages if message.parts])
    if reader.strict_tools:
        ordered = guarded(ordered)
    front = [PromptMessage(role="system", parts=(PromptText(text=text),)) for text in system]
    return (*front, *renamed(joined(ordered)))


def _system_texts(row: Message) -> list[str]:
    _check_version(row)
    parts = [text_part(part) for part in row.content if isinstance(part, Text)]
    return ["\n\n".join(part.text for part in parts if part is not None)] if any(parts) else []


def _instructions(
    history: Sequence[Message], rows: Sequence[Message], reader: Reader
) -> Instructions:
    blocks = (reader.instructions.workspace, _lost_context(history, rows))
    workspace = "\n\n".join(block for block in blocks if block) or None
    return msgspec.structs.replace(reader.instructions, workspace=workspace)


def _lost_context(history: Sequence[Message], rows: Sequence[Message]) -> str | None:
    """A summary hides the message with the workspace's instruction files, but they hold on."""
    if any(isinstance(part, ContextFile) for row in rows for part in row.content):
        return None
    files = [
        part
        for row in history
        if not row.deleted
        for part in row.content
        if isinstance(part, ContextFile)
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


def _message(row: Message, reader: Reader) -> PromptMessage:
    _check_version(row)
    match row.role:
        case "user":
            parts = _user_parts(row.content, reader)
        case "assistant":
            foreign = is_foreign(row, reader.provider, reader.origins)
            parts = _assistant_parts(stripped(row.content) if foreign else row.content)
        case _:
            parts = [result_part(part) for part in row.content if isinstance(part, ToolResult)]
    return PromptMessage(role=row.role, parts=tuple(parts))


def _user_parts(content: Sequence[Part], reader: Reader) -> list[PromptPart]:
    files = [part for part in content if isinstance(part, ContextFile)]
    parts: list[PromptPart | None] = []
    for part in content:
        match part:
            case Text():
                parts.append(text_part(part))
            case File():
                parts.append(file_part(part, reader.files, reader.takes))
            case FileReference():
                parts.append(PromptText(text=reference_text(part)))
            case ContextFile() if part is files[0]:
                block = context_block(files)
                parts.append(None if block is None else PromptText(text=block))
            case ToolResult():
                parts.append(result_part(part))
            case _:
                pass
    return [part for part in parts if part is not None]


def _assistant_parts(content: Sequence[Part]) -> list[PromptPart]:
    """Files of an answer are for people; the model knows that it made them."""
    parts: list[PromptPart | None] = []
    for part in content:
        match part:
            case Text():
                parts.append(text_part(part))
            case Reasoning():
                parts.append(reasoning_part(part))
            case ToolCall():
                parts.append(call_part(part))
            case ToolResult():
                parts.append(result_part(part))
            case _:
                pass
    return [part for part in parts if part is not None]
