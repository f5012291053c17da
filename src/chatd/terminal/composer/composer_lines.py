"""The lines around the text box: notices above it, and below it what Enter does."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, get_args

from msgspec import Struct
from rich.text import Text
from textual.app import RenderResult
from textual.geometry import Size
from textual.reactive import reactive
from textual.widget import Widget

from chatd.client.drafts import PendingSend
from chatd.client.resources import Chat, ChatCost, ModelChoice
from chatd.domain.chat.messages import PublicMessage
from chatd.domain.model.protocol import Effort
from chatd.terminal.composer.commands import Behaviour
from chatd.terminal.composer.drafts import Attachment
from chatd.terminal.composer.message_content import read_content
from chatd.terminal.composer.model_texts import EFFORT_NAMES, dollars, model_name, size_text
from chatd.terminal.safe_text import safe_line
from chatd.terminal.session import keep_choice, read_kept_choice

# The line below the text box: what the next message is sent with, and what Enter does.


class Hints(Struct, frozen=True, kw_only=True):
    """`left` says with what a message is sent, `right` what happens; `extras` follow the left part
    as far as there is room, the most important first."""

    left: Text = Text()
    extras: tuple[str, ...] = ()
    right: Text = Text()


def context_text(messages: tuple[PublicMessage, ...], model_limit: int | None) -> str:
    """The context used by the last answer that reported its tokens; empty before the first one."""
    known = _context(messages, model_limit)
    if known is None:
        return ""
    tokens, limit = known
    return f"{size_text(tokens)} of {size_text(limit)} ({min(100, round(tokens / limit * 100))}%)"


def left_text(messages: tuple[PublicMessage, ...], model_limit: int | None) -> str:
    known = _context(messages, model_limit)
    if known is None:
        return ""
    return f"{max(0, 100 - round(known[0] / known[1] * 100))}% left"


def _context(
    messages: tuple[PublicMessage, ...], model_limit: int | None
) -> tuple[int, int] | None:
    """The tokens of the context, and how many it may have."""
    usage = next((one.usage for one in reversed(messages) if one.usage is not None), None)
    if usage is None:
        return None
    tokens = usage.context_tokens or usage.total_tokens or usage.input_tokens + usage.output_tokens
    limit = usage.context_limit or model_limit
    return (tokens, limit) if limit and tokens > 0 else None


def cost_text(cost: ChatCost | None) -> str:
    """Empty if nothing is known: a chat with a free model has no price."""
    if cost is None or cost.call_count == 0 or cost.total_cost_micros == 0:
        return ""
    budget = "" if cost.max_cost_micros is None else f" of {dollars(cost.max_cost_micros)}"
    return f"{dollars(cost.total_cost_micros)}{budget}"


def hint_text(hints: Hints, width: int) -> Text:
    left, right, extras = hints.left.copy(), hints.right, [one for one in hints.extras if one]
    while (
        extras and left.cell_len + right.cell_len + sum(len(one) + 3 for one in extras) + 2 > width
    ):
        extras.pop()
    for text in extras:
        left.append(f" · {text}", "dim")
    room = width - right.cell_len
    if left.cell_len + 2 > room:
        left.truncate(max(room - 2, 0), overflow="ellipsis")
    left.append(" " * max(0, width - left.cell_len - right.cell_len))
    left.append_text(right)
    left.truncate(width, overflow="ellipsis")
    return left


def enter_text(behaviour: Behaviour | None, *, is_once: bool, is_written: bool) -> Text:
    """What Enter does. `behaviour` is None while the chat is idle."""
    if behaviour is None:
        return Text("Enter sends · Ctrl-J new line" if is_written else "", "dim")
    text = Text(f"Enter {behaviour.verb}", "bold" if is_once else "")
    return text.append(" once · Ctrl-G changes it" if is_once else " · Ctrl-G changes it", "dim")


class HintLine(Widget):
    DEFAULT_CSS = """
    HintLine { height: 1; padding: 0 2; color: $text-muted; }
    """

    hints: reactive[Hints] = reactive(Hints())

    def render(self) -> RenderResult:
        return hint_text(self.hints, self.content_size.width)


# Lines above the text box: what is being edited, attached files, and messages that did not go.

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
    """Hidden while there is nothing to report."""

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
        lines = [_line(one, max(width, 20)) for one in self.notices[:MAX_NOTICE_ROWS]]
        return sum(1 + line.plain.count("\n") for line in lines)

    def render(self) -> RenderResult:
        width = max(self.content_size.width, 20)
        text = Text()
        for at, one in enumerate(self.notices[:MAX_NOTICE_ROWS]):
            if at > 0:
                text.append("\n")
            text.append_text(_line(one, width))
        return text


def _line(notice: Notice, width: int) -> Text:
    """An error has two lines if it is long: its reason must be readable."""
    mark = {"note": "· ", "file": "+ ", "error": "! "}[notice.kind]
    style = "bold" if notice.kind == "error" else "dim"
    reason = safe_line(notice.text, 2 * width - 4)
    room = width - 4 - len(reason)
    if not notice.subject:
        return Text(mark + safe_line(reason, width - 2), style)
    subject = safe_line(notice.subject, max(room, min(24, width // 2)))
    line = Text(mark)
    line.append(subject)
    if len(subject) + len(reason) + 4 <= width:
        line.append(f"  {reason}", style)
    else:
        line.append(f"\n  {safe_line(reason, width - 2)}", style)
    return line


# What the line below the text box shows, in an order that its user may choose with `/statusline`;
# kept on this machine, like the colours.

StatusWord = Literal[
    "model", "effort", "workspace", "project", "branch", "context", "left", "cost", "title"
]
STATUS_WORDS: Final[tuple[StatusWord, ...]] = get_args(StatusWord)
DEFAULT_STATUS: Final[tuple[StatusWord, ...]] = ("model", "effort", "workspace", "context", "cost")
_SENT_WITH: Final = frozenset({"model", "effort", "workspace"})
_KEPT_FILE: Final = "status-line"
_MAX_NAME_CELLS: Final = 24


class StatusFacts(Struct, frozen=True, kw_only=True):
    """Facts about the open chat; `project` and `place` are names."""

    model: ModelChoice | None = None
    effort: Effort | None = None
    place: str = ""
    is_plan: bool = False
    chat: Chat | None = None
    project: str = ""
    messages: tuple[PublicMessage, ...] = ()
    context_limit: int | None = None
    cost: ChatCost | None = None


def read_status_words(text: str) -> tuple[StatusWord, ...] | None:
    """None if one of them is unknown; empty words mean the usual ones."""
    asked = text.lower().replace(",", " ").split()
    if asked in ([], ["default"]):
        return DEFAULT_STATUS
    places = {word: at for at, word in reversed(list(enumerate(asked)))}
    found: list[StatusWord] = [word for word in STATUS_WORDS if places.get(word) is not None]
    if len(found) < len(places):
        return None
    found.sort(key=lambda word: places[word])
    return tuple(found)


def kept_status(directory: Path | None, environ: Mapping[str, str]) -> tuple[StatusWord, ...]:
    """That of CHATD_STATUS_LINE, else what was chosen before. Words of a newer version are none."""
    for text in (environ.get("CHATD_STATUS_LINE", ""), read_kept_choice(directory, _KEPT_FILE)):
        if text and (words := read_status_words(text)) is not None:
            return words
    return DEFAULT_STATUS


def keep_status(directory: Path | None, words: tuple[StatusWord, ...]) -> None:
    keep_choice(directory, _KEPT_FILE, " ".join(words))


def status_hints(words: tuple[StatusWord, ...], facts: StatusFacts, right: Text) -> Hints:
    """What a message is sent with stays in sight if it is first; what does not fit goes, the last
    first. Plan mode is always named."""
    texts = _texts(facts)
    leading = next((at for at, one in enumerate(words) if one not in _SENT_WITH), len(words))
    left = Text(no_wrap=True)
    for at, word in enumerate(words[:leading]):
        if text := texts[word]:
            left.append(f" · {text}" if left else text, "dim" if at else "")
    if facts.is_plan:
        left.append(" · " if left else "").append("plan mode", "bold")
    extras = [text for word in words[leading:] if (text := texts[word])]
    if not left and extras:
        left.append(extras.pop(0))
    return Hints(left=left, extras=tuple(extras), right=right)


def _texts(facts: StatusFacts) -> Mapping[StatusWord, str]:
    chat = facts.chat
    diff = None if chat is None else chat.diff_status
    return {
        "model": "no model" if facts.model is None else model_name(facts.model),
        "effort": "" if facts.effort is None else EFFORT_NAMES[facts.effort].lower(),
        "workspace": safe_line(facts.place, _MAX_NAME_CELLS),
        "project": safe_line(facts.project, _MAX_NAME_CELLS),
        "branch": "" if diff is None else safe_line(diff.branch, _MAX_NAME_CELLS),
        "context": context_text(facts.messages, facts.context_limit),
        "left": left_text(facts.messages, facts.context_limit),
        "cost": cost_text(facts.cost),
        "title": "" if chat is None else safe_line(chat.title, _MAX_NAME_CELLS),
    }
