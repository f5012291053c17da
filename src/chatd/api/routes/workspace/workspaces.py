"""Routes that create, list, get and delete workspaces, and list templates. Builds do the work."""

import asyncio
from collections.abc import Mapping
from typing import Annotated, Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from chatd.api import validation
from chatd.api.deps import ApiDeps
from chatd.api.operations import REPLAYED
from chatd.api.pages import ItemPosition, Paging, TimePosition, cut_whole, page_reply
from chatd.api.request import ApiCaller, ApiReply, ApiRequest, BodySpec, reply
from chatd.api.route import ApiRoute
from chatd.api.routes.workspace.builds import (
    parameters_error,
    request_build,
    require_workspace,
    require_workspaces,
)
from chatd.api.schemas.workspaces import (
    BuildReply,
    NewBuildBody,
    NewWorkspaceBody,
    TemplatePage,
    TemplateReply,
    WorkspacePage,
    WorkspaceReply,
    build_reply,
    template_item,
    template_reply,
    workspace_reply,
)
from chatd.domain.access.permissions import Actor
from chatd.domain.description import describe
from chatd.domain.errors import ChatdError, Conflict, InvalidInput, NotFound, RequestReused
from chatd.domain.ids import WorkspaceId
from chatd.domain.list_page import ListQuery
from chatd.domain.workspace.entities import (
    BuildId,
    Template,
    TemplateId,
    TemplateSpec,
    TemplateVersion,
)
from chatd.domain.workspace.network import Refusal
from chatd.domain.workspace.rules import WorkspaceSnapshot, workspace_ttl_s
from chatd.domain.workspace.runners import Runner, RunnerId, here_template, is_connected
from chatd.domain.workspace.templates import (
    generated_name,
    is_valid_name,
    needs_own_runner,
    resolve_parameters,
)
from chatd.services.workspaces.host_credentials import CredentialedHost, list_credentialed_hosts
from chatd.services.workspaces.runner_administration import explain_builds
from chatd.services.workspaces.workspaces import WorkspaceControl
from chatd.store.workspace import runners, templates, workspaces
from chatd.store.workspace.workspaces import CreatedWorkspace, NewWorkspace, WorkspaceNameTaken


class TemplateRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps

    def routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="GET /templates",
                permission="catalog.read",
                summary="List the templates that you may use, by name",
                handle=self.list_templates,
                query=ListQuery,
                replies={200: TemplatePage},
            ),
            ApiRoute(
                endpoint="GET /templates/{template_id}",
                permission="catalog.read",
                summary="Get a template with its parameters",
                handle=self.get_template,
                replies={200: TemplateReply},
            ),
        )

    async def list_templates(self, request: ApiRequest) -> ApiReply:
        deps = self._deps
        paging = Paging(request, request.query(ListQuery), ItemPosition)
        caller = request.caller
        found = await deps.read(templates.list_usable, caller.actor, caller.user_id)
        shown, cursor = cut_whole(paging, found, lambda row: row.id)
        return page_reply(TemplatePage, map(template_item, shown), cursor)

    async def get_template(self, request: ApiRequest) -> ApiReply:
        deps, template_id = self._deps, request.template_id
        caller = request.caller
        found = await deps.retry(lambda: _with_version(deps, template_id))
        if found is None or not await deps.retry(lambda: _may_see(deps, caller, found[0])):
            raise NotFound("There is no such template.")
        return reply(template_reply(*found))


async def _may_see(deps: ApiDeps, caller: ApiCaller, template: Template) -> bool:
    """Also the template of a workspace that the caller has: the workspace goes on."""
    conn, actor, user_id = deps.pool, caller.actor, caller.user_id
    return await templates.is_usable(
        conn, actor, user_id, template, "workspaces.read"
    ) or await templates.has_workspace(conn, actor, user_id, template.id)


async def _with_version(
    deps: ApiDeps, template_id: TemplateId
) -> tuple[Template, TemplateVersion] | None:
    found = await templates.get(deps.pool, template_id)
    if found is None or found.deleted:
        return None
    version = await templates.get_version(deps.pool, found.active_version_id)
    return None if version is None else (found, version)


async def usable_template(
    deps: ApiDeps,
    caller: ApiCaller,
    *,
    name: str | None,
    template_id: TemplateId | None,
    on_own_runner: bool = False,
) -> tuple[Template, TemplateVersion]:
    """The selected template, if the caller can use it for new workspaces. Raises InvalidInput."""
    field = "template" if template_id is None else "template_id"
    if (name is None) == (template_id is None):
        raise InvalidInput(field, "give either template or template_id")
    if template_id is None:
        template_id = await _id_of(deps, name or "")
    found = None if template_id is None else await _with_version(deps, template_id)
    if found is None or not await templates.is_usable(
        deps.pool, caller.actor, caller.user_id, found[0], "workspaces.write"
    ):
        raise InvalidInput(field, "there is no such template")
    template, version = found
    if needs_own_runner(template) and not on_own_runner:
        raise InvalidInput(field, "its workspaces are on a runner of yours: give runner_id")
    if template.deprecated:
        raise InvalidInput(field, "the template is deprecated")
    if version.has_external_agent:
        raise InvalidInput(field, "the template needs an external agent, which chatd cannot start")
    return template, version


async def _id_of(deps: ApiDeps, name: str) -> TemplateId | None:
    found = await templates.list_all(deps.pool)
    lowered = name.lower()
    return next((one.id for one in found if one.name.lower() == lowered), None)


async def _own_runner(deps: ApiDeps, caller: ApiCaller, runner_id: RunnerId) -> Runner:
    """A runner is its owner's machine: nobody else puts workspaces there, administrators neither.
    Raises InvalidInput, Conflict."""
    found = await runners.get(deps.pool, caller.actor, runner_id)
    if found is None or found.runner.owner_id != caller.user_id:
        raise InvalidInput("runner_id", "you have started no such runner")
    if not is_connected(found.runner, found.now):
        text = f"The runner {found.runner.name} is not connected. Start it again."
        raise Conflict(text, code="runner_not_connected")
    return found.runner


_CREATE: Final = BodySpec(NewWorkspaceBody)
REFUSALS_TIMEOUT_S: Final = 5.0
"""The page shows what is known without them."""


class WorkspaceNetworkReply(Struct, frozen=True, kw_only=True):
    """What a workspace may reach, by the template version of its latest build."""

    mode: Annotated[
        Literal["none", "allow", "full"],
        describe(
            "`none`: nothing. `allow`: named hosts, through a proxy. `full`: the network of its"
            " host.",
            "allow",
        ),
    ]
    allow: Annotated[
        tuple[str, ...], describe("The hosts, with the mode `allow`.", ["*.example.com"])
    ] = ()
    credentials: Annotated[
        tuple[CredentialedHost, ...],
        describe("Those of them to whose requests the proxy adds a credential, never its value."),
    ] = ()
    refusals: Annotated[
        tuple[Refusal, ...], describe("What the proxy has refused, the latest first.")
    ] = ()
    refusals_unknown: Annotated[
        str | None,
        describe("Why the refusals could not be read.", "The workspace does not run: start it."),
    ] = None


class WorkspaceRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps

    def routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="GET /workspaces",
                permission="workspaces.read",
                summary="List workspaces, newest first, without deleted ones",
                handle=self.list_workspaces,
                query=ListQuery,
                replies={200: WorkspacePage},
            ),
            ApiRoute(
                endpoint="POST /workspaces",
                permission="workspaces.write",
                summary="Create a workspace from a template; its first build starts it",
                handle=self.create_workspace,
                body_spec=_CREATE,
                replies={201: WorkspaceReply},
                errors=("name_taken", "runner_not_connected", "workspaces_off"),
                keyed=True,
                starts_work=True,
            ),
            ApiRoute(
                endpoint="GET /workspaces/{workspace_id}",
                permission="workspaces.read",
                summary="Get a workspace with its latest build and that build's agents",
                handle=self.get_workspace,
                replies={200: WorkspaceReply},
            ),
            ApiRoute(
                endpoint="GET /workspaces/{workspace_id}/network",
                permission="workspaces.read",
                summary="Get what a workspace may reach, and what was refused",
                description="The latest 100 refused hosts are kept beside the proxy of the"
                " workspace; they can be read while it runs.",
                handle=self.get_workspace_network,
                replies={200: WorkspaceNetworkReply},
            ),
            ApiRoute(
                endpoint="DELETE /workspaces/{workspace_id}",
                permission="workspaces.control",
                summary="Delete a workspace with all its files, by a build",
                description="Repeated, it returns the same build.",
                handle=self.delete_workspace,
                replies={202: BuildReply},
                errors=("build_active", "workspace_deleted", "template_gone", "workspaces_off"),
                starts_work=True,
            ),
        )

    async def list_workspaces(self, request: ApiRequest) -> ApiReply:
        paging = Paging(request, request.query(ListQuery), TimePosition)
        actor = request.caller.actor
        last = paging.position
        after = None if last is None else (last.at, WorkspaceId(last.id))
        found = await self._deps.read(
            workspaces.list_page, actor, after=after, limit=paging.read_limit
        )
        shown, cursor = paging.cut(found, _position)
        builds = [each.build for each in shown]
        waits = await self._deps.read(explain_builds, actor, builds)
        return page_reply(WorkspacePage, (workspace_reply(each, waits) for each in shown), cursor)

    async def create_workspace(self, request: ApiRequest) -> ApiReply:
        deps, body = self._deps, await request.body(_CREATE)
        control, actor = require_workspaces(deps), request.caller.actor
        template_id, wanted, caller = body.template_id, body.runner_id, request.caller
        runner = None
        if wanted is not None:
            runner = await deps.retry(lambda: _own_runner(deps, caller, RunnerId(wanted)))
        is_here = runner is not None and body.template is None and template_id is None
        template, version = await deps.retry(
            lambda: usable_template(
                deps,
                caller,
                name=here_template(runner) if runner is not None and is_here else body.template,
                template_id=None if template_id is None else TemplateId(template_id),
                on_own_runner=runner is not None,
            ),
        )
        values = await _values(control, template, version, body.parameters, runner)
        new = self._new(request, control, body.name, template, version.spec)
        new = replace(new, version_id=version.id, params=values)
        if runner is not None:
            new = replace(new, host_id=runner.id, ttl_s=0 if is_here else new.ttl_s)
        created = await deps.retry(lambda: _insert(deps, actor, new, named=body.name is not None))
        if created.replayed:
            _check_same(created, new, named=body.name is not None)
        control.wake()
        found = await deps.read(
            workspaces.load_snapshot, actor, created.workspace.id, "workspaces.write"
        )
        headers = {"location": f"/api/v1/workspaces/{created.workspace.id}"}
        # Without a key, `again` means an earlier attempt of this request.
        if created.replayed and created.workspace.id != new.id:
            headers |= REPLAYED
        return reply(workspace_reply(require_workspace(found)), 201, headers)

    def _new(
        self,
        request: ApiRequest,
        control: WorkspaceControl,
        name: str | None,
        template: Template,
        spec: TemplateSpec,
    ) -> NewWorkspace:
        workspace_id = self._deps.env.new_id()
        return NewWorkspace(
            id=WorkspaceId(workspace_id),
            build_id=BuildId(self._deps.env.new_id()),
            owner_id=request.caller.user_id,
            template_id=template.id,
            version_id=template.active_version_id,
            name=_name(name, template, workspace_id.bytes),
            host_id=control.new_host(template, spec),
            ttl_s=workspace_ttl_s(control.ttl_s, template),
            made_by=request.request_key("workspace") or f"api:{workspace_id}",
        )

    async def get_workspace(self, request: ApiRequest) -> ApiReply:
        deps, workspace_id = self._deps, request.workspace_id
        actor = request.caller.actor
        found = await deps.read(workspaces.load_snapshot, actor, workspace_id)
        snapshot = require_workspace(found)
        waits = await deps.read(explain_builds, actor, [snapshot.build])
        return reply(workspace_reply(snapshot, waits))

    async def get_workspace_network(self, request: ApiRequest) -> ApiReply:
        deps, actor = self._deps, request.caller.actor
        snapshot = require_workspace(
            await deps.read(workspaces.load_snapshot, actor, request.workspace_id)
        )
        workspace, build = snapshot.workspace, snapshot.build
        assert workspace is not None
        version = None
        if build is not None:
            version_id = build.template_version_id
            version = await deps.retry(lambda: templates.get_version(deps.pool, version_id))
        spec = TemplateSpec() if version is None else version.spec
        if spec.network != "allow":
            return reply(WorkspaceNetworkReply(mode=spec.network))
        host_id = RunnerId(workspace.host_id or "")
        runner = await deps.read(runners.get, actor, host_id)
        is_own_runner = runner is not None and runner.runner.owner_id is not None
        hosts = await deps.retry(
            lambda: list_credentialed_hosts(
                deps.pool, workspace.owner_id, spec.allow, is_own_runner=is_own_runner
            )
        )
        refusals, problem = await self._refusals(workspace.id)
        return reply(
            WorkspaceNetworkReply(
                mode=spec.network,
                allow=spec.allow,
                credentials=tuple(hosts),
                refusals=refusals,
                refusals_unknown=problem,
            )
        )

    async def _refusals(self, workspace_id: WorkspaceId) -> tuple[tuple[Refusal, ...], str | None]:
        """And why they are not known."""
        control = self._deps.workspaces
        if control is None:
            return (), "This server has no workspaces."
        try:
            async with asyncio.timeout(REFUSALS_TIMEOUT_S):
                return tuple(await control.refusals(workspace_id)), None
        except ChatdError as error:
            return (), error.message
        except TimeoutError:
            return (), "The workspace agent did not answer in time."

    async def delete_workspace(self, request: ApiRequest) -> ApiReply:
        """A repeated delete returns the same build."""
        body = NewBuildBody(transition="delete")
        build, _ = await request_build(self._deps, request, body, joins=True)
        return reply(build_reply(build), 202)


def _position(seen: WorkspaceSnapshot) -> TimePosition:
    assert seen.workspace is not None
    return TimePosition(seen.workspace.created_at, seen.workspace.id)


def _name(given: str | None, template: Template, draw: bytes) -> str:
    if given is None:
        return generated_name(template.name, draw)
    if not is_valid_name(given):
        detail = "must be 1 to 32 letters and digits, with single dashes between them"
        raise InvalidInput("name", detail)
    return given


async def _values(
    control: WorkspaceControl,
    template: Template,
    version: TemplateVersion,
    given: Mapping[str, str],
    runner: Runner | None,
) -> Mapping[str, str]:
    """Raises InvalidFields, InvalidInput. What a user's own runner cannot do, its build reports."""
    resolved = resolve_parameters(version.parameters, validation.check_parameters(given))
    problems = resolved.problems
    if not problems and runner is None:
        problems = await control.find_problems(template, version.spec, resolved.values)
    if runner is not None and all(offer.kind != template.backend for offer in runner.backends):
        raise InvalidInput("runner_id", f"it offers no {template.backend} workspaces")
    if problems:
        raise parameters_error(problems)
    return resolved.values


async def _insert(
    deps: ApiDeps, actor: Actor, new: NewWorkspace, *, named: bool
) -> CreatedWorkspace:
    try:
        return await workspaces.create(deps.pool, actor, new)
    except WorkspaceNameTaken:
        if named:
            text = f"You already have a workspace named {new.name}. Choose another name."
            raise Conflict(text, code="name_taken") from None
    other = generated_name(new.name[:-5], new.id.bytes[2:])
    try:
        return await workspaces.create(deps.pool, actor, replace(new, name=other))
    except WorkspaceNameTaken:
        raise Conflict("No free name could be generated. Give a name.", code="name_taken") from None


def _check_same(created: CreatedWorkspace, new: NewWorkspace, *, named: bool) -> None:
    """Raises RequestReused if the key was used for a different workspace."""
    workspace, build = created.workspace, created.build
    same = (
        workspace.owner_id == new.owner_id
        and workspace.template_id == new.template_id
        and build.params == new.params
        and (not named or workspace.name == new.name)
    )
    if not same:
        raise RequestReused("This idempotency key was used for a different workspace.")
