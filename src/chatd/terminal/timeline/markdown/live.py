"""Markdown that grows at its end: only its last block is read again.

A block that has another one after it is settled: its lines are kept. A block that grows without end
is settled in pieces, at a line break: code by lines, anything else at `_MAX_TAIL_CHARS`. When the
answer is complete it is read once as a whole, which repairs what such a cut got wrong.
"""

import re
from collections.abc import Sequence
from typing import Final

from markdown_it.token import Token
from rich.text import Text

from chatd.terminal.timeline.lines import MAX_CHARS, Lines, shown
from chatd.terminal.timeline.markdown.blocks import PARSER, fence_lines, fitted_lines
from chatd.terminal.timeline.palette import Palette

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
