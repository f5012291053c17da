"""Markdown as lines of the timeline, whole or while it grows."""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Final

from markdown_it import MarkdownIt
from markdown_it.token import Token
from msgspec import Struct
from pygments.lexers import (
    get_lexer_for_filename,  # pyright: ignore[reportUnknownVariableType]
)
from pygments.token import Comment, Generic, Keyword, Name, Number, Operator, String
from pygments.util import ClassNotFound
from rich.cells import cell_len
from rich.style import Style
from rich.syntax import ANSISyntaxTheme, Syntax, SyntaxTheme
from rich.text import Text

from chatd.terminal.themes import Palette
from chatd.terminal.timeline.lines import (
    MAX_CHARS,
    Lines,
    cut,
    fold,
    one_line,
    padded,
    paragraph,
    prefixed,
    shown,
    shown_line,
    wrap,
)

_MAX_URL: Final = 200

_EMPHASES: Final = {
    "strong_open": Style(bold=True),
    "em_open": Style(italic=True),
    "s_open": Style(strike=True),
}
_BREAKS: Final = {"softbreak": " ", "hardbreak": "\n"}


def inline_text(token: Token, palette: Palette, style: Style | None = None) -> Text:
    """The content of an `inline` token. Its text has passed `safe_text` with the whole."""
    text = Text(style=style or palette.plain)
    writer = _Writer(palette)
    for child in token.children or ():
        for piece, own in writer.pieces(child):
            text.append(piece, own)
    return text


class _Writer:
    """Walks over the children of an inline token, and keeps what is open."""

    def __init__(self, palette: Palette) -> None:
        self._palette = palette
        self._styles: list[Style] = [Style()]
        self._links: list[tuple[str, int]] = []
        self._said = ""

    def pieces(self, child: Token) -> Iterator[tuple[str, Style]]:
        kind, style = child.type, self._styles[-1]
        if kind in _BREAKS:
            yield _BREAKS[kind], style
        elif kind == "link_close":
            self._styles.pop()
            yield from self._target()
        elif kind == "image":
            url = one_line(str(child.attrGet("src") or ""), _MAX_URL)
            yield f"[image: {one_line(child.content)}] ({url})", self._palette.muted
        elif child.nesting == 1:
            self._open(child)
        elif child.nesting == -1:
            self._styles.pop()
        else:
            self._said += child.content
            yield child.content, style + self._palette.code if kind == "code_inline" else style

    def _open(self, child: Token) -> None:
        own = _EMPHASES.get(child.type, Style())
        if child.type == "link_open":
            own = self._palette.link
            self._links.append((str(child.attrGet("href") or ""), len(self._said)))
        self._styles.append(self._styles[-1] + own)

    def _target(self) -> Iterator[tuple[str, Style]]:
        """Where a link leads, unless its text says it."""
        url, start = self._links.pop()
        said = self._said[start:]
        if url and url not in (said, f"mailto:{said}"):
            yield f" ({one_line(url, _MAX_URL)})", self._palette.muted


# A table of markdown, in columns that fit the width.

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
    """Narrow the widest columns until all fit."""
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


# Code with syntax colours, by pygments. Bounded: long code and long lines are plain.

MAX_COLOURED_CHARS: Final = 20_000
_MAX_COLOURED_LINE: Final = 1000
_MAX_NAME: Final = 40


def code_lines(code: str, language: str, width: int, palette: Palette) -> Lines:
    """The lines of a code block, on its background, folded at the width."""
    inner = max(width - 2, 1)
    lines: Lines = []
    for line in coloured(code, language, palette):
        for piece in fold(line, inner):
            lines.append(padded(Text.assemble(" ", piece), width, palette.code_block))
    return lines


def coloured(code: str, language: str, palette: Palette) -> Lines:
    """One `Text` for each line of the code."""
    lines = [shown_line(line) for line in code.rstrip("\n").split("\n")]
    text = "\n".join(lines)
    if len(text) > MAX_COLOURED_CHARS or max(map(len, lines)) > _MAX_COLOURED_LINE:
        return [Text(line) for line in lines]
    syntax = Syntax("", language[:_MAX_NAME], theme=_syntax_theme(palette))
    # A lexer adds a line feed at the end.
    coloured_lines = list(syntax.highlight(text).split("\n", allow_blank=True))
    return (coloured_lines + [Text()] * len(lines))[: len(lines)]


@lru_cache(2)
def _syntax_theme(palette: Palette) -> SyntaxTheme:
    return ANSISyntaxTheme(
        {
            Comment: palette.comment,
            Generic.Inserted: palette.ok,
            Generic.Deleted: palette.danger,
            Generic.Subheading: palette.info,
            Keyword: palette.accent,
            Operator.Word: palette.accent,
            String: palette.ok,
            Number: palette.warn,
            Name.Function: palette.info,
            Name.Class: palette.info,
            Name.Decorator: palette.info,
            Name.Tag: palette.info,
        }
    )


@lru_cache(256)
def language_of(path: str) -> str:
    """The language of a file, by its name; empty if it is not known."""
    name = PurePosixPath(path[-200:]).name
    if not name:
        return ""
    try:
        return get_lexer_for_filename(name).aliases[0]
    except (ClassNotFound, IndexError):
        return ""


# Markdown of models as lines. HTML is text, links show where they lead, images are named.

MIN_WIDTH: Final = 12
"""Below this width, nested blocks are no longer indented."""

PARSER: Final = MarkdownIt("commonmark", {"html": False, "maxNesting": 30}).enable(
    ["table", "strikethrough"]
)


def markdown_lines(text: str, width: int, palette: Palette) -> Lines:
    safe = shown(text)
    try:
        tokens = PARSER.parse(safe)
    except (RecursionError, ValueError, IndexError):
        return paragraph(text, width, palette.plain, MAX_CHARS)
    return fitted_lines(tokens, width, palette)


def fitted_lines(tokens: Sequence[Token], width: int, palette: Palette) -> Lines:
    """Cut lines: deeply nested blocks need more width than a narrow terminal has."""
    return [cut(line, width) for line in block_lines(tokens, width, palette)]


def block_lines(tokens: Sequence[Token], width: int, palette: Palette) -> Lines:
    """Lines of top-level or nested blocks, with an empty line between blocks."""
    lines: Lines = []
    index = 0
    while index < len(tokens):
        end = _end_of(tokens, index)
        block = _one_block(tokens, index, end, max(width, MIN_WIDTH), palette)
        # The paragraph of a tight item is hidden: what follows it stands close.
        is_tight = tokens[index].hidden or (index > 0 and tokens[index - 1].hidden)
        if block and lines and not is_tight:
            lines.append(Text())
        lines += block
        index = end + 1
    return lines


def _end_of(tokens: Sequence[Token], start: int) -> int:
    """Where the block ends that begins at `start`."""
    if tokens[start].nesting != 1:
        return start
    depth = 0
    for index in range(start, len(tokens)):
        depth += tokens[index].nesting
        if depth == 0:
            return index
    return len(tokens) - 1


def _one_block(
    tokens: Sequence[Token], start: int, end: int, width: int, palette: Palette
) -> Lines:
    token, inner = tokens[start], tokens[start + 1 : end]
    match token.type:
        case "heading_open":
            style = palette.strong + palette.accent if token.tag in ("h1", "h2") else palette.strong
            return wrap(inline_text(inner[0], palette, style), width)
        case "paragraph_open":
            return wrap(inline_text(inner[0], palette), width)
        case "bullet_list_open" | "ordered_list_open":
            return _list_lines(token, inner, width, palette)
        case "blockquote_open":
            quoted = block_lines(inner, width - 2, palette)
            return prefixed(quoted, Text("▏ ", palette.faint))
        case "fence" | "code_block":
            return fence_lines(token.content, token.info, width, palette)
        case "hr":
            return [Text("─" * width, palette.faint)]
        case "table_open":
            return table_lines(inner, width, palette)
        case "inline":
            return wrap(inline_text(token, palette), width)
        case _:
            return (
                paragraph(token.content, width, palette.plain, MAX_CHARS) if token.content else []
            )


def fence_lines(
    code: str, info: str, width: int, palette: Palette, *, has_label: bool = True
) -> Lines:
    language = next(iter(info.split(maxsplit=1)), "")
    label = padded(Text(f" {language}", palette.muted), width, palette.code_block)
    lines = code_lines(code, language, width, palette)
    return [label, *lines] if language and has_label else lines


def _list_lines(token: Token, inner: Sequence[Token], width: int, palette: Palette) -> Lines:
    lines: Lines = []
    number = int(token.attrGet("start") or 1) if token.type == "ordered_list_open" else None
    index = 0
    is_tight = any(one.hidden for one in inner)
    while index < len(inner):
        end = _end_of(inner, index)
        bullet = "• " if number is None else f"{number}. "
        if lines and not is_tight:
            lines.append(Text())
        lines += _item_lines(bullet, inner[index + 1 : end], width, palette)
        number = None if number is None else number + 1
        index = end + 1
    return lines


def _item_lines(bullet: str, tokens: Sequence[Token], width: int, palette: Palette) -> Lines:
    indent = cell_len(bullet)
    lines = block_lines(tokens, width - indent, palette) or [Text()]
    box = {"[ ] ": "☐ ", "[x] ": "☑ ", "[X] ": "☑ "}.get(lines[0].plain[:4])
    if box is not None:
        lines[0] = Text.assemble(box, lines[0][4:])
        return prefixed(lines, Text(), Text("  "))
    return prefixed(lines, Text(bullet, palette.muted), Text(" " * indent))


# Markdown that grows at its end: only its last block is read again.
#
# A block that has another one after it is settled: its lines are kept. A block that grows without
# end is settled in pieces, at a line break: code by lines, anything else at `_MAX_TAIL_CHARS`. When
# the answer is complete it is read once as a whole, which repairs what such a cut got wrong.

_MAX_TAIL_CHARS: Final = 8000
_MAX_OPEN_CODE_LINES: Final = 12
_SETTLED_CODE_LINES: Final = 8
_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})([^\n]*)\n")


class LiveMarkdown:
    """The lines of one text at one width. `parsed_chars` counts what was read, as work."""

    def __init__(self, width: int, palette: Palette) -> None:
        self.width = width
        self.palette = palette
        self.parsed_chars = 0
        self._text = ""
        self._settled: Lines = []
        self._settled_chars = 0
        self._last: tuple[str, list[Token]] | None = None
        self._opening = ""
        """The fence that is open at the settled place; empty outside of code."""

    def lines(self, text: str) -> Lines:
        """`text` usually begins with the text of the last call; if not, all is read again."""
        text = text[:MAX_CHARS]
        if not text.startswith(self._text):
            self._settled, self._settled_chars, self._opening = [], 0, ""
        self._text = text
        tail = text[self._settled_chars :]
        while (rest := self._settle(tail)) is not tail:
            self._settled_chars += len(tail) - len(rest)
            tail = rest
        return [*self._settled, *self._tail_lines(tail)]

    def _tail_lines(self, tail: str) -> Lines:
        if self._opening:
            return self._code(tail)
        lines = self._parse(_closed(tail))
        return [Text(), *lines] if lines and self._settled else lines

    def _settle(self, tail: str) -> str:
        """Settles what can no longer change. What is left: the same object if that is all."""
        if self._opening:
            return self._settle_code(tail)
        opening = _FENCE.match(tail)
        if opening is not None and not _has_end(opening[1], tail[opening.end() :]):
            if tail.count("\n") <= _MAX_OPEN_CODE_LINES:
                return tail
            self._add(self._parse(opening[0])[:1] if opening[2].strip() else [])
            self._opening = opening[0]
            return tail[opening.end() :]
        return self._settle_blocks(tail)

    def _settle_code(self, tail: str) -> str:
        fence = self._opening.strip()[:3]
        if (end := _end_of_code(fence, tail)) is not None:
            code, rest = end
            self._settled += self._code(code) if code else []
            self._opening = ""
            return rest
        if tail.count("\n") <= _MAX_OPEN_CODE_LINES:
            return tail
        pieces = tail.split("\n", _SETTLED_CODE_LINES)
        self._settled += self._code("\n".join(pieces[:-1]))
        return pieces[-1]

    def _settle_blocks(self, tail: str) -> str:
        starts = _block_starts(tail, self._tokens(tail)) if "\n" in tail else []
        if len(starts) > 1:
            return self._settle_until(tail, starts[-1])
        if len(tail) > _MAX_TAIL_CHARS:
            at = tail.rfind("\n", 0, _MAX_TAIL_CHARS)
            return self._settle_until(tail, at + 1 if at > 0 else _MAX_TAIL_CHARS)
        return tail

    def _settle_until(self, tail: str, end: int) -> str:
        self._add(self._parse(tail[:end]))
        return tail[end:]

    def _add(self, lines: Lines) -> None:
        if lines and self._settled:
            self._settled.append(Text())
        self._settled += lines

    def _code(self, code: str) -> Lines:
        self.parsed_chars += len(code)
        info = self._opening.strip().lstrip("`~")
        return fence_lines(code, info, self.width, self.palette, has_label=False)

    def _parse(self, text: str) -> Lines:
        return fitted_lines(self._tokens(text), self.width, self.palette)

    def _tokens(self, text: str) -> list[Token]:
        """Of the text or, if something in it must not be shown, of what may. The last ones are
        kept: the tail is first settled, then shown."""
        if self._last is None or self._last[0] != text:
            self.parsed_chars += len(text)
            self._last = (text, PARSER.parse(shown(text)))
        return self._last[1]


def _block_starts(text: str, tokens: Sequence[Token]) -> list[int]:
    """Where the top-level blocks begin, by the lines that the parser says."""
    lines = [
        token.map[0]
        for token in tokens
        if token.level == 0 and token.map is not None and token.nesting >= 0
    ]
    starts, at = [0], 0
    while (at := text.find("\n", at) + 1) > 0:
        starts.append(at)
    # A line that was taken out with an escape sequence shifts the count: then nothing is settled.
    if text.count("\n") != shown(text).count("\n"):
        return []
    return [starts[line] for line in lines]


def _closed(tail: str) -> str:
    """Closes the emphasis and the code that the last paragraph has opened and not closed yet."""
    last = tail.rpartition("\n\n")[2]
    for mark in ("`", "**"):
        if last.count(mark) % 2 and "```" not in last and "~~~" not in last:
            shorter = tail.rstrip("*`")
            return tail + mark if len(shorter) == len(tail) else shorter
    return tail


def _has_end(fence: str, code: str) -> bool:
    return _end_of_code(fence[:3], code) is not None


def _end_of_code(fence: str, code: str) -> tuple[str, str] | None:
    """The code before the closing fence and the text after it; None while it is open."""
    found = re.search(rf"^ {{0,3}}{re.escape(fence)}[`~]*[ \t]*(?:\n|$)", code, re.MULTILINE)
    return None if found is None else (code[: found.start()], code[found.end() :])
