"""Builds: asked for, listed, looked at, cancelled, and what they have said."""

from collections.abc import Sequence
from typing import Final

from chatd.aio.backoff import retry_unavailable
from chatd.api.auth import Caller, own_workspace
from chatd.api.building import ask_for_build, rooms_of
from chatd.api.call import Call, Reply, Route, Takes, reply
from chatd.api.doors import Doors
from chatd.api.operations import REPLAYED
from chatd.api.workspace_shapes import build_reply, log_line
from chatd.api.workspace_wire import BuildReply, BuildsQuery, LogPage, LogsQuery, NewBuildBody
from chatd.domain.errors import Conflict, NotFound
from chatd.domain.workspace.entities import Build, BuildId, BuildLog
from chatd.store.workspace import build_leases, builds, workspaces

_BUILD: Final = Takes(NewBuildBody)


class BuildRoutes:
    def __init__(self, doors: Doors) -> None:
        self._doors = doors

    def routes(self) -> tuple[Route, ...]:
        return (
            Route(
                method="POST",
                path="/workspaces/{workspace_id}/builds",
                name="create_build",
                summary="Have a workspace started, stopped or deleted",
                handle=self.create,
                takes=_BUILD,
                gives={201: BuildReply},
                refuses=(409,),
                keyed=True,
                starts_work=True,
            ),
            Route(
                method="GET",
                path="/workspaces/{workspace_id}/builds",
                name="list_builds",
                summary="The builds of a workspace, the newest first",
                handle=self.list,
                query=BuildsQuery,
                gives={200: list[BuildReply]},
            ),
            Route(
                method="GET",
                path="/builds/{build_id}",
                name="get_build",
                summary="One build",
                handle=self.get,
                gives={200: BuildReply},
            ),
            Route(
                method="POST",
                path="/builds/{build_id}/cancel",
                name="cancel_build",
                summary="Have a build left off; one that runs ends a little later",
                handle=self.cancel,
                gives={200: BuildReply},
                refuses=(409,),
            ),
            Route(
                method="GET",
                path="/builds/{build_id}/logs",
                name="list_build_logs",
                summary="What a build has said; as a stream, until it has ended",
                handle=self.logs,
                query=LogsQuery,
                gives={200: LogPage},
                refuses=(429,),
            ),
        )

    async def create(self, call: Call) -> Reply:
        body = await call.body(_BUILD)
        build, again = await ask_for_build(self._doors, call, body)
        headers = {"location": f"/api/v1/builds/{build.id}"}
        return reply(build_reply(build), 201, headers | REPLAYED if again else headers)

    async def list(self, call: Call) -> Reply:
        query = call.query(BuildsQuery)
        found = await retry_unavailable(self._doors.env.clock, lambda: self._page(call, query))
        return reply([build_reply(one) for one in found])

    async def _page(self, call: Call, query: BuildsQuery) -> Sequence[Build]:
        conn, workspace_id = self._doors.pool, call.workspace_id
        own_workspace(call.caller, await workspaces.load_snapshot(conn, workspace_id))
        return await builds.list_builds(conn, workspace_id, most=query.limit, before=query.before)

    async def get(self, call: Call) -> Reply:
        return reply(build_reply(await own_build(self._doors, call.caller, call.build_id)))

    async def cancel(self, call: Call) -> Reply:
        """What was asked for already is no mistake."""
        doors, build_id = self._doors, call.build_id
        rooms = rooms_of(doors)
        await own_build(doors, call.caller, build_id)
        build = await retry_unavailable(
            doors.env.clock, lambda: builds.cancel(doors.pool, build_id)
        )
        if build is None:
            build = await own_build(doors, call.caller, build_id)
            if build.status not in ("canceling", "canceled"):
                raise Conflict(f"The build has {build.status}.", code="build_ended")
        rooms.wake()
        return reply(build_reply(build))

    async def logs(self, call: Call) -> Reply:
        query, build_id = call.query(LogsQuery), call.build_id
        # In this order: once it has ended, all it has said is there.
        build = await own_build(self._doors, call.caller, build_id)
        found = await log_lines(self._doors, build_id, query.after or 0, query.limit + 1)
        shown = tuple(map(log_line, found[: query.limit]))
        return reply(
            LogPage(
                logs=shown,
                next_after=shown[-1].id if shown else query.after or 0,
                has_more=len(found) > query.limit,
                ended=not build.active,
            )
        )


async def own_build(doors: Doors, caller: Caller, build_id: BuildId) -> Build:
    """The build, if its workspace is this caller's. One of somebody else is not there."""

    async def read() -> Build | None:
        build = await builds.get(doors.pool, build_id)
        if build is None:
            return None
        workspace = await workspaces.get(doors.pool, build.workspace_id)
        return build if workspace is not None and workspace.owner_id == caller.user_id else None

    build = await retry_unavailable(doors.env.clock, read)
    if build is None:
        raise NotFound("There is no such build.")
    return build


async def log_lines(doors: Doors, build_id: BuildId, after: int, most: int) -> Sequence[BuildLog]:
    return await retry_unavailable(
        doors.env.clock, lambda: build_leases.list_log(doors.pool, build_id, after=after, most=most)
    )
