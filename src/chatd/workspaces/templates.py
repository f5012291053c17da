"""Templates: those of the server and its settings, written to rows at every start, and the catalog
that a model reads.

Ids derive from names and contents, so all replicas write the same rows, any number of times. A
changed template is a new version.
"""

import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, Literal
from uuid import UUID, uuid5

import msgspec
from msgspec import Struct

from chatd.domain.access.permissions import WORKER
from chatd.domain.errors import ChatdError, ToolError
from chatd.domain.ids import ProjectId, UserId
from chatd.domain.ports import Clock, Env
from chatd.domain.text import utc_text
from chatd.domain.workspace.entities import (
    DemoSeed,
    GitSeed,
    Parameter,
    ParameterOption,
    ResourceLimits,
    Template,
    TemplateId,
    TemplateSpec,
    TemplateVersion,
    VersionId,
)
from chatd.domain.workspace.runners import DIRECTORY_PARAMETER, HERE_TEMPLATES, BackendKind
from chatd.domain.workspace.template_definition import TemplateDefinition
from chatd.domain.workspace.templates import list_templates, readme_excerpt
from chatd.log_event import LogEvent
from chatd.store import projects
from chatd.store.database.conn import Conn
from chatd.store.workspace import templates

_SPACE: Final = UUID("5c1b7f0e-9a53-4c0f-8d2e-7a6f3f1f0b55")
_NO_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)  # the database sets its own


def _here(backend: BackendKind, description: str) -> TemplateDefinition:
    """The person who starts the runner chooses the directory and the network, and it is their own
    machine: nothing stops or limits the workspace."""
    limits = ResourceLimits(
        memory_bytes=0, processes=0, file_bytes=0, disk_bytes=0, open_files=0, cpu_weight=0
    )
    return TemplateDefinition(
        name=HERE_TEMPLATES[backend],
        display_name="Here",
        description=description,
        backend=backend,
        agents_allowed=False,
        spec=TemplateSpec(limits=limits),
        parameters=(
            Parameter(
                name=DIRECTORY_PARAMETER,
                required=True,
                mutable=False,
                display_name="Directory",
                description="The directory for which the runner was started.",
            ),
        ),
    )


_WORKDAY_S: Final = 8 * 3600
"""No user chooses a time to live for these templates, so an unused workspace stops by itself."""

BUILT_IN_TEMPLATES: Final = (
    TemplateDefinition(
        name="scratch",
        default_ttl_s=_WORKDAY_S,
        display_name="Scratch",
        description="An empty directory, or a clone of a repository. Commands have no network.",
        readme="An empty home directory with the tools of the host. Give `repository` to begin "
        "with a clone of it.",
        spec=TemplateSpec(seed=GitSeed(url="${repository}", ref="${ref}"), network="none"),
        parameters=(
            Parameter(
                name="repository",
                display_name="Repository",
                description="Address of a git repository to clone; empty for none.",
                default="",
                mutable=False,
                regex=r"^(|https?://\S+)$",
                regex_error="It must be the http(s) address of a git repository, or empty.",
            ),
            Parameter(
                name="ref",
                display_name="Branch or tag",
                description="What to check out; empty for the default branch.",
                default="",
                mutable=False,
                regex=r"^(|[A-Za-z0-9_][A-Za-z0-9._/-]*)$",
                regex_error="It must be the name of a branch or a tag, or empty.",
            ),
        ),
    ),
    TemplateDefinition(
        name="demo",
        default_ttl_s=_WORKDAY_S,
        display_name="Demo",
        description="A small Python repository with a failing test, to try things out.",
        readme="A few files of Python and a test that fails. Ask the model to repair it.",
        spec=TemplateSpec(
            seed=DemoSeed(), network="none", directory="demo", desktop=True, browser=True
        ),
    ),
    _here("sandbox", "The directory in which chatd chat --here or chatd run --here was started."),
    _here("machine", "The same without a sandbox: commands can do what that person can."),
)


def template_rows(
    file: TemplateDefinition, origin: Literal["builtin", "settings"]
) -> templates.TemplateUpsert:
    """Ids of a preset: the same file gives the same ids on every replica."""
    template_id = TemplateId(uuid5(_SPACE, f"{origin}:{file.name.lower()}"))
    content = (file.spec, file.parameters, file.readme)
    text = msgspec.json.encode(content, order="deterministic").decode()
    version_id = VersionId(uuid5(template_id, text))
    return make_rows(file, origin, template_id, version_id, version_id)


def make_rows(
    defined: TemplateDefinition,
    origin: Literal["builtin", "settings", "user"],
    template_id: TemplateId,
    version_id: VersionId,
    active_id: VersionId,
) -> templates.TemplateUpsert:
    """The template, and the version with the content of its definition."""
    version = TemplateVersion(
        id=version_id,
        template_id=template_id,
        spec=defined.spec,
        readme=defined.readme,
        parameters=defined.parameters,
        created_at=_NO_TIME,
    )
    template = Template(
        id=template_id,
        name=defined.name,
        display_name=defined.display_name,
        description=defined.description,
        icon=defined.icon,
        backend=defined.backend,
        origin=origin,
        active_version_id=active_id,
        agents_allowed=defined.agents_allowed,
        default_ttl_s=defined.default_ttl_s,
        activity_bump_s=defined.activity_bump_s,
        max_ttl_s=defined.max_ttl_s,
        require_active_version=defined.require_active_version,
        users=defined.users,
        groups=defined.groups,
        created_at=_NO_TIME,
        updated_at=_NO_TIME,
    )
    return templates.TemplateUpsert(template=template, version=version)


async def sync_templates(
    conn: Conn, env: Env, settings: Sequence[TemplateDefinition] = (), *, built_in: bool = True
) -> list[Template]:
    """Write the settings' templates, then the built-in ones with free names. Templates that
    are no longer in the settings are deprecated."""
    wanted = [template_rows(file, "settings") for file in settings]
    stored = await _upsert_all(conn, env, wanted)
    await templates.deprecate_missing(conn, "settings", [put.template.id for put in wanted])
    if built_in:
        named = {file.name.lower() for file in settings}
        others = [template_rows(f, "builtin") for f in BUILT_IN_TEMPLATES if f.name not in named]
        stored += await _upsert_all(conn, env, others)
    return stored


async def _upsert_all(
    conn: Conn, env: Env, wanted: Sequence[templates.TemplateUpsert]
) -> list[Template]:
    stored: list[Template] = []
    for put in wanted:
        try:
            found = await templates.upsert_template(conn, put)
        except templates.TemplateNameTaken as error:
            env.emit("template_skipped", template=put.template.name, error_kind=error.code)
            continue
        if found is not None:
            stored.append(found)
    return stored


log = logging.getLogger(__name__)

MAX_README_CHARS: Final = 8000
MAX_DESCRIPTION_CHARS: Final = 200
MAX_PARAMETER_CHARS: Final = 300
UNKNOWN_TEMPLATE_TEXT: Final = "There is no such template. Call list_templates."
NEXT_STEP_TEXTS: Final = {
    "use_recommended": "Use the recommended template, unless the user wants another.",
    "ask_user": "Ask the user which template to use.",
    "no_match": "No template fits the query. Call list_templates without a query.",
    "none": "There are no templates. Tell the user that one has to be set up first.",
}


class UsableTemplate(Struct, frozen=True, kw_only=True):
    template: Template
    version: TemplateVersion


class TemplateListItem(Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    name: str
    display_name: str = ""
    description: str = ""
    readme_excerpt: str = ""
    your_workspace_count: int = 0
    last_used_by_you: str = ""


class TemplateListPage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    templates: tuple[TemplateListItem, ...] | None = None
    page: int | None = None
    next_page: int | None = None
    recommended_template_id: str = ""
    next_step: str = ""


class ParameterInfo(Struct, frozen=True, kw_only=True, omit_defaults=True):
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


class TemplateSummary(Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    name: str
    active_version_id: str
    display_name: str = ""
    description: str = ""
    readme: str = ""
    network: str = ""
    desktop: bool = False
    browser: bool = False


class TemplateDetail(Struct, frozen=True, kw_only=True):
    template: TemplateSummary
    parameters: tuple[ParameterInfo, ...]


class TemplateCatalog:
    def __init__(self, conn: Conn, clock: Clock) -> None:
        self._conn = conn
        self._clock = clock

    async def list_page(
        self, owner: UserId, *, query: str, page: int, project_id: ProjectId | None = None
    ) -> TemplateListPage:
        """The default template of the project is recommended, if the owner may use it."""
        found = await templates.list_usable(self._conn, WORKER, owner)
        try:
            signals = await templates.list_usage(self._conn, WORKER, owner)
        except ChatdError as error:
            # Usage only improves the order.
            why = "templates are listed without regard to their use"
            fields = {"error_kind": error.code}
            log.warning(
                LogEvent(event="template_usage_read_failed", fields=fields, explanation=why)
            )
            signals = None
        brief = None if project_id is None else await projects.read_brief(self._conn, project_id)
        listing = list_templates(
            found,
            signals,
            query=query,
            page=page,
            preferred="" if brief is None else brief.template,
            now=self._clock.now(),
        )
        shown = [ranked.template for ranked in listing.templates]
        readmes = await templates.list_readmes(self._conn, [t.active_version_id for t in shown])
        items = tuple(
            TemplateListItem(
                id=str(ranked.template.id),
                name=ranked.template.name,
                display_name=ranked.template.display_name,
                description=ranked.template.description[:MAX_DESCRIPTION_CHARS],
                readme_excerpt=readme_excerpt(readmes.get(ranked.template.active_version_id, "")),
                your_workspace_count=ranked.signal.active,
                last_used_by_you=""
                if ranked.signal.last_used_at is None
                else utc_text(ranked.signal.last_used_at),
            )
            for ranked in listing.templates
        )
        return TemplateListPage(
            templates=items,
            page=listing.page,
            next_page=listing.next_page,
            recommended_template_id="" if not listing.recommended else str(listing.recommended),
            next_step=NEXT_STEP_TEXTS[listing.next_step],
        )

    async def get_usable(self, owner: UserId, wanted: str) -> UsableTemplate:
        """The template with this id or name. Raises ToolError, with one message for a missing and a
        deleted template, and for one that the owner may not use."""
        template = await self._find(wanted.strip())
        if template is None or template.deleted:
            raise ToolError(UNKNOWN_TEMPLATE_TEXT)
        if not await templates.is_usable(self._conn, WORKER, owner, template, "workspaces.write"):
            raise ToolError(UNKNOWN_TEMPLATE_TEXT)
        if not template.agents_allowed or template.deprecated:
            raise ToolError("This template is not available to chats. Call list_templates.")
        version = await templates.get_version(self._conn, template.active_version_id)
        if version is None:
            raise ToolError(UNKNOWN_TEMPLATE_TEXT)
        if version.has_external_agent:
            raise ToolError(
                "Workspaces of this template run where chatd cannot start them: ask the user to"
                " start one."
            )
        return UsableTemplate(template=template, version=version)

    async def _find(self, wanted: str) -> Template | None:
        """Names are unique without case among templates that are not deleted."""
        try:
            return await templates.get(self._conn, TemplateId(UUID(wanted)))
        except ValueError:
            named = await templates.list_all(self._conn)
            fitting = (one for one in named if one.name.casefold() == wanted.casefold())
            return next(fitting, None)

    async def read(self, owner: UserId, wanted: str) -> TemplateDetail:
        offer = await self.get_usable(owner, wanted)
        template, version = offer.template, offer.version
        about = TemplateSummary(
            id=str(template.id),
            name=template.name,
            active_version_id=str(version.id),
            display_name=template.display_name,
            description=template.description,
            readme=readme_excerpt(version.readme, MAX_README_CHARS),
            network=version.spec.network,
            desktop=version.spec.desktop,
            browser=version.spec.browser,
        )
        return TemplateDetail(
            template=about, parameters=tuple(map(_parameter_info, version.parameters))
        )


def _parameter_info(parameter: Parameter) -> ParameterInfo:
    return ParameterInfo(
        name=parameter.name,
        type=parameter.type,
        required=parameter.required,
        display_name=parameter.display_name,
        description=parameter.description[:MAX_PARAMETER_CHARS],
        default=parameter.default,
        mutable=parameter.mutable,
        ephemeral=parameter.ephemeral,
        form_type=parameter.form_type,
        options=parameter.options,
        validation_regex=parameter.regex,
        validation_min=parameter.min,
        validation_max=parameter.max,
    )
