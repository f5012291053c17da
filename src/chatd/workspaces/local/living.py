"""Processes of this host that we do not own as children: who lives, and who is whose child.

A process id alone may have been given to somebody else; with the time of its start it names one
process for ever. Standard library only.
"""

import contextlib
import os
import signal
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

_AFTER_NAME = 20
"""Where the start time is among the fields that follow the name in /proc/PID/stat, less two."""


@dataclass(frozen=True)
class Birth:
    pid: int
    started: int

    def __str__(self) -> str:
        return f"{self.pid} {self.started}"

    @classmethod
    def read(cls, text: str) -> "Birth | None":
        try:
            pid, started = map(int, text.split())
        except ValueError:
            return None
        return cls(pid, started)


def birth_of(pid: int) -> Birth | None:
    """None if nobody has this id, or only a body that waits to be fetched."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # A name may hold blanks and brackets.
    if fields[0] in "ZX":
        return None
    return Birth(pid, int(fields[_AFTER_NAME - 1]))


def lives(birth: Birth) -> bool:
    return birth_of(birth.pid) == birth


def kill(birth: Birth) -> None:
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(birth.pid)
        try:
            if lives(birth):  # Asked while we hold it: now it cannot become another.
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        finally:
            os.close(descriptor)


def children_of(pid: int) -> list[int]:
    """Of all its threads. Empty if the kernel does not tell."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def of_account(uid: int) -> set[int]:
    """Of an account that nobody but one workspace uses."""
    return {pid for pid in _all() if _owner(pid) == uid and birth_of(pid)}


def marked(marks: AbstractSet[str]) -> set[int]:
    """Whoever carries the name of one of these workspaces in its environment. One that hides it is
    not found: without a namespace and an account of its own there is no better way."""
    signs = {f"CHATD_WORKSPACE_ID={mark}".encode() for mark in marks}
    return {pid for pid in _all() if not signs.isdisjoint(_environment(pid)) and birth_of(pid)}


def _all() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _owner(pid: int) -> int | None:
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return None


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []
