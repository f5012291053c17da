"""Texts of others in every field of every row show as plain text and never act."""

import re
import time
from collections.abc import Iterator

import pytest
from rich.console import Console
from rich.style import Style

from chatd.client.state import ShownChat
from chatd.domain.chat.parts import (
    ContextFilePart,
    FilePart,
    FileReferencePart,
    KnownPart,
    ReasoningPart,
    SkillPart,
    SourcePart,
    TextPart,
    ToolCallPart,
)
from chatd.domain.chat.row import ChatError, RetryState
from chatd.domain.chat_views.events import RequestedCall, WaitingCall
from chatd.domain.ids import ToolCallId
from chatd.terminal.themes import DARK_PALETTE
from chatd.terminal.timeline.card import Canvas
from chatd.terminal.timeline.row import PendingNote, UserRow
from chatd.terminal.timeline.row_lines import DrawnRow, draw_row
from chatd.terminal.timeline.row_model import RowModel
from chatd.terminal.timeline.tool_cards import KNOWN_TOOLS
from tests.terminal.timeline_scenes import Script, call, live

HOSTILE = {
    "escape codes": "a\x1b[2J\x1b[31mred\x1b]0;title\x07\x1b]52;c;ZXZpbA==\x07\x9b5n\x1bP+q\x1b\\z",
    "markup": "[bold]b[/bold] [@click=app.quit]quit[/] [link=file:///etc/passwd]x[/link] [/]",
    "bidi": "abc\u202etxt.exe\u202c \u2066x\u2069 \u200fy\u061c",
    "invisible": "a\u200b\u200d\ufeff\U000e0041b\u00ad\ud800",
    "controls": "a\x00b\x07c\x08d\re\x0bf\x7fg\x85h",
    "wide": "日本語のとても長い文字列" * 20
    + "👩‍👩‍👧‍👦🇩🇪e\u0301\u0301\u0301\u0301\u0301\u0301\u0301",
    "markdown": "# h\n\n```\n"
    + "[" * 300
    + "](" * 300
    + "\n> " * 50
    + "| a |\n|---|\n"
    + "*" * 400,
    "empty lines": "\n\n\n \n\t\n",
}
_FIELDS = (
    *("command", "path", "content", "output", "error", "title", "prompt", "report", "message"),
    *("query", "pattern", "name", "note", "body", "text", "summary", "workspace_name", "data"),
    *("directory", "agent_error", "background_process_id", "media_type", "mime_type"),
    *("model_intent", "process_id", "last_error"),
)


def _tool_chats(text: str) -> Iterator[ShownChat]:
    text = _in_json(text)
    fields: dict[str, object] = dict.fromkeys(_FIELDS, text)
    fields |= {
        "files": [{"path": text, "diff": f"--- a\n+++ b\n@@ -1 +1 @@\n-{text}\n+{text}\n"}],
        "questions": [{"question": text, "options": [text, {"label": text}]}],
        "answers": [{"chosen": [text], "text": text}],
        "results": [{"url": text, "title": text}],
        "agents": [{"title": text, "status": text, "chat_id": text}],
        "processes": [{"command": text, "running": True}],
        "matches": [text, {"path": text}, {text: text}],
    }
    for name in (*KNOWN_TOOLS, text, f"mcp__{text}"):
        for is_error in (False, True):
            yield Script().ran("c", name, fields, fields, is_error=is_error).chat()
        running = Script().say("assistant", call("c", name, fields))
        asked = RequestedCall(
            tool_call_id=ToolCallId("c"), tool_name=name, kind="approval", reason=text
        )
        yield running.chat("requires_action", requested_calls=(asked,))
        delta = ToolCallPart(
            tool_call_id=ToolCallId("d"), tool_name=name, args_delta='{"path": "' + text
        )
        yield Script().chat("running", live=live(delta))


def _in_json(text: str) -> str:
    """JSON cannot carry lone surrogates; texts of parts can."""
    return re.sub("[\ud800-\udfff]", "", text)


def _other_chats(text: str) -> Iterator[ShownChat]:
    parts: tuple[KnownPart, ...] = (
        FilePart(media_type=text, name=text),
        FileReferencePart(file_name=text, start_line=1, end_line=2, content=text),
    )
    yield Script().user(text, *parts).chat()
    context = (ContextFilePart(context_file_path=text), SkillPart(skill_name=text))
    yield Script().say("user", *context).chat()
    said = (TextPart(text=text), ReasoningPart(text=f"# {text}\n{text}"), *parts)
    yield Script().say("assistant", *said, SourcePart(url=text, title=text), finish=text).chat()
    yield Script().chat("running", live=live(*said))
    error = ChatError(message=text, kind=text, detail=text, provider=text)
    yield Script().user("x").chat("error", error=error)
    retry = RetryState(attempt=1, delay_ms=1, error=text, kind=text, detail=text)
    yield Script().user("x").chat("running", retry=retry)
    away = WaitingCall(tool_call_id=ToolCallId("x"), waits_for=text)
    yield Script().user("x").chat("running", waiting_calls=(away,))
    done = {"summary": _in_json(text), "error": ""}
    yield Script().ran("s", "chat_summarized", {}, done).chat()
    yield Script().ran("s", "chat_summarized", {}, {"error": _in_json(text)}, is_error=True).chat()


def _drawn(chat: ShownChat, text: str) -> Iterator[DrawnRow]:
    pending = UserRow(key="p", text=text, pending=PendingNote(id="p", refusal=text or "no"))
    for row in RowModel().rows(chat, (pending,), problem=text):
        yield draw_row(row, Canvas(width=60, palette=DARK_PALETTE), is_open=True)


_ACTS = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_text_in_any_field_is_plain_text(text: str) -> None:
    console = Console(width=60, color_system="truecolor", force_terminal=True)
    for chat in (*_other_chats(text), *_tool_chats(text)):
        for row in _drawn(chat, text):
            for line in row.lines:
                assert _ACTS.search(line.plain) is None, repr(line.plain)
                for segment in line.render(console):
                    style = segment.style or Style()
                    assert not style.meta
                    assert style.link is None
                assert line.cell_len <= 60, repr(line.plain)


@pytest.mark.parametrize("name", ["[bold]", "[@click=app.quit]x[/]"])
def test_markup_shows_as_it_was_written(name: str) -> None:
    chat = Script().user(name).answer(name).ran("c", "execute", {"command": name}, {"output": name})
    texts = ["\n".join(line.plain for line in row.lines) for row in _drawn(chat.chat(), name)]
    assert all(name in text for text in texts)


@pytest.mark.parametrize("piece", ["x", "\x1b[", "日"])
def test_a_line_of_ten_megabytes_is_cut_before_it_is_drawn(piece: str) -> None:
    text = piece * (10_000_000 // len(piece.encode()))
    before = time.process_time()
    for chat in _other_chats(text):
        for row in _drawn(chat, "x"):
            assert len(row.lines) < 8000
    output = {"output": text, "success": True}
    for row in _drawn(Script().ran("c", "execute", {"command": text}, output).chat(), "x"):
        assert len(row.lines) < 400
    assert time.process_time() - before < 20
