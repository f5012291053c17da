"""Control groups of a workspace, on hosts that allow them. Standard library only.

Supports both versions of the interface. Without a writable one there are no groups, and the sandbox
sets limits per process instead.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CGROUP_MOUNT: Final = Path("/sys/fs/cgroup")
OWN_CGROUPS: Final = Path("/proc/self/cgroup")
CGROUP_PREFIX: Final = "chatd-"


@dataclass(frozen=True)
class CgroupSet:
    paths: tuple[Path, ...] = ()
    memory: bool = False
    """Whether these groups limit memory."""


def create(name: str, *, memory_bytes: int, processes: int) -> CgroupSet:
    """Never fails: the result contains only the groups that could be created."""
    unified = _create_unified(name, memory_bytes, processes)
    if unified is not None:
        return CgroupSet(paths=(unified,), memory=True)
    limits = {
        "memory": {"memory.limit_in_bytes": memory_bytes},
        "pids": {"pids.max": processes},
    }
    created = {
        controller: group
        for controller, values in limits.items()
        if (group := _create_v1(controller, name, values)) is not None
    }
    return CgroupSet(paths=tuple(created.values()), memory="memory" in created)


def find_existing(name: str) -> CgroupSet:
    """The groups that an earlier supervisor created for this name."""
    parents = (_own_group("memory"), _own_group("pids"))
    groups = [parent / f"{CGROUP_PREFIX}{name}" for parent in parents if parent is not None]
    groups.append(CGROUP_MOUNT / "chatd" / name)
    return CgroupSet(paths=tuple(group for group in groups if group.is_dir()))


def list_pids(groups: CgroupSet) -> Iterator[int]:
    for path in groups.paths:
        with contextlib.suppress(OSError):
            yield from map(int, (path / "cgroup.procs").read_text().split())


def remove(groups: CgroupSet) -> None:
    for path in groups.paths:
        with contextlib.suppress(OSError):  # A process is still in it: the next start retries.
            path.rmdir()


def _create_unified(name: str, memory_bytes: int, processes: int) -> Path | None:
    """Below the root: only the root may contain both processes and other groups."""
    if not (CGROUP_MOUNT / "cgroup.controllers").exists():
        return None
    parent = CGROUP_MOUNT / "chatd"
    group = parent / name
    try:
        parent.mkdir(exist_ok=True)
        (CGROUP_MOUNT / "cgroup.subtree_control").write_text("+memory +pids")
        (parent / "cgroup.subtree_control").write_text("+memory +pids")
        group.mkdir(exist_ok=True)
        (group / "memory.max").write_text(str(memory_bytes) if memory_bytes else "max")
        (group / "pids.max").write_text(str(processes) if processes else "max")
    except OSError:
        return None
    with contextlib.suppress(OSError):  # Missing on a host without swap.
        (group / "memory.swap.max").write_text("0")
    return group


def _create_v1(controller: str, name: str, values: dict[str, int]) -> Path | None:
    parent = _own_group(controller)
    if parent is None:
        return None
    group = parent / f"{CGROUP_PREFIX}{name}"
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
    """The supervisor's own group, so that its limits also apply to sandboxes."""
    try:
        lines = OWN_CGROUPS.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            root = CGROUP_MOUNT / controller
            for group in (root / path.lstrip("/"), root):
                if (group / "cgroup.procs").exists():
                    return group
    return None
