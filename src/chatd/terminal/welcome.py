"""What is shown instead of messages while no chat is open: what there is to try."""

from typing import Final

from msgspec import Struct
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option


class DemoPrompt(Struct, frozen=True):
    title: str
    text: str
    prompt: str


DEMOS: Final = (
    DemoPrompt(
        "Fix a failing test",
        "It writes a small project, runs its tests, finds the bug and fixes it.",
        "fix the failing test",
    ),
    DemoPrompt(
        "Lose a worker",
        "A long story: kill the server in mid-sentence, and see it go on.",
        "tell me a long story",
    ),
    DemoPrompt(
        "Work with subagents",
        "Two agents look at the code and the tests at the same time, and report.",
        "review this with subagents",
    ),
)
"""Those of the page's first screen (`ui/src/demo`); the demo model has a script for each."""


class Welcome(Vertical):
    """The demos are offered while there is no chat yet; later the empty chat is enough."""

    class Chosen(Message):
        def __init__(self, prompt: str) -> None:
            super().__init__()
            self.prompt = prompt

    def compose(self) -> ComposeResult:
        with Vertical(id="welcome-box"):
            yield Static("chatd", id="welcome-name", markup=False)
            yield Static("What should it do?", id="welcome-text", markup=False)
            yield OptionList(*map(_option, DEMOS), id="welcome-demos", compact=True)
            yield Static(
                "Write a message below, or Tab to the demos: no key needed, scripted answers.",
                id="welcome-hint",
                markup=False,
            )

    def show_demos(self, *, wanted: bool) -> None:
        self.query_one("#welcome-demos").display = wanted
        self.query_one("#welcome-hint").display = wanted

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.post_message(self.Chosen(DEMOS[event.option_index].prompt))


def _option(demo: DemoPrompt) -> Option:
    return Option(Text.assemble((demo.title, "bold"), "\n", (demo.text, "dim")))
