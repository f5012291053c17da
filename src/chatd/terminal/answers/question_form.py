"""Questions of the model: options to choose from, and a field for own words below each."""

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Input, Static

from chatd.client.drafts import CallAnswer
from chatd.domain.chat.call_waits import MAX_ANSWER_CHARS, Question, QuestionOption
from chatd.terminal.answers.ask_form import (
    Answered,
    AskForm,
    Body,
    DraftKept,
    HintsChanged,
    RowsBody,
)
from chatd.terminal.answers.asks import Ask, QuestionDraft, keep_draft, questions_of
from chatd.terminal.safe_text import safe_text

DECLINED = "Decide yourself."


class OptionRow(Static, can_focus=True):
    """One option of a question; the cursor is on it while it has the focus."""

    DEFAULT_CSS = """
    OptionRow { height: auto; padding: 0 1; }
    OptionRow:focus { background: $boost; text-style: bold; }
    """

    def __init__(self, at: int, number: int, option: QuestionOption, *, multi: bool) -> None:
        super().__init__()
        self.at = at
        self.number = number
        self.option = option
        self._marks = ("[x]", "[ ]") if multi else ("(•)", "( )")
        self._is_chosen = False

    def draw(self, *, is_chosen: bool) -> None:
        self._is_chosen = is_chosen
        mark, style = (self._marks[0], "$text-success") if is_chosen else (self._marks[1], "")
        description = safe_text(self.option.description).strip()
        self.update(
            Content.assemble(
                "> " if self.has_focus else "  ",
                (f"{self.number} ", "$text-accent"),
                (f"{mark} ", style),
                safe_text(self.option.label),
                (f"  {description}" if description else "", "$text-muted not bold"),
            )
        )

    def watch_has_focus(self, _has_focus: bool) -> None:  # noqa: FBT001
        super().watch_has_focus(_has_focus)
        self.draw(is_chosen=self._is_chosen)


class OwnWords(Input):
    """The field below the options of a question."""

    DEFAULT_CSS = """
    OwnWords, OwnWords:focus { height: 1; border: none; padding: 0 1 0 9; background: transparent; }
    OwnWords:focus { background: $boost; }
    """

    def __init__(self, at: int, text: str) -> None:
        super().__init__(text, placeholder="Or in your own words", max_length=MAX_ANSWER_CHARS)
        self.at = at


class QuestionForm(AskForm):
    DEFAULT_CSS = """
    QuestionForm .question { padding: 0 1; }
    QuestionForm .later { margin-top: 1; }
    """

    def __init__(self, ask: Ask, draft: QuestionDraft | None) -> None:
        super().__init__()
        self.ask = ask
        self.draft = keep_draft(draft, questions_of(ask.args))
        self._last: Widget | None = None

    def compose(self) -> ComposeResult:
        with RowsBody() if self.draft.questions else Body():
            for at, question in enumerate(self.draft.questions):
                later = " later" if at else ""
                yield Static(_question_text(question), classes=f"question{later}")
                for number, option in enumerate(question.options, 1):
                    yield OptionRow(at, number, option, multi=question.multi_select)
                yield OwnWords(at, self.draft.replies[at].text)
            if not self.draft.questions:
                yield Static("The questions cannot be read. You can decline to answer.")

    def on_mount(self) -> None:
        self._draw()

    @property
    def title(self) -> str:
        count = len(self.draft.questions)
        return "A question for you" if count == 1 else f"{count} questions for you"

    @property
    def note(self) -> str:
        count = len(self.draft.questions)
        return f"{count - len(self.draft.unanswered)} of {count} answered" if count > 1 else ""

    @property
    def actions(self) -> Sequence[tuple[str, str]]:
        if not self.draft.questions:
            return [("decline", "You decide")]
        return [
            ("choose", "Choose"),
            ("confirm", "Send" if self.draft.problem() == "" else "Choose, go on"),
            ("send", "Send"),
            ("decline", "You decide"),
            ("up", ""),
            ("down", ""),
        ]

    def take_focus(self) -> None:
        last = self._last
        if last is None or not last.is_attached:
            found = [row for row in self._rows if row.at in self.draft.unanswered]
            last = next(iter(found or self._rows), self.query_one(Body))
        last.focus()

    # What keys do

    def do_choose(self) -> None:
        row = self._focused
        if isinstance(row, OptionRow):
            self.problem = ""
            self._change(self.draft.toggle(row.at, row.option.label))

    def do_confirm(self) -> None:
        """Choose the option under the cursor and go on; send when nothing is left to answer."""
        if (row := self._focused) is not None:
            self._confirm(row)

    def _confirm(self, row: "OptionRow | OwnWords") -> None:
        if isinstance(row, OptionRow) and self._takes(row):
            self._change(self.draft.toggle(row.at, row.option.label))
            self.problem = ""
        if not self._focus_next_question(row.at):
            self.do_send()

    def _takes(self, row: OptionRow) -> bool:
        """Where several may be chosen, Enter adds nothing to what was chosen before."""
        if self.draft.questions[row.at].multi_select:
            return row.at in self.draft.unanswered
        return not self.draft.is_chosen(row.at, row.option.label)

    @property
    def numbered(self) -> Sequence[str]:
        """Numbers are those of the options."""
        return ()

    def choose_number(self, number: int) -> None:
        """The option of the question under the cursor: as Space if several may be chosen, else as
        Enter."""
        at = -1 if self._focused is None else self._focused.at
        for row in self._rows:
            if isinstance(row, OptionRow) and (row.at, row.number) == (at, number):
                row.focus()
                self.problem = ""
                if self.draft.questions[at].multi_select:
                    self._change(self.draft.toggle(at, row.option.label))
                else:
                    self._confirm(row)

    def do_send(self) -> None:
        if problem := self.draft.problem():
            self._focus_next_question(-1)
            self.show_problem(problem)
            return
        self._send(
            CallAnswer(
                tool_call_id=self.ask.call.tool_call_id,
                decision="answer",
                replies=self.draft.replies,
            )
        )

    def do_decline(self) -> None:
        call_id = self.ask.call.tool_call_id
        self._send(CallAnswer(tool_call_id=call_id, decision="deny", reason=DECLINED))

    def do_up(self) -> None:
        self._move(-1)

    def do_down(self) -> None:
        self._move(1)

    def on_input_changed(self, message: Input.Changed) -> None:
        message.stop()
        if isinstance(message.input, OwnWords):
            self._change(self.draft.write(message.input.at, message.value))

    def on_input_submitted(self, message: Input.Submitted) -> None:
        message.stop()
        if not isinstance(message.input, OwnWords):
            return
        if not self._focus_next_question(message.input.at):
            self.do_send()

    # Rows

    @property
    def _rows(self) -> list[OptionRow | OwnWords]:
        return [row for row in self.query("*") if isinstance(row, OptionRow | OwnWords)]

    @property
    def _focused(self) -> OptionRow | OwnWords | None:
        return next((row for row in self._rows if row.has_focus), None)

    def _move(self, step: int) -> None:
        rows, row = self._rows, self._focused
        at = 0 if row is None else rows.index(row) + step
        rows[max(0, min(at, len(rows) - 1))].focus()

    def _focus_next_question(self, after: int) -> bool:
        """The next one without a reply, from the beginning again; false if there is none."""
        missing = self.draft.unanswered
        at = next((one for one in missing if one > after), next(iter(missing), None))
        if at is None:
            return False
        next(row for row in self._rows if row.at == at).focus()
        return True

    def on_descendant_focus(self) -> None:
        self._last = self._focused
        self.post_message(HintsChanged())

    def _change(self, draft: QuestionDraft) -> None:
        if draft == self.draft:
            return
        self.draft = draft
        self._draw()
        self.post_message(DraftKept(self.ask.key, draft))
        self.post_message(HintsChanged())

    def _draw(self) -> None:
        for row in self._rows:
            if isinstance(row, OptionRow):
                row.draw(is_chosen=self.draft.is_chosen(row.at, row.option.label))

    def _send(self, answer: CallAnswer) -> None:
        self.problem = ""
        self.post_message(Answered(self.ask.chat_id, [answer]))


def _question_text(question: Question) -> Content:
    header = safe_text(question.header).strip()
    note = "  (several)" if question.multi_select else ""
    return Content.assemble(
        (f"{header}: " if header else "", "$text-muted"),
        (safe_text(question.question), "bold"),
        (note, "$text-muted"),
    )
