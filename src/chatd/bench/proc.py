"""What a process and all it has started have used, by the kernel's books in /proc.

Owns reading them. Processor time is in whole clock ticks, usually of 10 ms: use it over seconds.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

_PROC: Final = Path("/proc")
_TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")


class Entry(Struct, frozen=True, kw_only=True):
    """A process; `ticks` are its own, kernel included, and those of its children that ended."""

    pid: int
    name: str
    parent: int
    ticks: int


def parse_stat(line: str) -> Entry:
    """One line of /proc/<pid>/stat. A program's name may hold anything, brackets too."""
    pid, _, rest = line.partition(" (")
    name, _, fields = rest.rpartition(") ")
    numbers = fields.split()
    ticks = sum(int(number) for number in numbers[11:15])
    return Entry(pid=int(pid), name=name, parent=int(numbers[1]), ticks=ticks)


def parse_kilobytes(status: str, field: str) -> int:
    """A field of /proc/<pid>/status. Raises KeyError if there is none."""
    for line in status.splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0])
    raise KeyError(field)


def tree(entries: list[Entry], root: int) -> list[Entry]:
    """A process and all its living descendants."""
    found = [entry for entry in entries if entry.pid == root]
    for parent in found:
        found += [entry for entry in entries if entry.parent == parent.pid]
    return found


def cpu_s(*roots: int) -> float:
    """Of all these processes and whatever they have started, dead or alive."""
    entries = list(_entries())
    return sum(entry.ticks for root in roots for entry in tree(entries, root)) / _TICKS_A_SECOND


def entry(pid: int) -> Entry | None:
    try:
        return parse_stat((_PROC / str(pid) / "stat").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return None


def own_memory_kb(pid: int) -> int:
    """What it holds in memory of its own: without pages of files, which come as code is used."""
    return parse_kilobytes((_PROC / str(pid) / "status").read_text(), "RssAnon")


def _entries() -> Iterator[Entry]:
    for place in _PROC.iterdir():
        if place.name.isdecimal() and (found := entry(int(place.name))) is not None:
            yield found
