"""Small questions on top of a screen: yes or no, one line of text, one or several of a list."""

from collections.abc import Callable, Sequence
from typing import ClassVar, Final, Generic, TypeVar

from msgspec import Struct
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.dom import DOMNode
from textual.screen import ModalScreen
from textual.widgets import Button, Input, OptionList, Static
from textual.widgets.button import ButtonVariant
from textual.widgets.option_list import Option

from chatd.terminal.keys import NUMBER_BINDINGS
from chatd.terminal.safe_text import safe_line, safe_text
from chatd.terminal.session import app_of


class Question(ModalScreen[bool]):
    """Yes or no. Nothing is chosen beforehand but «no», so that Enter alone destroys nothing."""

    BINDINGS: list[BindingType] = [  # noqa: RUF012
        ("escape", "answer(False)", "No"),
        ("y", "answer(True)", "Yes"),
        ("n", "answer(False)", "No"),
        ("1", "answer(False)", "No"),
        ("2", "answer(True)", "Yes"),
        ("left,right", "app.focus_next", "Other"),
    ]

    def __init__(self, text: str, *, yes: str, is_dangerous: bool = False) -> None:
        super().__init__()
        self._text = safe_text(text)
        self._yes = yes
        self._variant: ButtonVariant = "error" if is_dangerous else "primary"

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(self._text, markup=False)
            with Horizontal(classes="buttons"):
                yield Button("1 Cancel", id="no", compact=True)
                yield Button(f"2 {self._yes} (y)", id="yes", variant=self._variant, compact=True)

    def on_mount(self) -> None:
        self.query_one("#no").focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")

    def action_answer(self, answer: bool) -> None:  # noqa: FBT001
        self.dismiss(answer)


def ask(node: DOMNode, question: Question, go_on: Callable[[], object]) -> None:
    """Call `go_on` if the answer is yes."""

    def answered(is_sure: bool | None) -> None:  # noqa: FBT001
        if is_sure:
            go_on()

    app_of(node).push_screen(question, answered)


class LinePrompt(ModalScreen[str | None]):
    """One line of text; None if the person left it as it was or gave up. `keeps`: a text that is
    left as it was, also an empty one, is an answer. `is_secret`: it is not shown."""

    BINDINGS: list[BindingType] = [("escape", "give_up", "Cancel")]  # noqa: RUF012

    def __init__(
        self,
        label: str,
        text: str = "",
        *,
        max_length: int = 200,
        keeps: bool = False,
        is_secret: bool = False,
    ) -> None:
        super().__init__()
        self._label = label
        self._before = safe_text(text)
        self._max_length = max_length
        self._keeps = keeps
        self._is_secret = is_secret

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(self._label, markup=False)
            yield Input(
                self._before, max_length=self._max_length, password=self._is_secret, compact=True
            )
            word = "goes on" if self._keeps or self._is_secret else "saves"
            yield Static(f"Enter {word}, Esc cancels", classes="hint", markup=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        text = event.value.strip()
        is_answer = self._keeps or (text and text != self._before)
        self.dismiss(text if is_answer else None)

    def action_give_up(self) -> None:
        self.dismiss(None)


class SearchField(Input):
    """A field above a list. While it is empty, the numbers 1 to 9 are left to the list."""

    def check_consume_key(self, key: str, character: str | None) -> bool:
        return not self._is_left(key) and super().check_consume_key(key, character)

    async def _on_key(self, event: events.Key) -> None:
        if self._is_left(event.key):
            event.prevent_default()

    def _is_left(self, key: str) -> bool:
        return not self.value and key in "123456789"


T = TypeVar("T")
R = TypeVar("R")

MAX_PICKER_ROWS: Final = 200


class Pick(Struct, Generic[T], frozen=True, kw_only=True):
    """One line. `refusal` says why it cannot be chosen. `words` are searched too."""

    value: T
    label: str
    note: str = ""
    refusal: str = ""
    words: str = ""
    is_current: bool = False


def filter_picks(picks: Sequence[Pick[T]], query: str) -> list[Pick[T]]:
    """The picks with all words of the query, in their order."""
    words = query.lower().split()
    return [
        one
        for one in picks
        if all(word in f"{one.label} {one.note} {one.words}".lower() for word in words)
    ][:MAX_PICKER_ROWS]


class PickerFrame(ModalScreen[R | None], Generic[T, R]):
    """Lets a person choose one thing of a list, or several, by typing and arrows, or by a number
    while nothing is typed. `T` is what a line stands for, `R` what the screen returns; None if it
    was closed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", "Close"),
        Binding("up", "step(-1)", "Up", show=False),
        Binding("down", "step(1)", "Down", show=False),
        Binding("pageup", "step(-8)", "Page up", show=False),
        Binding("pagedown", "step(8)", "Page down", show=False),
        *NUMBER_BINDINGS,
    ]
    DEFAULT_CSS = """
    PickerFrame {
        align: center middle;
        & > Vertical {
            width: 76;
            max-width: 95%;
            height: auto;
            max-height: 85%;
            padding: 0 1;
            border: round $accent;
            background: $surface;
        }
        & Input { background: $panel; padding: 0 1; margin: 0 0 1 0; }
        & OptionList {
            height: auto;
            max-height: 60vh;
            border: none;
            padding: 0;
            background: $surface;
        }
        & .picker-foot { color: $text-muted; margin: 1 0 0 0; height: auto; }
    }
    """

    def __init__(self, title: str, picks: Sequence[Pick[T]], *, foot: str = "") -> None:
        super().__init__()
        self._title = title
        self._picks = list(picks)
        self._shown: list[Pick[T]] = []
        self._foot = foot or "Enter chooses · Esc closes"

    def compose(self) -> ComposeResult:
        with Vertical() as frame:
            frame.border_title = Text(self._title).markup
            yield SearchField(placeholder="Type to search", compact=True)
            yield OptionList()
            yield Static(self._foot_text(), classes="picker-foot", markup=False)

    def on_mount(self) -> None:
        self._show("")
        self.query_one(Input).focus()

    @property
    def pick(self) -> Pick[T] | None:
        at = self.query_one(OptionList).highlighted
        return self._shown[at] if at is not None and at < len(self._shown) else None

    def on_input_changed(self, event: Input.Changed) -> None:
        self._show(event.value)

    def on_input_submitted(self, _: Input.Submitted) -> None:
        self._choose()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self._choose()

    def on_option_list_option_highlighted(self, _: OptionList.OptionHighlighted) -> None:
        self._show_foot()

    def action_cancel(self) -> None:
        self.dismiss(None)

    def action_step(self, by: int) -> None:
        listed = self.query_one(OptionList)
        if not self._shown:
            return
        at = 0 if listed.highlighted is None else listed.highlighted + by
        listed.highlighted = max(0, min(at, len(self._shown) - 1))

    def action_number(self, number: int) -> None:
        if number <= len(self._shown):
            self.query_one(OptionList).highlighted = number - 1
            self._choose()

    def _choose(self) -> None:
        pick = self.pick
        if pick is None:
            return
        if pick.refusal:
            text = f"{safe_line(pick.label, 60)} cannot be chosen: {safe_text(pick.refusal)}."
            self.notify(text, severity="warning", markup=False)
            return
        self._take(pick)

    def _take(self, pick: Pick[T]) -> None:
        raise NotImplementedError

    @property
    def query_text(self) -> str:
        return self.query_one(Input).value

    def _mark(self, pick: Pick[T]) -> Text:
        return Text("• " if pick.is_current else "  ")

    def _show(self, query: str) -> None:
        self._shown = filter_picks(self._picks, query)
        listed = self.query_one(OptionList)
        width = min(76, int(app_of(self).size.width * 0.95)) - 6
        listed.clear_options()
        listed.add_options(
            Option(self._row(one, width, "  " if query or at > 9 else f"{at} "))
            for at, one in enumerate(self._shown, 1)
        )
        current = [at for at, one in enumerate(self._shown) if one.is_current]
        usable = [at for at, one in enumerate(self._shown) if not one.refusal]
        listed.highlighted = (current or usable or [0])[0] if self._shown else None
        self._show_foot()

    def _row(self, pick: Pick[T], width: int, number: str) -> Text:
        note = safe_line(f"({pick.refusal}) {pick.note}" if pick.refusal else pick.note, width // 2)
        label = safe_line(pick.label, max(width - len(note) - 7, 10))
        row = Text(number, "bold", no_wrap=True)
        row.append_text(self._mark(pick))
        row.append(label)
        row.append(" " * max(1, width - row.cell_len - len(note)))
        row.append(note, "dim")
        if pick.refusal:
            row.stylize("dim")
        return row

    def _show_foot(self) -> None:
        self.query_one(".picker-foot", Static).update(self._foot_text())

    def _foot_text(self) -> Text:
        if self.is_mounted and not self._shown:
            return Text("Nothing fits.")
        return Text(self._foot)


class Picker(PickerFrame[T, T], Generic[T]):
    """Returns the chosen value, or None."""

    def _take(self, pick: Pick[T]) -> None:
        self.dismiss(pick.value)


class MultiPicker(PickerFrame[str, tuple[str, ...]]):
    """Enter takes one or gives it back. Returns the values of all that are chosen, in the order of
    the list."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "done", "Keep and close")]

    def __init__(self, title: str, picks: Sequence[Pick[str]], chosen: Sequence[str]) -> None:
        super().__init__(title, picks, foot="Enter takes or leaves · Esc keeps and closes")
        self._chosen = set(chosen)

    def action_done(self) -> None:
        self.dismiss(tuple(one.value for one in self._picks if one.value in self._chosen))

    def _take(self, pick: Pick[str]) -> None:
        self._chosen ^= {pick.value}
        listed = self.query_one(OptionList)
        at = listed.highlighted
        self._show(self.query_text)
        listed.highlighted = at

    def _mark(self, pick: Pick[str]) -> Text:
        is_on = pick.value in self._chosen or bool(pick.refusal)
        return Text("[x] " if is_on else "[ ] ")
