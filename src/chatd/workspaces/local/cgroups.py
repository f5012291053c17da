"""Control groups of a workspace, where this host lets us make them. Standard library only.

Owns finding a place for them, making, emptying and removing. Both generations of the interface;
without a writable one there is none, and the caller sets limits for each process instead.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MOUNT: Final = Path("/sys/fs/cgroup")
OWN: Final = Path("/proc/self/cgroup")
PREFIX: Final = "chatd-"


@dataclass(frozen=True)
class Groups:
    """`memory` says whether memory is limited by them."""

    paths: tuple[Path, ...] = ()
    memory: bool = False


def make(name: str, *, memory_bytes: int, processes: int) -> Groups:
    """Never fails: what cannot be made is not in the answer."""
    unified = _unified(name, memory_bytes, processes)
    if unified is not None:
        return Groups(paths=(unified,), memory=True)
    wanted = {
        "memory": {"memory.limit_in_bytes": memory_bytes},
        "pids": {"pids.max": processes},
    }
    made = {
        controller: place
        for controller, values in wanted.items()
        if (place := _classic(controller, name, values)) is not None
    }
    return Groups(paths=tuple(made.values()), memory="memory" in made)


def existing(name: str) -> Groups:
    """What was made for this name before."""
    parents = (_own_group("memory"), _own_group("pids"))
    places = [parent / f"{PREFIX}{name}" for parent in parents if parent is not None]
    places.append(MOUNT / "chatd" / name)
    return Groups(paths=tuple(place for place in places if place.is_dir()))


def members(groups: Groups) -> Iterator[int]:
    for path in groups.paths:
        with contextlib.suppress(OSError):
            yield from map(int, (path / "cgroup.procs").read_text().split())


def remove(groups: Groups) -> None:
    for path in groups.paths:
        with contextlib.suppress(OSError):  # Somebody is still in it: the next start tries again.
            path.rmdir()


def _unified(name: str, memory_bytes: int, processes: int) -> Path | None:
    """Below the root, where alone a group may hold both processes and other groups."""
    if not (MOUNT / "cgroup.controllers").exists():
        return None
    ours = MOUNT / "chatd"
    try:
        ours.mkdir(exist_ok=True)
        (MOUNT / "cgroup.subtree_control").write_text("+memory +pids")
        (ours / "cgroup.subtree_control").write_text("+memory +pids")
        group = ours / name
        group.mkdir(exist_ok=True)
        (group / "memory.max").write_text(str(memory_bytes) if memory_bytes else "max")
        (group / "pids.max").write_text(str(processes) if processes else "max")
    except OSError:
        return None
    with contextlib.suppress(OSError):  # Not there without swap.
        (group / "memory.swap.max").write_text("0")
    return group


def _classic(controller: str, name: str, values: dict[str, int]) -> Path | None:
    parent = _own_group(controller)
    if parent is None:
        return None
    group = parent / f"{PREFIX}{name}"
    try:
        group.mkdir(exist_ok=True)
        for file, value in values.items():
            if value:
                (group / file).write_text(str(value))
    except OSError:
        with contextlib.suppress(OSError):
            group.rmdir()
        return None
    return group


def _own_group(controller: str) -> Path | None:
    """Inside the group we are in: what limits us goes on limiting them."""
    try:
        lines = OWN.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            for place in (MOUNT / controller / path.lstrip("/"), MOUNT / controller):
                if (place / "cgroup.procs").exists():
                    return place
    return None
