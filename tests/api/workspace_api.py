"""An API server with workspaces: a template, and a record of the calls to its control."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

import msgspec
from msgspec.structs import replace

from chatd.clock import SystemClock
from chatd.domain.chat.row import Chat
from chatd.domain.ids import ChatId, WorkspaceId
from chatd.domain.workspace.entities import EffectiveLimits, FieldProblem, Template, TemplateSpec
from chatd.domain.workspace.network import Refusal
from chatd.services.workspaces.runners import RunnerServices, RunnerServicesConfig
from chatd.services.workspaces.workspaces import WorkspaceControl
from chatd.store.database.pool import Pool
from chatd.store.workspace import builds
from tests.support.api.server import ApiOptions, ApiReply, ApiServer, Json, serve_api
from tests.support.factories import WORKER
from tests.support.stream_replica import env_with
from tests.support.workspaces import agent_spec, hold, insert_template, wanted
from tests.workspaces.agent_process import SECRET

HERE = "here"
LIMITS = EffectiveLimits(cpu_weight=0, per_process=("open_files",))


class RecordingWorkspaces(WorkspaceControl):
    """Has no build worker, and records the calls."""

    def __init__(self, pool: Pool) -> None:
        env, config = env_with(SystemClock()), RunnerServicesConfig(host_id=HERE, secret=SECRET)
        runners = RunnerServices(config, env, WORKER, pool, own=None)
        super().__init__(env, pool, runners, None, ttl_s=None)
        self.max_copy_bytes = 1 << 30
        self.woken = 0
        self.bound_to: list[tuple[ChatId, WorkspaceId | None]] = []
        self.refreshed: list[ChatId] = []
        self.wrong: Sequence[FieldProblem] = ()
        self.refused: Sequence[Refusal] | None = None

    def new_host(self, template: Template, spec: TemplateSpec) -> str | None:
        del template, spec
        return HERE

    def wake(self) -> None:
        self.woken += 1
        super().wake()

    async def find_problems(
        self, template: Template, spec: TemplateSpec, values: Mapping[str, str]
    ) -> Sequence[FieldProblem]:
        return self.wrong or await super().find_problems(template, spec, values)

    async def on_bound(self, chat_id: ChatId, workspace_id: WorkspaceId | None) -> None:
        self.bound_to.append((chat_id, workspace_id))
        await super().on_bound(chat_id, workspace_id)

    async def refresh_context(self, chat: Chat) -> None:
        """The agents of these tests are rows only."""
        self.refreshed.append(chat.id)

    async def refusals(self, workspace_id: WorkspaceId) -> Sequence[Refusal]:
        if self.refused is None:
            return await super().refusals(workspace_id)
        return self.refused


class WorkspaceApi:
    """An API server with the template `scratch`."""

    def __init__(self, server: ApiServer, control: RecordingWorkspaces) -> None:
        self.server = server
        self.control = control
        self.pool = server.replica.pool
        self.ask = server.ask

    async def make(self, **fields: object) -> Json:
        """A workspace with a pending first build."""
        made = await self.ask("POST", "/workspaces", {"template": "scratch", **fields})
        assert made.status == 201, made.content
        return made.json

    async def build(self, workspace: Json, transition: str, **fields: object) -> ApiReply:
        path = f"/workspaces/{workspace['id']}/builds"
        return await self.ask("POST", path, {"transition": transition, **fields})


def id_of(made: Json) -> UUID:
    return UUID(str(made["id"]))


def first_build(made: Json) -> Json:
    return msgspec.convert(made["latest_build"], Json)


async def end_build(api: WorkspaceApi, **agent: object) -> None:
    """Play the build worker: the one pending build succeeds, a start with an agent."""
    [taken] = await builds.acquire_builds(api.pool, wanted(hosts=(HERE,)))
    starts = taken.build.transition == "start"
    columns: Json = {
        "isolation": "bwrap",
        "network": "none",
        "limits": LIMITS,
        "directory": "~/x",
        **agent,
    }
    made = (agent_spec(taken.build.build_number, **columns),)
    ended = builds.BuildResult(status="succeeded", agents=made if starts else ())
    assert await builds.finish_build(api.pool, hold(taken.build), ended) is not None


@asynccontextmanager
async def workspace_api(
    dsn: str, options: ApiOptions | None = None
) -> AsyncGenerator[WorkspaceApi]:
    controls: list[RecordingWorkspaces] = []

    def make(pool: Pool) -> RecordingWorkspaces:
        controls.append(RecordingWorkspaces(pool))
        return controls[0]

    async with serve_api(dsn, replace(options or ApiOptions(), workspaces=make)) as server:
        await insert_template(server.replica.pool)
        yield WorkspaceApi(server, controls[0])
