"""The JSON that the server sends to `enter` (a plan) and to the supervisor (an order).

Both programs use only the standard library, so that they still work while the server's packages
are replaced; hence dataclasses and json. A plan describes how one process is started, an order
which sandbox is run. The supervisor passes plans on unread, so a newer server can change them while
an older supervisor runs.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Final

from chatd.workspaces.local.supervisor.seccomp import FilterRules

PROTOCOL: Final = 1
FIRST_FILE_FD: Final = 5
"""The first of the descriptors of `ProcessPlan.files`."""
CONFIG_FD: Final = 3
"""The agent's configuration, or bubblewrap arguments that must not show in the process list."""
FILTER_FD: Final = 4
"""The system call filter, for bubblewrap."""


@dataclass(frozen=True)
class PathRules:
    """Paths that Landlock leaves accessible; all others are closed."""

    readable: list[str]
    writable: list[str]
    network: bool
    updatable: list[str] = field(default_factory=list[str])
    """Files below these can be read and written, but not created."""


@dataclass(frozen=True)
class ProcessPlan:
    argv: list[str]
    env: dict[str, str]
    cwd: str = "/"
    parent: int = 0
    """The process dies with this one."""
    uid: int | None = None
    stage: str = ""
    """The directory over which the binds are mounted, in the process's own mount namespace."""
    binds: list[list[str]] = field(default_factory=list[list[str]])
    """Pairs: a name below the stage, and the host path mounted there."""
    limits: dict[str, int] = field(default_factory=dict[str, int])
    cgroups: list[str] = field(default_factory=list[str])
    nice: int = 0
    config: str = ""
    files: list[str] = field(default_factory=list[str])
    """Files that the process gets as descriptors, for appending, and cannot open itself."""
    fence: PathRules | None = None
    filter: FilterRules = field(
        default_factory=lambda: FilterRules(internet=True, own_processes=True)
    )


@dataclass(frozen=True)
class SandboxOrder:
    """One sandbox that the supervisor starts and restarts until it is stopped."""

    workspace: str
    build: int
    plan: ProcessPlan
    socket: str
    """The host path of the agent's socket."""
    log: str
    namespaced: bool
    """Whether the kernel kills all processes when the first one exits."""
    memory_bytes: int = 0
    processes: int = 0
    cpu_weight: int = 0
    disk_bytes: int = 0
    disk_interval_s: float = 3.0
    disk_paths: list[str] = field(default_factory=list[str])


def encode_json(value: ProcessPlan | SandboxOrder) -> dict[str, object]:
    return dataclasses.asdict(value)


def decode_plan(fields: dict[str, Any]) -> ProcessPlan:
    """Ignores unknown fields: a newer server must not send any that an older version needs."""
    known = _known_fields(ProcessPlan, fields)
    if known.get("fence"):
        known["fence"] = PathRules(**_known_fields(PathRules, known["fence"]))
    if known.get("filter"):
        known["filter"] = FilterRules(**_known_fields(FilterRules, known["filter"]))
    return ProcessPlan(**known)


def decode_order(fields: dict[str, Any]) -> SandboxOrder:
    known = _known_fields(SandboxOrder, fields)
    known["plan"] = decode_plan(known["plan"])
    return SandboxOrder(**known)


def _known_fields(
    kind: type[ProcessPlan | SandboxOrder | PathRules | FilterRules], fields: dict[str, Any]
) -> dict[str, Any]:
    names = {each.name for each in dataclasses.fields(kind)}
    return {name: value for name, value in fields.items() if name in names}
