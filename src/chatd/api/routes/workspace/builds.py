"""Routes that create, list, cancel and log builds."""

from collections.abc import Sequence
from typing import Final

from chatd.api.auth import ApiCaller
from chatd.api.deps import ApiDeps
from chatd.api.operations import REPLAYED
from chatd.api.pages import NumberPosition, Paging
from chatd.api.request import ApiReply, ApiRequest, BodySpec, reply
from chatd.api.route import ApiRoute
from chatd.api.routes.workspace.build_requests import (
    request_build,
    require_workspace,
    require_workspaces,
)
from chatd.api.schemas.workspaces import (
    BuildLogPage,
    BuildPage,
    BuildReply,
    LogsQuery,
    NewBuildBody,
    build_log_reply,
    build_reply,
)
from chatd.domain.access.permissions import Permission
from chatd.domain.errors import Conflict, NotFound
from chatd.domain.list_page import ListQuery
from chatd.domain.workspace.entities import Build, BuildId, BuildLog
from chatd.store.workspace import builds, workspaces

_BUILD: Final = BodySpec(NewBuildBody)


class BuildRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps

    def routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="POST /workspaces/{workspace_id}/builds",
                permission="workspaces.write",
                summary="Start, stop or delete a workspace",
                description="The build runs in the background. Follow it by its log.",
                handle=self.create_build,
                body_spec=_BUILD,
                replies={201: BuildReply},
                errors=(
                    "build_active",
                    "workspace_deleted",
                    "nothing_to_do",
                    "template_gone",
                    "workspaces_off",
                ),
                keyed=True,
                starts_work=True,
            ),
            ApiRoute(
                endpoint="GET /workspaces/{workspace_id}/builds",
                permission="workspaces.read",
                summary="List the builds of a workspace, newest first",
                handle=self.list_builds,
                query=ListQuery,
                replies={200: BuildPage},
            ),
            ApiRoute(
                endpoint="GET /builds/{build_id}",
                permission="workspaces.read",
                summary="Get a build",
                handle=self.get_build,
                replies={200: BuildReply},
            ),
            ApiRoute(
                endpoint="POST /builds/{build_id}/cancel",
                permission="workspaces.control",
                summary="Cancel a build; a running build ends after a short grace period",
                handle=self.cancel_build,
                replies={200: BuildReply},
                errors=("build_ended", "workspaces_off"),
            ),
            ApiRoute(
                endpoint="GET /builds/{build_id}/logs",
                permission="workspaces.read",
                summary="Read a build's log; with `follow`, stream it until the build ends",
                description=(
                    "With `follow`, or with `Accept: text/event-stream`, the reply is a stream of"
                    " the lines that ends with the build."
                ),
                handle=self.list_build_logs,
                query=LogsQuery,
                replies={200: BuildLogPage},
                errors=("too_many_streams", "going_away"),
            ),
        )

    async def create_build(self, request: ApiRequest) -> ApiReply:
        body = await request.body(_BUILD)
        build, again = await request_build(self._deps, request, body)
        headers = {"location": f"/api/v1/builds/{build.id}"}
        return reply(build_reply(build), 201, headers | REPLAYED if again else headers)

    async def list_builds(self, request: ApiRequest) -> ApiReply:
        paging = Paging(request, request.query(ListQuery), NumberPosition)
        found = await self._deps.retry(lambda: self._load(request, paging))
        shown, cursor = paging.cut(found, lambda build: NumberPosition(build.build_number))
        items = tuple(map(build_reply, shown))
        return reply(BuildPage(items=items, has_more=cursor is not None, next_cursor=cursor))

    async def _load(self, request: ApiRequest, paging: Paging[NumberPosition]) -> Sequence[Build]:
        conn, workspace_id = self._deps.pool, request.workspace_id
        actor, limit = request.caller.actor, paging.read_limit
        before = None if paging.position is None else paging.position.number
        found = await builds.list_builds(conn, actor, workspace_id, limit=limit, before=before)
        if not found:
            # A workspace has a build from its first moment: there is none, or this page is empty.
            require_workspace(await workspaces.load_snapshot(conn, actor, workspace_id))
        return found

    async def get_build(self, request: ApiRequest) -> ApiReply:
        return reply(build_reply(await require_build(self._deps, request.caller, request.build_id)))

    async def cancel_build(self, request: ApiRequest) -> ApiReply:
        """Cancelling a build twice is not an error."""
        deps, build_id = self._deps, request.build_id
        control = require_workspaces(deps)
        await require_build(deps, request.caller, build_id, "workspaces.control")
        build = await deps.retry(lambda: builds.cancel(deps.pool, request.caller.actor, build_id))
        if build is None:
            build = await require_build(deps, request.caller, build_id, "workspaces.control")
            if build.status not in ("canceling", "canceled"):
                raise Conflict(f"The build has already {build.status}.", code="build_ended")
        control.wake()
        return reply(build_reply(build))

    async def list_build_logs(self, request: ApiRequest) -> ApiReply:
        query, build_id = request.query(LogsQuery), request.build_id
        paging = Paging(request, query, NumberPosition)
        # Read the status before the log: the log of an ended build is complete.
        build = await require_build(self._deps, request.caller, build_id)
        after = query.after_id or 0 if paging.position is None else paging.position.number
        found = await load_log(self._deps, request.caller, build_id, after, paging.read_limit)
        shown, cursor = paging.cut(found, lambda line: NumberPosition(line.id))
        return reply(
            BuildLogPage(
                items=tuple(map(build_log_reply, shown)),
                has_more=cursor is not None,
                next_cursor=cursor,
                ended=not build.active,
            )
        )


async def require_build(
    deps: ApiDeps,
    caller: ApiCaller,
    build_id: BuildId,
    permission: Permission = "workspaces.read",
) -> Build:
    """The build, if the caller may see it. Raises NotFound."""
    build = await deps.retry(lambda: builds.get(deps.pool, caller.actor, build_id, permission))
    if build is None:
        raise NotFound("There is no such build.")
    return build


async def load_log(
    deps: ApiDeps, caller: ApiCaller, build_id: BuildId, after: int, most: int
) -> Sequence[BuildLog]:
    return await deps.retry(
        lambda: builds.list_log(deps.pool, caller.actor, build_id, after=after, limit=most)
    )
