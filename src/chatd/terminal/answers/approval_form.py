"""Calls that wait: for a person who approves or denies them, or for a program that sends the
result."""

from collections.abc import Iterator, Sequence
from typing import ClassVar, Final, Literal

from msgspec import Struct
from msgspec.structs import replace
from rich.segment import Segment
from textual.app import ComposeResult
from textual.geometry import Size
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Static

from chatd.client.drafts import CallAnswer, Decision
from chatd.terminal.answers.ask_form import (
    READING_SHARE,
    Answered,
    AskForm,
    Body,
    DraftKept,
    Entry,
    HintsChanged,
)
from chatd.terminal.answers.asks import Ask
from chatd.terminal.answers.exact_text import (
    CallText,
    ExactRow,
    TextBlock,
    describe_call,
    exact_line,
    exact_name,
    exact_rows,
    folded,
)
from chatd.terminal.safe_text import cell_width
from chatd.terminal.screens.policy_rules import (
    RuleProblem,
    always_patterns,
    always_rule,
    can_edit,
    pattern_lines,
)

# Draws a call that waits for approval: its command or arguments exactly, then why it asks.
#
# Draws only the rows in sight: a command may have thousands of lines.

GUTTER: Final = 2
LABEL_WIDTH: Final = 13
Role = Literal["text", "title", "label", "note"]
Row = tuple[tuple[Role, str], ...]
"""The pieces of one row on the screen, from the left."""


class CallView(Widget):
    """The text of one call, or of several below each other."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"text", "title", "label", "note"}
    DEFAULT_CSS = """
    CallView { height: auto; padding: 0 1; }
    CallView > .title { text-style: bold; }
    CallView > .label { color: $text-muted; }
    CallView > .note { color: $text-warning; text-style: bold; }
    """

    def __init__(self, texts: Sequence[CallText], *, titled: bool = False) -> None:
        super().__init__()
        self._texts = texts
        self._titled = titled
        self._rows: list[Row] = []
        self._width = 0
        self._folds = False
        self.is_whole = False
        self.has_folds = False

    def unfold(self) -> None:
        """Show everything, or fold long texts again."""
        self.is_whole = not self.is_whole
        self._width = 0
        self.refresh(layout=True)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        del container, viewport
        if width != self._width:
            self._width = width
            self._rows = self._fit(max(width, GUTTER + 8))
            self.post_message(HintsChanged())
        return len(self._rows)

    def render_line(self, y: int) -> Strip:
        pieces = self._rows[y] if y < len(self._rows) else ()
        segments = [Segment(text, self.get_component_rich_style(role)) for role, text in pieces]
        return Strip(segments).adjust_cell_length(self._width, self.rich_style)

    # Rows

    def _fit(self, width: int) -> list[Row]:
        """Long texts are folded if all of them do not fit."""
        self._folds = self.has_folds = False
        rows = list(self._lay_out(width))
        if self.is_whole or len(rows) <= int(self.screen.size.height * READING_SHARE):
            return rows
        self._folds = True
        return list(self._lay_out(width))

    def _lay_out(self, width: int) -> Iterator[Row]:
        for text in self._texts:
            if self._titled:
                yield from _plain("title", text.title, width)
            for block in text.blocks:
                yield from self._block(block, width)
            for label, words in text.facts:
                yield from self._fact(label, words, width)
            for warning in text.warnings:
                yield from _plain("note", f"! {warning}", width)

    def _block(self, block: TextBlock, width: int) -> Iterator[Row]:
        if block.kind == "argument":
            yield from self._fact(block.name, block.text, width)
        else:
            yield from self._mark(exact_rows(block.text, width - GUTTER), ("$ ", "> ", "  "))

    def _fact(self, label: str, words: str, width: int) -> Iterator[Row]:
        """Next to its label if that is short, else below it."""
        cells = cell_width(label)
        if cells < LABEL_WIDTH and width > 2 * LABEL_WIDTH:
            blank = " " * LABEL_WIDTH
            marks = (label + blank[cells:], blank, blank)
            yield from self._mark(exact_rows(words, width - LABEL_WIDTH), marks)
            return
        yield from _plain("label", label, width)
        yield from self._mark(exact_rows(words, width - GUTTER), ("  ", "  ", "  "))

    def _mark(self, rows: list[ExactRow], marks: tuple[str, str, str]) -> Iterator[Row]:
        """`marks` are for the first row, for the first row of a later line, and for the rest."""
        shown = folded(rows) if self._folds else rows
        self.has_folds |= len(shown) < len(rows)
        first, later, rest = marks
        for at, row in enumerate(shown):
            if row.hidden:
                yield ("label", rest), ("note", f"⋯ {row.hidden} more lines: o shows all")
            else:
                mark = first if at == 0 else later if row.starts else rest
                yield ("label", mark), ("text", row.text)


def _plain(role: Role, text: str, width: int) -> Iterator[Row]:
    for row in exact_rows(text, width):
        yield ((role, row.text),)


# A call that a person approves or denies, alone or with all others of its chat.

Step = Literal["choose", "deny", "always", "approve_all", "deny_all"]


class ApprovalDraft(Struct, frozen=True):
    """What was written and not sent. `rule` is None until the person has looked at it."""

    reason: str = ""
    rule: str | None = None


class ApprovalForm(AskForm):
    """`fellows` are all approvals of the same chat, including this one."""

    def __init__(self, ask: Ask, fellows: Sequence[Ask], draft: ApprovalDraft | None) -> None:
        super().__init__()
        self.ask = ask
        self.fellows = tuple(fellows)
        self._draft = draft or ApprovalDraft()
        self._text = describe_call(ask.call, ask.args)
        self._rule = always_rule(ask.call.tool_name, ask.args)
        self._step: Step = "choose"

    def compose(self) -> ComposeResult:
        with Body():
            yield CallView([self._text])
        yield Entry()

    @property
    def title(self) -> str:
        if self._step in ("approve_all", "deny_all"):
            verb = "Approve" if self._step == "approve_all" else "Deny"
            return f"{verb} all {len(self.fellows)} calls?"
        return self._text.title

    @property
    def actions(self) -> Sequence[tuple[str, str]]:
        view = self._view
        unfold = [("unfold", "Fold" if view.is_whole else "Show all")]
        unfold = unfold if view.has_folds or view.is_whole else []
        match self._step:
            case "choose":
                pass
            case "approve_all":
                return [("approve", "Approve all"), ("leave", "Back"), *unfold]
            case "deny_all":
                return [("deny", "Deny all"), ("leave", "Back"), *unfold]
            case _:
                return [("leave", "Back")]
        always = [("always", "Always…")] if self.can_always else []
        approve = [("approve", "Approve once")] if self.ask.is_readable else []
        approve_all = [("approve_all", "Approve all…")] if self._can_approve_all else []
        several = [*approve_all, ("deny_all", "Deny all…")] if len(self.fellows) > 1 else []
        return [*approve, *always, ("deny", "Deny…"), *unfold, *several]

    @property
    def can_always(self) -> bool:
        return self.ask.call.can_always and self.ask.is_readable and self._rule is not None

    @property
    def _can_approve_all(self) -> bool:
        return all(ask.is_readable for ask in self.fellows)

    @property
    def _view(self) -> CallView:
        return self.query_one(CallView)

    def set_fellows(self, fellows: Sequence[Ask]) -> None:
        """Others may have been answered elsewhere: what is confirmed must be what is shown."""
        before, self.fellows = self.fellows, tuple(fellows)
        is_same = [(one.key, one.args) for one in before] == [
            (one.key, one.args) for one in fellows
        ]
        if not is_same and self._step in ("approve_all", "deny_all"):
            self.leave()

    # What keys do

    def do_approve(self) -> None:
        if self._step == "approve_all":
            self._send(*(_answer(ask, "approve") for ask in self.fellows))
        else:
            self._send(_answer(self.ask, "approve"))

    def do_deny(self) -> None:
        if self._step == "deny_all":
            self._send(*(_answer(ask, "deny") for ask in self.fellows))
            return
        self._open("deny", "What should it do instead? The agent reads it. Enter denies.")

    def do_always(self) -> None:
        assert self._rule is not None
        tool = exact_name(self._rule.tool)
        if can_edit(self._rule):
            label = (
                f"Stored in this chat: run {tool} without asking, if its arguments match. One a"
                " line, as name: pattern; none means every call. Enter stores it and approves."
            )
        else:
            label = f"Stored in this chat: run {tool} with exactly this. Enter stores it."
        self._open("always", label)

    def do_approve_all(self) -> None:
        self._show_all("approve_all")

    def do_deny_all(self) -> None:
        self._show_all("deny_all")

    def do_unfold(self) -> None:
        self._view.unfold()
        self.post_message(HintsChanged())

    def leave(self) -> bool:
        if self._step == "choose":
            return False
        was, self._step, self.problem = self._step, "choose", ""
        self.query_one(Entry).close()
        self.remove_class("-writing")
        if was in ("approve_all", "deny_all"):
            self._replace_view(CallView([self._text]))
        self.take_focus()
        self.post_message(HintsChanged())
        return True

    def on_entry_taken(self, message: Entry.Taken) -> None:
        message.stop()
        self._keep(message.text)
        if self._step == "deny":
            self._send(_answer(self.ask, "deny", reason=message.text.strip()))
        elif self._step == "always":
            self._send_always(message.text)

    def on_entry_left(self, message: Entry.Left) -> None:
        message.stop()
        self._keep(self.query_one(Entry).text)
        self.leave()

    def on_text_area_changed(self) -> None:
        if self._step in ("deny", "always"):
            self._keep(self.query_one(Entry).text)

    # Steps

    def _open(self, step: Step, label: str) -> None:
        self._step = step
        self.add_class("-writing")
        if step == "deny":
            self.query_one(Entry).open(label, self._draft.reason)
        else:
            assert self._rule is not None
            is_editable = can_edit(self._rule)
            lines = pattern_lines(self._rule.args)
            shown = lines if is_editable else "\n".join(map(exact_line, lines.split("\n")))
            kept = self._draft.rule if is_editable and self._draft.rule is not None else shown
            self.query_one(Entry).open(label, kept, read_only=not is_editable)
        self.post_message(HintsChanged())

    def _send_always(self, lines: str) -> None:
        """The rule of the server's own if it was not changed."""
        assert self._rule is not None
        call, patterns = self.ask.call, None
        if can_edit(self._rule) and lines != pattern_lines(self._rule.args):
            try:
                patterns = always_patterns(call.tool_name, self.ask.args, lines)
            except RuleProblem as problem:
                self.show_problem(str(problem))
                return
        self._send(replace(_answer(self.ask, "approve"), always=True, rule_args=patterns))

    def _show_all(self, step: Step) -> None:
        self._step = step
        texts = [describe_call(ask.call, ask.args) for ask in self.fellows]
        self._replace_view(CallView(texts, titled=True))
        self.post_message(HintsChanged())

    def _replace_view(self, view: CallView) -> None:
        body = self.query_one(Body)
        body.remove_children()
        body.mount(view)
        body.scroll_home(animate=False)

    def _keep(self, text: str) -> None:
        if self._step == "deny":
            self._draft = replace(self._draft, reason=text)
        elif self._rule is not None and can_edit(self._rule):
            self._draft = replace(self._draft, rule=text)
        self.post_message(DraftKept(self.ask.key, self._draft))

    def _send(self, *answers: CallAnswer) -> None:
        self.problem = ""
        self.post_message(Answered(self.ask.chat_id, answers))


def _answer(ask: Ask, decision: Decision, reason: str = "") -> CallAnswer:
    return CallAnswer(tool_call_id=ask.call.tool_call_id, decision=decision, reason=reason)


# A call whose result a program outside must send: shown here, and answered there.

_WHY: Final = (
    "A program outside of chatd runs this tool and sends its result. The chat goes on by itself"
    " then; it cannot be answered here."
)


class ClientForm(AskForm):
    DEFAULT_CSS = """
    ClientForm .why { padding: 0 1; color: $text-muted; }
    """

    def __init__(self, ask: Ask) -> None:
        super().__init__()
        self.ask = ask

    def compose(self) -> ComposeResult:
        with Body():
            yield CallView([describe_call(self.ask.call, self.ask.args)])
            yield Static(_WHY, classes="why", markup=False)

    @property
    def title(self) -> str:
        return f"Waiting for the result of {exact_name(self.ask.call.tool_name)}"
