"""What is shown instead of messages while no chat is open: what there is to try."""

from functools import partial
from typing import Final

from msgspec import Struct
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from chatd.client.errors import ApiError, ServerUnreachable
from chatd.client.resources import Chat
from chatd.client.server import new_key
from chatd.terminal.messages import OpenChat, ShowNotice
from chatd.terminal.session import session_of


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

    def compose(self) -> ComposeResult:
        with Vertical(id="welcome-box"):
            yield Static("chatd", id="welcome-name", markup=False)
            yield Static("What should it do?", id="welcome-text", markup=False)
            yield OptionList(*map(_option, DEMOS), id="welcome-demos", compact=True)
            yield Static(
                "Write below, or Shift-Tab to a demo: no key, scripted answers.",
                id="welcome-hint",
                markup=False,
            )

    def show_demos(self, *, wanted: bool) -> None:
        self.query_one("#welcome-demos").display = wanted
        self.query_one("#welcome-hint").display = wanted

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        demo = DEMOS[event.option_index]
        self.run_worker(partial(self._start, demo.prompt), group="demo", exclusive=True)

    async def _start(self, prompt: str) -> None:
        body = {"content": [{"type": "text", "text": prompt}]}
        try:
            chat = await session_of(self).api.post("/chats", body, Chat, key=new_key())
        except (ApiError, ServerUnreachable) as error:
            self.post_message(ShowNotice(error.message, "error"))
            return
        self.post_message(OpenChat(chat.id))


def _option(demo: DemoPrompt) -> Option:
    return Option(Text.assemble((demo.title, "bold"), "\n", (demo.text, "dim")))
