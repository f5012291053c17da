"""The local backend: workspaces as sandboxes on the server's own host.

Owns the steps of a build. All names follow from the workspace, so that another server can repeat a
build whose server died. Processes belong to the supervisor and outlive this server; a build that
finds its sandbox running does nothing.
"""

import asyncio
import contextlib
import platform
import shutil
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec

from chatd.domain.errors import ChatdError, Unavailable
from chatd.domain.ids import WorkspaceId
from chatd.domain.ports import Clock
from chatd.domain.workspace.entities import (
    AgentSpec,
    BackendState,
    DirectorySeed,
    EffectiveLimits,
    EmptySeed,
    Endpoint,
    FieldProblem,
    GitSeed,
    Mount,
    ResourceLimits,
    Seed,
    TemplateSpec,
    Workspace,
)
from chatd.domain.workspace.runners import DIRECTORY_PARAMETER, BackendKind
from chatd.domain.workspace.template_definition import MAX_ENV_BYTES, MAX_MOUNTS, PLACEHOLDER
from chatd.workspaces.build_backend import AGENT_NAME, BuildContext, BuildFailed
from chatd.workspaces.local import isolation, workspace_dirs
from chatd.workspaces.local.here import HereView, explain_refusal
from chatd.workspaces.local.kit import WorkspaceKit, build_kit
from chatd.workspaces.local.sandbox_command import (
    INSIDE_HOME,
    INSIDE_KIT,
    INSIDE_RUN,
    ISOLATION_LEVELS,
    IsolationLevel,
    SandboxView,
    has_namespaces,
    inside_paths,
)
from chatd.workspaces.local.seeds import (
    GIT_CLONE_TIMEOUT_S,
    AllowedPaths,
    allowed_directory,
    check_url,
    local_path,
)
from chatd.workspaces.local.supervisor_client import SupervisorClient, SupervisorReply
from chatd.workspaces.local.workspace_dirs import (
    LocalLayout,
    WorkspacePaths,
    assign_uid,
    create_workspace_dirs,
)
from chatd.workspaces.local.workspace_setup import (
    AgentStart,
    WorkspaceSetup,
    build_order,
    check_cancelled,
    check_programs,
    exclusive_lock,
    fill_home,
    run_startup,
)
from chatd.workspaces.network.inside import INSIDE_NETWORK
from chatd.workspaces.network.workspace_networks import NetworkPolicy, WorkspaceNetworks

# Templates: expands parameters, and finds what this backend cannot run.

SYSTEM_PATHS: Final = ("/proc", "/dev", "/tmp", "/usr", "/etc")
RESERVED_PATHS: Final = (INSIDE_HOME, INSIDE_RUN, INSIDE_KIT, INSIDE_NETWORK, *SYSTEM_PATHS)


def expand_parameters(spec: TemplateSpec, params: Mapping[str, str]) -> TemplateSpec:
    """Replace `${name}` in the seed and in environment values. Unknown names stay unchanged."""
    env = {name: _expand(value, params) for name, value in spec.env.items()}
    return msgspec.structs.replace(spec, env=env, seed=_expand_seed(spec.seed, params))


def _expand_seed(seed: Seed, params: Mapping[str, str]) -> Seed:
    match seed:
        case GitSeed():
            url, ref = _expand(seed.url, params), _expand(seed.ref, params)
            return msgspec.structs.replace(seed, url=url, ref=ref)
        case DirectorySeed():
            return DirectorySeed(path=_expand(seed.path, params))
        case _:
            return seed


def _expand(text: str, params: Mapping[str, str]) -> str:
    return PLACEHOLDER.sub(lambda found: params.get(found[1], found[0]), text)


def find_problems(spec: TemplateSpec, allowed: AllowedPaths) -> Iterator[FieldProblem]:
    """Check a template with expanded parameters."""
    yield from _check_seed(spec.seed, allowed)
    directory = PurePosixPath(spec.directory)
    if directory.is_absolute() or ".." in directory.parts:
        yield FieldProblem(field="directory", detail="must be inside the home directory")
    if len(spec.mounts) > MAX_MOUNTS:
        yield FieldProblem(field="mounts", detail=f"at most {MAX_MOUNTS}")
    for mount in spec.mounts[:MAX_MOUNTS]:
        yield from _check_mount(mount, allowed)
    yield from _check_env(spec.env)


def _check_seed(seed: Seed, allowed: AllowedPaths) -> Iterator[FieldProblem]:
    path = None
    if isinstance(seed, DirectorySeed):
        path = seed.path
    elif isinstance(seed, GitSeed) and seed.url:
        if (problem := check_url(seed.url)) is not None:
            yield FieldProblem(field="seed.url", detail=problem)
        path = local_path(seed.url)
    if path is not None:
        yield from _check_path("seed", path, allowed)


def _check_mount(mount: Mount, allowed: AllowedPaths) -> Iterator[FieldProblem]:
    target = PurePosixPath(mount.target)
    if not target.is_absolute() or ".." in target.parts or target == PurePosixPath("/"):
        yield FieldProblem(field="mounts", detail=f"{mount.target!r} is not an absolute path")
    elif any(target.is_relative_to(path) for path in RESERVED_PATHS):
        yield FieldProblem(field="mounts", detail=f"{mount.target} is used by the workspace itself")
    yield from _check_path("mounts", mount.source, allowed)


def _check_path(field: str, path: str, allowed: AllowedPaths) -> Iterator[FieldProblem]:
    try:
        allowed_directory(path, allowed)
    except BuildFailed as error:
        yield FieldProblem(field=field, detail=error.message)


def _check_env(env: Mapping[str, str]) -> Iterator[FieldProblem]:
    if sum(len(name) + len(value) for name, value in env.items()) > MAX_ENV_BYTES:
        yield FieldProblem(field="env", detail=f"more than {MAX_ENV_BYTES} bytes")
    for name, value in env.items():
        if not name or "=" in name or "\0" in name + value:
            yield FieldProblem(field="env", detail=f"{name!r} cannot be set")


# The backend


class LocalConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`roots`: host directories that templates may copy, clone or mount.
    `allow_unsafe`: run workspaces even without isolation from the host.
    `levels`: the isolation levels to try, best first.
    `own_account`: workspaces run under the account of this process, also if it is root.
    `here`: all workspaces work in this directory; templates and servers cannot name another one."""

    data_dir: Path
    host_id: str
    kind: BackendKind = "sandbox"
    own_account: bool = False
    here: HereView | None = None
    roots: tuple[Path, ...] = ()
    allow_unsafe: bool = False
    levels: tuple[IsolationLevel, ...] = ISOLATION_LEVELS
    supervisor_idle_s: float = 60.0
    disk_interval_s: float = 3.0
    clone_timeout_s: float = GIT_CLONE_TIMEOUT_S


def machine_config(data_dir: Path, runner_id: str, here: HereView | None = None) -> LocalConfig:
    """Workspaces without isolation, under the account of this process."""
    return LocalConfig(
        data_dir=data_dir,
        host_id=runner_id,
        kind="machine",
        own_account=True,
        here=here,
        allow_unsafe=True,
        levels=("none",),
    )


def here_config(data_dir: Path, runner_id: str, here: HereView) -> LocalConfig:
    """Sandboxes that work in a directory of the person who runs this process, under their account:
    another one could not write there. Weaker levels would not protect the rest of the machine."""
    return LocalConfig(
        data_dir=data_dir, host_id=runner_id, own_account=True, here=here, levels=("bwrap",)
    )


class LocalBackend:
    """Implements `Backend`."""

    def __init__(
        self,
        config: LocalConfig,
        *,
        agent: bytes,
        clock: Clock,
        networks: WorkspaceNetworks,
    ) -> None:
        self._config = config
        self._agent = agent
        self.networks = networks
        self._layout = LocalLayout(data_dir=config.data_dir)
        self._allowed = AllowedPaths(roots=config.roots, closed=config.data_dir)
        self._supervisor = SupervisorClient(
            self._layout.supervisor, clock, idle_s=config.supervisor_idle_s
        )
        self._uids = None if config.own_account else isolation.host_uid_range(config.data_dir)
        self._prepared: tuple[isolation.IsolationReport, WorkspaceKit] | None = None
        self._kit_lock: workspace_dirs.KitLock | None = None
        self._preparing = asyncio.Lock()

    @property
    def kind(self) -> str:
        return self._config.kind

    @property
    def level(self) -> str:
        """The level; empty until it is detected, and if this host cannot run workspaces."""
        return "" if self._prepared is None else self._prepared[0].level or ""

    @property
    def detected(self) -> isolation.IsolationReport | None:
        """None until it is detected."""
        return None if self._prepared is None else self._prepared[0]

    def is_agent_socket(self, path: str) -> bool:
        """Whether it is the socket of a workspace here, so that others may be connected to it."""
        return self._layout.is_socket(path)

    async def prepare(self) -> isolation.IsolationReport:
        """Detect and log the isolation level, once: at start, else in the first build."""
        return (await self._prepare())[0]

    async def _prepare(self) -> tuple[isolation.IsolationReport, WorkspaceKit]:
        async with self._preparing:
            if self._prepared is None:
                with describe_os_error("This host cannot run workspaces"):
                    self._prepared = await self._probe_host()
                isolation.log_isolation(self._prepared[0])
            return self._prepared

    async def _probe_host(self) -> tuple[isolation.IsolationReport, WorkspaceKit]:
        await asyncio.to_thread(self._layout.create_dirs, reached_by_host_path=False)
        kit, self._kit_lock = await asyncio.to_thread(build_kit, self._layout.kits, self._agent)
        with contextlib.suppress(ChatdError, OSError):  # The next start tries again.
            await workspace_dirs.remove_unused_kits(
                self._layout.kits, kit.path.name, self._supervisor.words_in_use
            )
        report = await isolation.detect_isolation(
            self._layout,
            kit,
            self._uids,
            allow_unsafe=self._config.allow_unsafe,
            levels=self._config.levels,
            own_account=self._config.own_account,
        )
        if report.level is not None and not has_namespaces(report.level):
            await asyncio.to_thread(self._layout.create_dirs, reached_by_host_path=True)
        return report, kit

    async def validate(
        self, spec: TemplateSpec, params: Mapping[str, str]
    ) -> Sequence[FieldProblem]:
        return await self._find_problems(expand_parameters(spec, params), params)

    async def _find_problems(
        self, expanded: TemplateSpec, params: Mapping[str, str]
    ) -> Sequence[FieldProblem]:
        return await asyncio.to_thread(
            lambda: (
                *_check_here(self._config, params),
                *find_problems(expanded, self._allowed),
            )
        )

    async def start(self, context: BuildContext) -> Sequence[AgentSpec]:
        report, kit = await self._prepare()
        level = report.level
        if level is None:
            raise BuildFailed(f"This host cannot run workspaces: {report.text}")
        workspace = context.workspace.id
        spec = await self._checked_spec(context)
        build = context.build.build_number
        found = await self._supervisor.inspect(str(workspace))
        paths = self._layout.workspace_paths(workspace)
        _check_level(level, spec)
        with describe_os_error("The workspace cannot be created"):
            view = await asyncio.to_thread(self._create_view, level, kit, spec, paths)
            if spec.network == "allow" and self._config.here is None:
                policy = NetworkPolicy(allow=spec.allow, uid=view.uid, trusts_authority=True)
                proxy = await self.networks.open(workspace, policy, context.credentials)
                view = msgspec.structs.replace(view, proxy=proxy)
            else:
                await self.networks.close(workspace)
        setup = WorkspaceSetup(
            context=context,
            spec=spec,
            level=level,
            view=view,
            paths=paths,
            directory=_working_directory(level, view, spec),
            disk_interval_s=self._config.disk_interval_s,
            clone_timeout_s=self._config.clone_timeout_s,
        )
        if found is None or found.build != build:
            await self._supervisor.stop(str(workspace), build)
            with describe_os_error("The workspace cannot be created"):
                async with exclusive_lock(paths, context):
                    await fill_home(
                        setup,
                        trash=self._layout.trash,
                        allowed=self._allowed,
                        proxy=lambda seed: self.networks.clone_proxy(
                            spec, seed, context.credentials
                        ),
                    )
                    await run_startup(setup)
                    await check_programs(setup)
            found = await self._start_agent(setup)
        if await asyncio.to_thread(isolation.lacks_filter, found.pid, level):
            isolation.log_old_supervisor(str(workspace))
            context.log("agent", isolation.OLD_SUPERVISOR_TEXT, "warning")
        agent = AgentSpec(
            id=context.agent_id(AGENT_NAME),
            name=AGENT_NAME,
            arch=platform.machine(),
            directory=setup.directory,
            endpoints=self._endpoints(workspace),
            isolation=level,
            network="allow" if view.proxy is not None else "full" if view.network else "none",
            limits=effective_limits(spec.limits, found.controllers),
        )
        return [agent]

    async def stop(self, context: BuildContext) -> None:
        context.log("stop", "Ending all processes")
        await self._supervisor.stop(str(context.workspace.id), context.build.build_number)
        await self.networks.close(context.workspace.id)

    async def delete(self, context: BuildContext) -> None:
        await self.stop(context)
        context.log("delete", "Removing all files")
        await self._remove_files(context.workspace.id)

    async def inspect(self, workspace: Workspace) -> BackendState:
        if workspace.host_id not in (None, self._config.host_id):
            return BackendState(state="unknown", detail=f"it is on host {workspace.host_id}")
        try:
            found = await self._supervisor.inspect(str(workspace.id))
        except (Unavailable, BuildFailed) as error:
            return BackendState(state="unknown", detail=error.message)
        if found is not None:
            return BackendState(state="running", detail=found.detail)
        root = self._layout.workspace_paths(workspace.id).root
        return BackendState(state="stopped" if await asyncio.to_thread(root.exists) else "gone")

    async def workspaces(self) -> Sequence[WorkspaceId]:
        return await asyncio.to_thread(self._layout.list_workspaces)

    async def running(self) -> int:
        """The number of sandboxes of this data directory, started by any server."""
        return len(await self._supervisor.list_running())

    async def remove(self, workspace_id: WorkspaceId) -> None:
        found = await self._supervisor.inspect(str(workspace_id))
        if found is not None:
            await self._supervisor.stop(str(workspace_id), found.build)
        await self._remove_files(workspace_id)

    def _create_view(
        self, level: IsolationLevel, kit: WorkspaceKit, spec: TemplateSpec, paths: WorkspacePaths
    ) -> SandboxView:
        paths.root.mkdir(mode=0o700, exist_ok=True)
        uid = None
        if level != "bwrap" and self._uids is not None:
            uid = assign_uid(self._layout, paths, self._uids)
        create_workspace_dirs(paths, uid=uid, reached_by_host_path=not has_namespaces(level))
        here = self._config.here
        return SandboxView(
            name=paths.root.name,
            home=paths.home,
            run=paths.run,
            kit=kit,
            uid=uid,
            limits=spec.limits,
            network=spec.network == "full" if here is None else here.network,
            mounts=spec.mounts,
            env=spec.env,
            here=here,
        )

    async def _checked_spec(self, context: BuildContext) -> TemplateSpec:
        """Check the template, but not the seed of an existing home, which is not used again."""
        spec = expand_parameters(context.spec, context.params)
        home = self._layout.workspace_paths(context.workspace.id).home
        if await asyncio.to_thread(home.exists):
            spec = msgspec.structs.replace(spec, seed=EmptySeed())
        for problem in await self._find_problems(spec, context.params):
            raise BuildFailed(f"The template cannot be used here: {problem.field} {problem.detail}")
        return spec

    async def _start_agent(self, setup: WorkspaceSetup) -> SupervisorReply:
        context = setup.context
        check_cancelled(context)
        context.log("agent", f"Starting the agent, isolation {setup.level}")
        agent_id = context.agent_id(AGENT_NAME)
        socket = str(self._layout.socket(context.workspace.id))
        agent = AgentStart(id=agent_id, key=context.agent_key(agent_id), socket=socket)
        reply = await self._supervisor.start(build_order(setup, agent))
        if not reply.ready:
            await self._supervisor.stop(str(context.workspace.id), context.build.build_number)
            output = reply.log.strip().splitlines()[-1:] or ["it printed nothing"]
            raise BuildFailed(f"The workspace agent does not start: {output[0]}")
        return reply

    def _endpoints(self, workspace: WorkspaceId) -> tuple[Endpoint, ...]:
        path = str(self._layout.socket(workspace))
        return (Endpoint(kind="unix", path=path, host_id=self._config.host_id),)

    async def _remove_files(self, workspace: WorkspaceId) -> None:
        await self.networks.remove(workspace)
        await asyncio.to_thread(self._layout.create_dirs, reached_by_host_path=False)
        root = self._layout.workspace_paths(workspace).root
        with describe_os_error("The files cannot be removed"):
            await asyncio.to_thread(workspace_dirs.move_to_trash, root, self._layout.trash)
            await asyncio.to_thread(workspace_dirs.empty_trash, self._layout.trash)


def _check_here(config: LocalConfig, params: Mapping[str, str]) -> Iterator[FieldProblem]:
    """Refuse other directories: the person who started the runner has chosen this one."""
    here = config.here
    if here is None:
        return
    if params.get(DIRECTORY_PARAMETER) != str(here.directory):
        detail = f"this runner works in {here.directory} only"
        yield FieldProblem(field=DIRECTORY_PARAMETER, detail=detail)
    if config.kind == "sandbox" and (refusal := explain_refusal(here)) is not None:
        yield FieldProblem(field=DIRECTORY_PARAMETER, detail=refusal)


def _check_level(level: IsolationLevel, spec: TemplateSpec) -> None:
    """Raises BuildFailed if nothing would keep commands from bypassing the proxy."""
    if spec.network == "allow" and not has_namespaces(level):
        raise BuildFailed(
            f'The network "allow" needs bubblewrap, and this host has the isolation {level}. An '
            'administrator can install bubblewrap, or give the template the network "none".'
        )


def _working_directory(level: IsolationLevel, view: SandboxView, spec: TemplateSpec) -> str:
    if view.here is not None:
        return str(view.here.directory)
    return str(Path(inside_paths(level, view).home, spec.directory))


def effective_limits(limits: ResourceLimits, controllers: Collection[str]) -> EffectiveLimits:
    """Without control groups memory is limited per process, and the weight is not enforced."""
    wanted = msgspec.structs.asdict(limits)
    per_process = ["file_bytes", "open_files"]
    if "memory" not in controllers:
        per_process.append("memory_bytes")
    if "cpu" not in controllers:
        wanted["cpu_weight"] = 0
    return EffectiveLimits(**wanted, per_process=tuple(per_process))


@contextlib.contextmanager
def describe_os_error(problem: str) -> Generator[None]:
    """Report a full disk or a missing permission as a failed build that an operator can repair."""
    try:
        yield
    except (OSError, shutil.Error) as error:
        raise BuildFailed(f"{problem}: {str(error)[:500]}") from error
