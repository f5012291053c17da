"""Periodic tasks on workspaces: reconcile rows with the host, stop overdue workspaces, record use.

A workspace that should run and does not gets a stop build, so that it can be started again; files
of deleted workspaces are removed. Both take two observations in a row, because a sandbox may be
between two processes. What a backend cannot tell is left unchanged.

Use of workspaces is collected in memory and written once a minute, and before overdue workspaces
are stopped. A failed write is repeated with the next one; a process that dies loses at most a
minute of use.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from chatd.domain.access.permissions import SystemActor
from chatd.domain.errors import ChatdError, Unavailable
from chatd.domain.ids import WorkspaceId
from chatd.domain.ports import Env
from chatd.domain.workspace.entities import Build, BuildId
from chatd.domain.workspace.rules import WorkspaceSnapshot
from chatd.store.database.conn import Conn
from chatd.store.workspace import builds, workspaces
from chatd.workspaces.build_backend import Backend

RECONCILE_PAGE_SIZE: Final = 100
INSPECT_TIMEOUT_S: Final = 10.0
REMOVE_TIMEOUT_S: Final = 60.0
RECONCILER: Final = SystemActor(reason="reconcile workspaces with their host")
AUTOSTOP: Final = SystemActor(reason="stop workspaces that are not used")
_FAILURES: Final = (ChatdError, OSError)  # TimeoutError is one of the latter


class Reconciler:
    """Compares the rows of one runner with what a backend of it has. Run every 30 seconds by every
    replica that reaches the runner by itself."""

    def __init__(self, conn: Conn, env: Env, runner_id: str) -> None:
        self._conn = conn
        self._env = env
        self._runners = (runner_id,)
        self._doubted: set[BuildId] = set()
        self._deleted: set[WorkspaceId] = set()

    async def reconcile(self, backend: Backend) -> Sequence[WorkspaceId]:
        """The workspaces that the backend has, deleted ones excluded."""
        await self._reconcile_rows(backend)
        return await self._remove_deleted(backend)

    async def _reconcile_rows(self, backend: Backend) -> None:
        doubted: set[BuildId] = set()
        after: WorkspaceId | None = None
        while True:
            page = await workspaces.list_on_host(
                self._conn, self._runners, backend.kind, after=after, limit=RECONCILE_PAGE_SIZE
            )
            for seen in page:
                build = _should_run(seen)
                if build is not None and await self._is_down(backend, seen):
                    doubted.add(build.id)
                    if build.id in self._doubted:
                        await self._show_stopped(seen, build)
            if len(page) < RECONCILE_PAGE_SIZE or page[-1].workspace is None:
                break
            after = page[-1].workspace.id
        self._doubted = doubted

    async def _is_down(self, backend: Backend, seen: WorkspaceSnapshot) -> bool:
        assert seen.workspace is not None  # the page is one of workspaces
        try:
            async with asyncio.timeout(INSPECT_TIMEOUT_S):
                observed = await backend.inspect(seen.workspace)
        except _FAILURES as error:
            self._env.emit("inspect_failed", error_kind=_kind(error))
            return False
        return observed.state in ("stopped", "gone")

    async def _show_stopped(self, seen: WorkspaceSnapshot, build: Build) -> None:
        await workspaces.mark_agent_gone(self._conn, [agent.id for agent in seen.agents])
        new = builds.NewBuild(
            id=BuildId(self._env.new_id()),
            workspace_id=build.workspace_id,
            after=build.build_number,
            transition="stop",
            version_id=build.template_version_id,
            initiator_id=build.initiator_id,
            params=build.params,
            reason="autostop",
            made_by=f"reconcile:{build.id}",
        )
        if await builds.insert(self._conn, RECONCILER, new) is not None:
            self._env.emit("workspace_down", workspace_id=build.workspace_id, build_id=build.id)

    async def _remove_deleted(self, backend: Backend) -> Sequence[WorkspaceId]:
        async with asyncio.timeout(INSPECT_TIMEOUT_S):
            found = await backend.workspaces()
        deleted: set[WorkspaceId] = set()
        for batch in _batches(found):
            deleted.update(await workspaces.list_deleted(self._conn, batch, self._runners))
        kept = [workspace_id for workspace_id in found if workspace_id not in deleted]
        for workspace_id in sorted(deleted & self._deleted):
            try:
                async with asyncio.timeout(REMOVE_TIMEOUT_S):
                    await backend.remove(workspace_id)
            except _FAILURES as error:
                self._env.emit("orphan_not_removed", error_kind=_kind(error))
            else:
                deleted.discard(workspace_id)
                self._env.emit("orphan_removed", workspace_id=workspace_id)
        self._deleted = deleted
        return kept


def _kind(error: Exception) -> str:
    return error.code if isinstance(error, ChatdError) else type(error).__name__


def _should_run(seen: WorkspaceSnapshot) -> Build | None:
    """The latest build, if it is a start that succeeded."""
    build = seen.build
    if build is None or build.status != "succeeded" or build.transition != "start":
        return None
    return build


def _batches(found: Sequence[WorkspaceId]) -> Iterable[Sequence[WorkspaceId]]:
    for start in range(0, len(found), RECONCILE_PAGE_SIZE):
        yield found[start : start + RECONCILE_PAGE_SIZE]


STOP_RETRY_DELAY_S: Final = 600.0
"""A failed stop is repeated after this delay, then at growing intervals."""
MAX_STOPS_PER_RUN: Final = 50


class Autostop:
    """Run every minute by every replica; the insert lets one of them stop a workspace.
    `flush_activity` writes the use of workspaces by this replica first. A turn counts as use, and
    the workspace of a turn is never stopped, not even past its latest deadline."""

    def __init__(
        self, conn: Conn, env: Env, *, flush_activity: Callable[[], Awaitable[None]]
    ) -> None:
        self._conn = conn
        self._env = env
        self._flush_activity = flush_activity

    async def stop_overdue(self) -> int:
        """Returns the number of stop builds that were inserted."""
        await self._flush_activity()
        overdue = await builds.list_overdue(
            self._conn, retry_delay_s=STOP_RETRY_DELAY_S, limit=MAX_STOPS_PER_RUN
        )
        if in_turn := [late.workspace_id for late in overdue if late.in_turn]:
            await workspaces.record_activity(self._conn, in_turn)
        asked = 0
        for late in overdue:
            if late.in_turn:
                continue
            build_id = BuildId(self._env.new_id())
            if await builds.insert_stop_build(self._conn, AUTOSTOP, late, build_id) is not None:
                asked += 1
                self._env.emit("workspace_overdue", workspace_id=late.workspace_id)
        return asked


ACTIVITY_FLUSH_INTERVAL_S: Final = 60.0
ACTIVITY_FLUSH_TIMEOUT_S: Final = 15.0
MAX_TRACKED_WORKSPACES: Final = 10_000
ACTIVITY_BATCH_SIZE: Final = 500


def _none() -> Iterable[WorkspaceId]:
    return ()


class ActivityTracker:
    """`run` flushes until it is cancelled. `in_use` returns the workspaces with a request in
    flight, so that a command of an hour counts as use for an hour."""

    def __init__(
        self, conn: Conn, env: Env, *, in_use: Callable[[], Iterable[WorkspaceId]] = _none
    ) -> None:
        self._conn = conn
        self._env = env
        self._in_use = in_use
        self._used: set[WorkspaceId] = set()

    def touch(self, workspace_id: WorkspaceId) -> None:
        if len(self._used) < MAX_TRACKED_WORKSPACES:
            self._used.add(workspace_id)

    async def run(self) -> None:
        while True:
            await self._env.clock.sleep(ACTIVITY_FLUSH_INTERVAL_S, "usage_flush")
            await self.touch_and_flush()

    async def touch_and_flush(self) -> None:
        """Write now, including the workspaces with a request in flight."""
        for workspace_id in self._in_use():
            self.touch(workspace_id)
        await self.flush()

    async def flush(self) -> None:
        taken, self._used = self._used, set()
        waiting = sorted(taken)
        try:
            while waiting:
                async with asyncio.timeout(ACTIVITY_FLUSH_TIMEOUT_S):
                    await workspaces.record_activity(self._conn, waiting[:ACTIVITY_BATCH_SIZE])
                del waiting[:ACTIVITY_BATCH_SIZE]
        except (ChatdError, TimeoutError) as error:
            kind = error.code if isinstance(error, ChatdError) else "timeout"
            self._env.emit("workspace_activity_write_failed", error_kind=kind, count=len(waiting))
            if isinstance(error, ChatdError) and not isinstance(error, Unavailable):
                del waiting[:ACTIVITY_BATCH_SIZE]  # a refused write would be refused again
        finally:
            self._used.update(waiting)
