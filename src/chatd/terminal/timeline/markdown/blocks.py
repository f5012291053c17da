"""Markdown of models as lines. HTML is text, links show where they lead, images are named."""

from collections.abc import Sequence
from typing import Final

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.cells import cell_len
from rich.text import Text

from chatd.terminal.timeline.lines import (
    MAX_CHARS,
    Lines,
    cut,
    padded,
    paragraph,
    prefixed,
    shown,
    wrap,
)
from chatd.terminal.timeline.markdown.code import code_lines
from chatd.terminal.timeline.markdown.inline import inline_text
from chatd.terminal.timeline.markdown.table import table_lines
from chatd.terminal.timeline.palette import Palette

MIN_WIDTH: Final = 12
"""Nested blocks stop to indent at this width."""

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
    """Deeply nested blocks need more than a narrow terminal has: they are cut."""
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
