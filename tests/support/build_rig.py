"""Build workers for tests, with a backend that a test can hold or make fail at a chosen point."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, LiteralString
from uuid import UUID

import msgspec

from chatd.domain.errors import Unavailable
from chatd.domain.ids import WorkerId, WorkspaceId
from chatd.domain.ports import Clock
from chatd.domain.workspace.entities import (
    AgentSpec,
    BackendState,
    Build,
    BuildId,
    FieldProblem,
    TemplateSpec,
    Workspace,
)
from chatd.domain.workspace.runners import BuildPlace, RunnerId
from chatd.store.database.conn import Conn, Row
from chatd.store.workspace import builds
from chatd.workspaces.build_backend import BuildCancelled, BuildContext
from chatd.workspaces.build_worker import BuildWorker, BuildWorkerConfig, CopyFiles, OfferedBackend
from tests.support.eventually import eventually
from tests.support.factories import HARNESS
from tests.support.stream_replica import Emitted, env_with
from tests.support.workspaces import BACKEND, HOST

POINTS = ("asked", "made", "started")
"""Where the backend can be stopped: before its effect, after it, and before its reply."""


When = Literal["before", "after"]


class FakeBackend:
    """Satisfies `backend.Backend`. `sandboxes` outlive their worker, as real ones do.

    The backend waits at the point named by `hold` until `go` is set; `reached` is set when it is
    there. With `deaf` it ignores cancellation. Builds of the transition `hangs` never end.
    """

    kind = BACKEND

    def __init__(self) -> None:
        self.sandboxes: dict[WorkspaceId, int] = {}
        self.made: Counter[tuple[WorkspaceId, int]] = Counter()
        self.asked: list[tuple[str, int]] = []
        self.hold: str | None = None
        self.reached = asyncio.Event()
        self.go = asyncio.Event()
        self.fails: Exception | None = None
        self.deaf = False
        self.hangs: str | None = None
        self.heeds_cancel = False
        self.observed: dict[WorkspaceId, BackendState] = {}
        self.removed: list[WorkspaceId] = []
        self.says: list[str] = []

    async def validate(
        self, spec: TemplateSpec, params: Mapping[str, str]
    ) -> Sequence[FieldProblem]:
        return ()

    async def start(self, context: BuildContext) -> Sequence[AgentSpec]:
        context.log("seed", f"making {context.workspace.name}")
        for text in self.says:
            context.log("seed", text)
        await self._at("asked", context)
        key = (context.workspace.id, context.build.build_number)
        if self.sandboxes.get(context.workspace.id) != context.build.build_number:
            self.made[key] += 1
            self.sandboxes[context.workspace.id] = context.build.build_number
        await self._at("made", context)
        context.log("agent", "started")
        await self._at("started", context)
        return (AgentSpec(id=context.agent_id("main"), name="main"),)

    async def stop(self, context: BuildContext) -> None:
        await self._at("asked", context)
        self.sandboxes.pop(context.workspace.id, None)
        await self._at("made", context)
        await self._at("started", context)

    async def delete(self, context: BuildContext) -> None:
        await self.stop(context)

    async def inspect(self, workspace: Workspace) -> BackendState:
        found = "running" if workspace.id in self.sandboxes else "stopped"
        return self.observed.get(workspace.id, BackendState(state=found))

    async def workspaces(self) -> Sequence[WorkspaceId]:
        return tuple(self.sandboxes)

    async def remove(self, workspace_id: WorkspaceId) -> None:
        self.removed.append(workspace_id)
        self.sandboxes.pop(workspace_id, None)

    async def _at(self, point: str, context: BuildContext) -> None:
        self.asked.append((point, context.build.build_number))
        if self.hangs == context.build.transition:
            self.reached.set()
            await asyncio.Event().wait()
        if self.hold != point:
            return
        self.reached.set()
        if self.heeds_cancel:
            await context.cancelled.wait()
            raise BuildCancelled("asked to")
        while not self.go.is_set():
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                if not self.deaf:
                    raise
        if self.fails is not None:
            raise self.fails


class CountingConn:
    """A database connection that fails at one statement, before or after it. With `dead` it
    never answers again from there on; while it is `cut` every statement is refused."""

    def __init__(
        self, conn: Conn, at: int = 0, *, when: When = "before", dead: bool = False
    ) -> None:
        self._conn = conn
        self._at = at
        self._when = when
        self._dead = dead
        self.sent = 0
        self.cut = False
        self.failed = asyncio.Event()

    async def fetch(self, query: LiteralString, *args: object) -> list[Row]:
        return await self._through(lambda: self._conn.fetch(query, *args))

    async def fetchrow(self, query: LiteralString, *args: object) -> Row | None:
        return await self._through(lambda: self._conn.fetchrow(query, *args))

    async def fetchval(self, query: LiteralString, *args: object) -> Any:
        return await self._through(lambda: self._conn.fetchval(query, *args))

    async def execute(self, query: LiteralString, *args: object) -> str:
        return await self._through(lambda: self._conn.execute(query, *args))

    async def _through(self, send: Any) -> Any:
        self.sent += 1
        if self.cut:
            raise Unavailable("The line is cut.", code="database_down")
        if self._dead and self.sent > self._at:
            await asyncio.Event().wait()
        if self.sent != self._at:
            return await send()
        if self._when == "after":
            await send()
        self.failed.set()
        if self._dead:
            await asyncio.Event().wait()
        raise Unavailable("The line is cut.", code="database_down", maybe_applied=True)


def worker(number: int) -> WorkerId:
    return WorkerId(UUID(int=0xE000 + number))


@asynccontextmanager
async def building(
    conn: Conn,
    clock: Clock,
    *backends: FakeBackend,
    number: int = 1,
    emitted: Emitted | None = None,
    hosts: Sequence[str] = (HOST,),
    copy: CopyFiles | None = None,
    **config: object,
) -> AsyncGenerator[BuildWorker]:
    """A running build worker. At the end it is killed and writes nothing more."""
    offers = [
        OfferedBackend(BuildPlace(runner_id=RunnerId(host), backend=backend.kind), backend)
        for host in hosts
        for backend in backends
    ]
    builder = BuildWorker(
        worker(number),
        conn,
        lambda: offers,
        env_with(clock, emitted),
        msgspec.structs.replace(BuildWorkerConfig(), **config),
        agent_key=lambda agent_id: agent_id.bytes * 2,
        copy=copy,
    )
    async with asyncio.TaskGroup() as group:
        task = group.create_task(builder.run())
        try:
            yield builder
        finally:
            task.cancel()


async def ended(conn: Conn, build_id: BuildId, *, within_s: float = 20) -> Build:
    async def look() -> Build | None:
        found = await builds.get(conn, HARNESS, build_id)
        return found if found is not None and not found.active else None

    return await eventually(look, within_s=within_s)
