"""The pods of one build: made here or by the controller of agent-sandbox, and followed to their
start or their end. Every step can be repeated by another process.
"""

import base64
import contextlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec

from chatd.domain.access.secret_text import pod_token_text
from chatd.domain.ports import Clock
from chatd.domain.workspace.entities import GitSeed
from chatd.workspaces.build_backend import AGENT_NAME, BuildContext, BuildFailed
from chatd.workspaces.container.container_init import DISK_FULL_EXIT_CODE, TIMED_OUT_EXIT_CODE
from chatd.workspaces.kubernetes.cluster_access import ClusterAccess
from chatd.workspaces.kubernetes.cluster_api import ClusterClient, ClusterError
from chatd.workspaces.kubernetes.pod_plan import (
    ACCOUNT,
    COMMAND,
    JOURNAL_DIR,
    KIT,
    LINK,
    RUNNING_MODE,
    STARTUP,
    SUSPENDED_MODE,
    TOKEN_FILE,
    WORKSPACE,
    PodNames,
    PodPlan,
)
from chatd.workspaces.kubernetes.pod_state import PodState, metadata_of, read_pod, sandbox_mode
from chatd.workspaces.local.sandbox_command import INSIDE_HOME, CommandResult
from chatd.workspaces.local.seeds import (
    GIT_CLONE_TIMEOUT_S,
    AllowedPaths,
    SeedCommand,
    git_variables,
)
from chatd.workspaces.local.workspace_setup import (
    agent_screen_config,
    check_cancelled,
    report_startup,
)
from chatd.workspaces.network.network_proxy import NetworkProxy

POD_START_TIMEOUT_S: Final = 300.0
"""Limit for a node, the images and the agent. A script and a clone have extra time of their own."""
POD_END_TIMEOUT_S: Final = 60.0
POD_POLL_S: Final = 2.0
POD_LOG_LINES: Final = 200
NO_PROXY: Final = "A pod clones without a proxy."
NO_HOST_PATHS: Final = AllowedPaths(roots=(), closed=Path("/nonexistent"))
MAX_SANDBOX_CONFLICTS: Final = 10


class KubernetesConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`image` is chatd's own, from which pods take the kit and the program that dials in to
    `server_url`."""

    access: ClusterAccess
    host_id: str
    image: str
    server_url: str
    storage_class: str = ""
    sandboxes: bool = False
    """Make workspaces as Sandboxes of agent-sandbox."""
    start_timeout_s: float = POD_START_TIMEOUT_S
    end_timeout_s: float = POD_END_TIMEOUT_S
    poll_s: float = POD_POLL_S
    disk_interval_s: float = 3.0
    clone_timeout_s: float = GIT_CLONE_TIMEOUT_S


class PlainPods:
    """Makes the pod of a running workspace itself."""

    def __init__(self, api: ClusterClient) -> None:
        self.api = api

    async def create(self, plan: PodPlan) -> None:
        await self.api.create("pods", plan.main_pod())

    async def end_older(self, names: PodNames, build: int) -> None:
        """A pod is ended when it is found."""

    async def end(self, names: PodNames, build: int | None = None) -> None:
        del build  # the pod was looked at
        await self.api.delete("pods", names.main)

    async def remove(self, names: PodNames) -> None:
        await self.end(names)


class SandboxPods:
    """Has the controller of agent-sandbox make the pod, from a Sandbox that stays, suspended, while
    the workspace is stopped. Its claim, its Secret and the pod of a clone are made as usual."""

    def __init__(self, api: ClusterClient) -> None:
        self.api = api

    async def create(self, plan: PodPlan) -> None:
        """Raises BuildFailed if a newer build has it."""
        name = plan.names.main
        for _ in range(MAX_SANDBOX_CONFLICTS):
            found = await self.api.find("sandboxes", name)
            if found is None:
                if await self.api.create("sandboxes", plan.sandbox()):
                    return
                continue
            metadata = metadata_of(found)
            if metadata.deletion_timestamp is not None:
                raise BuildFailed(f"The Sandbox {name} is being deleted. Start it again later.")
            check_not_stale(metadata.build, plan.build)
            if metadata.build == plan.build and sandbox_mode(found) == RUNNING_MODE:
                return
            if await self._patch(name, plan.sandbox_change(metadata.resource_version)):
                return
        raise BuildFailed(f"Another program keeps changing the Sandbox {name}.")

    async def end_older(self, names: PodNames, build: int) -> None:
        """Called before its controller makes another pod of an earlier build."""
        found = await self.api.find("sandboxes", names.main)
        if found is not None and metadata_of(found).build != build:
            await self.end(names, build)

    async def end(self, names: PodNames, build: int | None = None) -> None:
        """The pod is deleted here too: a stop needs no controller. A Sandbox of a newer build than
        `build` raises BuildFailed."""
        name = names.main
        for _ in range(MAX_SANDBOX_CONFLICTS):
            found = await self.api.find("sandboxes", name)
            if found is None:
                break
            metadata = metadata_of(found)
            if build is not None:
                check_not_stale(metadata.build, build)
            version = {"resourceVersion": metadata.resource_version}
            change = {"metadata": version, "spec": {"operatingMode": SUSPENDED_MODE}}
            if sandbox_mode(found) == SUSPENDED_MODE or await self._patch(name, change):
                break
        else:
            raise BuildFailed(f"Another program keeps changing the Sandbox {name}.")
        await self.api.delete("pods", name)

    async def remove(self, names: PodNames) -> None:
        await self.end(names)
        await self.api.delete("sandboxes", names.main)

    async def _patch(self, name: str, change: Mapping[str, object]) -> bool:
        """False if it has changed since it was read, or is gone."""
        try:
            await self.api.patch("sandboxes", name, change)
        except ClusterError as error:
            if error.status not in (404, 409):
                raise
            return False
        return True


def check_not_stale(found: int, build: int) -> None:
    """Raises BuildFailed if a newer build than `build` was found."""
    if found > build:
        raise BuildFailed("A newer build of the workspace has replaced this one.")


class _PodGone(Exception):
    """The pod that the build waited for no longer exists."""


class PodSetup:
    """The pods of one build: creates them, and follows them to their start or their end."""

    def __init__(
        self,
        context: BuildContext,
        plan: PodPlan,
        pods: PlainPods | SandboxPods,
        clock: Clock,
        config: KubernetesConfig,
    ) -> None:
        self._pods = pods
        self.context = context
        self.plan = plan
        self.directory = str(PurePosixPath(INSIDE_HOME, plan.spec.directory))
        self._api = pods.api
        self._clock = clock
        self.config = config

    async def start_workspace(self) -> None:
        """Returns when its agent answers and is connected to the server. Raises BuildFailed."""
        context, plan = self.context, self.plan
        agent_id = context.agent_id(AGENT_NAME)
        key = context.agent_key(agent_id)
        agent = {
            "agent_id": str(agent_id),
            "dial_key": key.hex(),
            **agent_screen_config(plan.spec),
        }
        files = {
            "agent.json": self._order({"agent": agent}),
            TOKEN_FILE: pod_token_text(context.build.id, key).encode(),
        }
        script = plan.spec.startup_script
        if script:
            order = {"argv": ("/bin/sh", "-c", script), "timeout_s": plan.spec.startup_timeout_s}
            files["startup.json"] = self._order(order)
        check_cancelled(context)
        await self._api.create("secrets", plan.secret(WORKSPACE, files))
        await self._pods.create(plan)
        if not script:
            context.log("agent", f"Starting the agent, isolation {plan.isolation()}")
        await self._wait_started()

    async def run(
        self, argv: tuple[str, ...], variables: Mapping[str, str], files: Mapping[str, bytes],
        *, network: str,
    ) -> CommandResult:  # fmt: skip
        """Run one command of a new home in a pod of its own, to its end."""
        plan = self.plan
        order = {
            "argv": argv,
            "timeout_s": self.config.clone_timeout_s,
            "variables": {**plan.spec.env, **variables},
            "is_new": True,
            "files": {name: base64.b64encode(content).decode() for name, content in files.items()},
        }
        await self._api.create(
            "secrets", plan.secret("setup", {"command.json": self._order(order)})
        )
        while True:
            # If another process of this build has filled the home and removed the pod, the next
            # one finds the mark of it and does nothing.
            await self._api.create("pods", plan.setup_pod(network=network))
            with contextlib.suppress(_PodGone):
                return await self._wait_command()
            await self._clock.sleep(self.config.poll_s, "setup_pod")

    def _order(self, order: Mapping[str, object]) -> bytes:
        spec = self.plan.spec
        whole = {
            "uid": ACCOUNT,
            "home": INSIDE_HOME,
            "directory": self.directory,
            "base": {"CHATD_WORKSPACE_ID": str(self.plan.names.workspace)},
            "variables": dict(spec.env),
            "disk_bytes": spec.limits.disk_bytes,
            "disk_interval_s": self.config.disk_interval_s,
            "private": JOURNAL_DIR,
            "rlimits": self.plan.rlimits(),
            **order,
        }
        return msgspec.json.encode(whole)

    async def _wait_started(self) -> None:
        name, spec = self.plan.names.main, self.plan.spec
        begun_script = reported_script = not spec.startup_script
        deadline = self._clock.monotonic() + self.config.start_timeout_s
        while True:
            check_cancelled(self.context)
            try:
                pod, version = await self._read(name)
            except _PodGone:
                await self._wait_for_controller(deadline)
                continue
            check_not_stale(pod.build, self.plan.build)
            script = pod.container(STARTUP)
            if not begun_script and (script.is_running or script.exit_code is not None):
                begun_script = True
                self.context.log("startup", "Running the start-up script")
                deadline += spec.startup_timeout_s
                continue  # A person may have cancelled it at this line.
            if not reported_script and script.exit_code is not None:
                await self._report_script(script.exit_code)
                reported_script = True
                self.context.log("agent", f"Starting the agent, isolation {self.plan.isolation()}")
            if pod.container(LINK).is_started and pod.container(WORKSPACE).is_running:
                return
            await self._check_pod(pod, (KIT, WORKSPACE, LINK), deadline)
            await self._api.wait_change(name, version, self.config.poll_s)

    async def _wait_for_controller(self, deadline: float) -> None:
        """There is no pod: that of a Sandbox is made by its controller, at any time. Raises
        BuildFailed."""
        if not self.config.sandboxes:
            raise BuildFailed("The pod was removed while it started. Start the workspace again.")
        if self._clock.monotonic() > deadline:
            name, limit_s = self.plan.names.main, self.config.start_timeout_s
            raise BuildFailed(
                f"The controller of agent-sandbox did not make the pod of the Sandbox {name} within"
                f" {limit_s:.0f} s. Check that it runs, and see why: kubectl -n"
                f" {self._api.namespace} describe sandbox {name}"
            )
        await self._clock.sleep(self.config.poll_s, "sandbox_pod")

    async def _wait_command(self) -> CommandResult:
        """Raises _PodGone."""
        name = self.plan.names.setup
        deadline = self._clock.monotonic() + self.config.start_timeout_s
        while True:
            check_cancelled(self.context)
            pod, version = await self._read(name)
            check_not_stale(pod.build, self.plan.build)
            command = pod.container(COMMAND)
            if command.exit_code is not None:
                return await self._result(name, COMMAND, command.exit_code)
            if command.is_running:
                deadline = self._clock.monotonic() + self.config.start_timeout_s
            await self._check_pod(pod, (KIT, COMMAND), deadline)
            await self._api.wait_change(name, version, self.config.poll_s)

    async def _read(self, name: str) -> tuple[PodState, str]:
        """The pod with its version. Raises _PodGone."""
        raw = await self._api.find("pods", name)
        if raw is None:
            raise _PodGone
        return read_pod(raw), metadata_of(raw).resource_version

    async def _check_pod(self, pod: PodState, containers: tuple[str, ...], deadline: float) -> None:
        """Raises BuildFailed if the pod will not start."""
        if pod.image_problem:
            raise BuildFailed(
                f"The image {self.plan.spec.image}, or chatd's own {self.plan.image}, cannot be "
                f"pulled: {pod.image_problem} Check the names, and the pull secrets of the service "
                "account `default`, then start the workspace again."
            )
        for name in containers:
            if problem := pod.container(name).problem:
                raise BuildFailed(await self._failure(pod.name, name, problem))
        if not pod.is_up:
            raise BuildFailed(f"{pod.down_text()}. Start the workspace again.")
        if self._clock.monotonic() > deadline:
            raise BuildFailed(await self._late_text(pod))

    async def _failure(self, pod: str, container: str, problem: str) -> str:
        output = await self._api.log_tail(pod, container, POD_LOG_LINES)
        lines = [line for line in output.splitlines() if line.strip()]
        reason = lines[-1] if lines else problem
        if container == LINK:
            return f"The pod does not connect to {self.config.server_url}: {reason[:300]}"
        if container == KIT:
            return f"The image {self.plan.image} does not bring the kit: {reason[:300]}"
        image = self.plan.spec.image
        return f"The workspace agent does not start in the image {image}: {reason[:300]}"

    async def _late_text(self, pod: PodState) -> str:
        if pod.unscheduled:
            return (
                f"No node of the cluster has taken the pod: {pod.unscheduled[:300]} The workspace "
                "is stopped again; start it when there is room."
            )
        if pod.container(WORKSPACE).is_running:
            return await self._failure(pod.name, LINK, "it does not answer")
        limit_s = self.config.start_timeout_s
        return (
            f"The pod did not start within {limit_s:.0f} s. See why: kubectl -n "
            f"{self._api.namespace} describe pod {pod.name}"
        )

    async def _report_script(self, code: int) -> None:
        result = await self._result(self.plan.names.main, STARTUP, code)
        report_startup(self.context, self.plan.spec, result)

    async def _result(self, pod: str, container: str, code: int) -> CommandResult:
        output = await self._api.log_tail(pod, container, POD_LOG_LINES)
        if code == DISK_FULL_EXIT_CODE:
            last = "".join(output.strip().splitlines()[-1:])
            raise BuildFailed(f"The workspace is too large: {last}.")
        return CommandResult(code=None if code == TIMED_OUT_EXIT_CODE else code, output=output)


class PodHome:
    """Implements `SeedTarget` by the claim of a workspace, which only pods can reach."""

    def __init__(self, setup: PodSetup) -> None:
        self._setup = setup
        self._files: Mapping[str, bytes] = {}

    @property
    def network(self) -> bool:
        """A policy of the cluster says what the pod of a clone reaches, not a proxy."""
        return True

    @property
    def python(self) -> tuple[str, ...]:
        raise BuildFailed(NO_PROXY)

    async def create(self) -> None:
        """The first process creates it."""

    async def copy(self, source: Path) -> None:
        raise BuildFailed(f"A pod cannot copy {source}: it does not see this host.")

    async def write(self, files: Mapping[str, bytes]) -> None:
        """The files are written with the next command."""
        self._files = files

    async def run(self, command: SeedCommand) -> CommandResult:
        network = self._setup.plan.spec.network
        if command.network and network != "full":
            network = "clone"
        return await self._setup.run(
            command.words, git_variables(command), self._files, network=network
        )

    def listening(self, proxy: NetworkProxy) -> contextlib.AbstractAsyncContextManager[Path]:
        del proxy
        raise BuildFailed(NO_PROXY)


def refuse_proxy(seed: GitSeed) -> NetworkProxy:
    del seed
    raise BuildFailed(NO_PROXY)
