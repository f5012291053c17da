"""Lines above the text box: what is being edited, attached files, and messages that did not go."""

from collections.abc import Sequence
from typing import Final, Literal

from msgspec import Struct
from rich.text import Text
from textual.app import RenderResult
from textual.geometry import Size
from textual.reactive import reactive
from textual.widget import Widget

from chatd.client.drafts import PendingSend
from chatd.terminal.composer.drafts import Attachment
from chatd.terminal.composer.message_content import read_content
from chatd.terminal.safe_text import safe_line

MAX_NOTICE_ROWS: Final = 5


class Notice(Struct, frozen=True):
    """`subject` is cut before the reason is."""

    kind: Literal["note", "file", "error"]
    subject: str
    text: str


def attachment_notice(one: Attachment) -> Notice:
    match one.state:
        case "done":
            return Notice("file", one.name, f"attached, {_bytes(one.size)}")
        case "failed":
            return Notice("error", one.name, one.error)
        case _:
            return Notice("file", one.name, "uploading …")


def unsent_notices(pending: Sequence[PendingSend], *, is_busy: bool) -> list[Notice]:
    """What the server has refused, and of a busy chat what waits for the server: an idle chat has
    it in its timeline."""
    notices: list[Notice] = []
    for item in pending:
        subject = read_content(item.draft.content).text or "Files"
        problem = "" if item.problem is None else item.problem.message
        if item.state == "refused":
            notices.append(
                Notice("error", subject, f"{problem} /unsent edits it, /retry sends it.")
            )
        elif is_busy and problem and item.state != "sent":
            notices.append(Notice("note", subject, "kept here until the server answers"))
    if any(one.kind == "error" for one in notices):
        notices.append(Notice("note", "", "/unsent edits it, /retry sends it again"))
    return notices


def _bytes(size: int) -> str:
    if size >= 1024 * 1024:
        return f"{size / 1024 / 1024:.1f} MiB"
    return f"{max(1, round(size / 1024))} KiB"


class NoticeLines(Widget):
    """Hidden while there is nothing to say."""

    DEFAULT_CSS = """
    NoticeLines {
        height: auto;
        padding: 0 2;
        display: none;
        &.-shown { display: block; }
    }
    """

    notices: reactive[tuple[Notice, ...]] = reactive((), layout=True)

    def watch_notices(self, notices: tuple[Notice, ...]) -> None:
        self.set_class(bool(notices), "-shown")

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:  # noqa: ARG002
        return sum(_rows(one, width) for one in self.notices[:MAX_NOTICE_ROWS])

    def render(self) -> RenderResult:
        width = max(self.content_size.width, 20)
        text = Text()
        for at, one in enumerate(self.notices[:MAX_NOTICE_ROWS]):
            if at > 0:
                text.append("\n")
            text.append_text(_line(one, width))
        return text


def _mark(notice: Notice) -> str:
    return {"note": "· ", "file": "+ ", "error": "! "}[notice.kind]


def _rows(notice: Notice, width: int) -> int:
    return 1 + _line(notice, max(width, 20)).plain.count("\n")


def _line(notice: Notice, width: int) -> Text:
    """An error has two lines if it is long: its reason must be readable."""
    style = {"note": "dim", "file": "dim", "error": "bold"}[notice.kind]
    reason = safe_line(notice.text, 2 * width - 4)
    room = width - 4 - len(reason)
    if not notice.subject:
        return Text(_mark(notice) + safe_line(reason, width - 2), style)
    subject = safe_line(notice.subject, max(room, min(24, width // 2)))
    line = Text(_mark(notice))
    line.append(subject)
    if len(subject) + len(reason) + 4 <= width:
        line.append(f"  {reason}", style)
    else:
        line.append(f"\n  {safe_line(reason, width - 2)}", style)
    return line
