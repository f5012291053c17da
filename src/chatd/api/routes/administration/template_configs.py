"""Routes by which administrators make, change and delete templates."""

from typing import Final

from chatd.api.deps import ApiDeps
from chatd.api.pages import ItemPosition, NumberPosition, Paging, cut_whole, page_reply
from chatd.api.request import (
    LARGE_BODY_BYTES,
    NO_CONTENT,
    ApiReply,
    ApiRequest,
    BodySpec,
    reply,
)
from chatd.api.route import PREFIX, ApiRoute
from chatd.domain.list_page import ListQuery
from chatd.services.workspaces.templates import (
    CreateTemplateBody,
    DuplicateTemplateBody,
    ReplaceTemplateBody,
    TemplateConfigPage,
    TemplateConfigReply,
    TemplateVersionItem,
    TemplateVersionPage,
    TemplateVersionReply,
)

CREATE: Final = BodySpec(CreateTemplateBody, LARGE_BODY_BYTES, is_closed=True)
REPLACE: Final = BodySpec(ReplaceTemplateBody, LARGE_BODY_BYTES, is_closed=True)
DUPLICATE: Final = BodySpec(DuplicateTemplateBody)
_ONE: Final = "/template-configs/{template_id}"
_VERSION: Final = f"{_ONE}/versions/{{version_id}}"
_PAST_THE_END: Final = 2**31 - 1


class TemplateConfigRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps
        self._service = deps.templates

    def routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="GET /template-configs",
                permission="config.read",
                summary="List all templates as administrators see them, by name",
                description="Also the presets: built-in templates and those of settings files.",
                handle=self.list_template_configs,
                query=ListQuery,
                replies={200: TemplateConfigPage},
            ),
            ApiRoute(
                endpoint="POST /template-configs",
                permission="config.write",
                summary="Create a template",
                description="Every replica offers it at once. Every command in a workspace, and so"
                " the model, can read the template's environment: secrets do not belong there.",
                handle=self.create_template,
                body_spec=CREATE,
                replies={201: TemplateConfigReply},
                errors=("name_taken", "too_many_templates"),
            ),
            ApiRoute(
                endpoint=f"GET {_ONE}",
                permission="config.read",
                summary="Get a template with the content of its active version",
                description="Administrators alone see values of the environment and the script.",
                handle=self.get_template_config,
                replies={200: TemplateConfigReply},
            ),
            ApiRoute(
                endpoint=f"PUT {_ONE}",
                permission="config.write",
                summary="Change a template; what is left out gets its default",
                description="A change of the spec, the parameters or the readme is a new version,"
                " which becomes the active one unless `activate` is false. Workspaces keep their"
                " version, unless the template requires the active one.",
                handle=self.replace_template,
                body_spec=REPLACE,
                replies={200: TemplateConfigReply},
                errors=(
                    *("name_taken", "template_is_preset", "version_conflict"),
                    "too_many_template_versions",
                ),
            ),
            ApiRoute(
                endpoint=f"DELETE {_ONE}",
                permission="config.write",
                summary="Delete a template; its workspaces go on",
                description="They can be started and stopped as before. Its name is free again.",
                handle=self.delete_template,
                replies={204: None},
                errors=("template_is_preset",),
            ),
            ApiRoute(
                endpoint=f"POST {_ONE}/duplicate",
                permission="config.write",
                summary="Make a template from another one, or from a preset",
                description="The copy has the content of the active version.",
                handle=self.duplicate_template,
                body_spec=DUPLICATE,
                replies={201: TemplateConfigReply},
                errors=("name_taken", "too_many_templates"),
            ),
            ApiRoute(
                endpoint=f"GET {_ONE}/versions",
                permission="config.read",
                summary="List the versions of a template, newest first",
                handle=self.list_template_versions,
                query=ListQuery,
                replies={200: TemplateVersionPage},
            ),
            ApiRoute(
                endpoint=f"GET {_VERSION}",
                permission="config.read",
                summary="Get a version of a template with its content",
                description="Administrators alone see values of the environment and the script.",
                handle=self.get_template_version,
                replies={200: TemplateVersionReply},
            ),
            ApiRoute(
                endpoint=f"POST {_VERSION}/activate",
                permission="config.write",
                summary="Make a version the active one, which new workspaces get",
                description="Refused if the version does not fit the template's backend.",
                handle=self.activate_template_version,
                replies={200: TemplateConfigReply},
                errors=("template_is_preset",),
            ),
        )

    async def list_template_configs(self, request: ApiRequest) -> ApiReply:
        paging = Paging(request, request.query(ListQuery), ItemPosition)
        actor = request.caller.actor
        found = await self._deps.retry(lambda: self._service.list_templates(actor))
        shown, cursor = cut_whole(paging, found, lambda one: one.id)
        return page_reply(TemplateConfigPage, shown, cursor)

    async def create_template(self, request: ApiRequest) -> ApiReply:
        body, by = await request.body(CREATE), self._deps.author(request)
        return _created(await self._service.create_template(by, body))

    async def get_template_config(self, request: ApiRequest) -> ApiReply:
        actor, template_id = request.caller.actor, request.template_id
        return reply(await self._deps.retry(lambda: self._service.get_template(actor, template_id)))

    async def replace_template(self, request: ApiRequest) -> ApiReply:
        body, by = await request.body(REPLACE), self._deps.author(request)
        return reply(await self._service.replace_template(by, request.template_id, body))

    async def delete_template(self, request: ApiRequest) -> ApiReply:
        await self._service.delete_template(self._deps.author(request), request.template_id)
        return NO_CONTENT

    async def duplicate_template(self, request: ApiRequest) -> ApiReply:
        body, by = await request.body(DUPLICATE), self._deps.author(request)
        return _created(await self._service.duplicate_template(by, request.template_id, body))

    async def list_template_versions(self, request: ApiRequest) -> ApiReply:
        paging = Paging(request, request.query(ListQuery), NumberPosition)
        actor, template_id, last = request.caller.actor, request.template_id, paging.position
        before = _PAST_THE_END if last is None else last.number
        found = await self._deps.retry(
            lambda: self._service.list_versions(
                actor, template_id, before=before, limit=paging.read_limit
            )
        )
        shown, cursor = paging.cut(found, _position)
        return page_reply(TemplateVersionPage, shown, cursor)

    async def get_template_version(self, request: ApiRequest) -> ApiReply:
        actor, template_id = request.caller.actor, request.template_id
        version_id = request.version_id
        found = await self._deps.retry(
            lambda: self._service.get_version(actor, template_id, version_id)
        )
        return reply(found)

    async def activate_template_version(self, request: ApiRequest) -> ApiReply:
        by, version_id = self._deps.author(request), request.version_id
        return reply(await self._service.activate_version(by, request.template_id, version_id))


def _position(version: TemplateVersionItem) -> NumberPosition:
    return NumberPosition(version.number)


def _created(made: TemplateConfigReply) -> ApiReply:
    return reply(made, 201, {"location": f"{PREFIX}/template-configs/{made.id}"})
