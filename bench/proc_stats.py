"""CPU time and memory of a process tree from /proc, and statistics over samples.

CPU time is in clock ticks, usually of 10 ms: measure over seconds.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Final

from msgspec import Struct

_PROC: Final = Path("/proc")
_TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")


class ProcEntry(Struct, frozen=True, kw_only=True):
    """`ticks` includes kernel time and the children that have ended."""

    pid: int
    name: str
    parent: int
    ticks: int


def parse_stat(line: str) -> ProcEntry:
    """One line of /proc/<pid>/stat. The program's name may contain brackets and spaces."""
    pid, _, rest = line.partition(" (")
    name, _, fields = rest.rpartition(") ")
    numbers = fields.split()
    ticks = sum(int(number) for number in numbers[11:15])
    return ProcEntry(pid=int(pid), name=name, parent=int(numbers[1]), ticks=ticks)


def parse_kilobytes(status: str, field: str) -> int:
    """A field of /proc/<pid>/status. Raises KeyError if there is none."""
    for line in status.splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0])
    raise KeyError(field)


def process_tree(entries: list[ProcEntry], root: int) -> list[ProcEntry]:
    """A process and all its living descendants."""
    found = [entry for entry in entries if entry.pid == root]
    for parent in found:
        found += [entry for entry in entries if entry.parent == parent.pid]
    return found


def cpu_s(*roots: int) -> float:
    """Of these processes and their descendants, ended ones included."""
    entries = list(_entries())
    return (
        sum(entry.ticks for root in roots for entry in process_tree(entries, root))
        / _TICKS_A_SECOND
    )


def read_entry(pid: int) -> ProcEntry | None:
    try:
        return parse_stat((_PROC / str(pid) / "stat").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return None


def own_memory_kb(pid: int) -> int:
    """Anonymous memory: without file pages, which grow as code is first used."""
    return parse_kilobytes((_PROC / str(pid) / "status").read_text(), "RssAnon")


def _entries() -> Iterator[ProcEntry]:
    for place in _PROC.iterdir():
        if place.name.isdecimal() and (found := read_entry(int(place.name))) is not None:
            yield found


class Spread(Struct, frozen=True, kw_only=True):
    median: float
    least: float
    most: float

    def __str__(self) -> str:
        return f"{format_number(self.least)} to {format_number(self.most)}"


def spread(samples: Sequence[float]) -> Spread:
    return Spread(median=median(samples), least=min(samples), most=max(samples))


def percentile(samples: Sequence[float], share: float) -> float:
    """The smallest sample that is not exceeded by at least this share of all samples."""
    ranked = sorted(samples)
    index = -(-len(ranked) * share // 1) - 1
    return ranked[max(0, min(len(ranked) - 1, int(index)))]


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Ratios of paired runs, which other load slows alike."""
    return [one / other for one, other in zip(ours, theirs, strict=True)]


def format_number(value: float) -> str:
    """Two decimals below 100, none above."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}".rstrip("0").rstrip(".")
