"""Putting new lines in the place of lines that matched but for blanks and endings.

The rule: a line has four parts (leading blanks, body, trailing blanks, ending). Where the text to
find and the new text agree, the caller did not mean to change anything, so the file's own bytes
stay; where they differ, the new text is what was meant. New lines without a counterpart are
indented by level, in the unit of the file.

Indentation by level: what the caller wrote in one unit is said in the file's.

A unit is one tab or a number of spaces. Where blanks are mixed there is no telling, and lines
inherit what is around them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import reduce
from math import gcd

from chatd.agent.edits.lines import SourceLine, line_endings, split_lines

_STEPS_LOOKED_AT = 5000


def indent_unit(leads: Iterable[str]) -> str | None:
    """A tab, or as many spaces as divide every indent. None: none, mixed, or too odd to tell."""
    indents = [lead for lead in leads if lead]
    kinds = set("".join(indents))
    if kinds == {"\t"}:
        return "\t"
    if kinds != {" "}:
        return None
    width = reduce(gcd, (len(indent) for indent in indents))
    return " " * width if width > 1 else None


def file_unit(matched: Sequence[str], whole: Sequence[str]) -> str | None:
    """The unit of the matched lines; one deep line alone is read with the rest of the file."""
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
    """What is most often added from one line to the next."""
    steps: Counter[str] = Counter()
    before = ""
    for lead in leads[:_STEPS_LOOKED_AT]:
        if len(lead) > len(before) and lead.startswith(before):
            steps[lead[len(before) :]] += 1
        before = lead
    uniform = [(count, step) for step, count in steps.items() if len(set(step)) == 1]
    if not uniform:
        return None
    step = max(uniform, key=lambda each: (each[0], -len(each[1])))[1]
    return "\t" if step[0] == "\t" else indent_unit([step])


def reindent(base: str, *, old: str, new: str, caller: str | None, file: str | None) -> str:
    """The file's indent for a line the caller indents by `new`.

    Known is that where the caller wrote `old`, the file has `base`.
    """
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
        lost = old[len(new) :]
        return base[: -len(lost)] if base.endswith(lost) else base
    return base


# Beyond this many comparisons lines are paired by position.
_MAX_COMPARED = 100_000


@dataclass(frozen=True)
class AlignedLine:
    """A new line, the searched line it stands for if any, and where among them it stands."""

    line: SourceLine
    partner: int | None
    at: int


@dataclass(frozen=True)
class Splice:
    """One edit, ready for any number of matches in one file.

    `ending` is that of most lines of the file; `leads` are its indents, in order.
    """

    search: Sequence[SourceLine]
    placed: Sequence[AlignedLine]
    one_ending: bool
    ending: str | None
    leads: Sequence[str]

    def replace(self, found: Sequence[SourceLine]) -> str:
        """The text for the lines `found`, which have the searched lines' bodies."""
        if not self.placed:
            return ""
        lead_of = self._leads_for(found)
        pieces: list[str] = []
        for index, placed in enumerate(self.placed):
            pieces += [lead_of[index], placed.line.body, self._trail(placed, found)]
            if index < len(self.placed) - 1:
                pieces.append(self._ending(placed, found))
        # The last line ends as the last matched one did: no final newline is gained or lost, and
        # what follows is not drawn up.
        return "".join((*pieces, found[-1].ending))

    def _trail(self, placed: AlignedLine, found: Sequence[SourceLine]) -> str:
        if placed.partner is None:
            return placed.line.trail
        agree = self.search[placed.partner].trail == placed.line.trail
        return found[placed.partner].trail if agree and placed.line.body else placed.line.trail

    def _ending(self, placed: AlignedLine, found: Sequence[SourceLine]) -> str:
        """Of a line that is not the last, so it must have one."""
        new = placed.line.ending
        if placed.partner is not None:
            old = self.search[placed.partner].ending
            theirs = found[placed.partner].ending
            if theirs and old and (old == new or self.one_ending):
                return theirs
        return self.ending if self.one_ending and self.ending else new

    def _leads_for(self, found: Sequence[SourceLine]) -> list[str]:
        bodied = [index for index, line in enumerate(self.search) if line.body]
        if all(self.search[index].lead == found[index].lead for index in bodied):
            return [self._own_lead(placed, found) for placed in self.placed]
        caller = indent_unit(
            line.lead
            for line in (*self.search, *(placed.line for placed in self.placed))
            if line.body
        )
        own = [found[index].lead for index in bodied]
        unit = file_unit(own, self.leads) or (caller if not any(own) else None)
        if not self._same_frame():
            return self._as_meant(found, (caller, unit))
        return [self._level(placed, found, bodied, (caller, unit)) for placed in self.placed]

    def _same_frame(self) -> bool:
        """Whether the new text is indented as if it stood where the caller saw the old one.

        Otherwise (search without indent, new text with the right one) it is meant as it stands.
        """
        first_new = next((each.line for each in self.placed if each.line.body), None)
        first_old = next(line for line in self.search if line.body)
        return (
            first_new is None
            or first_new.lead == first_old.lead
            or any(
                each.partner is not None
                and each.line.body
                and each.line.lead == self.search[each.partner].lead
                for each in self.placed
            )
        )

    def _as_meant(
        self, found: Sequence[SourceLine], units: tuple[str | None, str | None]
    ) -> list[str]:
        """The new text's own indents; in other blanks than the file's, from where it begins."""
        own = [self._own_lead(placed, found) for placed in self.placed]
        caller, unit = units
        if caller is None or unit is None or caller[0] == unit[0]:
            return own
        base = next(line for line in found if line.body).lead
        begins = next(each.line for each in self.placed if each.line.body).lead
        return [
            reindent(base, old=begins, new=lead, caller=caller, file=unit)
            if self.placed[index].line.body
            else lead
            for index, lead in enumerate(own)
        ]

    def _own_lead(self, placed: AlignedLine, found: Sequence[SourceLine]) -> str:
        agreed = self._agreed_lead(placed, found)
        return placed.line.lead if agreed is None else agreed

    def _agreed_lead(self, placed: AlignedLine, found: Sequence[SourceLine]) -> str | None:
        if placed.partner is None:
            return None
        old = self.search[placed.partner]
        if old.lead != placed.line.lead or bool(old.body) != bool(placed.line.body):
            return None
        return found[placed.partner].lead

    def _level(
        self,
        placed: AlignedLine,
        found: Sequence[SourceLine],
        bodied: Sequence[int],
        units: tuple[str | None, str | None],
    ) -> str:
        agreed = self._agreed_lead(placed, found)
        if agreed is not None:
            return agreed
        if not placed.line.body:
            return placed.line.lead
        anchor = self._anchor(placed, bodied)
        return reindent(
            found[anchor].lead,
            old=self.search[anchor].lead,
            new=placed.line.lead,
            caller=units[0],
            file=units[1],
        )

    def _anchor(self, placed: AlignedLine, bodied: Sequence[int]) -> int:
        """The searched line to measure from: its own, one as deep, or the nearest, above first."""
        if placed.partner in bodied and placed.partner is not None:
            return placed.partner
        near = sorted(bodied, key=lambda index: (abs(index + 0.5 - placed.at), index))
        as_deep = [index for index in near if self.search[index].lead == placed.line.lead]
        return (as_deep or near)[0]


def prepare_splice(search: str, new: str, *, ending: str | None, leads: Sequence[str]) -> Splice:
    searched = split_lines(search)
    lines = split_lines(new)
    if not lines and not searched[-1].ending:
        lines = [SourceLine("", "", "", "")]  # the line is emptied; its ending was not asked for
    return Splice(
        search=searched,
        placed=align_lines(searched, lines),
        one_ending=len(line_endings(new)) == 1,
        ending=ending,
        leads=leads,
    )


def align_lines(search: Sequence[SourceLine], new: Sequence[SourceLine]) -> list[AlignedLine]:
    """Each new line with its counterpart: the same body, else the same place in a changed part."""
    if len(search) * len(new) > _MAX_COMPARED:
        return [
            AlignedLine(line, index if index < len(search) else None, min(index, len(search)))
            for index, line in enumerate(new)
        ]
    matcher = SequenceMatcher(
        None, [line.body for line in search], [line.body for line in new], autojunk=False
    )
    placed: list[AlignedLine] = []
    for _, old_from, old_to, new_from, new_to in matcher.get_opcodes():
        for offset in range(new_to - new_from):
            old = old_from + offset
            partner = old if old < old_to else None
            placed.append(AlignedLine(new[new_from + offset], partner, min(old, old_to)))
    return placed
