"""A field for a few lines of text: Enter takes it, Escape leaves it."""

from typing import Final

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Static, TextArea

_NEW_LINE_KEYS: Final = "ctrl+j,shift+enter,alt+enter"


class EntryField(TextArea):
    BINDINGS = [  # noqa: RUF012
        Binding("enter", "take", priority=True, show=False),
        Binding(_NEW_LINE_KEYS, "new_line", priority=True, show=False),
        Binding("escape", "leave", priority=True, show=False),
    ]

    def action_take(self) -> None:
        self.post_message(Entry.Taken(self.text))

    def action_new_line(self) -> None:
        self.insert("\n")

    def action_leave(self) -> None:
        self.post_message(Entry.Left())


class Entry(Vertical):
    """A label above the field. Hidden until it is opened."""

    DEFAULT_CSS = """
    Entry { height: auto; display: none; padding: 0 1; }
    Entry.-open { display: block; }
    Entry > #entry-label { color: $text-muted; height: auto; }
    EntryField, EntryField:focus { height: auto; min-height: 1; max-height: 4; border: none;
        padding: 0 1; background: $boost; }
    """

    class Taken(Message):
        """The person wants this text."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class Left(Message):
        """The person goes back; the text stays for the next time."""

    def __init__(self) -> None:
        super().__init__()
        self._label = Static("", id="entry-label", markup=False)
        self._field = EntryField(soft_wrap=True, show_line_numbers=False, tab_behavior="focus")

    def compose(self) -> ComposeResult:
        yield self._label
        yield self._field

    @property
    def is_open(self) -> bool:
        return self.has_class("-open")

    @property
    def text(self) -> str:
        return self._field.text

    def open(self, label: str, text: str, *, read_only: bool = False) -> None:
        self._label.update(label)
        self._field.read_only = read_only
        self._field.load_text(text)
        self._field.move_cursor(self._field.document.end)
        self.add_class("-open")
        self._field.focus()

    def close(self) -> None:
        self.remove_class("-open")
