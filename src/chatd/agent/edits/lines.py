"""Text as lines in four parts, and finding runs of lines in other lines.

A line is its leading blanks, its body, its trailing blanks and its ending. Joined, the parts give
back the text to the character. Only "\\n" and "\\r\\n" end a line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

BLANKS = " \t\f\v"
LF = "\n"
CRLF = "\r\n"


class SourceLine(NamedTuple):
    """A line without a body keeps all its blanks in `lead`."""

    lead: str
    body: str
    trail: str
    ending: str

    @property
    def text(self) -> str:
        return self.lead + self.body + self.trail + self.ending

    @property
    def loose_end(self) -> str:
        """What is compared when blanks at the end do not count."""
        return self.lead + self.body if self.body else ""


def split_lines(text: str) -> list[SourceLine]:
    pieces = text.split(LF)
    last = pieces.pop()
    lines = [
        _line(piece[:-1], CRLF) if piece.endswith("\r") else _line(piece, LF) for piece in pieces
    ]
    if last:
        lines.append(_line(last, ""))
    return lines


def _line(core: str, ending: str) -> SourceLine:
    body = core.strip(BLANKS)
    if not body:
        return SourceLine(core, "", "", ending)
    begin = len(core) - len(core.lstrip(BLANKS))
    return SourceLine(core[:begin], body, core[begin + len(body) :], ending)


def line_endings(text: str) -> frozenset[str]:
    """The kinds of line endings in the text."""
    pairs = text.count(CRLF)
    kinds: set[str] = set()
    if pairs:
        kinds.add(CRLF)
    if text.count(LF) > pairs:
        kinds.add(LF)
    return frozenset(kinds)


def dominant_ending(text: str) -> str | None:
    """The ending most lines have; of two that are as frequent, the plain one."""
    pairs = text.count(CRLF)
    plain = text.count(LF) - pairs
    if not pairs and not plain:
        return None
    return CRLF if pairs > plain else LF


def with_ending(text: str, ending: str) -> str:
    return text.replace(CRLF, LF).replace(LF, ending)


def find_runs(needle: Sequence[str], keys: Sequence[str]) -> list[int]:
    """Where the run `needle` begins in `keys`, overlaps included. Linear, whatever repeats."""
    fallback = _fallbacks(needle)
    found: list[int] = []
    matched = 0
    for index, key in enumerate(keys):
        while matched and needle[matched] != key:
            matched = fallback[matched - 1]
        if needle[matched] == key:
            matched += 1
        if matched == len(needle):
            found.append(index - matched + 1)
            matched = fallback[matched - 1]
    return found


def _fallbacks(needle: Sequence[str]) -> list[int]:
    """For each prefix, how much of it begins again at its end (Knuth, Morris, Pratt)."""
    table = [0] * len(needle)
    matched = 0
    for index in range(1, len(needle)):
        while matched and needle[matched] != needle[index]:
            matched = table[matched - 1]
        if needle[matched] == needle[index]:
            matched += 1
        table[index] = matched
    return table


def drop_overlaps(starts: Sequence[int], length: int) -> list[int]:
    """From overlapping finds, those that a reader going from the top would take."""
    kept: list[int] = []
    free_from = 0
    for start in starts:
        if start >= free_from:
            kept.append(start)
            free_from = start + length
    return kept
