"""What the forms of the answer panel share: each shows one ask and says what was answered."""

from collections.abc import Sequence
from typing import ClassVar, Final, cast

from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.message import Message
from textual.signal import Signal

from chatd.domain.ids import ChatId
from chatd.terminal.answers.asks import AskKey
from chatd.terminal.answers.sending import CallAnswer

READING_SHARE: Final = 0.35
WRITING_SHARE: Final = 0.2
"""Of the rows of the screen, for the text above the keys or above a field."""


class HintsChanged(Message):
    """The form offers other keys now."""


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
    Body { height: auto; }
    """

    @property
    def has_more_below(self) -> bool:
        return self.scroll_y < self.max_scroll_y

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self.post_message(HintsChanged())

    def limit(self, share: float) -> None:
        """At most this share of the screen. Not by CSS: textual measures a box that fits its
        content without a maximum that is relative."""
        rows = max(3, int(self.screen.size.height * share))
        if self.styles.max_height is None or self.styles.max_height.value != rows:
            self.styles.max_height = rows


class RowsBody(Body, can_focus=False, inherit_bindings=False):
    """One whose rows take the focus: up and down go to them."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("pageup", "page_up", show=False),
        Binding("pagedown", "page_down", show=False),
    ]


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


class AskForm(Vertical):
    """A form. `actions` are the keys that it offers now, with their words; the panel calls the
    method of the action's name."""

    DEFAULT_CSS = """
    AskForm { height: auto; }
    """

    def on_mount(self) -> None:
        changes = cast(
            "Signal[object]",
            self.screen.screen_layout_refresh_signal,  # pyright: ignore[reportUnknownMemberType]
        )
        changes.subscribe(self, self._limit_body)
        self._limit_body()
        self.call_after_refresh(self.post_message, HintsChanged())

    def _limit_body(self, _: object = None) -> None:
        if not self.has_class("-full"):
            share = WRITING_SHARE if self.has_class("-writing") else READING_SHARE
            self.query_one(Body).limit(share)

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
