"""The frame around a form: what is asked, by whom and until when; the problem; the keys."""

from collections.abc import Sequence
from typing import Final

from textual.app import ComposeResult
from textual.containers import Container, Horizontal, Vertical
from textual.content import Content
from textual.geometry import Size
from textual.widget import Widget
from textual.widgets import Static

from chatd.terminal.answers.form import AskForm
from chatd.terminal.safe_text import safe_text

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


class AskFrame(Vertical):
    DEFAULT_CSS = """
    AskFrame { height: auto; }
    AskFrame > #ask-head { height: 1; padding: 0 1; }
    AskFrame #ask-title { width: 1fr; text-style: bold; color: $text-warning; height: 1; }
    AskFrame #ask-note { width: auto; color: $text-muted; }
    AskFrame > #ask-place { height: auto; }
    AskFrame > #ask-problem { color: $text-error; padding: 0 1; height: auto; display: none; }
    AskFrame > #ask-problem.-shown { display: block; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._title = Static(id="ask-title", markup=False)
        self._note = Static(id="ask-note", markup=False)
        self._place = Container(id="ask-place")
        self._problem = Static(id="ask-problem", markup=False)
        self._keys = KeyLine()

    def compose(self) -> ComposeResult:
        with Horizontal(id="ask-head"):
            yield self._title
            yield self._note
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
        self._title.update(f"◆ {safe_text(title)}")
        self._note.update(" · ".join(note for note in notes if note))
        self._problem.update(safe_text(problem))
        self._problem.set_class(bool(problem), "-shown")
        self._keys.show(keys)
