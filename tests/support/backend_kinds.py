"""The backends of the conformance suite. A new one needs an entry in `OPENERS` and `SKIPPED`.

As a program it is a runner that a test can kill: `start ID BUILD` starts a workspace, `run COMMAND`
replies with the output of the command in it.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from uuid import UUID

import msgspec

from chatd.clock import SystemClock
from chatd.domain.ids import WorkspaceId
from chatd.domain.workspace.entities import TemplateSpec
from chatd.workspaces.container.container_backend import ContainerBackend, ContainerConfig
from chatd.workspaces.kubernetes.cluster_access import read_kubeconfig
from chatd.workspaces.kubernetes.kubernetes_backend import KubernetesBackend, KubernetesConfig
from chatd.workspaces.local.kit import agent_zip
from chatd.workspaces.local.local_backend import LocalConfig, machine_config
from chatd.workspaces.network.workspace_networks import WorkspaceNetworks
from tests.support import container_engines
from tests.support.api_node import ApiNode, in_namespace
from tests.support.backend_rig import HOST, SECRET, BackendRig, RunningWorkspace
from tests.support.contained_machine import ContainedBackend, missing_namespace
from tests.support.fake_cluster import FakeCluster
from tests.support.local_rig import NO_BUBBLEWRAP, LocalRig
from tests.support.pod_hub import HubReach, PodHub
from tests.support.pod_processes import CHATD_IMAGE, IMAGE

REAL_CLUSTER = "CHATD_TEST_KUBECONFIG"
ALL_OF_PODS = "CHATD_TEST_PODS" in os.environ
AS_SANDBOXES = "CHATD_TEST_SANDBOXES" in os.environ


class BackendPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where a backend of a kind lives. Two rigs with the same place are two processes of one host,
    or one before and after its death. `engine` is the socket of a container engine, or the
    kubeconfig of a cluster, whose pods dial in to `server` and are reached through `peer`."""

    kind: str
    data_dir: str
    engine: str = ""
    server: str = ""
    peer: str = ""
    roots: tuple[str, ...] = ()
    clone_timeout_s: float = 60.0
    disk_interval_s: float = 0.2

    def open(self) -> BackendRig:
        return OPENERS[self.kind](self)

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[BackendRig]:
        """Remove all workspaces at the end."""
        rig = self.open()
        try:
            yield rig
        finally:
            for workspace in await rig.backend.workspaces():
                await rig.backend.remove(workspace)
            if isinstance(rig, LocalRig):
                await rig.close()


def _open_sandbox(place: BackendPlace) -> BackendRig:
    return LocalRig(
        LocalConfig(
            data_dir=Path(place.data_dir),
            host_id=HOST,
            roots=tuple(map(Path, place.roots)),
            clone_timeout_s=place.clone_timeout_s,
            disk_interval_s=place.disk_interval_s,
        )
    )


def _open_container(place: BackendPlace) -> BackendRig:
    config = ContainerConfig(
        socket_path=Path(place.engine),
        data_dir=Path(place.data_dir),
        host_id=HOST,
        roots=tuple(map(Path, place.roots)),
        network="host",  # Test machines have no bridge.
        clone_timeout_s=place.clone_timeout_s,
        disk_interval_s=place.disk_interval_s,
    )
    networks = WorkspaceNetworks(config.data_dir, SystemClock())
    backend = ContainerBackend(config, agent=agent_zip(), clock=SystemClock(), networks=networks)
    return BackendRig(backend, TemplateSpec(image=container_engines.IMAGE))


def _open_kubernetes(place: BackendPlace) -> BackendRig:
    config = KubernetesConfig(
        access=read_kubeconfig(Path(place.engine)),
        host_id=HOST,
        image=CHATD_IMAGE,
        server_url=place.server,
        poll_s=0.5,
        clone_timeout_s=place.clone_timeout_s,
        disk_interval_s=place.disk_interval_s,
        sandboxes=AS_SANDBOXES,
    )
    backend = KubernetesBackend(config, clock=SystemClock())
    reach = HubReach(SECRET, place.peer)
    return BackendRig(backend, TemplateSpec(image=IMAGE), reach.open)


def _open_machine(place: BackendPlace) -> BackendRig:
    config = machine_config(Path(place.data_dir), HOST)
    changed = msgspec.structs.replace(
        config,
        roots=tuple(map(Path, place.roots)),
        clone_timeout_s=place.clone_timeout_s,
        disk_interval_s=place.disk_interval_s,
    )
    return LocalRig(changed, backend=ContainedBackend)


OPENERS: dict[str, Callable[[BackendPlace], BackendRig]] = {
    "sandbox": _open_sandbox,
    "container": _open_container,
    "kubernetes": _open_kubernetes,
    "machine": _open_machine,
}
SKIPPED: dict[str, str] = {
    "sandbox": "bubblewrap is not installed" if NO_BUBBLEWRAP else "",
    "container": container_engines.missing_reason(),
    "kubernetes": "bubblewrap is not installed" if NO_BUBBLEWRAP else "",
    "machine": missing_namespace(),
}


@asynccontextmanager
async def cluster_place(place: BackendPlace) -> AsyncGenerator[BackendPlace]:
    """With a server to which pods dial in, and a cluster of its own, or a namespace of that which
    `make test-kubernetes` names."""
    data_dir = Path(place.data_dir)
    target, where = data_dir / "kubeconfig", (data_dir / "node", data_dir / "containers/ws-toolbox")
    hub = PodHub(SECRET)
    async with AsyncExitStack() as stack:
        if named := os.environ.get(REAL_CLUSTER):
            access = read_kubeconfig(Path(named))
            node = await stack.enter_async_context(ApiNode(access, *where).running())
            await asyncio.to_thread(in_namespace, Path(named), node.namespace, target)
        else:
            cluster = await stack.enter_async_context(FakeCluster(*where).serving())
            cluster.has_sandboxes = AS_SANDBOXES
            await asyncio.to_thread(cluster.kubeconfig, target)
        await stack.enter_async_context(hub.serving())
        yield msgspec.structs.replace(
            place, engine=str(target), server=hub.url, peer=hub.peer_address
        )


def link_kits(data_dir: Path, kits: Path) -> None:
    """All data directories of a test process share their kits, which take seconds to build."""
    containers = kits.with_name("container-kits")
    for name, target in (("ws-toolbox", kits), ("containers/ws-toolbox", containers)):
        target.mkdir(exist_ok=True)
        (data_dir / name).parent.mkdir(mode=0o700, exist_ok=True)
        (data_dir / name).symlink_to(target)


async def main() -> None:
    place = msgspec.json.decode(sys.argv[1], type=BackendPlace)
    rig = place.open()
    running: RunningWorkspace | None = None
    while line := await asyncio.to_thread(sys.stdin.readline):
        word, _, rest = line.strip().partition(" ")
        answer: object = None
        if word == "start":
            name, build = rest.split()
            running = await rig.start(again=WorkspaceId(UUID(name)), build=int(build))
        elif word == "run" and running is not None:
            answer = await rig.output_of(running, rest)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main())
