"""The container backend: workspaces as containers of Docker or Podman on the runner's host.

Owns the steps of a build. All names follow from the workspace, and labels have its build number, so
that another process can repeat a build whose process died. Containers belong to the engine: they
outlive the runner and the server.

What is on the host: `<data>/containers/ws/<workspace>` with `run` (the agent's socket), which the
container's first process writes to, and `home-volume`, which names the volume that has been filled.
"""

import asyncio
import contextlib
import logging
import os
import platform
import resource
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path, PurePosixPath
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
from chatd.domain.workspace.runners import BackendOffer
from chatd.log_event import LogEvent
from chatd.workspaces.build_backend import AGENT_NAME, BuildContext, BuildFailed
from chatd.workspaces.container.container_kit import ContainerKit, build_container_kit
from chatd.workspaces.container.container_plan import (
    BUILD_LABEL,
    HOME_LABEL,
    HOST_LABEL,
    INSIDE_ACCOUNT,
    KIT_LABEL,
    RESERVED_INSIDE,
    STOP_TIMEOUT_S,
    WORKSPACE_LABEL,
    ContainerNames,
    ContainerPlan,
)
from chatd.workspaces.container.container_setup import (
    ContainerSetup,
    InitStatus,
    VolumeHome,
    read_status,
)
from chatd.workspaces.container.engine_api import (
    ContainerState,
    EngineClient,
    EngineError,
    EngineInfo,
    EngineUnreachable,
    EngineVolume,
    build_failure,
)
from chatd.workspaces.local import workspace_dirs
from chatd.workspaces.local.isolation import host_uid_range
from chatd.workspaces.local.local_backend import (
    describe_os_error,
    expand_parameters,
    find_problems,
)
from chatd.workspaces.local.sandbox_command import INSIDE_HOME
from chatd.workspaces.local.seeds import (
    GIT_CLONE_TIMEOUT_S,
    AllowedPaths,
    SeedRequest,
    fill_from_seed,
)
from chatd.workspaces.local.workspace_dirs import LocalLayout, WorkspacePaths
from chatd.workspaces.local.workspace_setup import (
    PROGRAMS_CHECK_TIMEOUT_S,
    agent_screen_config,
    check_cancelled,
    exclusive_lock,
    report_startup,
    wanted_programs,
)
from chatd.workspaces.network.inside import INSIDE_NETWORK, agent_proxy_config, forward_words
from chatd.workspaces.network.workspace_networks import NetworkPolicy, WorkspaceNetworks
from chatd.workspaces.tunnels.byte_streams import is_answered

ENGINE_INFO_LIFETIME_S: Final = 600.0
CONTAINER_READY_TIMEOUT_S: Final = 30.0
READY_POLL_S: Final = 0.005
STATE_POLL_S: Final = 0.5
AGENT_START_ATTEMPTS: Final = 3
"""A build fails after this many starts of the agent. The first process goes on restarting it."""
AGENT_LOG_LINES: Final = 20
ENGINE_SOCKETS: Final = (
    "/run/user/{uid}/podman/podman.sock",
    "/run/user/{uid}/docker.sock",
    "/run/podman/podman.sock",
    "/run/docker.sock",
    "/var/run/docker.sock",
)
CEILINGS: Final = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}
MAX_PODMAN_PROCESSES: Final = 32_768
"""Podman lowers its own limit to this where it may not raise it."""

log: Final = logging.getLogger("chatd.workspaces")


def find_engine_socket() -> Path | None:
    """The engine of this account, else that of the host; None if there is none."""
    candidates = (Path(path.format(uid=os.geteuid())) for path in ENGINE_SOCKETS)
    return next((path for path in candidates if os.access(path, os.R_OK | os.W_OK)), None)


class ContainerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`socket_path`: of Docker or Podman. `roots`: host directories that templates may copy, clone
    or mount. `network`: the engine's network for templates with a network; empty: its default.
    The engine must see `data_dir` and `roots` under the same paths as this process."""

    socket_path: Path
    data_dir: Path
    host_id: str
    roots: tuple[Path, ...] = ()
    network: str = ""
    disk_interval_s: float = 3.0
    clone_timeout_s: float = GIT_CLONE_TIMEOUT_S


class ContainerBackend:
    """Implements `Backend`."""

    def __init__(
        self,
        config: ContainerConfig,
        *,
        agent: bytes,
        clock: Clock,
        networks: WorkspaceNetworks,
    ) -> None:
        self._config = config
        self.networks = networks
        self._agent = agent
        self._clock = clock
        self._layout = LocalLayout(data_dir=config.data_dir / "containers")
        self._allowed = AllowedPaths(roots=config.roots, closed=config.data_dir)
        self._engine = EngineClient(config.socket_path, clock)
        self._impatient = EngineClient(config.socket_path, clock, patient=False)
        self._uids = host_uid_range(self._layout.data_dir)
        self._info: tuple[float, EngineInfo] | None = None
        self._kit: ContainerKit | None = None
        self._kit_lock: workspace_dirs.KitLock | None = None
        self._preparing = asyncio.Lock()

    @property
    def kind(self) -> str:
        return "container"

    def is_agent_socket(self, path: str) -> bool:
        """Whether it is the socket of a workspace here, so that others may be connected to it."""
        return self._layout.is_socket(path)

    async def detect(self) -> BackendOffer | None:
        """The engine and its version; None, with a line in the log, if it does not answer."""
        try:
            info = await self._impatient.info()
            self._info = self._clock.monotonic(), info
        except ChatdError as error:
            log.warning(LogEvent(event="container_engine_missing", explanation=error.message))
            return None
        isolation = "container+userns" if info.own_users else "container"
        return BackendOffer(kind="container", isolation=isolation, detail=str(info))

    async def validate(
        self, spec: TemplateSpec, params: Mapping[str, str]
    ) -> Sequence[FieldProblem]:
        expanded = expand_parameters(spec, params)
        problems = await asyncio.to_thread(lambda: list(find_problems(expanded, self._allowed)))
        if not spec.image:
            problems.append(FieldProblem(field="image", detail="is required for containers"))
        for mount in spec.mounts:
            target = PurePosixPath(mount.target)
            if any(target.is_relative_to(path) for path in RESERVED_INSIDE):
                detail = f"{mount.target} is used by the workspace itself"
                problems.append(FieldProblem(field="mounts", detail=detail))
        return problems

    async def start(self, context: BuildContext) -> Sequence[AgentSpec]:
        workspace, build = context.workspace.id, context.build.build_number
        image = context.spec.image
        paths = self._layout.workspace_paths(workspace)
        async with self._explained(f"The image {image} cannot run as a workspace"):
            info, kit = await self._engine_info(), await self._prepare_kit()
            names = ContainerNames(workspace=workspace)
            with describe_os_error("The workspace cannot be created"):
                uid = await asyncio.to_thread(self._create_dirs, paths, info)
            async with exclusive_lock(paths, context):
                home, found, has_image = await asyncio.gather(
                    self._filled_home(paths, names),
                    self._engine.find_container(names.main),
                    self._engine.has_image(image),
                )
                spec = await self._checked_spec(context, is_filled=home is not None)
                proxy = None
                with describe_os_error("The workspace cannot be created"):
                    if spec.network == "allow":
                        policy = NetworkPolicy(
                            allow=spec.allow, any_account=True, trusts_authority=True
                        )
                        proxy = await self.networks.open(workspace, policy, context.credentials)
                    else:
                        await self.networks.close(workspace)
                plan = ContainerPlan(
                    names=names,
                    host_id=self._config.host_id,
                    build=build,
                    spec=spec,
                    engine=info,
                    kit=kit,
                    run=paths.run,
                    uid=uid,
                    network=self._config.network,
                    ceilings=_ceilings(),
                    proxy=proxy,
                )
                if problem := plan.runtime_problem():
                    raise BuildFailed(problem)
                setup = ContainerSetup(
                    context=context,
                    plan=plan,
                    engine=self._engine,
                    clock=self._clock,
                    directory=str(PurePosixPath(INSIDE_HOME, spec.directory)),
                    disk_interval_s=self._config.disk_interval_s,
                )
                _check_not_stale(found, build)
                # A stopped one of an earlier version would look for its order elsewhere.
                is_current = (
                    found is not None
                    and _build_of(found) == build
                    and (found.is_up or found.labels.get(KIT_LABEL) == kit.path.name)
                )
                if home is None or not is_current:
                    if not has_image:
                        await self._pull(context, spec.image)
                    await self._build(setup, paths, found, is_filled=home is not None)
                    found = None
                if found is None or not found.is_up:
                    await self._start_agent(setup)
                await self._wait_ready(setup)
        agent = AgentSpec(
            id=context.agent_id(AGENT_NAME),
            name=AGENT_NAME,
            arch=platform.machine(),
            directory=setup.directory,
            endpoints=self._endpoints(workspace),
            isolation=plan.isolation(),
            network=spec.network,
            limits=plan.effective_limits(),
        )
        return [agent]

    async def stop(self, context: BuildContext) -> None:
        """Stop the container and keep it: without it, a prune of the engine would remove the
        home."""
        context.log("stop", "Ending all processes")
        names = ContainerNames(workspace=context.workspace.id)
        async with self._explained("The workspace cannot be stopped"):
            await self._engine.remove_container(names.setup)
            found = await self._engine.find_container(names.main)
            _check_not_stale(found, context.build.build_number)
            if found is not None and found.is_up:
                await self._engine.stop_container(names.main, STOP_TIMEOUT_S)
        await self.networks.close(context.workspace.id)

    async def delete(self, context: BuildContext) -> None:
        context.log("delete", "Removing the container and all files")
        found = None
        async with self._explained("The workspace cannot be deleted"):
            name = ContainerNames(workspace=context.workspace.id).main
            found = await self._engine.find_container(name)
        _check_not_stale(found, context.build.build_number)
        await self.remove(context.workspace.id)

    async def inspect(self, workspace: Workspace) -> BackendState:
        if workspace.host_id not in (None, self._config.host_id):
            return BackendState(state="unknown", detail=f"it is on host {workspace.host_id}")
        names = ContainerNames(workspace=workspace.id)
        try:
            found = await self._impatient.find_container(names.main)
            if found is not None and found.is_up:
                run = self._layout.workspace_paths(workspace.id).run
                status = await asyncio.to_thread(read_status, run)
                return BackendState(state="running", detail=status.detail)
            volume = await self._impatient.find_volume(names.home)
        except ChatdError as error:
            return BackendState(state="unknown", detail=error.message)
        return BackendState(state="gone" if found is None and volume is None else "stopped")

    async def workspaces(self) -> Sequence[WorkspaceId]:
        """Raises Unavailable if the engine does not answer: half a list would hide workspaces."""
        label = f"{HOST_LABEL}={self._config.host_id}"
        try:
            volumes = await self._impatient.list_volumes(label)
            containers = await self._impatient.list_containers(label)
        except (EngineError, EngineUnreachable) as error:
            raise Unavailable(error.message) from error
        found = set(await asyncio.to_thread(self._layout.list_workspaces))
        for each in (*volumes, *containers):
            with contextlib.suppress(ValueError):  # A label that another program set.
                found.add(WorkspaceId(UUID(each.labels.get(WORKSPACE_LABEL, ""))))
        return sorted(found)

    async def running(self) -> int:
        """The number of running workspaces, started by any process with this host id."""
        label = f"{HOST_LABEL}={self._config.host_id}"
        containers = await self._impatient.list_containers(label)
        # Not those of start-up commands.
        return sum(
            each.is_up and each.name == f"chatd-{each.labels.get(WORKSPACE_LABEL)}"
            for each in containers
        )

    async def remove(self, workspace_id: WorkspaceId) -> None:
        names = ContainerNames(workspace=workspace_id)
        async with self._explained("The workspace cannot be deleted"):
            for container in (names.setup, names.main):
                await self._engine.remove_container(container)
            for volume in (names.home, names.state):
                await self._engine.remove_volume(volume)
        await self.networks.remove(workspace_id)
        with describe_os_error("The files cannot be removed"):
            await asyncio.to_thread(self._layout.create_dirs, reached_by_host_path=False)
            root = self._layout.workspace_paths(workspace_id).root
            await asyncio.to_thread(workspace_dirs.move_to_trash, root, self._layout.trash)
            await asyncio.to_thread(workspace_dirs.empty_trash, self._layout.trash)

    async def _engine_info(self) -> EngineInfo:
        """Cached, because Podman takes a second for it."""
        now = self._clock.monotonic()
        if self._info is None or now - self._info[0] > ENGINE_INFO_LIFETIME_S:
            self._info = now, await self._engine.info()
        return self._info[1]

    # The steps of a start. Each can be repeated.

    async def _build(
        self,
        setup: ContainerSetup,
        paths: WorkspacePaths,
        replaced: ContainerState | None,
        *,
        is_filled: bool,
    ) -> None:
        """Everything up to a container that has been created: it exists only if the start-up script
        has succeeded."""
        context, plan, engine = setup.context, setup.plan, self._engine
        await asyncio.gather(
            engine.remove_container(plan.names.setup),
            *(engine.remove_container(each.name) for each in (replaced,) if each is not None),
            engine.create_volume(plan.names.state, plan.labels()),
        )
        if not is_filled:
            await self._fill_home(setup, paths)
        check_cancelled(context)
        if plan.spec.startup_script:
            context.log("startup", "Running the start-up script")
            words = ("/bin/sh", "-c", plan.spec.startup_script)
            if plan.proxy is not None:
                words = (*forward_words(plan.kit.plain_python, INSIDE_NETWORK), *words)
            result = await setup.run(
                words,
                timeout_s=plan.spec.startup_timeout_s,
                network=plan.spec.network == "full",
                mounts=(*plan.spec.mounts, *plan.proxy_mounts()),
            )
            report_startup(context, plan.spec, result)
        for name, words, missing in wanted_programs(plan.spec):
            found = await setup.run(
                words, timeout_s=PROGRAMS_CHECK_TIMEOUT_S, network=False, mounts=()
            )
            if found.code != 0:
                context.log(name, missing)
        await engine.create_container(plan.names.main, plan.main_container())

    async def _pull(self, context: BuildContext, image: str) -> None:
        context.log("image", f"Pulling the image {image}")

        def report(text: str) -> None:
            check_cancelled(context)
            if text:
                context.log("image", text)

        try:
            await self._engine.pull(image, report)
        except EngineError as error:
            if error.is_disk_full:
                raise
            raise BuildFailed(
                f"The image {image} is not on this host and cannot be pulled: "
                f"{error.message[:300]} Check the name, or load the image on the host of the "
                "runner, then start the workspace again."
            ) from error

    async def _fill_home(self, setup: ContainerSetup, paths: WorkspacePaths) -> None:
        """Remove a home that was not marked as filled: its seed may be incomplete."""
        context, names = setup.context, setup.plan.names
        context.log("files", "Creating the home directory")
        await self._engine.remove_volume(names.home)
        made = secrets.token_hex(16)
        await self._engine.create_volume(names.home, {**setup.plan.labels(), HOME_LABEL: made})
        target = VolumeHome(
            setup=setup,
            directory=setup.plan.spec.directory,
            proxy_dir=paths.clone_proxy,
            timeout_s=self._config.clone_timeout_s,
        )
        await fill_from_seed(
            SeedRequest(
                seed=setup.plan.spec.seed,
                target=target,
                proxy=lambda seed: self.networks.clone_proxy(
                    setup.plan.spec, seed, context.credentials
                ),
                allowed=self._allowed,
                timeout_s=self._config.clone_timeout_s,
                report=lambda text: context.log("files", text),
            )
        )
        with describe_os_error("The workspace cannot be created"):
            await asyncio.to_thread(_mark_filled, paths, made)

    async def _filled_home(
        self, paths: WorkspacePaths, names: ContainerNames
    ) -> EngineVolume | None:
        """The home volume, if it is the one that a build has filled."""
        found = await self._engine.find_volume(names.home)
        if found is None or not await asyncio.to_thread(_is_filled, paths, found):
            return None
        return found

    async def _start_agent(self, setup: ContainerSetup) -> None:
        context, plan = setup.context, setup.plan
        check_cancelled(context)
        context.log("agent", f"Starting the agent, isolation {plan.isolation()}")
        agent_id = context.agent_id(AGENT_NAME)
        agent: dict[str, object] = {
            "agent_id": str(agent_id),
            "dial_key": context.agent_key(agent_id).hex(),
            **({} if plan.proxy is None else agent_proxy_config()),
            **agent_screen_config(plan.spec),
        }
        await setup.write_order("agent", {"agent": agent})
        await self._engine.start_container(plan.names.main)

    async def _wait_ready(self, setup: ContainerSetup) -> None:
        """Wait until an agent answers. The socket alone does not prove one: it outlives agents."""
        names, run = setup.plan.names, setup.plan.run
        socket = str(self._layout.socket(setup.context.workspace.id))
        deadline = self._clock.monotonic() + CONTAINER_READY_TIMEOUT_S
        looked_at = self._clock.monotonic()
        while not await is_answered(socket):
            check_cancelled(setup.context)
            now = self._clock.monotonic()
            status = await asyncio.to_thread(read_status, run)
            if status.starts >= AGENT_START_ATTEMPTS or now > deadline:
                raise await self._start_failure(setup, status)
            if now - looked_at > STATE_POLL_S:
                looked_at = now
                found = await self._engine.find_container(names.main)
                if found is None or not found.is_up:
                    raise await self._start_failure(setup, status)
            await self._clock.sleep(READY_POLL_S, "container_ready")

    async def _start_failure(self, setup: ContainerSetup, status: InitStatus) -> BuildFailed:
        plan = setup.plan
        output = await self._engine.log_tail(plan.names.main, AGENT_LOG_LINES)
        await self._engine.stop_container(plan.names.main, 0)
        lines = [line for line in output.splitlines() if line.strip()]
        reason = status.detail or (lines[-1] if lines else "it printed nothing")
        return BuildFailed(
            f"The workspace agent does not start in the image {plan.spec.image}: {reason[:300]}"
        )

    def _create_dirs(self, paths: WorkspacePaths, info: EngineInfo) -> int:
        """The uid of the workspace's processes, as they see it."""
        self._layout.create_dirs(reached_by_host_path=False)
        paths.root.mkdir(mode=0o700, exist_ok=True)
        paths.run.mkdir(mode=0o700, exist_ok=True)
        # The account of the first process where the engine maps accounts. Only this process's
        # account and root can enter the directory above.
        paths.run.chmod(0o777)
        if self._uids is None or info.own_users:
            return INSIDE_ACCOUNT
        return workspace_dirs.assign_uid(self._layout, paths, self._uids)

    async def _checked_spec(self, context: BuildContext, *, is_filled: bool) -> TemplateSpec:
        """Check the template, but not the seed of a filled home, which is not used again."""
        spec = expand_parameters(context.spec, context.params)
        if is_filled:
            spec = msgspec.structs.replace(spec, seed=EmptySeed())
        for problem in await self.validate(spec, {}):
            raise BuildFailed(f"The template cannot be used here: {problem.field} {problem.detail}")
        return spec

    async def _prepare_kit(self) -> ContainerKit:
        async with self._preparing:
            if self._kit is None:
                with describe_os_error("This host cannot run workspaces"):
                    await asyncio.to_thread(self._layout.create_dirs, reached_by_host_path=False)
                    self._kit, self._kit_lock = await asyncio.to_thread(
                        build_container_kit, self._layout.kits, self._agent
                    )
                with contextlib.suppress(ChatdError, OSError):  # The next start tries again.
                    await workspace_dirs.remove_unused_kits(
                        self._layout.kits, self._kit.path.name, self._kits_in_use
                    )
            return self._kit

    async def _kits_in_use(self, names: Sequence[str]) -> AbstractSet[str]:
        label = f"{HOST_LABEL}={self._config.host_id}"
        containers = await self._impatient.list_containers(label)
        return {each.labels.get(KIT_LABEL, "") for each in containers} & set(names)

    def _endpoints(self, workspace: WorkspaceId) -> tuple[Endpoint, ...]:
        path = str(self._layout.socket(workspace))
        return (Endpoint(kind="unix", path=path, host_id=self._config.host_id),)

    @contextlib.asynccontextmanager
    async def _explained(self, doing: str) -> AsyncGenerator[None]:
        try:
            yield
        except (EngineError, EngineUnreachable) as error:
            raise build_failure(error, doing) from error


def _ceilings() -> dict[str, int]:
    hard = {name: resource.getrlimit(number)[1] for name, number in CEILINGS.items()}
    finite = {name: value for name, value in hard.items() if value != resource.RLIM_INFINITY}
    return {**finite, "nproc": min(finite.get("nproc", MAX_PODMAN_PROCESSES), MAX_PODMAN_PROCESSES)}


def _build_of(found: ContainerState) -> int:
    text = found.labels.get(BUILD_LABEL, "")
    return int(text) if text.isdecimal() else 0


def _check_not_stale(found: ContainerState | None, build: int) -> None:
    if found is not None and _build_of(found) > build:
        raise BuildFailed("A newer build of the workspace has replaced this one.")


def _mark_filled(paths: WorkspacePaths, made: str) -> None:
    temporary = paths.root / "home-volume.new"
    with temporary.open("w") as file:
        file.write(made)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(paths.root / "home-volume")


def _is_filled(paths: WorkspacePaths, home: EngineVolume) -> bool:
    """Known by a label: the time at which Docker says that a volume was created changes with the
    files in it. One of an earlier version has no label, and its files may be all there is."""
    try:
        marked = (paths.root / "home-volume").read_text()
    except OSError:
        return False
    return home.labels.get(HOME_LABEL, marked) == marked
