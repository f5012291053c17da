"""The templates as a model sees them: which there are, and what one of them asks for."""

import logging
from typing import Final

from msgspec import Struct

from chatd.domain.errors import ChatdError, ToolError
from chatd.domain.ids import UserId
from chatd.domain.ports import Clock
from chatd.domain.workspace.entities import (
    Parameter,
    ParameterOption,
    Template,
    TemplateId,
    TemplateVersion,
)
from chatd.domain.workspace.templates import list_templates, readme_excerpt
from chatd.store.conn import Conn
from chatd.store.workspace import templates

log = logging.getLogger(__name__)

README: Final = 8000
DESCRIPTION: Final = 200
PARAMETER: Final = 300
UNKNOWN: Final = "There is no such template. Call list_templates for those there are."
STEPS: Final = {
    "use_recommended": "Use the recommended template, unless the user wants another.",
    "ask_user": "Ask the user which template to use.",
    "no_match": "No template fits the query. Look without one.",
    "none": "There are no templates. Tell the user that one has to be set up first.",
}


class Offer(Struct, frozen=True, kw_only=True):
    template: Template
    version: TemplateVersion


class Item(Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    name: str
    display_name: str = ""
    description: str = ""
    readme_excerpt: str = ""
    your_workspace_count: int = 0
    last_used_by_you: str = ""


class Page(Struct, frozen=True, kw_only=True, omit_defaults=True):
    templates: tuple[Item, ...] | None = None
    page: int | None = None
    next_page: int | None = None
    recommended_template_id: str = ""
    next_step: str = ""


class Asked(Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    type: str
    required: bool | None = None
    display_name: str = ""
    description: str = ""
    default: str | None = None
    mutable: bool = False
    ephemeral: bool = False
    form_type: str = ""
    options: tuple[ParameterOption, ...] = ()
    validation_regex: str = ""
    validation_min: float | None = None
    validation_max: float | None = None


class About(Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    name: str
    active_version_id: str
    display_name: str = ""
    description: str = ""
    readme: str = ""
    network: str = ""


class Detail(Struct, frozen=True, kw_only=True):
    template: About
    parameters: tuple[Asked, ...]


class Catalogue:
    def __init__(self, conn: Conn, clock: Clock) -> None:
        self._conn = conn
        self._clock = clock

    async def listed(self, owner: UserId, *, query: str, page: int) -> Page:
        found = await templates.list_all(self._conn)
        try:
            signals = await templates.list_usage(self._conn, owner)
        except ChatdError as error:
            # They make the order better; without them there is still one.
            log.warning("no usage of templates: %s", error.message)
            signals = None
        listing = list_templates(found, signals, query=query, page=page, now=self._clock.now())
        shown = [ranked.template for ranked in listing.templates]
        readmes = await templates.readmes(self._conn, [t.active_version_id for t in shown])
        items = tuple(
            Item(
                id=str(ranked.template.id),
                name=ranked.template.name,
                display_name=ranked.template.display_name,
                description=ranked.template.description[:DESCRIPTION],
                readme_excerpt=readme_excerpt(readmes.get(ranked.template.active_version_id, "")),
                your_workspace_count=ranked.signal.active,
                last_used_by_you=""
                if ranked.signal.last_used_at is None
                else ranked.signal.last_used_at.isoformat(),
            )
            for ranked in listing.templates
        )
        return Page(
            templates=items,
            page=listing.page,
            next_page=listing.next_page,
            recommended_template_id="" if not listing.recommended else str(listing.recommended),
            next_step=STEPS[listing.next_step],
        )

    async def usable(self, template_id: TemplateId) -> Offer:
        """Raises ToolError, in the same words for one that is not there and one that is hidden."""
        template = await templates.get(self._conn, template_id)
        if template is None or template.deleted:
            raise ToolError(UNKNOWN)
        if not template.agents_allowed or template.deprecated:
            raise ToolError("This template is not available to chats. Call list_templates.")
        version = await templates.get_version(self._conn, template.active_version_id)
        if version is None:
            raise ToolError(UNKNOWN)
        if version.has_external_agent:
            raise ToolError(
                "Workspaces of this template run where chatd cannot start them: ask the user to"
                " start one."
            )
        return Offer(template=template, version=version)

    async def read(self, template_id: TemplateId) -> Detail:
        offer = await self.usable(template_id)
        template, version = offer.template, offer.version
        about = About(
            id=str(template.id),
            name=template.name,
            active_version_id=str(version.id),
            display_name=template.display_name,
            description=template.description,
            readme=readme_excerpt(version.readme, README),
            network=version.spec.network,
        )
        return Detail(template=about, parameters=tuple(map(_asked, version.parameters)))


def _asked(parameter: Parameter) -> Asked:
    return Asked(
        name=parameter.name,
        type=parameter.type,
        required=parameter.required,
        display_name=parameter.display_name,
        description=parameter.description[:PARAMETER],
        default=parameter.default,
        mutable=parameter.mutable,
        ephemeral=parameter.ephemeral,
        form_type=parameter.form_type,
        options=parameter.options,
        validation_regex=parameter.regex,
        validation_min=parameter.min,
        validation_max=parameter.max,
    )
