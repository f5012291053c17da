"""Templates that come with the server or with its settings: put into the rows at every start.

Their ids are made of their names and contents, so all replicas put the same rows, as often as
they like; a changed template is a new version of the old one.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, Literal
from uuid import UUID, uuid5

import msgspec
from msgspec import Struct

from chatd.domain.ports import Env
from chatd.domain.workspace.entities import (
    DemoSeed,
    GitSeed,
    Parameter,
    Template,
    TemplateId,
    TemplateSpec,
    TemplateVersion,
    VersionId,
)
from chatd.store.conn import Conn
from chatd.store.workspace import templates

_SPACE: Final = UUID("5c1b7f0e-9a53-4c0f-8d2e-7a6f3f1f0b55")
_NO_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)  # the database sets its own


class TemplateFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A template as an operator writes it: `[[templates]]` in the settings."""

    name: str
    display_name: str = ""
    description: str = ""
    icon: str = ""
    backend: str = "local"
    readme: str = ""
    agents_allowed: bool = True
    default_ttl_s: int = 0
    activity_bump_s: int = 3600
    require_active_version: bool = False
    spec: TemplateSpec = TemplateSpec()
    parameters: tuple[Parameter, ...] = ()


_WORKDAY_S: Final = 8 * 3600
"""Nobody is asked about a workspace of these, so one that is forgotten stops by itself."""

BUILT_IN: Final = (
    TemplateFile(
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
                regex=r"^(|(https?|git)://\S+|file:///\S+)$",
                regex_error="It must be the address of a git repository, or empty.",
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
    TemplateFile(
        name="demo",
        default_ttl_s=_WORKDAY_S,
        display_name="Demo",
        description="A small Python repository with a failing test, to try things out.",
        readme="A few files of Python and a test that fails. Ask for it to be mended.",
        spec=TemplateSpec(seed=DemoSeed(), network="none", directory="demo"),
    ),
)


def rows_of(file: TemplateFile, origin: Literal["builtin", "settings"]) -> templates.TemplateUpsert:
    """The same file gives the same ids, here and on every other replica."""
    template_id = TemplateId(uuid5(_SPACE, f"{origin}:{file.name.lower()}"))
    content = (file.spec, file.parameters, file.readme)
    text = msgspec.json.encode(content, order="deterministic").decode()
    version_id = VersionId(uuid5(template_id, text))
    version = TemplateVersion(
        id=version_id,
        template_id=template_id,
        spec=file.spec,
        readme=file.readme,
        parameters=file.parameters,
        created_at=_NO_TIME,
    )
    template = Template(
        id=template_id,
        name=file.name,
        display_name=file.display_name,
        description=file.description,
        icon=file.icon,
        backend=file.backend,
        origin=origin,
        active_version_id=version_id,
        agents_allowed=file.agents_allowed,
        default_ttl_s=file.default_ttl_s,
        activity_bump_s=file.activity_bump_s,
        require_active_version=file.require_active_version,
        created_at=_NO_TIME,
        updated_at=_NO_TIME,
    )
    return templates.TemplateUpsert(template=template, version=version)


async def put_templates(
    conn: Conn, env: Env, settings: Sequence[TemplateFile] = (), *, built_in: bool = True
) -> list[Template]:
    """Those of the settings first: they may have the name of one that comes with the server,
    which then is not put. What is no longer in the settings is retired."""
    wanted = [rows_of(file, "settings") for file in settings]
    stored = await _put_all(conn, env, wanted)
    await templates.deprecate_missing(conn, "settings", [put.template.id for put in wanted])
    if built_in:
        named = {file.name.lower() for file in settings}
        others = [rows_of(f, "builtin") for f in BUILT_IN if f.name not in named]
        stored += await _put_all(conn, env, others)
    return stored


async def _put_all(
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
