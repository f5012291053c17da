"""The kubernetes backend: workspaces as pods of a cluster, in one namespace.

Owns the steps of a build. All names follow from the workspace, and labels have its build number, so
that another process can repeat a build whose process died. Nothing is executed in a pod through the
API and no address of a pod is used: the pod dials in to the server by itself.

What the cluster says is read again and again until a deadline; a watch only shortens the pauses. A
start that fails removes its pod and keeps the claim, as a stop does.
"""

import base64
import contextlib
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Final
from uuid import UUID

import msgspec

from chatd.domain.access.secret_text import pod_token_text
from chatd.domain.errors import ChatdError, Unavailable
from chatd.domain.ids import WorkspaceId
from chatd.domain.ports import Clock
from chatd.domain.workspace.entities import (
    AgentSpec,
    BackendState,
    EmptySeed,
    Endpoint,
    FieldProblem,
    GitSeed,
    TemplateSpec,
    Workspace,
)
from chatd.domain.workspace.runners import BackendOffer, pod_holder
from chatd.log_event import LogEvent
from chatd.workspaces.build_backend import AGENT_NAME, BuildCancelled, BuildContext, BuildFailed
from chatd.workspaces.container.container_init import DISK_FULL_EXIT_CODE, TIMED_OUT_EXIT_CODE
from chatd.workspaces.container.container_plan import BUILD_LABEL, HOST_LABEL, WORKSPACE_LABEL
from chatd.workspaces.kubernetes.cluster_access import ClusterAccess
from chatd.workspaces.kubernetes.cluster_api import (
    ClusterClient,
    ClusterError,
    ClusterUnreachable,
)
from chatd.workspaces.kubernetes.pod_plan import (
    ACCOUNT,
    COMMAND,
    FILLED_ANNOTATION,
    JOURNAL_DIR,
    KIT,
    LINK,
    POD_AGENT_SOCKET,
    ROLE_LABEL,
    STARTUP,
    STOP_GRACE_S,
    TOKEN_FILE,
    WORKSPACE,
    PodNames,
    PodPlan,
)
from chatd.workspaces.kubernetes.pod_state import PodState, metadata_of, read_pod
from chatd.workspaces.local.local_backend import expand_parameters, find_problems
from chatd.workspaces.local.sandbox_command import INSIDE_HOME, CommandResult
from chatd.workspaces.local.seeds import (
    GIT_CLONE_TIMEOUT_S,
    AllowedPaths,
    SeedCommand,
    SeedRequest,
    fill_from_seed,
    git_variables,
)
from chatd.workspaces.local.workspace_setup import (
    agent_screen_config,
    check_cancelled,
    report_startup,
)
from chatd.workspaces.network.network_proxy import NetworkProxy

POD_START_TIMEOUT_S: Final = 300.0
"""For a node, the images and the agent. A script and a clone have their own time besides."""
POD_END_TIMEOUT_S: Final = 60.0
POD_POLL_S: Final = 2.0
COUNT_LIFETIME_S: Final = 10.0
POD_LOG_LINES: Final = 200
NO_PROXY: Final = "A pod clones without a proxy."
NO_HOST_PATHS: Final = AllowedPaths(roots=(), closed=Path("/nonexistent"))

log: Final = logging.getLogger("chatd.workspaces")


class KubernetesConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`image` is chatd's own, from which pods take the kit and the program that dials in to
    `server_url`."""

    access: ClusterAccess
    host_id: str
    image: str
    server_url: str
    storage_class: str = ""
    start_timeout_s: float = POD_START_TIMEOUT_S
    end_timeout_s: float = POD_END_TIMEOUT_S
    poll_s: float = POD_POLL_S
    disk_interval_s: float = 3.0
    clone_timeout_s: float = GIT_CLONE_TIMEOUT_S


class _PodGone(Exception):
    """The pod that was waited for is not there any more."""


class KubernetesBackend:
    """Implements `Backend`."""

    def __init__(self, config: KubernetesConfig, *, clock: Clock) -> None:
        self.config = config
        self._clock = clock
        self._api = ClusterClient(config.access, clock)
        self._impatient = ClusterClient(config.access, clock, patient=False)
        self._counted: tuple[float, int] | None = None

    @property
    def kind(self) -> str:
        return "kubernetes"

    def is_agent_socket(self, path: str) -> bool:
        """No agent of a pod is reached through the runner."""
        del path
        return False

    async def detect(self) -> BackendOffer | None:
        """The cluster and its version; None, with a line in the log, if it does not answer or
        refuses this account."""
        try:
            version = await self._impatient.version()
            await self._count_running()
        except ChatdError as error:
            log.warning(LogEvent(event="cluster_missing", explanation=error.message))
            return None
        detail = f"Kubernetes {version}, namespace {self._api.namespace}"
        return BackendOffer(kind="kubernetes", isolation="pod", detail=detail)

    async def validate(
        self, spec: TemplateSpec, params: Mapping[str, str]
    ) -> Sequence[FieldProblem]:
        problems = list(find_problems(expand_parameters(spec, params), NO_HOST_PATHS))
        if not spec.image:
            problems.append(FieldProblem(field="image", detail="is required for pods"))
        return problems

    async def start(self, context: BuildContext) -> Sequence[AgentSpec]:
        image = context.spec.image
        async with self._explained(f"The image {image} cannot run as a workspace"):
            names = PodNames(workspace=context.workspace.id)
            await self._end_other_builds(context, names)
            filled = await self._find_claim(names)
            plan = PodPlan(
                names=names,
                host_id=self.config.host_id,
                build=context.build.build_number,
                spec=await self._checked_spec(context, is_filled=filled is True),
                image=self.config.image,
                server_url=self.config.server_url,
                storage_class=self.config.storage_class,
            )
            setup = PodSetup(context, plan, self._api, self._clock, self.config)
            if filled is None:
                await self._api.create("persistentvolumeclaims", plan.claim())
            if not filled:
                await self._fill_home(setup)
            try:
                await setup.start_workspace()
            except (BuildFailed, BuildCancelled):
                await self._begin_end(names)
                raise
        agent = AgentSpec(
            id=context.agent_id(AGENT_NAME),
            name=AGENT_NAME,
            directory=setup.directory,
            endpoints=(
                Endpoint(kind="unix", path=POD_AGENT_SOCKET, host_id=pod_holder(context.build.id)),
            ),
            isolation=plan.isolation(),
            network=plan.spec.network,
            limits=plan.effective_limits(),
        )
        return [agent]

    async def stop(self, context: BuildContext) -> None:
        names = PodNames(workspace=context.workspace.id)
        async with self._explained("The workspace cannot be stopped"):
            found = await self._find_pod(names.main)
            _check_not_stale(found, context.build.build_number)
            if found is not None and not found.is_up:
                context.log("stop", f"{found.down_text()}.", "warning")
            context.log("stop", "Ending all processes")
            await self._end_pods(names)

    async def delete(self, context: BuildContext) -> None:
        context.log("delete", "Removing the pod and all files")
        async with self._explained("The workspace cannot be deleted"):
            name = PodNames(workspace=context.workspace.id).main
            _check_not_stale(await self._find_pod(name), context.build.build_number)
        await self.remove(context.workspace.id)

    async def inspect(self, workspace: Workspace) -> BackendState:
        if workspace.host_id not in (None, self.config.host_id):
            return BackendState(state="unknown", detail=f"it is on host {workspace.host_id}")
        names = PodNames(workspace=workspace.id)
        try:
            raw = await self._impatient.find("pods", names.main)
            found = None if raw is None else read_pod(raw)
            if found is not None and found.is_up:
                return BackendState(state="running")
            claim = await self._impatient.find("persistentvolumeclaims", names.claim)
        except (ChatdError, msgspec.ValidationError) as error:
            return BackendState(state="unknown", detail=str(error))
        if found is None and claim is None:
            return BackendState(
                state="gone", detail="The cluster has neither its pod nor its files"
            )
        return BackendState(state="stopped", detail="" if found is None else found.down_text())

    async def workspaces(self) -> Sequence[WorkspaceId]:
        """Raises Unavailable if the API does not answer: half a list would hide workspaces."""
        found: set[WorkspaceId] = set()
        labels = {HOST_LABEL: self.config.host_id}
        try:
            for kind in ("persistentvolumeclaims", "pods"):
                for each in await self._impatient.list_all(kind, labels):
                    text = metadata_of(each).labels.get(WORKSPACE_LABEL, "")
                    with contextlib.suppress(ValueError):  # A label that another program set.
                        found.add(WorkspaceId(UUID(text)))
        except (ClusterError, ClusterUnreachable) as error:
            raise Unavailable(error.message) from error
        return sorted(found)

    async def running(self) -> int:
        """The number of running workspaces. Asked for every few seconds, so it is kept for some."""
        now = self._clock.monotonic()
        if self._counted is None or now - self._counted[0] > COUNT_LIFETIME_S:
            self._counted = now, await self._count_running()
        return self._counted[1]

    async def _count_running(self) -> int:
        labels = {HOST_LABEL: self.config.host_id, ROLE_LABEL: WORKSPACE}
        return sum(read_pod(each).is_up for each in await self._impatient.list_all("pods", labels))

    async def remove(self, workspace_id: WorkspaceId) -> None:
        names = PodNames(workspace=workspace_id)
        async with self._explained("The workspace cannot be deleted"):
            await self._end_pods(names)
            await self._api.delete("persistentvolumeclaims", names.claim)
            deadline = self._clock.monotonic() + self.config.end_timeout_s
            while await self._api.find("persistentvolumeclaims", names.claim) is not None:
                if self._clock.monotonic() > deadline:
                    raise BuildFailed(
                        f"The claim {names.claim} is being deleted for a long time. See what holds "
                        f"it: kubectl -n {self._api.namespace} describe pvc {names.claim}"
                    )
                await self._clock.sleep(self.config.poll_s, "claim_end")

    # The steps of a build. Each can be repeated.

    async def _find_pod(self, name: str) -> PodState | None:
        found = await self._api.find("pods", name)
        return None if found is None else read_pod(found)

    async def _find_claim(self, names: PodNames) -> bool | None:
        """Whether its home is filled; None if there is no claim."""
        found = await self._api.find("persistentvolumeclaims", names.claim)
        if found is None:
            return None
        metadata = metadata_of(found)
        if metadata.deletion_timestamp is not None:
            raise BuildFailed(
                f"The claim {names.claim}, which has the files of the workspace, is being deleted."
            )
        return metadata.annotations.get(FILLED_ANNOTATION) == "true"

    async def _end_other_builds(self, context: BuildContext, names: PodNames) -> None:
        """A claim is used by one pod at a time."""
        build = context.build.build_number
        for name in (names.main, names.setup):
            found = await self._find_pod(name)
            _check_not_stale(found, build)
            if found is not None and (found.build != build or not found.is_up):
                if name == names.setup and found.build == build and not found.is_ending:
                    continue  # It has ended; its result is read.
                context.log("start", f"Removing the pod of build {found.build}")
                await self._api.delete("pods", name)
                await self._wait_end(name)
        await self._remove_secrets(names, keep_build=build)

    async def _fill_home(self, setup: "PodSetup") -> None:
        """A home that is not marked as filled is emptied: its seed may be incomplete."""
        context, plan = setup.context, setup.plan
        context.log("files", "Creating the home directory")
        if not isinstance(plan.spec.seed, EmptySeed):
            try:
                await fill_from_seed(
                    SeedRequest(
                        seed=plan.spec.seed,
                        target=PodHome(setup),
                        proxy=_refuse_proxy,
                        allowed=NO_HOST_PATHS,
                        timeout_s=self.config.clone_timeout_s,
                        report=lambda text: context.log("files", text),
                    )
                )
            except (BuildFailed, BuildCancelled):
                await self._begin_end(plan.names)
                raise
        await self._api.annotate(
            "persistentvolumeclaims", plan.names.claim, {FILLED_ANNOTATION: "true"}
        )
        await self._api.delete("pods", plan.names.setup, grace_s=0)
        await self._wait_end(plan.names.setup)

    async def _end_pods(self, names: PodNames) -> None:
        for name in (names.setup, names.main):
            await self._api.delete("pods", name)
        for name in (names.setup, names.main):
            await self._wait_end(name)
        await self._remove_secrets(names)

    async def _begin_end(self, names: PodNames) -> None:
        """After a start that failed: it does not wait, and the next build does the rest."""
        with contextlib.suppress(ChatdError):
            for name in (names.setup, names.main):
                await self._api.delete("pods", name)
            await self._remove_secrets(names)

    async def _wait_end(self, name: str) -> None:
        deadline = self._clock.monotonic() + self.config.end_timeout_s + STOP_GRACE_S
        while (raw := await self._api.find("pods", name)) is not None:
            if self._clock.monotonic() > deadline:
                node = read_pod(raw).node
                raise BuildFailed(
                    f"The pod {name} does not end: its node {node or '(none)'} does not answer. "
                    "If the node is gone for good, delete it (kubectl delete node), then try again."
                )
            version = metadata_of(raw).resource_version
            await self._api.wait_change(name, version, self.config.poll_s)

    async def _remove_secrets(self, names: PodNames, keep_build: int | None = None) -> None:
        for each in await self._api.list_all("secrets", {WORKSPACE_LABEL: str(names.workspace)}):
            metadata = metadata_of(each)
            if metadata.labels.get(BUILD_LABEL) != str(keep_build):
                await self._api.delete("secrets", metadata.name)

    async def _checked_spec(self, context: BuildContext, *, is_filled: bool) -> TemplateSpec:
        """The seed of a filled home is not checked: it is not used again."""
        spec = expand_parameters(context.spec, context.params)
        if is_filled:
            spec = msgspec.structs.replace(spec, seed=EmptySeed())
        for problem in await self.validate(spec, {}):
            raise BuildFailed(f"The template cannot be used here: {problem.field} {problem.detail}")
        return spec

    @contextlib.asynccontextmanager
    async def _explained(self, doing: str) -> AsyncGenerator[None]:
        try:
            yield
        except ClusterUnreachable as error:
            raise BuildFailed(
                f"{error.message} Start the workspace again once the cluster answers."
            ) from error
        except ClusterError as error:
            advice = ""
            if error.status in (401, 403):
                advice = " The runner's account needs the role in docs/runners.md."
            raise BuildFailed(f"{doing}: {error.message[:500]}{advice}") from error
        except msgspec.ValidationError as error:
            raise BuildFailed(f"{doing}: the cluster's answer cannot be read: {error}") from error


class PodSetup:
    """The pods of one build: creates them, and follows them to their start or their end."""

    def __init__(
        self,
        context: BuildContext,
        plan: PodPlan,
        api: ClusterClient,
        clock: Clock,
        config: KubernetesConfig,
    ) -> None:
        self.context = context
        self.plan = plan
        self.directory = str(PurePosixPath(INSIDE_HOME, plan.spec.directory))
        self._api = api
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
        await self._api.create("pods", plan.main_pod())
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
                raise BuildFailed(
                    "The pod was removed while it started. Start the workspace again."
                ) from None
            _check_not_stale(pod, self.plan.build)
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

    async def _wait_command(self) -> CommandResult:
        """Raises _PodGone."""
        name = self.plan.names.setup
        deadline = self._clock.monotonic() + self.config.start_timeout_s
        while True:
            check_cancelled(self.context)
            pod, version = await self._read(name)
            _check_not_stale(pod, self.plan.build)
            command = pod.container(COMMAND)
            if command.exit_code is not None:
                return await self._result(name, COMMAND, command.exit_code)
            if command.is_running:
                deadline = self._clock.monotonic() + self.config.start_timeout_s
            await self._check_pod(pod, (KIT, COMMAND), deadline)
            await self._api.wait_change(name, version, self.config.poll_s)

    async def _read(self, name: str) -> tuple[PodState, str]:
        """With its version. Raises _PodGone."""
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
        """With the next command."""
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


def _refuse_proxy(seed: GitSeed) -> NetworkProxy:
    del seed
    raise BuildFailed(NO_PROXY)


def _check_not_stale(found: PodState | None, build: int) -> None:
    if found is not None and found.build > build:
        raise BuildFailed("A newer build of the workspace has replaced this one.")
