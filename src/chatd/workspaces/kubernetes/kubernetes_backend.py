"""The kubernetes backend: workspaces as pods of a cluster, in one namespace.

Owns the steps of a build. All names follow from the workspace, and labels have its build number, so
that another process can repeat a build whose process died. Nothing is executed in a pod through the
API and no address of a pod is used: the pod dials in to the server by itself.

What the cluster says is read again and again until a deadline; a watch only shortens the pauses. A
start that fails removes its pod and keeps the claim, as a stop does.
"""

import contextlib
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Final
from uuid import UUID

import msgspec

from chatd.domain.errors import ChatdError, Unavailable
from chatd.domain.ids import WorkspaceId
from chatd.domain.ports import Clock
from chatd.domain.workspace.entities import (
    AgentSpec,
    BackendState,
    EmptySeed,
    Endpoint,
    FieldProblem,
    TemplateSpec,
    Workspace,
)
from chatd.domain.workspace.runners import BackendOffer, pod_holder
from chatd.log_event import LogEvent
from chatd.workspaces.build_backend import AGENT_NAME, BuildCancelled, BuildContext, BuildFailed
from chatd.workspaces.container.container_plan import BUILD_LABEL, HOST_LABEL, WORKSPACE_LABEL
from chatd.workspaces.kubernetes.cluster_api import (
    ClusterClient,
    ClusterError,
    ClusterUnreachable,
)
from chatd.workspaces.kubernetes.pod_plan import (
    FILLED_ANNOTATION,
    POD_AGENT_SOCKET,
    ROLE_LABEL,
    SANDBOX_API,
    STOP_GRACE_S,
    WORKSPACE,
    PodNames,
    PodPlan,
)
from chatd.workspaces.kubernetes.pod_setup import (
    NO_HOST_PATHS,
    KubernetesConfig,
    PlainPods,
    PodHome,
    PodSetup,
    SandboxPods,
    check_not_stale,
    refuse_proxy,
)
from chatd.workspaces.kubernetes.pod_state import PodState, metadata_of, read_pod
from chatd.workspaces.local.local_backend import expand_parameters, find_problems
from chatd.workspaces.local.seeds import (
    SeedRequest,
    fill_from_seed,
)

COUNT_LIFETIME_S: Final = 10.0
log: Final = logging.getLogger("chatd.workspaces")


class KubernetesBackend:
    """Implements `Backend`."""

    def __init__(self, config: KubernetesConfig, *, clock: Clock) -> None:
        self.config = config
        self._clock = clock
        self._api = ClusterClient(config.access, clock)
        self._impatient = ClusterClient(config.access, clock, patient=False)
        self._pods = SandboxPods(self._api) if config.sandboxes else PlainPods(self._api)
        self._counted: tuple[float, int] | None = None
        self._pending: dict[WorkspaceId, tuple[str, float]] = {}
        """Pods that were seen waiting for a node, by their uid, and since when."""

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
            if self.config.sandboxes and not await self._impatient.has_sandboxes():
                text = f"The cluster has no Sandbox of {SANDBOX_API}: install agent-sandbox"
                raise ClusterError(text, 404)
        except ChatdError as error:
            log.warning(LogEvent(event="cluster_missing", explanation=error.message))
            return None
        detail = f"Kubernetes {version}, namespace {self._api.namespace}"
        if self.config.sandboxes:
            detail += ", as Sandboxes"
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
            setup = PodSetup(context, plan, self._pods, self._clock, self.config)
            if filled is None:
                await self._api.create("persistentvolumeclaims", plan.claim())
            if not filled:
                await self._fill_home(setup)
            try:
                await setup.start_workspace()
            except (BuildFailed, BuildCancelled):
                await self._begin_end(names, plan.build)
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
            self._check(found, context.build.build_number)
            if found is not None and (not found.is_up or found.phase == "Pending"):
                context.log("stop", f"{found.down_text()}.", "warning")
            context.log("stop", "Ending all processes")
            await self._end_pods(names, context.build.build_number)

    async def delete(self, context: BuildContext) -> None:
        context.log("delete", "Removing the pod and all files")
        async with self._explained("The workspace cannot be deleted"):
            name = PodNames(workspace=context.workspace.id).main
            self._check(await self._find_pod(name), context.build.build_number)
        await self.remove(context.workspace.id)

    async def inspect(self, workspace: Workspace) -> BackendState:
        if workspace.host_id not in (None, self.config.host_id):
            return BackendState(state="unknown", detail=f"it is on host {workspace.host_id}")
        names = PodNames(workspace=workspace.id)
        try:
            raw = await self._impatient.find("pods", names.main)
            found = None if raw is None else read_pod(raw)
            if found is not None and found.is_up and not self._is_overdue(workspace.id, found):
                return BackendState(state="running")
            claim = await self._impatient.find("persistentvolumeclaims", names.claim)
        except (ChatdError, msgspec.ValidationError) as error:
            return BackendState(state="unknown", detail=str(error))
        if found is None and claim is None:
            return BackendState(
                state="gone", detail="The cluster has neither its pod nor its files"
            )
        return BackendState(state="stopped", detail="" if found is None else found.down_text())

    def _is_overdue(self, workspace_id: WorkspaceId, pod: PodState) -> bool:
        """Whether the pod waits for longer than a start may take, by this process's own clock: one
        that a controller made again may find no node, or its image, for ever."""
        if pod.phase != "Pending":
            self._pending.pop(workspace_id, None)
            return False
        now = self._clock.monotonic()
        uid, since = self._pending.get(workspace_id, ("", now))
        if uid != pod.uid:
            since = now
        self._pending[workspace_id] = pod.uid, since
        return now - since > self.config.start_timeout_s

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
        """The number of running workspaces, cached for some seconds because it is requested so
        often."""
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
            await self._pods.remove(names)
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

    def _check(self, found: PodState | None, build: int) -> None:
        """Raises BuildFailed."""
        if found is None:
            return
        check_not_stale(found.build, build)
        if found.is_of_sandbox and not self.config.sandboxes:
            raise BuildFailed(
                f"The pod {found.name} belongs to a Sandbox, whose controller makes it again. Start"
                " the runner with --agent-sandbox, as before."
            )

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
        """End pods of other builds, because only one pod at a time can use the claim."""
        build = context.build.build_number
        await self._pods.end_older(names, build)
        for name in (names.main, names.setup):
            found = await self._find_pod(name)
            self._check(found, build)
            if found is not None and (found.build != build or not found.is_up):
                if name == names.setup and found.build == build and not found.is_ending:
                    continue  # It has ended; its result is read.
                context.log("start", f"Removing the pod of build {found.build}")
                if name == names.main:
                    await self._pods.end(names, build)
                else:
                    await self._api.delete("pods", name)
                await self._wait_end(name)
        await self._remove_secrets(names, keep_build=build)

    async def _fill_home(self, setup: "PodSetup") -> None:
        """Empty a home that is not marked as filled: its seed may be incomplete."""
        context, plan = setup.context, setup.plan
        context.log("files", "Creating the home directory")
        if not isinstance(plan.spec.seed, EmptySeed):
            try:
                await fill_from_seed(
                    SeedRequest(
                        seed=plan.spec.seed,
                        target=PodHome(setup),
                        proxy=refuse_proxy,
                        allowed=NO_HOST_PATHS,
                        timeout_s=self.config.clone_timeout_s,
                        report=lambda text: context.log("files", text),
                    )
                )
            except (BuildFailed, BuildCancelled):
                await self._begin_end(plan.names, plan.build)
                raise
        filled = {"metadata": {"annotations": {FILLED_ANNOTATION: "true"}}}
        await self._api.patch("persistentvolumeclaims", plan.names.claim, filled)
        await self._api.delete("pods", plan.names.setup, grace_s=0)
        await self._wait_end(plan.names.setup)

    async def _end_pods(self, names: PodNames, build: int | None = None) -> None:
        self._pending.pop(names.workspace, None)
        await self._api.delete("pods", names.setup)
        await self._pods.end(names, build)
        for name in (names.setup, names.main):
            await self._wait_end(name)
        await self._remove_secrets(names)

    async def _begin_end(self, names: PodNames, build: int) -> None:
        """Clean up after a failed start, without waiting: the next build does the rest."""
        with contextlib.suppress(ChatdError):
            await self._api.delete("pods", names.setup)
            await self._pods.end(names, build)
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
        """Check the template, but not the seed of a filled home, which is not used again."""
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
