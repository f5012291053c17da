"""What the engine is asked to create for a workspace. Pure: names, labels, mounts, limits, rights.

A workspace has one container and two volumes, with names that follow from its id: its home, and the
state of its agent. The commands of a build (a clone, the start-up script) run in a container of
their own, which is removed when they end.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from chatd.domain.ids import WorkspaceId
from chatd.domain.workspace.entities import EffectiveLimits, Mount, TemplateSpec
from chatd.workspaces.container.container_init import RUN_DIR, SOCKET_DIR, STATE_DIR
from chatd.workspaces.container.container_kit import INIT, ContainerKit
from chatd.workspaces.container.engine_api import EngineInfo
from chatd.workspaces.local.sandbox_command import INSIDE_HOME, INSIDE_KIT, SHM_BYTES, TMP_BYTES
from chatd.workspaces.network.inside import INSIDE_NETWORK

HOST_LABEL: Final = "chatd.host"
WORKSPACE_LABEL: Final = "chatd.workspace"
BUILD_LABEL: Final = "chatd.build"
KIT_LABEL: Final = "chatd.kit"
HOME_LABEL: Final = "chatd.home"
"""The label of the home volume: one of the same name with another label is another home."""

INSIDE_ACCOUNT: Final = 1000
"""Used where the engine maps accounts, or the runner cannot give each workspace its own."""
CAPABILITIES: Final = ("CHOWN", "DAC_OVERRIDE", "KILL", "SETGID", "SETUID")
"""Only for the first process. The agent and its commands have none."""
CPU_SHARES_OF_ONE_PROCESS: Final = 1024
MAX_CPU_SHARES: Final = 262_144
MAX_CONTAINER_RESTARTS: Final = 5
STOP_TIMEOUT_S: Final = 8
RESERVED_INSIDE: Final = (STATE_DIR, SOCKET_DIR, RUN_DIR, INSIDE_NETWORK)


class ContainerNames(msgspec.Struct, frozen=True, kw_only=True):
    workspace: WorkspaceId

    @property
    def main(self) -> str:
        return f"chatd-{self.workspace}"

    @property
    def setup(self) -> str:
        return f"chatd-{self.workspace}-setup"

    @property
    def home(self) -> str:
        return f"chatd-{self.workspace}-home"

    @property
    def state(self) -> str:
        return f"chatd-{self.workspace}-state"


class ContainerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One workspace on one engine. `run` is the host directory of the agent's socket. `ceilings`
    are the runner's own hard limits, which the engine of this host cannot exceed either. `proxy` is
    the directory of the proxy's socket, if it may reach named hosts."""

    names: ContainerNames
    host_id: str
    build: int
    spec: TemplateSpec
    engine: EngineInfo
    kit: ContainerKit
    run: Path
    uid: int
    network: str
    ceilings: Mapping[str, int]
    proxy: Path | None = None

    def proxy_mounts(self) -> tuple[Mount, ...]:
        """The mounts for the workspace and its start-up script; a clone has a proxy of its own."""
        if self.proxy is None:
            return ()
        return (Mount(source=str(self.proxy), target=INSIDE_NETWORK),)

    def labels(self) -> dict[str, str]:
        return {
            HOST_LABEL: self.host_id,
            WORKSPACE_LABEL: str(self.names.workspace),
            BUILD_LABEL: str(self.build),
            KIT_LABEL: self.kit.path.name,
        }

    def main_container(self) -> dict[str, Any]:
        mounts = (*self.spec.mounts, *self.proxy_mounts())
        body = self._container("agent", network=self.spec.network == "full", mounts=mounts)
        # The first process restarts the agent; this is for the first process itself.
        body["HostConfig"]["RestartPolicy"] = {
            "Name": "on-failure",
            "MaximumRetryCount": MAX_CONTAINER_RESTARTS,
        }
        return body

    def setup_container(self, *, network: bool, mounts: tuple[Mount, ...]) -> dict[str, Any]:
        return self._container("command", network=network, mounts=mounts)

    def _container(self, mode: str, *, network: bool, mounts: tuple[Mount, ...]) -> dict[str, Any]:
        """The container. Its environment and command line have no secrets, because every account
        that may use the engine can read them."""
        host = {
            "NetworkMode": (self.network or "default") if network else "none",
            "CapDrop": ["ALL"],
            "CapAdd": list(CAPABILITIES),
            "SecurityOpt": ["no-new-privileges"],
            "Privileged": False,
            "Init": False,
            "Mounts": [*self._mounts(), *(_bind(m.source, m.target) for m in mounts)],
            "Tmpfs": {"/tmp": f"rw,exec,nosuid,nodev,size={TMP_BYTES},mode=1777"},
            "ShmSize": SHM_BYTES,
            "Ulimits": self._ulimits(),
            **self._group_limits(),
            **({"Runtime": self.spec.runtime} if self.spec.runtime else {}),
        }
        return {
            "Image": self.spec.image,
            "Entrypoint": [*self.kit.python, f"{INSIDE_KIT}/{INIT}"],
            "Cmd": [mode, SOCKET_DIR],
            "User": "0:0",
            "WorkingDir": "/",
            "Hostname": "workspace",
            "Labels": self.labels(),
            "StopSignal": "SIGTERM",
            "StopTimeout": STOP_TIMEOUT_S,
            "Tty": False,
            "OpenStdin": False,
            # The image's own would run as root inside. Podman makes a timer even of none.
            **({"Healthcheck": {"Test": ["NONE"]}} if self.engine.name == "Docker" else {}),
            "HostConfig": host,
        }

    def _mounts(self) -> list[dict[str, Any]]:
        return [
            {"Type": "volume", "Source": self.names.home, "Target": INSIDE_HOME},
            {"Type": "volume", "Source": self.names.state, "Target": STATE_DIR},
            _bind(str(self.kit.path), INSIDE_KIT),
            _bind(str(self.run), SOCKET_DIR, read_only=False),
        ]

    def _group_limits(self) -> dict[str, int]:
        limits, can = self.spec.limits, self.engine.limits
        found: dict[str, int] = {}
        if limits.memory_bytes and "memory" in can:
            # Without swap beyond it.
            found |= {"Memory": limits.memory_bytes, "MemorySwap": limits.memory_bytes}
        if limits.processes and "processes" in can:
            found["PidsLimit"] = limits.processes
        if limits.cpu_weight and "cpu" in can:
            shares = limits.cpu_weight * CPU_SHARES_OF_ONE_PROCESS // 100
            found["CpuShares"] = min(max(shares, 2), MAX_CPU_SHARES)
        return found

    def _ulimits(self) -> list[dict[str, Any]]:
        """Pass the host's limits to Podman, whose own defaults fail where the host's are lower."""
        limits = self.spec.limits
        values = {"core": 0}
        if limits.file_bytes:
            values["fsize"] = limits.file_bytes
        if limits.open_files:
            values["nofile"] = min(limits.open_files, self.ceilings.get("nofile", 1 << 30))
        if self.engine.name == "Podman":
            values = {**self.ceilings, **values}
        return [{"Name": name, "Soft": n, "Hard": n} for name, n in sorted(values.items())]

    def runtime_problem(self) -> str:
        """Why the engine would not use the template's runtime; empty if it would."""
        wanted, engine = self.spec.runtime, self.engine
        default = Path(engine.default_runtime).name
        if not wanted or wanted == default:
            return ""
        if engine.name == "Podman":  # It ignores the runtime of a container.
            return (
                f"The template wants the runtime {wanted}, and Podman uses {default} for every "
                f'container. Set `runtime = "{wanted}"` in the section [engine] of its '
                "containers.conf, or use a runner with another engine."
            )
        if wanted not in engine.runtimes:
            known = ", ".join(sorted(engine.runtimes))
            return f"The template wants the runtime {wanted}, and Docker has the runtimes {known}."
        return ""

    def isolation(self) -> str:
        """For example `container`, `container+userns`, `container+userns+runsc`."""
        users = ("userns",) if self.engine.own_users else ()
        runtime = (self.spec.runtime,) if self.spec.runtime else ()
        return "+".join(("container", *users, *runtime))

    def effective_limits(self) -> EffectiveLimits:
        wanted = msgspec.structs.asdict(self.spec.limits)
        names = {"memory": "memory_bytes", "processes": "processes", "cpu": "cpu_weight"}
        missing = {field: 0 for name, field in names.items() if name not in self.engine.limits}
        return EffectiveLimits(**{**wanted, **missing}, per_process=("file_bytes", "open_files"))


def _bind(source: str, target: str, *, read_only: bool = True) -> dict[str, Any]:
    return {"Type": "bind", "Source": source, "Target": target, "ReadOnly": read_only}
