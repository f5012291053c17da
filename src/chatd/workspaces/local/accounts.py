"""Which account of the host a workspace runs under, when the server is root.

A number per workspace, without a name: nobody else has it, so the kernel keeps workspaces apart
even where everything else fails. It is written down before it is used, counted upwards, and taken
again only when all others are used up and no files are left that belong to it.
"""

import fcntl
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from chatd.workspaces.backend import BuildFailed
from chatd.workspaces.local import living
from chatd.workspaces.local.layout import Layout, Spot

# Above what distributions give to users, containers and services, below what overflows.
LOWEST: Final = 1_900_000_000
RANGES: Final = 20_000
RANGE: Final = 10_000
UID_MAP: Final = Path("/proc/self/uid_map")


class Range(msgspec.Struct, frozen=True, kw_only=True):
    base: int
    size: int


def choose_range(data_dir: Path, uid_map: str) -> Range | None:
    """Two data directories of a host hardly ever share one. None if there is no room, as in a
    container that has but a few accounts."""
    lines = [[int(word) for word in line.split()] for line in uid_map.splitlines()]
    top = max((inside + count for inside, _, count in lines), default=0)
    if top >= LOWEST + RANGES * RANGE:
        number = int.from_bytes(hashlib.sha256(bytes(data_dir)).digest()[:8], "big") % RANGES
        return Range(base=LOWEST + number * RANGE, size=RANGE)
    if top >= 65_536:
        return Range(base=40_000, size=20_000)
    return None


def account_of(spot: Spot) -> int | None:
    try:
        return int(spot.account.read_text())
    except (OSError, ValueError):
        return None


def account_for(layout: Layout, spot: Spot, numbers: Range) -> int:
    """The workspace's own, given to it now if it has none yet."""
    lock = os.open(layout.accounts, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = account_of(spot)
        if found is None:
            found = _next(lock, layout, numbers)
            _write(spot.account, found)
        return found
    finally:
        os.close(lock)


def _next(counter: int, layout: Layout, numbers: Range) -> int:
    """The counter is written before the number is used: a crash loses one, and gives none twice."""
    text = os.pread(counter, 32, 0)
    last = int(text) if text.strip().isdigit() else 0
    used = set(_used(layout))
    for step in range(1, numbers.size + 1):
        place = (last + step) % numbers.size
        uid = numbers.base + place
        if uid not in used and not living.of_account(uid):
            os.pwrite(counter, f"{place:>31}\n".encode(), 0)
            os.fsync(counter)
            return uid
    raise BuildFailed(f"All {numbers.size} accounts are used by workspaces: delete some.")


def _used(layout: Layout) -> Iterator[int]:
    """Also of what is being removed: its files may still be there."""
    for parent in (layout.workspaces, layout.trash):
        for entry in parent.iterdir():
            uid = account_of(Spot(root=entry))
            if uid is not None:
                yield uid


def _write(path: Path, uid: int) -> None:
    temporary = path.with_name(f"{path.name}.new")
    with temporary.open("w") as file:
        file.write(f"{uid}\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
