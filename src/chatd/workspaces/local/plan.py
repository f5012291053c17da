"""What is told to the two small programs that own sandboxes: `enter` and the supervisor.

Both run with the standard library alone, so that they do not break when the server's packages are
replaced under them; hence dataclasses and json. A plan says how one process is started, an order
how one workspace is kept. The supervisor does not look into a plan: a newer server can change the
recipe while an older supervisor runs.
"""

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any, Final

PROTOCOL: Final = 1
CONFIG_FD: Final = 3
"""Where the agent finds its configuration, and bubblewrap what is not for everybody's eyes."""


@dataclass(frozen=True)
class Fence:
    """Paths that Landlock leaves open; everything else is closed."""

    readable: list[str]
    writable: list[str]
    network: bool


@dataclass(frozen=True)
class Plan:
    argv: list[str]
    env: dict[str, str]
    cwd: str = "/"
    parent: int = 0
    """Whoever must be alive: the process dies with it."""
    uid: int | None = None
    stage: str = ""
    """A directory that is hidden behind the binds, in this process's own mount namespace."""
    binds: list[list[str]] = field(default_factory=list[list[str]])
    """Name under the stage, and the path of the host that is seen there."""
    limits: dict[str, int] = field(default_factory=dict[str, int])
    cgroups: list[str] = field(default_factory=list[str])
    config: str = ""
    fence: Fence | None = None


@dataclass(frozen=True)
class Order:
    """One workspace to be kept running."""

    workspace: str
    build: int
    plan: Plan
    socket: str
    """Where the agent's socket appears, seen from the host."""
    log: str
    namespaced: bool
    """Whether all processes end when the first one does."""
    memory_bytes: int = 0
    processes: int = 0
    disk_bytes: int = 0
    disk_interval_s: float = 3.0
    disk_paths: list[str] = field(default_factory=list[str])


def encode(value: Plan | Order) -> dict[str, object]:
    return dataclasses.asdict(value)


def plan_text(plan: Plan) -> bytes:
    return json.dumps(encode(plan)).encode()


def decode_plan(fields: dict[str, Any]) -> Plan:
    """Fields of a newer version are left out: they must not be needed by an older one."""
    known = _known(Plan, fields)
    if known.get("fence"):
        known["fence"] = Fence(**_known(Fence, known["fence"]))
    return Plan(**known)


def decode_order(fields: dict[str, Any]) -> Order:
    known = _known(Order, fields)
    known["plan"] = decode_plan(known["plan"])
    return Order(**known)


def _known(kind: type[Plan | Order | Fence], fields: dict[str, Any]) -> dict[str, Any]:
    names = {each.name for each in dataclasses.fields(kind)}
    return {name: value for name, value in fields.items() if name in names}
