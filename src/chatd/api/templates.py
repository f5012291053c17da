"""Templates: which there are, and what each of them asks for. They are declared in the settings."""

from chatd.aio.backoff import retry_unavailable
from chatd.api.call import Call, Reply, Route, reply
from chatd.api.doors import Doors
from chatd.api.workspace_shapes import template_item, template_reply
from chatd.api.workspace_wire import TemplateItem, TemplateReply
from chatd.domain.errors import InvalidInput, NotFound
from chatd.domain.workspace.entities import Template, TemplateId, TemplateVersion
from chatd.store.workspace import templates


class TemplateRoutes:
    def __init__(self, doors: Doors) -> None:
        self._doors = doors

    def routes(self) -> tuple[Route, ...]:
        return (
            Route(
                method="GET",
                path="/templates",
                name="list_templates",
                summary="What workspaces can be made from, by name",
                handle=self.list,
                gives={200: list[TemplateItem]},
            ),
            Route(
                method="GET",
                path="/templates/{template_id}",
                name="get_template",
                summary="One template, with the parameters that it asks for",
                handle=self.get,
                gives={200: TemplateReply},
            ),
        )

    async def list(self, call: Call) -> Reply:
        del call
        doors = self._doors
        found = await retry_unavailable(doors.env.clock, lambda: templates.list_all(doors.pool))
        return reply([template_item(one) for one in found])

    async def get(self, call: Call) -> Reply:
        doors, template_id = self._doors, call.template_id
        found = await retry_unavailable(doors.env.clock, lambda: _with_version(doors, template_id))
        if found is None:
            raise NotFound("There is no such template.")
        return reply(template_reply(*found))


async def _with_version(
    doors: Doors, template_id: TemplateId
) -> tuple[Template, TemplateVersion] | None:
    found = await templates.get(doors.pool, template_id)
    if found is None or found.deleted:
        return None
    version = await templates.get_version(doors.pool, found.active_version_id)
    return None if version is None else (found, version)


async def usable_template(
    doors: Doors, *, name: str | None, template_id: TemplateId | None
) -> tuple[Template, TemplateVersion]:
    """The one that is meant, if workspaces can be made of it. Raises InvalidInput."""
    field = "template" if template_id is None else "template_id"
    if (name is None) == (template_id is None):
        raise InvalidInput(field, "give either the name or the id of a template")
    if template_id is None:
        template_id = await _id_of(doors, name or "")
    found = None if template_id is None else await _with_version(doors, template_id)
    if found is None:
        raise InvalidInput(field, "there is no such template")
    template, version = found
    if template.deprecated:
        raise InvalidInput(field, "the template is not offered any more")
    if version.has_external_agent:
        raise InvalidInput(field, "workspaces of this template cannot be started from here")
    return template, version


async def _id_of(doors: Doors, name: str) -> TemplateId | None:
    found = await templates.list_all(doors.pool)
    wanted = name.lower()
    return next((one.id for one in found if one.name.lower() == wanted), None)
