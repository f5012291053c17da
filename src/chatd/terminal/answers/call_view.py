"""Draws a call that waits for approval: its command or arguments exactly, then why it asks.

Draws only the rows in sight: a command may have thousands of lines.
"""

from collections.abc import Iterator, Sequence
from typing import ClassVar, Final, Literal

from rich.segment import Segment
from textual.geometry import Size
from textual.strip import Strip
from textual.widget import Widget

from chatd.terminal.answers.call_text import CallText, TextBlock
from chatd.terminal.answers.exact_text import ExactRow, exact_rows, folded
from chatd.terminal.answers.form import READING_SHARE, HintsChanged
from chatd.terminal.safe_text import cell_width

GUTTER: Final = 2
LABEL_WIDTH: Final = 13
Role = Literal["text", "title", "label", "note"]
Row = tuple[tuple[Role, str], ...]
"""The pieces of one row on the screen, from the left."""


class CallView(Widget):
    """The text of one call, or of several below each other."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"text", "title", "label", "note"}
    DEFAULT_CSS = """
    CallView { height: auto; padding: 0 1; }
    CallView > .title { text-style: bold; }
    CallView > .label { color: $text-muted; }
    CallView > .note { color: $text-warning; text-style: bold; }
    """

    def __init__(self, texts: Sequence[CallText], *, titled: bool = False) -> None:
        super().__init__()
        self._texts = texts
        self._titled = titled
        self._rows: list[Row] = []
        self._width = 0
        self._folds = False
        self.is_whole = False
        self.has_folds = False

    def unfold(self) -> None:
        """Show everything, or fold long texts again."""
        self.is_whole = not self.is_whole
        self._width = 0
        self.refresh(layout=True)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        del container, viewport
        if width != self._width:
            self._width = width
            self._rows = self._fit(max(width, GUTTER + 8))
            self.post_message(HintsChanged())
        return len(self._rows)

    def render_line(self, y: int) -> Strip:
        pieces = self._rows[y] if y < len(self._rows) else ()
        segments = [Segment(text, self.get_component_rich_style(role)) for role, text in pieces]
        return Strip(segments).adjust_cell_length(self._width, self.rich_style)

    # Rows

    def _fit(self, width: int) -> list[Row]:
        """Long texts are folded if all of them do not fit."""
        self._folds = self.has_folds = False
        rows = list(self._lay_out(width))
        if self.is_whole or len(rows) <= int(self.screen.size.height * READING_SHARE):
            return rows
        self._folds = True
        return list(self._lay_out(width))

    def _lay_out(self, width: int) -> Iterator[Row]:
        for text in self._texts:
            if self._titled:
                yield from _plain("title", text.title, width)
            for block in text.blocks:
                yield from self._block(block, width)
            for label, words in text.facts:
                yield from self._fact(label, words, width)
            for warning in text.warnings:
                yield from _plain("note", f"! {warning}", width)

    def _block(self, block: TextBlock, width: int) -> Iterator[Row]:
        if block.kind == "argument":
            yield from self._fact(block.name, block.text, width)
        else:
            yield from self._mark(exact_rows(block.text, width - GUTTER), ("$ ", "> ", "  "))

    def _fact(self, label: str, words: str, width: int) -> Iterator[Row]:
        """Beside its label if that is short, else below it."""
        cells = cell_width(label)
        if cells < LABEL_WIDTH and width > 2 * LABEL_WIDTH:
            blank = " " * LABEL_WIDTH
            marks = (label + blank[cells:], blank, blank)
            yield from self._mark(exact_rows(words, width - LABEL_WIDTH), marks)
            return
        yield from _plain("label", label, width)
        yield from self._mark(exact_rows(words, width - GUTTER), ("  ", "  ", "  "))

    def _mark(self, rows: list[ExactRow], marks: tuple[str, str, str]) -> Iterator[Row]:
        """`marks` are for the first row, for the first row of a later line, and for the rest."""
        shown = folded(rows) if self._folds else rows
        self.has_folds |= len(shown) < len(rows)
        first, later, rest = marks
        for at, row in enumerate(shown):
            if row.hidden:
                yield ("label", rest), ("note", f"⋯ {row.hidden} more lines: o shows all")
            else:
                mark = first if at == 0 else later if row.starts else rest
                yield ("label", mark), ("text", row.text)


def _plain(role: Role, text: str, width: int) -> Iterator[Row]:
    for row in exact_rows(text, width):
        yield ((role, row.text),)
