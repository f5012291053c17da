"""Messages on their way as rows, what is copied of a row, and the subagents whose cards are on the
screen."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final
from uuid import UUID

import msgspec

from chatd.client.connection import Connection, FollowedChat
from chatd.client.drafts import CommandInput, FileInput, FileReferenceInput, PendingSend, TextInput
from chatd.domain.chat.parts import FilePart, FileReferencePart
from chatd.domain.ids import ChatId
from chatd.terminal.safe_text import safe_text
from chatd.terminal.timeline.agent_cards import child_view
from chatd.terminal.timeline.card import ChildView
from chatd.terminal.timeline.markdown_lines import PARSER
from chatd.terminal.timeline.row import (
    CompactedMark,
    FailedRow,
    FilesRow,
    MarkRow,
    NoticeMark,
    PendingNote,
    ProseRow,
    ReadsRow,
    ReasoningRow,
    Row,
    SourcesRow,
    ToolRow,
    UserRow,
)
from chatd.terminal.timeline.row_model import RowModel
from chatd.terminal.timeline.tool_call import ToolCall, call_text, read_call, text_of


def pending_rows(pending: Sequence[PendingSend], *, is_busy: bool) -> list[UserRow]:
    """Messages on their way. Those that a busy chat takes go to its queue, which shows them."""
    return [
        _pending_row(item)
        for item in pending
        if not is_busy or item.state == "refused" or item.problem is not None
    ]


def _pending_row(item: PendingSend) -> UserRow:
    parts = item.draft.content
    problem = "" if item.problem is None else item.problem.message
    return UserRow(
        key=f"send-{item.key}",
        text="\n\n".join(
            part.text if isinstance(part, TextInput) else f"! {part.command}"
            for part in parts
            if isinstance(part, TextInput | CommandInput)
        ),
        files=tuple(
            FilePart(media_type="", name="file") for part in parts if isinstance(part, FileInput)
        ),
        references=tuple(
            FileReferencePart(
                file_name=part.file_name,
                start_line=part.start_line,
                end_line=part.end_line,
                content=part.content,
            )
            for part in parts
            if isinstance(part, FileReferenceInput)
        ),
        pending=PendingNote(
            id=item.key,
            is_kept=item.problem is not None and item.state != "refused",
            refusal=problem if item.state == "refused" else "",
        ),
    )


# What is copied of a row: what its author wrote, without anything that acts on a terminal.

MAX_COPIED_CHARS: Final = 1_000_000
"""Terminals refuse a longer OSC 52; most refuse shorter ones already."""


def copied_text(row: Row) -> str:
    """The text to copy; empty if the row has none."""
    return safe_text(_text_of(row)[:MAX_COPIED_CHARS])


def code_blocks(row: Row) -> list[str]:
    """The code blocks of a message; for a command, the command itself."""
    if isinstance(row, ToolRow):
        command = text_of(read_call(row.call).args, "command")
        return [safe_text(command[:MAX_COPIED_CHARS])] if command else []
    if not isinstance(row, ProseRow):
        return []
    tokens = PARSER.parse(safe_text(row.text[:MAX_COPIED_CHARS]))
    return [token.content for token in tokens if token.type in ("fence", "code_block")]


def _text_of(row: Row) -> str:
    match row:
        case UserRow(text=text) | ProseRow(text=text) | ReasoningRow(text=text):
            return text
        case ToolRow(call=call):
            return _call_text(call)
        case ReadsRow(calls=calls):
            return "\n".join(text_of(read_call(call).args, "path") for call in calls)
        case SourcesRow(sources=sources):
            return "\n".join(source.url for source in sources)
        case FilesRow(files=files):
            return "\n".join(file.name or "" for file in files)
        case MarkRow(mark=CompactedMark(summary=summary)):
            return summary
        case MarkRow(mark=NoticeMark(text=text)):
            return text
        case FailedRow(error=error):
            return "\n".join(text for text in (error.message, error.detail) if text)
        case _:
            return ""


def _call_text(call: ToolCall) -> str:
    """The tool's output; its arguments if the output has no text."""
    facts = read_call(call)
    found = facts.live_output or text_of(
        facts.result, "output", "report", "content", "body", "text", "error"
    )
    if found:
        return found
    diffs = facts.result.get("files")
    if diffs:
        return msgspec.json.format(msgspec.json.encode(diffs), indent=2).decode()
    return text_of(facts.args, "content", "message") or call_text(call)


# Follows the subagents whose cards are on the screen.

MAX_FOLLOWED: Final = 16


class Children:
    """`changed` is called in the connection's task, whenever a child that is followed changes."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._stops: dict[str, Callable[[], None]] = {}
        self._newest: dict[str, FollowedChat] = {}
        self._models: dict[str, RowModel] = {}
        self._views: Mapping[str, ChildView] = {}

    def follow(self, wanted: Collection[str], connection: Connection) -> None:
        """Follow these and no others; the view of one that left the screen is kept until `stop`."""
        some = list(dict.fromkeys(wanted))[:MAX_FOLLOWED]
        for chat_id in self._stops.keys() - set(some):
            self._stops.pop(chat_id)()
        for chat_id in some:
            if chat_id not in self._stops:
                self._stops[chat_id] = connection.follow_chat(ChatId(UUID(chat_id)), self._receive)

    def stop(self) -> None:
        for stop in self._stops.values():
            stop()
        self._stops.clear()
        self._newest.clear()
        self._models.clear()
        self._views = {}

    def views(self) -> Mapping[str, ChildView]:
        """The same object as long as nothing has changed."""
        if self._newest:
            fresh = {key: self._view(key, chat) for key, chat in self._newest.items()}
            self._newest.clear()
            if any(self._views.get(key) != view for key, view in fresh.items()):
                self._views = {**self._views, **fresh}
        return self._views

    def _receive(self, chat: FollowedChat) -> None:
        self._newest[str(chat.chat_id)] = chat
        self._changed()

    def _view(self, key: str, chat: FollowedChat) -> ChildView:
        model = self._models.setdefault(key, RowModel())
        return child_view(chat.shown, model, gone=chat.gone)
