"""What the forms of the answer panel share: the base form, the field for a text, and the frame with
the title, the problem and the keys."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Final, cast

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical, VerticalScroll
from textual.content import Content
from textual.geometry import Size
from textual.message import Message
from textual.signal import Signal
from textual.widget import Widget
from textual.widgets import Static, TextArea

from chatd.client.drafts import CallAnswer
from chatd.domain.ids import ChatId
from chatd.terminal.answers.asks import Ask, AskKey, Item, OpenAsks, time_left
from chatd.terminal.answers.exact_text import exact_rows
from chatd.terminal.keys import KEYS, key_name
from chatd.terminal.safe_text import cell_width, safe_line, safe_text

# What the forms of the answer panel share: each shows one ask and says what was answered.

_UNNUMBERED: Final = frozenset({"leave", "unfold", "view"})
"""Actions that answer nothing."""
READING_SHARE: Final = 0.35
WRITING_SHARE: Final = 0.2
"""The share of the screen's rows for the text above the keys or above a field."""


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


@dataclass
class Answered(Message):
    """Send these answers of one chat."""

    chat_id: ChatId
    answers: Sequence[CallAnswer]


@dataclass
class DraftKept(Message):
    """Keep this until the ask has gone: the person may be looking at another chat."""

    key: AskKey
    draft: object


class AskForm(Vertical):
    """A form. `actions` are the keys that it offers now, with their words; the panel calls the
    method of the action's name. `problem` says what is wrong with the answer."""

    DEFAULT_CSS = """
    AskForm { height: auto; }
    """

    problem = ""

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
        """What stands next to the title, such as how many questions are answered."""
        return ""

    def show_problem(self, text: str) -> None:
        self.problem = text
        self.post_message(HintsChanged())

    def take_focus(self) -> None:
        """Put the cursor where the form is answered."""
        self.query(Body).first().focus()

    def leave(self) -> bool:
        """Go one step back in the form; false if it is at its first step."""
        return False

    @property
    def numbered(self) -> Sequence[str]:
        """The actions that number keys choose, in the order in which they are shown."""
        return [name for name, word in self.actions if word and name not in _UNNUMBERED]

    def choose_number(self, number: int) -> None:
        if number <= len(self.numbered):
            self.act(self.numbered[number - 1])

    def act(self, action: str) -> None:
        """Do what a key says, if the form offers it now."""
        if any(name == action for name, _ in self.actions):
            getattr(self, f"do_{action}")()

    def do_leave(self) -> None:
        self.leave()


# A field for a few lines of text: Enter takes it, Escape leaves it.

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

    @dataclass
    class Taken(Message):
        """The person wants this text."""

        text: str

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


# The frame around a form: what is asked, by whom and until when; the problem; the keys.

KEY_GAP: Final = "   "


class FittedRows(Widget):
    """Rows that depend on the width: `fit` makes them."""

    DEFAULT_CSS = """
    FittedRows { height: auto; padding: 0 1; color: $text-muted; }
    """

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._fit: Callable[[int], list[Content]] = lambda _: []

    def show(self, fit: Callable[[int], list[Content]]) -> None:
        self._fit = fit
        self.refresh(layout=True)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:  # noqa: ARG002
        return len(self._fit(width))

    def render(self) -> Content:
        return Content("\n").join(self._fit(self.content_size.width))


def key_rows(keys: Sequence[Content], width: int) -> list[Content]:
    """The keys in as many rows as they need; a key stays in one row with its words."""
    rows: list[Content] = []
    for key in keys:
        longer = rows[-1] + KEY_GAP + key if rows else key
        if rows and longer.cell_length <= width:
            rows[-1] = longer
        else:
            rows.append(key)
    return rows


def head_rows(title: str, note: str, width: int) -> list[tuple[str, str]]:
    """Pairs of what is of the title and what is of the note, which stands at the right. The title
    is whole: it names the tool that is approved. The note goes below it if it does not fit, and is
    what is cut."""
    rows = [row.text for row in exact_rows(title, width)]
    room = width - cell_width(rows[-1]) - len(KEY_GAP)
    if note and cell_width(note) > room:
        return [*((row, "") for row in rows), ("", safe_line(note, max(width, 2)))]
    gap = " " * (width - cell_width(rows[-1]) - cell_width(note)) if note else ""
    return [*((row, "") for row in rows[:-1]), (rows[-1], gap + note)]


class AskFrame(Vertical):
    DEFAULT_CSS = """
    AskFrame { height: auto; }
    AskFrame > #ask-place { height: auto; }
    AskFrame > #ask-problem { color: $text-error; padding: 0 1; height: auto; display: none; }
    AskFrame > #ask-problem.-shown { display: block; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._head = FittedRows(id="ask-head")
        self._place = Container(id="ask-place")
        self._problem = Static(id="ask-problem", markup=False)
        self._keys = FittedRows()

    def compose(self) -> ComposeResult:
        yield self._head
        yield self._place
        yield self._problem
        yield self._keys

    def put_form(self, form: AskForm | None) -> None:
        """Replace what was shown before."""
        self._place.remove_children()
        if form is not None:
            self._place.mount(form)

    def draw_frame(
        self, title: str, notes: Sequence[str], problem: str, keys: Sequence[Content]
    ) -> None:
        note = " · ".join(note for note in notes if note)
        self._head.show(
            lambda width: [
                Content.assemble((head, "bold $text-warning"), (rest, "$text-muted"))
                for head, rest in head_rows(f"◆ {title}", note, width)
            ]
        )
        self._problem.update(safe_text(problem))
        self._problem.set_class(bool(problem), "-shown")
        self._keys.show(lambda width: key_rows(keys, width))


# The line that names the keys of a form, and what stands next to its title.


_KEY_NAMES: Final = {
    key.action.removeprefix("answer('").removesuffix("')"): key_name(key.keys.partition(",")[0])
    for key in KEYS["answers"]
}
"""By action; for `answer('approve')`, by its argument."""


def hint_line(
    actions: Sequence[tuple[str, str]], *, before: str = "", numbered: Sequence[str] = ()
) -> list[Content]:
    """`before` comes first, such as how to get here. Actions without a word are not named; those of
    `numbered` have their number before their key."""
    parts = [Content.styled(before, "bold")] if before else []
    for action, word in actions:
        if word:
            number = f"{numbered.index(action) + 1} " if action in numbered else ""
            key = (f"{number}{_KEY_NAMES[action]}", "bold $text-accent")
            parts.append(Content.assemble(key, f" {word}"))
    return parts


def notes_of(form: AskForm, item: Item, asks: OpenAsks, now: datetime) -> list[str]:
    """Which agent asks, how far the answer is, until when, and which of several this is."""
    notes = [form.note]
    if isinstance(item, Ask):
        notes = [safe_line(item.asker, 30), form.note, time_left(item.call.deadline, now)]
    count = len(asks.items)
    if form.query_one(Body).has_more_below:
        notes.append("more below ↓")
    return [*notes, f"{asks.place_of(item)} of {count}" if count > 1 else ""]
