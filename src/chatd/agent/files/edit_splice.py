"""Replaces lines that matched except for blanks and endings.

A line has four parts: leading blanks, body, trailing blanks and an ending (LF or CR LF). Joined,
the parts are exactly the text. Where the text to find and the new text have the same part, the
file's own stays; where they differ, that of the new text is used. New lines without a counterpart
are indented by level, in the file's indent unit: one tab or a number of spaces. With mixed blanks
there is no unit, and lines inherit the indent around them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import reduce
from math import gcd
from typing import NamedTuple

# Lines and runs of lines

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


# The replacement

# Beyond this many comparisons lines are paired by position.
_MAX_COMPARISONS = 100_000
_MAX_STEP_LINES = 5000


def indent_unit(leads: Iterable[str]) -> str | None:
    """A tab, or the number of spaces that divides every indent. None if there is no such unit."""
    indents = [lead for lead in leads if lead]
    kinds = set("".join(indents))
    if kinds == {"\t"}:
        return "\t"
    if kinds != {" "}:
        return None
    width = reduce(gcd, (len(indent) for indent in indents))
    return " " * width if width > 1 else None


def file_unit(matched: Sequence[str], whole: Sequence[str]) -> str | None:
    """The unit of the matched lines, or of the whole file if that divides it: one deep line alone
    may have several units."""
    if not any(matched):
        return typical_step(whole)
    unit = indent_unit(matched)
    if unit is None or unit == "\t":
        return unit
    step = typical_step(whole)
    if step and set(step) == {" "} and len(unit) % len(step) == 0:
        return step
    return unit


def typical_step(leads: Sequence[str]) -> str | None:
    """The most frequent increase of indent from one line to the next."""
    steps: Counter[str] = Counter()
    before = ""
    for lead in leads[:_MAX_STEP_LINES]:
        if len(lead) > len(before) and lead.startswith(before):
            steps[lead[len(before) :]] += 1
        before = lead
    uniform = [(count, step) for step, count in steps.items() if len(set(step)) == 1]
    if not uniform:
        return None
    step = max(uniform, key=lambda each: (each[0], -len(each[1])))[1]
    return "\t" if step[0] == "\t" else indent_unit([step])


def reindent(base: str, *, old: str, new: str, caller: str | None, file: str | None) -> str:
    """The file's indent for a line that the caller indents by `new`, given that the file has
    `base` where the caller wrote `old`. `caller` and `file` are the indent units."""
    if new == old:
        return base
    if caller is None or file is None:
        return _inherit(base, old, new)
    levels = len(new) // len(caller) - len(old) // len(caller)
    if levels >= 0:
        return base + file * levels
    for _ in range(-levels):
        if not base.endswith(file):
            break
        base = base[: -len(file)]
    return base


def _inherit(base: str, old: str, new: str) -> str:
    if new.startswith(old):
        extra = new[len(old) :]
        return base + extra if len(set(base + extra)) == 1 else base
    if old.startswith(new):
        removed = old[len(new) :]
        return base[: -len(removed)] if base.endswith(removed) else base
    return base


@dataclass(frozen=True)
class AlignedLine:
    """A new line, its counterpart among the searched lines if any, and its position in them."""

    line: SourceLine
    partner: int | None
    at: int


@dataclass(frozen=True)
class Splice:
    """One edit, to be applied to any number of matches in one file.

    `ending` is the ending of most lines of the file; `leads` are the file's indents, in order.
    """

    search: Sequence[SourceLine]
    aligned: Sequence[AlignedLine]
    has_one_ending: bool
    ending: str | None
    leads: Sequence[str]

    def replace(self, found: Sequence[SourceLine]) -> str:
        """The text that replaces `found`, lines with the same bodies as the searched lines."""
        if not self.aligned:
            return ""
        leads = self._build_leads(found)
        pieces: list[str] = []
        for index, aligned in enumerate(self.aligned):
            pieces += [leads[index], aligned.line.body, self._trail(aligned, found)]
            if index < len(self.aligned) - 1:
                pieces.append(self._ending(aligned, found))
        # The last line gets the last matched line's ending, so that no final newline is added or
        # lost and the line after the match is not joined to it.
        return "".join((*pieces, found[-1].ending))

    def _trail(self, aligned: AlignedLine, found: Sequence[SourceLine]) -> str:
        if aligned.partner is None:
            return aligned.line.trail
        is_same = self.search[aligned.partner].trail == aligned.line.trail
        return found[aligned.partner].trail if is_same and aligned.line.body else aligned.line.trail

    def _ending(self, aligned: AlignedLine, found: Sequence[SourceLine]) -> str:
        """The ending of a line that is not the last, so it has one."""
        new = aligned.line.ending
        if aligned.partner is not None:
            old = self.search[aligned.partner].ending
            of_file = found[aligned.partner].ending
            if of_file and old and (old == new or self.has_one_ending):
                return of_file
        return self.ending if self.has_one_ending and self.ending else new

    def _build_leads(self, found: Sequence[SourceLine]) -> list[str]:
        bodied = [index for index, line in enumerate(self.search) if line.body]
        if all(self.search[index].lead == found[index].lead for index in bodied):
            return [self._own_lead(aligned, found) for aligned in self.aligned]
        caller = indent_unit(
            line.lead
            for line in (*self.search, *(aligned.line for aligned in self.aligned))
            if line.body
        )
        matched = [found[index].lead for index in bodied]
        unit = file_unit(matched, self.leads) or (caller if not any(matched) else None)
        if not self._is_indented_alike():
            return self._keep_new_leads(found, (caller, unit))
        return [
            self._shift_lead(aligned, found, bodied, (caller, unit)) for aligned in self.aligned
        ]

    def _is_indented_alike(self) -> bool:
        """Whether the new text has the same outer indent as the text to find.

        If not (text to find without indent, new text with the file's), the new indent is final.
        """
        first_new = next((each.line for each in self.aligned if each.line.body), None)
        first_old = next(line for line in self.search if line.body)
        return (
            first_new is None
            or first_new.lead == first_old.lead
            or any(
                each.partner is not None
                and each.line.body
                and each.line.lead == self.search[each.partner].lead
                for each in self.aligned
            )
        )

    def _keep_new_leads(
        self, found: Sequence[SourceLine], units: tuple[str | None, str | None]
    ) -> list[str]:
        """The new text's own indents, converted if the file uses other blanks."""
        own = [self._own_lead(aligned, found) for aligned in self.aligned]
        caller, unit = units
        if caller is None or unit is None or caller[0] == unit[0]:
            return own
        base = next(line for line in found if line.body).lead
        begins = next(each.line for each in self.aligned if each.line.body).lead
        return [
            reindent(base, old=begins, new=lead, caller=caller, file=unit)
            if self.aligned[index].line.body
            else lead
            for index, lead in enumerate(own)
        ]

    def _own_lead(self, aligned: AlignedLine, found: Sequence[SourceLine]) -> str:
        unchanged = self._unchanged_lead(aligned, found)
        return aligned.line.lead if unchanged is None else unchanged

    def _unchanged_lead(self, aligned: AlignedLine, found: Sequence[SourceLine]) -> str | None:
        if aligned.partner is None:
            return None
        old = self.search[aligned.partner]
        if old.lead != aligned.line.lead or bool(old.body) != bool(aligned.line.body):
            return None
        return found[aligned.partner].lead

    def _shift_lead(
        self,
        aligned: AlignedLine,
        found: Sequence[SourceLine],
        bodied: Sequence[int],
        units: tuple[str | None, str | None],
    ) -> str:
        unchanged = self._unchanged_lead(aligned, found)
        if unchanged is not None:
            return unchanged
        if not aligned.line.body:
            return aligned.line.lead
        anchor = self._anchor(aligned, bodied)
        return reindent(
            found[anchor].lead,
            old=self.search[anchor].lead,
            new=aligned.line.lead,
            caller=units[0],
            file=units[1],
        )

    def _anchor(self, aligned: AlignedLine, bodied: Sequence[int]) -> int:
        """The searched line to measure from: the counterpart, else the nearest one with the same
        indent, else the nearest one."""
        if aligned.partner in bodied and aligned.partner is not None:
            return aligned.partner
        near = sorted(bodied, key=lambda index: (abs(index + 0.5 - aligned.at), index))
        same_indent = [index for index in near if self.search[index].lead == aligned.line.lead]
        return (same_indent or near)[0]


def prepare_splice(search: str, new: str, *, ending: str | None, leads: Sequence[str]) -> Splice:
    searched = split_lines(search)
    lines = split_lines(new)
    if not lines and not searched[-1].ending:
        lines = [SourceLine("", "", "", "")]  # empty the line; its ending was not searched for
    return Splice(
        search=searched,
        aligned=align_lines(searched, lines),
        has_one_ending=len(line_endings(new)) == 1,
        ending=ending,
        leads=leads,
    )


def align_lines(search: Sequence[SourceLine], new: Sequence[SourceLine]) -> list[AlignedLine]:
    """Pair each new line with the searched line of the same body, or else of the same position in
    a changed block."""
    if len(search) * len(new) > _MAX_COMPARISONS:
        return [
            AlignedLine(line, index if index < len(search) else None, min(index, len(search)))
            for index, line in enumerate(new)
        ]
    matcher = SequenceMatcher(
        None, [line.body for line in search], [line.body for line in new], autojunk=False
    )
    aligned: list[AlignedLine] = []
    for _, old_from, old_to, new_from, new_to in matcher.get_opcodes():
        for offset in range(new_to - new_from):
            old = old_from + offset
            partner = old if old < old_to else None
            aligned.append(AlignedLine(new[new_from + offset], partner, min(old, old_to)))
    return aligned
