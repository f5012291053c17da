"""Indentation by level: what the caller wrote in one unit is said in the file's.

A unit is one tab or a number of spaces. Where blanks are mixed there is no telling, and lines
inherit what is around them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import reduce
from math import gcd

_STEPS_LOOKED_AT = 5000


def unit_of(leads: Iterable[str]) -> str | None:
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
    unit = unit_of(matched)
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
    return "\t" if step[0] == "\t" else unit_of([step])


def shift(base: str, *, old: str, new: str, caller: str | None, file: str | None) -> str:
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
