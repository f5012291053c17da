"""Split text into lines of four parts, and find runs of lines.

A line has leading blanks, a body, trailing blanks and an ending. Joined, the parts are exactly the
text. Only "\\n" and "\\r\\n" end a line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

BLANKS = " \t\f\v"
LF = "\n"
CRLF = "\r\n"


class SourceLine(NamedTuple):
    """A line without a body has all its blanks in `lead`."""

    lead: str
    body: str
    trail: str
    ending: str

    @property
    def text(self) -> str:
        return self.lead + self.body + self.trail + self.ending

    @property
    def without_trail(self) -> str:
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
    """The ending of most lines; "\\n" if both are equally frequent."""
    pairs = text.count(CRLF)
    plain = text.count(LF) - pairs
    if not pairs and not plain:
        return None
    return CRLF if pairs > plain else LF


def with_ending(text: str, ending: str) -> str:
    return text.replace(CRLF, LF).replace(LF, ending)


def find_runs(needle: Sequence[str], keys: Sequence[str]) -> list[int]:
    """Where the run `needle` begins in `keys`, overlaps included, in linear time."""
    fallback = _failure_table(needle)
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


def _failure_table(needle: Sequence[str]) -> list[int]:
    """For each prefix, the length of its longest border (Knuth, Morris, Pratt)."""
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
    """The matches that do not overlap an earlier one."""
    kept: list[int] = []
    free_from = 0
    for start in starts:
        if start >= free_from:
            kept.append(start)
            free_from = start + length
    return kept
