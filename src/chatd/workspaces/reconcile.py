"""Compares what the rows say with what is there on this host, and puts the rows right.

A workspace that should run and does not is shown as stopped: its agents are off and a stop build
says so, after which a start is a start. What is there of a deleted workspace is removed. One look
proves nothing: a sandbox may be between two processes, so it takes two in a row. What a backend
cannot tell is left alone.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from chatd.domain.errors import ChatdError
from chatd.domain.ids import WorkspaceId
from chatd.domain.ports import Env
from chatd.domain.workspace.entities import Build, BuildId
from chatd.domain.workspace.rules import WorkspaceSnapshot
from chatd.store.conn import Conn
from chatd.store.workspace import agents, builds, workspaces
from chatd.workspaces.backend import Backend

PAGE: Final = 100
LOOK_S: Final = 10.0
REMOVE_S: Final = 60.0
_FAILURES: Final = (ChatdError, OSError)  # TimeoutError is one of the latter


class Reconcile:
    """`look` is done every half minute, by the replicas of the host."""

    def __init__(self, conn: Conn, backend: Backend, env: Env, hosts: Sequence[str]) -> None:
        self._conn = conn
        self._backend = backend
        self._env = env
        self._hosts = hosts
        self._doubted: set[BuildId] = set()
        self._orphaned: set[WorkspaceId] = set()

    async def look(self) -> None:
        await self._look_at_rows()
        await self._look_at_sandboxes()

    async def _look_at_rows(self) -> None:
        doubted: set[BuildId] = set()
        after: WorkspaceId | None = None
        while True:
            page = await workspaces.list_on_host(
                self._conn, self._hosts, self._backend.kind, after=after, most=PAGE
            )
            for seen in page:
                if (build := _should_run(seen)) is not None and await self._is_down(seen):
                    doubted.add(build.id)
                    if build.id in self._doubted:
                        await self._show_stopped(seen, build)
            if len(page) < PAGE or page[-1].workspace is None:
                break
            after = page[-1].workspace.id
        self._doubted = doubted

    async def _is_down(self, seen: WorkspaceSnapshot) -> bool:
        assert seen.workspace is not None  # the page is one of workspaces
        try:
            async with asyncio.timeout(LOOK_S):
                observed = await self._backend.inspect(seen.workspace)
        except _FAILURES as error:
            self._env.emit("inspect_failed", error_kind=_kind(error))
            return False
        return observed.state in ("stopped", "gone")

    async def _show_stopped(self, seen: WorkspaceSnapshot, build: Build) -> None:
        await agents.mark_gone(self._conn, [agent.id for agent in seen.agents])
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
        if await builds.insert(self._conn, new) is not None:
            self._env.emit("workspace_down", workspace_id=build.workspace_id, build_id=build.id)

    async def _look_at_sandboxes(self) -> None:
        async with asyncio.timeout(LOOK_S):
            found = await self._backend.workspaces()
        orphaned: set[WorkspaceId] = set()
        for batch in _batches(found):
            orphaned.update(await workspaces.list_deleted(self._conn, batch, self._hosts))
        for workspace_id in sorted(orphaned & self._orphaned):
            try:
                async with asyncio.timeout(REMOVE_S):
                    await self._backend.remove(workspace_id)
            except _FAILURES as error:
                self._env.emit("orphan_not_removed", error_kind=_kind(error))
            else:
                orphaned.discard(workspace_id)
                self._env.emit("orphan_removed", workspace_id=workspace_id)
        self._orphaned = orphaned


def _kind(error: Exception) -> str:
    return error.code if isinstance(error, ChatdError) else type(error).__name__


def _should_run(seen: WorkspaceSnapshot) -> Build | None:
    """Its latest build, if that was a start that has succeeded."""
    build = seen.build
    if build is None or build.status != "succeeded" or build.transition != "start":
        return None
    return build


def _batches(found: Sequence[WorkspaceId]) -> Iterable[Sequence[WorkspaceId]]:
    for start in range(0, len(found), PAGE):
        yield found[start : start + PAGE]
