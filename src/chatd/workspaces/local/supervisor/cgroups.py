"""Control groups of a workspace, on hosts that allow them. Standard library only.

Supports both versions of the interface. Without a writable one there are no groups, and each
process gets limits of its own instead.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from chatd.workspaces.local.supervisor.plan import ProcessPlan

CGROUP_MOUNT: Final = Path("/sys/fs/cgroup")
OWN_CGROUPS: Final = Path("/proc/self/cgroup")
CGROUP_PREFIX: Final = "chatd-"
NORMAL_WEIGHT: Final = 100
NORMAL_SHARES: Final = 1024
"""The same weight in the first version of the interface."""
MIN_SHARES: Final = 2
NICE_WITHOUT_GROUP: Final = 10


@dataclass(frozen=True)
class CgroupSet:
    paths: tuple[Path, ...] = ()
    controllers: frozenset[str] = frozenset()
    """Which of `memory`, `pids` and `cpu` apply to the workspace as a whole."""


@dataclass(frozen=True)
class GroupLimits:
    """Limits for all processes of a workspace together; 0 is no limit. `cpu_weight` is its share of
    a busy processor, compared with 100 for any other process or group."""

    memory_bytes: int
    processes: int
    cpu_weight: int


def create(name: str, limits: GroupLimits) -> CgroupSet:
    """Never fails: the result contains only the groups that could be created."""
    unified = _create_unified(name, limits)
    if unified is not None:
        return unified
    shares = max(limits.cpu_weight * NORMAL_SHARES // NORMAL_WEIGHT, MIN_SHARES)
    values = {
        "memory": {"memory.limit_in_bytes": limits.memory_bytes},
        "pids": {"pids.max": limits.processes},
        "cpu": {"cpu.shares": shares if limits.cpu_weight else 0},
    }
    created = {
        controller: group
        for controller, files in values.items()
        if (group := _create_v1(controller, name, files)) is not None
    }
    return CgroupSet(paths=tuple(created.values()), controllers=frozenset(created))


def join(plan: ProcessPlan, groups: CgroupSet, limits: GroupLimits) -> ProcessPlan:
    """The plan of a process in these groups. What they do not limit is limited per process."""
    own = dict(plan.limits)
    if limits.memory_bytes and "memory" not in groups.controllers:
        own["data"] = limits.memory_bytes
    is_light = bool(limits.cpu_weight) and "cpu" not in groups.controllers
    return replace(
        plan,
        cgroups=[str(path) for path in groups.paths],
        limits=own,
        nice=NICE_WITHOUT_GROUP if is_light else 0,
    )


def find_existing(name: str) -> CgroupSet:
    """The groups that an earlier supervisor created for this name."""
    parents = [_own_group(controller) for controller in ("memory", "pids", "cpu")]
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


def _create_unified(name: str, limits: GroupLimits) -> CgroupSet | None:
    """Create them below the root: only the root may contain both processes and other groups."""
    if not (CGROUP_MOUNT / "cgroup.controllers").exists():
        return None
    parent = CGROUP_MOUNT / "chatd"
    group = parent / name
    try:
        parent.mkdir(exist_ok=True)
        (CGROUP_MOUNT / "cgroup.subtree_control").write_text("+memory +pids")
        (parent / "cgroup.subtree_control").write_text("+memory +pids")
        group.mkdir(exist_ok=True)
        (group / "memory.max").write_text(str(limits.memory_bytes or "max"))
        (group / "pids.max").write_text(str(limits.processes or "max"))
    except OSError:
        return None
    with contextlib.suppress(OSError):  # Missing on a host without swap.
        (group / "memory.swap.max").write_text("0")
    controllers = {"memory", "pids"}
    with contextlib.suppress(OSError):  # Some hosts keep this controller to themselves.
        for above in (CGROUP_MOUNT, parent):
            (above / "cgroup.subtree_control").write_text("+cpu")
        (group / "cpu.weight").write_text(str(limits.cpu_weight or NORMAL_WEIGHT))
        controllers.add("cpu")
    return CgroupSet(paths=(group,), controllers=frozenset(controllers))


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
