"""Putting new lines in the place of lines that matched but for blanks and endings.

The rule: a line has four parts (leading blanks, body, trailing blanks, ending). Where the text to
find and the new text agree, the caller did not mean to change anything, so the file's own bytes
stay; where they differ, the new text is what was meant. New lines without a counterpart are
indented by level, in the unit of the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from chatd.agent.indent import file_unit, shift, unit_of
from chatd.agent.matching_lines import Line, endings, split_lines

# Beyond this many comparisons lines are paired by position.
_MAX_COMPARED = 100_000


@dataclass(frozen=True)
class Placed:
    """A new line, the searched line it stands for if any, and where among them it stands."""

    line: Line
    partner: int | None
    at: int


@dataclass(frozen=True)
class Splice:
    """One edit, ready for any number of matches in one file.

    `ending` is that of most lines of the file; `leads` are its indents, in order.
    """

    search: Sequence[Line]
    placed: Sequence[Placed]
    one_ending: bool
    ending: str | None
    leads: Sequence[str]

    def replace(self, found: Sequence[Line]) -> str:
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

    def _trail(self, placed: Placed, found: Sequence[Line]) -> str:
        if placed.partner is None:
            return placed.line.trail
        agree = self.search[placed.partner].trail == placed.line.trail
        return found[placed.partner].trail if agree and placed.line.body else placed.line.trail

    def _ending(self, placed: Placed, found: Sequence[Line]) -> str:
        """Of a line that is not the last, so it must have one."""
        new = placed.line.ending
        if placed.partner is not None:
            old = self.search[placed.partner].ending
            theirs = found[placed.partner].ending
            if theirs and old and (old == new or self.one_ending):
                return theirs
        return self.ending if self.one_ending and self.ending else new

    def _leads_for(self, found: Sequence[Line]) -> list[str]:
        bodied = [index for index, line in enumerate(self.search) if line.body]
        if all(self.search[index].lead == found[index].lead for index in bodied):
            return [self._own_lead(placed, found) for placed in self.placed]
        caller = unit_of(
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

    def _as_meant(self, found: Sequence[Line], units: tuple[str | None, str | None]) -> list[str]:
        """The new text's own indents; in other blanks than the file's, from where it begins."""
        own = [self._own_lead(placed, found) for placed in self.placed]
        caller, unit = units
        if caller is None or unit is None or caller[0] == unit[0]:
            return own
        base = next(line for line in found if line.body).lead
        begins = next(each.line for each in self.placed if each.line.body).lead
        return [
            shift(base, old=begins, new=lead, caller=caller, file=unit)
            if self.placed[index].line.body
            else lead
            for index, lead in enumerate(own)
        ]

    def _own_lead(self, placed: Placed, found: Sequence[Line]) -> str:
        agreed = self._agreed_lead(placed, found)
        return placed.line.lead if agreed is None else agreed

    def _agreed_lead(self, placed: Placed, found: Sequence[Line]) -> str | None:
        if placed.partner is None:
            return None
        old = self.search[placed.partner]
        if old.lead != placed.line.lead or bool(old.body) != bool(placed.line.body):
            return None
        return found[placed.partner].lead

    def _level(
        self,
        placed: Placed,
        found: Sequence[Line],
        bodied: Sequence[int],
        units: tuple[str | None, str | None],
    ) -> str:
        agreed = self._agreed_lead(placed, found)
        if agreed is not None:
            return agreed
        if not placed.line.body:
            return placed.line.lead
        anchor = self._anchor(placed, bodied)
        return shift(
            found[anchor].lead,
            old=self.search[anchor].lead,
            new=placed.line.lead,
            caller=units[0],
            file=units[1],
        )

    def _anchor(self, placed: Placed, bodied: Sequence[int]) -> int:
        """The searched line to measure from: its own, one as deep, or the nearest, above first."""
        if placed.partner in bodied and placed.partner is not None:
            return placed.partner
        near = sorted(bodied, key=lambda index: (abs(index + 0.5 - placed.at), index))
        as_deep = [index for index in near if self.search[index].lead == placed.line.lead]
        return (as_deep or near)[0]


def prepare(search: str, new: str, *, ending: str | None, leads: Sequence[str]) -> Splice:
    searched = split_lines(search)
    lines = split_lines(new)
    if not lines and not searched[-1].ending:
        lines = [Line("", "", "", "")]  # the line is emptied; its ending was not asked for
    return Splice(
        search=searched,
        placed=pair(searched, lines),
        one_ending=len(endings(new)) == 1,
        ending=ending,
        leads=leads,
    )


def pair(search: Sequence[Line], new: Sequence[Line]) -> list[Placed]:
    """Each new line with its counterpart: the same body, else the same place in a changed part."""
    if len(search) * len(new) > _MAX_COMPARED:
        return [
            Placed(line, index if index < len(search) else None, min(index, len(search)))
            for index, line in enumerate(new)
        ]
    matcher = SequenceMatcher(
        None, [line.body for line in search], [line.body for line in new], autojunk=False
    )
    placed: list[Placed] = []
    for _, old_from, old_to, new_from, new_to in matcher.get_opcodes():
        for offset in range(new_to - new_from):
            old = old_from + offset
            partner = old if old < old_to else None
            placed.append(Placed(new[new_from + offset], partner, min(old, old_to)))
    return placed
