"""Draws a call that waits for approval: its command or arguments exactly, then why it asks."""

from collections.abc import Iterator, Sequence
from typing import Final

from textual.content import Content
from textual.events import Resize
from textual.widgets import Static

from chatd.terminal.answers.call_text import CallText, TextBlock
from chatd.terminal.answers.exact_text import ExactRow, exact_rows, exact_text, folded

GUTTER: Final = 2
LABEL_WIDTH: Final = 13
_LINE_MARKS: Final = {"command": ("$ ", "> "), "argument": ("  ", "  ")}


class CallView(Static):
    """The text of one call, or of several below each other."""

    DEFAULT_CSS = """
    CallView { height: auto; padding: 0 1; }
    """

    def __init__(self, texts: Sequence[CallText], *, titled: bool = False) -> None:
        super().__init__()
        self._texts = texts
        self._titled = titled
        self.is_whole = False
        self.has_folds = False

    def unfold(self) -> None:
        """Show everything, or fold long texts again."""
        self.is_whole = not self.is_whole
        self._draw(self.size.width)

    def on_resize(self, event: Resize) -> None:
        self._draw(event.size.width)

    def _draw(self, width: int) -> None:
        lines = list(self._lines(max(width, GUTTER + 8)))
        self.update(Content("\n").join(lines))

    def _lines(self, width: int) -> Iterator[Content]:
        self.has_folds = False
        for text in self._texts:
            if self._titled:
                yield Content.styled(text.title, "bold")
            for block in text.blocks:
                yield from self._block(block, width)
            for label, words in text.facts:
                yield from self._fact(label, words, width)
            for warning in text.warnings:
                yield Content.styled(f"! {warning}", "$text-warning")

    def _block(self, block: TextBlock, width: int) -> Iterator[Content]:
        if block.kind == "argument":
            yield from self._fact(block.name, block.text, width)
            return
        yield from self._rows(exact_rows(block.text, width - GUTTER), _LINE_MARKS["command"])

    def _fact(self, label: str, words: str, width: int) -> Iterator[Content]:
        """Beside its label if it fits, else below it."""
        name = f"{label}  "
        if len(name) <= LABEL_WIDTH and width > 2 * LABEL_WIDTH:
            marks = (f"{label:<{LABEL_WIDTH}}", " " * LABEL_WIDTH)
            yield from self._rows(exact_rows(words, width - LABEL_WIDTH), marks, rest=marks[1])
            return
        if label:
            yield Content.styled(label, "$text-muted")
        yield from self._rows(exact_rows(words, width - GUTTER), _LINE_MARKS["argument"])

    def _rows(
        self, rows: list[ExactRow], marks: tuple[str, str], rest: str = "  "
    ) -> Iterator[Content]:
        shown = rows if self.is_whole else folded(rows)
        self.has_folds |= len(shown) < len(rows)
        for at, row in enumerate(shown):
            if row.hidden:
                words = f"⋯ {row.hidden} more lines here: o shows all"
                yield Content.assemble((rest, ""), (words, "$text-warning bold"))
                continue
            mark = rest if not row.starts else marks[0] if at == 0 else marks[1]
            yield Content.assemble((mark, "$text-muted"), (row.text, ""))


def one_line(text: str) -> str:
    """A text in one line, with nothing hidden."""
    return exact_text(text).replace("\n", "\\n")
