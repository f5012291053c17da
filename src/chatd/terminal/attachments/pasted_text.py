"""Pasted text: one draft however many lines it has. A long one becomes a file of the message."""

import re
from typing import Final

from msgspec import Struct

from chatd.terminal.safe_text import safe_text

MAX_INLINE_CHARS: Final = 20_000
"""Pasted text beyond this is attached as a file: the text box stays quick and readable."""
MAX_INLINE_LINES: Final = 400
MAX_PASTED_CHARS: Final = 4_000_000
"""Of a longer paste only the beginning is kept, and the person is told."""
MAX_TEXT_CHARS: Final = 200_000
"""The text of one message; a request may have 1 MiB."""

_BLOCK: Final = re.compile(r"\[Pasted text (\d+), [\d,]+ lines?\]")


class Pasted(Struct, frozen=True, kw_only=True):
    """What is put into the box: the text, or a word that stands for the file."""

    text: str
    is_long: bool
    is_cut: bool


def read_paste(raw: str) -> Pasted:
    """Terminals send the line breaks of a paste as carriage returns."""
    cut = raw[:MAX_PASTED_CHARS]
    text = safe_text(cut.replace("\r\n", "\n").replace("\r", "\n"))
    is_long = len(text) > MAX_INLINE_CHARS or text.count("\n") >= MAX_INLINE_LINES
    return Pasted(text=text, is_long=is_long, is_cut=len(raw) > len(cut))


def write_block(number: int, text: str) -> str:
    """Stands in the draft for the pasted file; removing it removes the file."""
    lines = text.count("\n") + (0 if text.endswith("\n") else 1)
    return f"[Pasted text {number}, {lines:,} {'line' if lines == 1 else 'lines'}]"


def blocks_of(text: str) -> frozenset[str]:
    return frozenset(match.group(0) for match in _BLOCK.finditer(text))


def next_number(text: str) -> int:
    return 1 + max((int(match.group(1)) for match in _BLOCK.finditer(text)), default=0)
