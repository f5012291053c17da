"""Workspaces behind a front door: their rows, and who is told of what is asked for."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from uuid import UUID

import msgspec

from chatd.clock import SystemClock
from chatd.domain.chat.row import Chat
from chatd.domain.ids import ChatId, WorkspaceId
from chatd.domain.workspace.agent_api import GitChanges
from chatd.domain.workspace.entities import FieldProblem, Template, TemplateSpec
from chatd.store.conn import ConnectConfig
from chatd.store.pool import Pool
from chatd.store.workspace import build_leases
from chatd.workspace_services import LocalWorkspaceControl, WorkspaceServicesConfig
from tests.support.front import Answer, Door, Front, Json, front_door
from tests.support.streaming import env_with
from tests.support.workspaces import agent_spec, hold, plant_template, wanted
from tests.workspaces.agents import SECRET

HERE = "here"


class Told:
    """Satisfies `doors.Rooms`: those of a process that builds nothing, and what it was told."""

    def __init__(self, pool: Pool) -> None:
        config = WorkspaceServicesConfig(
            connect=ConnectConfig(dsn=""), data_dir=Path("/"), host_id=HERE, secret=SECRET
        )
        self._rooms = LocalWorkspaceControl(config, env_with(SystemClock()), pool, None)
        self.host_id = self._rooms.host_id
        self.ttl_s: str | None = None
        self.woken = 0
        self.bound_to: list[tuple[ChatId, WorkspaceId | None]] = []
        self.wrong: Sequence[FieldProblem] = ()

    def wake(self) -> None:
        self.woken += 1
        self._rooms.wake()

    async def problems(
        self, template: Template, spec: TemplateSpec, values: Mapping[str, str]
    ) -> Sequence[FieldProblem]:
        return self.wrong or await self._rooms.problems(template, spec, values)

    async def bound(self, chat_id: ChatId, workspace_id: WorkspaceId | None) -> None:
        self.bound_to.append((chat_id, workspace_id))
        await self._rooms.bound(chat_id, workspace_id)

    def git(self, chat: Chat) -> AbstractAsyncContextManager[AsyncGenerator[GitChanges]]:
        return self._rooms.git(chat)


class House:
    """A front door with a template behind it."""

    def __init__(self, front: Front, told: Told) -> None:
        self.front = front
        self.told = told
        self.pool = front.replica.pool
        self.ask = front.ask

    async def make(self, **fields: object) -> Json:
        """A workspace whose first build waits."""
        made = await self.ask("POST", "/workspaces", {"template": "scratch", **fields})
        assert made.status == 201, made.content
        return made.json

    async def build(self, workspace: Json, transition: str, **fields: object) -> Answer:
        path = f"/workspaces/{workspace['id']}/builds"
        return await self.ask("POST", path, {"transition": transition, **fields})


def id_of(made: Json) -> UUID:
    return UUID(str(made["id"]))


def first_build(made: Json) -> Json:
    return msgspec.convert(made["latest_build"], Json)


async def end_build(house: House, **agent: object) -> None:
    """Play the builder: the one build that waits ends well, with an agent if it is a start."""
    [taken] = await build_leases.acquire_builds(house.pool, wanted(hosts=(HERE,)))
    starts = taken.build.transition == "start"
    columns: Json = {"isolation": "bwrap", "directory": "~/x", **agent}
    made = (agent_spec(taken.build.build_number, **columns),)
    ended = build_leases.BuildResult(status="succeeded", agents=made if starts else ())
    assert await build_leases.finish_build(house.pool, hold(taken.build), ended) is not None


@asynccontextmanager
async def a_house(dsn: str) -> AsyncGenerator[House]:
    rooms: list[Told] = []

    def make(pool: Pool) -> Told:
        rooms.append(Told(pool))
        return rooms[0]

    async with front_door(dsn, Door(rooms=make)) as front:
        await plant_template(front.replica.pool)
        yield House(front, rooms[0])
