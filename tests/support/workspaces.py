"""Workspaces for tests: values with defaults for what a test does not care about, and rows
written by the product's own statements."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from uuid import UUID

import msgspec

from chatd.domain.chat.row import Fence
from chatd.domain.ids import ChatId, WorkerId, WorkspaceId
from chatd.domain.workspace.agent_api import ContextResource, RunnerDisconnected, WorkspaceContext
from chatd.domain.workspace.entities import (
    AgentId,
    AgentRow,
    AgentSpec,
    Build,
    BuildId,
    Endpoint,
    FieldProblem,
    Template,
    TemplateId,
    TemplateSpec,
    TemplateVersion,
    VersionId,
    Workspace,
)
from chatd.domain.workspace.runners import BuildPlace, RunnerId
from chatd.store.database.conn import Conn
from chatd.store.workspace import builds, templates, workspaces
from chatd.workspaces.build_backend import Backend
from chatd.workspaces.tunnels.byte_streams import ByteStream
from tests.support.factories import AT, HARNESS, OWNER, WORKER
from tests.support.outcomes import present

TEMPLATE = TemplateId(UUID(int=0x7E))
VERSION = VersionId(UUID(int=0x7E1))
HOST = "this-host"
BACKEND = "sandbox"


def template(**columns: object) -> Template:
    row = Template(
        id=TEMPLATE,
        name="scratch",
        backend=BACKEND,
        active_version_id=VERSION,
        created_at=AT,
        updated_at=AT,
    )
    return msgspec.structs.replace(row, **columns)


def version(**columns: object) -> TemplateVersion:
    row = TemplateVersion(id=VERSION, template_id=TEMPLATE, spec=TemplateSpec(), created_at=AT)
    return msgspec.structs.replace(row, **columns)


def workspace_id(number: int) -> WorkspaceId:
    return WorkspaceId(UUID(int=0xA000 + number))


def build_id(number: int) -> BuildId:
    return BuildId(UUID(int=0xB000 + number))


def agent_id(number: int) -> AgentId:
    return AgentId(UUID(int=0xC000 + number))


async def stored_context(conn: Conn, agent: AgentId) -> WorkspaceContext:
    """The latest context that the agent has reported, pinned to no chat."""
    row = await conn.fetchrow(
        """
        SELECT version, hash, directory, os, (
            SELECT coalesce(json_agg(r ORDER BY r.position), '[]')
            FROM agent_context_resources r WHERE r.agent_id = s.agent_id) AS resources
        FROM agent_context_snapshots s WHERE s.agent_id = $1""",
        agent,
    )
    assert row is not None
    resources = msgspec.json.decode(row["resources"], type=tuple[ContextResource, ...])
    columns = {name: row[name] for name in ("version", "hash", "directory", "os")}
    return WorkspaceContext(**columns, resources=resources)


def workspace(**columns: object) -> Workspace:
    row = Workspace(
        id=workspace_id(1),
        owner_id=OWNER,
        template_id=TEMPLATE,
        name="work",
        number=1,
        host_id=HOST,
        last_used_at=AT,
        created_at=AT,
    )
    return msgspec.structs.replace(row, **columns)


def build(**columns: object) -> Build:
    """The first start, succeeded."""
    row = Build(
        id=build_id(1),
        workspace_id=workspace_id(1),
        build_number=1,
        transition="start",
        template_version_id=VERSION,
        status="succeeded",
        initiator_id=OWNER,
        created_at=AT,
    )
    return msgspec.structs.replace(row, **columns)


def agent(number: int = 1, **columns: object) -> AgentRow:
    """An agent that has just connected."""
    row = AgentRow(
        id=agent_id(number),
        build_id=build_id(1),
        workspace_id=workspace_id(1),
        name=f"agent{number}",
        lifecycle="ready",
        created_at=AT - timedelta(minutes=10),
        first_connected_at=AT - timedelta(minutes=9),
        last_connected_at=AT,
    )
    return msgspec.structs.replace(row, **columns)


def agent_spec(number: int = 1, **columns: object) -> AgentSpec:
    row = AgentSpec(id=agent_id(number), name=f"agent{number}")
    return msgspec.structs.replace(row, **columns)


def new_workspace(number: int = 1, **columns: object) -> workspaces.NewWorkspace:
    row = workspaces.NewWorkspace(
        id=workspace_id(number),
        build_id=build_id(number),
        owner_id=OWNER,
        template_id=TEMPLATE,
        version_id=VERSION,
        name=f"work-{number}",
        host_id=HOST,
    )
    return msgspec.structs.replace(row, **columns)


def new_build(number: int, **columns: object) -> builds.NewBuild:
    """A build of the first workspace, after its first build."""
    row = builds.NewBuild(
        id=build_id(number),
        workspace_id=workspace_id(1),
        after=1,
        transition="stop",
        version_id=VERSION,
        initiator_id=OWNER,
    )
    return msgspec.structs.replace(row, **columns)


async def insert_template(conn: Conn, **columns: object) -> Template:
    put = templates.TemplateUpsert(template=template(**columns), version=version())
    return present(await templates.upsert_template(conn, put))


async def insert_workspace(conn: Conn, number: int = 1, **columns: object) -> Workspace:
    """A workspace with a pending first build."""
    await insert_template(conn)
    return (await workspaces.create(conn, HARNESS, new_workspace(number, **columns))).workspace


async def insert_workspace_for(
    conn: Conn, chat_id: ChatId, fence: Fence, number: int = 1, **columns: object
) -> workspaces.CreatedWorkspace:
    new = new_workspace(number, **columns)
    return await workspaces.create(conn, HARNESS, new, chat_id=chat_id, fence=fence)


def wanted(
    *,
    limit: int = 10,
    hosts: Sequence[str] = (HOST,),
    backends: Sequence[str] = (BACKEND,),
    **columns: object,
) -> builds.AcquireBuilds:
    row = builds.AcquireBuilds(
        worker_id=WORKER,
        places=[
            BuildPlace(runner_id=RunnerId(host), backend=backend)
            for host in hosts
            for backend in backends
        ],
        lease_s=30,
        free_slots={"start": limit, "stop": limit, "delete": limit},
    )
    return msgspec.structs.replace(row, **columns)


async def no_other_host(agent_id: AgentId, endpoint: Endpoint) -> ByteStream:
    """For a connector that reaches the agents of its own host only."""
    del agent_id, endpoint
    raise RunnerDisconnected("The workspace is on a machine that is not connected.")


class OwnHost:
    """Satisfies `NewWorkspacePlaces`: all workspaces are built here."""

    def __init__(self, host_id: str, backend: Backend) -> None:
        self._host_id = host_id
        self._backend = backend

    def new_host(self, backend: str, spec: TemplateSpec) -> str | None:
        del backend, spec
        return self._host_id

    async def find_problems(
        self, kind: str, spec: TemplateSpec, values: Mapping[str, str]
    ) -> Sequence[FieldProblem]:
        del kind
        return await self._backend.validate(spec, values)


def hold(taken: Build) -> builds.BuildLease:
    assert taken.worker_id is not None
    return builds.BuildLease(id=taken.id, worker_id=taken.worker_id, attempt=taken.attempt)


async def finish(
    conn: Conn, ended: builds.BuildResult | None = None, worker: WorkerId = WORKER
) -> Build:
    """Acquire the only build and finish it; by default it succeeds with one agent."""
    [taken] = await builds.acquire_builds(conn, wanted(worker_id=worker))
    if ended is None:
        agents = (agent_spec(taken.build.build_number),)
        starts = taken.build.transition == "start"
        ended = builds.BuildResult(status="succeeded", agents=agents if starts else ())
    return present(await builds.finish_build(conn, hold(taken.build), ended))


async def run_workspace(conn: Conn, number: int = 1, **columns: object) -> Workspace:
    """A workspace whose first build has succeeded with one agent."""
    workspace = await insert_workspace(conn, number, **columns)
    await finish(conn)
    return workspace


async def age_builds(conn: Conn, seconds: float) -> None:
    """Make all times of builds older, and deadlines nearer."""
    await conn.execute(
        """UPDATE workspace_builds SET created_at = created_at - $1 * interval '1 s',
               started_at = started_at - $1 * interval '1 s',
               heartbeat_at = heartbeat_at - $1 * interval '1 s',
               completed_at = completed_at - $1 * interval '1 s',
               deadline = deadline - $1 * interval '1 s',
               max_deadline = max_deadline - $1 * interval '1 s'""",
        float(seconds),
    )


async def agents_of(conn: Conn, which: WorkspaceId) -> Sequence[AgentRow]:
    """The agents of its latest build."""
    seen = present(await workspaces.load_snapshot(conn, HARNESS, which))
    return seen.agents
