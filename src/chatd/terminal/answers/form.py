"""What the forms of the answer panel share: each shows one ask and says what was answered."""

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.message import Message

from chatd.domain.ids import ChatId
from chatd.terminal.answers.asks import AskKey
from chatd.terminal.answers.sending import CallAnswer


class Body(VerticalScroll, can_focus=True, inherit_bindings=False):
    """The part of a form that scrolls. Left and right are left to the panel: they change the
    ask."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "scroll_up", show=False),
        Binding("down", "scroll_down", show=False),
        Binding("pageup", "page_up", show=False),
        Binding("pagedown", "page_down", show=False),
        Binding("home", "scroll_home", show=False),
        Binding("end", "scroll_end", show=False),
    ]
    DEFAULT_CSS = """
    Body { height: auto; max-height: 100%; }
    """


class Answered(Message):
    """Send these answers of one chat."""

    def __init__(self, chat_id: ChatId, answers: Sequence[CallAnswer]) -> None:
        super().__init__()
        self.chat_id = chat_id
        self.answers = tuple(answers)


class DraftKept(Message):
    """Keep this until the ask has gone: the person may look at another chat meanwhile."""

    def __init__(self, key: AskKey, draft: object) -> None:
        super().__init__()
        self.key = key
        self.draft = draft


class HintsChanged(Message):
    """The form offers other keys now."""


class AskForm(Vertical):
    """A form. `actions` are the keys that it offers now, with their words; the panel calls the
    method of the action's name."""

    DEFAULT_CSS = """
    AskForm { height: auto; max-height: 100%; }
    """

    @property
    def actions(self) -> Sequence[tuple[str, str]]:
        """Names of actions, each with a short word for the line of keys."""
        return ()

    @property
    def title(self) -> str:
        return ""

    @property
    def note(self) -> str:
        """Beside the title, such as how many questions are answered."""
        return ""

    @property
    def problem(self) -> str:
        return ""

    def take_focus(self) -> None:
        """Put the cursor where the form is answered."""
        self.query(Body).first().focus()

    def leave(self) -> bool:
        """Go one step back in the form; false if it is at its first step."""
        return False

    def act(self, action: str) -> None:
        """Do what a key says, if the form offers it now."""
        if any(name == action for name, _ in self.actions):
            getattr(self, f"do_{action}")()
