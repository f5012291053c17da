"""Routes that create, list, cancel and log builds, and what creates the build that a request asks
for.

`workspace.rules` decides what the rows allow. Nothing waits here: the client follows the build.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from chatd.api import validation
from chatd.api.deps import ApiDeps
from chatd.api.errors import FieldError, InvalidFields
from chatd.api.operations import REPLAYED
from chatd.api.pages import NumberPosition, Paging, page_reply
from chatd.api.request import ApiCaller, ApiReply, ApiRequest, BodySpec, reply
from chatd.api.route import ApiRoute
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
from chatd.domain.errors import Conflict, InvalidInput, NotFound, RequestReused
from chatd.domain.list_page import ListQuery
from chatd.domain.workspace.entities import Build, BuildId, BuildLog, FieldProblem, VersionId
from chatd.domain.workspace.rules import (
    AwaitBuild,
    InsertBuild,
    NoWorkspace,
    WorkspaceSnapshot,
    build_permission,
    next_for_start,
    next_for_stop,
    start_version,
)
from chatd.domain.workspace.templates import resolve_parameters
from chatd.services.workspaces.runner_administration import explain_builds
from chatd.services.workspaces.workspaces import WorkspaceControl
from chatd.store.database.conn import Conn
from chatd.store.workspace import builds, templates, workspaces
from chatd.store.workspace.builds import NewBuild

MAX_BUILD_INSERT_ATTEMPTS: Final = 5


class RequestedBuild(Struct, frozen=True, kw_only=True):
    """`again`: an earlier request created it."""

    build: Build
    again: bool


def require_workspaces(deps: ApiDeps) -> WorkspaceControl:
    if deps.workspaces is None:
        text = "Workspaces are disabled in this server's settings (workspaces.enabled)."
        raise Conflict(text, code="workspaces_off")
    return deps.workspaces


def require_workspace(found: WorkspaceSnapshot | None) -> WorkspaceSnapshot:
    """Raises NotFound for one that was not found or that the caller may not read."""
    if found is None:
        raise NotFound("There is no such workspace.")
    return found


def parameters_error(problems: Sequence[FieldProblem]) -> InvalidFields:
    return InvalidFields(
        "The parameters are not valid for the template.",
        [FieldError(field=f"parameters.{each.field}", detail=each.detail) for each in problems],
    )


async def request_build(
    deps: ApiDeps, request: ApiRequest, body: NewBuildBody, *, joins: bool = False
) -> tuple[Build, bool]:
    """The build, and whether an earlier request created it. With `joins`, a running build of the
    same transition is returned instead. Raises Conflict, InvalidInput, NotFound."""
    control = require_workspaces(deps)
    # All attempts use one id, so that a build with a lost reply is found.
    build_id = BuildId(deps.env.new_id())
    key = request.request_key("build") or f"api:{build_id}"
    insert = _BuildInsert(
        conn=deps.pool, request=request, body=body, key=key, build_id=build_id, joins=joins
    )
    requested = await deps.retry(insert.run)
    control.wake()
    return requested.build, requested.again and requested.build.id != build_id


class _BuildInsert(Struct, frozen=True, kw_only=True):
    conn: Conn
    request: ApiRequest
    body: NewBuildBody
    key: str
    build_id: BuildId
    joins: bool

    async def run(self) -> RequestedBuild:
        for _ in range(MAX_BUILD_INSERT_ATTEMPTS):
            actor, transition = self.request.caller.actor, self.body.transition
            snapshot = require_workspace(
                await workspaces.load_snapshot(
                    self.conn, actor, self.request.workspace_id, build_permission(transition)
                )
            )
            earlier = await builds.find_by_request_key(self.conn, actor, self.key, transition)
            if earlier is not None:
                return RequestedBuild(build=self._same(earlier), again=True)
            after = self._after(snapshot)
            if isinstance(after, Build):
                return RequestedBuild(build=after, again=True)
            new = await self._new(snapshot, after)
            if (build := await builds.insert(self.conn, actor, new)) is not None:
                return RequestedBuild(build=self._same(build), again=build.id != self.build_id)
        raise Conflict(
            "Other requests keep creating builds of this workspace. Retry.", code="build_active"
        )

    def _same(self, build: Build) -> Build:
        """Raises RequestReused if the key was used for a different build."""
        body = self.body
        same = (
            build.workspace_id == self.request.workspace_id
            and build.transition == body.transition
            and all(build.params.get(name) == value for name, value in body.parameters.items())
        )
        if not same:
            raise RequestReused("This idempotency key was used for a different build.")
        return build

    def _after(self, snapshot: WorkspaceSnapshot) -> int | Build:
        """The number of the build that the new one follows, or a running build to join."""
        last = snapshot.build
        transition = self.body.transition
        if self.joins and last is not None and last.active and last.transition == transition:
            return last
        # A delete is allowed in every state in which a stop is.
        step = next_for_start(snapshot) if transition == "start" else next_for_stop(snapshot)
        match step:
            case InsertBuild(after=after):
                return after
            case AwaitBuild():
                raise Conflict(
                    "A build of this workspace is running. Wait for it or cancel it.",
                    code="build_active",
                )
            case NoWorkspace():
                raise Conflict("The workspace is deleted.", code="workspace_deleted")
            case _ if transition == "delete" and last is not None:
                return last.build_number
            case _:
                state = "running" if transition == "start" else "stopped"
                raise Conflict(f"The workspace is already {state}.", code="nothing_to_do")

    async def _new(self, snapshot: WorkspaceSnapshot, after: int) -> NewBuild:
        assert snapshot.workspace is not None
        last = snapshot.build
        assert last is not None  # a workspace is created together with its first build
        new = NewBuild(
            id=self.build_id,
            workspace_id=snapshot.workspace.id,
            after=after,
            transition=self.body.transition,
            version_id=last.template_version_id,
            initiator_id=self.request.caller.user_id,
            params=last.params,
            made_by=self.key,
        )
        if self.body.transition == "start":
            version_id, values = await self._start(snapshot, last)
            return replace(new, version_id=version_id, params=values)
        if self.body.parameters:
            raise InvalidInput("parameters", "are only for a start")
        return new

    async def _start(
        self, snapshot: WorkspaceSnapshot, last: Build
    ) -> tuple[VersionId, Mapping[str, str]]:
        assert snapshot.workspace is not None
        template = await templates.get(self.conn, snapshot.workspace.template_id)
        version = None
        if template is not None:
            version_id, _ = start_version(template, last)
            version = await templates.get_version(self.conn, version_id)
        if version is None:
            raise Conflict("The workspace's template no longer exists.", code="template_gone")
        given = validation.check_parameters(self.body.parameters)
        values = resolve_parameters(version.parameters, given, last.params)
        if values.problems:
            raise parameters_error(values.problems)
        return version.id, values.values


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
        waits = await self._deps.read(explain_builds, request.caller.actor, shown)
        return page_reply(BuildPage, (build_reply(each, waits) for each in shown), cursor)

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
        build = await require_build(self._deps, request.caller, request.build_id)
        waits = await self._deps.read(explain_builds, request.caller.actor, [build])
        return reply(build_reply(build, waits))

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
    build = await deps.read(builds.get, caller.actor, build_id, permission)
    if build is None:
        raise NotFound("There is no such build.")
    return build


async def load_log(
    deps: ApiDeps, caller: ApiCaller, build_id: BuildId, after: int, most: int
) -> Sequence[BuildLog]:
    return await deps.read(builds.list_log, caller.actor, build_id, after=after, limit=most)
