"""A table of markdown, in columns that fit the width."""

from collections.abc import Sequence
from typing import Final

from markdown_it.token import Token
from msgspec import Struct
from rich.cells import cell_len
from rich.text import Text

from chatd.terminal.timeline.lines import Lines, cut, wrap
from chatd.terminal.timeline.markdown.inline import inline_text
from chatd.terminal.timeline.palette import Palette

_GAP: Final = 2
_MIN_COLUMN: Final = 4
_MAX_COLUMNS: Final = 24


class _Cell(Struct, frozen=True):
    text: Text
    align: str = "left"


def table_lines(tokens: Sequence[Token], width: int, palette: Palette) -> Lines:
    rows = _rows(tokens, palette)
    count = min(max(map(len, rows), default=0), _MAX_COLUMNS)
    if count == 0:
        return []
    natural = [
        max((cell_len(row[at].text.plain) for row in rows if at < len(row)), default=1)
        for at in range(count)
    ]
    widths = _fit([max(one, 1) for one in natural], width - _GAP * (count - 1))
    lines: Lines = []
    for number, row in enumerate(rows):
        lines += _row_lines(row, widths, width)
        if number == 0:
            lines.append(cut(Text("  ".join("─" * one for one in widths), palette.faint), width))
    return lines


def _rows(tokens: Sequence[Token], palette: Palette) -> list[list[_Cell]]:
    rows: list[list[_Cell]] = []
    align = "left"
    for token in tokens:
        if token.type == "tr_open":
            rows.append([])
        elif token.type in ("th_open", "td_open"):
            align = str(token.attrGet("style") or "").removeprefix("text-align:") or "left"
        elif token.type == "inline" and rows:
            style = palette.strong if len(rows) == 1 else palette.plain
            rows[-1].append(_Cell(inline_text(token, palette, style), align))
    return rows


def _fit(natural: list[int], room: int) -> list[int]:
    """The widest columns give way until all fit."""
    widths = list(natural)
    excess = sum(widths) - room
    while excess > 0:
        widest = max(widths)
        if widest <= _MIN_COLUMN:
            break
        at = widths.index(widest)
        second = max((one for one in widths if one < widest), default=_MIN_COLUMN)
        step = min(excess, max(1, widest - max(second, _MIN_COLUMN)))
        widths[at] = max(_MIN_COLUMN, widest - step)
        excess = sum(widths) - room
    return widths


def _row_lines(row: Sequence[_Cell], widths: Sequence[int], width: int) -> Lines:
    cells = [wrap(cell.text, one) for cell, one in zip(row, widths, strict=False)]
    lines: Lines = []
    for at in range(max(map(len, cells), default=0)):
        line = Text()
        for number, pieces in enumerate(cells):
            piece = pieces[at] if at < len(pieces) else Text()
            room = widths[number] - cell_len(piece.plain)
            before = room if row[number].align == "right" else 0
            before = room // 2 if row[number].align == "center" else before
            line.append(" " * before)
            line.append_text(piece)
            line.append(" " * (room - before + (_GAP if number < len(cells) - 1 else 0)))
        lines.append(cut(line, width))
    return lines
