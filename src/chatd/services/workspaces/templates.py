"""Templates as administrators make and change them.

A template has versions: a change of its spec, its parameters or its readme is a new one. Built-in
templates and those of a settings file are presets, which can be duplicated and not changed. Nothing
caches templates: every replica reads the row when a workspace is created. Bodies and replies are
here too; docstrings are part of the OpenAPI document.
"""

import shutil
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Annotated, Any, ClassVar, Final, Literal

from msgspec import Meta, Struct, convert
from msgspec.structs import asdict, replace

from chatd.agent.browser.browser_server import BROWSER_PACKAGE, find_browser
from chatd.agent.desktop.desktop_server import missing_programs
from chatd.agent.desktop.recorder import RECORDER
from chatd.domain.access.permissions import Actor, has_permission
from chatd.domain.description import CREATED_AT, TEMPLATE_ID, UPDATED_AT, VERSION_ID, describe
from chatd.domain.errors import Conflict, InvalidInput, NotFound
from chatd.domain.list_page import ListPage
from chatd.domain.ports import Env
from chatd.domain.workspace.entities import (
    Network,
    Parameter,
    Template,
    TemplateId,
    TemplateSpec,
    TemplateVersion,
    VersionId,
)
from chatd.domain.workspace.template_definition import (
    TemplateDefinition,
    can_change,
    can_delete,
    changed_fields,
    definition_of,
    is_same_content,
    require_valid,
)
from chatd.store.account import audit
from chatd.store.account.audit import ChangeAuthor
from chatd.store.database.conn import DatabaseSession
from chatd.store.database.pool import Pool
from chatd.store.workspace import templates
from chatd.store.workspace.templates import ConfiguredTemplate, VersionLine
from chatd.workspaces.templates import make_rows

_EXAMPLE: Final[Mapping[str, object]] = {
    "name": "python",
    "description": "Python with pytest",
    "backend": "container",
    "spec": {"image": "docker.io/library/python:3.13", "network": "none"},
}


class CreateTemplateBody(TemplateDefinition, frozen=True, kw_only=True):
    """A new template, with its first version."""

    openapi_example: ClassVar[Mapping[str, object]] = _EXAMPLE


class ReplaceTemplateBody(TemplateDefinition, frozen=True, kw_only=True):
    """A template as it shall be: what is left out gets its default."""

    openapi_example: ClassVar[Mapping[str, object]] = _EXAMPLE

    activate: Annotated[
        bool, describe("Whether a new version becomes the active one; else it is only stored.")
    ] = True
    updated_at: Annotated[
        Annotated[datetime, Meta(tz=True)] | None,
        describe(
            "The `updated_at` that was read: refused if the template has changed since. Left out:"
            " not compared.",
            UPDATED_AT,
        ),
    ] = None


class DuplicateTemplateBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The copy of a template."""

    name: Annotated[str, describe("The name of the copy.", "python-gpu")]
    display_name: Annotated[
        str | None, describe("Its name for people; null: that of the template.", "Python, GPU")
    ] = None


class TemplateConfigItem(Struct, frozen=True, kw_only=True):
    """A template in a list for administrators."""

    id: Annotated[TemplateId, describe("The template's id.", TEMPLATE_ID)]
    name: Annotated[str, describe("Its name.", "python")]
    display_name: Annotated[str, describe("Its name for people.", "Python")]
    description: Annotated[str, describe("What it is for.", "Python with pytest")]
    icon: Annotated[str, describe("The address of its icon.", "/icon/python.svg")]
    backend: Annotated[str, describe("What builds its workspaces.", "sandbox")]
    origin: Annotated[
        Literal["builtin", "settings", "user"],
        describe(
            "`user`: an administrator made it. Others are presets, which cannot be changed here.",
            "user",
        ),
    ]
    deprecated: Annotated[bool, describe("Whether no settings file has it any more.")]
    agents_allowed: Annotated[bool, describe("Whether chats may create workspaces from it.")]
    default_ttl_s: Annotated[
        int, describe("How long an unused workspace runs, in seconds; 0: without limit.", 28800)
    ]
    activity_bump_s: Annotated[int, describe("By how many seconds use extends that.", 3600)]
    max_ttl_s: Annotated[
        int, describe("The longest run, in seconds, whatever the use; 0: without limit.", 0)
    ]
    require_active_version: Annotated[
        bool, describe("Whether a workspace gets the active version at its next start.")
    ]
    users: Annotated[tuple[str, ...], describe("Users who may use it.", ["ada"])]
    groups: Annotated[tuple[str, ...], describe("Groups that may use it.", ["data"])]
    active_version_id: Annotated[
        VersionId, describe("The version that new workspaces get.", VERSION_ID)
    ]
    version_number: Annotated[int, describe("The number of that version, from 1.", 3)]
    version_count: Annotated[int, describe("How many versions there are.", 3)]
    workspace_count: Annotated[int, describe("How many workspaces of it exist.", 12)]
    pool: Annotated[str, describe("The pool of runners; empty: the servers themselves.", "gpu")]
    image: Annotated[str, describe("The image of containers and pods.", "debian:13")]
    network: Annotated[
        Network, describe("What its workspaces reach: nothing, named hosts or all.", "none")
    ]
    desktop: Annotated[bool, describe("Whether its workspaces have a desktop.")]
    browser: Annotated[bool, describe("Whether its workspaces have a browser.")]
    missing_packages: Annotated[
        tuple[str, ...],
        describe(
            "Packages of Debian that a desktop and a browser need, and that the host of this server"
            " lacks. Empty for templates whose workspaces have programs of their own: those with an"
            " image or a pool.",
            ["ffmpeg"],
        ),
    ]
    created_at: Annotated[datetime, describe("When it was created.", CREATED_AT)]
    updated_at: Annotated[datetime, describe("When it last changed.", UPDATED_AT)]


class TemplateConfigPage(ListPage[TemplateConfigItem], frozen=True, kw_only=True):
    """A page of templates, as administrators see them."""


_REDACTED: Final = describe(
    "Whether values of the environment and the script are left out: administrators alone see them."
)


class TemplateConfigReply(TemplateConfigItem, frozen=True, kw_only=True):
    """A template with the content of its active version."""

    readme: Annotated[str, describe("Its documentation, in Markdown.", "# Python")]
    parameters: Annotated[tuple[Parameter, ...], describe("What a workspace can choose.")]
    spec: Annotated[TemplateSpec, describe("How its workspaces are built.")]
    is_redacted: Annotated[bool, _REDACTED]


class TemplateVersionItem(Struct, frozen=True, kw_only=True):
    """A version of a template in a list."""

    id: Annotated[VersionId, describe("The version's id.", VERSION_ID)]
    number: Annotated[int, describe("Its number, from 1.", 3)]
    is_active: Annotated[bool, describe("Whether new workspaces get it.")]
    workspace_count: Annotated[
        int, describe("How many workspaces were last started, stopped or built with it.", 12)
    ]
    created_at: Annotated[datetime, describe("When it was made.", CREATED_AT)]


class TemplateVersionPage(ListPage[TemplateVersionItem], frozen=True, kw_only=True):
    """A page of versions, newest first."""


class TemplateVersionReply(Struct, frozen=True, kw_only=True):
    """A version of a template with its content."""

    id: Annotated[VersionId, describe("The version's id.", VERSION_ID)]
    number: Annotated[int, describe("Its number, from 1.", 3)]
    is_active: Annotated[bool, describe("Whether new workspaces get it.")]
    created_at: Annotated[datetime, describe("When it was made.", CREATED_AT)]
    readme: Annotated[str, describe("Its documentation, in Markdown.", "# Python")]
    parameters: Annotated[tuple[Parameter, ...], describe("What a workspace can choose.")]
    spec: Annotated[TemplateSpec, describe("How workspaces are built with it.")]
    is_redacted: Annotated[bool, _REDACTED]


class TemplateAdministration:
    def __init__(self, pool: Pool, env: Env) -> None:
        self._pool = pool
        self._env = env

    async def list_templates(self, actor: Actor) -> Sequence[TemplateConfigItem]:
        return [_item(one) for one in await templates.list_configured(self._pool, actor)]

    async def get_template(self, actor: Actor, template_id: TemplateId) -> TemplateConfigReply:
        found = await templates.get_configured(self._pool, actor, template_id)
        if found is None:
            raise _missing()
        version = await self._version(found.template, found.template.active_version_id)
        return TemplateConfigReply(**asdict(_item(found)), **_content(actor, version))

    async def list_versions(
        self, actor: Actor, template_id: TemplateId, *, before: int, limit: int
    ) -> Sequence[TemplateVersionItem]:
        found = await self._get(template_id)
        lines = await templates.list_versions(
            self._pool, actor, template_id, before=before, limit=limit
        )
        return [_version_item(found, line) for line in lines]

    async def get_version(
        self, actor: Actor, template_id: TemplateId, version_id: VersionId
    ) -> TemplateVersionReply:
        found = await self._get(template_id)
        number = await templates.version_number(self._pool, actor, template_id, version_id)
        version = await self._version(found, version_id)
        return TemplateVersionReply(
            id=version.id,
            number=number or 0,
            is_active=version.id == found.active_version_id,
            created_at=version.created_at,
            **_content(actor, version),
        )

    async def create_template(
        self, by: ChangeAuthor, defined: TemplateDefinition
    ) -> TemplateConfigReply:
        """Raises InvalidTemplate, and Conflict for a taken name."""
        return await self._insert(by, _plain(defined), {})

    async def duplicate_template(
        self, by: ChangeAuthor, template_id: TemplateId, body: DuplicateTemplateBody
    ) -> TemplateConfigReply:
        """Also of a preset. Raises InvalidTemplate, and Conflict for a taken name."""
        found = await self._get(template_id)
        version = await self._version(found, found.active_version_id)
        copy = replace(definition_of(found, version), name=body.name)
        if body.display_name is not None:
            copy = replace(copy, display_name=body.display_name)
        return await self._insert(by, copy, {"copy_of": found.name})

    async def _insert(
        self, by: ChangeAuthor, defined: TemplateDefinition, detail: Mapping[str, object]
    ) -> TemplateConfigReply:
        require_valid(defined)
        template_id = TemplateId(self._env.new_id())
        version_id = VersionId(self._env.new_id())
        async with self._change(by, template_id, "create", {"name": defined.name, **detail}) as s:
            upsert = make_rows(defined, "user", template_id, version_id, version_id)
            await templates.write_template(s, by.actor, upsert)
        return await self.get_template(by.actor, template_id)

    async def replace_template(
        self, by: ChangeAuthor, template_id: TemplateId, body: ReplaceTemplateBody
    ) -> TemplateConfigReply:
        """A new version if its content differs from that of the active one. Raises InvalidTemplate,
        and Conflict for a preset, a taken name, and a change by another request."""
        defined = _plain(body)
        require_valid(defined)
        detail: dict[str, object] = {}
        async with self._change(by, template_id, "update", detail) as session:
            known = await _find_own(session, by.actor, template_id)
            if body.updated_at is not None and body.updated_at != known.updated_at:
                text = "The template was changed meanwhile. Read it again, then decide."
                raise Conflict(text, code="version_conflict")
            version = await templates.get_version(session, known.active_version_id)
            before = definition_of(known, version) if version is not None else None
            if known.backend != defined.backend:
                await _require_unused(session, template_id)
            version_id = known.active_version_id
            if before is None or not is_same_content(before, defined):
                version_id = VersionId(self._env.new_id())
            active_id = version_id if body.activate else known.active_version_id
            upsert = make_rows(defined, "user", template_id, version_id, active_id)
            await templates.write_template(session, by.actor, upsert)
            detail["name"] = defined.name
            detail["fields"] = () if before is None else changed_fields(before, defined)
        return await self.get_template(by.actor, template_id)

    async def activate_version(
        self, by: ChangeAuthor, template_id: TemplateId, version_id: VersionId
    ) -> TemplateConfigReply:
        """Raises InvalidTemplate if the version does not fit the template's backend of today."""
        detail: dict[str, object] = {}
        async with self._change(by, template_id, "activate", detail) as session:
            known = await _find_own(session, by.actor, template_id)
            number = await templates.version_number(session, by.actor, template_id, version_id)
            version = await templates.get_version(session, version_id)
            if number is None or version is None:
                raise NotFound("The template has no such version.")
            require_valid(definition_of(known, version))
            await templates.activate_version(session, by.actor, template_id, version_id)
            detail |= {"name": known.name, "version": number}
        return await self.get_template(by.actor, template_id)

    async def delete_template(self, by: ChangeAuthor, template_id: TemplateId) -> None:
        """Its workspaces go on. Raises Conflict for a preset."""
        detail: dict[str, object] = {}
        async with self._change(by, template_id, "delete", detail) as session:
            known = await templates.find_to_change(session, by.actor, template_id)
            if known is None:
                raise _missing()
            if not can_delete(known):
                raise _preset(known)
            await templates.delete_template(session, by.actor, template_id)
            detail["name"] = known.name

    @asynccontextmanager
    async def _change(
        self, by: ChangeAuthor, template_id: TemplateId, verb: str, detail: Mapping[str, object]
    ) -> AsyncGenerator[DatabaseSession]:
        """The audit log gets the names of the changed fields, not their values. `detail` is read
        at the end."""
        async with self._pool.transaction() as session:
            yield session
            await audit.record(
                session,
                by.actor,
                action=f"template.{verb}",
                object_type="template",
                object_id=template_id,
                ip=by.ip,
                detail=detail,
            )

    async def _get(self, template_id: TemplateId) -> Template:
        found = await templates.get(self._pool, template_id)
        if found is None or found.deleted:
            raise _missing()
        return found

    async def _version(self, template: Template, version_id: VersionId) -> TemplateVersion:
        found = await templates.get_version(self._pool, version_id)
        if found is None or found.template_id != template.id:
            raise NotFound("The template has no such version.")
        return found


async def _find_own(session: DatabaseSession, actor: Actor, template_id: TemplateId) -> Template:
    known = await templates.find_to_change(session, actor, template_id)
    if known is None:
        raise _missing()
    if not can_change(known):
        raise _preset(known)
    return known


async def _require_unused(session: DatabaseSession, template_id: TemplateId) -> None:
    """Another backend would not find the workspaces that this one made."""
    count = await templates.count_workspaces(session, template_id)
    if count:
        workspaces = "1 workspace" if count == 1 else f"{count} workspaces"
        raise InvalidInput(
            "backend", f"cannot change: the template has {workspaces}. Duplicate it instead"
        )


def _missing() -> NotFound:
    return NotFound("There is no such template.")


def _preset(template: Template) -> Conflict:
    where = "is built in" if template.origin == "builtin" else "comes from a settings file"
    text = f"The template {template.name} {where}. Duplicate it, and change the copy."
    return Conflict(text, code="template_is_preset")


def _plain(given: TemplateDefinition) -> TemplateDefinition:
    """Without what the body of a request adds."""
    return TemplateDefinition(
        **{name: getattr(given, name) for name in TemplateDefinition.__struct_fields__}
    )


def _item(found: ConfiguredTemplate) -> TemplateConfigItem:
    columns = {
        **asdict(found.template),
        "version_number": found.number,
        "version_count": found.versions,
        "workspace_count": found.workspaces,
        **{
            name: getattr(found, name)
            for name in ("pool", "image", "network", "desktop", "browser")
        },
        "missing_packages": () if found.pool or found.image else _missing_packages(),
    }
    return convert(columns, TemplateConfigItem)


def _missing_packages() -> tuple[str, ...]:
    """What workspaces of this host lack for a desktop that is recorded, and for a browser."""
    missing = missing_programs()
    if shutil.which(RECORDER) is None:
        missing.append(RECORDER)
    return (*missing, *(() if find_browser() else (BROWSER_PACKAGE,)))


def _version_item(template: Template, line: VersionLine) -> TemplateVersionItem:
    return TemplateVersionItem(
        id=line.id,
        number=line.number,
        is_active=line.id == template.active_version_id,
        workspace_count=line.workspaces,
        created_at=line.created_at,
    )


def _content(actor: Actor, version: TemplateVersion) -> dict[str, Any]:
    """A viewer reads the configuration, but no values of the environment."""
    spec, is_redacted = version.spec, not has_permission(actor, "config.write")
    if is_redacted:
        spec = replace(spec, env=dict.fromkeys(spec.env, ""), startup_script="")
    return {
        "readme": version.readme,
        "parameters": version.parameters,
        "spec": spec,
        "is_redacted": is_redacted,
    }
