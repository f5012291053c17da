"""Workspaces: made, listed, looked at, deleted. What becomes of them is in their builds."""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from chatd.aio.backoff import retry_unavailable
from chatd.api import checks
from chatd.api.auth import own_workspace
from chatd.api.building import ask_for_build, rooms_of, unfit
from chatd.api.call import Call, Reply, Route, Takes, reply
from chatd.api.doors import Doors, Rooms
from chatd.api.operations import REPLAYED
from chatd.api.templates import usable_template
from chatd.api.workspace_shapes import build_reply, workspace_reply
from chatd.api.workspace_wire import (
    BuildReply,
    NewBuildBody,
    NewWorkspaceBody,
    WorkspaceReply,
    WorkspacesQuery,
)
from chatd.domain.errors import Conflict, InvalidInput, RequestReused
from chatd.domain.ids import WorkspaceId
from chatd.domain.workspace.entities import BuildId, Template, TemplateId, TemplateVersion
from chatd.domain.workspace.rules import WorkspaceSnapshot, workspace_ttl_s
from chatd.domain.workspace.templates import generated_name, is_valid_name, resolve_parameters
from chatd.store.workspace import workspaces
from chatd.store.workspace.workspaces import CreatedWorkspace, NewWorkspace, WorkspaceNameTaken

_CREATE: Final = Takes(NewWorkspaceBody)


class WorkspaceRoutes:
    def __init__(self, doors: Doors) -> None:
        self._doors = doors

    def routes(self) -> tuple[Route, ...]:
        return (
            Route(
                method="GET",
                path="/workspaces",
                name="list_workspaces",
                summary="My workspaces, the newest first; deleted ones are left out",
                handle=self.list,
                query=WorkspacesQuery,
                gives={200: list[WorkspaceReply]},
            ),
            Route(
                method="POST",
                path="/workspaces",
                name="create_workspace",
                summary="Make a workspace of a template; its first build starts it",
                handle=self.create,
                takes=_CREATE,
                gives={201: WorkspaceReply},
                refuses=(409,),
                keyed=True,
                starts_work=True,
            ),
            Route(
                method="GET",
                path="/workspaces/{workspace_id}",
                name="get_workspace",
                summary="One workspace, with its latest build and the agents of that",
                handle=self.get,
                gives={200: WorkspaceReply},
            ),
            Route(
                method="DELETE",
                path="/workspaces/{workspace_id}",
                name="delete_workspace",
                summary="Have a workspace deleted with all that is in it, by a build",
                handle=self.delete,
                gives={202: BuildReply},
                refuses=(409,),
                starts_work=True,
            ),
        )

    async def list(self, call: Call) -> Reply:
        query = call.query(WorkspacesQuery)
        found = await retry_unavailable(self._doors.env.clock, lambda: self._page(call, query))
        return reply([workspace_reply(one) for one in found])

    async def _page(self, call: Call, query: WorkspacesQuery) -> Sequence[WorkspaceSnapshot]:
        conn, owner = self._doors.pool, call.caller.user_id
        last = None
        if query.after_id is not None:
            last = await workspaces.get(conn, WorkspaceId(query.after_id))
            if last is None or last.owner_id != owner:
                raise InvalidInput("after_id", "there is no such workspace")
        return await workspaces.list_page(conn, owner, after=last, most=query.limit)

    async def create(self, call: Call) -> Reply:
        doors, body = self._doors, await call.body(_CREATE)
        rooms = rooms_of(doors)
        clock, template_id = doors.env.clock, body.template_id
        template, version = await retry_unavailable(
            clock,
            lambda: usable_template(
                doors,
                name=body.template,
                template_id=None if template_id is None else TemplateId(template_id),
            ),
        )
        values = await _values(rooms, template, version, body.parameters)
        new = self._new(call, rooms, body.name, template)
        new = replace(new, version_id=version.id, params=values)
        made = await retry_unavailable(
            clock, lambda: _insert(doors, new, named=body.name is not None)
        )
        if made.again:
            _check_same(made, new, named=body.name is not None)
        rooms.wake()
        found = await retry_unavailable(
            clock, lambda: workspaces.load_snapshot(doors.pool, made.workspace.id)
        )
        headers = {"location": f"/api/v1/workspaces/{made.workspace.id}"}
        # Without a key, "again" is our own earlier try.
        if made.again and made.workspace.id != new.id:
            headers |= REPLAYED
        return reply(workspace_reply(own_workspace(call.caller, found)), 201, headers)

    def _new(self, call: Call, rooms: Rooms, name: str | None, template: Template) -> NewWorkspace:
        workspace_id = self._doors.env.new_id()
        return NewWorkspace(
            id=WorkspaceId(workspace_id),
            build_id=BuildId(self._doors.env.new_id()),
            owner_id=call.caller.user_id,
            template_id=template.id,
            version_id=template.active_version_id,
            name=_name(name, template, workspace_id.bytes),
            host_id=rooms.host_id,
            ttl_s=workspace_ttl_s(rooms.ttl_s, template),
            made_by=call.made_by("workspace") or f"api:{workspace_id}",
        )

    async def get(self, call: Call) -> Reply:
        doors, workspace_id = self._doors, call.workspace_id
        found = await retry_unavailable(
            doors.env.clock, lambda: workspaces.load_snapshot(doors.pool, workspace_id)
        )
        return reply(workspace_reply(own_workspace(call.caller, found)))

    async def delete(self, call: Call) -> Reply:
        """Asked twice, it is the same build that is told of."""
        wanted = NewBuildBody(transition="delete")
        build, _ = await ask_for_build(self._doors, call, wanted, joins=True)
        return reply(build_reply(build), 202)


def _name(given: str | None, template: Template, draw: bytes) -> str:
    if given is None:
        return generated_name(template.name, draw)
    if not is_valid_name(given):
        detail = "must be 1 to 32 letters and digits, with single dashes between them"
        raise InvalidInput("name", detail)
    return given


async def _values(
    rooms: Rooms, template: Template, version: TemplateVersion, given: Mapping[str, str]
) -> Mapping[str, str]:
    resolved = resolve_parameters(version.parameters, checks.parameters(given))
    problems = resolved.problems or await rooms.problems(template, version.spec, resolved.values)
    if problems:
        raise unfit(problems)
    return resolved.values


async def _insert(doors: Doors, new: NewWorkspace, *, named: bool) -> CreatedWorkspace:
    try:
        return await workspaces.create(doors.pool, new)
    except WorkspaceNameTaken:
        if named:
            text = f"There is another workspace of the name {new.name}."
            raise Conflict(text, code="name_taken") from None
    other = generated_name(new.name[:-5], new.id.bytes[2:])
    try:
        return await workspaces.create(doors.pool, replace(new, name=other))
    except WorkspaceNameTaken:
        raise Conflict("No free name was found; give one.", code="name_taken") from None


def _check_same(made: CreatedWorkspace, new: NewWorkspace, *, named: bool) -> None:
    """A key that comes again must come with the same wish."""
    workspace, build = made.workspace, made.build
    same = (
        workspace.owner_id == new.owner_id
        and workspace.template_id == new.template_id
        and build.params == new.params
        and (not named or workspace.name == new.name)
    )
    if not same:
        raise RequestReused("This idempotency key was used for another workspace.")
