"""The frame around a form: what is asked, by whom and until when; the problem; the keys."""

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Container, Horizontal, Vertical
from textual.content import Content
from textual.widgets import Static

from chatd.terminal.answers.form import AskForm
from chatd.terminal.safe_text import safe_text


class AskFrame(Vertical):
    DEFAULT_CSS = """
    AskFrame { height: auto; }
    AskFrame > #ask-head { height: 1; padding: 0 1; }
    AskFrame #ask-title { width: 1fr; text-style: bold; color: $text-warning; height: 1; }
    AskFrame #ask-note { width: auto; color: $text-muted; }
    AskFrame > #ask-place { height: auto; }
    AskFrame > #ask-problem { color: $text-error; padding: 0 1; height: auto; display: none; }
    AskFrame > #ask-problem.-shown { display: block; }
    AskFrame > #ask-keys { padding: 0 1; color: $text-muted; height: auto; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._title = Static(id="ask-title", markup=False)
        self._note = Static(id="ask-note", markup=False)
        self._place = Container(id="ask-place")
        self._problem = Static(id="ask-problem", markup=False)
        self._keys = Static(id="ask-keys", markup=False)

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

    def draw_frame(self, title: str, notes: Sequence[str], problem: str, keys: Content) -> None:
        self._title.update(f"◆ {safe_text(title)}")
        self._note.update(" · ".join(note for note in notes if note))
        self._problem.update(safe_text(problem))
        self._problem.set_class(bool(problem), "-shown")
        self._keys.update(keys)
