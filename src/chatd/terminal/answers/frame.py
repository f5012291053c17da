"""The frame around a form: what is asked, by whom and until when; the problem; the keys."""

from collections.abc import Sequence
from typing import Final

from textual.app import ComposeResult
from textual.containers import Container, Vertical
from textual.content import Content
from textual.geometry import Size
from textual.widget import Widget
from textual.widgets import Static

from chatd.terminal.answers.exact_text import exact_rows
from chatd.terminal.answers.form import AskForm
from chatd.terminal.safe_text import cell_width, safe_line, safe_text

KEY_GAP: Final = "   "


class KeyLine(Widget):
    """The keys, in as many rows as they need; a key stays in one row with its words."""

    DEFAULT_CSS = """
    KeyLine { height: auto; padding: 0 1; color: $text-muted; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._keys: Sequence[Content] = ()

    def show(self, keys: Sequence[Content]) -> None:
        self._keys = keys
        self.refresh(layout=True)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        del container, viewport
        return len(_rows(self._keys, width))

    def render(self) -> Content:
        return Content("\n").join(_rows(self._keys, self.content_size.width))


def _rows(keys: Sequence[Content], width: int) -> list[Content]:
    rows: list[Content] = []
    for key in keys:
        longer = rows[-1] + KEY_GAP + key if rows else key
        if rows and longer.cell_length <= width:
            rows[-1] = longer
        else:
            rows.append(key)
    return rows


class AskHead(Widget):
    """The title, whole, in as many rows as it needs: it names the tool that is approved. The note
    beside it goes below if it does not fit there, and is what is cut."""

    DEFAULT_CSS = """
    AskHead { height: auto; padding: 0 1; }
    """

    def __init__(self) -> None:
        super().__init__(id="ask-head")
        self._title = self._note = ""

    def show(self, title: str, note: str) -> None:
        self._title, self._note = title, note
        self.refresh(layout=True)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        del container, viewport
        return len(head_rows(self._title, self._note, width))

    def render(self) -> Content:
        rows = head_rows(self._title, self._note, self.content_size.width)
        return Content("\n").join(
            Content.assemble((title, "bold $text-warning"), (note, "$text-muted"))
            for title, note in rows
        )


def head_rows(title: str, note: str, width: int) -> list[tuple[str, str]]:
    """Pairs of what is of the title and what is of the note, which stands at the right."""
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
        self._head = AskHead()
        self._place = Container(id="ask-place")
        self._problem = Static(id="ask-problem", markup=False)
        self._keys = KeyLine()

    def compose(self) -> ComposeResult:
        yield self._head
        yield self._place
        yield self._problem
        yield self._keys

    def put_form(self, form: AskForm | None) -> None:
        """In place of the one before."""
        self._place.remove_children()
        if form is not None:
            self._place.mount(form)

    def draw_frame(
        self, title: str, notes: Sequence[str], problem: str, keys: Sequence[Content]
    ) -> None:
        self._head.show(f"◆ {title}", " · ".join(note for note in notes if note))
        self._problem.update(safe_text(problem))
        self._problem.set_class(bool(problem), "-shown")
        self._keys.show(keys)
