"""Routes that list templates, and the template that a request selects."""

from chatd.api.auth import ApiCaller
from chatd.api.deps import ApiDeps
from chatd.api.pages import ItemPosition, Paging, cut_whole
from chatd.api.request import ApiReply, ApiRequest, reply
from chatd.api.route import ApiRoute
from chatd.api.schemas.workspaces import TemplatePage, TemplateReply, template_item, template_reply
from chatd.domain.errors import InvalidInput, NotFound
from chatd.domain.list_page import ListQuery
from chatd.domain.workspace.entities import Template, TemplateId, TemplateVersion
from chatd.store.workspace import templates


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
        found = await deps.retry(
            lambda: templates.list_usable(deps.pool, caller.actor, caller.user_id)
        )
        shown, cursor = cut_whole(paging, found, lambda row: row.id)
        items = tuple(map(template_item, shown))
        return reply(TemplatePage(items=items, has_more=cursor is not None, next_cursor=cursor))

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
    deps: ApiDeps, caller: ApiCaller, *, name: str | None, template_id: TemplateId | None
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
    if template.deprecated:
        raise InvalidInput(field, "the template is deprecated")
    if version.has_external_agent:
        raise InvalidInput(field, "the template needs an external agent, which chatd cannot start")
    return template, version


async def _id_of(deps: ApiDeps, name: str) -> TemplateId | None:
    found = await templates.list_all(deps.pool)
    lowered = name.lower()
    return next((one.id for one in found if one.name.lower() == lowered), None)
