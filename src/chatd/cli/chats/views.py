"""Chats as text: rows of the list, one chat with its facts, and messages as a transcript. Pure."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from chatd.cli.output import dollars, field_lines, short_time
from chatd.cli.run.call_lines import call_line
from chatd.cli.run.progress import CALL_MARK, result_line
from chatd.client.resources import Chat, ListedChat
from chatd.domain.chat.parts import (
    FilePart,
    FileReferencePart,
    NoticePart,
    SourcePart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from chatd.domain.chat.public_messages import PublicMessage
from chatd.domain.ids import ModelConfigId
from chatd.terminal.safe_text import safe_line

LIST_HEADINGS: Final = ("ID", "STATUS", "CHANGED", "TITLE")
_NAMES: Final = {"user": "you", "assistant": "model", "tool": "tools", "system": "chatd"}


def list_row(chat: ListedChat, now: datetime) -> tuple[str, str, str, str]:
    marks = [
        "pinned" if chat.pin_order else "",
        f"of {chat.owner_username}" if chat.is_owner is False and chat.owner_username else "",
        f"{len(chat.children)} subagents" if chat.children else "",
    ]
    told = ", ".join(mark for mark in marks if mark)
    title = f"{chat.title} ({told})" if told else chat.title
    child = next((one for one in chat.children if one.status == "requires_action"), None)
    if chat.action_summary:
        title = f"{title} — {chat.action_summary}"
    elif child is not None:
        title = f"{title} — its subagent {child.id} waits: {child.action_summary or ''}"
    elif chat.match is not None:
        title = f"{title} — {chat.match.text}"
    return str(chat.id), chat.status, short_time(chat.updated_at, now), title


def chat_lines(chat: Chat, models: Mapping[ModelConfigId, str], now: datetime) -> list[str]:
    """The facts of a chat, one per line."""
    model = "" if chat.last_model_config_id is None else models.get(chat.last_model_config_id, "")
    error = chat.last_error
    fields = {
        "id": str(chat.id),
        "title": chat.title,
        "status": chat.status,
        "needs": chat.action_summary or "",
        "error": "" if error is None else error.message,
        "owner": chat.owner_username or "",
        "model": f"{model} {chat.reasoning_effort or ''}".strip(),
        "mode": chat.mode or "",
        "labels": ", ".join(f"{key}={value}" for key, value in chat.labels.items()),
        "workspace": str(chat.workspace_id or ""),
        "queue": "" if not chat.queue_len else f"{chat.queue_len} messages",
        "budget": "" if chat.max_cost_micros is None else dollars(chat.max_cost_micros),
        "parent": str(chat.parent_chat_id or ""),
        "created": short_time(chat.created_at, now),
        "changed": short_time(chat.updated_at, now),
    }
    return field_lines(fields)


def transcript_lines(messages: Sequence[PublicMessage]) -> list[str]:
    """Each message below a line with its number and its author. Results of tools are told only if
    they failed; the model's reasoning is left out."""
    lines: list[str] = []
    for message in messages:
        if told := message_text(message):
            lines += ["", f"[{message.id}] {_NAMES.get(message.role, message.role)}", *told]
    return lines[1:]


def message_text(message: PublicMessage) -> list[str]:
    lines: list[str] = []
    for part in message.content:
        match part:
            case TextPart(text=text):
                lines += text.strip("\n").split("\n")
            case ToolCallPart():
                lines.append(f"{CALL_MARK} {call_line(part.tool_name, part.args)}")
                if part.cut:
                    lines.append(safe_line(f"  (cut off: {part.args_text or ''}", 160) + ")")
            case ToolResultPart():
                lines += [result_line(part)] if result_line(part) else []
            case FilePart():
                named = part.name or part.media_type
                lines.append(safe_line(f"(file {named}, {part.file_id or 'inline'})", 200))
            case FileReferencePart():
                place = f"{part.file_name}:{part.start_line}-{part.end_line}"
                lines += [safe_line(f"({place})", 200), *part.content.split("\n")]
            case NoticePart(code="imported_prompt", text=text):
                lines += f"(notice: {text})".split("\n")  # in full: the model gets all of it
            case NoticePart():
                lines.append(safe_line(f"(notice: {part.text})", 400))
            case SourcePart():
                lines.append(safe_line(f"(source {part.title or ''} {part.url})", 200))
            case _:
                pass
    return lines
