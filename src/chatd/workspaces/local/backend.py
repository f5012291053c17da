"""The local backend: workspaces as sandboxes on the server's own host.

Owns the order of steps of a build. Everything it makes has a name that follows from the workspace,
so a build that was begun by a server that died is simply done again. Processes belong to the
supervisor and outlive this server; a build that finds its workspace running has nothing to do.
"""

import asyncio
import contextlib
import platform
import shutil
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from chatd.domain.errors import ChatdError, Unavailable
from chatd.domain.ids import WorkspaceId
from chatd.domain.ports import Clock
from chatd.domain.workspace.entities import (
    AgentId,
    AgentRow,
    AgentSpec,
    BackendState,
    EmptySeed,
    Endpoint,
    FieldProblem,
    TemplateSpec,
    Workspace,
)
from chatd.workspaces.backend import BuildContext, BuildFailed
from chatd.workspaces.local import accounts, checks, ladder
from chatd.workspaces.local.expansion import expand
from chatd.workspaces.local.kit import Kit, make_kit
from chatd.workspaces.local.ladder import Isolation
from chatd.workspaces.local.layout import Layout, Spot, make_spot
from chatd.workspaces.local.levels import LADDER, Level, namespaced
from chatd.workspaces.local.old_kits import Hold, remove_unused
from chatd.workspaces.local.opening import (
    AgentStart,
    Opening,
    alone,
    check_cancelled,
    fill_home,
    order_for,
    run_startup,
)
from chatd.workspaces.local.recipes import Room, view
from chatd.workspaces.local.removal import discard, empty_trash
from chatd.workspaces.local.seeds import Grounds
from chatd.workspaces.local.supervision import Supervision

AGENT: Final = "main"


class LocalConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`roots`: directories of the host that templates may copy, clone or show. `allow_unsafe`:
    run workspaces even where nothing keeps them apart from the host. `levels`: which ways to keep
    them apart may be used, best first."""

    data_dir: Path
    host_id: str
    roots: tuple[Path, ...] = ()
    allow_unsafe: bool = False
    levels: tuple[Level, ...] = LADDER
    supervisor_idle_s: float = 60.0
    disk_interval_s: float = 3.0


class LocalBackend:
    """Satisfies `workspaces.backend.Backend`. `dial_key` gives the key of an agent."""

    def __init__(
        self,
        config: LocalConfig,
        *,
        agent: bytes,
        dial_key: Callable[[AgentId], bytes],
        clock: Clock,
    ) -> None:
        self._config = config
        self._agent = agent
        self._dial_key = dial_key
        self._layout = Layout(data_dir=config.data_dir)
        self._grounds = Grounds(roots=config.roots, closed=config.data_dir)
        self._supervision = Supervision(
            self._layout.supervisor, clock, idle_s=config.supervisor_idle_s
        )
        self._numbers = ladder.numbers_for(config.data_dir)
        self._prepared: tuple[Isolation, Kit] | None = None
        self._hold: Hold | None = None
        self._preparing = asyncio.Lock()

    @property
    def kind(self) -> str:
        return "local"

    async def prepare(self) -> Isolation:
        """Try what this host can do and say so aloud. Called at start, else by the first build."""
        async with self._preparing:
            if self._prepared is None:
                with in_words("This host cannot make workspaces"):
                    self._prepared = await self._try_host()
                ladder.announce(self._prepared[0])
            return self._prepared[0]

    async def _try_host(self) -> tuple[Isolation, Kit]:
        await asyncio.to_thread(self._layout.make, passable=False)
        kit, self._hold = await asyncio.to_thread(make_kit, self._layout.kits, self._agent)
        with contextlib.suppress(ChatdError, OSError):  # Nobody needs that done now.
            await remove_unused(self._layout.kits, kit.path.name, self._supervision.mentioned)
        isolation = await ladder.climb(
            self._layout,
            kit,
            self._numbers,
            allow_unsafe=self._config.allow_unsafe,
            levels=self._config.levels,
        )
        if isolation.level is not None and not namespaced(isolation.level):
            await asyncio.to_thread(self._layout.make, passable=True)
        return isolation, kit

    async def validate(
        self, spec: TemplateSpec, params: Mapping[str, str]
    ) -> Sequence[FieldProblem]:
        expanded = expand(spec, params)
        return await asyncio.to_thread(lambda: tuple(checks.problems(expanded, self._grounds)))

    async def start(self, context: BuildContext) -> Sequence[AgentSpec]:
        level, kit = await self._ready()
        workspace = context.workspace.id
        spec = await self._checked(context)
        build = context.build.build_number
        found = await self._supervision.inspect(str(workspace))
        spot = self._layout.spot(workspace)
        with in_words("The workspace cannot be made"):
            room = await asyncio.to_thread(self._room, level, kit, spec, spot, workspace)
        opening = Opening(
            context=context,
            spec=spec,
            level=level,
            room=room,
            spot=spot,
            directory=str(Path(view(level, room).home, spec.directory)),
            disk_interval_s=self._config.disk_interval_s,
        )
        if found is None or found.build != build:
            await self._supervision.stop(str(workspace), build)
            with in_words("The workspace cannot be made"):
                async with alone(opening):
                    await fill_home(opening, trash=self._layout.trash, grounds=self._grounds)
                    await run_startup(opening)
            await self._launch(opening)
        return [self._agent_spec(context, level, opening.directory)]

    async def stop(self, context: BuildContext) -> None:
        context.log("stop", "Ending all processes")
        await self._supervision.stop(str(context.workspace.id), context.build.build_number)

    async def delete(self, context: BuildContext) -> None:
        await self.stop(context)
        context.log("delete", "Removing all files")
        await self._remove_files(context.workspace.id)

    async def inspect(self, workspace: Workspace) -> BackendState:
        if workspace.host_id not in (None, self._config.host_id):
            return BackendState(state="unknown", detail=f"it is on host {workspace.host_id}")
        try:
            found = await self._supervision.inspect(str(workspace.id))
        except (Unavailable, BuildFailed) as error:
            return BackendState(state="unknown", detail=error.message)
        if found is not None:
            return BackendState(state="running", detail=found.detail)
        there = await asyncio.to_thread(self._layout.spot(workspace.id).root.exists)
        return BackendState(state="stopped" if there else "gone")

    async def endpoints(self, workspace: Workspace, agent: AgentRow) -> Sequence[Endpoint]:
        del agent
        return self._endpoints(workspace.id)

    async def workspaces(self) -> Sequence[WorkspaceId]:
        return await asyncio.to_thread(self._layout.present)

    async def running(self) -> int:
        """How many sandboxes there are, whoever has started them."""
        return len(await self._supervision.running())

    async def remove(self, workspace_id: WorkspaceId) -> None:
        found = await self._supervision.inspect(str(workspace_id))
        if found is not None:
            await self._supervision.stop(str(workspace_id), found.build)
        await self._remove_files(workspace_id)

    async def _ready(self) -> tuple[Level, Kit]:
        await self.prepare()
        assert self._prepared is not None
        isolation, kit = self._prepared
        return ladder.require(isolation), kit

    def _room(
        self, level: Level, kit: Kit, spec: TemplateSpec, spot: Spot, workspace: WorkspaceId
    ) -> Room:
        spot.root.mkdir(mode=0o700, exist_ok=True)
        uid = None
        if level != "bwrap" and self._numbers is not None:
            uid = accounts.account_for(self._layout, spot, self._numbers)
        make_spot(spot, uid=uid, passable=not namespaced(level))
        return Room(
            name=str(workspace),
            home=spot.home,
            run=spot.run,
            kit=kit,
            uid=uid,
            limits=spec.limits,
            network=spec.network == "full",
            mounts=spec.mounts,
            env=spec.env,
        )

    async def _checked(self, context: BuildContext) -> TemplateSpec:
        """What a home was once filled from does not matter any more."""
        spec = expand(context.spec, context.params)
        if await asyncio.to_thread(self._layout.spot(context.workspace.id).home.exists):
            spec = msgspec.structs.replace(spec, seed=EmptySeed())
        for problem in await self.validate(spec, {}):
            raise BuildFailed(f"The template cannot be used here: {problem.field} {problem.detail}")
        return spec

    async def _launch(self, opening: Opening) -> None:
        context = opening.context
        check_cancelled(context)
        context.log("agent", f"Starting the agent, isolation {opening.level}")
        agent = AgentStart(
            id=context.agent_id(AGENT),
            key=self._dial_key(context.agent_id(AGENT)),
            socket=str(self._layout.socket(context.workspace.id)),
        )
        reply = await self._supervision.start(order_for(opening, agent))
        if not reply.ready:
            await self._supervision.stop(str(context.workspace.id), context.build.build_number)
            said = reply.log.strip().splitlines()[-1:] or ["it said nothing"]
            raise BuildFailed(f"The workspace agent does not start: {said[0]}")

    def _agent_spec(self, context: BuildContext, level: Level, directory: str) -> AgentSpec:
        return AgentSpec(
            id=context.agent_id(AGENT),
            name=AGENT,
            arch=platform.machine(),
            directory=directory,
            endpoints=self._endpoints(context.workspace.id),
            isolation=level,
        )

    def _endpoints(self, workspace: WorkspaceId) -> tuple[Endpoint, ...]:
        path = str(self._layout.socket(workspace))
        return (Endpoint(kind="unix", path=path, host_id=self._config.host_id),)

    async def _remove_files(self, workspace: WorkspaceId) -> None:
        await asyncio.to_thread(self._layout.make, passable=False)
        spot = self._layout.spot(workspace)
        with in_words("The files cannot be removed"):
            await asyncio.to_thread(discard, spot.root, self._layout.trash)
            await asyncio.to_thread(empty_trash, self._layout.trash)


@contextlib.contextmanager
def in_words(what: str) -> Generator[None]:
    """A full disk or a lost permission is for people to put right."""
    try:
        yield
    except (OSError, shutil.Error) as error:
        raise BuildFailed(f"{what}: {str(error)[:500]}") from error
