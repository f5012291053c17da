"""A call whose result a program outside must send: shown here, and answered there."""

from typing import Final

from textual.app import ComposeResult
from textual.widgets import Static

from chatd.terminal.answers.asks import Ask
from chatd.terminal.answers.call_text import describe_call
from chatd.terminal.answers.call_view import CallView
from chatd.terminal.answers.exact_text import exact_name
from chatd.terminal.answers.form import AskForm, Body

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
