"""Small questions on top of a screen: yes or no, and one line of text."""

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Static
from textual.widgets.button import ButtonVariant

from chatd.terminal.safe_text import safe_text


class Question(ModalScreen[bool]):
    """Yes or no. Nothing is chosen beforehand but «no», so that Enter alone destroys nothing."""

    BINDINGS: list[BindingType] = [  # noqa: RUF012
        ("escape", "answer(False)", "No"),
        ("y", "answer(True)", "Yes"),
        ("n", "answer(False)", "No"),
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
                yield Button("Cancel", id="no", compact=True)
                yield Button(f"{self._yes} (y)", id="yes", variant=self._variant, compact=True)

    def on_mount(self) -> None:
        self.query_one("#no").focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")

    def action_answer(self, answer: bool) -> None:  # noqa: FBT001
        self.dismiss(answer)


class LinePrompt(ModalScreen[str | None]):
    """One line of text; None if the person left it as it was or gave up."""

    BINDINGS: list[BindingType] = [("escape", "give_up", "Cancel")]  # noqa: RUF012

    def __init__(self, label: str, text: str = "", *, max_length: int = 200) -> None:
        super().__init__()
        self._label = label
        self._before = safe_text(text)
        self._max_length = max_length

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(self._label, markup=False)
            yield Input(self._before, max_length=self._max_length, compact=True)
            yield Static("Enter saves, Esc cancels", classes="hint", markup=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        text = event.value.strip()
        self.dismiss(text if text and text != self._before else None)

    def action_give_up(self) -> None:
        self.dismiss(None)
